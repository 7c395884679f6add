"""Residual networks on the native path: PyTorch's gradients and statistics, for these networks and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from netfleet.data import Dataset
from netfleet.gradients.native import build
from netfleet.gradients.native.blocks import recognise_blocks
from netfleet.problems import ModuleProblem
from netfleet.problems.models import MODELS

pytestmark = pytest.mark.skipif(build.find_compiler() is None, reason="no C++ compiler here")
IMAGE = (2, 22, 14)  # whose sides are both even, or not, as the stages go on


class BasicBlock(nn.Module):
    """As torchvision writes it."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.downsample(x)
        return self.relu(out)  # type: ignore[no-any-return]


class Users(nn.Module):
    """A network of the user's own: its head comes first, and its blocks are called from `forward`."""

    def __init__(self, block: Callable[[], nn.Module] = lambda: BasicBlock(4, 8, 2)) -> None:
        super().__init__()
        self.head = nn.Linear(8, 5, bias=False)
        self.block = block()
        self.stem = nn.Conv2d(2, 4, 3, 2, 1, bias=False)
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(F.relu(self.norm(self.stem(x))))
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, (1, 1)), 1))  # type: ignore[no-any-return]


def resnet(norm: str = "batch", width: int = 4) -> nn.Module:
    return MODELS.build({"kind": "resnet18", "width": width, "norm": norm}, inputs=IMAGE, outputs=5)


def problem(model: nn.Module, gradients: str = "auto", **options: Any) -> ModuleProblem:
    torch.manual_seed(3)
    x, y = torch.randn(90, *IMAGE), torch.randint(0, 5, (90,))
    data = Dataset("random", x, y, x[:70], y[:70], classes=5)
    parts = [np.arange(0, 40), np.arange(35, 60), np.arange(60, 90)]
    options = {"batch": 7, "dtype": torch.float64} | options
    return ModuleProblem(model, data, parts, gradients=gradients, **options)  # type: ignore[arg-type]


def both(model: nn.Module, **options: Any) -> tuple[ModuleProblem, ModuleProblem]:
    native, looped = problem(model, **options), problem(model, "looped", **options)
    assert (native.path, looped.path) == ("native", "looped")
    return native, looped


def scattered(f: ModuleProblem) -> Tensor:
    torch.manual_seed(1)
    return f.start() + 0.1 * torch.randn(f.m, f.d, dtype=f.dtype)


def assert_close(ours: Tensor, theirs: Tensor, tolerance: float = 1e-10) -> None:
    assert (ours - theirs).norm() <= tolerance * theirs.norm()


@pytest.mark.parametrize("model", [resnet("batch"), resnet("group"), Users()], ids=["batch", "group", "users"])
@pytest.mark.parametrize("batch", [3, 33])
def test_gradients_statistics_and_scores_are_those_of_pytorch(model: nn.Module, batch: int) -> None:
    native, looped = both(model, batch=batch)
    x = scattered(looped)
    for k in (1, 2):
        assert_close(native.grad(x, native.sample(0, k)), looped.grad(x, looped.sample(0, k)))
    if native.buffers is not None and looped.buffers is not None:
        assert_close(native.buffers, looped.buffers)
    assert_close(native.full_grad(x), looped.full_grad(x))
    for ours, theirs in zip(native.objective(x[0]), looped.objective(x[0]), strict=True):
        assert_close(ours, theirs)
    ours, theirs = native.evaluate(x, buffers=native.buffers), looped.evaluate(x, buffers=looped.buffers)
    assert_close(ours.loss, theirs.loss)
    assert ours.accuracy is not None
    assert torch.equal(ours.accuracy, theirs.accuracy)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_in_float32_it_is_as_near_to_the_truth_as_rounding_allows(norm: str) -> None:
    model = resnet(norm)
    native, exact = problem(model, dtype=torch.float32), problem(model, "looped")
    x = scattered(native)
    found, true = native.grad(x, native.sample(0, 1)), exact.grad(x.double(), exact.sample(0, 1))
    assert_close(found.double(), true, tolerance=0.05)  # rounding decides of a value on the edge of ReLU


def test_a_large_mean_does_not_cancel() -> None:
    native, exact = problem(resnet(), dtype=torch.float32), problem(resnet(), "looped")
    x = scattered(exact)
    for f in (native, exact):
        f._train.storage.add_(1000)
    assert native.buffers is not None
    assert exact.buffers is not None
    native.grad(x.float(), native.sample(0, 1))
    exact.grad(x, exact.sample(0, 1))
    assert_close(native.buffers.double(), exact.buffers, tolerance=1e-5)


def test_an_averaged_count_of_batches_is_rounded_as_pytorch_does() -> None:
    native, looped = both(resnet())
    x = scattered(looped)
    for f in (native, looped):
        assert f.buffers is not None
        f.buffers += 0.5
        f.grad(x, f.sample(0, 1))
    assert native.buffers is not None
    assert looped.buffers is not None
    assert_close(native.buffers, looped.buffers)


