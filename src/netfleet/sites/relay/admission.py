"""Decides who may use a relay: a certificate of the authority for a name in `relay.toml`, which is not revoked."""

import re
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
from netfleet.sites.relay.handshake import ACCEPT, DIAL, REGISTER, TICKET_SIZE, Hello, SignedHello
from netfleet.sites.relay.settings import RelayNames

#: Attempts of one address: what it gains in a second, and the most that it saves up; addresses that are remembered.
RATE, BURST, ADDRESSES = 20.0, 200.0, 4096
_TICKET = re.compile(f"[0-9a-f]{{{2 * TICKET_SIZE}}}")


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
        self._check_name(hello.name)
        try:
            certificate = from_text(hello.certificate)
            self._certificates.verify(hello.name, certificate, received.signature, received.signed)
        except RecordError as error:
            raise TransportError(str(error)) from None
        self.check_still(hello)
        if hello.role == DIAL:
            self._check_name(hello.about)
        if hello.role == ACCEPT and not _TICKET.fullmatch(hello.about):
            raise TransportError(f"{printable(hello.about)!r} is not a ticket; expected {2 * TICKET_SIZE} hex digits")
        return hello

    def check_still(self, hello: Hello) -> None:
        """Raise unless a name and a certificate, whose signature was good, count now."""
        self._check_name(hello.name)
        certificate = x509.load_der_x509_certificate(from_text(hello.certificate))
        try:
            check_time(certificate, "its certificate")
            entry, why = self._revoked.find(certificate), self._revoked.why_evicted(hello.name)
        except (ConfigError, OSError) as error:
            raise TransportError(str(error)) from None
        if entry is not None:
            raise TransportError(f"its certificate was {entry}")
        if why is not None:
            raise TransportError(f"it was evicted ({why})")

    def _check_name(self, name: str) -> None:
        try:
            known = self._names.current()
        except (ConfigError, OSError) as error:
            raise TransportError(str(error)) from None
        if name not in known:
            raise TransportError(f"{printable(name)!r} is not among the names in relay.toml")


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
