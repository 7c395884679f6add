"""Problems: gradients against autograd and closed forms, sampling by address, BatchNorm policies, dropout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from netfleet import ConfigError, ModuleProblem, NetFleet, load_dataset, make_partition, make_topology
from netfleet.engines import Job, make_engine
from netfleet.gradients.replica import flatten
from netfleet.problems.models import MODELS
from netfleet.problems.synthetic import Logistic, Quadratics
from netfleet.runs.metrics import measure_objective
from support.problems import Memory, batch_norm_net, digits_problem, dropout_net, matrix_mix, rollout


def scattered(problem: Any) -> torch.Tensor:
    """A different model for every worker."""
    noise = torch.randn(problem.m, problem.d, generator=torch.Generator().manual_seed(0), dtype=problem.dtype)
    return problem.start().repeat(problem.m, 1) + 0.1 * noise


@pytest.mark.parametrize("model", ["mlp", "cnn", "softmax"])
@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_gradients_are_those_of_autograd(model: str, l2: float) -> None:
    problem = digits_problem(4, model, dtype=torch.float64, l2=l2)
    x, sample = scattered(problem), problem.sample(2, 3)
    ours = problem.grad(x, sample)
    module = MODELS.build(model, inputs=(1, 8, 8), outputs=10).double()
    for i in range(4):
        torch.nn.utils.vector_to_parameters(x[i], module.parameters())
        rows = sample.rows[i]
        scores = module(problem.data.train_x[rows].double())
        loss = F.cross_entropy(scores, problem.data.train_y[rows]) + l2 / 2 * x[i].square().sum()
        theirs = flatten(list(torch.autograd.grad(loss, list(module.parameters()))), torch.float64)
        penalty = l2 * x[i]  # x is data here, so autograd does not see it
        assert torch.allclose(ours[i], theirs + penalty, atol=1e-12)


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_the_objective_is_the_mean_of_the_local_objectives(model: str) -> None:
    problem = digits_problem(4, model, dtype=torch.float64, l2=0.1)
    x = scattered(problem)[0]
    _, gradient = problem.objective(x)
    assert torch.allclose(gradient, problem.full_grad(x.expand(4, -1)).mean(0), atol=1e-12)


def test_exact_gradients_are_the_mean_of_all_samples() -> None:
    exact, problem = digits_problem(4, batch=0, dtype=torch.float64), digits_problem(4, dtype=torch.float64)
    x = scattered(problem)
    assert torch.equal(exact.grad(x, exact.sample(0, 1)), problem.full_grad(x))
    assert exact.sample(0, 1).size == len(problem.data.train_y)


def test_workers_that_share_all_data_have_one_objective() -> None:
    data = load_dataset("digits")
    shared = ModuleProblem(
        MODELS.build("softmax", inputs=(1, 8, 8), outputs=10), data, make_partition("shared", data, 3, 0)
    )
    x = shared.start()
    value, _ = shared.objective(x)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    torch.nn.utils.vector_to_parameters(x, module.parameters())
    assert value.item() == pytest.approx(F.cross_entropy(module(data.train_x), data.train_y).item(), rel=1e-5)


@pytest.mark.parametrize("partition", ["shared", "iid", {"kind": "dirichlet", "alpha": 1.0}])
def test_estimates_from_some_training_samples_are_unbiased(partition: Any) -> None:
    """Also where workers share their data, have parts of unequal sizes, or use all of a small part."""
    problem = digits_problem(6, "softmax", dtype=torch.float64, partition=partition)
    x = problem.start()
    for _ in range(10):
        x = x - 0.5 * problem.objective(x)[1]
    exact, drawn, naive = measure_objective(problem, x, 0), [], []
    for problem.seed in range(150):
        drawn.append(measure_objective(problem, x, 300))
        naive.append(problem.estimated_objective(x, 50).gradient.square().sum().item())
    for name, most in (("train_loss", 1.2), ("grad_norm2", 1.5)):
        values = np.array([record[name] for record in drawn])
        errors = np.array([record[f"{name}_se"] for record in drawn])
        assert abs(values.mean() - exact[name]) < 4 * values.std() / np.sqrt(len(values))
        assert 0.8 < np.sqrt(np.mean(errors**2)) / values.std() < most
    assert np.mean(naive) > exact["grad_norm2"] + 4 * np.std(naive) / np.sqrt(len(naive)), "too large by its variance"
    assert "train_loss_se" not in exact


def test_an_estimate_from_more_samples_than_there_are_is_exact() -> None:
    problem = digits_problem(4)
    value, gradient, deviations = problem.estimated_objective(problem.start(), 1000)
    assert deviations is None
    assert all(torch.equal(a, b) for a, b in zip((value, gradient), problem.objective(problem.start()), strict=True))


@pytest.mark.parametrize("partition", ["iid", {"kind": "dirichlet", "alpha": 1.0}])
def test_estimates_do_not_depend_on_which_host_has_which_workers(partition: Any) -> None:
    problem = digits_problem(6, "softmax", dtype=torch.float64, partition=partition)
    value, gradient, deviations = problem.estimated_objective(problem.start(), 50)
    parts = [(problem.at(workers), len(workers) / 6) for workers in ((3, 1), (0, 5, 4, 2))]
    found = [(part.estimated_objective(problem.start(), 50), share) for part, share in parts]
    assert torch.allclose(sum(share * part.value for part, share in found), value)
    assert torch.allclose(sum(share * part.gradient for part, share in found), gradient)
    for i in range(2):
        assert torch.allclose(sum(share * part.deviations[i] for part, share in found), deviations[i])


def test_scores_on_some_test_samples_are_unbiased_and_each_worker_has_its_own() -> None:
    problem = digits_problem(3, "softmax", dtype=torch.float64)
    x = problem.start().repeat(3, 1)
    exact = problem.evaluate(x, workers=(0, 1, 2))
    assert (exact.loss_error, exact.accuracy_error) == (None, None)
    drawn = []
    for problem.seed in range(200):
        drawn.append(problem.evaluate(x, workers=(0, 1, 2), limit=50))
    for name in ("loss", "accuracy"):
        values = torch.stack([getattr(scores, name) for scores in drawn])
        errors = torch.stack([getattr(scores, f"{name}_error") for scores in drawn])
        assert not torch.equal(values[:, 0], values[:, 1])
        miss = values.mean(0) - getattr(exact, name)
        assert (miss.abs() < 4 * values.std(0) / np.sqrt(len(values))).all()
        assert torch.allclose(errors.square().mean(0).sqrt(), values.std(0), rtol=0.3)
    together = problem.evaluate(x[:1], limit=50), problem.evaluate(x[:1], limit=50)
    assert together[0] == together[1], "the same rows in every evaluation"


def test_images_lie_with_their_channels_last_even_if_there_is_one() -> None:
    problem = digits_problem(3, "cnn")
    inputs = problem._train.inputs(problem.sample(0, 1).rows[0])
    assert inputs.shape == (8, 1, 8, 8)
    assert inputs.stride() == (64, 1, 8, 1)
    assert torch.equal(inputs, problem.data.train_x[problem.sample(0, 1).rows[0]])


def test_a_mini_batch_depends_on_its_address_only() -> None:
    problem = digits_problem(4)
    wanted = problem.sample(7, 2).rows
    problem.sample(1, 1)
    assert torch.equal(problem.sample(7, 2).rows, wanted)
    assert torch.equal(problem.at([2]).sample(7, 2).rows[0], wanted[2])
    others = [problem.sample(7, 3), problem.sample(8, 2), digits_problem(4, seed=1).sample(7, 2)]
    assert all(not torch.equal(other.rows, wanted) for other in others)


@pytest.mark.parametrize("sampling", ["replacement", "distinct"])
def test_mini_batches_come_from_the_workers_own_data_evenly(sampling: str) -> None:
    problem = digits_problem(30, batch=16, sampling=sampling)
    counts = np.zeros(len(problem.data.train_y))
    for t in range(300):
        rows = problem.sample(t, 1).rows.numpy()
        for i in range(30):
            assert set(rows[i]) <= set(problem.parts[i])
            if sampling == "distinct":
                assert len(set(rows[i])) == 16
        np.add.at(counts, rows.ravel(), 1)
    part = problem.parts[0]
    expected = 300 * 16 / len(part)
    # A sum of independent draws: five standard deviations around the mean.
    assert np.abs(counts[part] - expected).max() < 5 * np.sqrt(expected)


def test_more_distinct_samples_than_data_is_refused() -> None:
    with pytest.raises(ConfigError, match="64 distinct samples cannot be drawn from a worker that has"):
        digits_problem(30, batch=64, sampling="distinct")


def test_evaluation_counts_right_answers() -> None:
    problem = digits_problem(3, "softmax")
    x = scattered(problem)
    scores = problem.evaluate(x)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    for i in range(3):
        torch.nn.utils.vector_to_parameters(x[i], module.parameters())
        answers = module(problem.data.test_x)
        right = (answers.argmax(1) == problem.data.test_y).double().mean()
        assert scores.accuracy[i].item() == pytest.approx(right.item())
        assert scores.loss[i].item() == pytest.approx(F.cross_entropy(answers, problem.data.test_y).item(), rel=1e-5)


def test_batch_norm_statistics_do_not_enter_gradients() -> None:
    gradients = []
    for policy in ("mixed", "local", "recalibrated"):
        problem = digits_problem(4, batch_norm_net(), batch_norm=policy, dtype=torch.float64)
        gradients.append(problem.grad(scattered(problem), problem.sample(0, 1)))
    assert torch.equal(gradients[0], gradients[1])
    assert torch.equal(gradients[0], gradients[2])


def test_local_batch_norm_statistics_are_those_of_a_lone_module() -> None:
    problem = digits_problem(3, batch_norm_net(), batch_norm="local", dtype=torch.float64)
    x = scattered(problem)
    samples = [problem.sample(0, k) for k in (1, 2)]
    for sample in samples:
        problem.grad(x, sample)
    for i in range(3):
        module = batch_norm_net().double()
        torch.nn.utils.vector_to_parameters(x[i], module.parameters())
        for sample in samples:
            module(problem.data.train_x[sample.rows[i]].double())
        assert torch.allclose(problem.buffers[i], flatten(list(module.buffers()), torch.float64))


def test_mixed_batch_norm_statistics_travel_with_the_models(ring: Any) -> None:
    sent = {}
    for policy in ("mixed", "local"):
        memory = Memory()
        problem = digits_problem(5, batch_norm_net(), batch_norm=policy)
        make_engine("simulator").run(Job(problem, ring, NetFleet(K=2, eta=0.1), 3, memory))
        sent[policy] = memory.snapshots[-1].bytes
    buffers = 4 + 4 + 1  # running mean, running variance, count
    messages = 2 * 5 * 3  # both ways along each of 5 links in 3 rounds
    assert sent["mixed"] - sent["local"] == messages * buffers * 4


@pytest.mark.parametrize("policy", ["mixed", "local", "recalibrated"])
def test_batch_norm_is_the_same_on_the_peers(policy: str, ring: Any) -> None:
    ends = []
    for engine in ("simulator", "threads"):
        memory = Memory()
        problem = digits_problem(5, batch_norm_net(), batch_norm=policy, dtype=torch.float64)
        make_engine(engine).run(Job(problem, ring, NetFleet(K=2, eta=0.1), 4, memory))
        ends.append(memory.snapshots[-1])
    assert torch.allclose(ends[0].state.x, ends[1].state.x, atol=1e-12)
    if policy == "recalibrated":
        assert ends[0].buffers is None
    else:
        assert torch.allclose(ends[0].buffers, ends[1].buffers, atol=1e-12)


def test_recalibrated_statistics_are_plain_averages_over_training_data() -> None:
    problem = digits_problem(3, batch_norm_net(), batch_norm="recalibrated", dtype=torch.float64)
    x = scattered(problem)
    found = problem._recalibrated(x, range(3))
    for i in range(3):
        module = batch_norm_net().double()
        torch.nn.utils.vector_to_parameters(x[i], module.parameters())
        features = module[0](problem.data.train_x[problem.parts[i]].double())  # fewer than one chunk: one batch
        assert torch.allclose(found[i][:4], features.mean((0, 2, 3)))


def test_dropout_does_not_depend_on_threads_or_torchs_generator(ring: Any) -> None:
    ends = []
    for threads, seed in ((1, 0), (3, 99)):
        torch.manual_seed(seed)
        problem = digits_problem(5, dropout_net(), threads=threads)
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        memory = Memory()
        make_engine("simulator").run(Job(problem, ring, NetFleet(K=2, eta=0.1), 3, memory, None, threads))
        assert torch.equal(before, torch.get_rng_state())
        ends.append(memory.snapshots[-1].state.x)
    assert torch.equal(ends[0], ends[1])


class Scaled(nn.Linear):
    """A layer of a user's own, with a forward pass that vmap cannot follow."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (2.0 if x.sum().item() > 0 else 1.0)


