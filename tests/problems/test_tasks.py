"""Losses and metrics against what libraries and plain loops compute, and problems of every kind against autograd."""

import math
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import netfleet as nf
from netfleet.data import Dataset
from netfleet.errors import ConfigError, DataError
from netfleet.problems import ModuleProblem, Task
from netfleet.problems.scoring import METRICS, make_metric, make_metrics, sklearn_metrics
from netfleet.problems.tasks import make_task

DICE = torch.Generator().manual_seed(0)


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=DICE, dtype=torch.float64)


def whole(high: int, *shape: int) -> Tensor:
    return torch.randint(high, shape, generator=DICE)


def cox_by_pairs(risk: Tensor, targets: Tensor) -> Tensor:
    """The definition: each event against all that were still at risk."""
    time, event = targets.unbind(1)
    at_risk = [torch.logsumexp(risk[time >= t], 0) for t in time]
    return event * (torch.stack(at_risk) - risk)


SURVIVAL = torch.stack([whole(5, 20).double(), whole(2, 20).double()], 1)  # with ties
SEQUENCE = torch.where(whole(4, 6, 5) == 0, -100, whole(3, 6, 5))


@pytest.mark.parametrize(
    ("loss", "outputs", "targets", "expected"),
    [
        ("cross-entropy", (8, 3), whole(3, 8), lambda o, t: F.cross_entropy(o, t, reduction="none")),
        ("bce", (8, 1), whole(2, 8).double(), lambda o, t: F.softplus(o[:, 0]) - o[:, 0] * t),
        ("bce", (8,), whole(2, 8).double(), lambda o, t: F.softplus(o) - o * t),
        ("bce", (8, 3), whole(2, 8, 3).double(), lambda o, t: (F.softplus(o) - o * t).mean(1)),
        ("mse", (8, 1), draw(8), lambda o, t: (o[:, 0] - t) ** 2),
        ("mse", (8, 2), draw(8, 2), lambda o, t: ((o - t) ** 2).mean(1)),
        ({"kind": "huber", "delta": 0.5}, (8,), draw(8), lambda o, t: F.huber_loss(o, t, reduction="none", delta=0.5)),
        ("cox", (20, 1), SURVIVAL, lambda o, t: cox_by_pairs(o[:, 0], t)),
        (
            "sequence-cross-entropy",
            (6, 5, 3),
            SEQUENCE,
            lambda o, t: torch.stack([F.cross_entropy(a[b >= 0], b[b >= 0]) for a, b in zip(o, t, strict=True)]),
        ),
    ],
)
def test_losses(loss: Any, outputs: tuple[int, ...], targets: Tensor, expected: Any) -> None:
    scores = draw(*outputs)
    torch.testing.assert_close(make_task(loss).loss(scores, targets), expected(scores, targets))


def data(y: Tensor, x: Any = None, **options: Any) -> Dataset:
    x = draw(len(y), 4).float() if x is None else x
    return Dataset("toy", x, y, x, y, **options)


def linear(outputs: int) -> nn.Module:
    return nn.Linear(4, outputs)


