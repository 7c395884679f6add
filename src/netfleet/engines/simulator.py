"""The simulator: all m workers in one `[m, d]` tensor, W applied as a matrix."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import torch
from scipy.sparse import csr_array
from torch import Tensor

from netfleet.algorithms import Mix
from netfleet.algorithms.compression import Packed, pack
from netfleet.compute.products import Product, as_sparse
from netfleet.compute.threads import available_threads, one_intra_op_thread
from netfleet.engines.collective import SingleHost
from netfleet.engines.delayed import DelayedMixing
from netfleet.engines.job import Job, S, Snapshot
from netfleet.engines.loop import train
from netfleet.problems.base import Problem
from netfleet.topology.faults import Unreliable
from netfleet.topology.network import Network

#: W is stored as a sparse matrix where a smaller share of its entries is not zero (netfleet bench mixing).
SPARSE_SHARE = 1 / 8


class Simulator:
    """A host of all workers at once."""

    decides_alone, collective = True, SingleHost()

    def __init__(self, problem: Problem, network: Network, threads: int = 0) -> None:
        self.problem, self.network = problem, network
        self._product, self._sent = Product(threads or available_threads()), 0
        self._static = None if network.varying else self._matrix(0)
        self._delayed = DelayedMixing(network) if isinstance(network, Unreliable) and network.remembers else None

    def _matrix(self, t: int, dtype: torch.dtype | None = None) -> Tensor:
        """W(t), or its one row where all are equal; in the problem's type unless said otherwise."""
        row, dtype = self.network.average(max(t, 0)), dtype or self.problem.dtype
        if row is not None:
            return torch.from_numpy(row[None]).to(self.problem.device, dtype)
        return as_matrix(self.network.W(max(t, 0)), dtype, self.problem.device)

    def mixer(self, t: int) -> Mix:
        mix_one, messages = self._vector_mixer(t), self.network.messages(max(t, 0))
        names = map(str if t >= 0 else "init/{}".format, itertools.count())

        def mix(*vectors: Tensor | Packed) -> Tensor | tuple[Tensor, ...]:
            packed = [pack(v) for v in vectors]
            self._sent += messages * sum(p.wire.shape[1] for p in packed)
            mixed = tuple(mix_one(next(names), p.values) for p in packed)
            return mixed[0] if len(mixed) == 1 else mixed

        return mix  # type: ignore[return-value]

    def _vector_mixer(self, t: int) -> Callable[[str, Tensor], Tensor]:
        """Mixes a vector of round t; the name says which vector of the round it is."""
        if self._delayed is not None:
            return functools.partial(self._delayed.mix, max(t, 0))
        W = self._matrix(t) if self._static is None else self._static
        return lambda _, v: self._product(W if W.dtype == v.dtype else self._matrix(t, v.dtype), v, len(v))

    def network_state(self) -> dict[str, Tensor]:
        return {} if self._delayed is None else dict(self._delayed.memory)

    def load_network_state(self, memory: dict[str, Tensor]) -> None:
        if self._delayed is not None:
            self._delayed.memory = dict(memory)

    @property
    def freezes(self) -> bool:
        return self.network.freezes

    def active(self, t: int) -> Tensor | None:
        mask = self.network.active(t)
        return None if mask is None else torch.from_numpy(mask[:, None])

    def settle(self, state: S) -> S:
        return state

    def bytes_sent(self) -> int:
        return self._sent


def as_matrix(W: csr_array, dtype: torch.dtype, device: torch.device) -> Tensor:
    """W as a torch matrix, dense or sparse, whichever multiplies faster."""
    m = W.shape[0]
    if W.nnz >= SPARSE_SHARE * m * m:
        return torch.from_numpy(W.toarray()).to(device, dtype)
    return as_sparse(W, dtype).to(device)


def run_simulator(job: Job) -> Snapshot:
    """Train on one machine, all workers at once."""
    with one_intra_op_thread():
        return train(Simulator(job.problem, job.network, job.threads), job)
