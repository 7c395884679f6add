"""Issues the certificates by which sites identify each other: one authority signs for every site of a plan, by name.

A certificate has CN = the site's name; its alternative names are that name and the host that the others dial. A client
checks the name, not the host: sites may share a machine, and one may move. The operator's certificate is for clients
only. Of a site's certificate request only the public key is used.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from netfleet.errors import ConfigError
from netfleet.sites.planning.pem_files import (
    PrivateKey,
    PublicKey,
    check_belongs,
    check_issued,
    check_time,
    read_certificate,
    read_key,
)

OPERATOR = "operator"
#: Days for which a fresh authority is valid, and so the maximum for a certificate.
LIFE = 3650
_LEEWAY = timedelta(hours=1)  # clocks of sites differ
_PURPOSES = {"serve": ExtendedKeyUsageOID.SERVER_AUTH, "ask": ExtendedKeyUsageOID.CLIENT_AUTH}


class Authority(NamedTuple):
    """Signs the sites' certificates."""

    certificate: x509.Certificate
    key: PrivateKey


def new_key() -> PrivateKey:
    """A private key on P-256."""
    return ec.generate_private_key(ec.SECP256R1())


def new_authority(name: str = "netfleet CA", now: datetime | None = None) -> Authority:
    """A fresh self-signed authority; it may sign sites but no further authorities."""
    key, subject = new_key(), _named(name)
    builder = _builder(subject, subject, key.public_key(), key.public_key(), LIFE + 1, now or datetime.now(UTC))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return Authority(builder.sign(key, hashes.SHA256()), key)


def load_authority(certificate: Path, key: Path, now: datetime | None = None) -> Authority:
    """The operator's own authority; it must be a root, because sites are given no other certificate to trust."""
    found = Authority(read_certificate(certificate), read_key(key))
    check_belongs(found.certificate, found.key, f"{certificate} and {key}")
    check_time(found.certificate, str(certificate), now)
    check_issued(found.certificate, found.certificate, f"{certificate}, which must be a root,")
    if not _may_sign(found.certificate):
        raise ConfigError(
            f"{certificate} may not sign certificates; expected an authority with basicConstraints CA:TRUE and, if "
            f"it has a keyUsage, keyCertSign; leave --ca-cert and --ca-key out for a fresh one"
        )
    return found


def site_certificate(
    authority: Authority, name: str, host: str, key: PublicKey, days: int = 365, now: datetime | None = None
) -> x509.Certificate:
    """A certificate for a site, as a server and as a client."""
    return _issue(authority, name, [name, host], ["serve", "ask"], key, days, now)


def operator_certificate(
    authority: Authority, key: PublicKey, days: int = 365, now: datetime | None = None
) -> x509.Certificate:
    """A certificate that may ask sites for their status; it cannot be used as a server."""
    return _issue(authority, OPERATOR, [], ["ask"], key, days, now)


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """A certificate as PEM."""
    return certificate.public_bytes(Encoding.PEM)


def key_pem(key: PrivateKey) -> bytes:
    """A private key as PEM, without a passphrase: a site must be able to start unattended."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _issue(
    authority: Authority,
    name: str,
    others: list[str],
    purposes: list[str],
    key: PublicKey,
    days: int,
    now: datetime | None,
) -> x509.Certificate:
    _check_days(authority, days, now or datetime.now(UTC))
    issuer, signer = authority.certificate.subject, authority.key
    builder = _builder(_named(name), issuer, key, signer.public_key(), days, now or datetime.now(UTC))
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([_PURPOSES[each] for each in purposes]), critical=False)
    if others:
        names = [_alternative(each) for each in dict.fromkeys(others)]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signer, hashes.SHA256())


def _check_days(authority: Authority, days: int, now: datetime) -> None:
    if not 1 <= days <= LIFE:
        raise ConfigError(f"a certificate must be valid for 1 to {LIFE} days, got {days}; a year (365) is the default")
    left = (authority.certificate.not_valid_after_utc - now).days
    if days > left:
        raise ConfigError(f"the authority ends in {left} days, before a certificate of {days} would; use --days {left}")


def _builder(
    subject: x509.Name, issuer: x509.Name, key: PublicKey, signer: PublicKey, days: int, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _LEEWAY)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _may_sign(certificate: x509.Certificate) -> bool:
    found = {type(each.value): each.value for each in certificate.extensions}
    constraints, usage = found.get(x509.BasicConstraints), found.get(x509.KeyUsage)
    is_authority = isinstance(constraints, x509.BasicConstraints) and constraints.ca
    return is_authority and (not isinstance(usage, x509.KeyUsage) or usage.key_cert_sign)
