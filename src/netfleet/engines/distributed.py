"""A cluster: `torch.distributed` ranks that each host some of the workers.

Ranks send each other rows directly (`isend` and `irecv`, batched for NCCL), each row once to every rank that needs it.
Exact averages and metrics are all-reduced. torchrun starts the processes, or another launcher that sets RANK,
WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from netfleet import errors
from netfleet.compute.host_memory import HostMemory, deliver
from netfleet.compute.threads import available_threads, one_intra_op_thread
from netfleet.engines.host import Content, PartialHost, Tag, needed, refuse_memory
from netfleet.engines.job import Job, Snapshot
from netfleet.engines.loop import train
from netfleet.engines.placement import Placement, place_on
from netfleet.engines.ranks import reaching
from netfleet.engines.row_blocks import RowBlocks
from netfleet.engines.stopping import REQUEST, StoppableRecorder
from netfleet.errors import ConfigError, NetfleetError
from netfleet.privacy.link_noise import LinkNoise
from netfleet.problems.base import Problem
from netfleet.topology.network import Network

T = TypeVar("T")
#: Bytes of a worker's message above which it is sent in parts.
CHUNK = 1 << 20


class ProcessGroup:
    """The collective of a process group (None: the default one).

    It holds no reference to the default group: torch could not destroy that before the interpreter ends, and Gloo's
    threads then abort the process.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        if not dist.is_initialized():
            raise ConfigError(
                "there is no process group; call torch.distributed.init_process_group() first (torchrun sets all it "
                "needs), or use the simulator"
            )
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.keeps_record = self.rank == 0
        #: The backend of each type of device.
        self.backends = dict(pair.split(":") for pair in dist.get_backend_config(group).split(","))
        if "cpu" not in self.backends:
            raise ConfigError(
                f"the process group has no backend for the CPU, only {', '.join(self.backends)}, and ranks compare "
                f'small things there; call init_process_group("cpu:gloo,cuda:nccl")'
            )

    def count(self, m: int) -> int:
        return m

    def total(self, rows: Tensor) -> Tensor:
        total = rows.sum(dim=0)
        with reaching("another rank"):
            dist.all_reduce(total, group=self.group)
        return total

    def gather(self, rows: Tensor, workers: Sequence[int]) -> Tensor:
        most = torch.tensor(len(rows))
        with reaching("another rank"):
            dist.all_reduce(most, op=dist.ReduceOp.MAX, group=self.group)
        ids = torch.full((int(most),), -1)
        ids[: len(rows)] = torch.tensor(list(workers))
        values = rows.new_zeros(int(most), *rows.shape[1:])
        values[: len(rows)] = rows
        order, found = torch.cat(self.from_all(ids)), torch.cat(self.from_all(values))
        there = (order >= 0).nonzero()[:, 0]
        return found[there[order[there].argsort()].to(found.device)]

    def from_all(self, values: Tensor) -> list[Tensor]:
        """The values of every rank, which have the same shape."""
        parts = [torch.empty_like(values) for _ in range(self.size)]
        with reaching("another rank"):
            dist.all_gather(parts, values, group=self.group)
        return parts

    def first(self, act: Callable[[], T]) -> T:
        found: dict[str, Any] = {}
        if self.keeps_record:
            try:
                found["result"] = act()
            except NetfleetError as error:
                found = {"error": str(error), "kind": type(error).__name__}
            except Exception as error:
                self._broadcast({"error": f"{type(error).__name__}: {error}", "kind": "EngineError"})
                raise
        found = self._broadcast(found)
        if "error" in found:
            raised: NetfleetError = getattr(errors, found["kind"])(found["error"])
            raised.shared = True
            raise raised
        result: T = found["result"]
        return result

    def _broadcast(self, found: dict[str, Any]) -> dict[str, Any]:
        """Rank 0's table, on all ranks."""
        text = torch.tensor(list(json.dumps(found).encode()), dtype=torch.uint8)
        size, root = torch.tensor(len(text)), self.global_rank(0)
        with reaching("another rank" if self.keeps_record else "rank 0"):
            dist.broadcast(size, root, group=self.group)
            text = text if self.keeps_record else torch.empty(int(size), dtype=torch.uint8)
            dist.broadcast(text, root, group=self.group)
        received: dict[str, Any] = json.loads(bytes(text.tolist()))
        return received

    def from_first(self, values: Tensor) -> Tensor:
        """Rank 0's values, on all ranks."""
        values = values.clone()
        with reaching("another rank" if self.keeps_record else "rank 0"):
            dist.broadcast(values, self.global_rank(0), group=self.group)
        return values

    def global_rank(self, rank: int) -> int:
        """The number that a rank of this group has in the whole job."""
        return rank if self.group is None else dist.get_global_rank(self.group, rank)


