"""Makes CSV files for a trial of own_data.toml: patients of some hospitals, of which each sees one illness more often.

python toy_data.py patients hospital-a hospital-b hospital-c hospital-d
"""

from __future__ import annotations

import csv
import random
import sys
from pathlib import Path

#: Mean age, temperature and C-reactive protein, how many smoke, and how they cough.
ILLNESSES = {
    "healthy": (40, 36.7, 3, 0.2, ("none", "none", "dry")),
    "flu": (45, 38.8, 20, 0.2, ("dry", "dry", "none")),
    "pneumonia": (63, 38.6, 110, 0.5, ("wet", "wet", "dry")),
}


def make_patient(draw: random.Random, number: int, illness: str, measures_crp: bool) -> dict[str, str]:
    age, temperature, crp, smokers, coughs = ILLNESSES[illness]
    measured = measures_crp and draw.random() < 0.8
    return {
        "name": f"patient {number}",
        "age": str(max(round(draw.gauss(age, 12)), 18)),
        "temperature": f"{draw.gauss(temperature, 0.5):.1f}",
        "crp": f"{draw.gauss(crp, crp / 3):.0f}" if measured else "?",
        "smokes": "yes" if draw.random() < smokers else "no",
        "cough": draw.choice(coughs),
        "diagnosis": illness,
    }


def make_files(folder: Path, sites: list[str], rows: int = 400) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    for place, site in enumerate(sites):
        often = list(ILLNESSES)[place % len(ILLNESSES)]
        weights = [0.7 if illness == often else 0.15 for illness in ILLNESSES]
        illnesses = draw.choices(list(ILLNESSES), weights, k=rows)
        table = [make_patient(draw, i, illness, place != 1) for i, illness in enumerate(illnesses)]
        with open(folder / f"{site}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(table[0]))
            writer.writeheader()
            writer.writerows(table)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python toy_data.py FOLDER SITE…")
    make_files(Path(sys.argv[1]), sys.argv[2:])
