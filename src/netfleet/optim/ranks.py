"""The ranks of a process group, one worker each."""

import hashlib
from collections.abc import Mapping, Sequence

import networkx as nx
import torch
import torch.distributed as dist
from torch import Tensor

from netfleet.algorithms import Algorithm, Mix
from netfleet.algorithms.compression import Packed
from netfleet.engines.distributed import CHUNK, ProcessGroup, RowExchange
from netfleet.engines.host import PartialHost, all_finite
from netfleet.engines.job import Job, Snapshot, Start
from netfleet.engines.loop import FINE, Bad, diverged, train
from netfleet.engines.placement import Placement
from netfleet.errors import ConfigError
from netfleet.optim.loop_problem import LoopProblem, LoopRecorder
from netfleet.optim.meeting import Place, Point, meet
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

    def meet(self, point: Point, t: int) -> None:
        """Wait until all ranks are at this point of round t; what comes next then belongs together."""
        meet(self.collective, Place(point, t))

    def compare(self, t: int, facts: Mapping[str, str]) -> None:
        self.meet(Point.START, t)
        mine = {"topology": self._graph(), "round": str(t), **facts}
        codes = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big") for text in mine.values()]
        found = torch.stack(self.collective.from_all(torch.tensor(codes)))
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

    def average(self, t: int, values: Tensor) -> Tensor:
        self.meet(Point.AVERAGE, t)
        return self.collective.total(values[None]).div_(self.workers)

    def host(self, problem: LoopProblem, method: Algorithm) -> "_LoopHost":
        """The host of this rank's worker."""
        assert self._network is not None
        alone = Placement(tuple((rank,) for rank in range(self.workers)))
        exchange = RowExchange(self.collective, self._network, alone)
        return _LoopHost(problem, self._network, exchange, self.collective, method)

    def train(self, problem: LoopProblem, method: Algorithm, start: Start | None, first: int) -> Snapshot:
        recorder, host = LoopRecorder(problem.handover), self.host(problem, method)
        return train(host, Job(problem, host.network, method, _ENDLESS, recorder, start, first=first))


class _LoopHost(PartialHost):
    """Before anything is sent, all ranks agree on where they are and that it is finite everywhere; else all stop."""

    calls_workers = "rank"

    def __init__(
        self, problem: LoopProblem, network: Network, exchange: RowExchange, ranks: ProcessGroup, method: Algorithm
    ) -> None:
        super().__init__(problem, network, exchange, ranks, chunk=CHUNK)
        self._ranks, self._method, self._t = ranks, method, -1

    def mixer(self, t: int) -> Mix:
        self._t, mix = t, super().mixer(t)

        def careful(*vectors: Tensor | Packed) -> Tensor | tuple[Tensor, ...]:
            fine = all(all_finite(v.values if isinstance(v, Packed) else v) for v in vectors)
            first = Bad(*self._meet(Point.EXCHANGE, FINE if fine else Bad(t, 0, self._ranks.rank)))
            if first != FINE:
                raise diverged(self._method, f"what rank {first.worker} was about to send", max(t, 0))
            return mix(*vectors)  # type: ignore[arg-type]

        return careful  # type: ignore[return-value]

    def least(self, numbers: Sequence[int]) -> Sequence[int]:
        return self._meet(Point.END, numbers)

    def _meet(self, point: Point, bad: Sequence[int]) -> Sequence[int]:
        rate, groups = self._method.step_size(max(self._t, 0)), self.problem.groups
        factor = sum(group.rate for group in groups) / len(groups) if groups else 1.0
        return meet(self._ranks, Place(point, self._t, rate, factor * rate), bad)
