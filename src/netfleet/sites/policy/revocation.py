"""Certificates that the operator has revoked: an X.509 revocation list, signed by the authority.

`netfleet revoke` writes it, and every site has it as `revoked.pem` in its folder. A site reads it again whenever it
changes. It keeps a copy of the newest list that it has seen, so an older one cannot take its place.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple, Protocol

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from netfleet.errors import ConfigError
from netfleet.files import write_atomically
from netfleet.sites.planning.certificates import LIFE, Authority, common_names, fingerprint, read_bytes
from netfleet.sites.planning.folders import REVOKED_FILE
from netfleet.sites.policy.pins import stamp

#: Characters of a reason that are kept.
LONGEST = 200
#: The extension of an entry that has the site's name and the reason, as JSON in a UTF8String.
_ABOUT = x509.ObjectIdentifier("2.25.246909432765032640119882690790029324928")
_UTF8_STRING = 0x0C


class Revoked(NamedTuple):
    """A revoked certificate; if its site was evicted, no other certificate of that name counts either."""

    serial: int
    name: str
    why: str
    when: datetime
    evicted: bool = False

    def __str__(self) -> str:
        return f"{'evicted' if self.evicted else 'revoked'} on {self.when:%Y-%m-%d} ({self.why})"


@dataclass(frozen=True)
class RevocationList:
    """All revoked certificates of an authority by serial number; a later list has a larger number."""

    number: int = 0
    entries: Mapping[int, Revoked] = field(default_factory=dict)
    pem: bytes = b""

    def names(self) -> list[str]:
        return sorted({entry.name for entry in self.entries.values()})

    def evicted(self) -> dict[str, str]:
        """The sites that were thrown out of the training, and why."""
        return {entry.name: entry.why for entry in self.entries.values() if entry.evicted}


def revoke(
    authority: Authority,
    before: RevocationList,
    certificates: Iterable[x509.Certificate],
    why: str,
    now: datetime,
    evict: bool = False,
) -> RevocationList:
    """The next list, with these certificates too. What the one before says stays, but that `evict` adds to it."""
    if not why.strip() or len(why) > LONGEST or not why.isprintable():
        raise ConfigError(f"--why must be one line of at most {LONGEST} characters, got {why!r}; say it in short")
    new = {c.serial_number: Revoked(c.serial_number, common_names(c.subject)[0], why, now, evict) for c in certificates}
    stays = {serial: entry for serial, entry in before.entries.items() if entry.evicted or not evict}
    entries, number = dict(before.entries) | new | stays, before.number + 1
    builder = x509.CertificateRevocationListBuilder(authority.certificate.subject, now, now + timedelta(days=LIFE))
    builder = builder.add_extension(x509.CRLNumber(number), critical=False)
    for entry in entries.values():
        builder = builder.add_revoked_certificate(_entry(entry))
    return RevocationList(number, entries, builder.sign(authority.key, hashes.SHA256()).public_bytes(Encoding.PEM))


def _entry(revoked: Revoked) -> x509.RevokedCertificate:
    table = {"name": revoked.name, "why": revoked.why} | ({"evicted": True} if revoked.evicted else {})
    about = json.dumps(table, ensure_ascii=False).encode()
    value = bytes([_UTF8_STRING, 0x82]) + len(about).to_bytes(2, "big") + about
    builder = x509.RevokedCertificateBuilder(revoked.serial, revoked.when)
    return builder.add_extension(x509.UnrecognizedExtension(_ABOUT, value), critical=False).build()


def parse_list(pem: bytes, authority: x509.Certificate, where: str) -> RevocationList:
    """A list that this authority has signed; raises ConfigError for anything else."""
    try:
        crl = x509.load_pem_x509_crl(pem)
        number = crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        entries = [_revoked(each) for each in crl]
        signed = crl.is_signature_valid(authority.public_key())  # type: ignore[arg-type]
    except (ValueError, TypeError, KeyError, x509.ExtensionNotFound, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{where} is not a list that netfleet revoke has written ({error}); get it again") from None
    if crl.issuer != authority.subject:
        ours, theirs = authority.subject.rfc4514_string(), crl.issuer.rfc4514_string()
        raise ConfigError(f"{where} is a list of another authority, {theirs}, expected {ours}; get that of this plan")
    if not signed:
        raise ConfigError(
            f"{where} does not have this authority's signature: it was changed, or is another's; get it again"
        )
    return RevocationList(number, {each.serial: each for each in entries}, pem)


def _revoked(entry: x509.RevokedCertificate) -> Revoked:
    value = entry.extensions.get_extension_for_oid(_ABOUT).value
    about = json.loads(value.value[4:]) if isinstance(value, x509.UnrecognizedExtension) else {}
    words = str(about["name"]), str(about["why"])[:LONGEST]
    return Revoked(entry.serial_number, *words, entry.revocation_date_utc, about.get("evicted") is True)


def read_list(path: Path, authority: x509.Certificate) -> RevocationList:
    """The list in a file; an empty one if there is no file."""
    return parse_list(read_bytes(path), authority, str(path)) if path.exists() else RevocationList()


class Events(Protocol):
    """What a list tells a site's log."""

    def event(self, what: str, *, level: str = "info", **fields: object) -> None: ...

    def refused(self, who: str, why: str) -> None: ...


class Revocations:
    """The list in a site's folder, followed while the site runs."""

    def __init__(self, folder: Path, authority: x509.Certificate, log: Events) -> None:
        """Raises if the list that is there now cannot be used."""
        self._path, self._authority, self._log = folder / REVOKED_FILE, authority, log
        self._seen = folder / f"revoked.seen-{fingerprint(authority)[:8]}.pem"  # each authority counts for itself
        self._list, self._stamp = read_list(self._seen, authority), stamp(self._path)
        if self._stamp is not None:
            self._take(read_list(self._path, authority))
        elif self._list.number:
            raise ConfigError(f"{self._path} is missing, but list {self._list.number} was here; put it back")

    def current(self) -> RevocationList:
        """The newest valid list; what is wrong with the file is logged, and the list before stays in force.

        Raises StorageError as long as a new list is there of which no copy can be kept: nothing else is in force then.
        """
        now = stamp(self._path)
        if now != self._stamp:
            try:
                self._take(read_list(self._path, self._authority))
            except ConfigError as error:
                self._log.refused(REVOKED_FILE, f"{error}; list {self._list.number} stays in force")
            self._stamp = now
        return self._list

    def find(self, certificate: x509.Certificate) -> Revoked | None:
        """Why a certificate is revoked, if it is."""
        return self.current().entries.get(certificate.serial_number)

    def why_evicted(self, name: str) -> str | None:
        """Why the operator has evicted a site, if so: then no certificate of it counts."""
        return self.current().evicted().get(name)

    def _take(self, new: RevocationList) -> None:
        before = self._list
        if new.number < before.number:
            advice = "get the newest one from the operator"
            raise ConfigError(f"{self._path} has number {new.number}, and {before.number} was here already; {advice}")
        if new.number == before.number and new.pem != before.pem:
            raise ConfigError(f"{self._path} is another list with number {new.number}; ask the operator which is right")
        if new.number > before.number:
            write_atomically(self._seen, lambda file: file.write(new.pem))
            self._log.event("revocations", number=new.number, names=", ".join(new.names()))
        self._list = new
