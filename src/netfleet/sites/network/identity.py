"""A site's identity: its certificate and key, and the authority that it trusts, read from its folder."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from netfleet.errors import ConfigError
from netfleet.sites.planning import certificates

#: How long before its expiry a certificate is warned about.
SOON = timedelta(days=14)


class Identity(NamedTuple):
    """A name with its certificate and key, and the authority's certificate, in PEM."""

    name: str
    ca: bytes
    certificate: bytes
    key: bytes
    expires: datetime


def load_identity(folder: Path, name: str, now: datetime | None = None) -> Identity:
    """`ca.pem`, `node.pem` and `node.key` of a folder; they must belong together and to the name, and be valid."""
    ca, node, key = (folder / file for file in ("ca.pem", "node.pem", "node.key"))
    authority, certificate = certificates.read_certificate(ca), certificates.read_certificate(node)
    if not key.exists():
        raise ConfigError(f"{key} is missing; put the private key there with which the certificate request was made")
    certificates.check_belongs(certificate, certificates.read_key(key), f"{node} and {key}")
    certificates.check_issued(certificate, authority, str(node))
    for each, path in ((authority, ca), (certificate, node)):
        certificates.check_time(each, str(path), now)
    names = certificates.common_names(certificate.subject)
    if names != [name]:
        raise ConfigError(
            f"{node} is the certificate of {', '.join(names)}, expected {name}; use the one made for this site"
        )
    expires = min(authority.not_valid_after_utc, certificate.not_valid_after_utc)
    authority_pem, own_pem, key_pem = map(certificates.read_bytes, (ca, node, key))
    return Identity(name, authority_pem, own_pem, key_pem, expires)


def expiry_warning(what: str, expires: datetime, now: datetime | None = None) -> str | None:
    """A sentence for the operator if a certificate has expired or will within `SOON`."""
    now = now or datetime.now(UTC)
    if expires - now > SOON:
        return None
    when = f"{expires:%Y-%m-%d %H:%M} UTC"
    said = f"expired on {when}" if now > expires else f"expires on {when}, in {(expires - now).days} days"
    return f"{what} {said}; make a new one before the neighbours reject it"
