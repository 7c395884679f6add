"""One file per method; importing this package registers them all."""

import importlib
import pkgutil

from netfleet.algorithms.base import ALGORITHMS, Algorithm, Mix, State
from netfleet.algorithms.dsgd import DSGD
from netfleet.algorithms.gt_sgd import GTSGD
from netfleet.algorithms.ld_sgd import LDSGD
from netfleet.algorithms.net_fleet import NetFleet

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")

__all__ = ["ALGORITHMS", "DSGD", "GTSGD", "LDSGD", "Algorithm", "Mix", "NetFleet", "State"]
