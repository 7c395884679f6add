"""What a column of a file means: a number, one of some values, or yes or no; and how it becomes inputs of a model."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from netfleet.data.statistics import Moments
from netfleet.data.table import Column
from netfleet.errors import ConfigError, DataError
from netfleet.registry import Registry, Spec, check_range

Floats = npt.NDArray[np.float64]
Scale = Literal["none", "sites"]


class Feature(Protocol):
    """A column that becomes one or more inputs."""

    @property
    def needs_moments(self) -> bool:
        """Whether it is scaled or filled by what all sites have."""

    def read(self, column: Column) -> Floats:
        """A number for each row; NaN: there is no value."""

    def inputs(self, values: Floats, moments: Moments | None) -> Floats:
        """The inputs `[rows, k]` of what was read."""


FEATURES: Registry[Feature] = Registry("column")


@FEATURES.register("number")
@dataclass(frozen=True)
class Number:
    """A number; `scale` subtracts a mean and divides by a deviation, those of all sites or two constants.

    Numbers outside of `range` (two numbers, which are allowed themselves) are refused.
    """

    fill: float | Literal["mean"] | None = None
    indicator: bool = False
    missing: Sequence[str] = ()
    scale: Scale | Mapping[str, Any] | None = None
    range: Sequence[float] | None = None
    most_missing: float | None = None

    def __post_init__(self) -> None:
        check_range(self.range, "range")
        _check_most(self.most_missing)
        if isinstance(self.scale, Mapping):
            _check_constants(self.scale)
        if isinstance(self.fill, float | int) and not math.isfinite(self.fill):
            raise ConfigError(f'fill must be a finite number or "mean", got {self.fill}')

    @property
    def needs_moments(self) -> bool:
        return self.scale == "sites" or self.fill == "mean"

    def read(self, column: Column) -> Floats:
        column, allowed = column.also_missing(self.missing), self.fill is not None
        absent = _missing(column, allowed, 'add fill = 0 or fill = "mean" to the column', self.most_missing)
        numbers = np.array([np.nan if gone else column.number(row) for row, gone in enumerate(absent)], np.float64)
        if self.range is not None:
            low, high = self.range
            if len(outside := np.flatnonzero((numbers < low) | (numbers > high))):
                raise column.wrong(int(outside[0]), f"is not from {low:g} to {high:g}; {column.cure('correct it')}")
        return numbers

    def inputs(self, values: Floats, moments: Moments | None) -> Floats:
        absent = np.isnan(values)
        filled = np.where(absent, self._filling(moments), values)
        if isinstance(self.scale, Mapping):
            moments = Moments(float(self.scale["mean"]), float(self.scale["deviation"]))
        if moments is not None and self.scale not in (None, "none"):
            filled = np.zeros_like(filled) if moments.deviation == 0 else (filled - moments.mean) / moments.deviation
        return _with_indicator(filled[:, None], absent, self.indicator)

    def _filling(self, moments: Moments | None) -> float:
        if self.fill == "mean":
            assert moments is not None
            return moments.mean
        return 0.0 if self.fill is None else self.fill


@FEATURES.register("category")
@dataclass(frozen=True)
class Category:
    """One of the listed values; each becomes an input that is 1 for it and 0 for the others."""

    values: Sequence[str | float]
    fill: str | float | None = None
    indicator: bool = False
    missing: Sequence[str] = ()
    most_missing: float | None = None

    def __post_init__(self) -> None:
        _check_most(self.most_missing)
        check_values(self.values, "values")
        if self.fill is not None and self.fill not in self.values:
            raise ConfigError(f"fill = {self.fill!r} is none of the values; use one of {_listed(self.values)}")

    @property
    def needs_moments(self) -> bool:
        return False

    def read(self, column: Column) -> Floats:
        column, allowed = column.also_missing(self.missing), self.indicator or self.fill is not None
        cure = "add indicator = true or fill = one of the values to the column"
        absent = _missing(column, allowed, cure, self.most_missing)
        return read_values(column, self.values, absent)

    def inputs(self, values: Floats, moments: Moments | None) -> Floats:
        absent = np.isnan(values)
        other = -1 if self.fill is None else list(self.values).index(self.fill)
        codes = np.where(absent, other, values)
        return _with_indicator(
            (codes[:, None] == np.arange(len(self.values))).astype(np.float64), absent, self.indicator
        )


@FEATURES.register("yes/no")
@dataclass(frozen=True)
class YesNo:
    """1 for yes and 0 for no, in any of these spellings, in small or capital letters."""

    yes: Sequence[str] = ("1", "1.0", "yes", "y", "true")
    no: Sequence[str] = ("0", "0.0", "no", "n", "false")
    fill: bool | None = None
    indicator: bool = False
    missing: Sequence[str] = ()
    most_missing: float | None = None

    def __post_init__(self) -> None:
        _check_most(self.most_missing)
        if both := {text.lower() for text in self.yes} & {text.lower() for text in self.no}:
            raise ConfigError(f"{min(both)!r} is both yes and no; list each spelling once")

    @property
    def needs_moments(self) -> bool:
        return False

    def read(self, column: Column) -> Floats:
        column, allowed = column.also_missing(self.missing), self.indicator or self.fill is not None
        absent = _missing(column, allowed, "add fill = false or indicator = true to the column", self.most_missing)
        known = {text.lower(): value for texts, value in ((self.no, 0.0), (self.yes, 1.0)) for text in texts}
        for row, text in enumerate(column.texts):
            if not absent[row] and text.lower() not in known:
                words = f"is neither yes ({_listed(self.yes)}) nor no ({_listed(self.no)})"
                raise column.wrong(row, f"{words}; {column.cure('correct it or list it')}")
        return np.array([known.get(text.lower(), np.nan) for text in column.texts]) + np.where(absent, np.nan, 0)

    def inputs(self, values: Floats, moments: Moments | None) -> Floats:
        absent = np.isnan(values)
        return _with_indicator(np.where(absent, float(self.fill or False), values)[:, None], absent, self.indicator)


def make_features(features: Mapping[str, Any] | Sequence[str], scale: Scale) -> dict[str, Feature]:
    """The declared columns in alphabetical order, which no reordering of a file or an experiment changes.

    A list of names declares numbers; `scale` is that of numbers that do not say theirs.
    """
    specs: dict[str, Spec] = dict(features) if isinstance(features, Mapping) else dict.fromkeys(features, "number")
    if not specs:
        raise ConfigError('features names no column; add at least one, for example features = {age = "number"}')
    return {name: _make_feature(name, specs[name], scale) for name in sorted(specs)}


def _make_feature(name: str, spec: Spec, scale: Scale) -> Feature:
    try:
        made = FEATURES.build(spec)
    except ConfigError as error:
        raise ConfigError(f"features.{name}: {error}") from None
    return replace(made, scale=scale) if isinstance(made, Number) and made.scale is None else made


def check_values(values: Sequence[str | float], key: str) -> None:
    """Raise unless these are different texts, or different numbers."""
    kinds = {isinstance(value, str) for value in values}
    if len(values) < 2 or len(set(values)) < len(values):
        raise ConfigError(f"{key} must list two or more different values, got {list(values)!r}")
    if len(kinds) > 1:
        raise ConfigError(f"{key} must be all texts or all numbers, got {list(values)!r}")


def read_values(column: Column, values: Sequence[str | float], absent: npt.NDArray[np.bool_]) -> Floats:
    """The place of each row's value in the list; where this lists numbers, "1" and "1.0" are the same."""
    places = {value: float(place) for place, value in enumerate(values)}
    numeric = not isinstance(values[0], str)
    found = np.full(len(column.texts), np.nan)
    for row in np.flatnonzero(~absent).tolist():
        value = column.number(row) if numeric else column.texts[row]
        if value not in places:
            words = f"is none of the listed values {_listed(values)}"
            raise column.wrong(row, f"{words}; {column.cure('correct it or list it')}")
        found[row] = places[value]
    return found


