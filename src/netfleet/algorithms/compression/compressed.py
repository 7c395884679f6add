r"""Any method with compressed messages: differences are sent, as in CHOCO-SGD.

| paper | here | |
|---|---|---|
| Q | `codec` | the compression |
| x̂_i | `known` | what the neighbours know of a worker's vector |
| Σⱼ wᵢⱼ x̂ⱼ | `heard` | what a worker knows of its neighbours' |
| γ | `gamma` | step towards the neighbours |

    q_i = Q(x_i − x̂_i),  x̂_i ← x̂_i + q_i                                         (1)
    x_i ← x_i + γ Σⱼ wᵢⱼ (x̂ⱼ − x̂ᵢ)                                               (2)

Only q is sent. As x̂ follows x, q goes to 0 and its error with it, so consensus is exact in the limit; and since W is
doubly stochastic, (2) leaves Σᵢ xᵢ as it is whatever Q does, so gradient tracking stays right. Without memory, x̂ is 0
before every exchange: then W may change from round to round, but the error stays. The memory is in float64: what it
loses in rounding would be added to x again in every round.

Top-k and random-k leave x̂ behind x by many rounds. Gradient tracking tolerates that (with a lower γ where it
oscillates). D², LED and ProxSkip are rejected: their correction sums γ Σⱼ wᵢⱼ (x̂ⱼ − x̂ᵢ) over the rounds and moves x by
it, so old values feed back. Where steep objectives do not damp that, it grows; smaller steps make it worse, and so does
a smaller share.
"""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from netfleet import randomness
from netfleet.algorithms.base import AnyState, Mix
from netfleet.algorithms.compression.codecs import Codec, Packed
from netfleet.algorithms.wrapper import Wrapper
from netfleet.errors import ConfigError
from netfleet.problems.base import Problem


@dataclass(frozen=True, kw_only=True)
class Compressed(Wrapper):
    """A method whose messages pass through a codec; `gamma` is the codec's own unless given."""

    codec: Codec
    gamma: float | None = None
    memory: bool = True
    citation = """@inproceedings{koloskova2019decentralized,
  title     = {Decentralized Stochastic Optimization and Gossip Algorithms with Compressed Communication},
  author    = {Koloskova, Anastasia and Stich, Sebastian U. and Jaggi, Martin},
  booktitle = {International Conference on Machine Learning (ICML)},
  year      = {2019}
}"""

    def __post_init__(self) -> None:
        if self.gamma is not None and not 0 < self.gamma <= 1:
            raise ConfigError(
                f"compress: gamma, the step towards the neighbours, must lie in (0, 1], got {self.gamma}; leave it "
                f"out, or lower it if the run diverges"
            )
        if self.method.server:
            raise ConfigError(
                f"compress: {self.method.title} has a server, whose answers would have to be compressed as well; use a "
                f"method over a graph"
            )
        if self.method.sums_differences and self.codec.sparse:
            raise ConfigError(
                f"compress: {self.method.title} learns its correction from differences of the models, and can diverge "
                f"where only some of their entries are sent, at small step sizes too; use quantize or cast, or a "
                f"method that tracks gradients (net-fleet, k-gt, …)"
            )
        # What is conserved is fed by what the neighbours know, which no argument of `mix` has.
        self._describe(["known", "heard"] if self.memory else [], conserves=None)

    def init(self, f: Problem, mix: Mix, x: Tensor) -> AnyState:
        nothing = x[:, :0].double()
        channel = _Channel(self, f, mix, -1, nothing, nothing)
        return self._outer(self.method.init(f, channel, x), channel)

    def round(self, f: Problem, mix: Mix, t: int, s: Any) -> AnyState:
        parts = list(s)
        del s
        inner = [self._divided(parts)]
        nothing = inner[0][0][:, :0].double()
        channel = _Channel(self, f, mix, t, *(parts if self.memory and t > 0 else (nothing, nothing)))
        return self._outer(self.method.round(f, channel, t, self.method.State._make(inner.pop())), channel)

    def _outer(self, inner: AnyState, channel: "_Channel") -> AnyState:
        return cast(AnyState, self.State._make([*inner, *(channel.memory() if self.memory else ())]))


class _Channel:
    """A `mix` that compresses: the memory of a round's exchanges, one after the other, `[rows, Σd]`."""

    def __init__(self, settings: Compressed, f: Problem, mix: Mix, t: int, known: Tensor, heard: Tensor) -> None:
        self.settings, self.f, self.mix, self.t = settings, f, mix, t
        self.gamma = settings.codec.gamma if settings.gamma is None else settings.gamma
        self.known, self.heard = known, heard
        self._new: list[tuple[Tensor, Tensor]] = []
        self._used = self._sent = 0

    def __call__(self, *vectors: Tensor) -> Any:
        memory = [self._recall(v) for v in vectors]
        packed = [self._pack(v, known) for v, (known, _) in zip(vectors, memory, strict=True)]
        mixed: Any = self.mix(*packed)  # type: ignore[call-overload]
        arrived = [mixed] if len(packed) == 1 else list(mixed)
        out = []
        for v, (known, heard), q, news in zip(vectors, memory, packed, arrived, strict=True):
            known, heard = known + q.values, news.add_(heard)  # eq. (1)
            self._new.append((known, heard))
            out.append(torch.sub(heard, known).mul_(self.gamma).add_(v).to(v.dtype))  # eq. (2)
        return out[0] if len(out) == 1 else tuple(out)

    def memory(self) -> tuple[Tensor, Tensor]:
        """x̂ and Σ w x̂ of all that was sent in this round."""
        if not self._new:
            return self.known, self.heard
        known, heard = zip(*self._new, strict=True)
        return torch.cat(known, dim=1), torch.cat(heard, dim=1)

    def _recall(self, v: Tensor) -> tuple[Tensor, Tensor]:
        d = v.shape[1]
        if self._used + d > self.known.shape[1]:  # nothing of the kind was ever sent
            return torch.zeros_like(v, dtype=torch.float64), torch.zeros_like(v, dtype=torch.float64)
        part = slice(self._used, self._used + d)
        self._used += d
        return self.known[:, part], self.heard[:, part]

    def _pack(self, v: Tensor, known: Tensor) -> Packed:
        """What is sent of v, in the type of v; what is made of it, in the type of the memory."""
        keys = randomness.bits("compress", self.f.seed, np.array(self.f.workers), self.t, self._sent)
        self._sent += 1
        q = self.settings.codec((v - known).to(v.dtype), keys)
        return Packed(q.wire, q.values.to(known.dtype), lambda wire: q.decode(wire).to(known.dtype))
