"""Normal numbers that nobody can predict who does not know a key: Box and Muller's method on ChaCha20 (RFC 8439).

A number is a function of its row's key and its place in the row. The radius is √(−2 ln u), u in (0, 1) of 64 bits
in steps of 2⁻⁶⁴, so the largest number is √(130 ln 2) ≈ 9.49 in size, which a standard normal number exceeds with a
probability of 2·10⁻²¹. The angle has 32 bits. All is computed with double precision.

Two machines make the same bits from a key, with a compiler or without: there are only operations that IEEE 754 rounds
in one way (no functions of a mathematical library, no multiplications fused with additions), in a fixed order. Noise
that is to cancel between two sites needs this.

The numbers are added in the type of `out`. Which of that type's values a sum can have depends on the sum without noise,
and this noise does not hide that (Mironov, "On significance of the least significant bits for differential privacy",
2012).
"""

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from netfleet.compute.threads import ThreadPool
from netfleet.errors import ConfigError
from netfleet.gradients.native.build import library

KEY = 32  # bytes
#: As in noise.cpp: the blocks of a group, each of 16 words, and the numbers that they make.
_GROUP, _NUMBERS = 16, 160
_PIECE = 256 * _NUMBERS  # numbers that one thread makes at a time
_LOGARITHM = (
    6.666666666666735130e-01,
    3.999999999940941908e-01,
    2.857142874366239149e-01,
    2.222219843214978396e-01,
    1.818357216161805012e-01,
    1.531383769920937332e-01,
    1.479819860511658591e-01,
)
_SINE = (
    -1.66666666666666324348e-01,
    8.33333333332248946124e-03,
    -1.98412698298579493134e-04,
    2.75573137070700676789e-06,
    -2.50507602534068634195e-08,
    1.58969099521155010221e-10,
)
_COSINE = (
    4.16666666666666019037e-02,
    -1.38888888888741095749e-03,
    2.48015872894767294178e-05,
    -2.75573143513906633035e-07,
    2.08757232129817482790e-09,
    -1.13596475577881948265e-11,
)

Doubles = npt.NDArray[np.float64]


class _Job(ctypes.Structure):
    """`Job` of noise.cpp: the same fields in the same order, each a number or an address of 64 bits."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("rows", "d", "out", "apart", "keys", "scale", "next"))


def add_gaussian(out: Tensor, keys: Sequence[bytes], scale: Sequence[float], pool: ThreadPool | None = None) -> None:
    """Add scale[i] times standard normal numbers to row i of `out` `[rows, d]`, from the ChaCha20 stream of key i.

    Keys have 32 bytes. The counter begins at 0 and the nonce is zero, so a key is for one row of noise only. The
    numbers do not depend on the number of threads. Without a compiler numpy makes them, with the same bits.
    """
    if any(len(key) != KEY for key in keys):
        raise ConfigError(f"a key of noise has {KEY} bytes, got one of {next(len(k) for k in keys if len(k) != KEY)}")
    if not len(out) == len(keys) == len(scale):
        raise ConfigError(f"{len(out)} rows of noise need as many keys and scales, got {len(keys)} and {len(scale)}")
    if out.device.type != "cpu" or out.stride(-1) != 1:
        made = torch.zeros(out.shape, dtype=out.dtype)
        add_gaussian(made, keys, scale, pool)
        out += made.to(out.device)
        return
    native = library("noise", str(out.dtype).removeprefix("torch."))
    if native is not None:
        _add_natively(native, out, b"".join(keys), torch.tensor(scale, dtype=torch.float64), pool or ThreadPool(1))
        return
    for row, key, size in zip(out, keys, scale, strict=True):
        row += torch.from_numpy(normal_numbers(key, len(row), size)).to(row.dtype)


def _add_natively(native: ctypes.CDLL, out: Tensor, keys: bytes, scale: Tensor, pool: ThreadPool) -> None:
    (rows, d), kept, counter = out.shape, ctypes.create_string_buffer(keys, len(keys)), ctypes.c_int64(0)
    addresses = ctypes.addressof(kept), scale.data_ptr(), ctypes.addressof(counter)
    job = _Job(rows, d, out.data_ptr(), out.stride(0), *addresses)
    tasks = rows * -(-d // _PIECE)
    pool.each(lambda slot, _: native.run(ctypes.byref(job), None), min(pool.threads, tasks))


def normal_numbers(key: bytes, count: int, scale: float = 1.0) -> Doubles:
    """The first numbers of a key, times a scale, as numpy makes them: each operation is one of noise.cpp."""
    groups = -(-count // _NUMBERS)
    blocks = np.frombuffer(chacha20(key, groups * _GROUP * 64), "<u4").reshape(groups, _GROUP, 16)
    low, high, turn = np.moveaxis(blocks[..., :15].reshape(groups, _GROUP, 5, 3), -1, 0)  # [group, block, pair]
    radius = np.sqrt(_minus_two_log((high * 2.0**32 + (low + 0.5)) * 2.0**-64)) * scale
    angle = ((turn & 0x3FFFFFFF) - (2.0**29 - 0.5)) * (2.0**-30 * np.pi / 2)
    square = angle * angle
    sine = angle + angle * square * _polynomial(square, _SINE)
    cosine = 1 - (0.5 * square - square * square * _polynomial(square, _COSINE))
    mirrored, turned = turn & 0x40000000 != 0, turn & 0x80000000 != 0
    point = np.where(mirrored, (sine, cosine), (cosine, sine))
    numbers = np.where(turned, -radius, radius) * point  # [x or y, group, block, pair]
    ordered: Doubles = numbers.transpose(1, 3, 0, 2).reshape(-1)  # [group, pair, x or y, block]
    return ordered[:count]


def _minus_two_log(x: Doubles) -> Doubles:
    """−2 ln(x) of normal positive numbers."""
    exponent = (x.view(np.int64) - 0x3FE6A09E667F3BCD) >> 52
    f = (x.view(np.int64) - (exponent << 52)).view(np.float64) - 1
    s = f / (2 + f)
    z, half = s * s, 0.5 * f * f
    log = exponent * 6.93147180559945309417e-01 + (f - (half - s * (half + z * _polynomial(z, _LOGARITHM))))
    return np.asarray(-2 * log)


def _polynomial(x: Doubles, c: tuple[float, ...]) -> Doubles:
    s = np.full_like(x, c[-1])
    for coefficient in c[-2::-1]:
        s = s * x + coefficient
    return s


def chacha20(key: bytes, count: int) -> bytes:
    """The first bytes of a key's stream."""
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
    except ImportError:
        raise ConfigError("private rows and noise need the package cryptography; install netfleet[privacy]") from None
    return Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(count))
