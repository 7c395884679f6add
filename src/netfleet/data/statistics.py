"""Sums over the training rows of all sites, from which columns are scaled: count, Σx and Σx² are all that is needed.

They are added up as decimal numbers without rounding, so the order of sites and rows does not matter, and a column
that is constant has a deviation of exactly 0.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Context, Decimal, InvalidOperation, localcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from netfleet.errors import DataError
from netfleet.files import write_atomically

Floats = npt.NDArray[np.float64]
#: Digits: enough for sums of squares of any float64 numbers without rounding, and for quotients and roots of them.
_EXACT, _ROUNDED = Context(prec=2000), Context(prec=50)


class Moments(NamedTuple):
    """Mean and standard deviation of a column."""

    mean: float
    deviation: float


@dataclass(frozen=True)
class Sums:
    """What a site says about a column: how many rows have a value, how many none, and the sums over the values."""

    count: int
    missing: int
    sum: Decimal
    sum_of_squares: Decimal

    def __add__(self, other: "Sums") -> "Sums":
        with localcontext(_EXACT):
            total, squares = self.sum + other.sum, self.sum_of_squares + other.sum_of_squares
        return Sums(self.count + other.count, self.missing + other.missing, total, squares)

    def moments(self, column: str) -> Moments:
        if self.count == 0:
            raise DataError(f"column {column!r} has no value in the training rows of any site; leave it out")
        with localcontext(_EXACT):
            spread = self.count * self.sum_of_squares - self.sum * self.sum
        with localcontext(_ROUNDED):
            return Moments(float(self.sum / self.count), float(max(spread, Decimal(0)).sqrt() / self.count))


@dataclass(frozen=True)
class Statistics:
    """The sums of some sites. `declaration` names what the experiment says of the data: sums of another do not fit."""

    sites: tuple[str, ...]
    declaration: str
    columns: Mapping[str, Sums]

    def moments(self) -> dict[str, Moments]:
        return {name: sums.moments(name) for name, sums in self.columns.items()}


def sums_of(values: Floats) -> Sums:
    """The sums of a column, in which NaN is a missing value."""
    numbers = [Decimal(repr(value)) for value in values[~np.isnan(values)].tolist()]
    with localcontext(_EXACT):
        squares = sum((number * number for number in numbers), Decimal(0))
        return Sums(len(numbers), len(values) - len(numbers), sum(numbers, Decimal(0)), squares)


def merge(parts: Sequence[Statistics]) -> Statistics:
    """The sums of all sites of several statistics."""
    sites = [site for part in parts for site in part.sites]
    if twice := [site for site in sites if sites.count(site) > 1]:
        raise DataError(f"the statistics of {twice[0]!r} are there twice; give those of each site once")
    first = parts[0]
    for part in parts[1:]:
        check_declaration(part, first.declaration, f"{', '.join(part.sites)} and {', '.join(first.sites)}")
    columns = {name: _total(part.columns[name] for part in parts) for name in first.columns}
    return Statistics(tuple(sites), first.declaration, columns)


def check_declaration(statistics: Statistics, declaration: str, who: str) -> None:
    """Raise unless the statistics were made from the same declaration of the data."""
    if statistics.declaration != declaration:
        raise DataError(
            f"statistics of {who} are of different declarations of the data ({statistics.declaration} and "
            f"{declaration}); run netfleet statistics again at each site, with the same experiment file"
        )


def write_statistics(statistics: Statistics, path: Path) -> None:
    """Write a file that people can read: it has these sums and nothing else."""
    columns = {name: asdict(sums) for name, sums in statistics.columns.items()}
    head = {"sites": statistics.sites, "declaration": statistics.declaration}
    text = json.dumps(head | {"columns": columns}, indent=2, ensure_ascii=False, default=_plain) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))


def _plain(number: Decimal) -> str:
    return f"{number.normalize(_EXACT):f}"


def read_statistics(path: Path) -> Statistics:
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        columns = {str(name): _sums(sums) for name, sums in table["columns"].items()}
        return Statistics(tuple(map(str, table["sites"])), str(table["declaration"]), columns)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from None
    except (ValueError, KeyError, TypeError, AttributeError, InvalidOperation):
        raise DataError(f"{path} is not a file that netfleet statistics has written; make it again") from None


def _sums(table: Mapping[str, Any]) -> Sums:
    total, squares = Decimal(table["sum"]), Decimal(table["sum_of_squares"])
    count, missing = int(table["count"]), int(table["missing"])
    if min(count, missing) < 0 or not (total.is_finite() and squares.is_finite()):
        raise ValueError("not sums")
    return Sums(count, missing, total, squares)


def _total(sums: Iterable[Sums]) -> Sums:
    return sum(sums, Sums(0, 0, Decimal(0), Decimal(0)))
