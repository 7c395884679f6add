"""Data that a function of the user's loads at each site, in the simulator: the function is called once for each site.

At a real site NETFLEET_SITE has the site's name, and the function returns that site's rows. The simulator sets it to
one name after the other and puts the rows together, with a group for each site.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from netfleet.data.dataset import Dataset
from netfleet.data.sites import SITE_VARIABLE, as_site, this_site
from netfleet.data.tensors import Tensors, describe, leaves, same_rows
from netfleet.errors import ConfigError, DataError

_CURE = 'name the sites: partition = { kind = "sites", names = ["hospital-a", "hospital-b"] }'


def named_sites(partition: object) -> list[str] | None:
    """The names that a partition "sites" lists; None if it lists none."""
    names = partition.get("names") if isinstance(partition, Mapping) and partition.get("kind") == "sites" else None
    return list(names) if isinstance(names, list | tuple) else None


def load_sites(kind: str, load: Callable[[], Dataset], names: Sequence[str] | None) -> Dataset:
    """What `load` returns at this site, or in the simulator for all sites with these names together."""
    if names is None or this_site() is not None:
        with _site_known(kind):
            return load()
    if ":" not in kind:
        raise ConfigError(
            f"partition 'sites': data {kind!r} brings its own names, and names are for a function of yours"
        )
    parts = [_part(kind, load, name) for name in names]
    first = parts[0]
    for name, part in zip(names, parts, strict=True):
        _check_alike(f"{kind} at {names[0]}", first, f"{kind} at {name}", part)
    return Dataset(
        first.name,
        _joined([part.train_x for part in parts]),
        _joined([part.train_y for part in parts]),
        _joined([part.test_x for part in parts]),
        _joined([part.test_y for part in parts]),
        first.classes,
        _numbers([part.rows for part in parts]),
        _numbers([part.tests for part in parts]),
        tuple(names),
        columns=first.columns,
    )


def _numbers(sizes: Sequence[int]) -> Tensor:
    """The number of the site of each row."""
    return torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))


def _part(kind: str, load: Callable[[], Dataset], name: str) -> Dataset:
    with as_site(name):
        part = load()
    if part.site != name:
        came = "no site" if part.site is None else f"site {part.site!r}"
        raise ConfigError(
            f"data source {kind!r} returned rows of {came} where {SITE_VARIABLE} is {name!r}; give make_dataset site = "
            f'os.environ["{SITE_VARIABLE}"]'
        )
    return part


@contextmanager
def _site_known(kind: str) -> Iterator[None]:
    """Within the context, a function that looks for the site's name in vain says what to do."""
    try:
        yield
    except KeyError as error:
        if error.args != (SITE_VARIABLE,):
            raise
        cause = f"data source {kind!r} asks which site this is ({SITE_VARIABLE}), and the simulator is all of them"
        raise ConfigError(f"{cause}; {_CURE}") from None


def _check_alike(of_one: str, one: Dataset, of_other: str, other: Dataset) -> None:
    if one.classes != other.classes:
        raise DataError(
            f"{of_one} has classes = {one.classes} and {of_other} {other.classes}; list the same classes at all sites"
        )
    for what, x, y in (("inputs", one.train_x, other.train_x), ("targets", one.train_y, other.train_y)):
        if not same_rows(x, y):
            raise DataError(f"{what} of {of_one} are {describe(x)}, of {of_other} {describe(y)}; make them alike")


def _joined(parts: Sequence[Tensors]) -> Tensors:
    first = parts[0]
    columns = [torch.cat(tensors) for tensors in zip(*map(leaves, parts), strict=True)]
    if isinstance(first, Tensor):
        return columns[0]
    return dict(zip(first, columns, strict=True)) if isinstance(first, dict) else tuple(columns)
