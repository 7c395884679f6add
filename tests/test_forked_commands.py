"""Forked commands behave as real ones do: streams, exit codes, signals, and an end with their caller."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.forked_commands import forked_commands

#: Says its number, and then waits for what it is asked to do.
WAITS = """
import os, signal, sys, time
print(os.getpid(), sys.executable, flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def commands() -> Iterator[Path]:
    with forked_commands() as folder:
        yield folder


@contextlib.contextmanager
def waiting(commands: Path, folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A command that waits, and the process that it stands for."""
    (folder / "waits.py").write_text(WAITS)
    command = [commands / "python", "-u", "waits.py"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        pid, executable = client.stdout.readline().split()
        assert executable == str(commands / "python")
        assert int(pid) != client.pid
        yield client, int(pid)


def test_streams_variables_folder_and_exit_code(commands: Path, tmp_path: Path) -> None:
    program = "import os, sys; print(sys.stdin.read(), os.environ['WORD'], os.getcwd(), sys.argv[1:]); sys.exit('why')"
    (tmp_path / "says.py").write_text(program)
    for python in (commands / "python", Path(sys.executable)):
        done = subprocess.run(
            [python, "says.py", "a b"],
            input="in",
            cwd=tmp_path,
            env=os.environ | {"WORD": "word"},
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stdout, done.stderr) == (1, f"in word {tmp_path} ['a b']\n", "why\n"), python


def test_netfleet_is_the_command_line(commands: Path, tmp_path: Path) -> None:
    done = subprocess.run([commands / "netfleet", "run", "no.toml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no.toml" in done.stderr


def test_code_on_the_command_line_is_left_to_the_real_python(commands: Path) -> None:
    code = "import sys; print(sys.executable, 'torch' in sys.modules)"
    done = subprocess.run([commands / "python", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{sys.executable} False\n"


def test_a_signal_goes_on_and_ends_both(commands: Path, tmp_path: Path) -> None:
    with waiting(commands, tmp_path) as (client, pid):
        client.terminate()
        assert client.wait(30) == -signal.SIGTERM
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_process_whose_caller_is_killed_ends(commands: Path, tmp_path: Path) -> None:
    with waiting(commands, tmp_path) as (client, _):
        client.kill()
        assert client.stdout is not None
        assert client.stdout.read() == ""  # it ends when the process does, which has the other end


def test_the_way_in_which_a_process_died_is_told(commands: Path, tmp_path: Path) -> None:
    with waiting(commands, tmp_path) as (client, pid):
        os.kill(pid, signal.SIGKILL)
        assert client.wait(30) == -signal.SIGKILL
