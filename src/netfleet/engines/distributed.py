"""A cluster: `torch.distributed` ranks that each host some of the workers.

Neighbours send each other rows directly (`isend` and `irecv`, batched for NCCL), each row once to every rank that needs
it. Exact averages and metrics are all-reduced. The processes are torchrun's, or whoever else sets RANK and so on.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from netfleet import errors
from netfleet.algorithms import Algorithm
from netfleet.compute.threads import available_threads, one_intra_op_thread
from netfleet.engines.host import Content, PartialHost, Tag, needed, refuse_memory
from netfleet.engines.loop import Recorder, Snapshot, Start, train
from netfleet.engines.placement import Placement, place_on
from netfleet.engines.row_blocks import RowBlocks
from netfleet.errors import ConfigError, EngineError, NetfleetError, TransportError
from netfleet.problems.base import Problem
from netfleet.topology.network import Network


@contextmanager
def joined(device: str = "cpu", backend: str = "auto") -> Iterator[None]:
    """Be a rank of the job that torchrun (or mpirun) started, for as long as this lasts."""
    if not dist.is_available():
        raise ConfigError("this torch is built without torch.distributed; install one that has it")
    if backend == "mpi":
        if not dist.is_mpi_available():
            raise ConfigError(
                'engine.backend = "mpi" needs a torch that was built with MPI, which this one was not; leave it out to '
                "use Gloo and NCCL"
            )
    else:
        _refuse_alone()
    if device.startswith("cuda"):
        if not torch.cuda.is_available():
            raise ConfigError(f'device {device!r} cannot be used here: torch finds no GPU; use device = "cpu"')
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        backend = "cpu:gloo,cuda:nccl" if backend == "auto" else backend
    with _reaching("the other ranks"):
        dist.init_process_group("gloo" if backend == "auto" else backend)
    os.environ.update(RANK=str(dist.get_rank()), WORLD_SIZE=str(dist.get_world_size()))  # mpirun does not set them
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        yield
        _leave_together()
    except TransportError as error:
        raise TransportError(f"{error}. {_AGAIN}") from None
    except NetfleetError as error:
        if error.shared:
            _leave_together()
        raise
    finally:
        dist.destroy_process_group()
        signal.signal(signal.SIGTERM, before)


def _refuse_alone() -> None:
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ConfigError(
            f'engine "distributed" needs processes that know of each other, but {", ".join(missing)} is not set; start '
            f"it with: torchrun --nproc-per-node 2 -m netfleet run FILE.toml --engine distributed"
        )


def _leave_together() -> None:
    """A rank that goes while another still listens to it can bring that one down."""
    with _reaching("the other ranks"):
        dist.barrier()


_AGAIN = "Start the same command again with --resume to go on from the last checkpoint"


def _stop(number: int, frame: object) -> None:
    raise EngineError(
        "told to stop (SIGTERM), as torchrun does with all processes when one has died; its report says which. "
        f"{_AGAIN}"
    )


#: What torch says, in errors of no particular type, when others are gone.
_GONE = re.compile(r"connection|socket|peer|timed? ?out|closed|reset|refused|unreachable|broken pipe", re.IGNORECASE)


@contextmanager
def _reaching(whom: str) -> Iterator[None]:
    """Say in words that others are gone; other errors are as they are."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if not isinstance(error, dist.DistError) and not _GONE.search(str(error)):
            raise
        reason = re.sub(r"^\[[^]]*\] *", "", str(error).strip()).split("\n")[0].split(". ")[0]
        raise TransportError(
            f"rank {os.environ.get('RANK', '?')} cannot reach {whom} any more: a process has died or a connection was "
            f"lost ({reason})"
        ) from None


class ProcessGroup:
    """The collective of a process group, and the way from rank to rank."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        if not dist.is_initialized():
            raise ConfigError(
                "there is no process group; call torch.distributed.init_process_group() first (torchrun sets all it "
                "needs), or use the simulator"
            )
        self.group: Any = group or dist.group.WORLD
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.keeps_record = self.rank == 0

    def count(self, m: int) -> int:
        return m

    def total(self, rows: Tensor) -> Tensor:
        total = rows.sum(dim=0)
        with _reaching("the other ranks"):
            dist.all_reduce(total, group=self.group)
        return total

    def gather(self, rows: Tensor, workers: Sequence[int]) -> Tensor:
        most = torch.tensor(len(rows))
        with _reaching("the other ranks"):
            dist.all_reduce(most, op=dist.ReduceOp.MAX, group=self.group)
        ids = torch.full((int(most),), -1)
        ids[: len(rows)] = torch.tensor(list(workers))
        values = rows.new_zeros(int(most), *rows.shape[1:])
        values[: len(rows)] = rows
        order, found = torch.cat(self._all(ids)), torch.cat(self._all(values))
        there = (order >= 0).nonzero()[:, 0]
        return found[there[order[there].argsort()].to(found.device)]

    def _all(self, values: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(values) for _ in range(self.size)]
        with _reaching("the other ranks"):
            dist.all_gather(parts, values, group=self.group)
        return parts

    def first(self, act: Callable[[], Any]) -> Any:
        if not self.keeps_record:
            return _heard(self._tell(None))
        try:
            said = {"result": act()}
        except NetfleetError as error:
            said = {"error": str(error), "kind": type(error).__name__}
        except Exception as error:
            self._tell({"error": f"{type(error).__name__}: {error}", "kind": "EngineError"})
            raise
        return _heard(self._tell(said))

    def _tell(self, said: Any) -> Any:
        """What rank 0 says, to all."""
        text = torch.tensor(list(json.dumps(said).encode()) if self.keeps_record else [0], dtype=torch.uint8)
        size = torch.tensor(len(text))
        root = self.peer(0)
        with _reaching("rank 0"):
            dist.broadcast(size, root, group=self.group)
            text = text if self.keeps_record else torch.empty(int(size), dtype=torch.uint8)
            dist.broadcast(text, root, group=self.group)
        return json.loads(bytes(text.tolist()))

    def from_first(self, values: Tensor) -> Tensor:
        """Rank 0's values, on all ranks."""
        values = values.clone()
        with _reaching("rank 0"):
            dist.broadcast(values, self.peer(0), group=self.group)
        return values

    def peer(self, rank: int) -> int:
        """The global number of a rank of this group."""
        return dist.get_global_rank(self.group, rank)


