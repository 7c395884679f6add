"""netfleet: fully decentralized federated learning on PyTorch.

    >>> import netfleet as nf
    >>> history = nf.simulate("net-fleet", topology="ring", workers=8, problem="quadratics", rounds=20)
    >>> history.last["round"]
    20

`simulate` trains once, `run` compares several methods over several seeds, and `load_runs` reads saved runs into a data
frame. `nf.algorithms` has the class of every method: `nf.algorithms.KGT(K=5, eta=0.1)`. Names are loaded when they are
first used, so `import netfleet` (and the command line's --help) need no torch.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from netfleet import algorithms
    from netfleet.algorithms import ALGORITHMS, Algorithm, Mix, NetFleet
    from netfleet.data import Dataset, load_dataset, make_dataset, make_partition
    from netfleet.errors import ConfigError, DataError, DivergedError, NetfleetError, TopologyError
    from netfleet.prediction.model import load_model
    from netfleet.problems import ModuleProblem, Problem, make_problem
    from netfleet.runs.api import load_runs, run, simulate
    from netfleet.runs.config import EngineConfig, Evaluation, Experiment, load_experiment
    from netfleet.runs.history import History
    from netfleet.runs.results import Results
    from netfleet.topology.topology import Topology, make_topology

__version__ = "0.1.0"  # the package's metadata and `netfleet --version` take it from here
__all__ = [
    "ALGORITHMS",
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
    "Results",
    "Topology",
    "TopologyError",
    "algorithms",
    "load_dataset",
    "load_experiment",
    "load_model",
    "load_runs",
    "make_dataset",
    "make_partition",
    "make_problem",
    "make_topology",
    "run",
    "simulate",
]
_MODULES = ["errors", "topology.topology", "algorithms", "data", "problems"]
_MODULES += ["runs.history", "runs.config", "runs.results", "runs.api", "prediction.model"]


def __getattr__(name: str) -> object:
    if name == "algorithms":
        return importlib.import_module("netfleet.algorithms")
    if name in __all__:
        for module in (importlib.import_module(f"netfleet.{module}") for module in _MODULES):
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module 'netfleet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
