"""netfleet: fully decentralized federated learning on PyTorch.

    >>> import netfleet as nf
    >>> history = nf.simulate("net-fleet", topology="ring", workers=8, problem="quadratics", rounds=20)
    >>> history.last["round"]
    20

Names are loaded when first used, so that `import netfleet` (and the command line's --help) need no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from netfleet.algorithms import ALGORITHMS, DSGD, GTSGD, LDSGD, Algorithm, Mix, NetFleet
    from netfleet.data import Dataset, load_dataset, make_partition
    from netfleet.errors import ConfigError, DataError, DivergedError, NetfleetError, TopologyError
    from netfleet.problems import ModuleProblem, Problem
    from netfleet.runs.config import EngineConfig, Evaluation, Experiment, load_experiment
    from netfleet.runs.history import History
    from netfleet.runs.run import run_experiment, simulate
    from netfleet.topology.topology import Topology, make_topology

_HOME = {
    "algorithms": ("ALGORITHMS", "Algorithm", "DSGD", "GTSGD", "LDSGD", "Mix", "NetFleet"),
    "runs.config": ("EngineConfig", "Evaluation", "Experiment", "load_experiment"),
    "data": ("Dataset", "load_dataset", "make_partition"),
    "errors": ("ConfigError", "DataError", "DivergedError", "NetfleetError", "TopologyError"),
    "runs.run": ("run_experiment", "simulate"),
    "runs.history": ("History",),
    "problems": ("ModuleProblem", "Problem"),
    "topology": ("Topology", "make_topology"),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}

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


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'netfleet' has no attribute {name!r}")
    return getattr(importlib.import_module(f"netfleet.{_MODULE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
