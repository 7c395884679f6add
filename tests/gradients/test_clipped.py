"""Sums of clipped gradients of single samples: every path has those of one sample after the other."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch import Tensor, nn

from netfleet.data import Dataset
from netfleet.data.tensors import Tensors, take
from netfleet.errors import ConfigError
from netfleet.gradients import per_sample
from netfleet.gradients.native import build
from netfleet.gradients.native.heads import NUMBERS
from netfleet.gradients.paths import Head
from netfleet.gradients.per_sample import depends_on_others, mixes_samples
from netfleet.gradients.replica import outputs_of
from netfleet.problems import ModuleProblem
from netfleet.problems.models import MODELS
from support.chains import chains
from support.problems import batch_norm_net, dropout_net

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
IMAGE, SAMPLES = (2, 11, 9), 90
#: None, one, a few, and more than the native path or `vmap` takes at a time.
RAGGED = (0, 1, 7, 75)
native = pytest.mark.skipif(build.find_compiler() is None, reason="no C++ compiler here")


def problem(model: nn.Module, x: Tensors | None = None, y: Tensor | None = None, **options: Any) -> ModuleProblem:
    """Four workers with the same data."""
    torch.manual_seed(3)
    x = torch.randn(SAMPLES, *IMAGE, dtype=torch.float64) if x is None else x
    y = torch.randint(0, 5, (SAMPLES,)) if y is None else y
    options = {"dtype": torch.float64} | options
    data = Dataset("random", x, y, x, y, classes=None if y.is_floating_point() else 5)
    return ModuleProblem(model, data, [np.arange(SAMPLES)] * len(RAGGED), **options)


def some_rows() -> list[Tensor]:
    return [torch.randint(0, SAMPLES, (count,), generator=torch.Generator().manual_seed(count)) for count in RAGGED]


def scattered(f: ModuleProblem) -> Tensor:
    torch.manual_seed(1)
    return f.start() + 0.1 * torch.randn(f.m, f.d, dtype=f.dtype)


def clipped(f: ModuleProblem, x: Tensor, rows: list[Tensor], clip: float, step: Any = None) -> Tensor:
    return f._path.clipped(x, rows, clip, step)


def single_gradients(f: ModuleProblem, x: Tensor, rows: Tensor) -> Tensor:
    """∇ℓⱼ(x) of each row, `[rows, d]`: the oracle."""
    model = copy.deepcopy(f.model)
    trained = [p for p in model.parameters() if p.requires_grad]
    nn.utils.vector_to_parameters(x, trained)
    found = [torch.empty(0, f.d, dtype=f.dtype)]
    for row in rows.split(1):
        loss = f.task.loss(outputs_of(model, f._train.inputs(row)), f._train.targets(row)).sum()
        gradients = torch.autograd.grad(loss, trained, materialize_grads=True)
        found.append(torch.cat([gradient.reshape(-1) for gradient in gradients])[None])
    return torch.cat(found)


def assert_right(f: ModuleProblem, path: str | None = None) -> None:
    """At a clip that some samples are above and some are below, at one above all, and at one below."""
    assert path in (None, f.path)
    x, rows = scattered(f), some_rows()
    singles = [single_gradients(f, x[i], rows[i]) for i in range(f.m)]
    norms = torch.cat(singles).norm(dim=1)
    norms = norms[norms > 0] if norms.any() else torch.ones(1)
    for clip in (float(norms.median()), 2 * float(norms.max()), 0.5 * float(norms.min())):
        found = clipped(f, x, rows, clip)
        assert not found[0].any()
        for ours, own in zip(found, singles, strict=True):
            expected = sum(min(1.0, clip / float(g.norm())) * g if g.any() else g for g in own)
            assert (ours - expected).norm() <= TOLERANCE[f.dtype] * (torch.finfo(f.dtype).tiny + clip * len(own))


def targets_of(head: Head, dtype: torch.dtype, outputs: int = 5) -> Tensor:
    if head == "cross-entropy":
        return torch.randint(0, outputs, (SAMPLES,))
    y = torch.randn(SAMPLES, outputs, dtype=dtype)
    return (y > 0).to(dtype) if head == "bce" else y


@native
@pytest.mark.parametrize("kind", ["softmax", "mlp", "cnn"])
@pytest.mark.parametrize("head", NUMBERS)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_native_path(kind: str, head: Head, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, y = MODELS.build(kind, inputs=IMAGE, outputs=5), targets_of(head, dtype)
    assert_right(problem(model, y=y, loss=head, dtype=dtype), "native")


@native
@given(chains(IMAGE, 5))
@settings(max_examples=40, deadline=None)
@pytest.mark.slow
def test_any_chain(model: nn.Module) -> None:
    assert_right(problem(model), "native")


@native
@pytest.mark.parametrize("bias", [True, False])
def test_strides_pooling_and_layers_without_a_bias(bias: bool) -> None:
    torch.manual_seed(0)
    first, second = nn.Conv2d(2, 6, 3, stride=2, padding=1, bias=bias), nn.Conv2d(6, 17, (2, 3), bias=bias)
    layers = [first, nn.ReLU(), second, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(34, 9, bias=bias), nn.ReLU()]
    assert_right(problem(nn.Sequential(*layers, nn.Linear(9, 5, bias=bias))), "native")


class Words(nn.Module):
    """A small transformer with inputs by name, whose last layer is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, scale: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(tokens) * scale[:, None, None]).mean(1))  # type: ignore[no-any-return]


