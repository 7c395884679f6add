"""Arrays out of whatever people hold their data in: numpy, torch, lists, pandas, polars, Hugging Face datasets.

No library is imported here that the object does not come from: an object's class says which one that is.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from netfleet.data.sites import shown_value
from netfleet.data.tensors import Tensors, only
from netfleet.errors import DataError
from netfleet.registry import suggestion

Array = npt.NDArray[Any]
FRAMES = ("pandas", "polars", "datasets")
_NULLABLE = ("Int", "UInt", "Float", "boolean")  # types of pandas that have a missing value which is no number


class Values(NamedTuple):
    """A column or an array, with the names of its classes where the library knows them."""

    array: Array | Tensor
    classes: tuple[Any, ...] | int | None = None


class Frame:
    """A table of one of the libraries, as columns."""

    def __init__(self, frame: Any, where: str) -> None:
        self._frame, self.where, self._library = frame, where, library(frame)
        if isinstance(frame, dict):
            splits = ", ".join(map(str, frame))
            raise DataError(f"{where} has several splits ({splits}); give one, and another as test = …")
        if not isinstance(getattr(frame, "shape", None), tuple):
            raise DataError(f"{where} is of type {type(frame).__name__}, which has no rows yet; load it into memory")
        found = frame.column_names if self._library == "datasets" else frame.columns
        self.names = list(found)
        if twice := [name for name in self.names if self.names.count(name) > 1]:
            raise DataError(f"{where} has the column {twice[0]!r} twice; rename one of them")

    def take(self, name: object) -> Values:
        """A column."""
        if name not in self.names:
            near, known = suggestion(str(name), map(str, self.names)), ", ".join(map(str, self.names))
            raise DataError(f"{self.where} has no column {name!r}{near}; it has {known}")
        if self._library == "datasets":
            feature = self._frame.features[name]
            return Values(_array(self._frame.with_format("numpy")[name][:]), getattr(feature, "num_classes", None))
        return values_of(self._frame[name], f"{self.where}, column {name!r}")

    def inputs(self, without: Sequence[object]) -> Tensors:
        """The other columns as inputs: single numbers are the columns of one matrix, arrays are a dict by column."""
        names = [name for name in self.names if name not in without]
        if not names:
            raise DataError(f"{self.where} has no columns for x; give at least one that is not the target or the group")
        arrays = {str(name): _numeric(self.take(name).array, f"{self.where}, column {name!r}") for name in names}
        if all(array.ndim == 1 for array in arrays.values()):
            return torch.from_numpy(np.column_stack([_floats(array) for array in arrays.values()]))
        tensors = {name: as_tensor(array, name) for name, array in arrays.items()}
        return tensors if len(tensors) > 1 else next(iter(tensors.values()))


def library(thing: object) -> str | None:
    """Which of the known libraries an object's class comes from."""
    modules = [base.__module__.partition(".")[0] for base in type(thing).__mro__]
    return next((module for module in modules if module in FRAMES), None)


def is_frame(thing: object) -> bool:
    """Whether an object is a table with named columns."""
    columns = ("Series", "Categorical", "Index")
    return library(thing) == "datasets" or (library(thing) is not None and type(thing).__name__ not in columns)


def values_of(thing: Any, where: str) -> Values:
    """An array, a list, a column, or a frame of one column."""
    if is_frame(thing):
        frame = Frame(thing, where)
        return frame.take(frame.names[0]) if len(frame.names) == 1 else Values(only(frame.inputs(())))
    if isinstance(thing, Tensor):
        array = thing.detach().cpu()
        return Values(array if array.is_floating_point() or array.is_complex() else array.numpy())
    if library(thing) == "pandas" and str(thing.dtype) == "category":
        return Values(_array(thing), tuple(thing.dtype.categories))
    if isinstance(thing, np.ma.MaskedArray) and np.ma.is_masked(thing):
        raise DataError(f"{where} has masked values; fill them with .filled(…), or remove their rows")
    if library(thing) == "pandas" and str(thing.dtype).startswith(_NULLABLE) and thing.hasnans:
        return Values(thing.to_numpy(dtype="float64", na_value=np.nan))
    if isinstance(thing, np.ndarray | list | tuple) or library(thing) is not None:
        return Values(_stacked(thing, where))
    raise DataError(
        f"{where} is a {type(thing).__name__}, expected an array, a tensor, a list of numbers, or a frame; convert it"
    )


def as_inputs(thing: Any, where: str) -> Tensors:
    """Inputs of a model: a tensor, or a tuple or dict of tensors as they come."""
    if isinstance(thing, Tensor):
        return thing.detach().cpu()
    if is_frame(thing):
        return Frame(thing, where).inputs(())
    if isinstance(thing, dict):
        return {str(key): _input(value, f"{where}[{key!r}]") for key, value in thing.items()}
    if isinstance(thing, tuple):
        return tuple(_input(value, f"{where}[{place}]") for place, value in enumerate(thing))
    return _input(thing, where)


def as_tensor(array: Array | Tensor, where: str) -> Tensor:
    """An array of numbers as a tensor; it shares the memory where it can."""
    if isinstance(array, Tensor):
        return array
    array = _numeric(array, where)
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return torch.from_numpy(native if native.flags.writeable and native.flags.c_contiguous else native.copy())


def _input(thing: Any, where: str) -> Tensor:
    return as_tensor(values_of(thing, where).array, where)


def _numeric(array: Array | Tensor, where: str) -> Array:
    """The array, if it has finite numbers; a column says its own name where it has not."""
    array = array.numpy() if isinstance(array, Tensor) else array
    if array.dtype == object and array.size and isinstance(array.flat[0], list | np.ndarray):
        raise DataError(f"{where} has rows of different shapes; make them alike, for example by padding")
    if array.dtype.kind not in "biufc":
        came = (
            f"{array.dtype} values such as {shown_value(str(array.flat[0]))}" if array.size else f"{array.dtype} values"
        )
        raise DataError(f"{where} has {came}, expected numbers; encode texts and dates as numbers")
    if array.dtype.kind == "f" and np.isnan(array).any():
        row, count = int(np.argwhere(np.isnan(array))[0][0]), len(set(np.argwhere(np.isnan(array))[:, 0]))
        raise DataError(f"{where} has no value (NaN) in {count} rows, the first is row {row}; fill or remove them")
    return array


def _floats(array: Array) -> Array:
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def _stacked(thing: Any, where: str) -> Array:
    """A list or column as an array; tensors in it become arrays."""
    if isinstance(thing, list | tuple) and thing and all(isinstance(each, Tensor) for each in thing):
        thing = [each.detach().cpu().numpy() for each in thing]
    try:
        return _array(thing)
    except ValueError as error:
        raise DataError(
            f"{where} has rows of different shapes ({error}); make them alike, for example by padding"
        ) from None


def _array(thing: Any) -> Array:
    return np.asarray(thing)
