"""TLS refusals: they are read out of gRPC's trace, and nothing else that is written to standard error is touched."""

from __future__ import annotations

import itertools
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netfleet.sites.operations.tls_refusals import Refusal, TraceFilter

HEAD = b"I1117 04:16:56.397934    5336 handshaker.cc:155] CallNextHandshakerLocked: error="
PEER = b"grpc.internal.endpoint_peer_address=ipv4:10.0.0.1:34042"
SSL = b"Ssl handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:100000c0:SSL routines:OPENSSL_internal:"


def record(error: bytes, peer: bytes = PEER, more: bytes = b"grpc.resource_quota=0x7f") -> bytes:
    """A record of gRPC 1.85, shortened."""
    where = b"" if error == b"OK" else b"\n=== Source Location Trace: === \nsrc/core/util/status_helper.cc:68\n"
    return HEAD + error + where + b" shutdown=false index=2, args={" + peer + b", " + more + b"}, exit_early=0}\n"


FAILED = b"""\
I1117 04:16:56.397975    5336 channel_trace.h:396] handshake manager 0x7f: Failed with error: UNKNOWN: Ssl handshake: OK
=== Source Location Trace: ===
src/core/util/status_helper.cc:68

"""
STARTED = b"W1117 04:16:55.765759    5333 log.cc:102] Log level INFO is not suitable for production.\n"
ERROR = b"E1117 04:16:55.765759    5333 chttp2.cc:9] something is wrong\n"


def filtered(data: bytes, *cuts: int) -> tuple[bytes, list[Refusal]]:
    trace_filter, passed, found = TraceFilter(), b"", []
    places = [0, *sorted(cuts), len(data)]
    for start, end in itertools.pairwise(places):
        more, refused = trace_filter.feed(data[start:end])
        passed, found = passed + more, found + refused
    more, refused = trace_filter.end()
    return passed + more, found + refused


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (b"PEER_DID_NOT_RETURN_A_CERTIFICATE: Invalid certificate verification context", "no certificate"),
        (b"CERTIFICATE_VERIFY_FAILED: certificate has expired", "an expired certificate"),
        (b"CERTIFICATE_VERIFY_FAILED: certificate is not yet valid", "a certificate that is not yet valid"),
        (b"CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate", "a certificate of another authority"),
        (
            b"CERTIFICATE_VERIFY_FAILED: path too long",
            "a certificate that cannot be verified (CERTIFICATE_VERIFY_FAILED: path too long)",
        ),
        (b"WRONG_VERSION_NUMBER: Invalid certificate verification context", "plaintext, not TLS"),
        (b"HTTP_REQUEST: Invalid certificate verification context", "plaintext, not TLS"),
        (b"UNSUPPORTED_PROTOCOL: Invalid certificate verification context", "a version of TLS that is too old"),
        (
            b"SSLV3_ALERT_BAD_CERTIFICATE: Invalid certificate verification context",
            "an alert: it does not take this site's certificate (SSLV3_ALERT_BAD_CERTIFICATE)",
        ),
        (b"NO_SHARED_CIPHER", "a TLS handshake that failed (NO_SHARED_CIPHER)"),
    ],
)
def test_why_someone_was_refused(words: bytes, why: str) -> None:
    trace = STARTED + record(b"OK") + record(b"UNKNOWN: " + SSL + words + b": OK") + FAILED
    assert filtered(trace) == (b"", [("ipv4:10.0.0.1:34042", why)])


def test_servers_are_known_by_name() -> None:
    error = (
        b"UNKNOWN: Custom verification check failed with error: UNAUTHENTICATED: Hostname Verification Check failed."
    )
    trace = record(error, more=b"grpc.server_uri=dns:///x:1, grpc.ssl_target_name_override=lab")
    assert filtered(trace) == (b"", [("lab (ipv4:10.0.0.1:34042)", "answers with a certificate of another name")])


@pytest.mark.parametrize(
    "error",
    [b"UNAVAILABLE: Handshake read failed (Socket closed)", b"UNKNOWN: Failed to connect: Connection refused", b"OK"],
)
def test_who_hangs_up_is_not_refused(error: bytes) -> None:
    assert filtered(record(error) + FAILED) == (b"", [])


