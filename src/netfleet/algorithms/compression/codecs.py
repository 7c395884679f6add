"""Codecs: the vector of each worker as bytes and back, row by row.

What a codec draws at random comes from a key of 64 bits per row, so that a replayed round sends the same bytes. A codec
need not be exact: the wrapper makes up for its errors.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from netfleet import randomness
from netfleet.errors import ConfigError
from netfleet.registry import Registry


class Packed(NamedTuple):
    """What is sent of one vector per worker, and what the receivers make of it."""

    wire: Tensor  # [rows, bytes], uint8
    values: Tensor  # [rows, d]
    decode: Callable[[Tensor], Tensor]  # the bytes of any row's sender -> its values
    as_is: bool = False  # whether the bytes are the values themselves


def pack(vector: Tensor | Packed) -> Packed:
    """A vector that is sent as it is, or one that a codec has packed."""
    if isinstance(vector, Packed):
        return vector
    dtype = vector.dtype
    return Packed(_bytes(vector), vector, lambda wire: _numbers(wire, dtype), as_is=True)


def _bytes(values: Tensor) -> Tensor:
    return values.contiguous().view(torch.uint8)


def _numbers(wire: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes as numbers: as they lie in a message where its places allow it, else a copy."""
    size = dtype.itemsize
    if wire.storage_offset() % size or any(stride % size for stride in wire.stride()[:-1]) or wire.stride(-1) != 1:
        wire = wire.clone(memory_format=torch.contiguous_format)
    return wire.view(dtype)


class Codec(ABC):
    """How a vector is compressed. `gamma` is the step towards the neighbours that its errors allow."""

    gamma: float = 1.0
    #: Whether some entries are not sent at all.
    sparse: bool = False

    @abstractmethod
    def encode(self, v: Tensor, keys: randomness.U64) -> Tensor:
        """The rows of v as bytes, `[rows, n]`; `keys` are 64 random bits for each row."""

    @abstractmethod
    def decode(self, wire: Tensor, d: int, dtype: torch.dtype) -> Tensor:
        """The rows `[rows, d]` that some bytes stand for."""

    def __call__(self, v: Tensor, keys: randomness.U64) -> Packed:
        """Pack the rows of v."""
        d, dtype, device, wire = v.shape[-1], v.dtype, v.device, self.encode(v, keys)

        def decode(wire: Tensor) -> Tensor:
            return self.decode(wire, d, dtype).to(device)

        return Packed(wire, decode(wire), decode)


CODECS: Registry[Codec] = Registry("compress", returns=Codec)


@CODECS.register("cast")
@dataclass(frozen=True)
class Cast(Codec):
    """Half as many bytes: every entry as a 16-bit number, bfloat16 (the range of float32) or float16 (more digits).

    The range of float16 is short, so each row is first divided by a power of two that makes its largest entry fit; that
    costs 4 bytes a row. Without it nothing below 3e-8 could be sent, and differences would never fade.
    """

    to: Literal["bfloat16", "float16"] = "bfloat16"

    def encode(self, v: Tensor, keys: randomness.U64) -> Tensor:
        if self.to == "bfloat16":
            limit = torch.finfo(torch.bfloat16).max
            return _bytes(v.clamp(-limit, limit).to(torch.bfloat16))
        unit = _unit(v)
        return torch.cat([_bytes(unit), _bytes(v.div(unit).to(torch.float16))], dim=1)

    def decode(self, wire: Tensor, d: int, dtype: torch.dtype) -> Tensor:
        if self.to == "bfloat16":
            return _numbers(wire, torch.bfloat16).to(dtype)
        return _numbers(wire[:, 4:], torch.float16).to(dtype).mul_(_numbers(wire[:, :4], torch.float32))


def _unit(v: Tensor) -> Tensor:
    """For each row the power of two whose 2¹⁴- to 2¹⁵-fold its largest entry is, `[rows, 1]` in float32."""
    largest = v.abs().amax(dim=1, keepdim=True).float().clamp(2.0**-100, 2.0**127)
    return largest / (2.0**15 * torch.frexp(largest).mantissa)


