"""What gRPC writes about TLS handshakes, taken out of a stream of bytes that is otherwise passed on as it is.

gRPC tells no caller why a handshake failed; it only traces it, to standard error, in records such as

    I1117 04:16:56.397934    5336 handshaker.cc:155] CallNextHandshakerLocked: error=UNKNOWN: Ssl handshake failed (…
    === Source Location Trace: ===
    src/core/util/status_helper.cc:68
     shutdown=false index=2, args={…, grpc.internal.endpoint_peer_address=ipv4:127.0.0.1:34042, …}, exit_early=0}

This file runs as a program too, beside a site's process (see `handshakes.py`), and so needs nothing but Python.
"""

from __future__ import annotations

import os
import re
import select
import signal
from collections import Counter

#: Who was refused, and why.
Refusal = tuple[str, str]

#: Refusals that wait for being told, and errors of gRPC from one place in its source that are passed on.
_WAITING, _ERRORS = 1000, 10
_LONGEST = 1 << 16
_RECORD = re.compile(rb"(?P<level>[IWEF])\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ (?P<place>[\w.]+\.(?:cc|h):\d+)\] ")
_FORERUNNER = re.compile(rb"WARNING: All log messages before absl::InitializeLog\(\)")
_MORE = re.compile(rb"=== Source Location Trace: ===| shutdown=(?:true|false) index=\d|src/[\w./-]+:\d+\s*$")
_MORE_BEGINS = (b"=== Source", b" shutdown=", b"src/")
_FAILED = re.compile(r"CallNextHandshakerLocked: error=(?P<error>(?!OK ).*?) shutdown=", re.DOTALL)
_PEER = re.compile(r"\bgrpc\.internal\.endpoint_peer_address=([^,\s}]{1,100})")
_SERVER = re.compile(r"\bgrpc\.ssl_target_name_override=([^,\s}]{1,100})")
_WORDS = re.compile(r"OPENSSL_internal:([\w: ]{1,100}?)(?:: Invalid certificate verification context|: OK|$)", re.M)
_REASONS = [
    (re.compile(pattern), why)
    for pattern, why in (
        ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "no certificate"),
        ("certificate has expired", "an expired certificate"),
        ("certificate is not yet valid", "a certificate that is not yet valid"),
        ("unsupported certificate purpose", "a certificate that is not for this purpose"),
        ("unable to get .*issuer|self.signed|certificate signature failure", "a certificate of another authority"),
        ("Hostname Verification Check failed|not in peer certificate", "a certificate of another name"),
        ("WRONG_VERSION_NUMBER|HTTP_REQUEST|HTTPS_PROXY_REQUEST", "plaintext, not TLS"),
        ("UNSUPPORTED_PROTOCOL|PROTOCOL_VERSION|UNSUPPORTED_VERSION", "a version of TLS that is too old"),
        ("_ALERT_", "an alert: it does not take this site's certificate ({})"),
        ("CERTIFICATE|verification check failed", "a certificate that cannot be verified ({})"),
        ("handshake failed|TSI_", "a TLS handshake that failed ({})"),
    )
]


class Sieve:
    """Sorts what was written to standard error: gRPC's trace is kept back, the rest passes."""

    def __init__(self) -> None:
        self._rest = b""  # of a line that may become gRPC's
        self._within = False  # whether the line before was passed on without its end
        self._record: list[bytes] = []  # lines of gRPC's last record
        self._errors: Counter[bytes] = Counter()

    def feed(self, data: bytes) -> tuple[bytes, list[Refusal]]:
        """What to pass on of these bytes and those before, and the refusals found."""
        passed, found = bytearray(), list[Refusal]()
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            passed += self._line(line + b"\n", found)
        self._rest = rest if self._may_be_grpc(rest) else b""
        if rest and not self._rest:
            self._within = True
            passed += rest
        return bytes(passed), found

    def end(self) -> tuple[bytes, list[Refusal]]:
        """What was still held back."""
        found: list[Refusal] = []
        return self._line(self._rest, found) if self._rest else b"", found

    def _may_be_grpc(self, rest: bytes) -> bool:
        """Whether a line that begins like this may be gRPC's; what cannot be is not held up until the line ends."""
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
        """Traces are; errors are not, unless there are many of one kind; what gRPC says when it dies never is."""
        if record["level"] != b"E":
            return record["level"] != b"F"
        self._errors[record["place"]] += 1
        return self._errors[record["place"]] > _ERRORS


def refusals(record: str) -> list[Refusal]:
    """Who was refused and why, if a record of gRPC says that."""
    failed, peer, server = _FAILED.search(record), _PEER.search(record), _SERVER.search(record)
    if failed is None or peer is None:
        return []
    why = failure(failed["error"])
    if server is not None:
        return [(f"{server[1]} ({peer[1]})", f"answers with {why}")] if why else []
    if "Endpoint closing" in failed["error"]:  # from this side
        why = "no TLS handshake in time"
    return [(peer[1], why)] if why else []


def failure(error: str) -> str | None:
    """What a handshake failed for, in our words; None where the other hung up, or could not be reached."""
    words = _WORDS.search(error)
    found = (why for pattern, why in _REASONS if pattern.search(error))
    return next((why.format(words[1] if words else "unknown") for why in found), None)


def sift(source: int, told: int, through: int) -> None:
    """Copy from one file descriptor to another until there is no more, and tell of refusals on a third.

    Nobody ever waits for `told` to be read: what does not fit waits here.
    """
    sieve, waiting = Sieve(), Counter[Refusal]()
    os.set_blocking(told, False)
    while True:
        readable, _, _ = select.select([source], [told] if waiting else [], [])
        _tell(waiting, told)
        if readable:
            data = os.read(source, 1 << 16)
            passed, found = sieve.feed(data) if data else sieve.end()
            _write(through, passed)
            for who, why in found:
                waiting[(who, why) if len(waiting) < _WAITING else ("others", why)] += 1
            if not data:
                break
    os.set_blocking(told, True)
    _tell(waiting, told)


def _tell(waiting: Counter[Refusal], told: int) -> None:
    while waiting:
        (who, why), times = next(iter(waiting.items()))
        try:
            os.write(told, f"{times}\t{who}\t{why}\n".encode())  # short enough to be written at once or not at all
        except BlockingIOError:
            return
        except OSError:  # nobody is there to be told
            waiting.clear()
            return
        del waiting[who, why]


def _write(through: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(through, data) :]
        except BlockingIOError:
            select.select([], [through], [])
        except OSError:  # a terminal that is gone; whoever writes to it must not be held up
            return


if __name__ == "__main__":
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # it ends when nobody can write any more, and so loses nothing
    sift(0, 1, 2)
