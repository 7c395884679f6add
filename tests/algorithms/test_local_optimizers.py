"""Local optimizers: torch's own steps, with which methods they stay exact, and what is rejected."""

from __future__ import annotations

import functools
import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import netfleet as nf
from netfleet import Algorithm, ConfigError, Topology
from netfleet.algorithms import ALGORITHMS, with_local
from netfleet.algorithms.build import algorithm_label, algorithm_table, make_algorithm, resolve_algorithm
from netfleet.algorithms.local import OPTIMIZERS, make_local
from netfleet.problems.base import ParameterGroup
from netfleet.problems.synthetic import Quadratics
from netfleet.runs.build import network_for
from netfleet.topology.faults import Faults
from support.conformance import assert_close, check_engines_agree, check_lone_runs, run
from support.local_optimizers import BIASED, EXACT, LOCALS, Diagonal, build, decayed, declared_exact, distance
from support.problems import digits_problem, matrix_mix, methods, rollout

K_GT = make_algorithm({"kind": "k-gt", "K": 3, "eta": 0.05})
#: By how they keep their state: for all workers in one tensor, for each parameter, with plain numbers.
KINDS = [pytest.param(kind, id=kind if isinstance(kind, str) else "own") for kind in ("adamw", "asgd", "adafactor")]
KINDS.append(pytest.param(Diagonal, id="own"))
some = pytest.mark.parametrize("local", KINDS)


@pytest.mark.parametrize("kind", sorted(ALGORITHMS))
def test_methods_are_exact_with_the_local_optimizers_that_they_say(kind: str) -> None:
    for name in LOCALS:
        try:
            method = build(kind, name)
        except ConfigError:
            own: Any = ALGORITHMS[kind]
            assert not own.uses_step or (own.divides_by_eta and not name.endswith(("momentum", "nesterov")))
            continue
        found = distance(method)
        assert found < EXACT if declared_exact(method, name) else found > BIASED, (name, found)


@pytest.mark.parametrize("name", [name for name in sorted(OPTIMIZERS) if name != "muon"])
def test_without_mixing_the_steps_are_torchs(name: str, noisy: Quadratics) -> None:
    method = with_local(make_algorithm({"kind": "ld-sgd", "K": 2, "eta": 0.05}), name)
    states = rollout(method, noisy, matrix_mix(np.eye(6)), 4)
    for i in range(6):
        x = torch.nn.Parameter(noisy.start())
        optimizer = make_local(name).torch([x])
        for group in optimizer.param_groups:
            group["lr"] = 0.05
        for t in range(4):
            for k in (1, 2):
                x.grad = noisy.at([i]).grad(x.detach()[None], noisy.at([i]).sample(t, k))[0]
                optimizer.step()
        assert torch.equal(states[-1].x[i], x.detach())


def test_each_parameter_is_moved_in_its_shape() -> None:
    problem = digits_problem(3, torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10, bias=False)))
    assert problem.shapes == ((10, 64),)
    state = (
        run("simulator", with_local(K_GT, "muon"), problem, nf.make_topology("ring", workers=3), 2).snapshots[-1].state
    )
    x = problem.start().view(10, 64).clone()
    for name, values in zip(state._fields, state, strict=True):
        assert torch.isfinite(values).all(), name
    assert not torch.equal(state.x[0].view(10, 64), x)
    biased = digits_problem(3, "softmax")
    with pytest.raises(ConfigError, match=r"cannot train parameters of the shapes \[\(10,\)"):
        run("simulator", with_local(K_GT, "muon"), biased, nf.make_topology("ring", workers=3), 1)


def test_sgd_is_no_local_optimizer_bit_for_bit(noisy: Quadratics, graph: Topology) -> None:
    plain, same = (rollout(m, noisy, matrix_mix(graph.W().toarray()), 5) for m in (K_GT, with_local(K_GT, "sgd")))
    for a, b in zip(plain, same, strict=True):
        assert torch.equal(a.x, b.x)