def test_only_models_of_known_layers_are_stacked(ring: Any) -> None:
    from netfleet.gradients.choice import LARGEST_STACKED, can_stack, should_stack

    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert should_stack(MODELS.build("mlp", inputs=(1, 8, 8), outputs=10), cpu)
    assert not should_stack(nn.Linear(64, LARGEST_STACKED), cpu)
    convolution = MODELS.build("cnn", inputs=(1, 8, 8), outputs=10)
    assert not should_stack(convolution, cpu)
    assert should_stack(convolution, gpu)
    own = nn.Sequential(nn.Flatten(), Scaled(64, 10))
    assert not can_stack(own)
    problem = digits_problem(4, own)
    assert torch.isfinite(problem.grad(scattered(problem), problem.sample(0, 1))).all()


@pytest.mark.parametrize("model", ["cnn", "mlp", "softmax"])
def test_stacked_gradients_equal_those_one_by_one(model: str) -> None:
    stacked, looped = (digits_problem(4, model, dtype=torch.float64, gradients=path) for path in ("stacked", "looped"))
    assert (stacked.path, looped.path) == ("stacked", "looped")
    x, sample = scattered(looped), looped.sample(0, 1)
    assert torch.allclose(stacked.grad(x, sample), looped.grad(x, sample), atol=1e-13)


