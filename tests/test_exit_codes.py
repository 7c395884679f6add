"""A refusal ends a process with its sentence and exit code 2, also a rank with a script of its own; and the version."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import netfleet
from netfleet.cli import main
from support.fork_server import ForkedPython

SCRIPT = Path(__file__).parent / "support" / "refusing_script.py"
SENTENCE = {"constructor": "must be a whole number from 1 on", "step": "parameters cannot be added later"}
#: A script that has work to do at its end, and a line that is not written out yet.
PROGRAM = """
import atexit, sys
from netfleet.errors import {kind}
from netfleet.exit_codes import exit_on_refusal
exit_on_refusal(); exit_on_refusal()
atexit.register(print, "the script's own end")
sys.stdout.write("so far\\n")
raise {kind}("no such thing; take another")
"""


def ended(folder: Path, kind: str) -> subprocess.CompletedProcess[str]:
    path = folder / "train.py"
    path.write_text(PROGRAM.format(kind=kind))
    more = {"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_ERROR_FILE": str(folder / "error.json")}
    return subprocess.run(
        [sys.executable, path], env={**os.environ, **more}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("kind", "code"), [("ConfigError", 2), ("DivergedError", 1), ("StoppedError", 75)])
def test_an_error_that_nobody_catches_is_a_sentence_and_an_exit_code(tmp_path: Path, kind: str, code: int) -> None:
    done = ended(tmp_path, kind)
    assert done.returncode == code
    assert done.stderr == "netfleet: error: rank 1: no such thing; take another (train.py, line 8)\n"
    assert done.stdout == "so far\nthe script's own end\n"
    report = json.loads((tmp_path / "error.json").read_text())  # torchrun shows it
    assert report["message"]["message"] == "no such thing; take another (train.py, line 8)"


def test_other_errors_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("from netfleet.exit_codes import exit_on_refusal\nexit_on_refusal()\n1 / 0\n")
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")


@pytest.mark.slow
@pytest.mark.parametrize(("who", "where"), [("all", "constructor"), ("1", "step")])
def test_a_refusal_under_torchrun_is_a_sentence_and_no_abort(who: str, where: str) -> None:
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(SCRIPT), who, where]
    code, _, errors = ForkedPython(command, {"OMP_NUM_THREADS": "1"}).wait()  # the ranks are new processes
    assert code == 1  # torchrun's own
    said = re.findall(r"^netfleet: error: rank (\d): (.*)$", errors, flags=re.MULTILINE)
    refused = sorted(rank for rank, sentence in said if SENTENCE[where] in sentence)
    assert refused in ([["0", "1"], ["0"], ["1"]] if who == "all" else [["1"]]), errors  # torchrun ends the others
    report = errors.partition("Root Cause")[2]
    assert re.search(r"exitcode *: 2 ", report), errors
    assert SENTENCE[where] in report
    assert not re.search(r"SIGABRT|terminate called|exitcode *: -6", errors)


# ---- the version ----


def test_there_is_one_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"netfleet {netfleet.__version__}\n"
    assert metadata.version("netfleet") == netfleet.__version__
    cited = re.findall(r"^version: (.*)$", (SCRIPT.parents[2] / "CITATION.cff").read_text(), flags=re.MULTILINE)
    assert cited == [netfleet.__version__]


def test_the_version_needs_neither_torch_nor_an_installation(tmp_path: Path) -> None:
    program = "import sys, netfleet; print(netfleet.__version__, 'torch' in sys.modules)"
    source = {"PYTHONPATH": str(SCRIPT.parents[2] / "src")}
    command = [sys.executable, "-S", "-c", program]  # without installed packages
    done = subprocess.run(command, env=source, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [netfleet.__version__, "False"]
