"""Why an address cannot be used: looks the name up, opens a connection, and reads the certificate that is shown.

The training's own connections give one sentence for many causes. This one goes step by step, and sends nothing but a
TLS handshake with the site's certificate.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from cryptography import x509

from netfleet.errors import ConfigError
from netfleet.sites.operations.logs import printable
from netfleet.sites.planning.certificates import MALFORMED, check_issued, common_names
from netfleet.sites.planning.folders import Neighbour, Site
from netfleet.sites.planning.nodes_file import Address, parse_address

#: Seconds for each step.
STEP = 4.0


class Diagnosis(NamedTuple):
    """Why a site cannot be talked to, and what to do."""

    check: str
    what: str
    cure: str


#: Looks for the reason; None: nothing is wrong as far as this can see.
Diagnose = Callable[[Neighbour | Site], Awaitable[Diagnosis | None]]


def probe_with(folder: Path) -> Diagnose:
    """A probe that shows the certificate in a site's or the operator's folder."""

    async def diagnose(to: Neighbour | Site) -> Diagnosis | None:
        return await probe(to, folder)

    return diagnose


async def probe(to: Neighbour | Site, folder: Path, step: float = STEP) -> Diagnosis | None:
    """Look step by step why a site cannot be talked to at its address."""
    if not to.address:
        what = "only dials out, and has not connected to this site or to the relay"
        return Diagnosis("absent", what, "start netfleet doctor --wait or netfleet node there, and see what it finds")
    address = parse_address(to.address, f"address of {to.name}")
    try:
        found = await _connected(to.name, address, step)
        return found or await _shown(to, address, folder, step)
    except (OSError, ssl.SSLError) as error:
        what = f"the connection to {address} fails ({printable(str(error))})"
        return Diagnosis("address", what, "check address and network")


async def _connected(name: str, address: Address, step: float) -> Diagnosis | None:
    """Whether a TCP connection can be made."""
    loop, where = asyncio.get_running_loop(), str(address)
    try:
        async with asyncio.timeout(step):
            await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (socket.gaierror, TimeoutError):
        cure = f"correct the address of {name} in site.toml, or the name service of this machine"
        return Diagnosis("lookup", f"has the address {where}, and this machine cannot look up {address.host}", cure)
    try:
        async with asyncio.timeout(step):
            _, writer = await asyncio.open_connection(address.host, address.port)
    except TimeoutError:
        what = f"does not answer at {where} within {step:.0f} s: a firewall drops the connection, or the machine is off"
        return Diagnosis("blocked", what, f"there: {_open(address)}; here: allow outgoing connections to it")
    except ConnectionRefusedError:
        what = f"refuses the connection at {where}: nobody listens there, or a firewall rejects it"
        cure = "start netfleet doctor --wait or netfleet node there; else compare the port with its site.toml"
        return Diagnosis("refused", what, cure)
    except OSError as error:
        what = f"cannot be reached at {where} ({error.strerror or error})"
        return Diagnosis("route", what, "check its address, and the network and routes of this machine")
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return None


def _open(address: Address) -> str:
    return f"open TCP {address.port} for this site"


async def _shown(to: Neighbour | Site, address: Address, folder: Path, step: float) -> Diagnosis | None:
    """What the certificate says that is shown at the address."""
    try:
        async with asyncio.timeout(step):
            secure = _context(folder)
            _, writer = await asyncio.open_connection(address.host, address.port, ssl=secure, server_hostname=to.name)
    except TimeoutError:
        what = f"takes the connection at {address}, but no TLS handshake follows"
        return Diagnosis("tls", what, "look for a proxy in between, or another program at its port")
    except (ssl.SSLError, ConnectionError, asyncio.IncompleteReadError) as error:
        reason = getattr(error, "reason", None) or str(error) or type(error).__name__
        what = f"answers at {address} with something that is not TLS ({printable(str(reason))})"
        return Diagnosis("tls", what, "look for a proxy in between, or another program at its port")
    tls = writer.get_extra_info("ssl_object")
    der = tls.getpeercert(binary_form=True)
    writer.transport.abort()
    return _judged(to, address, der or b"", folder)


def _context(folder: Path) -> ssl.SSLContext:
    """Accepts every certificate, because it wants to read it; the training's connections do not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(folder / "node.pem", folder / "node.key")
    return context


def _judged(to: Neighbour | Site, address: Address, der: bytes, folder: Path) -> Diagnosis | None:
    try:
        shown = x509.load_der_x509_certificate(der)
        names, issuer = common_names(shown.subject), printable(shown.issuer.rfc4514_string())
    except MALFORMED:
        return Diagnosis("tls", f"shows no certificate at {address} that can be read", "look for a proxy in between")
    authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    try:
        check_issued(shown, authority, "it")
    except ConfigError:
        what = f"shows a certificate of another authority at {address} ({issuer})"
        cure = "let no proxy in between end TLS (an exception for this address); else compare ca.pem: one plan for all"
        return Diagnosis("authority", what, cure)
    if names != [to.name]:
        what = f"is not at {address}: {printable(', '.join(names))} answers there"
        return Diagnosis("name", what, f"correct the address of {to.name} in site.toml")
    now = datetime.now(UTC)
    if now > shown.not_valid_after_utc:
        what = f"shows a certificate that expired on {shown.not_valid_after_utc:%Y-%m-%d}"
        return Diagnosis("certificate", what, "renew it (docs/sites.md, Renewing certificates)")
    return None
