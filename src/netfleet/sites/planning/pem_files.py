"""Reads certificates, keys and certificate requests from PEM files, and checks them before they are used."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID

from netfleet.errors import ConfigError

T = TypeVar("T")
PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey
_MALFORMED = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
_KINDS = (
    "expected an EC key on P-256 or P-384 or an RSA key of 2048 bits or more; make one with "
    "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256"
)


def read_certificate(path: Path) -> x509.Certificate:
    """The first certificate of a PEM file."""
    return _parse(path, _certificate, "a certificate")


def read_key(path: Path) -> PrivateKey:
    """A private key that other users of the machine cannot read, of a kind that every TLS library accepts."""
    key = _parse(path, lambda pem: load_pem_private_key(pem, password=None), "a private key without a passphrase")
    if path.stat().st_mode & 0o007:
        raise ConfigError(f"{path} is a private key that every user of this machine can reach; chmod 600 {path}")
    if not isinstance(key, PrivateKey):
        raise ConfigError(f"{path} is a {type(key).__name__}, {_KINDS}")
    check_kind(key.public_key(), path)
    return key


def read_request(path: Path, name: str) -> PublicKey:
    """The public key of a site's certificate request; the request must be signed with it and name the site."""
    names, key, signed = _parse(path, _request, "a certificate request")
    if not signed:
        raise ConfigError(f"{path} is not signed with the key that it is for; site {name!r} must make it again")
    if names != [name]:
        raise ConfigError(
            f"{path} is for {', '.join(map(repr, names)) or 'no name'}, expected {name!r}; the site must make it "
            f"again: openssl req -new -key node.key -subj /CN={name} -out {path.name}"
        )
    return check_kind(key, path)


def common_names(name: x509.Name) -> list[str]:
    """Every CN of a subject; our certificates have one, the site's name."""
    return [str(attribute.value) for attribute in name.get_attributes_for_oid(NameOID.COMMON_NAME)]


def check_kind(key: object, path: Path) -> PublicKey:
    """The key, if every TLS library accepts its kind; else raise."""
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1):
        return key
    if isinstance(key, rsa.RSAPublicKey) and key.key_size >= 2048:
        return key
    raise ConfigError(f"{path} has a key of another kind ({type(key).__name__.lstrip('_')}), {_KINDS}")


def check_belongs(certificate: x509.Certificate, key: PrivateKey, where: str) -> None:
    """Raise unless the private key is the certificate's."""
    if certificate.public_key() != key.public_key():
        raise ConfigError(f"{where}: the private key is not the certificate's; take both from the same plan or request")


def check_issued(certificate: x509.Certificate, authority: x509.Certificate, where: str) -> None:
    """Raise unless the authority has signed the certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        raise ConfigError(
            f"{where} is not signed by the authority {authority.subject.rfc4514_string()}; take both from the same plan"
        ) from None


def check_time(certificate: x509.Certificate, where: str, now: datetime | None = None) -> None:
    """Raise if the certificate has expired or is not yet valid."""
    now = now or datetime.now(UTC)
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > last:
        raise ConfigError(f"{where} expired on {last:%Y-%m-%d %H:%M} UTC; make a new one with the same authority")
    if now < first:
        raise ConfigError(
            f"{where} is not valid before {first:%Y-%m-%d %H:%M} UTC, but it is {now:%Y-%m-%d %H:%M}; set the clock"
        )


def read_bytes(path: Path) -> bytes:
    """The content of a small file that must exist."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; check the path") from None


def _certificate(pem: bytes) -> x509.Certificate:
    """Parse every part that is used later, so that a malformed one is found here."""
    certificate = x509.load_pem_x509_certificate(pem)
    certificate.public_key(), certificate.subject, certificate.extensions
    return certificate


def _request(pem: bytes) -> tuple[list[str], object, bool]:
    request = x509.load_pem_x509_csr(pem)
    return common_names(request.subject), request.public_key(), request.is_signature_valid


def _parse(path: Path, load: Callable[[bytes], T], what: str) -> T:
    pem = read_bytes(path)
    try:
        return load(pem)
    except _MALFORMED as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"{path} is not a PEM file of {what} ({reason})") from None
