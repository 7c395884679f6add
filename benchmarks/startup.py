"""How soon something happens: the help, and the first round of the demo, each in a process of its own."""

import functools
import sys
import tempfile

from benchmarks.measure import ResultTable, Spread, alternating, ratio
from benchmarks.processes import output
from benchmarks.setting import Setting

ONE_ROUND = "import netfleet as nf; nf.simulate(nf.NetFleet(), topology='erdos-renyi', workers=20, rounds=1)"
COMPILE = "from netfleet.gradients.native.build import library; library()"


def run(setting: Setting) -> ResultTable:
    table = ResultTable("Start-up", "what | seconds | ÷ importing torch")
    with tempfile.TemporaryDirectory() as folder:
        demo = ["run", "--set", "rounds=1", "--set", "seeds=[0]", "--out", f"{folder}/run", "--overwrite"]
        commands = {
            "python -c 'import torch'": ["-c", "import torch"],
            "netfleet --help": ["-m", "netfleet", "--help"],
            "the demo's problem and its first round, in Python": ["-c", ONE_ROUND],
            "the demo cut to one round of its four methods, with plots and report": ["-m", "netfleet", *demo],
        }
        names = list(commands)[: setting.pick(4, 4, 2)]
        runs = [functools.partial(output, [sys.executable, *commands[name]]) for name in names]
        times = alternating(runs, setting.pick(5, 2, 1))
        for name, taken in zip(names, times, strict=True):
            table.add(name, Spread.of(taken), ratio(taken, times[0]))
        if repeats := setting.pick(3, 2, 0):
            compile_again = [sys.executable, "-c", COMPILE]  # in an empty cache
            (taken,) = alternating(
                [lambda: output(compile_again, XDG_CACHE_HOME=tempfile.mkdtemp(dir=folder))], repeats
            )
            table.add("compiling the native library, once per machine", Spread.of(taken), "")
    return table
