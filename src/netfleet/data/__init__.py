"""Data: sources (labelled rows) and partitions (which worker has which rows)."""

import numpy as np
import numpy.typing as npt

from netfleet.data.dataset import Dataset
from netfleet.data.partitions import PARTITIONS, check_parts, label_counts
from netfleet.data.sources import SOURCES
from netfleet.errors import ConfigError
from netfleet.registry import Spec, split

__all__ = ["PARTITIONS", "SOURCES", "Dataset", "label_counts", "load_dataset", "make_partition"]


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
