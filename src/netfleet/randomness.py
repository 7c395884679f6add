"""Random numbers by address instead of by call order.

Every draw is a pure function of (seed, what it is for, worker, round, step, position): a counter-based generator. So
results do not depend on threads, ranks or restarts, and a replayed round is bit-identical. The mixing function is
the finaliser of SplitMix64 (Steele, Lea, Flood 2014), applied once per word of the address.
"""

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

U64 = npt.NDArray[np.uint64]
_GOLDEN, _A, _B, _MASK = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, (1 << 64) - 1
_GOLDEN_U64, _A_U64, _B_U64 = np.uint64(_GOLDEN), np.uint64(_A), np.uint64(_B)
_SHIFTS = tuple(np.uint64(shift) for shift in (30, 27, 31))


def bits(purpose: str, *address: int | npt.ArrayLike) -> U64:
    """64 random bits for each address; the words broadcast against each other.

    Single words are mixed as Python's numbers, ten times as fast as numpy's, until the first array.
    """
    h: Any = _mix_one(zlib.crc32(purpose.encode()))
    for word in address:
        if isinstance(word, int) or np.ndim(word) == 0:
            salt = (int(word) + _GOLDEN) & _MASK  # type: ignore[arg-type]
            h = _mix_one(h ^ salt) if isinstance(h, int) else _mix(h ^ np.uint64(salt))
        else:
            salts = np.asarray(word, dtype=np.int64).view(np.uint64) + _GOLDEN_U64
            h = _mix(salts ^ np.uint64(h))
    return np.asarray(h, dtype=np.uint64)


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


def torch_generator(purpose: str, *address: int) -> "torch.Generator":
    """A CPU torch generator for set-up work (initial weights)."""
    import torch  # graphs need random numbers too, and no torch

    return torch.Generator().manual_seed(int(bits(purpose, *address)) >> 1)


def _mix(z: U64) -> U64:
    """Overwrites its argument."""
    z += _GOLDEN_U64
    z ^= z >> _SHIFTS[0]
    z *= _A_U64
    z ^= z >> _SHIFTS[1]
    z *= _B_U64
    z ^= z >> _SHIFTS[2]
    return z


def _mix_one(z: int) -> int:
    z = (z + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * _A) & _MASK
    z = ((z ^ (z >> 27)) * _B) & _MASK
    return z ^ (z >> 31)