def no_missing(column: Column, cure: str) -> npt.NDArray[np.bool_]:
    """That no row's value is missing; raises if one is."""
    return _missing(column, False, cure)


def _missing(column: Column, allowed: bool, cure: str, most: float | None = None) -> npt.NDArray[np.bool_]:
    """Which rows have no value; raises if one has none where it must, or if more than the share `most` have none."""
    absent = np.array([column.is_missing(row) for row in range(len(column.texts))], bool)
    if absent.any() and not allowed:
        raise column.wrong(int(absent.argmax()), f"means that there is no value, and one is needed; {cure}")
    if most is not None and absent.mean() > most:
        found = f"{int(absent.sum())} of {len(absent)} rows have no value, more than most_missing = {most:g} allows"
        raise DataError(f"{column.file}, column {column.name!r}: {found}; complete the file, or leave the column out")
    return absent


def _check_most(share: float | None) -> None:
    if share is not None and not 0 <= share <= 1:
        raise ConfigError(f"most_missing must be a share of the rows from 0 to 1, got {share:g}")


def _with_indicator(inputs: Floats, absent: npt.NDArray[np.bool_], indicator: bool) -> Floats:
    return np.hstack([inputs, absent[:, None].astype(np.float64)]) if indicator else inputs


def _check_constants(scale: Mapping[str, Any]) -> None:
    numbers = [scale.get("mean"), scale.get("deviation")]
    finite = all(isinstance(n, int | float) and not isinstance(n, bool) and math.isfinite(n) for n in numbers)
    if len(scale) != 2 or not finite or not scale["deviation"] > 0:
        forms = '"none", "sites" or {mean = …, deviation = …} with a deviation above 0'
        raise ConfigError(f"scale must be {forms}, got {dict(scale)!r}")


def _listed(values: Sequence[str | float]) -> str:
    return ", ".join(map(str, values))
