"""Bad input from Python gets one sentence: what came, what was expected, what to do.

Each entry of a table is a name, a call, the error's class and a part of the sentence, which names what came. Add
entries to TABLES; nothing else is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch

import netfleet as nf
from netfleet.errors import CheckpointError, StorageError
from netfleet.problems.synthetic import Quadratics
from netfleet.topology.faults import Faults

#: A call (it may use the test's folder), the class of its error, and words of the message that name what came.
Entry = tuple[Callable[[Path], object], type[nf.NetfleetError], str]
LONGEST = 420  # characters; a list of all 25 methods is the longest
#: One of these says what is right or what to do.
CURES = (
    "must",
    "expected",
    "known:",
    "it takes",
    "for example",
    "; give",
    "; use",
    "; add",
    "; leave",
    "; make",
    "; choose",
)
CURES += ("; check", "; correct", "; pass", "; start", "; build", "; set", "; resume", "so give")


def simulate(algorithm: Any = "dsgd", **parts: Any) -> Callable[[Path], object]:
    given = {"topology": "ring", "workers": 4, "problem": "quadratics", "rounds": 2} | parts
    return lambda folder: nf.simulate(algorithm, **given)


def run(algorithms: Any = "dsgd", **parts: Any) -> Callable[[Path], object]:
    given = {"topology": "ring", "workers": 4, "problem": "quadratics", "rounds": 2} | parts
    return lambda folder: nf.run(algorithms, **given)


def topology(*given: Any, **parts: Any) -> Callable[[Path], object]:
    return lambda folder: nf.make_topology(*given, **parts)


def file(folder: Path, text: str = "x") -> Path:
    (folder / "file.toml").write_text(text)
    return folder / "file.toml"


def saved(folder: Path, **parts: Any) -> object:
    """A second run into a folder that has one."""
    given: dict[str, Any] = {"topology": "ring", "workers": 4, "problem": "quadratics", "rounds": 1, "out": folder}
    nf.simulate("dsgd", **given)
    return nf.simulate("dsgd", **(given | parts))


METHODS: dict[str, Entry] = {
    "an unknown name": (simulate("netfleet"), nf.ConfigError, "'netfleet' (did you mean 'net-fleet'?)"),
    "a number": (simulate(5), nf.ConfigError, "got 5"),
    "nothing": (simulate(None), nf.ConfigError, "got None"),
    "a class": (simulate(nf.NetFleet), nf.ConfigError, "the class NetFleet"),
    "several in simulate": (simulate(["dsgd", "k-gt"]), nf.ConfigError, "got ['dsgd', 'k-gt']"),
    "a table without a kind": (simulate({"K": 5}), nf.ConfigError, "{'K': 5}"),
    "a kind that is a number": (run({"kind": 5}), nf.ConfigError, "{'kind': 5}"),
    "an unknown parameter": (simulate({"kind": "net-fleet", "k": 5}), nf.ConfigError, "no parameter 'k'"),
    "a parameter of another type": (simulate({"kind": "k-gt", "K": "five"}), nf.ConfigError, "got 'five'"),
    "a negative step size": (simulate({"kind": "dsgd", "eta": -1}), nf.ConfigError, "got -1.0"),
    "a step size in words": (simulate({"kind": "dsgd", "eta": "fast"}), nf.ConfigError, "got 'fast'"),
    "no step size": (lambda _: nf.NetFleet(eta=None), nf.ConfigError, "got None"),  # type: ignore[arg-type]
    "no local steps": (lambda _: nf.NetFleet(K=0), nf.ConfigError, "got 0"),
    "an unknown codec": (simulate({"kind": "dsgd", "compress": "zip"}), nf.ConfigError, "'zip'"),
    "an unknown local optimizer": (simulate({"kind": "dsgd", "local": "adamww"}), nf.ConfigError, "'adamww'"),
    "a local optimizer that is a number": (simulate({"kind": "dsgd", "local": 5}), nf.ConfigError, "got 5"),
    "a learning rate of its own": (
        simulate({"kind": "dsgd", "local": {"kind": "adamw", "lr": 0.1}}),
        nf.ConfigError,
        "lr = 0.1",
    ),
    "AdamW for LED": (simulate({"kind": "led", "local": "adamw"}), nf.ConfigError, "how far the models moved"),
    "an unknown outer step": (simulate({"kind": "dsgd", "outer": "adam"}), nf.ConfigError, "'adam'"),
    "an outer step for LED": (simulate({"kind": "led", "outer": "nesterov"}), nf.ConfigError, "outer: LED"),
    "a codec that is a number": (simulate({"kind": "dsgd", "compress": 5}), nf.ConfigError, "got 5"),
    "a module that is not there": (simulate("nowhere:method"), nf.ConfigError, "'nowhere'"),
    "none at all": (run([]), nf.ConfigError, "no algorithms"),
    "a list in a list": (run([["dsgd"]]), nf.ConfigError, "got ['dsgd']"),
    "the same twice": (run(["dsgd", "dsgd"]), nf.ConfigError, "two algorithms are called 'DSGD'"),
    "a label that is a number": (run({"kind": "dsgd", "label": 3}), nf.ConfigError, "got 3"),
}
TOPOLOGIES: dict[str, Entry] = {
    "a list": (simulate(topology=["ring"]), nf.ConfigError, "got ['ring']"),
    "an unknown graph": (simulate(topology="circle"), nf.ConfigError, "'circle'"),
    "nothing": (simulate(topology=None), nf.ConfigError, "got None"),
    "a class": (simulate(topology=nf.Topology), nf.ConfigError, "Topology'>"),
    "an array": (simulate(topology=np.eye(9)), nf.ConfigError, "got array("),
    "two parts": (simulate(topology=nx.Graph([(0, 1), (2, 3)]), workers=None), nf.TopologyError, "2 components"),
    "one-way links": (simulate(topology=nx.DiGraph([(0, 1)]), workers=None), nf.TopologyError, "is directed"),
    "another number of workers": (simulate(topology={"kind": "ring", "workers": 5}), nf.ConfigError, "workers = 5"),
    "a parameter too large": (simulate(topology={"kind": "erdos-renyi", "p": 2}), nf.ConfigError, "got 2"),
    "a parameter of another graph": (simulate(topology={"kind": "ring", "p": 0.3}), nf.ConfigError, "'p'"),
    "unknown weights": (simulate(topology={"kind": "ring", "weights": "heavy"}), nf.ConfigError, "'heavy'"),
    "weights that are a number": (simulate(topology={"kind": "ring", "weights": 5}), nf.TopologyError, "got 5"),
    "workers in words": (simulate(workers="four"), nf.ConfigError, "got 'four'"),
    "no workers": (simulate(workers=0), nf.ConfigError, "got 0"),
    "half a worker": (simulate(workers=2.5), nf.ConfigError, "got 2.5"),
    "workers that disagree": (simulate(topology=nx.cycle_graph(5)), nf.ConfigError, "has 5 workers"),
    "make: a list": (topology(["ring"]), nf.ConfigError, "got ['ring']"),
    "make: nothing": (topology(None), nf.ConfigError, "got None"),
    "make: workers left out": (topology("ring"), nf.ConfigError, "graph 'ring' needs workers"),
    "make: workers in words": (topology("ring", workers="8"), nf.ConfigError, "got '8'"),
    "make: workers true": (topology("ring", workers=True), nf.ConfigError, "got True"),
    "make: a seed in words": (topology("erdos-renyi", workers=8, seed="x"), nf.ConfigError, "got 'x'"),
    "make: a parameter in words": (topology("erdos-renyi", workers=8, p="half"), nf.ConfigError, "got 'half'"),
    "make: an unknown parameter": (topology("ring", workers=8, q=1), nf.ConfigError, "'q'"),
    "make: weights of another size": (topology("ring", workers=4, weights=np.eye(3)), nf.TopologyError, "(3, 3)"),
    "make: weights of words": (topology("ring", workers=4, weights=[["a"]]), nf.TopologyError, "'a'"),
    "make: workers twice": (topology({"kind": "ring", "workers": 4}, workers=5), nf.ConfigError, "4 and 5"),
    "make: a graph of another size": (topology(nx.path_graph(3), workers=5), nf.ConfigError, "has 3 workers but 5"),
    "make: a graph without workers": (topology(nx.Graph()), nf.TopologyError, "no nodes"),
    "make: parameters of a graph": (topology(nx.path_graph(3), p=0.3), nf.ConfigError, "got p"),
}
PROBLEMS: dict[str, Entry] = {
    "an unknown name": (simulate(problem="quadratic!"), nf.ConfigError, "'quadratic!'"),
    "a number": (simulate(problem=5), nf.ConfigError, "got 5"),
    "nothing": (simulate(problem=None), nf.ConfigError, "got None"),
    "a module": (simulate(problem=torch.nn.Linear(2, 2)), nf.ConfigError, "got Linear("),
    "a parameter of another type": (simulate(problem={"kind": "quadratics", "d": "ten"}), nf.ConfigError, "got 'ten'"),
    "another number of workers": (simulate(problem=Quadratics(5)), nf.ConfigError, "the problem has 5 workers"),
    "a function of something else": (simulate(problem=lambda number: 5), nf.ConfigError, "needs number"),
    "a function that makes none": (simulate(problem=lambda seed: 5), nf.ConfigError, "made a int"),
    "a type of Python": (simulate(problem=dict), nf.ConfigError, "builtins:dict"),
    "an object for several seeds": (run(problem=Quadratics(4), seeds=[0, 1]), nf.ConfigError, "2 seeds"),
}
NUMBERS: dict[str, Entry] = {
    "no rounds": (simulate(rounds=0), nf.ConfigError, "got 0"),
    "negative rounds": (simulate(rounds=-3), nf.ConfigError, "got -3"),
    "rounds in words": (simulate(rounds="ten"), nf.ConfigError, "got 'ten'"),
    "half a round": (simulate(rounds=2.5), nf.ConfigError, "got 2.5"),
    "rounds true": (simulate(rounds=True), nf.ConfigError, "got True"),
    "a list of rounds": (simulate(rounds=[3]), nf.ConfigError, "got [3]"),
    "a seed in words": (simulate(seed="0"), nf.ConfigError, "got '0'"),
    "a negative seed": (simulate(seed=-1), nf.ConfigError, "got [-1]"),
    "several seeds in simulate": (simulate(seed=[0, 1]), nf.ConfigError, "got [0, 1]"),
    "seeds in words": (run(seeds="012"), nf.ConfigError, "got '012'"),
    "no seeds": (run(seeds=[]), nf.ConfigError, "got []"),
    "a seed twice": (run(seeds=[0, 0]), nf.ConfigError, "got [0, 0]"),
    "half a seed": (run(seeds=[0.5]), nf.ConfigError, "got 0.5"),
    "no checkpoints": (simulate(checkpoint_every=0), nf.ConfigError, "got 0"),
}
SETTINGS: dict[str, Entry] = {
    "evaluation: an unknown key": (simulate(evaluation={"evry": 5}), nf.ConfigError, "'evry' in evaluation (did you"),
    "evaluation: a number": (simulate(evaluation=5), nf.ConfigError, "got 5"),
    "evaluation: a text": (simulate(evaluation="often"), nf.ConfigError, "got 'often'"),
    "evaluation: never": (simulate(evaluation={"every": 0}), nf.ConfigError, "got 0"),
    "evaluation: an object": (lambda _: nf.Evaluation(every="5"), nf.ConfigError, "got '5'"),  # type: ignore[arg-type]
    "evaluation: a key that is no text": (simulate(evaluation={1: 2}), nf.ConfigError, "unknown key 1"),
    "engine: an unknown kind": (simulate(engine="gpu"), nf.ConfigError, "got 'gpu'"),
    "engine: a number": (simulate(engine=5), nf.ConfigError, "got 5"),
    "engine: a kind that is a list": (simulate(engine={"kind": ["threads"]}), nf.ConfigError, "got ['threads']"),
    "engine: an unknown key": (simulate(engine={"cores": 2}), nf.ConfigError, "'cores'"),
    "engine: an unknown device": (simulate(engine={"device": "cuda:99"}), nf.ConfigError, "'cuda:99'"),
    "engine: an unknown type": (simulate(engine={"dtype": "float16"}), nf.ConfigError, "got 'float16'"),
    "engine: without torchrun": (simulate(engine="distributed"), nf.ConfigError, "RANK"),
    "network: too many losses": (simulate(network={"loss": 2}), nf.ConfigError, "got 2"),
    "network: a number": (simulate(network=0.1), nf.ConfigError, "got 0.1"),
    "network: an unknown key": (simulate(network={"los": 0.1}), nf.ConfigError, "'los'"),
    "network: an object": (lambda _: Faults(loss="x"), nf.ConfigError, "got 'x'"),  # type: ignore[arg-type]
}
FOLDERS: dict[str, Entry] = {
    "out is a file": (lambda d: simulate(out=file(d))(d), nf.ConfigError, "file.toml' is a file"),
    "out is below a file": (lambda d: simulate(out=file(d) / "x")(d), StorageError, "Not a directory"),
    "out is a number": (simulate(out=5), nf.ConfigError, "got 5"),
    "out is empty": (simulate(out=""), nf.ConfigError, "got ''"),
    "resume without out": (simulate(resume=True), nf.ConfigError, "resume=True"),
    "overwrite without out": (run(overwrite=True), nf.ConfigError, "overwrite=True"),
    "resume and overwrite": (simulate(out="x", resume=True, overwrite=True), nf.ConfigError, "resume=True"),
    "a folder with runs": (saved, CheckpointError, "already holds runs (dsgd-seed0)"),
    "another run": (lambda d: saved(d, workers=5, resume=True), CheckpointError, "topology.workers is 4 there and 5"),
    "load_runs: no folder": (lambda _: nf.load_runs(), nf.ConfigError, "got no folder"),
    "load_runs: a folder that is not there": (lambda _: nf.load_runs("nowhere"), nf.ConfigError, "nowhere"),
    "load_runs: a folder without runs": (nf.load_runs, nf.ConfigError, "no runs in"),
    "load_runs: a number": (lambda _: nf.load_runs(5), nf.ConfigError, "got 5"),  # type: ignore[arg-type]
    "load_runs: a list": (lambda _: nf.load_runs(["x"]), nf.ConfigError, "got ['x']"),  # type: ignore[arg-type]
}
EXPERIMENTS: dict[str, Entry] = {
    "run: a file that is not there": (lambda _: nf.run("nowhere.toml"), nf.ConfigError, "'nowhere.toml'"),
    "run: a folder": (nf.run, nf.ConfigError, "Is a directory"),
    "run: no TOML": (lambda d: nf.run(file(d, "rounds = [")), nf.ConfigError, "file.toml is not valid TOML"),
    "run: an unknown key": (
        lambda d: nf.run(file(d, "rounds = 5\nfoo = 1\ntopology.workers = 4")), nf.ConfigError, "'foo'"
    ),
    "run: a file and a part": (lambda d: nf.run(file(d), rounds=3), nf.ConfigError, "its own rounds"),
    "run: an experiment with nothing in it": (lambda _: nf.run(nf.Experiment({}, {}, (), 5)), nf.ConfigError, "got []"),
    "run: the class": (lambda _: nf.run(nf.Experiment), nf.ConfigError, "Experiment'>"),  # type: ignore[arg-type]
    "load: a number": (lambda _: nf.load_experiment(5), nf.ConfigError, "got 5"),  # type: ignore[arg-type]
    "load: a table": (lambda _: nf.load_experiment({"rounds": 5}), nf.ConfigError, "'rounds': 5"),  # type: ignore[arg-type]
    "load: an override that is a text": (lambda _: nf.load_experiment(None, "rounds=5"), nf.ConfigError, "'rounds=5'"),
    "load: an override without a value": (lambda _: nf.load_experiment(None, ["rounds"]), nf.ConfigError, "'rounds'"),
    "load: overrides that are numbers": (lambda _: nf.load_experiment(None, [5]), nf.ConfigError, "[5]"),  # type: ignore[list-item]
    "load: a value of another type": (lambda _: nf.load_experiment(None, ["rounds=ten"]), nf.ConfigError, "got 'ten'"),
}  # fmt: skip
TABLES = {
    "method": METHODS,
    "topology": TOPOLOGIES,
    "problem": PROBLEMS,
    "number": NUMBERS,
    "settings": SETTINGS,
    "folder": FOLDERS,
    "experiment": EXPERIMENTS,
}
ENTRIES = {f"{table}: {name}": entry for table, entries in TABLES.items() for name, entry in entries.items()}


@pytest.mark.parametrize(("call", "error", "came"), ENTRIES.values(), ids=ENTRIES)
def test_bad_input_gets_one_sentence(
    call: Callable[[Path], object], error: type[nf.NetfleetError], came: str, tmp_path: Path
) -> None:
    with pytest.raises(nf.NetfleetError) as raised:
        call(tmp_path)
    message = str(raised.value)
    assert type(raised.value) is error
    assert "\n" not in message
    assert len(message) <= LONGEST
    assert came in message
    assert any(cure in message for cure in CURES), message
