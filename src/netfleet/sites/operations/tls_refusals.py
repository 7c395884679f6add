"""Who is refused by TLS itself, and why: gRPC tells nobody, so its trace is read.

    handshakes.prepare()                      # before anything imports grpc
    with Handshakes() as watch:
        log = Log(site.name, watch.terminal)
        watch.listen(log.refused)

gRPC traces to file descriptor 2. Within the context this is a pipe to a small process of its own (`sieve.py`), which
passes on all that is not gRPC's. A thread would do it too, until it waits for the interpreter's lock, which a writer
holds that waits for the pipe; and what was in the pipe when a site died would be lost, such as the reason. The trace is
written while connections are made, not while messages flow: it does not slow them.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from types import TracebackType

from netfleet.sites.operations import tls_trace_filter as sieve

_ENVIRONMENT = {"GRPC_VERBOSITY": "INFO", "GRPC_TRACE": "handshaker"}
#: Seconds for which a child that still holds standard error is waited for at the end.
_PATIENCE = 5.0


def prepare() -> bool:
    """Make gRPC trace handshakes; whether it will, for it reads its environment once, when it is first imported."""
    os.environ.update(_ENVIRONMENT)
    return "grpc" not in sys.modules


class Handshakes:
    """Within the context, standard error without gRPC's trace; `terminal` is the real one, for logs and displays."""

    terminal: io.TextIOWrapper

    def __enter__(self) -> Handshakes:
        sys.stderr.flush()
        self._original = os.dup(2)  # stays open: a log may have a last word after the end
        self.terminal = open(self._original, "w", buffering=1, errors="backslashreplace", closefd=False)
        self._listener: threading.Thread | None = None
        self._stderr, ours = sys.stderr, _is_standard(sys.stderr)
        read, write = os.pipe()
        try:
            program = [sys.executable, "-I", "-S", sieve.__file__]
            self._sieve = subprocess.Popen(program, stdin=read, stdout=subprocess.PIPE)
            os.dup2(write, 2)
        finally:
            os.close(read)
            os.close(write)
        if ours:
            sys.stderr = self.terminal  # Python's own words need no detour, and a terminal is known as one
        return self

    def listen(self, refused: Callable[[str, str], None]) -> None:
        """Tell of every refusal from now on, and of those until now; from a thread."""
        self._listener = threading.Thread(target=self._listen, args=(refused,), name="handshakes", daemon=True)
        self._listener.start()

    def _listen(self, refused: Callable[[str, str], None]) -> None:
        assert self._sieve.stdout is not None
        for line in self._sieve.stdout:
            times, who, why = line.decode("utf-8", "replace").rstrip("\n").split("\t")
            for _ in range(int(times)):
                refused(who, why)
        os.dup2(self._original, 2)  # if it was killed: no pipe without a reader

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if sys.stderr is self.terminal:
            sys.stderr = self._stderr
        os.dup2(self._original, 2)  # the sieve now sees the end, unless a child still writes
        assert self._sieve.stdout is not None
        if self._listener is None:
            self._sieve.stdout.close()
        else:
            self._listener.join(_PATIENCE)
        try:
            self._sieve.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            return
        self._sieve.stdout.close()


def _is_standard(stream: object) -> bool:
    try:
        return isinstance(stream, io.TextIOWrapper) and stream.fileno() == 2
    except io.UnsupportedOperation:  # a stand-in in memory
        return False
