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
    assert len(changed) <= 10, changed


@pytest.mark.parametrize(("script", "ranks", "steps"), [("plain.py", 1, 200), ("decentralized.py", 2, 300)])
def test_both_loops_learn(script: str, ranks: int, steps: int) -> None:
    options = ["--data", "digits", "--lr", "0.005", "--steps", str(steps)]
    ends = finish(start([str(LOOPS / script), *options], ranks))
    assert [code for code, _, _ in ends] == [0] * ranks, ends[0][2]
    assert float(re.findall(r"accuracy ([\d.]+) %", ends[0][1])[-1]) > 60  # guessing: 10


def test_the_files_beside_it_are_the_same_setting() -> None:
    (simulated,), (planned,) = (load_experiment(LOOPS / name).runs() for name in ("simulated.toml", "sites.toml"))
    script, method = (LOOPS / "decentralized.py").read_text(), simulated.config["algorithm"]
    steps, lr = (re.search(rf'"--{name}".*default=([\d.]+)', script)[1] for name in ("steps", "lr"))  # type: ignore[index]
    assert method["eta"]["start"] == float(lr)
    assert (
        simulated.config["rounds"] == planned.config["rounds"] == int(steps) // method["K"] == method["eta"]["rounds"]
    )
    assert {**method, "eta": 0} == {**planned.config["algorithm"], "eta": 0}
    assert f"KGT(model.parameters(), lr=options.lr, K={method['K']}, local=torch.optim.AdamW)" in script
    assert f"batch_size={simulated.config['problem']['batch']}" in script