def _heard(said: Any) -> Any:
    """What rank 0 found out, or its error."""
    if "error" in said:
        error: NetfleetError = getattr(errors, said["kind"])(said["error"])
        error.shared = True
        raise error
    return said["result"]


class Route(NamedTuple):
    """What goes between this rank and another in an exchange."""

    peer: int  # its global number
    sends: RowBlocks
    receives: RowBlocks  # lie together


class Wire:
    """One rank's `exchange`."""

    def __init__(self, ranks: ProcessGroup, network: Network, placement: Placement) -> None:
        self.ranks, self.network, self.placement = ranks, network, placement
        self.mine = set(placement.workers[ranks.rank])
        self.sent = 0  # bytes that left this rank
        self._static: list[Route] | None = None
        self._rooms: dict[int, Tensor] = {}  # where rows that lie apart are put together, by rank

    def __call__(self, tag: Tag, need: Sequence[int], stack: Tensor, content: Content | None = None) -> None:
        ops: list[tuple[Any, Tensor, int]] = []
        for route in self.routes(max(tag.t, 0), need):
            if route.sends.count:
                rows = self._taken(route, stack)
                self.sent += rows.numel()
                ops.append((dist.isend, rows, route.peer))
            if route.receives.count:
                ops.append((dist.irecv, route.receives.piece(stack), route.peer))
        if not ops:
            return
        with _reaching("a neighbour"):
            for work in self._posted(ops, stack.is_cuda):
                work.wait()

    def _taken(self, route: Route, stack: Tensor) -> Tensor:
        """The rows that go to another rank, in one piece."""
        rows = route.sends.take(stack, self._rooms.get(route.peer))
        if not route.sends.together:
            self._rooms[route.peer] = rows
        return rows

    def _posted(self, ops: Sequence[tuple[Any, Tensor, int]], batched: bool) -> list[Any]:
        """All sent off at once; NCCL must be told of them together, for Gloo that only costs time."""
        group = self.ranks.group
        if batched:
            return dist.batch_isend_irecv([dist.P2POp(act, rows, peer, group) for act, rows, peer in ops])
        return [act(rows, peer, group) for act, rows, peer in ops]

    def routes(self, t: int, need: Sequence[int]) -> list[Route]:
        """What goes to and comes from the other ranks, by its places in the stack of what is needed."""
        if self._static is None or self.network.varying:
            W, placed = self.network.W(t), self.placement.workers
            place = {j: row for row, j in enumerate(need)}
            self._static = [
                Route(
                    self.ranks.peer(rank),
                    RowBlocks([place[j] for j in needed(W, theirs) if j in self.mine]),
                    RowBlocks([place[j] for j in theirs if j in place]),
                )
                for rank, theirs in enumerate(placed)
                if rank != self.ranks.rank
            ]
        return self._static


def run_distributed(
    problem: Problem,
    network: Network,
    algorithm: Algorithm,
    rounds: int,
    recorder: Recorder,
    start: Start | None = None,
    threads: int = 0,
    *,
    ranks: ProcessGroup | None = None,
) -> Snapshot:
    """Train on the ranks of a process group (the default one); returns the snapshot of this rank's workers."""
    refuse_memory(network)
    with one_intra_op_thread():
        host, _ = host_on(ranks or ProcessGroup(), problem, network, threads or available_threads())
        return train(host, algorithm, rounds, recorder, start)


def host_on(ranks: ProcessGroup, problem: Problem, network: Network, threads: int) -> tuple[PartialHost, Wire]:
    """This rank's host of the workers that are placed here, and its way to the others."""
    placement = placed(network, ranks)
    wire, mine = Wire(ranks, network, placement), problem.among(placement.workers[ranks.rank])
    return PartialHost(mine, network, wire, ranks, threads, placement.ranks.tolist()), wire


def placed(network: Network, ranks: ProcessGroup) -> Placement:
    """Which workers each rank hosts; rank 0 decides, since eigenvectors may differ between machines."""

    def decide() -> Any:
        if network.m < ranks.size:
            raise ConfigError(
                f"{ranks.size} processes for {network.m} workers: every process hosts at least one worker; start at "
                f"most {network.m} (torchrun --nproc-per-node), or use more workers"
            )
        return place_on(network, ranks.size).workers

    return Placement(tuple(tuple(group) for group in ranks.first(decide)))
