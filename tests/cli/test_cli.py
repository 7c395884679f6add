"""The command line as a user meets it, the examples, and the public names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import netfleet
from netfleet import History, load_experiment, run_experiment
from netfleet.algorithms import ALGORITHMS
from netfleet.cli import main
from support.conformance import check_engines_agree, check_lone_runs

ROOT = Path(__file__).parents[2]
SMALL = ["--set", "rounds=4", "--set", "evaluation.every=2", "--set", "topology.workers=5", "--set", "seeds=[0]"]


def test_run_without_a_file_runs_the_demo_and_writes_a_report(tmp_path: Path, capsys: Any) -> None:
    assert main(["run", *SMALL, "--out", str(tmp_path / "out")]) == 0
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


@pytest.mark.slow
def test_the_demo_shows_net_fleet_ahead_on_non_iid_digits() -> None:
    demo = load_experiment(None, ["seeds=[0]", "evaluation.every=200"])
    best = {h.label: h.last for h in run_experiment(demo)}
    ours = best.pop("NET-FLEET")
    for label, theirs in best.items():
        assert ours["accuracy"] > theirs["accuracy"], label
        assert ours["worker_accuracy_mean"] > theirs["worker_accuracy_mean"], label


def test_resume_and_overwrite(tmp_path: Path, capsys: Any) -> None:
    arguments = ["run", *SMALL, "--out", str(tmp_path)]
    assert main(arguments) == 0
    assert main(arguments) == 2
    assert "add --resume to resume them" in capsys.readouterr().err
    assert main([*arguments, "--resume"]) == 0
    assert main([*arguments, "--overwrite", "--threads", "1", "--engine", "threads"]) == 0


def test_a_diverging_run_is_reported_and_the_others_finish(tmp_path: Path, capsys: Any) -> None:
    code = main(["run", *SMALL, "--set", "rounds=40", "--set", "algorithms.eta=1e12", "--out", str(tmp_path)])
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


def test_algorithms_are_listed_with_citations(capsys: Any) -> None:
    assert main(["algorithms"]) == 0
    listing = capsys.readouterr().out
    assert all(name in listing for name in ALGORITHMS)
    assert "Zhang et al. 2022" in listing
    assert main(["algorithms", "net-fleet"]) == 0
    assert "10.1145/3492866.3549723" in capsys.readouterr().out
    assert main(["algorithms", "--bibtex"]) == 0
    assert capsys.readouterr().out.count("@") >= len(list(ALGORITHMS))


def test_help_needs_no_torch() -> None:
    code = "import sys; sys.argv = ['netfleet', '--help']\ntry:\n    from netfleet.cli import main; main()\n"
    code += (
        "except SystemExit as e: assert e.code == 0\nassert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "run an experiment file" in done.stdout


def test_the_example_method_runs_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    code = main(["run", str(ROOT / "examples" / "my_algorithm.toml"), "--set", "rounds=20", "--out", str(tmp_path)])
    assert code == 0
    assert "heavy ball" in capsys.readouterr().out


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
    assert len(netfleet.__all__) <= 28
    assert set(netfleet._MODULE) == set(netfleet.__all__) == set(dir(netfleet))
    for name in netfleet.__all__:
        assert getattr(netfleet, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        netfleet.nothing  # noqa: B018
