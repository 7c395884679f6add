"""Inputs of a trained model from what people have: a CSV file, a data frame, an array.

Columns are found by their names, read as the experiment declared them and scaled with its constants, exactly as in the
training. Other columns are not looked at.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from netfleet.data.columns import FEATURES, Feature, Number
from netfleet.data.declaration import Declaration
from netfleet.data.frames import Frame, is_frame, values_of
from netfleet.data.table import Format, Table, read_table
from netfleet.errors import DataError
from netfleet.prediction.model_info import ModelInfo

#: What `predict` takes: a path, a data frame, or anything that numpy takes for an array.
Given = Any


def model_inputs(info: ModelInfo, given: Given) -> Tensor:
    """The inputs `[rows, …]` of a model."""
    declared = info.declaration
    if declared is not None:
        return _declared_inputs(declared, _table(given, list(declared.inputs), declared.format))
    if not isinstance(given, str | os.PathLike) and not is_frame(given):
        return _array_inputs(info, given)
    if not info.columns:
        shape = list(info.inputs)
        raise DataError(f"this model was trained on data without names of columns; give an array of [rows, *{shape}]")
    table = _table(given, list(info.columns), Format())
    read = [Number().read(table.column(name)) for name in info.columns]
    return torch.from_numpy(np.column_stack(read)).reshape(len(table.rows), *info.inputs)


def _declared_inputs(declared: Declaration, table: Table) -> Tensor:
    constants = declared.constants(declared.statistics) if isinstance(declared.statistics, dict) else {}
    parts = [
        feature.inputs(feature.read(table.column(name)), constants.get(name))
        for name, feature in ((name, _for_any_number_of_rows(each)) for name, each in declared.inputs.items())
    ]
    return torch.from_numpy(np.hstack(parts))


def _for_any_number_of_rows(feature: Feature) -> Feature:
    """Which share of the values may be missing is a rule for a site's file, not for the rows of a prediction."""
    known = FEATURES.name_of(type(feature)) is not None
    return replace(feature, most_missing=None) if known else feature  # type: ignore[type-var]


def _array_inputs(info: ModelInfo, given: Given) -> Tensor:
    values = torch.as_tensor(values_of(given, "the array").array)
    if tuple(values.shape[1:]) != info.inputs or len(values) == 0:
        shape = f"[rows, {', '.join(map(str, info.inputs))}]"
        raise DataError(f"the array has the shape {list(values.shape)}, and this model takes {shape}; give it that")
    if bad := (~torch.isfinite(values.double()).flatten(1)).nonzero().tolist():
        raise DataError(f"the array has no finite number in row {bad[0][0]}, place {bad[0][1]}; fill it in")
    return values


# ---- tables of text, as the columns of CSV files are read ----


def _table(given: Given, names: Sequence[str], format: Format) -> Table:
    if isinstance(given, str | os.PathLike):
        return read_table(Path(given), format)
    plain = Format(missing=(*format.missing, ""))
    if is_frame(given):
        frame = Frame(given, "the data frame")
        header = [str(name) for name in frame.names]
        columns = [_texts(np.asarray(frame.take(name).array)) for name in frame.names]
        return _made("the data frame", header, list(map(list, zip(*columns, strict=True))), plain)
    values = np.asarray(values_of(given, "the array").array)
    if values.ndim != 2 or values.shape[1] != len(names):
        listed = f"[rows, {len(names)}] with the columns {', '.join(names)}"
        raise DataError(
            f"the array has the shape {list(values.shape)}, expected {listed}, in this order and not scaled"
        )
    return _made("the array", list(names), [_texts(row) for row in values], plain)


def _made(what: str, header: list[str], rows: list[list[str]], format: Format) -> Table:
    if not rows:
        raise DataError(f"{what} has no rows; give at least one")
    return Table(Path(what), tuple(header), rows, list(range(len(rows))), format, "row")


def _texts(values: np.ndarray[Any, Any]) -> list[str]:
    """Values as a CSV file has them; one that is missing is empty."""
    return ["" if _is_missing(value) else str(value).strip() for value in values.tolist()]


def _is_missing(value: object) -> bool:
    return value is None or value != value or type(value).__name__ in ("NAType", "NaTType")
