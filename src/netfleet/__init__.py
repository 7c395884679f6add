"""netfleet: fully decentralized federated learning on PyTorch.

    >>> import netfleet as nf
    >>> history = nf.simulate("net-fleet", topology="ring", workers=8, problem="quadratics", rounds=20)
    >>> history.last["round"]
    20

`netfleet.algorithms` has the class of every method. Names are loaded when they are first used, so `import netfleet`
(and the command line's --help) need no torch.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from netfleet.algorithms import ALGORITHMS, DSGD, GTSGD, LDSGD, Algorithm, Mix, NetFleet
    from netfleet.data import Dataset, load_dataset, make_partition
    from netfleet.errors import ConfigError, DataError, DivergedError, NetfleetError, TopologyError
    from netfleet.problems import ModuleProblem, Problem
    from netfleet.runs.config import EngineConfig, Evaluation, Experiment, load_experiment
    from netfleet.runs.history import History
    from netfleet.runs.run import run_experiment, simulate
    from netfleet.topology.topology import Topology, make_topology

__all__ = [
    "ALGORITHMS",
    "DSGD",
    "GTSGD",
    "LDSGD",
    "Algorithm",
    "ConfigError",
    "DataError",
    "Dataset",
    "DivergedError",
    "EngineConfig",
    "Evaluation",
    "Experiment",
    "History",
    "Mix",
    "ModuleProblem",
    "NetFleet",
    "NetfleetError",
    "Problem",
    "Topology",
    "TopologyError",
    "load_dataset",
    "load_experiment",
    "make_partition",
    "make_topology",
    "run_experiment",
    "simulate",
]
_MODULES = ("errors", "topology.topology", "algorithms", "data", "problems", "runs.history", "runs.config", "runs.run")


def __getattr__(name: str) -> object:
    if name in __all__:
        for module in (importlib.import_module(f"netfleet.{module}") for module in _MODULES):
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module 'netfleet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
