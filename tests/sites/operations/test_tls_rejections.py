"""A real site among strangers: TLS turns them away, its log says who and why, and it trains as if nobody had come."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from netfleet.sites.network.grpc_service import PULL
from netfleet.sites.operations.status import ask_all
from netfleet.sites.operations.tls_refusals import NOT_PINNED
from netfleet.sites.planning import certificates as tls
from netfleet.sites.planning.certificates import Authority, Identity, load_identity
from support.site_processes import SiteProcesses, site_processes
from support.site_settings import simulated

TRIES = 2
STAR: dict[str, Any] = {
    "rounds": 4,
    "topology": {"kind": "star"},
    "problem": {"kind": "quadratics", "d": 6, "heterogeneity": 3.0},
    "algorithms": [{"kind": "net-fleet", "K": 3, "eta": 0.05}],
    "engine": {"dtype": "float64"},
}
PROGRAM = """
import sys
from netfleet.sites.operations.tls_refusals import trace_handshakes
assert trace_handshakes()
from netfleet.sites.network import grpc_channels
grpc_channels.HANDSHAKE_TIMEOUT = 3.0
from netfleet.cli import main
sys.exit(main(sys.argv[1:]))
"""
NOW, DAY = datetime.now(UTC), timedelta(days=1)


def identity(authority: Authority, name: str, now: datetime = NOW, trusts: Authority | None = None) -> Identity:
    key = tls.new_key()
    certificate = tls.issue(authority, name, "127.0.0.1", key.public_key(), 1, now)
    ca = tls.certificate_pem((trusts or authority).certificate)
    return Identity(name, ca, tls.certificate_pem(certificate), tls.key_pem(key), certificate.not_valid_after_utc)


def where(address: str) -> tuple[str, int]:
    host, port = address.split(":")
    return host, int(port)


# ---- who comes to s0 ----


def call(address: str, credentials: grpc.ChannelCredentials | None) -> None:
    """Ask s0 by gRPC; it must not come to that."""
    options = [("grpc.ssl_target_name_override", "s0"), ("grpc.use_local_subchannel_pool", 1)]
    if credentials is None:
        channel = grpc.insecure_channel(address, options[1:])
    else:
        channel = grpc.secure_channel(address, credentials, options)
    with channel, pytest.raises(grpc.RpcError) as error:
        list(channel.unary_stream(PULL)(b"", timeout=20))
    assert error.value.code() == grpc.StatusCode.UNAVAILABLE


def as_site(found: Identity) -> Callable[[str], None]:
    credentials = grpc.ssl_channel_credentials(found.ca, found.key, found.certificate)
    return lambda address: call(address, credentials)


def speak(data: bytes) -> Callable[[str], None]:
    """Say something without TLS; the other hangs up without a word."""

    def come(address: str) -> None:
        with socket.create_connection(where(address), timeout=20) as connection:
            connection.sendall(data)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1000) in (b"", b"\x15\x03\x01\x00\x02\x02\x46")  # at most an alert

    return come


def old_tls(address: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with socket.create_connection(where(address), timeout=20) as connection, pytest.raises((ssl.SSLError, OSError)):
        context.wrap_socket(connection)


def strangers(ours: Authority) -> list[tuple[Callable[[str], None], str]]:
    """Who comes, and why s0 turns them away."""
    other = tls.new_authority()
    return [
        (lambda address: call(address, grpc.ssl_channel_credentials(identity(ours, "s1").ca)), "no certificate"),
        (as_site(identity(other, "s1", trusts=ours)), "a certificate of another authority"),
        (as_site(identity(ours, "s1", NOW - 3 * DAY)), "an expired certificate"),
        (as_site(identity(ours, "s1", NOW + 3 * DAY)), "a certificate that is not yet valid"),
        (lambda address: call(address, None), "plaintext, not TLS"),
        (speak(b"GET / HTTP/1.1\r\nHost: s0\r\n\r\n"), "plaintext, not TLS"),
        (speak(b"NTFL" + bytes(100)), "plaintext, not TLS"),
        (old_tls, "a version of TLS that is too old"),
    ]


# ---- who answers s0 ----


@contextlib.contextmanager
def tls_server(address: str, found: Identity) -> Iterator[None]:
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_secure_port(address, grpc.ssl_server_credentials([(found.key, found.certificate)]))
    server.start()
    try:
        yield
    finally:
        server.stop(grace=0).wait()


@contextlib.contextmanager
def plain_server(address: str) -> Iterator[None]:
    with socket.create_server(where(address)) as server:

        def answer() -> None:
            with contextlib.suppress(OSError):  # until it is closed
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                        connection.recv(1000)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@contextlib.contextmanager
def impostors(sites: SiteProcesses, ours: Authority) -> Iterator[list[tuple[str, str]]]:
    """Where s0 expects its neighbours; yields what it will say of them."""
    addresses = [site.address for site in sites.plan.sites]
    operator = load_identity(sites.folder / "operator", "operator")
    with contextlib.ExitStack() as stack:
        shown = {
            1: (identity(ours, "s1", NOW - 3 * DAY), "an expired certificate"),
            2: (identity(tls.new_authority(), "s2", trusts=ours), NOT_PINNED),
            3: (identity(ours, "s4"), "a certificate of another name"),
            4: (operator, "a certificate that is not for this purpose"),
        }
        for i, (found, _) in shown.items():
            stack.enter_context(tls_server(addresses[i], found))
        stack.enter_context(plain_server(addresses[5]))
        said = [(f"s{i} (127.0.0.1)", f"answers with {why}") for i, (_, why) in shown.items()]
        yield [*said, ("s5 (127.0.0.1)", "answers with plaintext, not TLS")]


@contextlib.contextmanager
def alone(sites: SiteProcesses, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A site as its operator starts it: a process that imports gRPC itself. Only the handshake's timeout is shorter."""
    command = [sys.executable, "-c", PROGRAM, "node", str(sites.folder / name), "--log", "json", "--linger", "10"]
    with open(sites.folder / name / "node.log", "wb") as log:
        process = subprocess.Popen(command, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def unpinned_sites(folder: Path) -> Iterator[SiteProcesses]:
    """Sites that meet for the first time: whoever is pinned is refused for that alone."""
    with site_processes(folder, STAR, 6) as sites:
        for pins in sites.folder.glob("*/pins"):
            shutil.rmtree(pins)
        yield sites


@pytest.mark.slow
def test_a_site_among_strangers(tmp_path: Path) -> None:
    expected = simulated({**STAR, "topology": {"kind": "star", "workers": 6}})
    with unpinned_sites(tmp_path) as sites, alone(sites, "s0") as process:
        ours = tls.load_authority(sites.folder / "ca" / "ca.pem", sites.folder / "ca" / "ca.key")
        operator, address = load_identity(sites.folder / "operator", "operator"), sites.plan.sites[0].address

        def refused() -> Counter[tuple[str, str]]:
            return Counter((event["who"], event["why"]) for event in sites.events("s0", "refused"))

        def counted() -> int:
            (answer,) = ask_all(sites.plan.sites[:1], operator)
            return answer.status.refused if answer.status is not None else 0

        with impostors(sites, ours) as answers:
            sites.until(lambda: bool(sites.events("s0", "started")))
            idle = [socket.create_connection(where(address), timeout=60) for _ in range(TRIES)]
            for come, _ in strangers(ours):
                for _ in range(TRIES):
                    come(address)
            for connection in idle:
                assert connection.recv(1) == b""  # who says nothing is not waited for
                connection.close()
            reasons = {"no TLS handshake in time", *(why for _, why in strangers(ours))}
            told = {*answers, *(("127.0.0.1", why) for why in reasons)}
            sites.until(lambda: set(refused()) >= told)
            sites.until(lambda: counted() >= TRIES * (len(strangers(ours)) + 1) + len(answers))
        sites.start(*sites.names[1:])
        assert set(sites.wait().values()) == {0}
        assert process.wait(timeout=60) == 0
        assert refused() == dict.fromkeys(told, 1)
        said = (sites.folder / "s0" / "node.log").read_text()
        assert "handshaker" not in said
        assert "Location Trace" not in said
        for i, name in enumerate(sites.names):
            assert torch.allclose(sites.model(name)["x"], expected[i], rtol=0, atol=1e-12), name
