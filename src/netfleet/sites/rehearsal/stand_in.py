"""Rows in the place of the sites' own, which nobody else has: made up, or from a file, in the plan's columns.

Made-up rows have a relation to the target that is the same at all sites, and an assumed strength: the best model would
tell two classes apart with an AUROC of `AUROC`. The target is drawn first, then the inputs around the target's centre.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from netfleet import randomness
from netfleet.data.columns import Category, Feature, Number
from netfleet.data.csv_files import Part, dataset_of, declare, read_part
from netfleet.data.dataset import Dataset
from netfleet.data.declaration import Declaration
from netfleet.data.sites import PLACE
from netfleet.data.splits import split_share, stable_numbers
from netfleet.data.statistics import Moments
from netfleet.errors import ConfigError
from netfleet.registry import Spec, split
from netfleet.runs.config import Experiment
from netfleet.runs.contract import TensorContract

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
AUROC = 0.85
#: What a plan without declared columns must say.
NEEDED = "a [contract] with inputs.shape and targets.range"
#: The share of test rows where the plan's data does not say it.
_TEST = 0.2
#: The share of events among made-up survival times.
_EVENTS = 0.7


@dataclass(frozen=True)
class Rows:
    """How many rows a site trains on, and of which classes, if it says so."""

    name: str
    count: int
    classes: tuple[int, ...] = ()


def can_stand_in(experiment: Experiment) -> bool:
    """Whether the experiment says enough of its data: columns of CSV files, or a contract with shapes and a range."""
    agreed = experiment.contract
    if _is_csv(experiment.problem["data"]):
        return True
    inputs, targets = (None, None) if agreed is None else (agreed.inputs, agreed.targets)
    return inputs is not None and inputs.shape is not None and targets is not None and targets.range is not None


def made_up(experiment: Experiment, sites: Sequence[Rows], seed: int) -> Dataset:
    """Rows of every site; a site's group is its number."""
    if _is_csv(experiment.problem["data"]):
        declared = _declared(experiment)
        return dataset_of(declared, [_part(declared, site, i, seed) for i, site in enumerate(sites)])
    agreed = experiment.contract
    assert agreed is not None
    assert agreed.inputs is not None
    assert agreed.targets is not None
    parts = [_contracted(agreed.inputs, agreed.targets, site, i, seed) for i, site in enumerate(sites)]
    inputs, targets, train, test = (torch.cat([part[k] for part in parts]) for k in range(4))
    groups = torch.from_numpy(np.repeat(np.arange(len(sites)), [len(part[1]) for part in parts]))
    starts = groups.new_tensor(np.cumsum([0, *(len(part[1]) for part in parts[:-1])]))
    train += starts.repeat_interleave(torch.tensor([len(part[2]) for part in parts]))
    test += starts.repeat_interleave(torch.tensor([len(part[3]) for part in parts]))
    rows = inputs[train], targets[train], inputs[test], targets[test], _classes(agreed.targets)
    return Dataset("made-up rows", *rows, groups[train], groups[test], tuple(site.name for site in sites))


def dealt_out(experiment: Experiment, file: Path, sites: Sequence[Rows], seed: int) -> Dataset:
    """The rows of a file in the plan's columns, in random order, to each site as many as it has or its share."""
    if not _is_csv(experiment.problem["data"]):
        raise ConfigError("--data is a CSV file in the plan's columns, and the plan's data is not of kind \"csv\"")
    declared = _declared(experiment)
    whole = read_part(declared, file)
    order = randomness.generator("rehearsal", seed).permutation(len(whole.y))
    wanted = np.cumsum([_all_rows(declared.test, site.count) for site in sites])
    ends = wanted if wanted[-1] <= len(order) else wanted * len(order) // wanted[-1]
    if np.diff(ends, prepend=0).min() < 2:
        raise ConfigError(f"{file} has {len(order)} rows, too few for {len(sites)} sites; give a larger file")
    parts = []
    for site, rows in zip(sites, np.split(order, ends)[: len(sites)], strict=True):
        y, values = whole.y[torch.from_numpy(rows)], {name: column[rows] for name, column in whole.values.items()}
        parts.append(Part(site.name, values, y, *_split(declared.test, site.name, _strata(y, declared.goal.classes))))
    return dataset_of(declared, parts)


def _is_csv(spec: Spec) -> bool:
    return split(spec, "data source")[0] == "csv"


def _declared(experiment: Experiment) -> Declaration:
    """The plan's columns, in a file for each site."""
    return replace(declare(experiment.problem["data"]), path=f"rows of {PLACE}", group=None, sites=None)


def _all_rows(test: float, train: int) -> int:
    """Rows of a site of which so many are for training."""
    return max(round(train / (1 - test)), 2)


