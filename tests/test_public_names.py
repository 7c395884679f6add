"""The names that `import netfleet as nf` gives, and how they come."""

from __future__ import annotations

import subprocess
import sys

import netfleet as nf
from netfleet import algorithms


def test_the_public_names_are_few_and_all_there() -> None:
    assert sorted(nf.__all__) == [
        "ALGORITHMS", "Algorithm", "ConfigError", "DataError", "Dataset", "DivergedError", "EngineConfig",
        "Evaluation", "Experiment", "History", "Mix", "ModuleProblem", "NetFleet", "NetfleetError", "Problem",
        "Results", "Topology", "TopologyError", "algorithms", "load_dataset", "load_experiment", "load_model",
        "load_runs", "make_dataset", "make_partition", "make_problem", "make_topology", "run", "simulate",
    ]  # fmt: skip
    assert dir(nf) == sorted(nf.__all__)
    for name in nf.__all__:
        assert getattr(nf, name).__doc__ or name == "ALGORITHMS"


def test_every_method_is_a_class_under_one_name() -> None:
    classes = {method for method in nf.ALGORITHMS._factories.values() if isinstance(method, type)}
    assert len(classes) == len(list(nf.ALGORITHMS))
    found = {getattr(nf.algorithms, name) for name in dir(nf.algorithms)}
    assert classes <= found
    assert set(dir(nf.algorithms)) == set(algorithms.__all__)


def test_methods_are_there_without_an_import_of_their_own() -> None:
    program = "import sys, netfleet as nf; assert 'torch' not in sys.modules; print(nf.algorithms.KGT(K=5).title)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "K-GT\n"