@some
def test_local_optimizers_keep_the_promises_of_a_method(local: Any, noisy: Quadratics, graph: Topology) -> None:
    method = with_local(K_GT, local)
    check_lone_runs(method, noisy)
    check_engines_agree(method, noisy, "erdos-renyi")
    mix = matrix_mix(graph.W().toarray())
    states = rollout(method, noisy, mix, 4)
    for t in (0, 2):  # a round changes nothing of the state that it is given
        again = method.round(noisy, mix, t, states[t])  # type: ignore[arg-type]
        assert all(torch.equal(a, b) for a, b in zip(again, states[t + 1], strict=True))


@some
@pytest.mark.parametrize("kind", ["k-gt", "net-fleet", "scaffold"])
def test_a_state_that_may_be_overwritten_gives_the_same_bits(kind: str, local: Any, noisy: Quadratics) -> None:
    method = with_local(make_algorithm({"kind": kind, "K": 3, "eta": 0.05}), local)
    kept = rollout(method, noisy, matrix_mix(np.full((6, 6), 1 / 6)), 5)[-1]
    noisy.owns_state = True
    owned = rollout(method, noisy, matrix_mix(np.full((6, 6), 1 / 6)), 5)
    assert all(torch.equal(a, b) for a, b in zip(kept, owned[-1], strict=True))
    assert owned[-1].local_count.data_ptr() == owned[-2].local_count.data_ptr()


@some
def test_workers_that_are_away_keep_their_state(local: Any, noisy: Quadratics, graph: Topology) -> None:
    method = with_local(make_algorithm({"kind": "fedavg", "K": 3, "eta": 0.05, "participation": 0.5}), local)
    network = network_for(method, graph, 0)
    states = [s.state for s in run("simulator", method, noisy, network, 6).snapshots]  # type: ignore[arg-type]
    for t, (before, after) in enumerate(itertools.pairwise(states)):
        away = torch.from_numpy(~np.asarray(network.active(t)))
        for name, a, b in zip(method.State._fields, before, after, strict=True):
            if name.startswith("local_"):
                assert torch.equal(a[away], b[away]), name
        assert ((after.local_count - before.local_count)[:, 0] == 3 * ~away).all()  # type: ignore[attr-defined]


@some
def test_with_absent_workers_the_simulator_equals_a_thread_per_worker(local: Any, noisy: Any, graph: Topology) -> None:
    method = with_local(K_GT, local)
    network: Any = network_for(method, graph, 0, Faults(absent=0.4))
    ours, theirs = (run(engine, method, noisy, network, 6).snapshots[-1].state for engine in ("simulator", "threads"))
    assert len(ours.local_count.unique()) > 1  # type: ignore[attr-defined]
    assert_close(ours, theirs, 1e-12)


@pytest.mark.parametrize("local", ["momentum", "adamw", "adafactor"])
def test_groups_have_rates_and_options_of_their_own(local: str) -> None:
    problem = digits_problem(2, "softmax")
    method = with_local(make_algorithm({"kind": "ld-sgd", "K": 2, "eta": 0.05}), local)
    problem.groups = (ParameterGroup((1,), rate=0.0), ParameterGroup((0,), 2.0, {"weight_decay": 0.5}))
    state = rollout(method, problem, matrix_mix(np.eye(2)), 2)[-1]
    w = 10 * 64
    assert torch.equal(state.x[:, w:], problem.start().repeat(2, 1)[:, w:])  # its rate is 0
    x = problem.start()[:w].view(10, 64).clone().requires_grad_()
    optimizer = functools.partial(make_local(local).make, **make_local(local).options)([x], lr=0.1)
    optimizer.param_groups[0]["weight_decay"] = 0.5
    for t in (0, 1):
        for k in (1, 2):
            row = torch.cat([x.detach().flatten(), problem.start()[w:]])[None]
            x.grad = problem.at([0]).grad(row, problem.at([0]).sample(t, k))[0, :w].view(10, 64)
            optimizer.step()
    assert (state.x[0, :w] - x.detach().flatten()).abs().max() < 1e-6


