"""The rows of a site. All sites have the same copy of this file, which experiment.toml names: "own_data:load"."""

import os
from pathlib import Path

import netfleet as nf
import numpy as np


def load() -> nf.Dataset:
    site = os.environ["NETFLEET_SITE"]  # its name in nodes.toml; the simulator sets one after the other
    path = Path("data", f"{site}.npz")
    if not path.is_file():
        raise nf.ConfigError(f"no rows of {site} in {path.absolute()}; put them there, or change {__file__}")
    rows = np.load(path)  # the same rows every time, with the same columns on the same scale at all sites
    return nf.make_dataset(rows["x"], rows["y"], classes=2, site=site)