def _split(share: float, name: str, strata: Ints) -> tuple[Ints, Ints]:
    return split_share(share, stable_numbers(name, len(strata)), strata)


def _strata(y: Tensor, classes: int | None) -> Ints:
    """By what training and test rows are balanced: the class, or whether an event happened."""
    if classes is not None:
        return y.numpy()
    return np.zeros(len(y), np.int64) if y.dim() == 1 else y[:, 1].numpy().astype(np.int64)


# ---- made-up rows ----


def _part(declared: Declaration, site: Rows, number: int, seed: int) -> Part:
    """A site's rows, as they would be read from its file."""
    draw, count, classes = _generator(seed, number), _all_rows(declared.test, site.count), declared.goal.classes
    latent, y = _latent(draw, count, len(declared.inputs), classes, site, seed)
    moments = declared.constants(declared.statistics) if isinstance(declared.statistics, Mapping) else {}
    columns = declared.inputs.items()
    values = {name: _values(feature, latent[:, k], moments.get(name)) for k, (name, feature) in enumerate(columns)}
    targets = torch.from_numpy(y)
    if declared.event is not None:
        targets = torch.stack([torch.exp(-targets), torch.from_numpy(draw.random(count) < _EVENTS).double()], dim=1)
    return Part(site.name, values, targets, *_split(declared.test, site.name, _strata(targets, classes)))


def _contracted(
    inputs: TensorContract, targets: TensorContract, site: Rows, number: int, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A site's inputs, targets, and the numbers of its training and test rows."""
    assert inputs.shape is not None
    draw, count, classes = _generator(seed, number), _all_rows(_TEST, site.count), _classes(targets)
    latent, y = _latent(draw, count, math.prod(inputs.shape), classes, site, seed)
    x = torch.from_numpy(_in_range(latent, inputs.range)).to(getattr(torch, inputs.dtype or "float32"))
    target = torch.from_numpy(y if classes is not None else _in_range(y.astype(np.float64), targets.range))
    train, test = _split(_TEST, site.name, _strata(target, classes))
    return x.reshape(count, *inputs.shape), target, torch.from_numpy(train), torch.from_numpy(test)


def _classes(targets: TensorContract) -> int | None:
    """How many classes there are, if the targets are whole numbers from 0 on."""
    assert targets.range is not None
    low, high = targets.range
    whole = targets.dtype in (None, "int64") and low == 0 and float(high).is_integer()
    return int(high) + 1 if whole else None


def _generator(seed: int, number: int) -> np.random.Generator:
    return randomness.generator("rehearsal", seed, number)


def _latent(
    draw: np.random.Generator, count: int, inputs: int, classes: int | None, site: Rows, seed: int
) -> tuple[Floats, npt.NDArray[np.float64] | Ints]:
    """A number for each input, with a deviation of 1 around its centre, and the target."""
    shared = _generator(seed, 1 << 20)  # no site has this number
    apart = math.sqrt(2) * NormalDist().inv_cdf(AUROC)  # of the centres of two classes
    if classes is None:
        direction, numbers = shared.normal(size=inputs), draw.normal(size=count)
        centres = numbers[:, None] * direction * (apart / 2 / np.linalg.norm(direction))
        return centres + draw.normal(size=(count, inputs)), numbers
    told = site.classes or (1,) * classes
    if len(told) != classes:
        raise ConfigError(f"{site.name} says how many rows it has of {len(told)} classes, and the plan has {classes}")
    labels = draw.choice(classes, size=count, p=np.asarray(told) / sum(told))
    directions = shared.normal(size=(classes, inputs))
    gaps = np.linalg.norm(directions[:, None] - directions[None], axis=-1)
    centres = directions[labels] * (apart / gaps[gaps > 0].mean())
    return centres + draw.normal(size=(count, inputs)), labels


def _values(feature: Feature, latent: Floats, moments: Moments | None) -> Floats:
    """A column as it is read, from numbers around 0."""
    if isinstance(feature, Category):
        edges = [NormalDist().inv_cdf(k / len(feature.values)) for k in range(1, len(feature.values))]
        return np.searchsorted(edges, latent).astype(np.float64)
    if not isinstance(feature, Number):
        return (latent > 0).astype(np.float64)
    if moments is None and isinstance(feature.scale, Mapping):
        moments = Moments(float(feature.scale["mean"]), float(feature.scale["deviation"]))
    return _in_range(latent, feature.range) if moments is None else moments.mean + moments.deviation * latent


def _in_range(latent: Floats, allowed: Sequence[float] | None) -> Floats:
    if allowed is None:
        return latent
    low, high = allowed
    return np.clip((low + high) / 2 + (high - low) / 6 * latent, low, high)