def test_plain_steps_have_the_groups_rates() -> None:
    problem = digits_problem(2, "softmax")
    problem.groups = (ParameterGroup((0,), 2.0), ParameterGroup((1,), 0.5))
    x = torch.zeros(2, problem.d)
    problem.step(x, torch.ones_like(x), 0.1)
    assert torch.equal(x[:, :640], torch.full((2, 640), -0.2))
    assert torch.equal(x[:, 640:], torch.full((2, 10), -0.05))


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(("kind", "K", "b"), [("led", 1, 1.0), ("led", 4, 1 / 4), ("d2", None, 1.0)])
def test_the_greatest_momentum_of_corrections_from_displacements(kind: str, K: Any, b: float, nesterov: bool) -> None:
    # Two workers and no gradients: a round is linear, and W has the eigenvalue λ.
    most = ((1 + 4 * b) ** 0.5 - 1) / (2 * b) if nesterov else 1 / (1 + b)
    base = make_algorithm({"kind": kind, "eta": 1.0, **({"K": K} if K else {})})
    local = {"kind": "nesterov" if nesterov else "momentum"}
    with pytest.raises(ConfigError, match="diverges with momentum"):
        with_local(base, local | {"momentum": most + 0.01})
    growth = [radius(with_local(base, local | {"momentum": most - 0.01}), lam) for lam in (-0.3, 0.0, 0.9, 0.99, 0.999)]
    assert max(growth) < 1
    base_server = ALGORITHMS.build({"kind": "vrl-sgd", "K": 3})
    with_local(base_server, local | {"momentum": 0.99})  # no bound on the exact average


def test_beyond_the_greatest_momentum_they_do_diverge() -> None:
    method = with_local(make_algorithm({"kind": "led", "K": 4, "eta": 1.0}), {"kind": "momentum", "momentum": 0.79})
    object.__setattr__(method.local, "options", {**method.local.options, "momentum": 0.82})
    assert radius(method, 0.98) > 1


def radius(method: Algorithm, lam: float) -> float:
    """The spectral radius of a round without gradients, from difference to difference of two workers."""
    problem = Quadratics(2, d=1, dtype=torch.float64)
    problem.A.zero_()
    W = torch.tensor([[1 + lam, 1 - lam], [1 - lam, 1 + lam]], dtype=torch.float64) / 2
    one = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    count, columns = torch.ones(2, 1, dtype=torch.int64), []
    for place in range(3):  # x, c and the momentum
        parts = [one if place == i else 0 * one for i in range(3)]
        state = method.State._make([*parts[:2], count, parts[2]])
        after: Any = method.round(problem, matrix_mix(W), 1, state)  # type: ignore[arg-type]
        columns.append([float(after[i][0]) for i in (0, 1, 3)])
    return float(np.abs(np.linalg.eigvals(np.array(columns).T)).max())


def test_decoupled_weight_decay_moves_the_fixed_point_and_coupled_is_the_penalty() -> None:
    found = decayed()
    assert found["adam"] < EXACT
    assert found["adamw"] > BIASED


@pytest.mark.parametrize("local", [*sorted(OPTIMIZERS), "torch.optim:AdamW"])
def test_a_local_optimizer_survives_its_table_and_pickle(local: str) -> None:
    method = with_local(K_GT, local)
    table = resolve_algorithm({"kind": "k-gt", "K": 3, "eta": 0.05, "local": local})
    assert "lr" not in table["local"]
    assert resolve_algorithm(table) == table == algorithm_table(method)
    assert make_algorithm(table) == method == pickle.loads(pickle.dumps(method))
    assert algorithm_label(table) == method.title == f"K-GT, {local.rpartition(':')[2].lower()}"


def test_a_class_and_a_partial_of_it_are_local_optimizers_too() -> None:
    given = functools.partial(torch.optim.AdamW, betas=(0.8, 0.9))
    assert with_local(K_GT, given) == with_local(K_GT, {"kind": "adamw", "betas": [0.8, 0.9]})
    assert with_local(K_GT, torch.optim.RAdam) == with_local(K_GT, "radam")
    assert with_local(K_GT, Diagonal).title == "K-GT, Diagonal"
    assert not K_GT.divides_by_eta


