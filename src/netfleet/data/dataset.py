"""The one shape in which every data source hands over its data."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from netfleet.data.tensors import Tensors, count_rows, describe, leaves, same_rows
from netfleet.errors import DataError

#: The target of a place in a sequence that no loss counts, as in `torch.nn.functional.cross_entropy`.
IGNORED = -100


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows for training and testing; checked when it is made, so nothing after it needs to.

    Inputs and targets are tensors of any type and shape, or tuples or dicts of them (`data/tensors.py`). `classes` is
    the number of labels (or tokens) where the targets are labels 0, 1, …; without it they are anything else.
    `groups` is the natural group of every training row (the writer of a digit, a hospital), `test_groups` of every test
    row, where the source knows it; `group_names` are their names. `site` is the name of the one site whose rows these
    are, where a site has loaded its own. `columns` are the names of x's columns, where the source knows them.

    >>> x, y = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
    >>> Dataset("toy", x, y, x, y, classes=2)
    Dataset('toy', 4 + 4 rows, x: float32 [2], y: int64 [], 2 classes)
    """

    name: str
    train_x: Tensors
    train_y: Tensors
    test_x: Tensors
    test_y: Tensors
    classes: int | None = None
    groups: Tensor | None = None  # int64 [N]
    test_groups: Tensor | None = None  # int64 [M]
    group_names: tuple[str, ...] | None = None
    site: str | None = None
    columns: tuple[str, ...] | None = field(default=None, metadata={"identifies": False})

    def __post_init__(self) -> None:
        for part, x, y in (("train", self.train_x, self.train_y), ("test", self.test_x, self.test_y)):
            for name, tensors in ((f"{part}_x", x), (f"{part}_y", y)):
                _check_structure(self.name, name, tensors)
                _check_tensors(self.name, name, tensors, count_rows(x))
            _check_labels(self.name, f"{part}_y", y, self.classes)
        for name, one, other in (("inputs", self.train_x, self.test_x), ("targets", self.train_y, self.test_y)):
            if not same_rows(one, other):
                raise DataError(
                    f"{self.name}: {name} of a training row are {describe(one)} but of a test row {describe(other)}; "
                    f"give both the same types and shapes"
                )
        for name, groups, rows in (("groups", self.groups, self.rows), ("test_groups", self.test_groups, self.tests)):
            if groups is not None:
                _check_groups(self.name, name, groups, rows, self.group_names)

    @property
    def rows(self) -> int:
        """Training rows."""
        return count_rows(self.train_x)

    @property
    def tests(self) -> int:
        """Test rows."""
        return count_rows(self.test_x)

    @property
    def inputs(self) -> tuple[int, ...]:
        """The shape of one input, of the first tensor where there are several."""
        return tuple(leaves(self.train_x)[0].shape[1:])

    def __repr__(self) -> str:
        about = f"x: {describe(self.train_x)}, y: {describe(self.train_y)}"
        classes = "" if self.classes is None else f", {self.classes} classes"
        groups = "" if self.groups is None else f", {len(torch.unique(self.groups))} groups"
        return f"Dataset({self.name!r}, {self.rows} + {self.tests} rows, {about}{classes}{groups})"


def _check_structure(data: str, name: str, tensors: Tensors) -> None:
    where = f"{data}: {name}"
    if not isinstance(tensors, Tensor | tuple | dict) or not all(isinstance(t, Tensor) for t in leaves(tensors)):
        came = type(tensors).__name__
        raise DataError(f"{where} must be a tensor, or a tuple or dict of tensors, got {came}; use nf.make_dataset")
    if not leaves(tensors):
        raise DataError(f"{where} has no tensor at all; give it at least one")


def _check_tensors(data: str, name: str, tensors: Tensors, rows: int) -> None:
    """Raise unless the tensors have so many rows and finite values."""
    where = f"{data}: {name}"
    for tensor in leaves(tensors):
        if tensor.dim() == 0 or tensor.numel() == 0:
            raise DataError(f"{where} is empty (shape {tuple(tensor.shape)}); give it at least one row")
        if len(tensor) != rows:
            raise DataError(f"{where} has {len(tensor)} rows but {name[:-1]}x has {rows}; make the lengths agree")
        if tensor.is_complex():
            raise DataError(f"{where} is {tensor.dtype}, expected real numbers; give real and imaginary parts")
        if tensor.is_floating_point() and not all(torch.isfinite(bound) for bound in torch.aminmax(tensor)):
            raise DataError(f"{where} has a value that is not finite; remove or replace NaN and infinity")


def _check_labels(data: str, name: str, y: Tensors, classes: int | None) -> None:
    if classes is None:
        return
    if classes < 1 or not isinstance(y, Tensor) or y.dtype != torch.int64:
        came = describe(y)
        raise DataError(
            f"{data}: with classes = {classes}, {name} must be int64 labels, got {came}; convert it with .long(), or "
            f"leave classes out where the targets are no labels"
        )
    counted = y if y.dim() == 1 else y[y != IGNORED]
    low, high = (int(counted.min()), int(counted.max())) if len(counted) else (0, 0)
    if low < 0 or high >= classes:
        raise DataError(
            f"{data}: {name} has labels from {low} to {high}, expected 0 to {classes - 1}; "
            f"renumber the labels or correct classes = {classes}"
        )


def _check_groups(data: str, field: str, groups: Tensor, rows: int, names: tuple[str, ...] | None) -> None:
    if not isinstance(groups, Tensor) or groups.dtype != torch.int64:
        came = groups.dtype if isinstance(groups, Tensor) else type(groups).__name__
        raise DataError(f"{data}: {field} must be int64, got {came}; convert it with .long()")
    if tuple(groups.shape) != (rows,):
        raise DataError(
            f"{data}: {field} has shape {tuple(groups.shape)}, expected ({rows},), one for each row; "
            f"make the lengths agree"
        )
    if names is not None and not 0 <= int(groups.min()) <= int(groups.max()) < len(names):
        span = f"{int(groups.min())} to {int(groups.max())}"
        raise DataError(
            f"{data}: {field} has numbers from {span} but there are {len(names)} group_names; make them agree"
        )
