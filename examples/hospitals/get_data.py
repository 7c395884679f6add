"""Puts the hospitals' files into the folder heart: python get_data.py [--made-up]

Files that are there, or in the folder heart of NETFLEET_DATA, stay as they are; others come from UCI. With --made-up
they are patients drawn by chance, as many and with the same columns: for a trial without the data.
"""

from __future__ import annotations

import csv
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from netfleet.data.catalog import Collection, File
from netfleet.data.files import locate
from netfleet.data.sites import find
from netfleet.errors import DataError

SUMS = {
    "cleveland": "2d91a8ff69cfd9616aa47b59d6f843db",
    "hungarian": "22e96bee155b5973568101c93b3705f6",
    "switzerland": "9a87f7577310b3917730d06ba9349e20",
    "va": "4249d03ca7711e84f4444768c9426170",
}
UCI = Collection(
    "heart disease",
    "heart",
    "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/",
    tuple(File(f"processed.{site}.data", (), md5) for site, md5 in SUMS.items()),
    near=(".", "heart"),
)
COLUMNS = ["age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"]
COLUMNS += ["slope", "ca", "thal", "num"]
#: Of the made-up patients: how many a hospital has, how many of them are ill, and what it seldom measures.
HOSPITALS: dict[str, tuple[int, float, tuple[str, ...]]] = {
    "cleveland": (303, 0.46, ()),
    "hungarian": (294, 0.36, ("slope", "ca", "thal")),
    "switzerland": (123, 0.93, ("chol", "fbs", "ca")),
    "va": (200, 0.75, ("slope", "ca", "thal")),
}


def published(site: str) -> list[list[str]]:
    path = locate(UCI)[f"processed.{site}.data"]
    return [line.split(",") for line in path.read_text(encoding="ascii").split()]


def made_up(site: str) -> Iterator[list[str]]:
    rows, share, seldom = HOSPITALS[site]
    draw = random.Random(f"patients of {site}")
    for _ in range(rows):
        patient = make_patient(draw, draw.random() < share)
        gone = [name for name in seldom if draw.random() < 0.9]
        yield [patient[name] if name not in gone else "?" for name in COLUMNS]


def make_patient(draw: random.Random, ill: bool) -> dict[str, str]:
    def yes(healthy: float, diseased: float) -> int:
        return int(draw.random() < (diseased if ill else healthy))

    found = {
        "age": min(max(round(draw.gauss(56 if ill else 51, 9)), 28), 80),
        "sex": yes(0.65, 0.9),
        "cp": draw.choices((1, 2, 3, 4), (4, 5, 15, 76) if ill else (6, 34, 34, 26))[0],
        "trestbps": round(draw.gauss(134 if ill else 130, 18)),
        "chol": round(draw.gauss(252 if ill else 240, 55)),
        "fbs": yes(0.1, 0.2),
        "restecg": draw.choices((0, 1, 2), (56, 22, 22))[0],
        "thalach": round(draw.gauss(128 if ill else 149, 23)),
        "exang": yes(0.13, 0.6),
        "oldpeak": round(max(draw.gauss(1.3 if ill else 0.4, 1), 0), 1),
        "slope": draw.choices((1, 2, 3), (20, 70, 10) if ill else (58, 36, 6))[0],
        "ca": draw.choices((0, 1, 2, 3), (35, 31, 21, 13) if ill else (80, 14, 4, 2))[0],
        "thal": draw.choices((3, 6, 7), (26, 9, 65) if ill else (78, 4, 18))[0],
        "num": draw.choice((1, 2, 3, 4)) if ill else 0,
    }
    return {name: str(value) for name, value in found.items()}


def write(site: str, rows: list[list[str]], folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    with open(folder / f"{site}.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])


def is_there(site: str) -> bool:
    """Whether netfleet finds the hospital's file, here or in NETFLEET_DATA."""
    try:
        return find(f"heart/{site}.csv").is_file()
    except DataError:
        return False


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--made-up"]):
        sys.exit("usage: python get_data.py [--made-up]")
    for name in HOSPITALS:
        if sys.argv[1:] and not Path("heart", f"{name}.csv").exists():
            write(name, list(made_up(name)), Path("heart"))
        elif not is_there(name):
            write(name, published(name), Path("heart"))
