"""The cluster engine: bytes on the wire, one exchange against bare messages, more ranks, and DDP's step beside ours.

The same processes time ours and what it is compared with in turn, several calls at a time between two barriers.
"""

import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.measure import ResultTable, Timed, alternating, milliseconds, ratio
from benchmarks.ranks import Found, launch, measured
from benchmarks.setting import ETA, Setting, method, network, rounds_on
from netfleet.data.tensors import only
from netfleet.engines.distributed import ProcessGroup, RowExchange, host_on
from netfleet.engines.host import Tag
from netfleet.engines.job import Job
from netfleet.optim import NetFleet
from netfleet.problems import Quadratics
from netfleet.runs.build import network_for
from netfleet.topology.topology import make_topology

CNN = 10_330  # parameters of the paper's CNN
VECTORS, FLOAT = 2, 4  # in an exchange x and y travel, in float32


def run(setting: Setting) -> ResultTable:
    table = ResultTable(
        "Ranks of torch.distributed on one machine (Gloo over loopback), one thread each",
        "what | setting | ranks | ours | beside it | ours ÷ that",
    )
    alone: list[float] = []
    for ranks in setting.pick((1, 2, 4), (1, 2, 4), (2,)):
        jobs = _jobs(setting, ranks)
        for job, found in zip(jobs, launch("benchmarks.cluster", ranks, jobs, setting.haste), strict=True):
            first, *rest = found["seconds"]
            if job["job"] == "exchange":
                wire, least = found["on the wire"], found["least"]
                words = f"{job['kind']} of {job['m']}, d = {job['d']:,}"
                table.add("bytes", words, ranks, f"{wire:,.0f}", f"{least:,.0f} at least", f"{wire / least:.4f}")
                for what, times in (("exchange", first), ("mix", rest[1])):
                    _add(table, (what, words, ranks), times, rest[0], "isend/irecv")
            elif job["job"] == "rounds":
                alone = alone or first
                _add(table, ("round", f"{setting.m} workers, the paper's CNN", ranks), first, alone, "on one rank")
            else:
                for K, times in zip((1, 10), rest, strict=True):
                    _add(table, ("step", f"{job['model']}, K = {K}", ranks), times, first, "with DDP")
    table.notes = [
        "Bytes per exchange of x and y are those that /proc/net/dev counts on the loopback device, with TCP's headers "
        "and acknowledgements and Gloo's own; the least is 2d floats for each row and each other rank that needs it.",
        "isend/irecv: the same bytes between the same ranks, one message per pair, from and into memory that is "
        "allocated before. exchange is what the engine does in its place; mix also packs, unpacks and averages.",
        f"round: the paper's setting ({setting.m} workers, K = {setting.K}, batch {setting.batch}), not evaluated; one "
        "number of ranks after the other, not in turn.",
        f"step: forward, backward, step and zero_grad of an ordinary loop, {setting.batch} images per rank. DDP "
        "averages the gradients of all ranks in every step; NET-FLEET exchanges x and y with the neighbours on a "
        "ring every K.",
    ]
    return table


def _add(table: ResultTable, first: Sequence[object], ours: list[float], other: list[float], name: str) -> None:
    both = [f"{milliseconds(times).middle:.3g} ms" for times in (ours, other)]
    table.add(*first, both[0], f"{both[1]} {name}", ratio(ours, other))


