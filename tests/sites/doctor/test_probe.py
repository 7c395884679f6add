"""Why an address cannot be used: sockets of this machine that behave in all the wrong ways."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from netfleet.sites.doctor.probe import Diagnosis, probe
from netfleet.sites.planning import certificates as tls
from netfleet.sites.planning.certificates import Authority, load_authority
from netfleet.sites.planning.folders import Site, read_site
from support.site_peers import PATH
from support.site_processes import free_ports, plan_sites

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    plan_sites(folder, PATH, 3)
    return folder / "plan"


def authority(plan: Path) -> Authority:
    return load_authority(plan / "ca" / "ca.pem", plan / "ca" / "ca.key")


def certificate(plan: Path, name: str, folder: Path, signer: Authority) -> ssl.SSLContext:
    """TLS with a new certificate of this authority for this name."""
    key = tls.new_key()
    made = tls.issue(signer, name, "127.0.0.1", key.public_key())
    (folder / "cert.pem").write_bytes(tls.certificate_pem(made))
    (folder / "cert.key").write_bytes(tls.key_pem(key))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "cert.key")
    return context


@asynccontextmanager
async def serving(site: Site, talk: Talk, context: ssl.SSLContext | None = None) -> AsyncIterator[None]:
    """Somebody listens at the address of a site."""
    host, _, port = site.address.rpartition(":")
    talks: list[asyncio.Task[object] | None] = []

    async def finished(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.append(asyncio.current_task())
        with suppress(OSError):
            await talk(reader, writer)
        writer.transport.abort()

    async with await asyncio.start_server(finished, host, int(port), ssl=context):
        yield
        await asyncio.gather(*(each for each in talks if each is not None))


async def wait_for_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def say_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(100)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await writer.drain()


def diagnose(plan: Path, talk: Talk | None = None, context: ssl.SSLContext | None = None) -> Diagnosis | None:
    """What s0 finds at the address of s1."""
    site = read_site(plan / "s1")

    async def run() -> Diagnosis | None:
        if talk is None:
            return await probe(site, plan / "s0")
        async with serving(site, talk, context):
            return await probe(site, plan / "s0", step=0.5)

    return asyncio.run(run())


def test_a_site_that_is_well_has_no_diagnosis(plan: Path, tmp_path: Path) -> None:
    assert diagnose(plan, wait_for_the_end, certificate(plan, "s1", tmp_path, authority(plan))) is None


def test_nobody_listens(plan: Path) -> None:
    found = diagnose(plan)
    assert found is not None
    assert found.check == "refused"
    assert "nobody listens there" in found.what


def test_a_name_that_nobody_knows(plan: Path) -> None:
    site = replace(read_site(plan / "s1"), address="nobody.invalid:7400")
    found = asyncio.run(probe(site, plan / "s0"))
    assert found is not None
    assert found.check == "lookup"
    assert "cannot look up nobody.invalid" in found.what


@pytest.mark.parametrize(
    ("talk", "words"), [(wait_for_the_end, "no TLS handshake follows"), (say_http, "that is not TLS")]
)
def test_another_program(plan: Path, talk: Talk, words: str) -> None:
    found = diagnose(plan, talk)
    assert found is not None
    assert found.check == "tls"
    assert words in found.what


def test_a_proxy_that_ends_tls(plan: Path, tmp_path: Path) -> None:
    proxy = certificate(plan, "s1", tmp_path, tls.new_authority("Inspection Proxy"))
    found = diagnose(plan, wait_for_the_end, proxy)
    assert found is not None
    assert found.check == "authority"
    assert "another authority" in found.what
    assert "Inspection Proxy" in found.what
    assert "proxy" in found.cure


def test_another_site_at_the_address(plan: Path, tmp_path: Path) -> None:
    found = diagnose(plan, wait_for_the_end, certificate(plan, "s2", tmp_path, authority(plan)))
    assert found is not None
    assert found.check == "name"
    assert "s2 answers there" in found.what


def test_the_port_is_named(plan: Path) -> None:
    """In the cure of what a firewall drops, which needs a firewall: see test_firewalls.py."""
    site = replace(read_site(plan / "s1"), address=f"127.0.0.1:{free_ports(1)[0]}")
    found = asyncio.run(probe(site, plan / "s0"))
    assert found is not None
    assert site.address in found.what
