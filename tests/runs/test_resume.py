"""Runs that grow: more rounds in the same folder are what they would be from the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netfleet import History
from netfleet.errors import CheckpointError
from netfleet.runs import checkpoint
from netfleet.runs.config import experiment
from netfleet.runs.resume import differing, lengthen
from netfleet.runs.run import run_experiment

TABLE: dict[str, Any] = {
    "rounds": 7,
    "seeds": [0, 1],
    "checkpoint_every": 5,
    "topology": {"kind": "ring", "workers": 4},
    "problem": {"kind": "quadratics", "d": 3, "sigma": 0.3},
    "algorithms": [{"kind": "net-fleet", "K": 2, "eta": 0.05}, {"kind": "dsgd", "eta": 0.05}],
    "evaluation": {"every": 2, "full_every": 4},
}


@pytest.mark.parametrize("short", [6, 7, 8])  # the last round is due with less, not due, or due as it is
def test_a_run_that_grows_is_the_long_run(tmp_path: Path, short: int) -> None:
    long = experiment({**TABLE, "rounds": 13})
    whole = run_experiment(long, tmp_path / "whole")
    run_experiment(experiment({**TABLE, "rounds": short}), tmp_path / "grown")
    grown = run_experiment(long, tmp_path / "grown", resume=True)
    for a, b in zip(whole, grown, strict=True):
        assert (b.resumed, b.hash) == (short, a.hash)
        assert b.timeless() == a.timeless() == History.load(b.folder or "").timeless()
        for file in (a.folder or Path()).glob("*.safetensors"):
            theirs = ((b.folder or Path()) / file.name).read_bytes()
            assert theirs.split(b"}", 1)[1] == file.read_bytes().split(b"}", 1)[1]


def test_growing_can_be_repeated_after_a_crash(tmp_path: Path) -> None:
    (first, *_), long = run_experiment(experiment(TABLE), tmp_path), experiment({**TABLE, "rounds": 9})
    checkpoint.assign(first.folder or Path(), long.runs()[0].hash)  # the process died here
    lengthen(long.runs()[0], first.folder or Path())
    lengthen(long.runs()[0], first.folder or Path())
    grown = run_experiment(long, tmp_path, resume=True)
    assert [h.timeless() for h in grown] == [h.timeless() for h in run_experiment(long)]


def test_a_schedule_that_was_planned_for_the_shorter_run_is_refused(tmp_path: Path) -> None:
    def cosine(rounds: int) -> Any:
        eta = {"kind": "cosine", "start": 0.1, "rounds": rounds, "end": 0.01}
        return experiment({**TABLE, "rounds": rounds, "algorithms": [{"kind": "dsgd", "eta": eta}]})

    run_experiment(cosine(6), tmp_path)
    words = "algorithm.eta.rounds is 6 there and 12 here; the rounds that are done had other step sizes"
    with pytest.raises(CheckpointError, match=words):
        run_experiment(cosine(12), tmp_path, resume=True)


def test_a_diverged_run_is_known_by_its_folder_until_it_is_begun_again(tmp_path: Path) -> None:
    wild = experiment({**TABLE, "rounds": 60, "algorithms": [{"kind": "dsgd", "eta": 1e9}]})
    history = run_experiment(wild, tmp_path)[0]
    assert history.folder is not None
    assert History.load(history.folder).diverged == history.diverged is not None
    history.write_config()
    assert History.load(history.folder).diverged is None


VALUES = st.one_of(st.integers(), st.text(max_size=3), st.none())
KEYS = st.sampled_from("abc")
INNER = st.dictionaries(KEYS, VALUES | st.dictionaries(KEYS, VALUES))
TABLES = st.dictionaries(KEYS, VALUES | INNER)


@given(TABLES, TABLES)
def test_keys_that_differ_are_found_from_both_sides(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert differing(a, a) == {}
    assert {key: pair[::-1] for key, pair in differing(b, a).items()} == differing(a, b)
