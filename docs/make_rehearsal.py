"""Fills the example of a rehearsal in docs/sites.md from rehearsal.json: python docs/make_rehearsal.py [measure]

With `measure`, the commands are run first on examples/hospitals: sums, plan, rehearsal, training, both evaluations (two
minutes on two idle cores; on a busy machine the ratios of time say nothing). The files of the patients are in the
folder heart of NETFLEET_DATA, or come from UCI; with `measure --made-up` they are drawn by chance, for a trial.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
RESULTS, PAGE, EXAMPLE = HERE / "rehearsal.json", HERE / "sites.md", HERE.parent / "examples" / "hospitals"
SITES = ("cleveland", "hungarian", "switzerland", "va")
NODES, STATISTICS = ("--nodes", "nodes.toml"), ("--set", "problem.data.statistics=statistics.json")


def run(folder: str, *command: str) -> str:
    """The output of a Python command as on a terminal of 100 columns, without the lines about files."""
    environment = os.environ | {"COLUMNS": "100"}
    arguments = [sys.executable, *command]
    done = subprocess.run(arguments, cwd=folder, check=True, text=True, stdout=subprocess.PIPE, env=environment)
    return "\n".join(line.rstrip() for line in done.stdout.splitlines() if not line.startswith("wrote "))


def netfleet(folder: str, *arguments: str) -> str:
    return run(folder, "-m", "netfleet", *arguments)


def measure(*options: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("get_data.py", "hospitals.toml", "nodes.toml"):
            shutil.copy(EXAMPLE / name, folder)
        run(folder, "get_data.py", *options)
        for site in SITES:
            netfleet(folder, "statistics", "hospitals.toml", "--site", site, "--out", f"sums-{site}.json")
        sums = [f"sums-{site}.json" for site in SITES]
        netfleet(folder, "statistics", "hospitals.toml", "--merge", *sums, "--out", "statistics.json")
        netfleet(folder, "plan", "hospitals.toml", *STATISTICS, *NODES, "--out", "plan")
        said = netfleet(folder, "rehearse", "plan")
        netfleet(folder, "up", "plan")
        for site in SITES:
            netfleet(folder, "node", f"plan/{site}", "--alone")
        netfleet(folder, "evaluate", "plan")
        return {"rehearse plan": said, "rehearse plan --compare": netfleet(folder, "rehearse", "plan", "--compare")}


def page() -> str:
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    text = "\n\n".join(f"$ netfleet {command}\n{said.strip()}" for command, said in found.items())
    marked = f"<!-- rehearsal -->\n```console\n{text}\n```\n<!-- end -->"
    return re.sub(
        r"<!-- rehearsal -->.*?<!-- end -->", lambda _: marked, PAGE.read_text(encoding="utf-8"), flags=re.DOTALL
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        RESULTS.write_text(json.dumps(measure(*sys.argv[2:]), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
