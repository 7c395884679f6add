"""The simulator: all m workers in one `[m, d]` tensor, W applied as a matrix."""

import functools
import itertools
from collections.abc import Callable, Sequence

import torch
from scipy.sparse import csr_array
from torch import Tensor

from netfleet.algorithms.compression import Packed
from netfleet.compute.products import as_sparse
from netfleet.compute.threads import available_threads, one_intra_op_thread
from netfleet.engines.collective import SingleHost
from netfleet.engines.delayed import DelayedMixing
from netfleet.engines.host import Host
from netfleet.engines.job import Job, Snapshot
from netfleet.engines.loop import train
from netfleet.privacy.link_noise import AddsNoise
from netfleet.problems.base import Problem
from netfleet.topology.faults import Unreliable
from netfleet.topology.network import Network

#: W is stored as a sparse matrix where a smaller share of its entries is not zero.
SPARSE_SHARE = 1 / 8


class Simulator(Host):
    """A host of all workers at once."""

    decides_alone = True

    def __init__(self, problem: Problem, network: Network, threads: int = 0, noise: AddsNoise | None = None) -> None:
        super().__init__(problem, network, SingleHost(), threads or available_threads(), noise)
        self._static = None if network.varying else self._matrix(0)
        self._delayed = DelayedMixing(network) if isinstance(network, Unreliable) and network.has_memory else None

    def _matrix(self, t: int, dtype: torch.dtype | None = None) -> Tensor:
        """W(t), or its one row where all are equal; in the problem's type unless given."""
        row, dtype = self.network.average(max(t, 0)), dtype or self.problem.dtype
        if row is not None:
            return torch.from_numpy(row[None]).to(self.problem.device, dtype)
        return as_matrix(self.network.W(max(t, 0)), dtype, self.problem.device)

    def _average_of(self, t: int) -> Callable[[Sequence[Packed]], list[Tensor]]:
        if self._delayed is not None:
            mix_delayed = functools.partial(self._delayed.mix, max(t, 0))
            names = map(str if t >= 0 else "init/{}".format, itertools.count())  # which vector of the round it is
            return lambda packed: [mix_delayed(next(names), p.values) for p in packed]
        W = self._matrix(t) if self._static is None else self._static

        def mixed(v: Tensor) -> Tensor:
            return self._product(W if W.dtype == v.dtype else self._matrix(t, v.dtype), v, len(v))

        return lambda packed: [mixed(p.values) for p in packed]

    def _messages(self, t: int) -> int:
        return self.network.messages(t)

    def network_state(self) -> dict[str, Tensor]:
        return {} if self._delayed is None else dict(self._delayed.memory)

    def load_network_state(self, memory: dict[str, Tensor]) -> None:
        if self._delayed is not None:
            self._delayed.memory = dict(memory)


def as_matrix(W: csr_array, dtype: torch.dtype, device: torch.device) -> Tensor:
    """W as a torch matrix, dense or sparse, whichever multiplies faster."""
    m = W.shape[0]
    if W.nnz >= SPARSE_SHARE * m * m:
        return torch.from_numpy(W.toarray()).to(device, dtype)
    return as_sparse(W, dtype).to(device)


def run_simulator(job: Job) -> Snapshot:
    """Train on one machine, all workers at once."""
    with one_intra_op_thread():
        return train(Simulator(job.problem, job.network, job.threads, job.noise), job)
