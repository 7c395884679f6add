"""Experiment files: strict, resolved, hashed; every bad input gets one clear sentence."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from netfleet import ConfigError, DataError, NetfleetError, TopologyError, load_experiment
from netfleet.algorithms.build import make_algorithm
from netfleet.cli import main
from netfleet.runs.config import experiment
from netfleet.runs.overrides import parse_overrides, split_values
from netfleet.runs.run import run_experiment, without_none
from netfleet.topology.graphs import GRAPHS

BASE: dict[str, Any] = {
    "rounds": 2,
    "topology": {"kind": "ring", "workers": 4},
    "problem": {"kind": "quadratics", "d": 3},
    "algorithms": [{"kind": "net-fleet", "K": 2, "eta": 0.1}],
}


def changed(**changes: Any) -> dict[str, Any]:
    return {**BASE, **changes}


USER_PARTS = """
from torch import nn
NUMBER = 3
def not_a_model(): return 3
def too_narrow(): return nn.Sequential(nn.Flatten(), nn.Linear(63, 10))
def lazy(): return nn.Sequential(nn.Flatten(), nn.LazyLinear(10))
def mean_loss(): return nn.CrossEntropyLoss()
"""
DIGITS = {"kind": "classification", "data": "digits", "model": "softmax"}
# (what is changed, error class, what the sentence says)
BAD: dict[str, tuple[dict[str, Any], type[NetfleetError], str]] = {
    "unknown key": (
        changed(round=3),
        ConfigError,
        r"unknown key 'round' in the experiment \(did you mean 'rounds'\?\)",
    ),
    "unknown key in a table": (
        changed(evaluation={"evry": 3}),
        ConfigError,
        r"'evry' in \[evaluation\] \(did you mean",
    ),
    "unknown graph parameter": (
        changed(topology={"kind": "ring", "workers": 4, "p": 0.5}),
        ConfigError,
        "graph 'ring' has no parameter 'p'",
    ),
    "unknown hyper-parameter": (
        changed(algorithms=[{"kind": "dsgd", "K": 3}]),
        ConfigError,
        "algorithm 'dsgd' has no parameter 'K'; it takes: eta",
    ),
    "unknown algorithm": (
        changed(algorithms=[{"kind": "netfleet"}]),
        ConfigError,
        r"unknown algorithm 'netfleet' \(did you mean 'net-fleet'\?\)",
    ),
    "wrong type": (changed(rounds="many"), ConfigError, "rounds in the experiment must be a whole number, got 'many'"),
    "no workers": (changed(topology={"kind": "ring"}), ConfigError, "graph 'ring' needs workers"),
    "no rounds": ({k: v for k, v in BASE.items() if k != "rounds"}, ConfigError, "the experiment needs 'rounds'"),
    "zero rounds": (changed(rounds=0), ConfigError, "rounds must be at least 1, got 0"),
    "K < 1": (changed(algorithms=[{"kind": "net-fleet", "K": 0}]), ConfigError, "a whole number from 1 on, got 0"),
    "negative step size": (
        changed(algorithms=[{"kind": "net-fleet", "eta": -1.0}]),
        ConfigError,
        "step size must be a finite number above 0, got -1.0",
    ),
    "bad schedule": (
        changed(algorithms=[{"kind": "net-fleet", "eta": {"kind": "halve", "start": 0.1}}]),
        ConfigError,
        "schedule 'halve' needs every",
    ),
    "same label twice": (
        changed(algorithms=[{"kind": "dsgd"}, {"kind": "dsgd", "eta": 0.1}]),
        ConfigError,
        "two algorithms are called 'DSGD'; give each a label",
    ),
    "same seed twice": (changed(seeds=[1, 1]), ConfigError, "seeds must be one or more different whole numbers"),
    "not a table": (changed(topology="ring"), ConfigError, r"\[topology\] must be a table, got 'ring'"),
    "no such module": (
        changed(problem={"kind": "no_such_module:thing"}),
        ConfigError,
        "no module 'no_such_module'; it must be importable",
    ),
    "missing device": (changed(engine={"device": "cuda:77"}), ConfigError, "device 'cuda:77' cannot be used here"),
    "unknown engine": (
        changed(engine={"kind": "cloud"}),
        ConfigError,
        "must be one of 'simulator', 'threads', 'distributed', got 'cloud'",
    ),
    "labels that share a folder": (
        changed(algorithms=[{"kind": "dsgd", "label": "A"}, {"kind": "dsgd", "label": "a"}]),
        ConfigError,
        "the labels 'A' and 'a' would share the folder 'a-seed0'",
    ),
    "what netfleet itself supplies": (
        changed(problem={"kind": "quadratics", "workers": 3}),
        ConfigError,
        "problem 'quadratics' has no parameter 'workers'",
    ),
    "weights of a graph that brings its own": (
        changed(topology={"kind": "random-matching", "workers": 4, "weights": "metropolis"}),
        ConfigError,
        "varies in time and brings its own weights",
    ),
    "a huge seed": (changed(seeds=[10**20]), ConfigError, "seeds must be one or more different whole numbers"),
    "a model that is none": (
        changed(problem={**DIGITS, "model": "user_parts:not_a_model"}),
        ConfigError,
        "model 'user_parts:not_a_model' made a int, expected Module",
    ),
    "a model that does not fit": (
        changed(problem={**DIGITS, "model": "user_parts:too_narrow"}),
        ConfigError,
        r"the model and its loss fail on 2 samples of float32 \[1, 8, 8\]",
    ),
    "a lazy model": (changed(problem={**DIGITS, "model": "user_parts:lazy"}), ConfigError, "is lazy"),
    "a loss that is a mean": (
        changed(problem={**DIGITS, "loss": "user_parts:mean_loss"}),
        ConfigError,
        r"one value per sample, shape \(2,\), but returned the shape \(\)",
    ),
    "not callable": (changed(problem={**DIGITS, "model": "user_parts:NUMBER"}), ConfigError, "expected a class or a f"),
    "half a path": (changed(problem={**DIGITS, "model": ":x"}), ConfigError, "expected 'package.module:factory'"),
    "the meta device": (changed(engine={"device": "meta"}), ConfigError, "device 'meta' cannot be used here"),
    "exact gradients with dropout": (
        changed(problem={**DIGITS, "model": "support.problems:dropout_net", "batch": 0}),
        ConfigError,
        r"batch = 0 \(exact gradients\) has no meaning",
    ),
    "disconnected graph": (
        changed(topology={"kind": "edge-list", "path": "apart.txt"}),
        TopologyError,
        "2 components",
    ),
    "not doubly stochastic": (
        changed(topology={"kind": "ring", "workers": 3, "weights": {"kind": "matrix", "path": "W.csv"}}),
        TopologyError,
        "sum",
    ),
    "more shards than samples": (
        changed(problem={**DIGITS, "partition": {"kind": "shards", "shards": 250, "size": 200}}),
        DataError,
        "50,?000",
    ),
    "more workers than data": (
        changed(problem={**DIGITS, "partition": "iid"}, topology={"kind": "ring", "workers": 2000}),
        DataError,
        "2,?000 workers",
    ),
    "missing data file": (
        changed(problem={**DIGITS, "data": {"kind": "mnist", "path": "nowhere"}}),
        DataError,
        "nowhere",
    ),
    "corrupt data file": (changed(problem={**DIGITS, "data": {"kind": "mnist", "path": "corrupt"}}), DataError, "MD5"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with the files that the bad inputs name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "user_parts.py").write_text(USER_PARTS)
    (tmp_path / "apart.txt").write_text("0 1\n2 3\n")
    (tmp_path / "W.csv").write_text("0.5,0.25,0.25\n0.25,0.5,0.25\n0.5,0.25,0.5\n")
    (tmp_path / "corrupt").mkdir()
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (tmp_path / "corrupt" / f"{name}-ubyte.gz").write_bytes(b"not what it says")
    return tmp_path


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_sentence(
    name: str, folder: Path, no_data: None, capsys: pytest.CaptureFixture[str]
) -> None:
    table, kind, sentence = BAD[name]
    with pytest.raises(kind, match=sentence):
        run_experiment(experiment(table))
    (folder / "bad.toml").write_text(tomli_w.dumps(table))
    assert main(["run", "bad.toml", "--out", "out"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("netfleet: error: ")
    assert err.count("\n") == 1
    assert not (folder / "out").exists()


def test_broken_toml_and_a_missing_file(folder: Path) -> None:
    (folder / "broken.toml").write_text("rounds = \n")
    with pytest.raises(ConfigError, match=r"broken.toml is not valid TOML: .*line 1"):
        load_experiment("broken.toml")
    with pytest.raises(ConfigError, match=r"cannot read 'absent\.toml'"):
        load_experiment("absent.toml")


def test_resolving_is_idempotent_and_survives_a_file(tmp_path: Path) -> None:
    first = load_experiment()
    (tmp_path / "again.toml").write_text(tomli_w.dumps(without_none(first.to_table())))
    second = load_experiment(tmp_path / "again.toml")
    assert [run.hash for run in second.runs()] == [run.hash for run in first.runs()]


def test_the_resolved_config_has_every_default() -> None:
    run = experiment(changed(problem={"kind": "classification"})).runs()[0]
    assert run.config["problem"]["model"] == {"kind": "mlp", "hidden": (64,)}
    assert run.config["topology"]["weights"]["kind"] == "laplacian"
    assert run.config["evaluation"]["every"] == 10


def test_the_hash_covers_what_changes_the_numbers_and_nothing_else() -> None:
    base = experiment(BASE).runs()[0].hash
    same = [
        changed(name="another name"),
        changed(engine={"threads": 1}),
        changed(engine={"kind": "threads"}),
        changed(engine={"kind": "peers", "backend": "auto"}),  # as earlier versions wrote it
        changed(checkpoint_every=1),
        changed(algorithms=[{"kind": "net-fleet", "K": 2, "eta": 0.1, "label": "ours"}]),
    ]
    other = [
        changed(rounds=3),
        changed(seeds=[1]),
        changed(engine={"dtype": "float64"}),
        changed(topology={"kind": "path", "workers": 4}),
        changed(problem={"kind": "quadratics", "d": 4}),
        changed(algorithms=[{"kind": "net-fleet", "K": 3, "eta": 0.1}]),
    ]
    assert {experiment(table).runs()[0].hash for table in same} == {base}
    assert base not in {experiment(table).runs()[0].hash for table in other}


def test_overrides_reach_into_tables_and_every_algorithm() -> None:
    changed_demo = load_experiment(
        None, ["rounds=7", "topology.workers=4", "algorithms.eta=0.5", "problem.model=softmax", "seeds=[3,4]"]
    )
    assert (changed_demo.rounds, changed_demo.topology["workers"], changed_demo.seeds) == (7, 4, (3, 4))
    assert {a["eta"] for a in changed_demo.algorithms} == {0.5}
    assert changed_demo.problem["model"]["kind"] == "softmax"


def test_overrides_can_address_one_algorithm() -> None:
    demo = load_experiment(None, ["algorithms.net-fleet.K=3", "algorithms.1.eta=0.5"])
    assert [a.get("K") for a in demo.algorithms] == [3, 10, None, None]
    assert [a["eta"] for a in demo.algorithms] == [0.05, 0.5, 0.05, 0.05]
    with pytest.raises(
        ConfigError, match="no table there has the index, kind or label 'scaffold'; there are: net-fleet, "
    ):
        load_experiment(None, ["algorithms.scaffold.K=3"])


def test_overrides_can_address_an_algorithm_by_its_label() -> None:
    labelled = [{"kind": "net-fleet", "K": k, "label": f"ours, K = {k}"} for k in (1, 5)]
    table = changed(algorithms=[*labelled, {"kind": "dsgd"}, {"kind": "dsgd", "compress": "cast"}, {"kind": "gnsd"}])
    parse_overrides(["algorithms[ours, K = 5].eta=0.5", "algorithms.DSGD, cast.eta=0.25"], table)
    parse_overrides(["algorithms[GT-SGD (gnsd)].eta=0.75", "algorithms[ours, K = 1].compress.kind=cast"], table)
    assert [a.get("eta") for a in table["algorithms"]] == [None, 0.5, None, 0.25, 0.75]
    assert experiment(table).algorithms[0]["compress"]["kind"] == "cast"
    assert [run.label for run in experiment(table).runs()][2:] == ["DSGD", "DSGD, cast", "GT-SGD (gnsd)"]
    with pytest.raises(ConfigError, match=r"kind or label 'our, K = 5' \(did you mean 'ours, k = 5'\?\); there are: "):
        parse_overrides(["algorithms[our, K = 5].eta=0.5"], table)


@given(
    st.lists(
        st.from_regex(r"[a-z0-9]+|\"[a-z,\]]*\"|\[[0-9, ]*\]|\{a = [0-9], b = \[1,2\]\}", fullmatch=True), min_size=1
    )
)
def test_commas_inside_quotes_lists_and_tables_do_not_part_values(texts: list[str]) -> None:
    assert split_values(",".join(texts)) == texts


@pytest.mark.parametrize("kind", sorted(set(GRAPHS) - {"edge-list"}))
def test_every_graph_runs_from_an_experiment_file(kind: str) -> None:
    history = run_experiment(experiment(changed(topology={"kind": kind, "workers": 8})))[0]
    assert history.rounds == 2


def test_nested_tables_are_resolved_too() -> None:
    eta = {"kind": "warm-up", "rounds": 3, "then": {"kind": "step", "start": 0.1, "every": 2}}
    table = changed(algorithms=[{"kind": "dsgd", "eta": eta}], topology={"kind": "random-matching", "workers": 4})
    config = experiment(table).runs()[0].config
    assert config["algorithm"]["eta"]["then"]["factor"] == 0.1
    assert config["topology"]["base"] == {"kind": "complete"}
    assert "weights" not in config["topology"]


@pytest.mark.parametrize("text", ["rounds", "=3", "rounds.deep=3"])
def test_a_malformed_override_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--set"):
        load_experiment(None, [text])


def test_override_values_are_toml_or_plain_words() -> None:
    assert parse_overrides(["a=1", "b=[1, 2]", "c=word", "d='two words'", "e.f=true"]) == {
        "a": 1,
        "b": [1, 2],
        "c": "word",
        "d": "two words",
        "e": {"f": True},
    }


def test_the_demo_is_valid_toml_with_the_papers_four_methods() -> None:
    path = Path(__file__).parents[2] / "src" / "netfleet" / "runs" / "demo.toml"
    kinds = {a["kind"] for a in tomllib.loads(path.read_text())["algorithms"]}
    assert kinds == {"net-fleet", "ld-sgd", "dsgd", "gt-sgd"}


@pytest.mark.parametrize(
    ("alias", "kind", "label"),
    [
        ("gnsd", "gt-sgd", "GT-SGD (gnsd)"),
        ("gt-dsgd", "gt-sgd", "GT-SGD (gt-dsgd)"),
        ("local-sgd", "fedavg", "FedAvg (local-sgd)"),
        ("g-fedavg", "generalized-fedavg", "Generalized FedAvg (g-fedavg)"),
    ],
)
def test_names_that_the_paper_uses_are_understood_and_say_what_they_are(alias: str, kind: str, label: str) -> None:
    (ours,), (theirs,) = (experiment(BASE | {"algorithms": [{"kind": name}]}).runs() for name in (alias, kind))
    assert (ours.label, ours.hash) == (label, theirs.hash)
    named = experiment(BASE | {"algorithms": [{"kind": alias, "label": "mine"}]}).runs()[0]
    assert named.label == "mine"
    assert type(make_algorithm(alias)) is type(make_algorithm(kind))
