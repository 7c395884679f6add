"""A site's own data: one CSV file per site, features first and the label last, which never leaves the site.

OWN_DATA says where the file is; {site} in it stands for the site's name, which netfleet puts into NETFLEET_SITE.
For a trial, make toy files:

    python own_data.py toy hospital-a hospital-b hospital-c hospital-d
    OWN_DATA='toy/{site}.csv' netfleet up plan
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import torch

from netfleet.data import Dataset
from netfleet.errors import DataError

FEATURES, CLASSES = 8, 3  # the same at all sites, and so is what a column means and how it is scaled


def load(held_out: int = 5) -> Dataset:
    """This site's rows, the same at every start, so that the site can resume. Every `held_out`-th is for testing."""
    path = Path(os.environ.get("OWN_DATA", "{site}.csv").format(site=os.environ["NETFLEET_SITE"]))
    try:
        rows = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2, dtype=np.float32)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read ({error}); OWN_DATA must name a CSV file with a line of titles"
        ) from None
    if rows.shape[1] != FEATURES + 1:
        raise DataError(f"{path} has {rows.shape[1]} columns, expected {FEATURES} features and a label")
    x, y = torch.from_numpy(rows[:, :-1]), torch.from_numpy(rows[:, -1]).long()
    test = torch.arange(len(y)) % held_out == 0
    return Dataset(path.stem, x[~test], y[~test], x[test], y[test], classes=CLASSES)


def make_toy(folder: Path, sites: list[str], rows: int = 400) -> None:
    """Files for a trial: three illnesses, of which every site sees one more often than the others."""
    folder.mkdir(parents=True, exist_ok=True)
    dice = np.random.default_rng(0)
    centres = dice.normal(scale=1.5, size=(CLASSES, FEATURES))
    for number, site in enumerate(sites):
        often = np.full(CLASSES, 0.15)
        often[number % CLASSES] = 1 - 0.15 * (CLASSES - 1)
        labels = dice.choice(CLASSES, size=rows, p=often)
        values = centres[labels] + dice.normal(size=(rows, FEATURES))
        titles = ",".join([*(f"value{i}" for i in range(FEATURES)), "illness"])
        table = np.column_stack([values, labels])
        np.savetxt(folder / f"{site}.csv", table, delimiter=",", fmt="%.4f", header=titles, comments="")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python own_data.py FOLDER SITE…")
    make_toy(Path(sys.argv[1]), sys.argv[2:])
