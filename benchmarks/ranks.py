"""What each process of `netfleet bench distributed` measures; rank 0 writes it down.

Ours and what stands beside it are timed in turn by the same processes, several calls at a time between two barriers.
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

from benchmarks import setting
from benchmarks.measure import Timed, alternating
from netfleet.algorithms import ALGORITHMS
from netfleet.compute.threads import one_intra_op_thread
from netfleet.engines.distributed import ProcessGroup, RowExchange, host_on, joined
from netfleet.engines.host import Tag
from netfleet.engines.job import Job
from netfleet.files import write_atomically
from netfleet.optim import Decentralized
from netfleet.problems import Quadratics
from netfleet.problems.models import MODELS
from netfleet.runs.build import network_for
from netfleet.topology.topology import make_topology

#: In an exchange x and y travel, in float32.
VECTORS, FLOAT = 2, 4


def exchange(kind: str, m: int, d: int, calls: int, repeats: int) -> dict[str, Any]:
    """Bytes on the wire in an exchange, and its time beside that of bare isend and irecv."""
    method = ALGORITHMS.build({"kind": "net-fleet", "eta": setting.ETA})
    network = network_for(method, make_topology(kind, workers=m), 0)
    host, wire = host_on(ProcessGroup(), Quadratics(m, d=1), network, 1)
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
    linked = network.W(0).toarray() != 0
    foreign = [np.any(linked[list(group)], axis=0) for group in wire.placement.workers]
    rows = sum(int(hears.sum() - len(group)) for hears, group in zip(foreign, wire.placement.workers, strict=True))
    return {
        "on the wire": seen / calls,
        "sent": sent / calls,
        "least": rows * VECTORS * FLOAT * d,
        "seconds": [[t / calls for t in turns] for turns in times],
    }


def _bare(wire: RowExchange, need: Sequence[int], d: int) -> Timed:
    """The same bytes between the same ranks, from and into memory that lies ready."""
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


def rounds(model: str, steps: int, repeats: int) -> dict[str, Any]:
    """A round of the paper's setting; every rank computes on one thread."""
    method = ALGORITHMS.build({"kind": "net-fleet", "eta": setting.ETA, "K": steps})
    network = network_for(method, setting.network(), 0)
    problem = setting.problem(model, threads=1)
    host, _ = host_on(ProcessGroup(), problem, network, 1)
    go = setting.rounds_on(host, Job(problem, network, method, 1))
    return {"seconds": alternating([_together(go, 1)], repeats)}


def step(model: str, calls: int, repeats: int) -> dict[str, Any]:
    """A gradient step of PyTorch's data-parallel training, and of ours with K = 1 and 10; 10 divides the calls."""
    data = setting.images(2000, tests=10)
    batches = [(data.train_x[i : i + setting.BATCH], data.train_y[i : i + setting.BATCH]) for i in range(0, 1000, 50)]
    runs = [_together(_ddp(model, batches), calls)]
    runs += [_together(_ours(model, batches, K), calls // K) for K in (1, 10)]
    return {"seconds": [[t / calls for t in turns] for turns in alternating(runs, repeats)]}


def _ddp(model: str, batches: list[Any]) -> Timed:
    shared = DistributedDataParallel(_network(model))
    optimizer = torch.optim.SGD(shared.parameters(), lr=setting.ETA)
    closure = _closure(shared, optimizer, batches)
    return lambda: optimizer.step(closure)


def _ours(model: str, batches: list[Any], K: int) -> Timed:
    own = _network(model)
    optimizer = Decentralized(own.parameters(), {"kind": "net-fleet", "K": K, "eta": setting.ETA})
    closure = _closure(own, optimizer, batches)
    return lambda: optimizer.step(closure)


def _network(model: str) -> nn.Module:
    return MODELS.build(model, inputs=(1, 28, 28), classes=10)


def _closure(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Any]) -> Any:
    turns = itertools.cycle(batches)

    def closure() -> Any:
        x, y = next(turns)
        optimizer.zero_grad()
        loss: Any = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return closure


JOBS: dict[str, Callable[..., dict[str, Any]]] = {"exchange": exchange, "rounds": rounds, "step": step}


def main(out: Path, jobs: list[dict[str, Any]]) -> None:
    """Each job by its name and options."""
    with joined(), one_intra_op_thread():
        found = [JOBS[job.pop("job")](**job) for job in jobs]
        if dist.get_rank() == 0:
            write_atomically(out, lambda file: file.write(json.dumps(found).encode()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
