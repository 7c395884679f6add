"""Signatures of sender and receiver under what was sent, with the keys of their certificates.

Both sign the same statement: run, sender, what it is, round, exchange, bytes, SHA-256, and the hash of the line in the
sender's record, which fixes all earlier lines of it. The receiver adds its name. A signature counts if its certificate
is of the authority and has the signer's name, which is what TLS demands too.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Sequence
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from netfleet.errors import ConfigError, RecordError
from netfleet.sites.planning.certificates import (
    MALFORMED,
    Identity,
    PublicKey,
    check_issued,
    check_kind,
    common_names,
)

_SENT, _RECEIVED = b"netfleet sent\n", b"netfleet received\n"
_ECDSA, _PSS = ec.ECDSA(hashes.SHA256()), padding.PSS(padding.MGF1(hashes.SHA256()), salt_length=32)


class Statement(NamedTuple):
    """What sender and receiver sign."""

    run: str
    sender: str
    what: str
    round: int
    exchange: int
    size: int  # bytes
    digest: str
    line: str

    def by_sender(self) -> bytes:
        return _SENT + json.dumps(self).encode()

    def by_receiver(self, name: str) -> bytes:
        return _RECEIVED + json.dumps([*self, name]).encode()


def fingerprint(certificate: bytes) -> str:
    """SHA-256 of a certificate in DER."""
    return hashlib.sha256(certificate).hexdigest()


def to_text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def from_text(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise RecordError("a text that is not base64") from None


class Signer:
    """Signs as one site."""

    def __init__(self, identity: Identity) -> None:
        self._key = load_pem_private_key(identity.key, password=None)
        self.certificate = x509.load_pem_x509_certificate(identity.certificate).public_bytes(Encoding.DER)
        self.authority = x509.load_pem_x509_certificate(identity.ca).public_bytes(Encoding.DER)

    def sign(self, data: bytes) -> bytes:
        if isinstance(self._key, ec.EllipticCurvePrivateKey):
            return self._key.sign(data, _ECDSA)
        assert isinstance(self._key, rsa.RSAPrivateKey)  # the other kind that `load_identity` takes
        return self._key.sign(data, _PSS, hashes.SHA256())


class Certificates:
    """Public keys of certificates in DER; each is checked once."""

    def __init__(self, authorities: Sequence[bytes]) -> None:
        self._authorities = [_parse(each) for each in authorities]
        self._known: dict[tuple[str, bytes], PublicKey] = {}

    def key(self, name: str, certificate: bytes) -> PublicKey:
        """The key of a certificate; raises RecordError unless it is of an authority and has this name."""
        if (name, certificate) not in self._known:
            self._known[name, certificate] = self._checked(name, certificate)
        return self._known[name, certificate]

    def _checked(self, name: str, data: bytes) -> PublicKey:
        certificate = _parse(data)
        names = common_names(certificate.subject)
        if names != [name]:
            raise RecordError(f"the certificate is of {', '.join(names) or 'nobody'}, not of {name}")
        for authority in self._authorities:
            try:
                check_issued(certificate, authority, "")
                return check_kind(certificate.public_key(), "the certificate")
            except ConfigError:
                continue
        raise RecordError(f"the certificate of {name} is not signed by an authority that is known here (ca.pem)")

    def verify(self, name: str, certificate: bytes, signature: bytes, data: bytes) -> None:
        """Raise RecordError unless this name has signed the data."""
        key = self.key(name, certificate)
        try:
            if isinstance(key, ec.EllipticCurvePublicKey):
                key.verify(signature, data, _ECDSA)
            else:
                key.verify(signature, data, _PSS, hashes.SHA256())
        except InvalidSignature:
            raise RecordError(f"the signature is not {name}'s under this") from None


def _parse(data: bytes) -> x509.Certificate:
    try:
        certificate = x509.load_der_x509_certificate(data)
        certificate.public_key(), certificate.subject
    except MALFORMED:
        raise RecordError("a certificate that cannot be read") from None
    if not data.endswith(b"\0" + certificate.signature):  # bits that nobody has signed
        raise RecordError("a certificate whose signature does not end with a whole byte")
    return certificate
