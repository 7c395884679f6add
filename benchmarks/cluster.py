"""The cluster engine: bytes on the wire, one exchange against bare messages, more ranks, and DDP's step beside ours."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import ResultTable, milliseconds, ratio
from benchmarks.processes import output
from benchmarks.setting import Setting

CNN = 10_330  # parameters of the paper's CNN


def run(setting: Setting) -> ResultTable:
    """Processes of this machine over its loopback device."""
    table = ResultTable(
        "Ranks of torch.distributed on one machine (Gloo over loopback), one thread each",
        "what | setting | ranks | ours | beside it | ours ÷ that",
    )
    alone: list[float] = []
    for ranks in setting.pick((1, 2, 4), (1, 2, 4), (2,)):
        jobs = _jobs(setting, ranks)
        for job, found in zip(jobs, launch(ranks, jobs, setting.haste), strict=True):
            if job["job"] == "exchange":
                _add_exchange(table, ranks, job, found)
            elif job["job"] == "rounds":
                (times,) = found["seconds"]
                alone = alone or times
                _add(table, "round", f"{setting.m} workers, the paper's CNN", ranks, times, alone, "on one rank")
            else:
                ddp, *ours = found["seconds"]
                for K, times in zip((1, 10), ours, strict=True):
                    _add(table, "step", f"{job['model']}, K = {K}", ranks, times, ddp, "with DDP")
    table.notes = [
        "Bytes per exchange of x and y are those that /proc/net/dev counts on the loopback device, with TCP's headers "
        "and acknowledgements and Gloo's own; the least is 2d floats for each row and each other rank that needs it.",
        "isend/irecv: the same bytes between the same ranks, one message per pair, from and into memory that is "
        "allocated before. exchange is what the engine does in its place; mix also packs, unpacks and averages.",
        f"round: the paper's setting ({setting.m} workers, K = {setting.K}, batch {setting.batch}), not evaluated; one "
        "number of ranks after the other, not in turn.",
        f"step: a mini-batch of {setting.batch} images per rank with plain autograd. DDP averages the gradients of all "
        "ranks in every step; NET-FLEET exchanges x and y with the neighbours on a ring every K.",
    ]
    return table


def _jobs(setting: Setting, ranks: int) -> list[dict[str, Any]]:
    """What so many ranks measure: see cluster_ranks.py; one rank has nobody to exchange with."""
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


def _add_exchange(table: ResultTable, ranks: int, job: dict[str, Any], found: dict[str, Any]) -> None:
    words, wire, least = f"{job['kind']} of {job['m']}, d = {job['d']:,}", found["on the wire"], found["least"]
    table.add("bytes", words, ranks, f"{wire:,.0f}", f"{least:,.0f} at least", f"{wire / least:.4f}")
    ours, bare, whole = found["seconds"]
    _add(table, "exchange", words, ranks, ours, bare, "isend/irecv")
    _add(table, "mix", words, ranks, whole, bare, "isend/irecv")


def _add(
    table: ResultTable, what: str, words: str, ranks: int, ours: list[float], other: list[float], name: str
) -> None:
    both = [f"{milliseconds(times).middle:.3g} ms" for times in (ours, other)]
    table.add(what, words, ranks, both[0], f"{both[1]} {name}", ratio(ours, other))


def launch(ranks: int, jobs: list[dict[str, Any]], haste: int = 0) -> list[dict[str, Any]]:
    """What so many processes, started by torchrun, measured."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        command += ["-m", "benchmarks.cluster_ranks", str(out), str(haste), json.dumps(jobs)]
        output(command, timeout=3600, shown=60, OMP_NUM_THREADS="1")
        found: list[dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))
        return found
