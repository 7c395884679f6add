"""How a site identifies itself at the relay, byte by byte. The relay needs no secret for it, only the authority's
certificate.

| who | bytes | what |
|---|---|---|
| relay | 17 + 32 | `netfleet relay 1\n`, and random bytes |
| site | 4 + length | JSON: relay (the address that was dialled), name, role, about, certificate |
| site | 2 + length | signature by the certificate's key under `netfleet relay hello\n`, the random bytes, the JSON |
| relay | 2 + length | empty: accepted; else why not |

| role | about | afterwards |
|---|---|---|
| `register` | | the relay names tickets, as long as the connection lasts: one for each site that dials this one |
| `dial` | a site's name | the bytes of the connection to that site |
| `accept` | a ticket | the bytes of the connection from the site that dials |

Signatures for other purposes begin with other words. Nobody can use one again, because the random bytes are the
relay's, nor at another relay, because it names the relay.
"""

import asyncio
import json
import secrets
import socket
from dataclasses import asdict, dataclass
from typing import NamedTuple

from netfleet.errors import TransportError
from netfleet.privacy.receipts.signing import Signer, to_text
from netfleet.sites.operations.logs import printable

GREETING, RANDOM = b"netfleet relay 1\n", 32
_SIGNED = b"netfleet relay hello\n"
#: Bytes of the longest hello (a certificate of a large RSA key fits), signature and refusal.
LONGEST, LONGEST_SIGNATURE, LONGEST_WORDS = 8192, 1024, 300
REGISTER, DIAL, ACCEPT = "register", "dial", "accept"
#: What a registered site and the relay send each other: still there, and a ticket of so many bytes.
ALIVE, TICKET, TICKET_SIZE = b"a", b"t", 16


@dataclass(frozen=True)
class Hello:
    """Who connects to a relay, and what for."""

    relay: str
    name: str
    role: str
    about: str
    certificate: str  # DER, in base64

    @property
    def bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()


async def read_exactly(sock: socket.socket, count: int) -> bytes:
    loop, data = asyncio.get_running_loop(), b""
    while len(data) < count:
        more = await loop.sock_recv(sock, count - len(data))
        if not more:
            raise TransportError("the connection was closed")
        data += more
    return data


async def _read_sized(sock: socket.socket, width: int, most: int) -> bytes:
    count = int.from_bytes(await read_exactly(sock, width), "big")
    if count > most:
        raise TransportError(f"{count} bytes where at most {most} were expected")
    return await read_exactly(sock, count)


def _sized(data: bytes, width: int) -> bytes:
    return len(data).to_bytes(width, "big") + data


async def introduce(sock: socket.socket, relay: str, role: str, about: str, name: str, signer: Signer) -> None:
    """Say who this site is and what it wants; raises TransportError if the relay refuses."""
    loop, greeting = asyncio.get_running_loop(), await read_exactly(sock, len(GREETING) + RANDOM)
    if not greeting.startswith(GREETING):
        raise TransportError(f"{greeting[: len(GREETING)]!r} where a relay says {GREETING!r}; check its address")
    hello = Hello(relay, name, role, about, to_text(signer.certificate)).bytes
    signature = signer.sign(_SIGNED + greeting[len(GREETING) :] + hello)
    await loop.sock_sendall(sock, _sized(hello, 4) + _sized(signature, 2))
    if refusal := await _read_sized(sock, 2, LONGEST_WORDS):
        raise TransportError(printable(refusal.decode("utf-8", "replace")))


class SignedHello(NamedTuple):
    """A hello as it came; nobody has checked the signature yet."""

    hello: Hello
    signed: bytes
    signature: bytes


async def receive_hello(sock: socket.socket) -> SignedHello:
    """Ask whoever has connected to identify itself."""
    nonce = secrets.token_bytes(RANDOM)
    await asyncio.get_running_loop().sock_sendall(sock, GREETING + nonce)
    data = await _read_sized(sock, 4, LONGEST)
    signature = await _read_sized(sock, 2, LONGEST_SIGNATURE)
    return SignedHello(_parsed(data), _SIGNED + nonce + data, signature)


def _parsed(data: bytes) -> Hello:
    try:
        hello = Hello(**json.loads(data))
    except (ValueError, TypeError, RecursionError):
        hello = None
    if hello is None or not all(isinstance(value, str) for value in asdict(hello).values()):
        raise TransportError("a hello that is none; it may come from another version of netfleet")
    return hello


async def answer(sock: socket.socket, refusal: str = "") -> None:
    """Accept a site, or say why not."""
    words = refusal.encode("utf-8", "replace")[:LONGEST_WORDS]
    await asyncio.get_running_loop().sock_sendall(sock, _sized(words, 2))