class Route(NamedTuple):
    """What this rank and another send each other in an exchange."""

    rank: int  # the other's, in the whole job
    sends: RowBlocks
    receives: RowBlocks  # contiguous


class RowExchange:
    """One rank's `exchange`: sends rows to the ranks that need them, and receives those that it needs."""

    def __init__(self, ranks: ProcessGroup, network: Network, placement: Placement) -> None:
        self.ranks, self.network, self.placement = ranks, network, placement
        self.mine = set(placement.workers[ranks.rank])
        self.sent = 0  # bytes that left this rank
        self._host = HostMemory()
        self._static: list[Route] | None = None
        self._staging: dict[int, Tensor] = {}  # where rows that are not contiguous are copied, by rank

    def __call__(self, tag: Tag, need: Sequence[int], stack: Tensor, content: Content | None = None) -> None:
        if self.ranks.backends.get(stack.device.type, "gloo") == "gloo" and stack.device.type != "cpu":
            on_host = self._host.copy(stack)  # Gloo sends from the memory of the host only
            self._send_and_receive(tag, need, on_host)
            deliver(on_host, stack)
        else:
            self._send_and_receive(tag, need, stack)

    def _send_and_receive(self, tag: Tag, need: Sequence[int], stack: Tensor) -> None:
        ops: list[tuple[Any, Tensor, int]] = []
        for route in self.routes(max(tag.t, 0), need):
            if route.sends.count:
                rows = route.sends.take(stack, self._staging.get(route.rank))
                if not route.sends.contiguous:
                    self._staging[route.rank] = rows
                self.sent += rows.numel()
                ops.append((dist.isend, rows, route.rank))
            if route.receives.count:
                ops.append((dist.irecv, route.receives.piece(stack), route.rank))
        if not ops:
            return
        group = self.ranks.group
        if stack.device.type != "cpu":  # NCCL needs all operations in one batch; with Gloo a batch only costs time
            with reaching("a neighbour"):
                for work in dist.batch_isend_irecv([dist.P2POp(act, rows, rank, group) for act, rows, rank in ops]):
                    work.wait()
            return
        with reaching("a neighbour"):
            started = [(rank, act(rows, rank, group)) for act, rows, rank in ops]
        for rank, work in started:
            with reaching(f"rank {rank}"):
                work.wait()

    def routes(self, t: int, need: Sequence[int]) -> list[Route]:
        """What is sent to and received from the other ranks, by places in the stack of the needed rows."""
        if self._static is None or self.network.varying:
            W, placed = self.network.W(t), self.placement.workers
            place = {j: row for row, j in enumerate(need)}
            self._static = [
                Route(
                    self.ranks.global_rank(rank),
                    RowBlocks([place[j] for j in needed(W, theirs) if j in self.mine]),
                    RowBlocks([place[j] for j in theirs if j in place]),
                )
                for rank, theirs in enumerate(placed)
                if rank != self.ranks.rank
            ]
        return self._static


def run_distributed(job: Job, *, ranks: ProcessGroup) -> Snapshot:
    """Train on the ranks of a process group; returns the snapshot of this rank's workers."""
    refuse_memory(job.network)
    with one_intra_op_thread():
        host, _ = host_on(ranks, job.problem, job.network, job.threads or available_threads(), job.noise)
        with REQUEST.waits_for_the_round():
            return train(host, replace(job, recorder=StoppableRecorder(job, REQUEST)))


def host_on(
    ranks: ProcessGroup, problem: Problem, network: Network, threads: int, noise: LinkNoise | None = None
) -> tuple[PartialHost, RowExchange]:
    """This rank's host of the workers that are placed here, and its exchange with the other ranks."""
    placement = placed(network, ranks)
    rows = [problem.workers.index(i) for i in placement.workers[ranks.rank]]
    exchange = RowExchange(ranks, network, placement)
    hosts = placement.ranks.tolist()
    return PartialHost(problem.among(rows), network, exchange, ranks, threads, hosts, CHUNK, noise), exchange


def placed(network: Network, ranks: ProcessGroup) -> Placement:
    """Which workers each rank hosts; rank 0 decides, since eigenvectors may differ between machines."""

    def decide() -> tuple[tuple[int, ...], ...]:
        if network.m < ranks.size:
            raise ConfigError(
                f"{ranks.size} processes for {network.m} workers: every process hosts at least one worker; start at "
                f"most {network.m} (torchrun --nproc-per-node), or use more workers"
            )
        return place_on(network, ranks.size).workers

    return Placement(tuple(tuple(group) for group in ranks.first(decide)))