def words(model: nn.Module, **options: Any) -> ModuleProblem:
    torch.manual_seed(2)
    inputs = {"tokens": torch.randint(0, 5, (SAMPLES, 6)), "scale": torch.rand(SAMPLES, dtype=torch.float64)}
    return problem(model, inputs, **options)


class Branching(Words):
    """A forward pass that looks at its numbers, which `vmap` cannot follow."""

    def forward(self, tokens: Tensor, scale: Tensor) -> Tensor:
        return super().forward(tokens, scale if scale.sum() > 0.4 else 2 * scale)


def test_a_transformer_with_named_inputs_and_tied_weights() -> None:
    f = words(Words())
    assert_right(f, "looped")
    assert f._path._per_sample[0] is per_sample.by_vmap  # type: ignore[attr-defined]


def test_what_vmap_cannot_follow_goes_sample_by_sample() -> None:
    f = words(Branching())
    assert_right(f, "looped")
    assert f._path._per_sample[0] is per_sample.one_by_one  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_normalisation_of_single_samples_and_a_loss_of_ones_own(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 6, 3), nn.GroupNorm(2, 6), nn.ELU(), nn.AvgPool2d(3), nn.Flatten(), nn.LayerNorm(36)]
    model = nn.Sequential(*layers, nn.Linear(36, 7), nn.Tanh(), nn.Linear(7, 5))
    own = lambda scores, y: F.huber_loss(scores, y, reduction="none").sum(1)  # noqa: E731
    assert_right(problem(model, y=torch.randn(SAMPLES, 5), loss=own, dtype=dtype), "looped")


def test_a_residual_network_with_group_normalisation() -> None:
    model = MODELS.build({"kind": "resnet18", "width": 4, "norm": "group"}, inputs=(1, 16, 16), outputs=5)
    assert_right(problem(model, torch.randn(SAMPLES, 1, 16, 16, dtype=torch.float64)))


@pytest.mark.parametrize("path", ["stacked", "looped", "processes"])
def test_the_paths_of_pytorch(path: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(198, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 5))
    model[3].requires_grad_(False)
    assert_right(problem(model, gradients=path), path)


def test_few_samples_at_a_time_where_gradients_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    f = words(Words())
    monkeypatch.setattr(per_sample, "_MOST_BYTES", 8 * f.d * 3)
    assert_right(f, "looped")
    assert f._path._per_sample[1] == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", [pytest.param("native", marks=native), "looped"])
def test_threads_and_the_company_of_others_change_no_bit(path: str) -> None:
    torch.manual_seed(0)
    model = MODELS.build("cnn", inputs=IMAGE, outputs=5)
    one, four = (problem(model, gradients=path, threads=n, dtype=torch.float32) for n in (1, 4))
    x, rows = scattered(one), some_rows()
    expected = clipped(one, x, rows, 0.1)
    assert torch.equal(expected, clipped(four, x, rows, 0.1))
    for i in range(one.m):
        assert torch.equal(clipped(one.at([i]), x[i : i + 1], rows[i : i + 1], 0.1)[0], expected[i])


PATHS = pytest.mark.parametrize(
    ("kind", "path"),
    [pytest.param(k, p, marks=native if p == "native" else ()) for k in ("cnn", "mlp") for p in ("native", "looped")],
)


@PATHS
def test_a_gradient_that_is_zero_stays_zero(kind: str, path: str) -> None:
    model = MODELS.build(kind, inputs=IMAGE, outputs=5)
    x = torch.zeros(SAMPLES, *IMAGE, dtype=torch.float64)
    f = problem(model, x, torch.zeros(SAMPLES, 5, dtype=torch.float64), loss="mse", gradients=path)
    found = clipped(f, torch.zeros(f.m, f.d, dtype=f.dtype), some_rows(), 0.5)
    assert torch.equal(found, torch.zeros_like(found))


