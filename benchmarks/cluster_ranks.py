"""What each process of `netfleet bench cluster` measures; rank 0 writes the numbers to a file.

The same processes time ours and what it is compared with in turn, several calls at a time between two barriers.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.measure import Timed, alternating
from benchmarks.setting import ETA, PAPER, QUICK, TINY, Setting, method, network, rounds_on
from netfleet.compute.threads import one_intra_op_thread
from netfleet.engines.distributed import ProcessGroup, RowExchange, host_on, joined
from netfleet.engines.host import Tag
from netfleet.engines.job import Job
from netfleet.files import write_atomically
from netfleet.optim import Decentralized
from netfleet.problems import Quadratics
from netfleet.runs.build import network_for
from netfleet.topology.topology import make_topology

#: In an exchange x and y travel, in float32.
VECTORS, FLOAT = 2, 4


def exchange(setting: Setting, kind: str, m: int, d: int, calls: int, repeats: int) -> dict[str, Any]:
    """Bytes on the wire in an exchange, and its time beside that of bare isend and irecv."""
    graph = network_for(method(1), make_topology(kind, workers=m), 0)
    host, wire = host_on(ProcessGroup(), Quadratics(m, d=1), graph, 1)
    own, mix = torch.randn(len(host.problem.workers), d), host.mixer(0)
    need = host._part(0).need
    stack = torch.ones(len(need), VECTORS * FLOAT * d, dtype=torch.uint8)  # zeros would all be one page of memory
    runs: list[Timed] = [lambda: wire(Tag(0, 0), need, stack), _bare(wire, need, d), lambda: mix(own, own)]
    times = alternating([_together(run, calls) for run in runs], repeats)
    wire.sent = 0
    dist.barrier()
    before = _loopback()
    _together(runs[2], calls)()
    seen = _loopback() - before
    sent = int(host.collective.total(torch.tensor([[wire.sent]]))[0])
    linked = graph.W(0).toarray() != 0
    foreign = [np.any(linked[list(group)], axis=0) for group in wire.placement.workers]
    rows = sum(int(hears.sum() - len(group)) for hears, group in zip(foreign, wire.placement.workers, strict=True))
    return {
        "on the wire": seen / calls,
        "sent": sent / calls,
        "least": rows * VECTORS * FLOAT * d,
        "seconds": [[t / calls for t in turns] for turns in times],
    }


def _bare(wire: RowExchange, need: Sequence[int], d: int) -> Timed:
    """The same bytes between the same ranks, from and into memory that is allocated before."""
    ops = []
    for route in wire.routes(0, need):
        for act, rows in ((dist.isend, route.sends), (dist.irecv, route.receives)):
            if rows.count:
                ready = torch.ones(rows.count, VECTORS * FLOAT * d, dtype=torch.uint8)
                ops.append(dist.P2POp(act, ready, route.rank, wire.ranks.group))

    def go() -> None:
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    return go


def _together(run: Timed, calls: int) -> Timed:
    """So many calls on all ranks, from barrier to barrier."""

    def go() -> None:
        dist.barrier()
        for _ in range(calls):
            run()
        dist.barrier()

    return go


def _loopback() -> int:
    """Bytes that the loopback device has sent, with all headers and acknowledgements."""
    for line in Path("/proc/net/dev").read_text(encoding="utf-8").splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "lo":
            return int(counters.split()[8])
    raise OSError("there is no loopback device")


def rounds(setting: Setting, model: str, repeats: int) -> dict[str, Any]:
    """A round of the setting; every rank computes on one thread."""
    algorithm = method(setting.K)
    graph = network_for(algorithm, setting.topology(), 0)
    problem = setting.problem(model, threads=1)
    host, _ = host_on(ProcessGroup(), problem, graph, 1)
    go = rounds_on(host, Job(problem, graph, algorithm, 1))
    return {"seconds": alternating([_together(go, 1)], repeats)}


def step(setting: Setting, model: str, calls: int, repeats: int) -> dict[str, Any]:
    """A gradient step of PyTorch's data-parallel training, and of ours with K = 1 and 10; 10 divides the calls."""
    data, size = setting.images(2000, tests=10), setting.batch
    batches = [(data.train_x[i : i + size], data.train_y[i : i + size]) for i in range(0, len(data.train_y), 100)]
    runs = [_together(_ddp(model, batches), calls)]
    runs += [_together(_ours(model, batches, K), calls // K) for K in (1, 10)]
    return {"seconds": [[t / calls for t in turns] for turns in alternating(runs, repeats)]}


def _ddp(model: str, batches: list[Any]) -> Timed:
    shared = DistributedDataParallel(network(model))
    return _steps(shared, torch.optim.SGD(shared.parameters(), lr=ETA), batches)


def _ours(model: str, batches: list[Any], K: int) -> Timed:
    own = network(model)
    return _steps(own, Decentralized(own.parameters(), {"kind": "net-fleet", "K": K, "eta": ETA}), batches)


def _steps(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Any]) -> Timed:
    """The next step of an optimizer."""
    turns = itertools.cycle(batches)

    def closure() -> Any:
        x, y = next(turns)
        optimizer.zero_grad()
        loss: Any = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return lambda: optimizer.step(closure)


JOBS: dict[str, Callable[..., dict[str, Any]]] = {"exchange": exchange, "rounds": rounds, "step": step}


def main(out: Path, setting: Setting, jobs: list[dict[str, Any]]) -> None:
    """Each job by its name and options."""
    with joined(), one_intra_op_thread():
        found = [JOBS[job.pop("job")](setting, **job) for job in jobs]
        if dist.get_rank() == 0:
            write_atomically(out, lambda file: file.write(json.dumps(found).encode()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), (PAPER, QUICK, TINY)[int(sys.argv[2])], json.loads(sys.argv[3]))
