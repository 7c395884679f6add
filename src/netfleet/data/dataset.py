"""The one shape in which every data source hands over its data."""

from dataclasses import dataclass

import torch

from netfleet.errors import DataError


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled rows for training and testing; checked when it is made, so nothing after it needs to.

    `groups` is the natural group of every training row (the writer of a digit), where the source knows it.

    >>> x, y = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
    >>> Dataset("toy", x, y, x, y, classes=2).train_x.shape
    torch.Size([4, 2])
    """

    name: str
    train_x: torch.Tensor  # float32 [N, ...]
    train_y: torch.Tensor  # int64 [N]
    test_x: torch.Tensor  # float32 [M, ...]
    test_y: torch.Tensor  # int64 [M]
    classes: int
    groups: torch.Tensor | None = None  # int64 [N]

    def __post_init__(self) -> None:
        _check_rows(self.name, "train", self.train_x, self.train_y, self.classes)
        _check_rows(self.name, "test", self.test_x, self.test_y, self.classes)
        if self.train_x.shape[1:] != self.test_x.shape[1:]:
            raise DataError(
                f"{self.name}: a training row has shape {tuple(self.train_x.shape[1:])} but a test row has "
                f"{tuple(self.test_x.shape[1:])}; give both the same shape"
            )
        if self.groups is not None:
            _check_vector(self.name, "groups", self.groups, len(self.train_x))


def _check_rows(name: str, part: str, x: torch.Tensor, y: torch.Tensor, classes: int) -> None:
    if x.dtype != torch.float32:
        raise DataError(f"{name}: {part}_x must be float32, got {x.dtype}; convert it with .float()")
    if x.dim() == 0 or x.numel() == 0:
        raise DataError(f"{name}: {part}_x is empty (shape {tuple(x.shape)}); give it at least one row")
    _check_vector(name, f"{part}_y", y, len(x))
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= classes:
        raise DataError(
            f"{name}: {part}_y has labels from {low} to {high}, expected 0 to {classes - 1}; "
            f"renumber the labels or correct classes = {classes}"
        )
    if not all(torch.isfinite(bound) for bound in torch.aminmax(x)):
        raise DataError(f"{name}: {part}_x has a value that is not finite; remove or replace NaN and infinity")


def _check_vector(name: str, field: str, vector: torch.Tensor, rows: int) -> None:
    if vector.dtype != torch.int64:
        raise DataError(f"{name}: {field} must be int64, got {vector.dtype}; convert it with .long()")
    if tuple(vector.shape) != (rows,):
        raise DataError(
            f"{name}: {field} has shape {tuple(vector.shape)}, expected ({rows},), one for each row; "
            f"make the lengths agree"
        )
