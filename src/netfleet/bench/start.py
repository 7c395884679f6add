"""How soon something happens: the help, and the first round of the demo."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from netfleet.bench.measure import Report, Spread, alternating


def run(quick: bool) -> Report:
    """Each a process of its own."""
    report = Report("start", "Start-up", ("what", "seconds", "÷ importing torch"))
    first = "netfleet.demo, one round of one method"
    with tempfile.TemporaryDirectory() as folder:
        cold = {**os.environ, "XDG_CACHE_HOME": folder}
        one = ["--set", "rounds=1", "--set", "seeds=[0]", "--out", f"{folder}/run", "--overwrite"]
        commands = {
            "python -c 'import torch'": ([sys.executable, "-c", "import torch"], None),
            "netfleet --help": ([sys.executable, "-m", "netfleet", "--help"], None),
            f"{first}, with report": ([sys.executable, "-m", "netfleet", "run", *one], None),
        }
        runs = [
            lambda c=c, e=e: subprocess.run(c, env=e, check=True, capture_output=True) for c, e in commands.values()
        ]
        times = alternating(runs, 2 if quick else 5)
        for name, taken in zip(commands, times, strict=True):
            relative = Spread.of([a / b for a, b in zip(taken, times[0], strict=True)])
            report.add(name, Spread.of(taken), relative)
        compiling = [sys.executable, "-c", "from netfleet.native.build import library; library()"]
        taken = alternating([lambda: subprocess.run(compiling, env=_emptied(cold), check=True)], 2 if quick else 3)[0]
        report.add("compiling the native library, once per machine", Spread.of(taken), "")
    return report


def _emptied(environment: dict[str, str]) -> dict[str, str]:
    """The environment with a cache folder that nothing was compiled into yet."""
    return {**environment, "XDG_CACHE_HOME": tempfile.mkdtemp(dir=environment["XDG_CACHE_HOME"])}