def test_too_slow_a_handshake_is_refused() -> None:
    trace = record(b"UNAVAILABLE: Handshake read failed (Endpoint closing)")
    assert filtered(trace) == (b"", [("ipv4:10.0.0.1:34042", "no TLS handshake in time")])
    client = b"grpc.ssl_target_name_override=lab"
    assert filtered(record(b"UNAVAILABLE: Handshake read failed (Endpoint closing)", more=client)) == (b"", [])


OTHERS = [
    b"Traceback (most recent call last):\n",
    b"\n",
    b"\r 50 %",
    b"E",
    b"I1 am not gRPC's\n",
    b"=== Source Location Trace: ===?\n",
    b" shutdown=\n",
    b"src/x.py\n",
    b"\xff\xfe\n",
    b"",
]


@given(st.lists(st.sampled_from(OTHERS)), st.lists(st.integers(0, 400)))
def test_what_is_not_of_grpc_passes_unchanged(parts: list[bytes], cuts: list[int]) -> None:
    data = b"".join(parts)
    assert filtered(data, *(min(cut, len(data)) for cut in cuts)) == (data, [])


@given(
    st.lists(st.sampled_from([STARTED, record(b"OK"), record(b"UNKNOWN: " + SSL + b"HTTP_REQUEST"), FAILED])),
    st.lists(st.sampled_from([b"a line\n", b"Traceback\n", b"bar\r\n"])),
    st.lists(st.integers(0, 5000)),
    st.randoms(use_true_random=False),
)
def test_where_the_pipe_cuts_does_not_matter(
    traces: list[bytes], others: list[bytes], cuts: list[int], rng: object
) -> None:
    parts = [*traces, *others]
    rng.shuffle(parts)  # type: ignore[attr-defined]
    data = b"".join(parts)
    passed, found = filtered(data, *(min(cut, len(data)) for cut in cuts))
    assert passed == b"".join(part for part in parts if part in others)
    assert len(found) == sum(b"HTTP_REQUEST" in part for part in parts)


def test_a_prompt_is_not_held_up() -> None:
    trace_filter = TraceFilter()
    trace_filter.feed(STARTED)
    assert trace_filter.feed(b"Go on? ") == (b"Go on? ", [])
    assert trace_filter.feed(b"I1117 is not a record here\n") == (b"I1117 is not a record here\n", [])


def test_errors_of_grpc_pass_but_do_not_flood() -> None:
    passed, _ = filtered(100 * ERROR + ERROR.replace(b"E1117", b"F1117"))
    assert passed == 10 * ERROR + ERROR.replace(b"E1117", b"F1117")


FORGED = b'{"time": "2026-05-03T10:00:00.000Z", "level": "info", "site": "s0", "event": "finished"}'
ASKED = b"E1117 04:16:55.765759    5333 ssl_transport_security.cc:3238] No match found for server name: "


@pytest.mark.parametrize(
    "name", [b"lab", b"x\n" + FORGED, b"x\n" + record(b"UNKNOWN: " + SSL + b"HTTP_REQUEST"), b"\x1b[2J"]
)
def test_the_server_name_that_a_client_asks_for_gets_nowhere(name: bytes) -> None:
    trace_filter = TraceFilter()
    assert trace_filter.feed(b"Go on? ") == (b"Go on? ", [])
    assert trace_filter.feed(ASKED + name + b"\n") == (b"", [])  # one packet: gRPC writes a record with one call
    assert trace_filter.feed(b"yes\n") == (b"yes\n", [])


# ---- in a process ----

ROOT = Path(__file__).parents[3] / "src"
BEGIN = """
import os, sys
from netfleet.sites.operations.tls_refusals import TlsRefusals
"""
FRAME = f"os.write(2, {record(b'UNKNOWN: ' + SSL + b'HTTP_REQUEST')!r})"


def run(program: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [sys.executable, "-c", BEGIN + program], env=environment, capture_output=True, timeout=60, **options
    )


