"""Makes patients.csv, toy data for the notebook: patients of five hospitals that differ in size, age and illness."""

from pathlib import Path

import numpy as np
import pandas as pd

SIZES = {"north": 250, "east": 150, "south": 100, "west": 70, "island": 30}


def main() -> None:
    dice = np.random.default_rng(0)
    hospital = np.repeat(list(SIZES), list(SIZES.values()))
    older = np.repeat([0.0, 0.4, -0.4, 0.8, -0.8], list(SIZES.values()))
    age, pressure, marker, dose = dice.normal(size=(4, len(hospital)))
    age = age + older
    chance = 1 / (1 + np.exp(-(1.2 * age + 0.8 * pressure - 1.5 * marker + 0.5 * older)))
    frame = pd.DataFrame(
        {
            "hospital": hospital,
            "age": (55 + 10 * age).round(0),
            "pressure": (130 + 15 * pressure).round(0),
            "marker": (4 + marker).round(2),
            "dose": (2 + 0.5 * dose).round(1),
            "ill": (dice.random(len(hospital)) < chance).astype(int),
        }
    )
    frame.to_csv(Path(__file__).with_name("patients.csv"), index=False)


if __name__ == "__main__":
    main()
