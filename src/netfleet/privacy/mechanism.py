"""Which rows a private gradient uses, and its noise: secret, and addressed, so that a repeated round draws the same.

The draws of a worker are functions of its secret, the round and the step. Whoever does not know the secret cannot tell
which rows were drawn. A round that is repeated after a crash has the same rows and the same noise; noise that is drawn
twice for one gradient would average out. So a secret is never used for two different trainings (`Secret.epoch`).
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from netfleet.compute.threads import ThreadPool
from netfleet.privacy.noise import add_gaussian, chacha20

Rows = npt.NDArray[np.int64]


class Secret(NamedTuple):
    """What the draws come from: bytes that nobody else knows, and which of a site's trainings this is."""

    key: bytes
    epoch: int = 0

    def derive(self, *address: object) -> bytes:
        """32 bytes for an address."""
        words = repr((self.epoch, *address)).encode()
        return hashlib.blake2b(words, key=self.key[:64], digest_size=32).digest()

    def __repr__(self) -> str:
        return f"Secret(epoch={self.epoch})"


def simulated_secret(seed: int) -> Secret:
    """The secret of a simulation or of a cluster's run: as reproducible as the rest of it, and so not secret."""
    return Secret(hashlib.sha256(f"netfleet simulation {seed}".encode()).digest())


class Rate(NamedTuple):
    """How one worker's gradients are made private."""

    noise: float  # standard deviation, in clipping lengths
    rate: float  # with which a row is in a mini-batch
    rows: int

    @property
    def expected(self) -> float:
        """Rows of a mini-batch on average."""
        return self.rate * self.rows


@dataclass(frozen=True)
class Mechanism:
    """Poisson sampling and the Gaussian mechanism for some workers."""

    clip: float
    rates: Mapping[int, Rate]  # by worker
    secret: Callable[[int], Secret]  # for the draws of a round, which are counted when it is asked for

    def sampler(self, workers: Sequence[int], parts: Sequence[Rows]) -> "Sampler":
        """What draws the mini-batches of some workers, whose rows these are."""
        return Sampler(self, workers, parts)

    def add_noise(self, sums: Tensor, workers: Sequence[int], t: int, k: int, pool: ThreadPool | None = None) -> None:
        """Add the noise of a step to sums of clipped gradients `[workers, d]`."""
        secret = self.secret(t)
        keys = [secret.derive("noise", i, t, k) for i in workers]
        add_gaussian(sums, keys, [self.clip * self.rates[i].noise for i in workers], pool)

    def expected(self, workers: Sequence[int]) -> list[float]:
        return [self.rates[i].expected for i in workers]


class Sampler:
    """Draws each row of each worker with the worker's rate."""

    def __init__(self, mechanism: Mechanism, workers: Sequence[int], parts: Sequence[Rows]) -> None:
        self._secret, self._workers, self._parts = mechanism.secret, tuple(workers), tuple(parts)
        self._rates = [mechanism.rates[i].rate for i in workers]
        self.expected = round(sum(mechanism.expected(workers)))

    def draw(self, t: int, k: int) -> tuple[Tensor, ...]:
        """The rows of each worker's mini-batch."""
        secret, drawn = self._secret(t), []
        for i, part, rate in zip(self._workers, self._parts, self._rates, strict=True):
            words = np.frombuffer(chacha20(secret.derive("rows", i, t, k), 8 * len(part)), "<u8")
            drawn.append(torch.from_numpy(part[(words >> np.uint64(11)) * 2.0**-53 < rate]))
        return tuple(drawn)
