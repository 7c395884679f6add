"""Finds out who is rejected by TLS, and why. gRPC reports this only in its trace, so the trace is read.

    trace_handshakes()                        # before anything imports grpc
    with TlsRefusals() as watch:
        log = Log(site.name, watch.terminal)
        watch.listen(log.refused)

gRPC traces to file descriptor 2, in records such as

    I1117 04:16:56.397934    5336 handshaker.cc:155] CallNextHandshakerLocked: error=UNKNOWN: Ssl handshake failed (…
    === Source Location Trace: ===
    src/core/util/status_helper.cc:68
     shutdown=false index=2, args={…, grpc.internal.endpoint_peer_address=ipv4:127.0.0.1:34042, …}, exit_early=0}

Within the context the descriptor is a pipe of packets to a small process, which runs this file and passes on everything
that is not gRPC's; so the file imports nothing but Python. A thread is not enough: it would wait for the interpreter's
lock while the holder of the lock waits for the full pipe; and when a site dies, what is in the pipe would be lost, such
as the reason. gRPC traces while connections are made, not while messages flow, so this does not slow messages down.
"""

import io
import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

#: Who was rejected, and why.
Refusal = tuple[str, str]
#: Seconds to wait at the end for a child that still holds standard error.
_TIMEOUT = 5.0
#: Kinds of rejections that wait to be reported, and errors from one place in gRPC's source that are passed on.
_WAITING, _ERRORS = 1000, 10
_LONGEST = 1 << 16
#: Written to standard error: all rejections before it are wanted now. It is answered by a line without a rejection.
_FLUSH, _FLUSHED = b"\0netfleet: all rejections until now\n", b"0\t\t\n"
_RECORD = re.compile(rb"(?P<level>[IWEF])\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ (?P<place>[\w.]+\.(?:cc|h):\d+)\] ")
_FORERUNNER = re.compile(rb"WARNING: All log messages before absl::InitializeLog\(\)")
#: A client asks for a server of another name. It may send any bytes as that name, such as lines of this site's log.
_SERVER_NAME = re.compile(_RECORD.pattern + rb"No match found for server name: ")
_MORE = re.compile(rb"=== Source Location Trace: ===| shutdown=(?:true|false) index=\d|src/[\w./-]+:\d+\s*$")
_MORE_BEGINS = (b"=== Source", b" shutdown=", b"src/")
_FAILED = re.compile(r"CallNextHandshakerLocked: error=(?P<error>(?!OK ).*?) shutdown=", re.DOTALL)
_PEER = re.compile(r"\bgrpc\.internal\.endpoint_peer_address=([^,\s}]{1,100})")
_SERVER = re.compile(r"\bgrpc\.ssl_target_name_override=([^,\s}]{1,100})")
_WORDS = re.compile(r"OPENSSL_internal:([\w: ]{1,100}?)(?:: Invalid certificate verification context|: OK|$)", re.M)
OTHER_AUTHORITY = "a certificate of another authority"
#: The same words of OpenSSL, where a client knows the server by its own certificate.
NOT_PINNED = "a certificate that is not pinned here, or of another authority"
_REASONS = [
    (re.compile(pattern), why)
    for pattern, why in (
        ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "no certificate"),
        ("certificate has expired", "an expired certificate"),
        ("certificate is not yet valid", "a certificate that is not yet valid"),
        ("unsupported certificate purpose", "a certificate that is not for this purpose"),
        ("unable to get .*issuer|self.signed|certificate signature failure", OTHER_AUTHORITY),
        ("Hostname Verification Check failed|not in peer certificate", "a certificate of another name"),
        ("WRONG_VERSION_NUMBER|HTTP_REQUEST|HTTPS_PROXY_REQUEST", "plaintext, not TLS"),
        ("UNSUPPORTED_PROTOCOL|PROTOCOL_VERSION|UNSUPPORTED_VERSION", "a version of TLS that is too old"),
        ("_ALERT_", "an alert: it does not take this site's certificate ({})"),
        ("CERTIFICATE|verification check failed", "a certificate that cannot be verified ({})"),
        ("handshake failed|TSI_", "a TLS handshake that failed ({})"),
    )
]


def trace_handshakes() -> bool:
    """Make gRPC trace handshakes; False if it is too late, because gRPC was imported before."""
    os.environ.update(GRPC_VERBOSITY="INFO", GRPC_TRACE="handshaker")
    return "grpc" not in sys.modules


class TlsRefusals:
    """Within the context, standard error without gRPC's trace; `terminal` is the real one, for logs and displays.

    With `to_the_end` the trace is removed until this process ends, because gRPC also traces connections that it gives
    up after they were closed; rejections are reported within the context only.
    """

    terminal: io.TextIOWrapper

    def __init__(self, to_the_end: bool = False) -> None:
        self._to_the_end = to_the_end

    def __enter__(self) -> "TlsRefusals":
        sys.stderr.flush()
        self._original = os.dup(2)  # stays open: a log may write after the end
        self.terminal = open(self._original, "w", buffering=1, errors="backslashreplace", closefd=False)
        self._listener: threading.Thread | None = None
        self._stderr, ours = sys.stderr, _is_standard(sys.stderr)
        read, write = os.pipe2(os.O_DIRECT)  # packets: what one call writes is read by one call, up to 4 kB
        try:
            program = [sys.executable, "-I", "-S", __file__]
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
            if line == _FLUSHED:
                return
            times, who, why = line.decode("utf-8", "replace").rstrip("\n").split("\t")
            for _ in range(int(times)):
                refused(who, why)
        os.dup2(self._original, 2)  # if the filter was killed: a pipe without a reader would block

    def __exit__(self, *error: object) -> None:
        if self._to_the_end and self._filter.poll() is None:
            os.write(2, _FLUSH)
            if self._listener is not None:
                self._listener.join(_TIMEOUT)
            return
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


