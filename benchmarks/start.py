"""How soon something happens: the help, and the first round of the demo."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping

from benchmarks.measure import Report, Spread, alternating, ratio

ONE_ROUND = "import netfleet as nf; nf.simulate(nf.NetFleet(), topology='erdos-renyi', workers=20, rounds=1)"
COMPILE = "from netfleet.gradients.native.build import library; library()"


def run(quick: bool) -> Report:
    """Each a process of its own."""
    report = Report("start", "Start-up", ("what", "seconds", "÷ importing torch"))
    with tempfile.TemporaryDirectory() as folder:
        demo = ["run", "--set", "rounds=1", "--set", "seeds=[0]", "--out", f"{folder}/run", "--overwrite"]
        commands = {
            "python -c 'import torch'": ["-c", "import torch"],
            "netfleet --help": ["-m", "netfleet", "--help"],
            "the demo's problem and its first round, in Python": ["-c", ONE_ROUND],
            "the demo cut to one round of its four methods, with plots and report": ["-m", "netfleet", *demo],
        }
        runs = [functools.partial(_run, command, os.environ) for command in commands.values()]
        times = alternating(runs, 2 if quick else 5)
        for name, taken in zip(commands, times, strict=True):
            report.add(name, Spread.of(taken), ratio(taken, times[0]))
        taken = alternating([lambda: _run(["-c", COMPILE], _without_cache(folder))], 2 if quick else 3)[0]
        report.add("compiling the native library, once per machine", Spread.of(taken), "")
    return report


def _run(command: list[str], environment: Mapping[str, str]) -> None:
    subprocess.run([sys.executable, *command], env=environment, check=True, capture_output=True)


def _without_cache(folder: str) -> dict[str, str]:
    """An environment in which nothing was compiled yet."""
    return {**os.environ, "XDG_CACHE_HOME": tempfile.mkdtemp(dir=folder)}
