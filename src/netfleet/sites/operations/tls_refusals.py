"""Finds out who is rejected by TLS, and why. gRPC reports this only in its trace, so the trace is read.

    trace_handshakes()                        # before anything imports grpc
    with TlsRefusals() as watch:
        log = Log(site.name, watch.terminal)
        watch.listen(log.refused)

gRPC traces to file descriptor 2. Within the context this is a pipe to a small process (`tls_trace_filter.py`), which
passes on everything that is not gRPC's. A thread is not enough: it would wait for the interpreter's lock while the
holder of the lock waits for the full pipe; and when a site dies, what is in the pipe would be lost, such as the reason.
gRPC traces while connections are made, not while messages flow, so this does not slow messages down.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from types import TracebackType

from netfleet.sites.operations import tls_trace_filter

_ENVIRONMENT = {"GRPC_VERBOSITY": "INFO", "GRPC_TRACE": "handshaker"}
#: Seconds to wait at the end for a child that still holds standard error.
_TIMEOUT = 5.0


def trace_handshakes() -> bool:
    """Make gRPC trace handshakes; False if it is too late, because gRPC was imported before."""
    os.environ.update(_ENVIRONMENT)
    return "grpc" not in sys.modules


class TlsRefusals:
    """Within the context, standard error without gRPC's trace; `terminal` is the real one, for logs and displays."""

    terminal: io.TextIOWrapper

    def __enter__(self) -> TlsRefusals:
        sys.stderr.flush()
        self._original = os.dup(2)  # stays open: a log may write after the end
        self.terminal = open(self._original, "w", buffering=1, errors="backslashreplace", closefd=False)
        self._listener: threading.Thread | None = None
        self._stderr, ours = sys.stderr, _is_standard(sys.stderr)
        read, write = os.pipe()
        try:
            program = [sys.executable, "-I", "-S", tls_trace_filter.__file__]
            self._filter = subprocess.Popen(program, stdin=read, stdout=subprocess.PIPE)
            os.dup2(write, 2)
        finally:
            os.close(read)
            os.close(write)
        if ours:
            sys.stderr = self.terminal  # what Python writes needs no filter, and isatty() stays right
        return self

    def listen(self, refused: Callable[[str, str], None]) -> None:
        """Report every rejection, also those until now, from a thread."""
        self._listener = threading.Thread(target=self._listen, args=(refused,), name="tls-refusals", daemon=True)
        self._listener.start()

    def _listen(self, refused: Callable[[str, str], None]) -> None:
        assert self._filter.stdout is not None
        for line in self._filter.stdout:
            times, who, why = line.decode("utf-8", "replace").rstrip("\n").split("\t")
            for _ in range(int(times)):
                refused(who, why)
        os.dup2(self._original, 2)  # if the filter was killed: a pipe without a reader would block

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if sys.stderr is self.terminal:
            sys.stderr = self._stderr
        os.dup2(self._original, 2)  # the filter now sees the end, unless a child still writes
        assert self._filter.stdout is not None
        if self._listener is None:
            self._filter.stdout.close()
        else:
            self._listener.join(_TIMEOUT)
        try:
            self._filter.wait(_TIMEOUT)
        except subprocess.TimeoutExpired:
            return
        self._filter.stdout.close()


def _is_standard(stream: object) -> bool:
    try:
        return isinstance(stream, io.TextIOWrapper) and stream.fileno() == 2
    except io.UnsupportedOperation:  # a replacement in memory
        return False
