"""The secrets that a site shares with each neighbour, for noise that cancels between the two.

A site makes a key pair (X25519) for the run. Neighbours ask each other for the public keys (KEY); the note with the
answer has the signature of the certificate's key, over the run, the site's name and the public key. From its own
private key and the other's public key each computes the same secret (HKDF), bound to the run, both names and keys, and
the link's first round.

All is in `noise.json` of the run's folder, for its owner only, before it is used. So a restarted site has the same
secrets, and whoever deletes a run and starts again has new ones.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from netfleet.errors import ConfigError, FrameError
from netfleet.files import write_atomically
from netfleet.privacy.mechanism import Secret
from netfleet.sites.network.outbox import Message

KEYS_FILE = "noise.json"
WORDS, BYTES = "key", 64
_PURPOSE, _NONE = "netfleet link noise", bytes(32)


class Statement(NamedTuple):
    """A site's public key as a neighbour gets it."""

    public: bytes
    holds: bytes  # the public key of the site that asks, if there is a secret with it, and else zeros

    def message(self) -> Message:
        return Message(WORDS, torch.frombuffer(bytearray(self.public + self.holds), dtype=torch.uint8))


def parse_statement(data: bytes) -> Statement:
    """A statement from `BYTES` bytes."""
    return Statement(data[:32], data[32:])


class LinkKeys:
    """One site's keys and secrets."""

    def __init__(self, folder: Path, run: str, name: str, resumes: bool, rollbacks: int = 0) -> None:
        """`folder` is the run's. `resumes`: a checkpoint is continued, so noise was sent already.

        After other `rollbacks` (`Rollbacks.key`) of all sites the noise is another, because rounds are
        computed again, maybe with other results: the same noise would show their difference.
        """
        self._rollbacks = rollbacks
        self._path, self._run, self._name = folder / KEYS_FILE, run, name
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
        self.public = self._private.public_key().public_bytes_raw()

    def statement(self, j: int, since: int) -> Statement:
        """What neighbour j gets, with which there is a link since this round."""
        held = self._links.get(_link(j, since))
        return Statement(self.public, _NONE if held is None else bytes.fromhex(held["public"]))

    def secret(self, j: int, since: int) -> Secret | None:
        """What the two ends of a link share; None: they have not agreed yet."""
        found = self._links.get(_link(j, since))
        if found is None:
            return None
        secret = Secret(bytes.fromhex(found["secret"]))
        return Secret(secret.derive("rollback", self._rollbacks)) if self._rollbacks else secret

    def learn(self, j: int, name: str, since: int, found: Statement) -> None:
        """Agree with neighbour j on the secret of the link; it is on disk when this returns."""
        if found.holds not in (_NONE, self.public):
            raise ConfigError(
                f"{name} has agreed on noise with an earlier key of this site, so theirs would not cancel; restore "
                f"{self._path} from a copy, or start again with --rejoin"
            )
        ends = sorted([(self._name, self.public.hex()), (name, found.public.hex())])
        info = json.dumps([_PURPOSE, self._run, ends, since]).encode()
        secret = HKDF(hashes.SHA256(), 32, bytes.fromhex(self._run), info).derive(self.shared(found))
        self._links = {**self._links, _link(j, since): {"public": found.public.hex(), "secret": secret.hex()}}
        self._write()

    def shared(self, found: Statement) -> bytes:
        """The result of the key agreement; raises FrameError if the other's key is none."""
        try:
            return self._private.exchange(X25519PublicKey.from_public_bytes(found.public))
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
