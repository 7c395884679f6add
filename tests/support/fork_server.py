"""Processes that are forked from one that has loaded netfleet: an import of torch takes seconds, a fork does not.

What a process does from its first line on is the same. Tests of how it starts and ends as a program, and of torchrun,
start real ones.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        "netfleet.sites.runtime.runner",
        "netfleet.sites.operations.process",
        "netfleet.problems",
        "torch._dynamo",  # which an optimizer imports
        "opacus.accountants",
        "support.site_processes",
        "support.site_loops",
        "support.namespaces",
        "support.cluster_ranks",
        "support.frozen",  # the last
    ]
)

Before = Callable[[], None] | None


class ForkedPython:
    """What `python ARGUMENTS` does (`-m MODULE …` or a file) in this folder, on one thread; `more` are variables.

    `before` is called first in the new process.
    """

    def __init__(self, arguments: Sequence[str], more: Mapping[str, str] | None = None, before: Before = None) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._said = [Path(self._folder.name) / name for name in ("out", "err")]
        files, environment = [str(path) for path in self._said], {**os.environ, **(more or {})}
        self._process = SERVER.Process(target=_run, args=(list(arguments), environment, os.getcwd(), files, before))
        self._process.start()
        self.kill, self.pid = self._process.kill, self._process.pid or 0

    def running(self) -> bool:
        return self._process.exitcode is None

    def wait(self, seconds: float = 300.0) -> tuple[int, str, str]:
        """The exit code, the standard output and the standard error of a process that ends in time."""
        self._process.join(seconds)
        code, said = self._process.exitcode, [path.read_text() for path in self._said]
        self.end()
        assert code is not None, f"it did not end: {said}"
        return code, *said  # type: ignore[return-value]

    def end(self) -> None:
        """Kill it, if it is there, and remove what it said."""
        self._process.kill()
        self._process.join()
        self._folder.cleanup()


def _run(arguments: list[str], environment: dict[str, str], folder: str, files: list[str], before: Before) -> None:
    if before is not None:
        before()
    for number, path in enumerate(files, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    torch.set_num_threads(1)
    atexit._clear()  # those of the process that forked this one
    try:
        _execute(arguments)
    except SystemExit:
        raise
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        raise SystemExit(1) from None
    finally:
        atexit._run_exitfuncs()


def _execute(arguments: list[str]) -> None:
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))  # where a script finds its neighbours
        runpy.run_path(arguments[0], run_name="__main__")
