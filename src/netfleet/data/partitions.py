"""Which worker has which training rows. Pure: a partition is a function of labels (or groups), workers and seed.

Each returns one int64 array of row numbers for every worker. Where the paper leaves a choice open:

- Non-i.i.d. (`shards`): "250 shards with 200 data samples" are 50,000 of MNIST's 60,000. The first 50,000 of the
  sorted rows would lose the digit 9 and most of 8, so 50,000 random rows are drawn and then sorted: all labels
  keep their share. With 50 workers × 2 shards, 100 of the 250 shards are then used.
- Rows of equal label are in random order before the cut, so a shard does not depend on the order of the source.
- i.i.d. (`shared`): every worker draws from the whole set. `iid` is the disjoint variant.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from netfleet.errors import ConfigError, DataError
from netfleet.randomness import generator
from netfleet.registry import Registry

Rows = npt.NDArray[np.int64]
PARTITIONS: Registry[list[Rows]] = Registry("partition")
DIRICHLET_TRIES = 1000


@PARTITIONS.register("shared")
def shared(labels: Rows, workers: int) -> list[Rows]:
    """Every worker sees all rows: the paper's i.i.d. setting."""
    rows = np.arange(len(labels))
    rows.setflags(write=False)  # one array for all workers
    return [rows] * workers


@PARTITIONS.register("iid")
def iid(labels: Rows, workers: int, seed: int) -> list[Rows]:
    """Shuffled rows in disjoint parts whose sizes differ by at most one."""
    if workers > len(labels):
        raise DataError(
            f"partition 'iid': {workers} workers but only {len(labels)} rows; use at most {len(labels)} workers, "
            f'or partition = "shared"'
        )
    return np.array_split(generator("partition/iid", seed).permutation(len(labels)), workers)


@PARTITIONS.register("shards")
def by_shards(
    labels: Rows, workers: int, seed: int, per_worker: int = 2, shards: int | None = None, size: int | None = None
) -> list[Rows]:
    """Rows sorted by label and cut; `per_worker` random shards for each worker: the paper's non-i.i.d. setting.

    By default `workers × per_worker` shards cover all rows, with sizes that differ by at most one. `shards` alone
    cuts all rows into that many. With a `size`, `shards × size` random rows are used (by default as many shards as
    there can be). The paper has shards = 250, size = 200. A shard can straddle two labels.
    """
    count = _shard_count(len(labels), workers * _positive(per_worker, "per_worker"), shards, size)
    if workers * per_worker > count:
        raise DataError(
            f"partition 'shards': {workers} workers with {per_worker} shards each need {workers * per_worker} "
            f"shards, but there are {count}; raise shards (or lower size), or lower workers or per_worker"
        )
    random = generator("partition/shards", seed)
    rows = random.permutation(len(labels))[: None if size is None else count * size]
    pieces = np.array_split(rows[np.argsort(labels[rows], kind="stable")], count)
    dealt = random.permutation(count)[: workers * per_worker].reshape(workers, per_worker)
    return [np.concatenate([pieces[piece] for piece in hand]) for hand in dealt]


@PARTITIONS.register("dirichlet")
def dirichlet(labels: Rows, workers: int, seed: int, alpha: float, min_size: int = 10) -> list[Rows]:
    """Each label is spread over the workers in proportions from Dirichlet(α, …, α); small α is more uneven.

    As in Yurochkin et al. 2019 and Hsu, Qi, Brown 2019; drawn again until every worker has `min_size` rows.
    """
    if not 0 < alpha < np.inf:
        raise ConfigError(f"partition 'dirichlet': alpha must be above 0, got {alpha}; try alpha = 0.5")
    if workers * _positive(min_size, "min_size") > len(labels):
        raise DataError(
            f"partition 'dirichlet': {workers} workers with at least {min_size} rows each need "
            f"{workers * min_size} rows, but there are {len(labels)}; lower workers or min_size"
        )
    random = generator("partition/dirichlet", seed)
    totals = np.unique(labels, return_counts=True)[1]
    for _ in range(DIRICHLET_TRIES):
        cuts = _cuts(random.dirichlet(np.full(workers, alpha), len(totals)), totals)
        if np.diff(cuts, axis=1).sum(0).min() >= min_size:
            return _spread(labels, cuts, random)
    raise DataError(
        f"partition 'dirichlet': in {DIRICHLET_TRIES} tries with alpha = {alpha} some of the {workers} workers "
        f"always had fewer than {min_size} of the {len(labels)} rows; raise alpha, or lower workers or min_size"
    )


