"""The command line as a user meets it, the examples, and the public names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import netfleet
from netfleet import History, load_experiment
from netfleet.algorithms import ALGORITHMS
from netfleet.cli import GROUPS, main
from netfleet.runs.run import run_experiment
from support.conformance import check_engines_agree, check_lone_runs

ROOT = Path(__file__).parents[2]
CHANGES = ("rounds=4", "evaluation={every=2, gradient=false}", "topology.workers=5", "seeds=[0]")
SMALL = [word for change in CHANGES for word in ("--set", change)]


@pytest.mark.slow
def test_the_demo_runs_without_a_file_can_be_resumed_and_is_not_overwritten(tmp_path: Path, capsys: Any) -> None:
    arguments = ["run", *SMALL, "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    for name in ("NET-FLEET", "LD-SGD", "DSGD", "GT-SGD"):
        assert name in out
    assert (tmp_path / "out" / "curves.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "NET-FLEET" in page
    names = sorted(p.name for p in (tmp_path / "out" / "gt-sgd-seed0").iterdir())
    assert names[1:] == ["checkpoint.json", "config.json", "history.jsonl"]
    assert names[0].startswith("checkpoint-")
    assert names[0].endswith(".safetensors")
    again = load_experiment(tmp_path / "out" / "experiment.toml")
    assert {run.hash for run in again.runs()} == {
        History.load(p.parent).hash for p in tmp_path.glob("out/*/config.json")
    }
    assert main(arguments) == 2
    assert "add --resume (in Python resume=True) to " in capsys.readouterr().err
    page = (tmp_path / "out" / "report.html").stat().st_mtime_ns
    assert main([*arguments, "--resume"]) == 0
    assert (tmp_path / "out" / "report.html").stat().st_mtime_ns > page


@pytest.mark.slow
def test_the_demo_shows_net_fleet_ahead_on_non_iid_digits() -> None:
    demo = load_experiment(None, ["seeds=[0]", "evaluation.every=200"])
    best = {h.label: h.last for h in run_experiment(demo)}
    ours = best.pop("NET-FLEET")
    for label, theirs in best.items():
        assert ours["accuracy"] > theirs["accuracy"], label
        assert ours["worker_accuracy_mean"] > theirs["worker_accuracy_mean"], label


@pytest.mark.slow
def test_a_diverging_run_is_reported_and_the_others_finish(tmp_path: Path, capsys: Any) -> None:
    changes = ["--set", "rounds=40", "--set", "algorithms.eta=1e12"]
    code = main(["run", *SMALL, *changes, "--out", str(tmp_path)])
    assert code == 1
    streams = capsys.readouterr()
    assert "NET-FLEET diverged: " in streams.err
    assert "with step size 1e+12" in streams.err
    assert (tmp_path / "report.html").exists()


def test_topology_describes_and_draws(tmp_path: Path, capsys: Any) -> None:
    picture = tmp_path / "deep" / "ring.png"
    assert main(["topology", "ring", "--workers", "6", "--weights", "metropolis", "--out", str(picture)]) == 0
    assert "spectral gap" in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")
    file = str(ROOT / "examples" / "my_algorithm.toml")
    assert main(["topology", file, "--set", "workers=5", "--out", str(picture)]) == 0
    assert "5 workers" in capsys.readouterr().out
    assert main(["topology", "hypercube", "--workers", "6"]) == 2
    assert "power of two" in capsys.readouterr().err


def test_a_topology_of_no_workers_is_refused(tmp_path: Path, capsys: Any) -> None:
    assert main(["topology", "ring", "--workers", "0", "--out", str(tmp_path / "ring.png")]) == 2
    assert "workers must be a whole number from 1 on, got 0" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_algorithms_are_listed_with_citations(capsys: Any) -> None:
    assert main(["algorithms"]) == 0
    listing = capsys.readouterr().out
    assert all(name in listing for name in ALGORITHMS)
    assert "Zhang et al. 2022" in listing
    assert main(["algorithms", "net-fleet"]) == 0
    assert "10.1145/3492866.3549723" in capsys.readouterr().out
    assert main(["algorithms", "--bibtex"]) == 0
    assert capsys.readouterr().out.count("@") >= len(list(ALGORITHMS))


def test_help_shows_the_commands_in_groups_and_imports_nothing_heavy() -> None:
    heavy = ("torch", "numpy", "rich", "grpc", "matplotlib", "networkx")
    code = f"""
import sys
from netfleet.cli import GROUPS, main
try:
    main(["--help"])
except SystemExit as end:
    assert end.code == 0
