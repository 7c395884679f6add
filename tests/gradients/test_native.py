"""The native path gives PyTorch's gradients, for the models that it recognises and no others."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch import Tensor, nn

from netfleet.data import Dataset
from netfleet.errors import ConfigError
from netfleet.gradients.native import build
from netfleet.gradients.native.layers import LARGEST_MATRIX, recognise
from netfleet.problems import ModuleProblem
from netfleet.problems.models import MODELS
from support.chains import chains

pytestmark = pytest.mark.skipif(build.find_compiler() is None, reason="no C++ compiler here")
IMAGE = (2, 11, 9)


def problem(model: nn.Module, shape: tuple[int, ...] = IMAGE, gradients: str = "auto", **options: Any) -> ModuleProblem:
    torch.manual_seed(3)
    x, y = torch.randn(90, *shape), torch.randint(0, 5, (90,))
    data = Dataset("random", x, y, x[:70], y[:70], classes=5)
    parts = [np.arange(0, 40), np.arange(35, 60), np.arange(60, 90)]
    options = {"batch": 7, "dtype": torch.float64} | options
    return ModuleProblem(model, data, parts, gradients=gradients, **options)  # type: ignore[arg-type]


def both(model: nn.Module, shape: tuple[int, ...] = IMAGE, **options: Any) -> tuple[ModuleProblem, ModuleProblem]:
    native, looped = problem(model, shape, **options), problem(model, shape, "looped", **options)
    assert (native.path, looped.path) == ("native", "looped")
    return native, looped


def scattered(f: ModuleProblem) -> Tensor:
    torch.manual_seed(1)
    return f.start() + 0.3 * torch.randn(f.m, f.d, dtype=f.dtype)


def assert_same(native: ModuleProblem, looped: ModuleProblem, tolerance: float = 1e-12) -> None:
    x, sample = scattered(looped), looped.sample(0, 1)
    assert torch.allclose(native.grad(x, sample), looped.grad(x, sample), rtol=tolerance, atol=tolerance)
    assert torch.allclose(native.full_grad(x), looped.full_grad(x), rtol=tolerance, atol=tolerance)
    for ours, theirs in zip(native.objective(x[0]), looped.objective(x[0]), strict=True):
        assert torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance)
    ours, theirs = native.evaluate(x), looped.evaluate(x)
    assert torch.allclose(ours.loss, theirs.loss, rtol=tolerance, atol=tolerance)
    assert ours.accuracy is not None
    assert torch.equal(ours.accuracy, theirs.accuracy)


@given(chains(IMAGE, 5))
@settings(max_examples=60, deadline=None)
@pytest.mark.slow
def test_any_chain_has_the_gradient_of_pytorch(model: nn.Module) -> None:
    assert_same(*both(model))


@pytest.mark.parametrize("kind", ["cnn", "mlp", "softmax"])
@pytest.mark.parametrize("batch", [1, 32, 33, 70])
def test_the_models_of_the_experiments_in_float32(kind: str, batch: int) -> None:
    torch.manual_seed(0)  # in float32 some weights put a value on the edge of max-pooling, where rounding decides
    model = MODELS.build(kind, inputs=(1, 28, 28), outputs=5)
    assert_same(*both(model, (1, 28, 28), batch=batch, dtype=torch.float32), tolerance=2e-5)


class Ordinary(nn.Module):
    """As tutorials write it: layers in an order of its own, functions and a view in `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4 * 2 * 2, 5)
        self.second = nn.Conv2d(3, 4, 3, padding=1)
        self.pool = nn.MaxPool2d(2, 2)
        self.first = nn.Conv2d(2, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = self.pool(torch.relu(self.second(x)))
        return self.head(x.view(x.size(0), -1))  # type: ignore[no-any-return]


class Reshaped(Ordinary):
    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.pool(self.first(x)).relu())
        return self.head(F.max_pool2d(x, kernel_size=2).reshape(x.shape[0], -1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("model", [Ordinary(), Reshaped()], ids=["ordinary", "reshaped"])
def test_a_forward_pass_of_the_users_own_is_recognised(model: nn.Module) -> None:
    assert_same(*both(model))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.relu(self.layer(x)))  # type: ignore[no-any-return]


class OnlyInTraining(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x)) if self.training else self.layer(x)


class Skipping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        self.a(x)
        return self.b(x)  # type: ignore[no-any-return]


def shared_bias() -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 5))
    model[2].bias = model[0].bias
    return model


class Overlapping(nn.Module):
    """Options of the pooling as positions, not as keywords: a dilation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(2, 4, 2), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.flatten(F.max_pool2d(self.first(x), 2, 2, 0, 3), 1))  # type: ignore[no-any-return]


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 5))
    model[0].weight.requires_grad_(False)
    return model


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 5))
    model[0].register_forward_hook(lambda module, inputs, output: 2 * output)
    return model


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5)), (5,)),
        (nn.Sequential(nn.Linear(5, 5), nn.ReLU()), (5,)),
        (nn.Sequential(nn.ReLU(), nn.Linear(5, 5)), (5,)),
        (nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.5), nn.Linear(5, 5)), (5,)),
        (nn.Sequential(nn.Linear(5, LARGEST_MATRIX // 4), nn.ReLU(), nn.Linear(LARGEST_MATRIX // 4, 5)), (5,)),
        (nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(4, 5)), (2, 3, 3)),
        (nn.Sequential(nn.Conv2d(2, 4, 3, dilation=2), nn.Flatten(), nn.Linear(4, 5)), (2, 5, 5)),
        (nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"), nn.Flatten()), (2, 5, 5)),
        (nn.Sequential(nn.Conv2d(2, 4, 3), nn.MaxPool2d(3, 1), nn.Flatten(), nn.Linear(4, 5)), (2, 5, 5)),
        (nn.Sequential(nn.Conv2d(2, 4, 3), nn.MaxPool2d(2, ceil_mode=True), nn.Flatten(), nn.Linear(16, 5)), (2, 5, 5)),
        (nn.Sequential(nn.Conv2d(2, 4, 2), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 5)), (2, 5, 5)),
        (Twice(), (5,)),
        (shared_bias(), (5,)),
        (Overlapping(), (2, 5, 5)),
        (OnlyInTraining(), (5,)),
        (Skipping(), (5,)),
        (frozen(), (5,)),
        (hooked(), (5,)),
    ],
)
def test_what_is_no_chain_is_left_to_pytorch(model: nn.Module, shape: tuple[int, ...]) -> None:
    assert recognise(model, shape) is None


def test_another_loss_is_left_to_pytorch() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(2 * 11 * 9, 5))
    smooth = problem(model, loss=lambda s, y: F.cross_entropy(s, y, reduction="none", label_smoothing=0.1))
    assert smooth.path == "stacked"
    with pytest.raises(ConfigError, match="native"):
        problem(model, gradients="native", loss=lambda s, y: F.cross_entropy(s, y, reduction="none"))


def test_the_number_of_threads_and_the_company_of_others_change_no_bit() -> None:
    model = Ordinary()
    one, four = problem(model, threads=1, dtype=torch.float32), problem(model, threads=4, dtype=torch.float32)
    x, sample = scattered(one), one.sample(0, 1)
    expected = one.grad(x, sample)
    assert torch.equal(expected, four.grad(x, sample))
    for i in range(one.m):
        alone = one.at([i])
        assert torch.equal(alone.grad(x[i : i + 1], alone.sample(0, 1))[0], expected[i])


@pytest.mark.parametrize(
    "model", [Ordinary(), nn.Sequential(nn.Flatten(), nn.Linear(198, 8), nn.ReLU(), nn.Linear(8, 5))]
)
def test_a_number_that_is_not_finite_is_not_hidden(model: nn.Module) -> None:
    f = problem(model)
    for at in range(0, f.d, 7):
        x = scattered(f)
        x[1, at] = torch.nan
        gradient = f.grad(x, f.sample(0, 1))
        assert torch.isfinite(gradient[0]).all()
        assert not torch.isfinite(gradient[1]).all()


def test_without_a_compiler_pytorch_is_used_and_the_user_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "shipped", lambda name, dtype: None)
    monkeypatch.setattr(build, "find_compiler", lambda: None)
    build.library.cache_clear()
    try:
        with pytest.warns(build.NativeWarning, match="no C\\+\\+ compiler"):
            assert problem(Ordinary()).path == "looped"
    finally:
        build.library.cache_clear()


def test_a_compiler_that_fails_is_not_the_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "c++"
    broken.write_text("#!/bin/sh\necho 'error: no such luck' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(build, "shipped", lambda name, dtype: None)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    build.library.cache_clear()
    try:
        with pytest.warns(build.NativeWarning, match="no such luck"):
            assert build.library("chain") is None
        assert not list((tmp_path / "cache").rglob("*.so"))
    finally:
        build.library.cache_clear()


@pytest.mark.parametrize("name", ["chain", "residual", "noise"])
def test_the_source_compiles_without_a_warning(name: str) -> None:
    compiler = build.find_compiler()
    assert compiler is not None
    strict = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-DSCALAR=float"]
    source = str(build.FOLDER / f"{name}.cpp")
    assert subprocess.run([compiler, *strict, source], capture_output=True, text=True).stderr == ""
