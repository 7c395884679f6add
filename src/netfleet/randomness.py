"""Random numbers by address instead of by call order.

Every draw is a pure function of (seed, what it is for, worker, round, step, position): a counter-based generator. So
results do not depend on threads, ranks or restarts, and a replayed round is bit-identical. The mixing function is
the finaliser of SplitMix64 (Steele, Lea, Flood 2014), applied once per word of the address.
"""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt
import torch

U64 = npt.NDArray[np.uint64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_A, _B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def bits(purpose: str, *address: int | npt.ArrayLike) -> U64:
    """64 random bits for each address; the words broadcast against each other."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2⁶⁴ is meant
        h = _mix(np.asarray(zlib.crc32(purpose.encode()), dtype=np.uint64))
        for word in address:
            h = _mix(h ^ (np.asarray(word, dtype=np.int64).astype(np.uint64) + _GOLDEN))
    return h


def uniform(purpose: str, *address: int | npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Uniform on [0, 1), one for each address."""
    return (bits(purpose, *address) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def integers(high: int | npt.ArrayLike, purpose: str, *address: int | npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Uniform on {0, …, high − 1}, one for each address."""
    scaled: npt.NDArray[np.float64] = uniform(purpose, *address) * np.asarray(high, dtype=np.float64)
    return scaled.astype(np.int64)


def normal(purpose: str, *address: int | npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Standard normal, one for each address (Box and Muller 1958)."""
    radius = np.sqrt(-2.0 * np.log1p(-uniform(purpose + "/radius", *address)))
    return np.asarray(radius * np.cos(2.0 * np.pi * uniform(purpose + "/angle", *address)))


def generator(purpose: str, *address: int) -> np.random.Generator:
    """A numpy generator for set-up work (graphs, partitions), where a single stream is enough."""
    return np.random.default_rng(int(bits(purpose, *address)))


def torch_generator(purpose: str, *address: int) -> torch.Generator:
    """A CPU torch generator for set-up work (initial weights)."""
    return torch.Generator().manual_seed(int(bits(purpose, *address)) >> 1)


def _mix(z: U64) -> U64:
    z = z + _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _A
    z = (z ^ (z >> np.uint64(27))) * _B
    return np.asarray(z ^ (z >> np.uint64(31)))