loaded = [name for name in {heavy} if name in sys.modules]
assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    groups = dict(block.split(":\n", 1) for block in done.stdout.split("\n\n") if ":\n" in block)
    commands = {title: [line.split()[0] for line in lines.splitlines()] for title, lines in groups.items()}
    commands.pop("options")
    assert list(commands.values()) == [
        ["init", "run", "watch", "tune", "sweep", "compare", "theory", "topology", "algorithms", "audit"],
        ["reproduce", "bench"],
        [
            *("statistics", "plan", "doctor", "rehearse", "up", "node", "relay", "status", "health", "admit", "leave"),
            "revoke",
            *("evict", "rollback", "receipts", "evaluate", "predict"),
        ],
        ["policy", "approve", "pin", "release"],
        ["completion"],
    ]
    assert "  run         Run an experiment file" in done.stdout


@pytest.mark.parametrize("command", [module.__name__.rpartition(".")[2] for g in GROUPS.values() for module in g])
def test_every_command_has_help(command: str, capsys: Any) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert f"usage: netfleet {command}" in capsys.readouterr().out


#: Runs commands, given as JSON, one after the other, each with the standard output that the process began with.
EACH = """
import json, os, sys
from netfleet.cli import main
pipe, codes = os.dup(1), []
for arguments in json.loads(sys.argv[1]):
    os.dup2(pipe, 1)
    try:
        codes.append(main(arguments))
    except SystemExit as end:
        codes.append(end.code)
sys.exit(0 if not any(codes) else str(codes))
"""


def without_reader(*commands: list[str]) -> subprocess.CompletedProcess[str]:
    """A process that runs commands in a pipe whose other end is closed, as after `| head`."""
    read, write = os.pipe()
    os.close(read)
    try:
        command = [sys.executable, "-c", EACH, json.dumps(commands)]
        return subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    finally:
        os.close(write)


@pytest.mark.parametrize("arguments", [["--help"], ["bench", "--list"]])
def test_a_list_that_nobody_reads_ends_quietly(arguments: list[str]) -> None:
    done = without_reader(arguments)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_commands_go_on_to_their_end_when_nobody_reads_their_output(tmp_path: Path) -> None:
    lists = [["algorithms"], ["algorithms", "net-fleet"], ["theory", "--only", *SMALL], ["reproduce"]]
    jobs = [["run", *SMALL, "--out", str(tmp_path)], ["topology", "ring", "--out", str(tmp_path / "ring.png")]]
    done = without_reader(*lists, *jobs)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "report.html").exists()
    assert all(History.load(path.parent).rounds == 4 for path in tmp_path.glob("*/config.json"))
    assert (tmp_path / "ring.png").exists()


@pytest.mark.parametrize(("command", "folder"), [("bench", "benchmarks"), ("reproduce", "reproduce")])
def test_a_command_that_needs_a_checkout_says_so(command: str, folder: str, tmp_path: Path) -> None:
    """As in the wheel: the package alone, and no checkout in the current folder."""
    lone = tmp_path / "site" / "packages" / "here"
    shutil.copytree(Path(netfleet.__file__).parent, lone / "netfleet", ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [sys.executable, "-m", "netfleet", command],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(lone)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert f"needs a checkout of netfleet's repository, but there is no {folder}/ in {tmp_path}" in done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_example_method_runs_from_its_file_and_overwrites_when_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    old = tmp_path / "old-seed0" / "config.json"
    old.parent.mkdir()
    old.touch()
    arguments = ["run", str(ROOT / "examples" / "my_algorithm.toml"), "--set", "rounds=20", "--out", str(tmp_path)]
    assert main([*arguments, "--overwrite", "--threads", "1", "--engine", "peers"]) == 0
    assert "heavy ball" in capsys.readouterr().out
    assert not old.exists()


def test_the_example_method_keeps_the_promises_of_a_registered_one(monkeypatch: pytest.MonkeyPatch, noisy: Any) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    method = ALGORITHMS.build({"kind": "my_algorithm:HeavyBall", "eta": 0.02})
    check_lone_runs(method, noisy)
    for kind in ("erdos-renyi", "random-matching"):
        check_engines_agree(method, noisy, kind)


def test_the_example_method_is_about_thirty_lines() -> None:
    text = (ROOT / "examples" / "my_algorithm.py").read_text()
    body = text.split("@dataclass")[1].split("if __name__")[0]
    assert len([line for line in body.splitlines() if line.strip()]) <= 20


def test_the_public_names_are_these() -> None:
    assert len(netfleet.__all__) <= 29
    assert set(netfleet.__all__) == set(dir(netfleet))
    for name in netfleet.__all__:
        assert getattr(netfleet, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        netfleet.nothing  # noqa: B018
