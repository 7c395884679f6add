"""CSV files whose columns an experiment declares, so that every site reads the same things in the same way.

    kind = "csv"
    path = "heart/{site}.csv"         # a file for each site; or one file, in which `group` names the column of the site
    target = "num"                    # with `classes`, `positive_above` or `event`; alone, a number
    features = { age = "number" }     # a declaration for each column that is an input (`data/columns.py`)

The columns of x are in the alphabetical order of their names. Other columns of a file are not looked at.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from netfleet.data.columns import Scale
from netfleet.data.dataset import Dataset
from netfleet.data.declaration import Declaration
from netfleet.data.sites import PLACE, find, site_files, this_site, with_sites
from netfleet.data.sources import SOURCES
from netfleet.data.splits import split_share, stable_numbers
from netfleet.data.statistics import Moments, Statistics, check_declaration, merge, read_statistics, sums_of
from netfleet.data.table import Format, Table, read_table
from netfleet.errors import ConfigError, DataError
from netfleet.registry import Spec, split

Rows = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Part(NamedTuple):
    """The rows of one site, as they were read."""

    name: str
    values: dict[str, Floats]
    y: Tensor
    train: Rows
    test: Rows


@SOURCES.register("csv")
def csv(
    path: str,
    target: str,
    features: Mapping[str, Any] | Sequence[str],
    sites: Sequence[str] | None = None,
    group: str | None = None,
    classes: Sequence[str | float] | None = None,
    positive_above: float | None = None,
    event: str | None = None,
    missing: Sequence[str] = Format().missing,
    scale: Scale = "none",
    statistics: str | Mapping[str, Any] | None = None,
    test: float = 0.2,
    delimiter: str = Format().delimiter,
    decimal: Literal[".", ","] = ".",
) -> Dataset:
    """Files with declared columns, one for each site (`{site}` in `path`) or one for all; see [below](#csv-files)."""
    declared = Declaration(**locals())
    return dataset_of(declared, _read_parts(declared))


def declare(spec: Spec) -> Declaration:
    """The declaration in a specification of kind "csv"; raises if it makes no sense."""
    resolved = SOURCES.resolve(spec)
    if (kind := resolved.pop("kind")) != "csv":
        raise ConfigError(f'columns are declared in data of kind "csv", and this is {kind!r}; use kind = "csv"')
    return Declaration(**resolved)


def _read_parts(declared: Declaration) -> list[Part]:
    if declared.own_files:
        files = site_files(declared.path, declared.sites)
        return [_part(declared, name, read_table(file, declared.format)) for name, file in files.items()]
    table = read_table(find(declared.path), declared.format)
    if declared.group is None:
        return [_part(declared, "", table)]
    return [_part(declared, name, part) for name, part in _by_group(table, declared.group, declared.sites).items()]


def _by_group(table: Table, group: str, sites: Sequence[str] | None) -> dict[str, Table]:
    """The rows of each site of one file, in the order in which the sites are listed, or first appear."""
    column = table.column(group)
    rows: dict[str, list[int]] = {name: [] for name in sites or ()}
    for row, name in enumerate(column.texts):
        if column.is_missing(row):
            raise column.wrong(row, "names no site; fill it in, or remove the row")
        if sites is not None and name not in rows:
            raise column.wrong(row, f"is none of the sites {', '.join(sites)}; correct it, or list it in sites")
        rows.setdefault(name, []).append(row)
    if empty := [name for name, own in rows.items() if not own]:
        raise DataError(f"{table.file}: no row has {empty[0]!r} in column {group!r}; correct sites or the file")
    return {name: table.part(own) for name, own in rows.items()}


def _part(declared: Declaration, name: str, table: Table) -> Part:
    values = {column: feature.read(table.column(column)) for column, feature in declared.inputs.items()}
    y, strata = declared.goal.read(table)
    if len(y) < 2:
        whose = f" of {name}" if name else ""
        raise DataError(f"{table.file}: one row{whose} cannot be for training and for testing; give it more rows")
    return Part(name, values, y, *split_share(declared.test, stable_numbers(name, len(y)), strata))


def read_part(declared: Declaration, file: Path) -> Part:
    """All rows of a file as those of one site without a name."""
    return _part(declared, "", read_table(file, declared.format))


def dataset_of(declared: Declaration, parts: Sequence[Part]) -> Dataset:
    """The rows of some sites as one data set."""
    return _dataset(declared, parts, _moments(declared, parts) if declared.scaled else {})


def _moments(declared: Declaration, parts: Sequence[Part]) -> dict[str, Moments]:
    if isinstance(declared.statistics, Mapping):
        return declared.constants(declared.statistics)
    if declared.statistics is not None:
        return _stored(declared, find(declared.statistics)).moments()
    if declared.own_files and this_site() is not None:
        raise declared.without_statistics()
    return merge([_sums(declared, part) for part in parts]).moments()


def scaling(declared: Declaration) -> dict[str, dict[str, float]] | None:
    """The mean and deviation of each column that needs them, as constants; None if no column does."""
    if not declared.scaled:
        return None
    parts = [] if isinstance(declared.statistics, Mapping) else _read_parts(declared)
    return {name: found._asdict() for name, found in _moments(declared, parts).items()}


def _sums(declared: Declaration, part: Part) -> Statistics:
    columns = {column: sums_of(part.values[column][part.train]) for column in declared.scaled}
    return Statistics((part.name,), declared.digest, columns)


def _stored(declared: Declaration, file: Path) -> Statistics:
    """The statistics in a file, if they are those of this experiment's sites."""
    return _of_all_sites(declared, read_statistics(file), file)


def merge_statistics(declared: Declaration, files: Sequence[Path]) -> Statistics:
    """The sums of all sites from the files that they wrote."""
    return _of_all_sites(declared, merge([read_statistics(file) for file in files]), "the files together")


def _of_all_sites(declared: Declaration, found: Statistics, where: object) -> Statistics:
    check_declaration(found, declared.digest, f"{where} and the experiment")
    if declared.sites is not None and sorted(found.sites) != sorted(declared.sites):
        came, expected = ", ".join(found.sites), ", ".join(declared.sites)
        raise DataError(f"{where}: statistics of {came}, expected those of {expected}; merge those of all sites")
    return found


def site_statistics(declared: Declaration, site: str) -> Statistics:
    """The sums over the training rows of one site: all that leaves it for the scaling of columns."""
    if not declared.own_files:
        raise ConfigError(f'path = "{declared.path}" is one file for all sites; its statistics need no command')
    if not declared.scaled:
        raise ConfigError('no column is scaled or filled by statistics over all sites; add scale = "sites"')
    if declared.sites is not None and site not in declared.sites:
        raise ConfigError(f"site {site!r} is none of {', '.join(declared.sites)}; correct --site")
    file = find(declared.path.replace(PLACE, site))
    return _sums(declared, _part(declared, site, read_table(file, declared.format)))


def plan_data(spec: Spec, names: Sequence[str]) -> Spec:
    """A specification as `netfleet plan` writes it for these sites.

    Statistics become constants, so that the hash of the run covers them.
    """
    planned = with_sites(spec, names)
    if split(planned, "data source")[0] != "csv" or not (declared := declare(planned)).own_files:
        return planned
    if not declared.scaled or isinstance(declared.statistics, Mapping):
        return planned
    if declared.statistics is None:
        raise declared.without_statistics()
    moments = _stored(declared, find(declared.statistics)).moments()
    constants = {name: found._asdict() for name, found in moments.items()}
    return {"kind": "csv", **split(planned, "data source")[1], "statistics": constants}


def _dataset(declared: Declaration, parts: Sequence[Part], moments: Mapping[str, Moments]) -> Dataset:
    x = torch.from_numpy(np.concatenate([_inputs(declared, part, moments) for part in parts]))
    y, sizes = torch.cat([part.y for part in parts]), [len(part.y) for part in parts]
    train, test = (_joined([getattr(part, key) for part in parts], sizes) for key in ("train", "test"))
    own = parts[0].name if declared.own_files and this_site() is not None else None
    name = declared.path if own is None else declared.path.replace(PLACE, own)
    rows = (x[train], y[train], x[test], y[test], declared.goal.classes)
    if own is not None or not (declared.own_files or declared.group):
        return Dataset(name, *rows, site=own)
    numbers = torch.from_numpy(np.repeat(np.arange(len(parts)), sizes))
    return Dataset(name, *rows, numbers[train], numbers[test], tuple(part.name for part in parts))


def _joined(rows: Sequence[Rows], sizes: Sequence[int]) -> Tensor:
    """Row numbers of each part as those of all parts one after the other."""
    starts = np.cumsum([0, *sizes[:-1]])
    return torch.from_numpy(np.concatenate([own + start for own, start in zip(rows, starts, strict=True)]))


def _inputs(declared: Declaration, part: Part, moments: Mapping[str, Moments]) -> Floats:
    features = declared.inputs.items()
    return np.hstack([feature.inputs(part.values[name], moments.get(name)) for name, feature in features])