CASES = {
    "one logit": (whole(2, 30), linear(1), "bce"),
    "labels": (whole(2, 30, 3), linear(3), "bce"),
    "numbers": (draw(30).float(), linear(1), "mse"),
    "several numbers": (draw(30, 2).float(), nn.Sequential(linear(8), nn.Tanh(), nn.Linear(8, 2)), "huber"),
    "risk": (torch.stack([draw(30).abs(), whole(2, 30).double()], 1).float(), linear(1), "cox"),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("gradients", ["auto", "looped"])
def test_gradients_and_values_are_those_of_autograd(name: str, gradients: Any) -> None:
    y, model, loss = CASES[name]
    parts = [np.arange(12), np.arange(12, 30)]
    problem = ModuleProblem(model, data(y), parts, loss=loss, batch=0, gradients=gradients, dtype=torch.float64)
    task, x = problem.task, problem.start()
    module = problem.module(x).train()
    values = []
    for i, part in enumerate(parts):
        targets = problem.task.targets(y[part], "").double()
        value = task.loss(module(problem.data.train_x[part].double()), targets).mean()
        slopes = torch.autograd.grad(value, list(module.parameters()))
        own = problem.full_grad(x.expand(2, -1))[i]
        torch.testing.assert_close(own, torch.cat([s.flatten() for s in slopes]))
        values.append(value.detach())
    value, gradient = problem.objective(x)
    torch.testing.assert_close(value, torch.stack(values).mean())
    torch.testing.assert_close(gradient, problem.full_grad(x.expand(2, -1)).mean(0))
    assert (problem.evaluate(x[None]).accuracy is None) == (loss in ("mse", "huber", "cox"))


def test_a_binary_classifier_with_one_logit_has_the_right_accuracy() -> None:
    x = draw(200, 4).float()
    y = (x[:, 0] > 0).long()
    model = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
    problem = ModuleProblem(model, data(y, x, classes=2), [np.arange(200)], loss="bce")
    scores = problem.evaluate(problem.start()[None], metrics=["auroc", "balanced_accuracy"])
    assert scores.accuracy is not None
    assert scores.accuracy.item() == 1.0
    assert scores.metrics == {"auroc": (1.0,), "balanced_accuracy": (1.0,)}


class Several(nn.Module):
    """A model of several inputs: tokens and numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(7, 3), nn.Linear(5, 2)

    def forward(self, tokens: Tensor, numbers: Tensor) -> Tensor:
        return self.head(torch.cat([self.table(tokens).mean(1), numbers], 1))


@pytest.mark.parametrize("as_dict", [True, False])
def test_inputs_may_be_several_tensors_of_any_type(as_dict: bool) -> None:
    tokens, numbers, y = whole(7, 20, 6), draw(20, 2).float(), whole(2, 20)
    x = {"numbers": numbers, "tokens": tokens} if as_dict else (tokens, numbers)
    problem = ModuleProblem(model := Several(), data(y, x, classes=2), [np.arange(20)] * 2, batch=4)
    sample = problem.sample(0, 1)
    assert sample.rows is not None
    rows = sample.rows[0]
    loss = F.cross_entropy(model(tokens[rows], numbers[rows]), y[rows])
    slopes = torch.autograd.grad(loss, list(model.parameters()))
    found = problem.grad(problem.start().expand(2, -1).contiguous(), sample)[0]
    torch.testing.assert_close(found, torch.cat([slope.flatten() for slope in slopes]))


def test_only_what_requires_a_gradient_is_trained_and_tied_weights_count_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    model[2].weight = model[0].weight
    for parameter in model[4].parameters():
        parameter.requires_grad_(False)
    problem = ModuleProblem(model, data(whole(2, 20), classes=2), [np.arange(20)] * 3, batch=0)
    assert problem.d == 16 + 4 + 4
    step = problem.module(problem.start() - 0.1 * problem.full_grad(problem.start()[None].expand(3, -1))[0])
    assert step[0].weight is step[2].weight  # type: ignore[union-attr]
    assert not torch.equal(step[0].weight, model[0].weight)  # type: ignore[arg-type, union-attr]
    torch.testing.assert_close(step[4].weight, model[4].weight)  # type: ignore[union-attr]


def softmaxed(scores: Tensor) -> Any:
    return scores.softmax(-1).numpy()


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "expected"),
    [
        ("auroc", draw(40, 2), whole(2, 40), lambda o, t: sklearn_metrics().roc_auc_score(t, o[:, 1] - o[:, 0])),
        (
            "auroc",
            draw(40, 3),
            whole(3, 40),
            lambda o, t: sklearn_metrics().roc_auc_score(t, softmaxed(o), multi_class="ovr"),
        ),
        ("auroc", draw(40, 3), whole(2, 40, 3).double(), lambda o, t: sklearn_metrics().roc_auc_score(t, o)),
        (
            "average_precision",
            draw(40),
            whole(2, 40).double(),
            lambda o, t: sklearn_metrics().average_precision_score(t, o),
        ),
        ("auroc", draw(40).round(), whole(2, 40).double(), lambda o, t: sklearn_metrics().roc_auc_score(t, o)),  # ties
        ("f1", draw(40, 3), whole(3, 40), lambda o, t: sklearn_metrics().f1_score(t, o.argmax(1), average="macro")),
        ("f1", draw(40, 2), whole(2, 40), lambda o, t: sklearn_metrics().f1_score(t, o.argmax(1))),
        (
            "balanced_accuracy",
            draw(40, 3),
            whole(3, 40),
            lambda o, t: sklearn_metrics().balanced_accuracy_score(t, o.argmax(1)),
        ),
        ("accuracy", draw(40, 3), whole(3, 40), lambda o, t: sklearn_metrics().accuracy_score(t, o.argmax(1))),
        ("rmse", draw(40, 1), draw(40), lambda o, t: sklearn_metrics().root_mean_squared_error(t, o[:, 0])),
        ("mae", draw(40, 1), draw(40), lambda o, t: sklearn_metrics().mean_absolute_error(t, o[:, 0])),
        ("r2", draw(40, 2), draw(40, 2), lambda o, t: sklearn_metrics().r2_score(t, o)),
        ("perplexity", draw(6, 5, 3), SEQUENCE, lambda o, t: math.exp(F.cross_entropy(o[t >= 0], t[t >= 0]))),
    ],
)
def test_metrics(name: str, outputs: Tensor, targets: Tensor, expected: Any) -> None:
    assert METRICS[name](outputs, targets) == pytest.approx(float(expected(outputs, targets)), rel=1e-12)


def test_concordance_counts_pairs() -> None:
    risk, pairs, right = draw(20), 0, 0.0
    for (t, event), r in zip(SURVIVAL.tolist(), risk.tolist(), strict=True):
        for (later, _), other in zip(SURVIVAL.tolist(), risk.tolist(), strict=True):
            if event and t < later:
                pairs, right = pairs + 1, right + (r > other) + 0.5 * (r == other)
    assert METRICS["concordance"](risk, SURVIVAL) == pytest.approx(right / pairs)


def test_a_metric_that_some_rows_do_not_have_is_none() -> None:
    assert METRICS["auroc"](draw(5, 2), torch.zeros(5, dtype=torch.int64)) is None
    assert METRICS["r2"](draw(1), draw(1)) is None


def test_any_function_is_a_metric_and_a_wrong_name_is_refused() -> None:
    def worst(outputs: Tensor, targets: Tensor) -> float:
        return float((outputs[:, 0] - targets).abs().max())

    assert make_metric(worst).name == "worst"
    with pytest.raises(ConfigError, match=r"unknown metric 'auc' .did you mean 'auroc'"):
        make_metric("auc")
    with pytest.raises(
        ConfigError, match="'auroc' does not exist for this task, whose outputs are numbers; it has: mae"
    ):
        make_metrics(["auroc"], make_task("mse"))
    with pytest.raises(ConfigError, match="does not say what the outputs are"):
        make_metrics(["auroc"], Task(lambda outputs, targets: outputs))


@pytest.mark.parametrize(
    ("y", "loss", "sentence"),
    [
        (draw(4).float(), "cross-entropy", "targets are float32 .*, expected int64 one label for each row"),
        (whole(2, 4, 3), "cross-entropy", "expected int64 one label for each row"),
        (torch.tensor([0, 1, 2, 1]), "bce", "needs targets of 0 or 1, got 0 to 2"),
        (draw(4).float(), "cox", r"needs targets \[rows, 2\]"),
        (torch.tensor([[1.0, 2.0]] * 4), "cox", r"needs targets \[rows, 2\]"),
    ],
)
def test_targets_that_do_not_fit_the_loss_are_refused(y: Tensor, loss: str, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        ModuleProblem(linear(1), data(y), [np.arange(4)], loss=loss)


class WithMore(nn.Module):
    """As models of the transformers library: the scores are one of several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.layer(x), hidden=x)


