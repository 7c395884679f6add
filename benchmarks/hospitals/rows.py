"""The rows of four hospitals as FLamby has them, and as examples/hospitals declares them."""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.model_selection import StratifiedKFold, train_test_split

import netfleet as nf
from netfleet.data.csv_files import Part, dataset_of, declare, read_part
from netfleet.data.sites import find
from netfleet.runs.config import read_toml

SITES = ("cleveland", "hungarian", "switzerland", "va")
FOLDS = 5
EXAMPLE = Path(__file__).parents[2] / "examples" / "hospitals" / "hospitals.toml"
Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
Scale = Literal["all", "own", "own, then all"]


def place(site: str) -> int:
    return SITES.index(site)


@dataclass(frozen=True)
class Rows740:
    """FLamby's rows of one hospital: those with a value in each of ten columns; their places in the file."""

    train: Rows
    test: Rows


def flamby_rows(site: str) -> Rows740:
    """The rows of FLamby's split (dataset.py of fed_heart_disease): 66 % for training, balanced by label, seed 43."""
    frame = flamby_columns(site).dropna()
    ill = (frame["num"] > 0).to_numpy()
    balanced = ill if np.bincount(ill, minlength=2).min() > 2 else None
    places = np.arange(len(frame))
    train, test = train_test_split(places, test_size=1 - 0.66, train_size=0.66, random_state=43, stratify=balanced)
    known = frame.index.to_numpy()
    return Rows740(np.sort(known[train]), np.sort(known[test]))


def flamby_columns(site: str) -> pd.DataFrame:
    """Without slope, vessels and thal, which FLamby leaves out because most hospitals seldom have them."""
    return pd.read_csv(find(f"heart/{site}.csv"), na_values="?").drop(columns=["slope", "ca", "thal"])


def flamby(scale: Scale) -> nf.Dataset:
    """FLamby's 740 rows with its 13 inputs, scaled by the training rows of all hospitals or of the own one.

    "own, then all" trains with the one and tests with the other: how FLamby's federated methods are scored.
    """
    frame = pd.concat([flamby_columns(site).assign(site=site) for site in SITES], keys=SITES).dropna()
    split = {site: flamby_rows(site) for site in SITES}
    held = np.array([row in split[site].test for site, row in frame.index])
    y, site = (frame["num"] > 0).astype(int).to_numpy(), frame["site"].to_numpy()
    x = pd.get_dummies(frame.drop(columns=["num", "site"]), columns=["cp", "restecg"], drop_first=True, dtype=float)
    everywhere = scaled(x.to_numpy(), ~held, [np.ones(len(x), bool)])
    own = scaled(x.to_numpy(), ~held, [site == name for name in SITES])
    train_x, test_x = everywhere if scale == "all" else own, own if scale == "own" else everywhere
    return nf.make_dataset(
        train_x[~held].astype(np.float32),
        y[~held],
        groups=numbers(site[~held]),
        test=(test_x[held].astype(np.float32), y[held], numbers(site[held])),
        classes=2,
    )


def numbers(sites: npt.NDArray[Any]) -> Rows:
    return np.array([SITES.index(name) for name in sites])


def scaled(x: Floats, train: npt.NDArray[np.bool_], groups: Sequence[npt.NDArray[np.bool_]]) -> Floats:
    """By mean and deviation of the training rows of each group."""
    found = np.empty_like(x)
    for group in groups:
        mean, deviation = x[group & train].mean(0), x[group & train].std(0, ddof=1)
        found[group] = (x[group] - mean) / (deviation + 1e-9)
    return found


def all_rows(split: str) -> nf.Dataset:
    """All 920 rows and all columns as examples/hospitals declares them.

    The test rows are FLamby's ("flamby"), or a fold of five that share out all rows ("0" … "4"). "0/va/40" leaves va
    40 of its training rows.
    """
    which, _, few = split.partition("/")
    site, _, rows = few.partition("/")
    declared = declare(read_toml(EXAMPLE)["problem"]["data"])
    whole = [read_part(declared, find(f"heart/{name}.csv"))._replace(name=name) for name in SITES]
    parts = [with_test(part, which) for part in whole]
    parts = [with_few(part, int(rows)) if part.name == site else part for part in parts]
    return dataset_of(declared, parts)


def with_test(part: Part, which: str) -> Part:
    test = flamby_rows(part.name).test if which == "flamby" else fold(part, int(which))
    return part._replace(train=np.setdiff1d(np.arange(len(part.y)), test), test=np.sort(test))


def with_few(part: Part, rows: int) -> Part:
    return part._replace(train=np.sort(np.random.default_rng(0).permutation(part.train)[:rows]))


def fold(part: Part, number: int) -> Rows:
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(part.y, part.y)
    test: Rows = next(itertools.islice(folds, number, None))[1].astype(np.int64)
    return test


@functools.cache
def dataset(name: str) -> nf.Dataset:
    kind, _, which = name.partition("/")
    return flamby(which) if kind == "740" else all_rows(which)  # type: ignore[arg-type]