@PATHS
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e300])
def test_a_gradient_that_is_not_finite_is_not_clipped_away(kind: str, path: str, bad: float) -> None:
    f = problem(MODELS.build(kind, inputs=IMAGE, outputs=5), gradients=path)
    for at in (0, f.d - 1):
        x = scattered(f)
        x[2, at] = bad
        found = clipped(f, x, some_rows(), 0.5)
        assert found[[0, 1, 3]].isfinite().all()
        assert bad == 1e300 or not found[2].isfinite().any()
        assert not torch.equal(found[2], clipped(f, scattered(f), some_rows(), 0.5)[2])


@PATHS
def test_a_norm_that_overflows_is_not_clipped_away(kind: str, path: str) -> None:
    y = torch.full((SAMPLES, 5), 1e200, dtype=torch.float64)
    f = problem(MODELS.build(kind, inputs=IMAGE, outputs=5), y=y, loss="mse", gradients=path)
    found = clipped(f, scattered(f), some_rows(), 0.5)
    assert found[1:].isnan().all()


def test_dropout_is_addressed_by_round_and_step_and_differs_between_samples() -> None:
    x, y = torch.rand(SAMPLES, 64), torch.randint(0, 10, (SAMPLES,))
    f = ModuleProblem(dropout_net(), Dataset("random", x, y, x, y), [np.arange(SAMPLES)] * len(RAGGED))
    start, state = f.start().repeat(f.m, 1), torch.get_rng_state()
    found = clipped(f, start, some_rows(), 0.1, (2, 3))
    assert torch.equal(found, clipped(f, start, some_rows(), 0.1, (2, 3)))
    assert not torch.equal(found, clipped(f, start, some_rows(), 0.1, (2, 4)))
    assert torch.equal(state, torch.get_rng_state())
    same = [torch.zeros(2, dtype=torch.int64)] * f.m
    both, single = clipped(f, start, same, 1e9, (0, 1)), clipped(f, start, [r[:1] for r in same], 1e9, (0, 1))
    assert not torch.allclose(both, 2 * single), "two equal samples have masks of their own"
    with pytest.raises(ConfigError, match="dropout"):
        clipped(f, start, some_rows(), 0.1)


class Centred(nn.Module):
    """Subtracts the mean over the batch, or over the samples before."""

    def __init__(self, before: bool = False) -> None:
        super().__init__()
        self.before, self.layer = before, nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.layer(x - (x.cumsum(0) - x if self.before else x.mean(0)))  # type: ignore[no-any-return]


class Shared(nn.Module):
    """Divides by the number of samples, whatever they are."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1)) / len(x)  # type: ignore[no-any-return]


class Counting(nn.Linear):
    def __init__(self) -> None:
        super().__init__(64, 10)
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.lerp_(x.flatten(1).mean(0), 0.1)  # type: ignore[operator]
        return super().forward(x.flatten(1))


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(4), nn.SyncBatchNorm(4), nn.BatchNorm2d(4, track_running_stats=False)])
def test_a_module_that_mixes_samples_is_named(norm: nn.Module) -> None:
    assert mixes_samples(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Sequential(nn.ReLU(), norm))) == "1.1"


def test_running_statistics_are_named_and_other_layers_are_not() -> None:
    assert mixes_samples(Counting(), frozenset({"mean"})) == "Counting"
    counting = nn.Sequential(nn.Identity(), Counting())
    assert mixes_samples(counting, frozenset({"1.mean"})) == "1"
    assert mixes_samples(nn.Sequential(nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.InstanceNorm2d(4))) is None


def cross_entropy(scores: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(scores, y, reduction="none")


@pytest.mark.parametrize("model", [batch_norm_net(), Centred(), Centred(before=True), Shared()])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_layer_of_any_kind_that_mixes_samples_is_found(model: nn.Module, dtype: torch.dtype) -> None:
    x, y = torch.rand(4, 1, 8, 8, dtype=dtype), torch.arange(4)
    assert depends_on_others(model.to(dtype), cross_entropy, x, y)


def test_a_loss_that_compares_samples_is_found() -> None:
    x, y = torch.rand(2, 64), torch.arange(2)
    centred = lambda scores, y: cross_entropy(scores - scores.mean(0), y)  # noqa: E731
    assert depends_on_others(nn.Linear(64, 10), centred, x, y)


@pytest.mark.parametrize("model", [dropout_net(), Words(), MODELS.build("cnn", inputs=(1, 8, 8), outputs=10)])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_model_of_single_samples_is_not_suspected(model: nn.Module, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    inputs: Tensors = torch.rand(3, 1, 8, 8, dtype=dtype)
    if isinstance(model, Words):
        inputs = {"tokens": torch.randint(0, 5, (3, 6)), "scale": torch.rand(3, dtype=dtype)}
    state = torch.get_rng_state()
    assert not depends_on_others(model.to(dtype), cross_entropy, take(inputs, torch.arange(3)), torch.arange(3))
    assert torch.equal(state, torch.get_rng_state())
