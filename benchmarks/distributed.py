"""The cluster engine: bytes on the wire, one exchange against bare messages, more ranks, and DDP's step beside ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import setting
from benchmarks.measure import Report, Spread, ratio
from netfleet.errors import EngineError

CNN = 10_330  # parameters of the paper's CNN


def run(quick: bool) -> Report:
    """Processes of this machine over its loopback device."""
    report = Report(
        "distributed",
        "ProcessGroup of torch.distributed on one machine (Gloo over loopback), one thread each",
        ("what", "setting", "ranks", "ours", "beside it", "ours ÷ that"),
    )
    _exchanges(report, quick)
    _rounds(report, quick)
    _steps(report, quick)
    report.notes = [
        "Bytes per exchange of x and y are those that /proc/net/dev counts on the loopback device, with TCP's headers "
        "and acknowledgements and Gloo's own; the least is 2d floats for each row and each other rank that needs it.",
        "isend/irecv: the same bytes between the same ranks, one message per pair, from and into memory that lies "
        "ready. exchange is what the engine does in its place; mix also packs, unpacks and averages.",
        f"round: the paper's setting ({setting.M} workers, K = {setting.K}, batch {setting.BATCH}), not evaluated; one "
        "number of ranks after the other, not in turn.",
        f"step: a mini-batch of {setting.BATCH} images per rank with plain autograd. DDP averages the gradients of all "
        "ranks in every step; NET-FLEET exchanges x and y with the neighbours on a ring every K.",
    ]
    return report


def _exchanges(report: Report, quick: bool) -> None:
    calls, repeats = (20, 3) if quick else (200, 15)
    settings = [("ring", 4, CNN), ("ring", 16, CNN), ("erdos-renyi", 50, CNN), ("ring", 4, 1_000_000)]
    settings += [] if quick else [("ring", 4, 10_000_000)]
    jobs = [
        {"job": "exchange", "kind": kind, "m": m, "d": d, "calls": max(3, calls * CNN // d), "repeats": repeats}
        for kind, m, d in settings
    ]
    for ranks in (2, 4):
        for (kind, m, d), found in zip(settings, launch(ranks, jobs), strict=True):
            words = f"{kind} of {m}, d = {d:,}"
            wire, least = found["on the wire"], found["least"]
            report.add("bytes", words, ranks, f"{wire:,.0f}", f"{least:,.0f} at least", f"{wire / least:.4f}")
            ours, bare, whole = found["seconds"]
            beside = f"{_ms(bare)} ms isend/irecv"
            report.add("exchange", words, ranks, f"{_ms(ours)} ms", beside, ratio(ours, bare))
            report.add("mix", words, ranks, f"{_ms(whole)} ms", beside, ratio(whole, bare))


def _rounds(report: Report, quick: bool) -> None:
    job = {"job": "rounds", "model": "cnn", "steps": setting.K, "repeats": 2 if quick else 9}
    alone: list[float] = []
    for ranks in (1, 2, 4):
        (found,) = launch(ranks, [job])
        (times,) = found["seconds"]
        alone = alone or times
        words = f"{setting.M} workers, the paper's CNN"
        report.add("round", words, ranks, f"{_ms(times)} ms", f"{_ms(alone)} ms on one rank", ratio(times, alone))


def _steps(report: Report, quick: bool) -> None:
    jobs = [
        {"job": "step", "model": model, "calls": 20 if quick else 100, "repeats": 3 if quick else 9}
        for model in ("cnn", "mlp")
    ]
    for ranks in (2, 4):
        for job, found in zip(jobs, launch(ranks, jobs), strict=True):
            ddp, *ours = found["seconds"]
            for K, times in zip((1, 10), ours, strict=True):
                words = f"{job['model']}, K = {K}"
                report.add("step", words, ranks, f"{_ms(times)} ms", f"{_ms(ddp)} ms with DDP", ratio(times, ddp))


def _ms(seconds: list[float]) -> str:
    return f"{1e3 * Spread.of(seconds).middle:.3g}"


def launch(ranks: int, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What so many processes, started by torchrun, measured."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        command += ["-m", "benchmarks.ranks", str(out), json.dumps(jobs)]
        done = subprocess.run(
            command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise EngineError(f"the ranks of the benchmark failed:\n{done.stderr[-3000:]}")
        found: list[dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))
        return found
