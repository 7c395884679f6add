"""Data: sources (labelled rows) and partitions (which worker has which rows)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from netfleet import randomness
from netfleet.data import csv_files as _csv_files  # noqa: F401 (registers its source)
from netfleet.data import plays as _plays  # noqa: F401
from netfleet.data.arrays import make_dataset
from netfleet.data.dataset import Dataset
from netfleet.data.own_sites import load_sites, named_sites
from netfleet.data.partitions import PARTITIONS, check_parts, label_counts
from netfleet.data.sources import SOURCES
from netfleet.data.tensors import describe, take
from netfleet.errors import ConfigError, DataError
from netfleet.registry import Spec, shown, split

__all__ = [
    "PARTITIONS",
    "SOURCES",
    "Dataset",
    "check_parts",
    "hold_out",
    "label_counts",
    "load_dataset",
    "make_dataset",
    "make_partition",
    "own_tests",
]


def load_dataset(spec: Spec, partition: object = None) -> Dataset:
    """The data that a specification names.

    Where each site has its own, the simulator loads that of all sites whose names the partition lists.

    >>> load_dataset("digits").train_x.shape
    torch.Size([1437, 1, 8, 8])
    """
    if not isinstance(spec, str | Mapping):
        raise ConfigError(
            f"data must be a name, a table or a Dataset, got {shown(spec)}; make one with nf.make_dataset"
        )
    return load_sites(split(spec, SOURCES.what)[0], lambda: SOURCES.build(spec), named_sites(partition))


def make_partition(
    spec: Spec | Sequence[npt.NDArray[np.int64]], dataset: Dataset, workers: int, seed: int
) -> list[npt.NDArray[np.int64]]:
    """The training rows of every worker, as a specification asks, or as they are given.

    >>> parts = make_partition("iid", load_dataset("digits"), workers=5, seed=0)
    >>> [len(part) for part in parts]
    [288, 288, 287, 287, 287]
    """
    if workers < 1:
        raise ConfigError(f"partition: workers must be at least 1, got {workers}; set workers = 1 or more")
    if dataset.site is not None:  # a site that has loaded its own rows trains on all of them
        return [np.arange(dataset.rows)] * workers
    if not isinstance(spec, str | Mapping):
        return check_parts(spec, dataset.rows, workers, "partition")
    groups = None if dataset.groups is None else dataset.groups.numpy()
    kind = split(spec, PARTITIONS.what)[0]
    labels = _labels(dataset, kind)
    made = PARTITIONS.build(spec, labels=labels, workers=workers, seed=seed, groups=groups)
    return check_parts(made, dataset.rows, workers, f"partition {kind!r}")


def _labels(dataset: Dataset, partition: str) -> npt.NDArray[np.int64]:
    """The label of each row; where the targets are no labels, zeros for partitions that do not look at them."""
    if isinstance(dataset.train_y, Tensor) and dataset.train_y.dim() == 1 and partition != "dirichlet":
        return dataset.train_y.numpy()  # shards sort by it, whatever it is
    if dataset.classes is not None and isinstance(dataset.train_y, Tensor) and dataset.train_y.dim() == 1:
        return dataset.train_y.numpy()
    if partition in ("dirichlet", "shards"):
        raise DataError(
            f"partition {partition!r} needs one label for each row, but the targets of {dataset.name} are "
            f'{describe(dataset.train_y)}; use partition = "iid", "shared" or "groups"'
        )
    return np.zeros(dataset.rows, np.int64)


def own_tests(dataset: Dataset, parts: Sequence[npt.NDArray[np.int64]]) -> list[npt.NDArray[np.int64]] | None:
    """Each worker's own test rows, those of its groups; None where groups are shared, unknown or without test rows."""
    if dataset.site is not None:
        return [np.arange(dataset.tests)] * len(parts)
    if dataset.groups is None or dataset.test_groups is None:
        return None
    groups, tests = dataset.groups.numpy(), dataset.test_groups.numpy()
    owned = [np.unique(groups[part]) for part in parts]
    found = [np.flatnonzero(np.isin(tests, own)) for own in owned]
    whole = len(np.unique(np.concatenate(owned))) == sum(map(len, owned))
    return found if whole and all(len(rows) for rows in found) else None


def hold_out(
    dataset: Dataset, parts: list[npt.NDArray[np.int64]], share: float, seed: int
) -> tuple[Dataset, list[npt.NDArray[np.int64]]]:
    """Take about that share of the training rows from the workers: they take the place of the test rows.

    So choices (step sizes, methods) are made without the test rows. With a share of 0 all stays as it is.
    """
    if not 0 <= share < 1:
        raise ConfigError(f"validation must be a share of the training rows from 0 to below 1, got {share:g}")
    if share == 0:
        return dataset, parts
    held = randomness.uniform("validation", seed, np.arange(dataset.rows)) < share
    kept = [part[~held[part]] for part in parts]
    bare = [i for i, part in enumerate(kept) if len(part) == 0]
    if bare or not held.any():
        what = f"takes all rows of worker {bare[0]}" if bare else "takes no row at all"
        raise ConfigError(f"validation = {share:g} {what}; choose another share, or give workers more data")
    rows = torch.from_numpy(np.flatnonzero(held))
    groups = None if dataset.groups is None else dataset.groups[rows]
    return replace(
        dataset, test_x=take(dataset.train_x, rows), test_y=take(dataset.train_y, rows), test_groups=groups
    ), kept