@PARTITIONS.register("groups")
def by_groups(labels: Rows, workers: int, seed: int, groups: Rows | None, per_worker: int | None = None) -> list[Rows]:
    """Natural groups (the writers of MNIST) stay whole.

    By default all groups are dealt in random order, each to the worker with the fewest rows so far; no two
    workers then differ by more rows than the largest group has. With `per_worker`, each gets that many.
    """
    if groups is None:
        raise DataError(
            "partition 'groups': the data has no groups; use a source that has them "
            '(data = {kind = "mnist", writers = true}), or partition = "shards" or "dirichlet"'
        )
    _, group_of_row, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    needed = workers * _positive(1 if per_worker is None else per_worker, "per_worker")
    if needed > len(sizes):
        raise DataError(
            f"partition 'groups': {workers} workers need {needed} groups, but the data has {len(sizes)}; "
            f"lower workers{'' if per_worker is None else ' or per_worker'}"
        )
    order = generator("partition/groups", seed).permutation(len(sizes))
    if per_worker is None:
        owner = _deal_evenly(order, sizes, workers)
    else:
        owner = np.full(len(order), -1)  # −1: groups that remain
        owner[order[:needed]] = np.repeat(np.arange(workers), per_worker)
    owners = owner[group_of_row]
    by_owner = np.argsort(owners, kind="stable")
    bounds = np.searchsorted(owners[by_owner], np.arange(workers + 1))
    return [by_owner[start:stop] for start, stop in pairwise(bounds)]


@PARTITIONS.register("sites")
def by_sites(labels: Rows, workers: int, groups: Rows | None, names: list[str] | None = None) -> list[Rows]:
    """One natural group for each worker, in their order: worker 0 is the first of the `sites` of the data.

    `names` are for data that a function of yours loads at each site; the simulator calls it once for each name.
    """
    if groups is None:
        raise DataError(
            "partition 'sites': the data does not say which site a row is from; use a source that does "
            '(data = {kind = "csv", path = "{site}.csv", …}), or partition = "iid" or "dirichlet"'
        )
    found, site_of_row = np.unique(groups, return_inverse=True)
    if len(found) != workers:
        raise DataError(
            f"partition 'sites': the data has {len(found)} sites, but there are {workers} workers; "
            f'set workers = {len(found)} in [topology], or use partition = "groups"'
        )
    return [np.flatnonzero(site_of_row == i) for i in range(workers)]


def label_counts(labels: Rows, parts: list[Rows], classes: int) -> Rows:
    """How many rows of each label each worker has."""
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])  # [m, classes]


def check_parts(parts: Sequence[npt.ArrayLike], rows: int, workers: int, where: str) -> list[Rows]:
    """The parts as int64 arrays; raises unless each worker has one, not empty, of valid row numbers."""
    if not isinstance(parts, list | tuple) or len(parts) != workers:
        came = f"{len(parts)} parts" if isinstance(parts, list | tuple) else type(parts).__name__
        raise DataError(f"{where}: made {came} for {workers} workers; return a list with one part for each worker")
    return [_check_part(np.asarray(p), rows, f"{where}: worker {i} of {workers}") for i, p in enumerate(parts)]


def _check_part(part: npt.NDArray[Any], rows: int, where: str) -> Rows:
    if part.size == 0:
        raise DataError(f"{where} has no rows; lower workers or use more data")
    if part.ndim != 1 or not np.issubdtype(part.dtype, np.integer):
        raise DataError(
            f"{where} has a {part.dtype} array of shape {part.shape}, expected one axis of row numbers; "
            f"return an int64 array for each worker"
        )
    if part.min() < 0 or part.max() >= rows:
        raise DataError(f"{where} has rows {part.min()} to {part.max()}, expected 0 to {rows - 1}; fix the partition")
    return part.astype(np.int64, copy=False)


def _positive(value: int, name: str) -> int:
    if value < 1:
        raise ConfigError(f"partition: {name} must be at least 1, got {value}; try {name} = 1")
    return value


def _shard_count(rows: int, needed: int, shards: int | None, size: int | None) -> int:
    if size is None:
        count, each = needed if shards is None else _positive(shards, "shards"), 1
    else:
        each = _positive(size, "size")
        count = max(rows // each, 1) if shards is None else _positive(shards, "shards")
    if count * each > rows:
        raise DataError(
            f"partition 'shards': {count} shards of {each} or more rows need {count * each} rows, but there are "
            f"{rows}; lower {'workers or per_worker' if shards is size is None else 'shards or size'}"
        )
    return count


def _cuts(shares: npt.NDArray[np.float64], totals: Rows) -> Rows:
    """Where to cut the rows of each label, from 0 to their number, so that worker i has the share i."""
    inner = np.floor(np.cumsum(shares, axis=1)[:, :-1] * totals[:, None]).astype(np.int64)
    inner = np.minimum(inner, totals[:, None])
    return np.hstack([np.zeros_like(totals)[:, None], inner, totals[:, None]])  # [labels, m + 1]


def _spread(labels: Rows, cuts: Rows, random: np.random.Generator) -> list[Rows]:
    """Give each worker, of each label's shuffled rows, those between its two cuts."""
    shuffled = random.permutation(len(labels))
    by_label = np.split(shuffled[np.argsort(labels[shuffled], kind="stable")], np.cumsum(cuts[:, -1])[:-1])
    pieces = [np.split(rows, cut[1:-1]) for rows, cut in zip(by_label, cuts, strict=True)]
    return [np.concatenate(part) for part in zip(*pieces, strict=True)]


def _deal_evenly(order: Rows, sizes: Rows, workers: int) -> Rows:
    """The worker of each group: in this order, each goes to the worker with the fewest rows so far."""
    owner, load = np.empty(len(order), np.int64), np.zeros(workers, np.int64)
    for group in order:
        owner[group] = load.argmin()
        load[owner[group]] += sizes[group]
    return owner
