"""The ranks of a process group, one worker each."""

import hashlib
from collections.abc import Mapping

import networkx as nx
import torch
import torch.distributed as dist
from torch import Tensor

from netfleet.algorithms import Algorithm, Mix
from netfleet.algorithms.compression import Packed
from netfleet.engines.distributed import CHUNK, ProcessGroup, RowExchange
from netfleet.engines.host import PartialHost, all_finite
from netfleet.engines.job import Job, Snapshot, Start
from netfleet.engines.loop import diverged, train
from netfleet.engines.placement import Placement
from netfleet.errors import ConfigError
from netfleet.optim.loop_problem import LoopProblem, LoopRecorder
from netfleet.registry import Spec
from netfleet.runs.build import network_for
from netfleet.topology.network import Network
from netfleet.topology.topology import Topology, make_topology

_ENDLESS = 1 << 62  # rounds of a training that ends when the loop does


class Ranks:
    """A `Connection` over a process group (None: the default one)."""

    def __init__(self, group: dist.ProcessGroup | None, topology: Topology | nx.Graph | Spec, seed: int) -> None:
        self.collective, self._seed = ProcessGroup(group), seed
        self.worker, self.workers = self.collective.rank, self.collective.size
        self.topology = (
            topology if isinstance(topology, Topology) else make_topology(topology, workers=self.workers, seed=seed)
        )
        if self.topology.m != self.workers:
            raise ConfigError(
                f"the topology has {self.topology.m} workers, the group {self.workers} ranks; make them agree"
            )
        self._network: Network | None = None
        self.rounds: int | None = None

    def adopt(self, method: Algorithm) -> Algorithm:
        self._network = network_for(method, self.topology, self._seed)
        return method

    def compare(self, facts: Mapping[str, str]) -> None:
        mine = {"topology": self._graph(), **facts}
        codes = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big") for text in mine.values()]
        found = self.collective.gather(torch.tensor([codes]), [self.worker])
        for what, text, values in zip(mine, mine.values(), found.T.tolist(), strict=True):
            if len(set(values)) > 1:
                raise ConfigError(
                    f"the ranks do not have the same {what} (rank {self.worker}: {text[:200]}); build the same model, "
                    f"method and graph on all of them (a random graph with one seed), and load the same saved state"
                )

    def _graph(self) -> str:
        return self.topology.name if self.topology.varying else repr(self.topology.W().toarray().tolist())

    def place(self) -> Mapping[str, str]:
        graph = f"{self.topology.name} ({hashlib.sha256(self._graph().encode()).hexdigest()[:8]})"
        return {"number of ranks": str(self.workers), "rank": str(self.worker), "graph": graph}

    def common_start(self, values: Tensor) -> Tensor:
        return self.collective.from_first(values)

    def average(self, values: Tensor) -> Tensor:
        return self.collective.total(values[None]).div_(self.workers)

    def host(self, problem: LoopProblem) -> "_CarefulHost":
        """The host of this rank's worker."""
        assert self._network is not None
        alone = Placement(tuple((rank,) for rank in range(self.workers)))
        exchange = RowExchange(self.collective, self._network, alone)
        return _CarefulHost(problem, self._network, exchange, self.collective, chunk=CHUNK)

    def train(self, problem: LoopProblem, method: Algorithm, start: Start | None, first: int) -> Snapshot:
        recorder, host = LoopRecorder(problem.handover), self.host(problem)
        host.method = method
        return train(host, Job(problem, host.network, method, _ENDLESS, recorder, start, first=first))


class _CarefulHost(PartialHost):
    """Before anything is sent, all ranks agree that it is finite everywhere; else all stop."""

    calls_workers = "rank"
    method: Algorithm | None = None

    def mixer(self, t: int) -> Mix:
        mix = super().mixer(t)

        def careful(*vectors: Tensor | Packed) -> Tensor | tuple[Tensor, ...]:
            self._agree(t, all(all_finite(v.values if isinstance(v, Packed) else v) for v in vectors))
            return mix(*vectors)  # type: ignore[arg-type]

        return careful  # type: ignore[return-value]

    def _agree(self, t: int, fine: bool) -> None:
        if not int(self.collective.total(torch.tensor([[int(not fine)]]))):
            return
        seen = self.collective.gather(torch.tensor([[fine]]), self.problem.workers)
        assert self.method is not None
        raise diverged(self.method, f"what rank {seen[:, 0].tolist().index(False)} was about to send", max(t, 0))
