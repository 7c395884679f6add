"""Signatures with every kind of key that a certificate may have, and what is made of malformed ones."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, settings
from hypothesis import strategies as st

from netfleet.errors import RecordError
from netfleet.privacy.receipts.signing import Certificates, Signer, Statement, from_text
from netfleet.sites.planning.certificates import (
    Authority,
    Identity,
    PrivateKey,
    certificate_pem,
    issue,
    key_pem,
    new_authority,
)

AUTHORITY = new_authority()
TRUSTED = [AUTHORITY.certificate.public_bytes(Encoding.DER)]
KEYS: dict[str, PrivateKey] = {
    "P-256": ec.generate_private_key(ec.SECP256R1()),
    "P-384": ec.generate_private_key(ec.SECP384R1()),
    "RSA": rsa.generate_private_key(65537, 2048),
}
STATEMENT = Statement("ab" * 32, "a", "message", 3, 0, 28, "cd" * 32, "ef" * 32)


def signer(key: PrivateKey, name: str = "b", authority: Authority = AUTHORITY) -> Signer:
    certificate = certificate_pem(issue(authority, name, "localhost", key.public_key()))
    identity = Identity(name, certificate_pem(authority.certificate), certificate, key_pem(key), datetime.now(UTC))
    return Signer(identity)


@pytest.mark.parametrize("kind", KEYS)
def test_every_kind_of_key_signs(kind: str) -> None:
    own, known = signer(KEYS[kind]), Certificates(TRUSTED)
    data = STATEMENT.by_receiver("b")
    signature = own.sign(data)
    known.verify("b", own.certificate, signature, data)
    others = [STATEMENT.by_sender(), STATEMENT.by_receiver("c"), STATEMENT._replace(round=4).by_receiver("b"), b""]
    for other in others:
        with pytest.raises(RecordError, match="the signature is not b's under this"):
            known.verify("b", own.certificate, signature, other)
    for place in range(0, len(signature), 5):
        wrong = signature[:place] + bytes([signature[place] ^ 1]) + signature[place + 1 :]
        with pytest.raises(RecordError, match="the signature is not b's"):
            known.verify("b", own.certificate, wrong, data)


def test_a_certificate_counts_for_its_name_and_its_authority() -> None:
    own = signer(KEYS["P-256"])
    with pytest.raises(RecordError, match="the certificate is of b, not of c"):
        Certificates(TRUSTED).key("c", own.certificate)
    with pytest.raises(RecordError, match="is not signed by an authority that is known here"):
        Certificates([new_authority().certificate.public_bytes(Encoding.DER)]).key("b", own.certificate)
    several = [new_authority().certificate.public_bytes(Encoding.DER), *TRUSTED]
    assert Certificates(several).key("b", own.certificate) == KEYS["P-256"].public_key()


GOOD = signer(KEYS["P-256"])


@pytest.mark.filterwarnings("ignore:Parsed a serial number")  # a negative one; the signature does not fit it anyway
@settings(max_examples=300)
@given(st.data())
def test_malformed_certificates_and_signatures_are_refused_and_nothing_worse(data: st.DataObject) -> None:
    certificate = bytearray(GOOD.certificate)
    for _ in range(data.draw(st.integers(1, 4))):
        certificate[data.draw(st.integers(0, len(certificate) - 1))] ^= data.draw(st.integers(1, 255))
    if bytes(certificate) != GOOD.certificate:
        with pytest.raises(RecordError):
            Certificates(TRUSTED).key("b", bytes(certificate))
    for wrong in (data.draw(st.binary(max_size=200)), bytes(certificate[:100])):
        with pytest.raises(RecordError):
            Certificates(TRUSTED).key("b", wrong)
        with pytest.raises(RecordError):
            Certificates(TRUSTED).verify("b", GOOD.certificate, wrong, b"data")


def test_every_bit_of_a_certificate_counts() -> None:
    """One byte says how many bits of the signature's last byte do not count; the signature does not cover it."""
    place = len(GOOD.certificate) - len(x509.load_der_x509_certificate(GOOD.certificate).signature) - 1
    changed = bytearray(GOOD.certificate)
    changed[place] = 1
    with pytest.raises(RecordError, match=r"whole byte|cannot be read"):
        Certificates(TRUSTED).key("b", bytes(changed))


@pytest.mark.parametrize("text", ["?", "ä", "abc", "AAAA\n"])
def test_texts_that_are_not_base64_are_refused(text: str) -> None:
    with pytest.raises(RecordError, match="not base64"):
        from_text(text)