class TraceFilter:
    """Splits what was written to standard error: gRPC's trace is removed, the rest passes."""

    def __init__(self) -> None:
        self._rest = b""  # the beginning of a line that may be gRPC's
        self._within = False  # whether the last line was passed on without its end
        self._record: list[bytes] = []  # the lines of gRPC's last record
        self._errors: Counter[bytes] = Counter()

    def feed(self, data: bytes) -> tuple[bytes, list[Refusal]]:
        """What to pass on of these bytes and those before, and the rejections found."""
        passed, found = bytearray(), list[Refusal]()
        if _SERVER_NAME.match(data):
            return b"", found  # all of it: the name that a stranger asked for may have line breaks
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            passed += self._line(line + b"\n", found)
        self._rest = rest if self._may_be_grpc(rest) else b""
        if rest and not self._rest:
            self._within = True
            passed += rest
        return bytes(passed), found

    def end(self) -> tuple[bytes, list[Refusal]]:
        """What was still held back at the end."""
        found = list[Refusal]()
        return self._line(self._rest, found) if self._rest else b"", found

    def _may_be_grpc(self, rest: bytes) -> bool:
        """Whether a line that begins like this may be gRPC's; any other line passes before its end."""
        if self._within or len(rest) > _LONGEST:
            return False
        if rest[:1] in (b"I", b"W", b"E", b"F"):
            return len(rest) == 1 or rest[1:2].isdigit()
        return bool(self._record) and any(rest.startswith(each) or each.startswith(rest) for each in _MORE_BEGINS)

    def _line(self, line: bytes, found: list[Refusal]) -> bytes:
        if self._within:
            self._within = False
            return line
        if (record := _RECORD.match(line)) is not None:
            self._record = [line]
            if _SERVER_NAME.match(line):
                return b""
            if not self._kept_back(record):
                self._record = []
                return line
        elif self._record and (_MORE.match(line) or (line == b"\n" and self._record[-1].startswith(b"src/"))):
            self._record.append(line)
        else:
            self._record = []
            return b"" if _FORERUNNER.match(line) else line
        if b"exit_early=" in line:
            found += refusals(b"".join(self._record).decode("utf-8", "replace"))
        return b""

    def _kept_back(self, record: re.Match[bytes]) -> bool:
        """Traces are; errors are not, unless there are many of one kind; a fatal error never is."""
        if record["level"] != b"E":
            return record["level"] != b"F"
        self._errors[record["place"]] += 1
        return self._errors[record["place"]] > _ERRORS


def refusals(record: str) -> list[Refusal]:
    """Who was rejected and why, if a record says so."""
    failed, peer, server = _FAILED.search(record), _PEER.search(record), _SERVER.search(record)
    if failed is None or peer is None:
        return []
    why = failure(failed["error"])
    if server is not None:
        why = NOT_PINNED if why == OTHER_AUTHORITY else why
        return [(f"{server[1]} ({peer[1]})", f"answers with {why}")] if why else []
    if "Endpoint closing" in failed["error"]:  # from this side
        why = "no TLS handshake in time"
    return [(peer[1], why)] if why else []


def failure(error: str) -> str | None:
    """Why a handshake failed, in our words; None if the other closed the connection or could not be reached."""
    words = _WORDS.search(error)
    found = (why for pattern, why in _REASONS if pattern.search(error))
    return next((why.format(words[1] if words else "unknown") for why in found), None)


def run_filter(source: int, reports: int, output: int) -> None:
    """Copy from one file descriptor to another until the end, and report rejections on a third.

    The copy never waits for a reader of `reports`: what does not fit waits here.
    """
    trace_filter, waiting = TraceFilter(), Counter[Refusal]()
    os.set_blocking(reports, False)
    while True:
        readable, _, _ = select.select([source], [reports] if waiting else [], [])
        _report(waiting, reports)
        if readable:
            data = os.read(source, 1 << 16)
            if data == _FLUSH:  # a packet of its own
                _flush(waiting, reports)
                continue
            passed, found = trace_filter.feed(data) if data else trace_filter.end()
            _write(output, passed)
            for who, why in found:
                waiting[(who, why) if len(waiting) < _WAITING else ("others", why)] += 1
            if not data:
                break
    os.set_blocking(reports, True)
    _report(waiting, reports)


def _flush(waiting: Counter[Refusal], reports: int) -> None:
    os.set_blocking(reports, True)
    _report(waiting, reports)
    with suppress(OSError):  # nobody reads the reports
        os.write(reports, _FLUSHED)
    os.set_blocking(reports, False)


def _report(waiting: Counter[Refusal], reports: int) -> None:
    while waiting:
        (who, why), times = next(iter(waiting.items()))
        try:
            os.write(reports, f"{times}\t{who}\t{why}\n".encode())  # short enough to be written at once or not at all
        except BlockingIOError:
            return
        except OSError:  # nobody reads the reports
            waiting.clear()
            return
        del waiting[who, why]


def _write(output: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(output, data) :]
        except BlockingIOError:
            select.select([], [output], [])
        except OSError:  # a closed terminal must not block the writer
            return


if __name__ == "__main__":
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # it ends when nobody can write any more, so it loses nothing
    run_filter(0, 1, 2)