def test_a_run_resumes_bit_identically(tmp_path: Path) -> None:
    method = {"kind": "k-gt", "K": 2, "eta": 0.05, "local": "adamw", "outer": "nesterov", "compress": "cast"}
    options: dict[str, Any] = {"problem": {"kind": "quadratics", "d": 5}, "topology": "ring", "workers": 4}
    whole = nf.simulate(method, rounds=6, **options)
    nf.simulate(method, rounds=3, out=tmp_path, **options)
    resumed = nf.simulate(method, rounds=6, out=tmp_path, resume=True, **options)
    assert whole.label == "K-GT, adamw, outer nesterov, cast"
    assert whole.final is not None
    assert resumed.final is not None
    for a, b in zip(whole.final.state, resumed.final.state, strict=True):
        assert torch.equal(a, b)


REFUSED = {
    "needs a closure": ("k-gt", torch.optim.LBFGS, "LBFGS cannot make a step along a given direction"),
    "sparse gradients only": ("k-gt", torch.optim.SparseAdam, "SparseAdam cannot make a step"),
    "no class": ("k-gt", 5, "expected a name such as"),
    "a class of another kind": ("k-gt", torch.nn.Linear, "a class of torch.optim"),
    "the learning rate": ("k-gt", {"kind": "adamw", "lr": 0.1}, "give it as eta"),
    "an unknown option": ("k-gt", {"kind": "adamw", "beta": 0.1}, "did you mean 'betas'"),
    "a bad value": ("k-gt", {"kind": "adamw", "betas": [1.5, 0.9]}, "Invalid beta"),
    "a bad type": ("k-gt", {"kind": "adamw", "eps": "small"}, "must be a number"),
    "an unknown name": ("k-gt", "adamww", "did you mean 'adamw'"),
    "a momentum of its own": ("pd-sgdm", "adamw", "makes its steps itself"),
    "a server's step": ("spider", "adamw", "makes its steps itself"),
    "displacements": ("led", "adamw", "learns its correction from how far the models moved"),
    "D²": ("d2", "rmsprop", "use momentum or nesterov"),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_what_cannot_be_a_local_optimizer_is_refused_in_one_sentence(case: str) -> None:
    kind, local, words = REFUSED[case]
    with pytest.raises(ConfigError, match=words) as caught:
        with_local(make_algorithm(kind), local)
    assert "\n" not in str(caught.value)


class InGroups(torch.optim.Optimizer):
    def __init__(self, params: Any, lr: float = 1.0) -> None:
        super().__init__(params, {"lr": lr, "steps": 0})

    def step(self, closure: Any = None) -> None:
        self.param_groups[0]["steps"] += 1


class Lists(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            self.state[p]["history"] = [p]


@pytest.mark.parametrize(("own", "words"), [(InGroups, "in its parameter groups"), (Lists, "as a list")])
def test_state_that_cannot_be_saved_is_refused(own: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        with_local(K_GT, own)


class Altering(torch.optim.SGD):
    """It writes into the gradient, as clipping optimizers do."""

    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            p.grad.clamp_(-0.1, 0.1)
        super().step(closure)


def test_a_class_that_writes_into_the_gradient_does_not_change_the_method(noisy: Quadratics, graph: Topology) -> None:
    method = with_local(make_algorithm({"kind": "net-fleet", "K": 3, "eta": 0.05}), Altering)
    state = rollout(method, noisy, matrix_mix(graph.W().toarray()), 5)[-1]
    assert (state.y - state.g).sum(0).abs().max() < 1e-12


@pytest.mark.parametrize("method", methods())
def test_every_method_lets_go_of_its_old_state_or_needs_it(method: Algorithm, quadratics: Quadratics) -> None:
    """A round never changes the state that it was given, whatever it lets go of."""
    states = rollout(method, quadratics, matrix_mix(np.full((6, 6), 1 / 6)), 2)
    copies = [part.clone() for part in states[1]]
    method.round(quadratics, matrix_mix(np.full((6, 6), 1 / 6)), 1, states[1])  # type: ignore[arg-type]
    assert all(torch.equal(a, b) for a, b in zip(copies, states[1], strict=True))
