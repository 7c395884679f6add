"""One file per method; importing this package registers them all."""

from netfleet.algorithms.base import ALGORITHMS, Algorithm, Mix, State
from netfleet.algorithms.dsgd import DSGD
from netfleet.algorithms.gt_sgd import GTSGD
from netfleet.algorithms.ld_sgd import LDSGD
from netfleet.algorithms.net_fleet import NetFleet

__all__ = ["ALGORITHMS", "DSGD", "GTSGD", "LDSGD", "Algorithm", "Mix", "NetFleet", "State"]
