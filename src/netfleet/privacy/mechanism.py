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

from netfleet import randomness
from netfleet.compute.threads import ThreadPool
from netfleet.privacy.noise import add_gaussian

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
        sizes = [len(part) for part in parts]
        self._secret, self._rows, self._ends = mechanism.secret, np.concatenate(parts), np.cumsum(sizes)[:-1]
        self._rates = np.repeat([mechanism.rates[i].rate for i in workers], sizes)
        # a row's address is its place among the worker's own, whoever else is hosted here
        first = np.repeat(np.concatenate([[0], self._ends]), sizes)
        self._places = (np.repeat(np.asarray(workers), sizes) << 32) + np.arange(len(self._rows)) - first
        self.expected = round(sum(mechanism.expected(workers)))

    def draw(self, t: int, k: int) -> tuple[Tensor, ...]:
        """The rows of each worker's mini-batch."""
        key = np.frombuffer(self._secret(t).derive("rows"), dtype=np.int64).tolist()
        chosen = np.flatnonzero(randomness.uniform("poisson", *key, t, k, self._places) < self._rates)
        counts = np.diff([0, *np.searchsorted(chosen, self._ends), len(chosen)])
        return torch.split(torch.from_numpy(self._rows[chosen]), counts.tolist())
