"""Decides by their certificates who may talk to a site, beyond what TLS checks.

As a server a site looks at the certificate of each request. As a client it cannot see the other's certificate; so it
gives TLS the pinned certificates in place of the authority's, and TLS accepts no other. Signatures under messages and
receipts count with the same certificates only.
"""

import threading
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from cryptography import x509

from netfleet.errors import CertificateError, ConfigError
from netfleet.sites.planning.certificates import certificate_pem, fingerprint, public_key_bytes
from netfleet.sites.planning.folders import REVOKED_FILE, Neighbour
from netfleet.sites.policy.in_force import NO_POLICY, PolicyInForce
from netfleet.sites.policy.pins import Pins
from netfleet.sites.policy.revocation import Events, Revocations, read_list


class Peers(Protocol):
    """Which certificates count."""

    def check(self, shown: bytes, neighbour: Neighbour | None) -> None:
        """Raise CertificateError unless the sender of a request may show this one (PEM); None: it is no neighbour."""

    def roots(self, name: str) -> bytes:
        """The certificates (PEM) by which TLS must know a site that this one dials; raises CertificateError if none."""

    @property
    def revocations(self) -> int:
        """The number of the revocation list in force; 0: there is none."""

    def why_evicted(self, name: str) -> str | None:
        """Why the operator has evicted a site, if so."""


class AnyPeers:
    """Whoever the authority has signed; for a trial on one machine, and for tests."""

    revocations = 0

    def __init__(self, ca: bytes) -> None:
        self._ca = ca

    def check(self, shown: bytes, neighbour: Neighbour | None) -> None:
        """All may."""

    def roots(self, name: str) -> bytes:
        return self._ca

    def why_evicted(self, name: str) -> str | None:
        return None


class KnownPeers:
    """For a client that sends nothing, with a site's or the operator's folder: nobody else may answer for a site whose
    certificate is there. It changes nothing in the folder.
    """

    def __init__(self, folder: Path, ca: bytes) -> None:
        authority = _parse(ca)
        self._ca, self._pins, self._revoked = ca, Pins(folder, authority), read_list(folder / REVOKED_FILE, authority)

    @property
    def revocations(self) -> int:
        return self._revoked.number

    def check(self, shown: bytes, neighbour: Neighbour | None) -> None:
        """Nobody asks a client."""

    def why_evicted(self, name: str) -> str | None:
        return self._revoked.evicted().get(name)

    def roots(self, name: str) -> bytes:
        pinned, revoked = self._pins.of(name), self._revoked.entries
        good = [each for each in pinned if each.serial_number not in revoked]
        if pinned and not good:
            raise CertificateError(f"has a certificate that was {revoked[pinned[0].serial_number]}")
        return b"".join(map(certificate_pem, good)) or self._ca


class SitePeers:
    """The peers of a site: pinned, not revoked, and allowed by its policy. It is asked from several threads."""

    def __init__(self, folder: Path, ca: bytes, own: bytes, log: Events, in_force: PolicyInForce = NO_POLICY) -> None:
        """`ca` and `own` are the certificates of the authority and of the site. Raises if the site must not start."""
        authority, self._lock = _parse(ca), threading.RLock()
        self._folder, self._ca, self._log, self._in_force = folder, ca, log, in_force
        self._pins, self._revoked = Pins(folder, authority), Revocations(folder, authority, log)
        if (entry := self._revoked.find(_parse(own))) is not None:
            raise ConfigError(f"this site's certificate was {entry}; ask the operator for a new one")

    @property
    def revocations(self) -> int:
        with self._lock:
            return self._revoked.current().number

    def why_evicted(self, name: str) -> str | None:
        with self._lock:
            return self._revoked.why_evicted(name)

    def check(self, shown: bytes, neighbour: Neighbour | None) -> None:
        certificate = _shown(shown)
        with self._lock:
            if neighbour is not None and (why := self.why_evicted(neighbour.name)) is not None:
                raise CertificateError(f"it was evicted ({why})")
            if (entry := self._revoked.find(certificate)) is not None:
                raise CertificateError(f"its certificate was {entry}")
            if neighbour is not None:
                self._check_neighbour(certificate, neighbour)

    def _check_neighbour(self, certificate: x509.Certificate, neighbour: Neighbour) -> None:
        name, shown = neighbour.name, fingerprint(certificate)
        allowed, pinned = self._in_force.policy.neighbours.certificates(name), self._pinned(name)
        if allowed is not None and shown not in allowed:
            raise CertificateError(f"its certificate {shown} is not in the policy (rule neighbours.fingerprints)")
        if shown in map(fingerprint, pinned):
            return
        if pinned:
            if not self._has_key_of(certificate, pinned):
                raise CertificateError(f"its certificate {shown} is not pinned here; {self._remedy(name)}")
        elif neighbour.fingerprint not in ("", shown):
            raise CertificateError(f"its certificate {shown} is not the one that was admitted; {self._remedy(name)}")
        self._pins.add(name, [certificate])
        if pinned:
            self._log.event("renewed", neighbour=name, fingerprint=shown)
        else:
            self._log.event("pinned", neighbour=name, fingerprint=shown)

    def roots(self, name: str) -> bytes:
        with self._lock:
            pinned, revoked = self._pinned(name), self._revoked.current()
        if (why := revoked.evicted().get(name)) is not None:
            raise CertificateError(f"was evicted ({why})")
        allowed = self._in_force.policy.neighbours.certificates(name)
        good = [each for each in pinned if each.serial_number not in revoked.entries]
        good = [each for each in good if allowed is None or fingerprint(each) in allowed]
        if good:
            return b"".join(map(certificate_pem, good))
        if found := [entry for each in pinned if (entry := revoked.entries.get(each.serial_number)) is not None]:
            raise CertificateError(f"has a certificate that was {found[0]}; {self._remedy(name)}")
        if pinned or allowed is not None or name in revoked.names():
            raise CertificateError(f"has no certificate that this site may accept; {self._remedy(name)}")
        return self._ca  # not seen yet: it is pinned at its first request

    def _pinned(self, name: str) -> Sequence[x509.Certificate]:
        try:
            return self._pins.of(name)
        except ConfigError as error:  # the file was damaged while the site runs
            raise CertificateError(str(error)) from None

    def _has_key_of(self, certificate: x509.Certificate, pinned: Iterable[x509.Certificate]) -> bool:
        """Whether only the dates are new: whoever has the key of a certificate that is not revoked may renew it."""
        keys = [public_key_bytes(each) for each in pinned if self._revoked.find(each) is None]
        return public_key_bytes(certificate) in keys

    def _remedy(self, name: str) -> str:
        return f"if the operator has renewed it: netfleet pin {self._folder} with the new certificate of {name}"


@lru_cache(maxsize=256)
def _parse(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


def _shown(pem: bytes) -> x509.Certificate:
    try:
        return _parse(pem)
    except ValueError:
        raise CertificateError("it shows no certificate that can be read") from None
