"""Decides who may use a relay: a certificate of the authority for a name in `relay.toml`, which is not revoked."""

import time
from collections.abc import Callable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from netfleet.errors import ConfigError, RecordError, TransportError
from netfleet.privacy.receipts.signing import Certificates, from_text
from netfleet.sites.operations.logs import printable
from netfleet.sites.planning.certificates import check_time, read_certificate
from netfleet.sites.policy.revocation import Events, Revocations
from netfleet.sites.relay.handshake import ACCEPT, DIAL, REGISTER, Hello, SignedHello
from netfleet.sites.relay.settings import RelayNames

#: Attempts of one address: what it gains in a second, and the most that it saves up; addresses that are remembered.
RATE, BURST, ADDRESSES = 20.0, 200.0, 4096


class Admission:
    """Checks what those who connect say of themselves; cheap checks come first."""

    def __init__(self, folder: Path, address: str, log: Events) -> None:
        authority = read_certificate(folder / "ca.pem")
        self._address, self._names = address, RelayNames(folder)
        self._revoked = Revocations(folder, authority, log)
        self._certificates = Certificates([authority.public_bytes(Encoding.DER)])

    def check(self, received: SignedHello) -> Hello:
        """The hello, if its signer may use the relay; else raise TransportError."""
        hello = received.hello
        if hello.role not in (REGISTER, DIAL, ACCEPT):
            raise TransportError(f"asks for {printable(hello.role)!r}, expected {REGISTER}, {DIAL} or {ACCEPT}")
        if hello.relay != self._address:
            raise TransportError(f"a hello for the relay {printable(hello.relay)!r}, but this is {self._address}")
        try:
            if hello.name not in self._names.current():
                raise TransportError(f"{printable(hello.name)!r} is not among the names in relay.toml")
            self._check_signature(received)
        except (RecordError, ConfigError, OSError) as error:
            raise TransportError(str(error)) from None
        return hello

    def _check_signature(self, received: SignedHello) -> None:
        certificate = from_text(received.hello.certificate)
        self._certificates.verify(received.hello.name, certificate, received.signature, received.signed)
        found = x509.load_der_x509_certificate(certificate)
        check_time(found, "its certificate")
        if (entry := self._revoked.find(found)) is not None:
            raise TransportError(f"its certificate was {entry}")


class Attempts:
    """Limits how often one address may connect."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._left = clock, dict[str, tuple[float, float]]()

    def take(self, address: str) -> bool:
        """Whether the address may connect once more now."""
        now = self._clock()
        left, at = self._left.pop(address, (BURST, now))
        left = min(BURST, left + RATE * (now - at))
        if len(self._left) >= ADDRESSES:
            del self._left[next(iter(self._left))]  # the one that has not come for longest
        self._left[address] = (left - (left >= 1), now)
        return left >= 1