def test_outputs_may_come_with_others() -> None:
    problem = ModuleProblem(WithMore(), data(whole(2, 20), classes=2), [np.arange(20)], batch=4)
    assert problem.grad(problem.start()[None], problem.sample(0, 1)).abs().sum() > 0
    assert problem.evaluate(problem.start()[None]).accuracy is not None


def test_adapters_of_peft_are_all_that_is_sent() -> None:
    peft = pytest.importorskip("peft")
    base = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["0", "2"]))
    problem = ModuleProblem(model, data(whole(2, 20), classes=2), [np.arange(20)] * 4, batch=4)
    adapters = sum(p.numel() for name, p in model.named_parameters() if "lora" in name)
    assert problem.d == adapters
    history = nf.simulate("dsgd", topology="ring", problem=problem, rounds=3)
    assert history.last["bytes"] == 3 * 8 * 4 * adapters  # rounds, messages, bytes of a number


def constant(outputs: Tensor, targets: Tensor) -> float:
    return 1.0


def broken(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs


def loss(outputs: Tensor, targets: Tensor) -> float:
    return 42.0


def test_metrics_that_would_hide_a_column_or_each_other_are_refused() -> None:
    for metrics, words in (([loss], "name of another column"), ([constant, constant], "name of two metrics")):
        with pytest.raises(ConfigError, match=words):
            make_metrics(metrics, make_task("cross-entropy"))
    with pytest.raises(ConfigError, match="metric 'broken' failed"):
        make_metric(broken)(draw(4, 2), whole(2, 4))
    for unnamed in (partial(constant), lambda outputs, targets: 1.0):
        with pytest.raises(ConfigError, match="a metric must have a name"):
            nf.Evaluation(metrics=(unnamed,))


def test_a_metric_of_a_diverged_model_is_none() -> None:
    assert METRICS["auroc"](draw(6, 2) * math.nan, whole(2, 6)) is None


def test_scores_are_those_of_the_record_under_recalibrated_batch_norm() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    problem = ModuleProblem(model, data(whole(3, 200), classes=3), [np.arange(200)] * 2, batch_norm="recalibrated")
    history = nf.simulate("dsgd", topology="ring", workers=2, problem=problem, rounds=5, evaluation={"metrics": ["f1"]})
    scores = {score.metric: score.value for score in history.scores if not score.label}
    assert scores["accuracy"] == pytest.approx(history.last["accuracy"])
    assert scores["f1"] == pytest.approx(history.last["f1"])
    assert history.last["worker_f1_mean"] is not None
