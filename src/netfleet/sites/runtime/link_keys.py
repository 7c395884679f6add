"""The secrets that a site shares with each neighbour, for noise that cancels between the two.

A site makes a key pair (X25519) for the run and signs its public key, with the run's hash and its name, by the private
key of its certificate. Neighbours ask each other for these statements (KEY). From its own private key and the other's
public key each computes the same secret (HKDF), bound to the run, both names and keys, and the link's first round.

All is in `noise.json` of the run's folder, for its owner only, before it is used. So a restarted site has the same
secrets, and whoever deletes a run and starts again has new ones.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from netfleet.errors import ConfigError, FrameError
from netfleet.files import write_atomically
from netfleet.privacy.mechanism import Secret
from netfleet.sites.network.outbox import Message
from netfleet.sites.planning.certificates import Identity, PublicKey, check_issued, check_time, common_names

KEYS_FILE = "noise.json"
WORDS, BYTES = "key", 8192
_PURPOSE = b"netfleet link noise"


class Statement(NamedTuple):
    """A site's public key as it is sent, in texts."""

    public: str  # hexadecimal
    certificate: str  # PEM
    signature: str  # hexadecimal
    holds: str  # the public key of the site that asks, if there is a secret with it

    def message(self) -> Message:
        """JSON of a fixed length."""
        text = json.dumps(self._asdict()).encode()
        if len(text) > BYTES:
            raise ConfigError(f"this site's certificate is too long for its neighbours: {len(text)} bytes of {BYTES}")
        return Message(WORDS, torch.frombuffer(bytearray(text.ljust(BYTES)), dtype=torch.uint8))


def parse_statement(data: bytes) -> Statement:
    """A statement from bytes of any origin; raises FrameError and nothing else."""
    try:
        found = Statement(**json.loads(data))
        for text in (found.public, found.signature, found.holds):
            bytes.fromhex(text)
        found.certificate.encode("ascii")
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise FrameError(f"a key for noise that cannot be read: {str(error).splitlines()[0]}") from None
    return found


def check_statement(found: Statement, name: str, run: str, authority: bytes, now: datetime | None = None) -> None:
    """Raise FrameError unless the site of this name has signed the key for this run."""
    where = f"the certificate with which {name} signs its key"
    try:
        certificate = x509.load_pem_x509_certificate(found.certificate.encode())
        check_issued(certificate, x509.load_pem_x509_certificate(authority), where)
        check_time(certificate, where, now)
        names, key = common_names(certificate.subject), certificate.public_key()
    except (ConfigError, ValueError, TypeError) as error:
        raise FrameError(f"a key for noise that is not trusted: {error}") from None
    if names != [name]:
        raise FrameError(f"a key for noise that {', '.join(map(repr, names))} has signed, expected {name!r}")
    try:
        _verify(key, bytes.fromhex(found.signature), _signed(run, name, found.public))  # type: ignore[arg-type]
    except InvalidSignature:
        raise FrameError(
            f"a key for noise whose signature is not {name}'s for run {run[:12]}; it was changed, or is of another run"
        ) from None


class LinkKeys:
    """One site's keys and secrets."""

    def __init__(self, folder: Path, run: str, identity: Identity, resumes: bool) -> None:
        """`folder` is the run's. `resumes`: a checkpoint is continued, so noise was sent already."""
        self._path, self._run, self._identity = folder / KEYS_FILE, run, identity
        known = self._read()
        if known is None and resumes:
            raise ConfigError(
                f"{self._path} is missing, so this site's noise would not cancel; restore it from a copy, or start "
                f"again with --rejoin"
            )
        self._private = X25519PrivateKey.generate() if known is None else _private(known["private"])
        self._links: dict[str, dict[str, str]] = {} if known is None else known["links"]
        if known is None:
            self._write()
        self.public = self._private.public_key().public_bytes_raw().hex()
        self._signature = _sign(identity.key, _signed(run, identity.name, self.public)).hex()

    def statement(self, j: int, since: int) -> Statement:
        """What neighbour j gets, with which there is a link since this round."""
        held = self._links.get(_link(j, since), {}).get("public", "")
        return Statement(self.public, self._identity.certificate.decode(), self._signature, held)

    def secret(self, j: int, since: int) -> Secret | None:
        """What the two ends of a link share; None: they have not agreed yet."""
        found = self._links.get(_link(j, since))
        return None if found is None else Secret(bytes.fromhex(found["secret"]))

    def check(self, found: Statement, name: str) -> None:
        """Raise FrameError unless this is the key of the neighbour of this name."""
        check_statement(found, name, self._run, self._identity.ca)
        self._shared(found.public)

    def learn(self, j: int, name: str, since: int, found: Statement) -> None:
        """Agree with neighbour j on the secret of the link; it is on disk when this returns."""
        if found.holds not in ("", self.public):
            raise ConfigError(
                f"{name} has agreed on noise with an earlier key of this site, so theirs would not cancel; restore "
                f"{self._path} from a copy, or start again with --rejoin"
            )
        ends = sorted([(self._identity.name, self.public), (name, found.public)])
        info = json.dumps([_PURPOSE.decode(), self._run, ends, since]).encode()
        secret = HKDF(hashes.SHA256(), 32, bytes.fromhex(self._run), info).derive(self._shared(found.public))
        self._links = {**self._links, _link(j, since): {"public": found.public, "secret": secret.hex()}}
        self._write()

    def _shared(self, public: str) -> bytes:
        try:
            return self._private.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(public)))
        except ValueError:
            raise FrameError("a key for noise that is no point of the curve, or one of a few bad ones") from None

    def _write(self) -> None:
        table = {"run": self._run, "private": self._private.private_bytes_raw().hex(), "links": self._links}
        write_atomically(self._path, lambda file: file.write(json.dumps(table, indent=1).encode()), 0o600)

    def _read(self) -> dict[str, Any] | None:
        if not self._path.exists():
            return None
        try:
            known: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
            _check_keys(known, self._run)
            return known
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(f"{self._path} is damaged ({error}); restore it from a copy") from None


def _check_keys(known: Mapping[str, Any], run: str) -> None:
    if known["run"] != run:
        raise ValueError("it is of another run")
    _private(known["private"])
    for link in known["links"].values():
        if len(bytes.fromhex(link["secret"])) != 32 or len(bytes.fromhex(link["public"])) != 32:
            raise ValueError("a secret or a key has another length")


def _link(j: int, since: int) -> str:
    return f"{j}/{since}"


def _private(text: str) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(bytes.fromhex(text))


def _signed(run: str, name: str, public: str) -> bytes:
    return json.dumps([_PURPOSE.decode(), run, name, public]).encode()


def _sign(pem: bytes, data: bytes) -> bytes:
    key = load_pem_private_key(pem, password=None)
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(data, ec.ECDSA(hashes.SHA256()))
    return key.sign(data, padding.PKCS1v15(), hashes.SHA256())  # type: ignore[union-attr, call-arg, arg-type]


def _verify(key: PublicKey, signature: bytes, data: bytes) -> None:
    if isinstance(key, ec.EllipticCurvePublicKey):
        key.verify(signature, data, ec.ECDSA(hashes.SHA256()))
    else:
        key.verify(signature, data, padding.PKCS1v15(), hashes.SHA256())
