"""The examples of a training loop of one's own do what they say."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import pytest

from netfleet import load_experiment
from support.torchrun import finish, start

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
LOOPS = EXAMPLES / "own_loop"


def test_a_loop_becomes_decentralized_by_a_handful_of_lines() -> None:
    plain, ours = ((LOOPS / name).read_text().splitlines() for name in ("plain.py", "decentralized.py"))
    body = [lines[lines.index('"""', 1) :] for lines in (plain, ours)]
    changed = [line for line in difflib.ndiff(*body) if line.startswith("+ ")]
    assert len(changed) <= 12, changed


@pytest.mark.parametrize(("script", "ranks", "steps"), [("plain.py", 1, 300), ("decentralized.py", 2, 75)])
def test_both_loops_learn(script: str, ranks: int, steps: int) -> None:
    options = ["--data", "digits", "--lr", "0.05", "--steps", str(steps)]
    ends = finish(start([str(LOOPS / script), *options], ranks))
    assert [code for code, _, _ in ends] == [0] * ranks, ends[0][2]
    assert float(re.findall(r"accuracy ([\d.]+) %", ends[0][1])[-1]) > 60  # guessing: 10


def test_the_simulated_loop_is_the_same_setting() -> None:
    (only,) = load_experiment(LOOPS / "simulated.toml").runs()
    script = (LOOPS / "decentralized.py").read_text()
    assert only.config["algorithm"]["eta"] == float(re.search(r'"--lr".*default=([\d.]+)', script)[1])  # type: ignore[index]
    assert only.config["rounds"] == int(re.search(r'"--steps".*default=(\d+)', script)[1])  # type: ignore[index]
    assert f"K={only.config['algorithm']['K']}" in script
    assert f"batch_size={only.config['problem']['batch']}" in script