def _jobs(setting: Setting, ranks: int) -> list[Found]:
    """What so many ranks measure: the functions below with their options; one rank has nobody to exchange with."""
    graphs = [("ring", 4, CNN), ("ring", 16, CNN), ("erdos-renyi", 50, CNN), ("ring", 4, 1_000_000)]
    graphs = setting.pick([*graphs, ("ring", 4, 10_000_000)], graphs, graphs[:1])
    models = setting.pick(["cnn", "mlp"], ["cnn", "mlp"], ["softmax"])
    calls, repeats = setting.pick((200, 15), (20, 3), (2, 1))
    exchanges = [
        {"job": "exchange", "kind": kind, "m": m, "d": d, "calls": max(3, calls * CNN // d), "repeats": repeats}
        for kind, m, d in graphs
    ]
    steps, turns = setting.pick((100, 9), (20, 3), (10, 1))
    step_jobs = [{"job": "step", "model": model, "calls": steps, "repeats": turns} for model in models]
    rounds = {"job": "rounds", "model": models[0], "repeats": setting.pick(9, 2, 1)}
    return [*exchanges, rounds, *step_jobs] if ranks > 1 else [rounds]


def exchange(setting: Setting, kind: str, m: int, d: int, calls: int, repeats: int) -> Found:
    """Bytes on the wire in an exchange, and its time beside that of bare isend and irecv."""
    graph = network_for(method(1), make_topology(kind, workers=m), 0)
    host, wire = host_on(ProcessGroup(), Quadratics(m, d=1), graph, 1)
    own, mix = torch.randn(len(host.problem.workers), d), host.mixer(0)
    need = host._part(0).need
    stack = torch.ones(len(need), VECTORS * FLOAT * d, dtype=torch.uint8)  # zeros would all be one page of memory
    runs: list[Timed] = [lambda: wire(Tag(0, 0), need, stack), _bare(wire, need, d), lambda: mix(own, own)]
    times = alternating([partial(_together, run, calls) for run in runs], repeats)
    wire.sent = 0
    dist.barrier()
    before = _loopback()
    _together(runs[2], calls)
    seen = _loopback() - before
    sent = int(host.collective.total(torch.tensor([[wire.sent]]))[0])
    linked, groups = graph.W(0).toarray() != 0, wire.placement.workers
    rows = sum(int(np.any(linked[list(group)], axis=0).sum() - len(group)) for group in groups)
    return {
        "on the wire": seen / calls,
        "sent": sent / calls,
        "least": rows * VECTORS * FLOAT * d,
        "seconds": [[t / calls for t in turns] for turns in times],
    }


def _bare(wire: RowExchange, need: Sequence[int], d: int) -> Timed:
    """The same bytes between the same ranks, from and into memory that is allocated before."""
    ops = [
        dist.P2POp(act, torch.ones(rows.count, VECTORS * FLOAT * d, dtype=torch.uint8), route.rank, wire.ranks.group)
        for route in wire.routes(0, need)
        for act, rows in ((dist.isend, route.sends), (dist.irecv, route.receives))
        if rows.count
    ]
    return lambda: [work.wait() for work in dist.batch_isend_irecv(ops)]


def _together(run: Timed, calls: int) -> None:
    """So many calls on all ranks, from barrier to barrier."""
    dist.barrier()
    for _ in range(calls):
        run()
    dist.barrier()


def _loopback() -> int:
    """Bytes that the loopback device has sent, with all headers and acknowledgements."""
    for line in Path("/proc/net/dev").read_text(encoding="utf-8").splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "lo":
            return int(counters.split()[8])
    raise OSError("there is no loopback device")


def rounds(setting: Setting, model: str, repeats: int) -> Found:
    algorithm = method(setting.K)
    graph, problem = network_for(algorithm, setting.topology(), 0), setting.problem(model, threads=1)
    host, _ = host_on(ProcessGroup(), problem, graph, 1)
    go = rounds_on(host, Job(problem, graph, algorithm, 1))
    return {"seconds": alternating([partial(_together, go, 1)], repeats)}


def step(setting: Setting, model: str, calls: int, repeats: int) -> Found:
    """A gradient step of PyTorch's data-parallel training, and of ours with K = 1 and 10; 10 divides the calls."""
    data, size = setting.images(2000, tests=10), setting.batch
    batches = [
        (only(data.train_x)[i : i + size], only(data.train_y)[i : i + size]) for i in range(0, len(data.train_y), 100)
    ]
    shared = DistributedDataParallel(network(model))
    sgd = torch.optim.SGD(shared.parameters(), lr=ETA)
    runs = [partial(_together, _steps(shared, sgd, batches), calls)]
    for K in (1, 10):
        own = network(model)
        runs.append(partial(_together, _steps(own, NetFleet(own.parameters(), lr=ETA, K=K), batches), calls))
    return {"seconds": [[t / calls for t in turns] for turns in alternating(runs, repeats)]}


def _steps(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Any]) -> Timed:
    turns = itertools.cycle(batches)

    def step() -> None:
        x, y = next(turns)
        loss: torch.Tensor = nn.functional.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    measured({"exchange": exchange, "rounds": rounds, "step": step})