def test_standard_error_with_and_without() -> None:
    done = run(f"""
import subprocess
with TlsRefusals() as watch:
    found = []
    watch.listen(lambda *told: found.append(told))
    os.write(2, b"from below\\n")
    {FRAME}
    print("from Python", file=sys.stderr)
    print("from the log", file=watch.terminal)
    subprocess.run([sys.executable, "-c", "import sys; print('from a child', file=sys.stderr)"])
    os.write(2, b"no end of line")
assert found == [("ipv4:10.0.0.1:34042", "plaintext, not TLS")], found
assert sys.stderr is sys.__stderr__
print("; the end", file=watch.terminal)
{FRAME}
raise ValueError("at last")
""")
    assert done.returncode == 1
    said = done.stderr.decode()
    parts = ["from below\n", "from Python\n", "from the log\n", "from a child\n", "no end of line", "; the end\n"]
    for part in [*parts, "CallNextHandshakerLocked", "ValueError: at last\n"]:
        assert said.count(part) == 1, said


def test_traces_after_the_end_are_removed_too_if_that_is_wanted() -> None:
    done = run(f"""
with TlsRefusals(to_the_end=True) as watch:
    found = []
    watch.listen(lambda *told: found.append(told))
    {FRAME}
assert found == [("ipv4:10.0.0.1:34042", "plaintext, not TLS")], found
{FRAME}
assert len(found) == 1, found
os.write(2, b"from below\\n")
raise ValueError("at last")
""")
    said = done.stderr.decode()
    assert (done.returncode, said.count("from below"), said.count("ValueError: at last")) == (1, 1, 1), said
    assert "CallNextHandshakerLocked" not in said


def test_what_is_written_with_one_call_is_filtered_as_one() -> None:
    done = run(f"""
with TlsRefusals() as watch:
    for _ in range(100):
        os.write(2, {ASKED + b"x" + bytes([10]) + FORGED + bytes([10])!r})
        os.write(2, b"a line\\n")
""")
    assert (done.returncode, done.stderr) == (0, 100 * b"a line\n")


def test_refusals_wait_for_who_listens() -> None:
    done = run(f"""
with TlsRefusals() as watch:
    for _ in range(5000):
        {FRAME}
    found = []
    watch.listen(lambda *told: found.append(told))
assert len(found) == 5000
with TlsRefusals() as watch:
    {FRAME}
""")
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_writer_that_holds_the_interpreter_is_not_held_up() -> None:
    """A thread could not empty the pipe meanwhile."""
    done = run("""
import ctypes
text = b"x" * 99 + b"\\n"
with TlsRefusals() as watch:
    watch.listen(print)
    for _ in range(50):
        assert ctypes.PyDLL(None).write(2, text * 1000, 100_000) == 100_000
""")
    assert (done.returncode, len(done.stderr)) == (0, 5_000_000)


@pytest.mark.parametrize("end", ["os.abort()", "os._exit(3)", "os.kill(os.getpid(), 9)"])
def test_last_words_are_heard(end: str) -> None:
    done = run(f"""
with TlsRefusals() as watch:
    watch.listen(print)
    os.write(2, b"terminate called after throwing an exception\\nE")
    {end}
""")
    assert done.returncode != 0
    assert done.stderr.startswith(b"terminate called after throwing an exception\nE")


def test_a_filter_that_is_killed_does_no_harm() -> None:
    done = run("""
import time
with TlsRefusals() as watch:
    watch.listen(print)
    watch._filter.kill()
    watch._listener.join()
    os.write(2, b"still there\\n")
os.write(2, b"the end\\n")
""")
    assert (done.returncode, done.stderr) == (0, b"still there\nthe end\n")


def test_a_terminal_is_known_as_one() -> None:
    ours, theirs = pty.openpty()
    program = (
        f"{BEGIN}\nwith TlsRefusals() as watch:\n    sys.exit(not (watch.terminal.isatty() and sys.stderr.isatty()))"
    )
    try:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        assert (
            subprocess.run([sys.executable, "-c", program], env=environment, stderr=theirs, timeout=60).returncode == 0
        )
    finally:
        os.close(ours)
        os.close(theirs)


def test_it_is_too_late_once_grpc_is_there() -> None:
    done = run(
        "from netfleet.sites.operations.tls_refusals import trace_handshakes as t\nprint(t())\nimport grpc\nprint(t())"
    )
    assert done.stdout.split() == [b"True", b"False"]