@CODECS.register("quantize")
@dataclass(frozen=True)
class Quantize(Codec):
    """Stochastic rounding to 2^(bits−1) − 1 levels on either side of 0, relative to the largest entry of each block.

    Unbiased: an entry is rounded up with the probability that makes its mean right (QSGD, Alistarh et al. 2017, with
    the maximum in place of the Euclidean norm). The scale of a block costs 4 bytes.
    """

    bits: Literal[8, 4] = 8
    block: int = 256

    def __post_init__(self) -> None:
        if self.block < 1:
            raise ConfigError(f"block, the entries that share a scale, must be at least 1, got {self.block}")

    @property
    def levels(self) -> int:
        """The number of steps from 0 to the largest entry."""
        return (1 << (self.bits - 1)) - 1

    def encode(self, v: Tensor, keys: randomness.U64) -> Tensor:
        v = v.cpu().float()
        scale = _blocks(v, self.block).abs().amax(dim=2)  # [rows, blocks]
        steps = v.div(self._spread(scale, v.shape[1])).nan_to_num_(0.0).mul_(self.levels)
        rounded = steps.add_(_noise(keys, v.shape[1])).floor_().clamp_(-self.levels, self.levels)
        return torch.cat([_bytes(scale), self._squeeze(rounded.add_(self.levels).to(torch.uint8))], dim=1)

    def decode(self, wire: Tensor, d: int, dtype: torch.dtype) -> Tensor:
        wire = wire.cpu()
        split = 4 * -(-d // self.block)
        codes = wire[:, split:]
        codes = codes if self.bits == 8 else torch.stack([codes & 15, codes >> 4], dim=2).flatten(1)
        steps = codes[:, :d].to(dtype).sub_(self.levels).div_(self.levels)
        return steps.mul_(self._spread(_numbers(wire[:, :split], torch.float32), d).to(dtype))

    def _spread(self, scale: Tensor, d: int) -> Tensor:
        return scale.repeat_interleave(self.block, dim=1)[:, :d]

    def _squeeze(self, codes: Tensor) -> Tensor:
        """Two codes in a byte, where they are half as long."""
        if self.bits == 8:
            return codes
        pairs = _blocks(codes, 2)
        return pairs[:, :, 0] | pairs[:, :, 1] << 4


def _noise(keys: randomness.U64, d: int) -> Tensor:
    """Uniform on (0, 1), `[rows, d]`, from 16 random bits each: enough to choose between two neighbouring levels."""
    words = randomness.bits("round", keys[:, None].view(np.int64), np.arange(-(-d // 4)))
    return torch.from_numpy(words.view(np.uint16)[:, :d].astype(np.float32)).add_(0.5).mul_(2.0**-16)


def _blocks(v: Tensor, size: int) -> Tensor:
    """Rows cut into blocks, the last filled up with zeros."""
    return torch.nn.functional.pad(v, (0, -v.shape[1] % size)).view(len(v), -1, size)


@dataclass(frozen=True)
class _Sparse(Codec):
    """Some of the entries, the rest taken as 0."""

    share: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(f"share, of the entries that are sent, must lie in (0, 1], got {self.share!r}")

    @property
    def sparse(self) -> bool:  # type: ignore[override]
        """With a share of 1 nothing is left out."""
        return self.share < 1

    def count(self, d: int) -> int:
        """How many entries of d are sent."""
        return max(1, round(self.share * d))


@CODECS.register("top-k")
class TopK(_Sparse):
    """The largest entries, with their places: 8 bytes for each in float32."""

    @property
    def gamma(self) -> float:  # type: ignore[override]
        """Four times the share, after the values that the authors of CHOCO-SGD tuned."""
        return min(1.0, 4 * self.share)

    def encode(self, v: Tensor, keys: randomness.U64) -> Tensor:
        places = v.abs().topk(self.count(v.shape[1])).indices.sort().values
        return torch.cat([_bytes(places.to(torch.int32)), _bytes(v.gather(1, places))], dim=1)

    def decode(self, wire: Tensor, d: int, dtype: torch.dtype) -> Tensor:
        k = self.count(d)
        places = _numbers(wire[:, : 4 * k], torch.int32).long()
        return _scattered(places, _numbers(wire[:, 4 * k :], dtype), d)


@CODECS.register("random-k")
class RandomK(_Sparse):
    """Entries drawn at random; their places follow from a key of 8 bytes that is sent with them."""

    @property
    def gamma(self) -> float:  # type: ignore[override]
        """The share, after the values that the authors of CHOCO-SGD tuned."""
        return self.share

    def encode(self, v: Tensor, keys: randomness.U64) -> Tensor:
        places = self._places(keys, v.shape[1]).to(v.device)
        head = torch.from_numpy(keys[:, None].view(np.uint8).copy())
        return torch.cat([head.to(v.device), _bytes(v.gather(1, places))], dim=1)

    def decode(self, wire: Tensor, d: int, dtype: torch.dtype) -> Tensor:
        keys = wire[:, :8].cpu().contiguous().numpy().view(np.uint64)[:, 0]
        return _scattered(self._places(keys, d).to(wire.device), _numbers(wire[:, 8:], dtype), d)

    def _places(self, keys: randomness.U64, d: int) -> Tensor:
        """The k places whose hash with the key is smallest, for each row."""
        k = self.count(d)
        hashes = randomness.bits("places", keys[:, None].view(np.int64), np.arange(d))
        return torch.from_numpy(np.sort(np.argpartition(hashes, k - 1, axis=1)[:, :k], axis=1))


def _scattered(places: Tensor, values: Tensor, d: int) -> Tensor:
    return torch.zeros(len(values), d, dtype=values.dtype, device=values.device).scatter_(1, places, values)
