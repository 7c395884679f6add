"""Runs gpt2.py for several methods, numbers of ranks and seeds, and prints the table of docs/own_loop.md.

python examples/plays/compare_gpt2.py                 # what gpt2.json lacks is run: some hours on two cores in all
python examples/plays/compare_gpt2.py --show          # the table only
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
STORED = HERE / "gpt2.json"
BASE = "AdamW"


class Case(NamedTuple):
    """What is compared."""

    method: str
    K: int = 10
    graph: str = "ring"


CASES = {
    Case(BASE): "AdamW, gradients averaged in every step",
    Case("LDSGD", 1, "complete"): "LD-SGD, local AdamW, models averaged in every step",
    Case("LDSGD"): "LD-SGD, local AdamW, K = 10",
    Case("KGT"): "K-GT, local AdamW, K = 10",
    Case("NetFleet"): "NET-FLEET, local AdamW, K = 10",
}
RANKS, SEEDS = (2, 4), (0, 1, 2)
Run = dict[str, object]


def stored() -> list[Run]:
    """The results that there are."""
    found: list[Run] = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else []
    return found


def missing() -> list[tuple[int, Case, int]]:
    """What is to be run: seed, case and number of ranks."""
    done = {(run["seed"], _case(run), run["ranks"]) for run in stored()}
    wanted = [(seed, case, ranks) for seed in SEEDS for ranks in RANKS for case in CASES]
    return [each for each in wanted if each not in done]


def _case(run: Run) -> Case:
    return Case(str(run["method"]), int(str(run["K"])), str(run["graph"]))


def run(seed: int, case: Case, ranks: int) -> None:
    """Run one, and store its result."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    options = ["--method", case.method, "--K", str(case.K), "--graph", case.graph, "--seed", str(seed)]
    command = [*launcher, str(HERE / "gpt2.py"), *options]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    every = [*stored(), json.loads(output.splitlines()[-1])]
    STORED.write_text("[\n" + ",\n".join(map(json.dumps, every)) + "\n]\n", encoding="utf-8")


def losses(case: Case, ranks: int, what: str) -> dict[int, float]:
    """Test losses by seed."""
    found = (run for run in stored() if (_case(run), run["ranks"]) == (case, ranks))
    return {int(str(run["seed"])): float(str(run[what])) for run in found}


def cell(case: Case, ranks: int, what: str) -> str:
    """Mean and standard deviation of the loss, and the mean difference from the base in per cent."""
    own, base = losses(case, ranks, what), losses(Case(BASE), ranks, what)
    seeds = sorted(own.keys() & base.keys())
    if len(seeds) < 2:
        return "–"
    mean, standard = (statistics.mean(values[seed] for seed in seeds) for values in (own, base))
    text = f"{mean:.3f} ± {statistics.stdev(own[seed] for seed in seeds):.3f}"
    return text if case.method == BASE else f"{text} ({100 * (mean / standard - 1):+.1f} %)"


def table() -> str:
    """The results in Markdown."""
    head = [f"{ranks} ranks, {what}" for ranks in RANKS for what in ("average model", "a worker's")]
    lines = [f"| test loss | {' | '.join(head)} |", "|---|" + "---|" * len(head)]
    for case, label in CASES.items():
        cells = [cell(case, ranks, what) for ranks in RANKS for what in ("average model", "worker")]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--show", action="store_true", help="run nothing")
    todo = [] if parser.parse_args().show else missing()
    for number, each in enumerate(todo, start=1):
        print(f"{number} of {len(todo)}: seed {each[0]}, {CASES[each[1]]}, {each[2]} ranks", flush=True)
        run(*each)
    print(table())