@pytest.mark.parametrize("policy", ["mixed", "local", "recalibrated"])
def test_every_policy_of_batch_norm_gives_the_scores_of_pytorch(policy: str) -> None:
    native, looped = both(resnet(), batch_norm=policy)
    x = scattered(looped)
    for f in (native, looped):
        f.grad(x, f.sample(0, 1))
    assert_close(native.evaluate(x, buffers=native.buffers).loss, looped.evaluate(x, buffers=looped.buffers).loss)
    assert native.mixes_buffers == looped.mixes_buffers


def test_statistics_that_do_not_lie_in_one_piece_are_updated() -> None:
    native, looped = both(resnet())
    x = scattered(looped)
    assert native.buffers is not None
    native.buffers = native.buffers.t().contiguous().t()
    for f in (native, looped):
        f.grad(x, f.sample(0, 1))
    assert looped.buffers is not None
    assert_close(native.buffers, looped.buffers)


def test_the_number_of_threads_and_the_company_of_others_change_no_bit() -> None:
    one, four = (problem(resnet(), threads=n, dtype=torch.float32) for n in (1, 4))
    x, sample = scattered(one), one.sample(0, 1)
    expected = one.grad(x, sample)
    assert torch.equal(expected, four.grad(x, sample))
    alone = one.at([2])
    assert torch.equal(alone.grad(x[2:], alone.sample(0, 1))[0], expected[2])


def test_a_number_that_is_not_finite_is_not_hidden() -> None:
    f = problem(resnet())
    for at in range(0, f.d, f.d // 20):
        x = scattered(f)
        x[1, at] = torch.nan
        gradient = f.grad(x, f.sample(0, 1))
        assert torch.isfinite(gradient[0]).all()
        assert not torch.isfinite(gradient[1]).all()


class Changed(BasicBlock):
    """A block with one thing about it changed."""

    def __init__(self, change: Callable[[Any], object]) -> None:
        super().__init__(4, 8, 2)
        change(self)


class ReluBeforeSum(BasicBlock):
    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))
        return out + self.downsample(x)  # type: ignore[no-any-return]


class SumTwice(BasicBlock):
    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + self.downsample(x)
        return self.relu(out + out)  # type: ignore[no-any-return]


class Weighted(BasicBlock):
    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(torch.add(out, self.downsample(x), alpha=2))  # type: ignore[no-any-return]


class OnlyInTraining(BasicBlock):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.training else self.relu(self.downsample(x))


class Frozen(BasicBlock):
    """Its normalisations stay in evaluation mode."""

    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        self.bn1.eval()
        return self


def changed(change: Callable[[Any], object]) -> Callable[[], nn.Module]:
    return lambda: Changed(change)


@pytest.mark.parametrize(
    "block",
    [
        changed(lambda b: setattr(b, "relu", nn.LeakyReLU())),
        changed(lambda b: setattr(b, "bn1", nn.BatchNorm2d(8, eps=1e-3))),
        changed(lambda b: setattr(b, "bn1", nn.BatchNorm2d(8, momentum=None))),
        changed(lambda b: setattr(b, "bn1", nn.BatchNorm2d(8, affine=False))),
        changed(lambda b: setattr(b, "bn1", nn.BatchNorm2d(8, track_running_stats=False))),
        changed(lambda b: setattr(b, "bn1", nn.Identity())),
        changed(lambda b: setattr(b, "bn2", b.bn1)),
        changed(lambda b: setattr(b, "conv1", nn.Conv2d(4, 8, 3, 2, 1))),
        changed(lambda b: setattr(b, "conv2", nn.Conv2d(8, 8, 5, padding=2, bias=False))),
        changed(lambda b: setattr(b, "conv2", nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=False))),
        changed(lambda b: setattr(b, "conv2", nn.Conv2d(8, 8, 3, padding=2, dilation=2, bias=False))),
        changed(lambda b: setattr(b, "conv2", nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect", bias=False))),
        changed(lambda b: b.downsample.append(nn.Dropout(0.5))),
        changed(lambda b: b.bn1.weight.requires_grad_(False)),
        changed(lambda b: b.bn1.register_forward_hook(lambda module, inputs, output: 2 * output)),
        lambda: ReluBeforeSum(4, 8, 2),
        lambda: SumTwice(4, 8, 2),
        lambda: Weighted(4, 8, 2),
        lambda: OnlyInTraining(4, 8, 2),
        lambda: Frozen(4, 8, 2),
    ],
)
def test_what_is_no_such_network_is_left_to_pytorch(block: Callable[[], nn.Module]) -> None:
    model = Users(block)
    assert recognise_blocks(model, IMAGE, frozenset(name for name, _ in model.named_buffers())) is None


def test_sizes_that_the_library_has_no_code_for_are_left_to_pytorch() -> None:
    with torch.device("meta"):
        wide = resnet(width=128)
    for model, image in [(resnet(width=6), IMAGE), (wide, IMAGE), (resnet(), (2, 8, 8))]:
        assert recognise_blocks(model, image, frozenset(name for name, _ in model.named_buffers())) is None
    assert recognise_blocks(resnet(), IMAGE, frozenset()) is None  # statistics that do not move
