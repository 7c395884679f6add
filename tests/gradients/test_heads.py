"""Every loss of the native path has PyTorch's values and gradients, and targets that do not fit go to PyTorch."""

import copy
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from netfleet.compute.threads import ThreadPool
from netfleet.data import Dataset
from netfleet.errors import ConfigError
from netfleet.gradients.choice import Native, choose_path, native_model
from netfleet.gradients.native import build
from netfleet.gradients.native.heads import NUMBERS
from netfleet.gradients.paths import GradientPath, Gradients, Head, PathInputs, Sample, WeightedRows
from netfleet.gradients.replica import Loss, probe
from netfleet.gradients.samples import DeviceSamples
from netfleet.problems import ModuleProblem
from netfleet.problems.models import MODELS

pytestmark = pytest.mark.skipif(build.find_compiler() is None, reason="no C++ compiler here")
IMAGE, WORKERS, BATCH = (2, 22, 14), 3, 37
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}
CPU = torch.device("cpu")
KINDS = ["softmax", "mlp", "cnn"]


def bce(scores: Tensor, targets: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(scores, targets.view_as(scores), reduction="none").mean(-1)


def mse(scores: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(scores, targets.view_as(scores), reduction="none").mean(-1)


def cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores, targets, reduction="none")


LOSSES: dict[Head, Loss] = {"cross-entropy": cross_entropy, "bce": bce, "mse": mse}


def targets_of(head: Head, outputs: int, dtype: torch.dtype, rows: int = 90) -> Tensor:
    if head == "cross-entropy":
        return torch.randint(0, outputs, (rows,))
    return (torch.rand(rows, outputs) < 0.4).to(dtype) if head == "bce" else torch.randn(rows, outputs, dtype=dtype)


class Case(NamedTuple):
    """A model, its data, and its gradients by the native path."""

    model: nn.Module
    head: Head
    inputs: Tensor
    targets: Tensor
    path: GradientPath

    def points(self) -> Tensor:
        start = nn.utils.parameters_to_vector(self.model.parameters()).detach()
        torch.manual_seed(1)
        return start + 0.1 * torch.randn(WORKERS, len(start), dtype=start.dtype)

    def expected(self, x: Tensor, rows: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """By autograd: the loss, weighted or the mean, and its gradient."""
        model = copy.deepcopy(self.model).train()
        nn.utils.vector_to_parameters(x, model.parameters())
        losses = LOSSES[self.head](model(self.inputs[rows]), self.targets[rows])
        value = losses.mean() if weights is None else losses @ weights
        gradients = torch.autograd.grad(value, list(model.parameters()))
        return value.detach(), torch.cat([gradient.reshape(-1) for gradient in gradients])

    def assert_close(self, ours: Tensor, theirs: Tensor) -> None:
        assert (ours - theirs).norm() <= TOLERANCE[self.inputs.dtype] * (1 + theirs.norm())


def read(model: nn.Module, inputs: Tensor, targets: Tensor, head: Head | None, wanted: Gradients = "auto") -> Native:
    names = frozenset(name for name, _ in model.named_buffers())
    return native_model(model, inputs.shape[1:], inputs.dtype, names, head, [targets], wanted)


def case(model: nn.Module, head: Head, inputs: Tensor, targets: Tensor) -> Case:
    native = read(model, inputs, targets, head)
    assert native is not None
    last = isinstance(native, list) and native[0].kernel_h > 0
    samples = DeviceSamples(inputs, targets, inputs.dtype, CPU, last)
    probed = probe(model, LOSSES[head], inputs[:2], targets[:2])
    given = PathInputs(model, LOSSES[head], None, probed, samples, samples, 0, tuple(range(WORKERS)), head)
    return Case(model, head, inputs, targets, choose_path(given, native, ThreadPool(2), 2, "auto"))


def random_case(kind: str | dict[str, object], head: Head, outputs: int, dtype: torch.dtype = torch.float64) -> Case:
    torch.manual_seed(3)
    model = MODELS.build(kind, inputs=IMAGE, outputs=outputs).to(dtype)
    return case(model, head, torch.randn(90, *IMAGE, dtype=dtype), targets_of(head, outputs, dtype))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head", NUMBERS)
@pytest.mark.parametrize("outputs", [1, 2, 11])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_gradients_of_mini_batches(kind: str, head: Head, outputs: int, dtype: torch.dtype) -> None:
    c = random_case(kind, head, outputs, dtype)
    x, rows = c.points(), torch.randint(0, 90, (WORKERS, BATCH))
    found = c.path.gradients(x, Sample(0, 1, rows.numel(), rows), None)
    for i in range(WORKERS):
        c.assert_close(found[i], c.expected(x[i], rows[i])[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head", NUMBERS)
@pytest.mark.parametrize("outputs", [1, 4])
def test_weighted_sums(kind: str, head: Head, outputs: int) -> None:
    c = random_case(kind, head, outputs)
    x = c.points()[0]
    chunks: list[WeightedRows] = [(torch.randint(0, 90, (n,)), torch.rand(n, dtype=x.dtype)) for n in (5, 40, 33)]
    values, gradients = c.path.sums(x, [chunks[:2], chunks[2:]])
    for i, group in enumerate((chunks[:2], chunks[2:])):
        rows, weights = (torch.cat(parts) for parts in zip(*group, strict=True))
        value, gradient = c.expected(x, rows, weights)
        c.assert_close(values[i], value)
        c.assert_close(gradients[i], gradient)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head", NUMBERS)
@pytest.mark.parametrize("outputs", [1, 4])
def test_scores(kind: str, head: Head, outputs: int) -> None:
    c = random_case(kind, head, outputs)
    x, chunks = c.points(), [torch.arange(0, 50), torch.arange(50, 90)]
    losses, correct = c.path.scores(x, [chunks] * WORKERS, None)
    for i in range(WORKERS):
        model = copy.deepcopy(c.model)
        nn.utils.vector_to_parameters(x[i], model.parameters())
        for j, rows in enumerate(chunks):
            scores, targets = model(c.inputs[rows]).detach(), c.targets[rows]
            c.assert_close(losses[i, j], LOSSES[head](scores, targets).sum())
            if head == "cross-entropy":
                assert correct[i, j] == (scores.argmax(1) == targets).sum()
            elif head == "bce":
                right = ((scores > 0) == (targets > 0.5)).sum()
                assert correct[i, j] == right.double() / outputs
            else:
                assert correct[i, j] == 0


@pytest.mark.parametrize("head", ["bce", "mse"])
@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("outputs", [1, 3])
def test_residual_networks(head: Head, norm: str, outputs: int) -> None:
    c = random_case({"kind": "resnet18", "width": 4, "norm": norm}, head, outputs)
    x, rows = c.points(), torch.randint(0, 90, (WORKERS, 7))
    found, weights = c.path.gradients(x, Sample(0, 1, rows.numel(), rows), None), torch.rand(7, dtype=x.dtype)
    for i in range(WORKERS):
        _, gradient = c.expected(x[i], rows[i])
        assert (found[i] - gradient).norm() <= 1e-10 * gradient.norm()
    ours, theirs = c.path.sums(x[0], [[(rows[0], weights)]]), c.expected(x[0], rows[0], weights)
    assert (ours[0][0] - theirs[0]).abs() <= 1e-10 * theirs[0]
    assert (ours[1][0] - theirs[1]).norm() <= 1e-10 * theirs[1].norm()


@pytest.mark.parametrize("head", ["bce", "mse"])
@pytest.mark.parametrize("outputs", [1, 4])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_problem_takes_the_native_path_and_agrees_with_the_looped_one(
    head: Head, outputs: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(3)
    x, y = torch.randn(90, *IMAGE), targets_of(head, outputs, torch.float64)  # the problem brings y to its own type
    y = y[:, 0] if outputs == 1 else y
    data, parts = Dataset("random", x, y, x[:70], y[:70]), np.array_split(np.arange(90), WORKERS)
    model = MODELS.build("mlp", inputs=IMAGE, outputs=outputs)
    native, looped = (
        ModuleProblem(model, data, parts, loss=head, dtype=dtype, gradients=path) for path in ("auto", "looped")
    )
    assert (native.path, looped.path) == ("native", "looped")
    points = native.start().repeat(WORKERS, 1)
    close = partial(torch.allclose, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert close(native.grad(points, native.sample(0, 1)), looped.grad(points, looped.sample(0, 1)))
    ours, theirs = native.evaluate(points), looped.evaluate(points)
    assert close(ours.loss, theirs.loss)
    if head == "mse":
        assert ours.accuracy is None
    else:
        assert torch.allclose(ours.accuracy, theirs.accuracy, rtol=1e-12)


def test_one_target_per_sample_may_be_a_vector_or_a_column() -> None:
    for head in ("bce", "mse"):
        column = random_case("mlp", head, 1)
        vector = case(column.model, head, column.inputs, column.targets[:, 0])
        x, rows = column.points(), torch.randint(0, 90, (WORKERS, BATCH))
        sample = Sample(0, 1, rows.numel(), rows)
        assert torch.equal(vector.path.gradients(x, sample, None), column.path.gradients(x, sample, None))


def line(logits: list[float], targets: list[float], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Losses and derivatives by the logit, each of one sample: the model is s = x · 1."""
    given, wanted = torch.tensor(logits, dtype=dtype)[:, None], torch.tensor(targets, dtype=dtype)
    c = case(nn.Sequential(nn.Linear(1, 1, bias=False)).to(dtype), "bce", given, wanted)
    one = torch.ones(1, dtype=dtype)
    values, gradients = c.path.sums(one, [[(torch.tensor([i]), one)] for i in range(len(logits))])
    return values, gradients[:, 0] / given[:, 0]


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_extreme_logits_have_exact_losses_and_gradients(dtype: torch.dtype) -> None:
    values, slopes = line([1e4, 1e4, -1e4, -1e4], [0.0, 1.0, 0.0, 1.0], dtype)
    assert values.tolist() == [1e4, 0.0, 0.0, 1e4]
    assert slopes.tolist() == [1.0, 0.0, 0.0, -1.0]


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_confident_right_answer_keeps_its_small_gradient(dtype: torch.dtype) -> None:
    values, slopes = line([50.0, -50.0], [1.0, 0.0], dtype)
    small = torch.tensor([50.0, 50.0], dtype=torch.float64).neg().exp()  # log1p(e) and e / (1 + e) to 22 digits
    assert torch.allclose(values.double(), small, rtol=TOLERANCE[dtype], atol=0)
    assert torch.allclose(slopes.double(), small * torch.tensor([-1, 1]), rtol=TOLERANCE[dtype], atol=0)


@pytest.mark.parametrize("head", NUMBERS)
def test_a_number_that_is_not_finite_is_not_hidden(head: Head) -> None:
    c = random_case("mlp", head, 3)
    x, rows = c.points(), torch.randint(0, 90, (WORKERS, BATCH))
    x[1, -1] = torch.nan  # a bias of the last layer
    found = c.path.gradients(x, Sample(0, 1, rows.numel(), rows), None)
    assert found[0].isfinite().all()
    assert found[1].isnan().any()
    assert found[2].isfinite().all()


@pytest.mark.parametrize(
    ("head", "targets"),
    [
        ("bce", torch.zeros(9, 2)),
        ("bce", torch.zeros(9)),
        ("bce", torch.zeros(9, 3, 1)),
        ("bce", torch.zeros(9, 3, dtype=torch.int64)),
        ("mse", torch.zeros(9, 4)),
        ("mse", torch.zeros(9)),
        ("cross-entropy", torch.zeros(9, 3)),
        ("cross-entropy", torch.full((9,), 3)),
        ("cross-entropy", torch.full((9,), -100)),
        ("cross-entropy", torch.zeros(9, dtype=torch.uint8)),
        (None, torch.zeros(9, 3)),
    ],
)
def test_targets_that_do_not_fit_three_outputs_are_left_to_pytorch(head: Head | None, targets: Tensor) -> None:
    model, inputs = nn.Sequential(nn.Linear(5, 3)), torch.zeros(9, 5)
    assert read(model, inputs, torch.zeros(9, 3), "bce") is not None
    assert read(model, inputs, targets, head) is None
    with pytest.raises(ConfigError, match="target for each"):
        read(model, inputs, targets, head, "native")


def test_a_loss_that_is_twice_a_known_one_is_left_to_pytorch() -> None:
    inputs, targets = torch.zeros(9, 5), torch.zeros(9, 3)
    samples = DeviceSamples(inputs, targets, inputs.dtype, CPU, False)
    model, loss = nn.Sequential(nn.Linear(5, 3)), lambda scores, targets: 2 * bce(scores, targets)
    given = PathInputs(model, loss, None, probe(model, loss, inputs, targets), samples, samples, 0, (0, 1), None)
    assert choose_path(given, read(model, inputs, targets, None), ThreadPool(1), 1, "auto").name == "stacked"
