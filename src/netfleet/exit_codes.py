"""How a process ends after an error: with a sentence and an exit code, also as a rank with a script of its own.

Exit codes: 0 done, 1 a run diverged or differs, 2 bad input, 75 stopped by a signal after a checkpoint (try again), 130
interrupted. Each error has its own, `NetfleetError.exit_code`.
"""

import atexit
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from netfleet.environment import in_notebook
from netfleet.errors import NetfleetError, TransportError


def exit_on_refusal() -> None:
    """From now on a NetfleetError that nobody catches ends this process with its sentence and its exit code.

    Otherwise Python prints a traceback, exits with 1, and ends while the threads of a process group still run; a thread
    that needs Python then aborts the process (SIGABRT). Interactive sessions stay as they are.
    """
    if not isinstance(sys.excepthook, _Refusal) and not in_notebook() and not sys.flags.interactive:
        sys.excepthook = _Refusal()


class ExitsOnRefusal:
    """A base class: `exit_on_refusal` is called before the arguments of a constructor are checked."""

    def __new__(cls, *arguments: object, **options: object) -> Self:
        exit_on_refusal()
        return super().__new__(cls)


class _Refusal:
    """A `sys.excepthook` that handles the errors of netfleet, and passes others to the one before it."""

    def __init__(self) -> None:
        self._before = sys.excepthook

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, NetfleetError):
            _end(error, _place(trace))
        self._before(kind, error, trace)


def _end(error: NetfleetError, place: str) -> None:
    try:
        announce(error, place)
    finally:
        _exit(error.exit_code)


def _exit(code: int) -> None:
    """End this process without finalization, so that no thread of torch's can abort it."""
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
    finally:
        sys.stderr.flush()
        os._exit(code)


@contextmanager
def waiting_for(busy: Callable[[], bool]) -> Iterator[None]:
    """Within this, the main thread waits for one that is `busy`, maybe in torch, where nothing can interrupt it.

    If the wait is given up (Ctrl-C, or what a signal's handler raises) and that thread is still busy when the process
    ends, then it ends without finalization, in which Python may abort it (SIGABRT).
    """
    try:
        yield
    except BaseException as error:
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        atexit.register(_leave, busy, code)
        raise


def _leave(busy: Callable[[], bool], code: int) -> None:
    """Runs before everything else at the end, since it is the last that was registered."""
    if busy():
        atexit.unregister(_leave)
        _exit(code)


def _place(trace: TracebackType | None) -> str:
    """Where in the script that was started the error came from."""
    script = str(vars(sys.modules["__main__"]).get("__file__", ""))
    lines = [frame.lineno for frame in traceback.extract_tb(trace) if frame.filename == script]
    return f" ({Path(script).name}, line {lines[-1]})" if lines else ""


def announce(error: NetfleetError, place: str = "") -> None:
    """Print an error's sentence, and pass it to torchrun, whose report shows it."""
    rank = f"rank {os.environ.get('RANK', '?')}: " if int(os.environ.get("WORLD_SIZE", "1")) > 1 else ""
    print(f"netfleet: error: {rank}{error}{place}", file=sys.stderr)
    report = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    if report and not Path(report).exists():
        # torchrun takes the earliest for the cause, in whole seconds; that another rank is gone is a consequence
        when = int(time.time()) + isinstance(error, TransportError)
        words = {"message": f"{error}{place}", "extraInfo": {"timestamp": str(when)}}
        with suppress(OSError):  # torchrun's report then has the exit code only
            Path(report).write_text(json.dumps({"message": words}), encoding="utf-8")