def test_the_users_module_is_left_alone() -> None:
    own = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()
    before = flatten(list(own.parameters()), torch.float32)
    problem = digits_problem(4, own, dtype=torch.float64)
    problem.grad(scattered(problem), problem.sample(0, 1))
    assert not own.training
    assert torch.equal(flatten(list(own.parameters()), torch.float32), before)
    assert next(own.parameters()).dtype is torch.float32


class Viewed(nn.Module):
    """A convolution whose features are flattened with `view`, as in many a tutorial."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.linear = nn.Conv2d(1, 3, 3), nn.Linear(3 * 36, 10)
        self.register_buffer("mask", torch.full((10,), -torch.inf))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.convolution(x)
        return self.linear(features.view(features.size(0), -1))


@pytest.mark.parametrize(
    "model", [Viewed(), MODELS.build({"kind": "resnet18", "width": 4}, inputs=(1, 8, 8), outputs=10)]
)
def test_any_module_trains_in_both_engines(model: nn.Module, ring: Any) -> None:
    ends = []
    for engine in ("simulator", "threads"):
        memory = Memory()
        problem = digits_problem(5, model, batch=4, dtype=torch.float64)
        make_engine(engine).run(Job(problem, ring, NetFleet(K=2, eta=0.01), 2, memory))
        ends.append(memory.snapshots[-1])
    assert torch.allclose(ends[0].state.x, ends[1].state.x, atol=1e-10)


def test_constant_buffers_are_not_mixed() -> None:
    assert digits_problem(5, Viewed()).buffers is None
    assert digits_problem(5, batch_norm_net()).buffers is not None


def test_dropout_is_the_same_on_the_peers(ring: Any) -> None:
    ends = []
    for engine in ("simulator", "threads", "threads"):
        memory = Memory()
        make_engine(engine).run(
            Job(digits_problem(5, dropout_net(), dtype=torch.float64), ring, NetFleet(K=3), 4, memory)
        )
        ends.append(memory.snapshots[-1].state.x)
    assert torch.allclose(ends[0], ends[1], atol=1e-12)
    assert torch.equal(ends[1], ends[2])


def test_exact_values_do_not_depend_on_dropout_or_the_order_of_rows() -> None:
    problem = digits_problem(4, dropout_net(), dtype=torch.float64)
    whole = nn.Sequential(*(layer for layer in dropout_net() if not isinstance(layer, nn.Dropout)))
    x = problem.start()
    assert torch.allclose(problem.objective(x)[1], digits_problem(4, whole, dtype=torch.float64).objective(x)[1])
    norm = digits_problem(4, batch_norm_net(), dtype=torch.float64)
    labels = norm.data.train_y[torch.arange(512)]
    shuffled = norm.data.train_y[norm._shuffled(len(norm.data.train_y))[:512]]
    assert labels.unique().numel() < shuffled.unique().numel() == 10


def test_a_peer_that_cannot_start_stops_the_others(ring: Any) -> None:
    class Broken(Quadratics):
        def at(self, workers: Any) -> Any:
            if 2 in workers:
                raise ConfigError("worker 2 has no data")
            return super().at(workers)

    with pytest.raises(ConfigError, match="worker 2 has no data"):
        make_engine("threads").run(Job(Broken(5), ring, NetFleet(), 3, Memory()))


def test_a_group_norm_resnet_has_no_buffers_and_a_batch_norm_one_has() -> None:
    inputs = {"inputs": (3, 32, 32), "outputs": 10}
    assert not list(MODELS.build({"kind": "resnet18", "width": 8, "norm": "group"}, **inputs).buffers())
    full = MODELS.build("resnet18", **inputs)
    assert sum(p.numel() for p in full.parameters()) == 11_173_962  # the published CIFAR ResNet-18
    assert full(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_the_papers_cnn_has_the_papers_layers() -> None:
    model = MODELS.build("cnn", inputs=(1, 28, 28), outputs=10)
    expected = (9 + 1) * 16 + (9 * 16 + 1) * 16 + (16 * 7 * 7 + 1) * 10
    assert sum(p.numel() for p in model.parameters()) == expected


def test_the_papers_cnn_is_convolution_relu_pooling() -> None:
    model = MODELS.build("cnn", inputs=(1, 28, 28), outputs=10)
    x = torch.randn(4, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    first, second, last = (layer for layer in model if not isinstance(layer, nn.MaxPool2d | nn.ReLU | nn.Flatten))
    features = F.max_pool2d(F.relu(second(F.max_pool2d(F.relu(first(x)), 2))), 2)
    assert torch.allclose(model(x), last(features.flatten(1)), atol=1e-6)


@pytest.mark.parametrize("make", [Quadratics, Logistic])
def test_synthetic_gradients_are_derivatives_of_the_values(make: Any) -> None:
    problem = make(3, d=4, seed=1, dtype=torch.float64)
    x = scattered(problem).requires_grad_()
    (slope,) = torch.autograd.grad(problem.values(x).sum(), x)
    assert torch.allclose(problem.full_grad(x.detach()), slope, atol=1e-12)


@pytest.mark.parametrize("make", [Quadratics, Logistic])
def test_the_known_optimum_has_no_gradient_but_the_workers_do(make: Any) -> None:
    problem = make(5, d=4, seed=1, dtype=torch.float64)
    assert problem.objective(problem.optimum)[1].norm() < 1e-12
    assert problem.full_grad(problem.optimum.expand(5, -1)).norm(dim=1).min() > 1e-3


@pytest.mark.parametrize("make", [Quadratics, Logistic])
def test_the_known_smoothness_bounds_the_gradients(make: Any) -> None:
    problem = make(5, d=4, seed=1, dtype=torch.float64)
    a, b = scattered(problem), 3 * scattered(problem) + 1
    ratio = (problem.full_grad(a) - problem.full_grad(b)).norm(dim=1) / (a - b).norm(dim=1)
    assert ratio.max() <= problem.smoothness * (1 + 1e-12)


def test_the_known_variance_is_that_of_the_noise() -> None:
    problem = Quadratics(2, d=50, sigma=3.0, seed=1, dtype=torch.float64)
    x = scattered(problem)
    noise = torch.stack([problem.grad(x, problem.sample(t, 1)) - problem.full_grad(x) for t in range(400)])
    norms2 = noise.square().sum(-1)  # mean σ², standard deviation σ²√(2/d)
    spread = problem.variance * np.sqrt(2 / 50 / norms2.numel())
    assert abs(norms2.mean().item() - problem.variance) < 5 * spread


def test_the_known_variance_bounds_that_of_logistic_mini_batches() -> None:
    problem = Logistic(3, d=4, samples=50, batch=5, seed=1, dtype=torch.float64)
    x = scattered(problem)
    noise = torch.stack([problem.grad(x, problem.sample(t, 1)) - problem.full_grad(x) for t in range(2000)])
    assert noise.square().sum(-1).mean(0).max() <= problem.variance
    assert noise.mean(0).norm(dim=1).max() < 5 * np.sqrt(problem.variance / 2000)  # unbiased


def test_a_time_varying_graph_trains_too() -> None:
    topology = make_topology("one-peer-exponential", workers=8)
    problem = Quadratics(8, d=4, seed=2, dtype=torch.float64)
    state = NetFleet(K=3, eta=0.02).init(problem, matrix_mix(np.eye(8)), problem.start().repeat(8, 1))
    for t in range(2000):
        state = NetFleet(K=3, eta=0.02).round(problem, matrix_mix(topology.W(t).toarray()), t, state)
    assert (state.x - problem.optimum).norm() < 1e-10


def test_rollouts_leave_the_problem_as_it_was(graph: Any, logistic: Any) -> None:
    mix = matrix_mix(graph.W().toarray())
    first, second = (rollout(NetFleet(K=2), logistic, mix, 3)[-1] for _ in range(2))
    assert torch.equal(first.x, second.x)
