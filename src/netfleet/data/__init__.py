"""Data: sources (labelled rows) and partitions (which worker has which rows)."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from netfleet import randomness
from netfleet.data.dataset import Dataset
from netfleet.data.partitions import PARTITIONS, check_parts, label_counts
from netfleet.data.sources import SOURCES
from netfleet.errors import ConfigError
from netfleet.registry import Spec, split

__all__ = ["PARTITIONS", "SOURCES", "Dataset", "hold_out", "label_counts", "load_dataset", "make_partition"]


def load_dataset(spec: Spec) -> Dataset:
    """The data that a specification names.

    >>> load_dataset("digits").train_x.shape
    torch.Size([1437, 1, 8, 8])
    """
    return SOURCES.build(spec)


def make_partition(spec: Spec, dataset: Dataset, workers: int, seed: int) -> list[npt.NDArray[np.int64]]:
    """The training rows of every worker, as a specification asks.

    >>> parts = make_partition("iid", load_dataset("digits"), workers=5, seed=0)
    >>> [len(part) for part in parts]
    [288, 288, 287, 287, 287]
    """
    if workers < 1:
        raise ConfigError(f"partition: workers must be at least 1, got {workers}; set workers = 1 or more")
    groups = None if dataset.groups is None else dataset.groups.numpy()
    labels = dataset.train_y.numpy()
    made = PARTITIONS.build(spec, labels=labels, workers=workers, seed=seed, groups=groups)
    return check_parts(made, len(labels), workers, f"partition {split(spec, PARTITIONS.what)[0]!r}")


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
    held = randomness.uniform("validation", seed, np.arange(len(dataset.train_y))) < share
    kept = [part[~held[part]] for part in parts]
    bare = [i for i, part in enumerate(kept) if len(part) == 0]
    if bare or not held.any():
        what = f"takes all rows of worker {bare[0]}" if bare else "takes no row at all"
        raise ConfigError(f"validation = {share:g} {what}; choose another share, or give workers more data")
    return replace(dataset, test_x=dataset.train_x[held], test_y=dataset.train_y[held]), kept
