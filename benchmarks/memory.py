"""Memory of a training loop of one's own on two ranks: its peak above the model, in vectors of the model's size."""

import gc
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.measure import ResultTable
from benchmarks.ranks import Found, launch, measured
from benchmarks.setting import Setting
from netfleet import optim
from netfleet.optim import Decentralized

RANKS, K, STEPS = 2, 3, 10
ETA = 1e-5  # a deep linear chain diverges quickly with AdamW
#: The width of the model that warms up; its messages too are sent in parts.
WARM = 600
METHODS: dict[str, Callable[..., Decentralized]] = {
    "LD-SGD": optim.LDSGD,
    "LED": optim.LED,
    "NET-FLEET": optim.NetFleet,
    "K-GT": optim.KGT,
}
#: glibc keeps freed blocks below a threshold that it raises by itself; with a fixed one it returns them to the system.
RETURNS = {"MALLOC_MMAP_THRESHOLD_": "65536"}


def run(setting: Setting) -> ResultTable:
    width, layers = setting.pick((1200, 32), (1200, 8), (64, 2))
    table = ResultTable(
        "Peak memory of a training loop above the model, in vectors of its size, two ranks",
        "what | keeps | bound | peak | peak with glibc's defaults",
    )
    jobs: list[Found] = [{"job": "memory", "what": what, "width": width, "layers": layers} for what in _what()]
    exact, usual = (launch("benchmarks.memory", RANKS, jobs, setting.haste, **env) for env in (RETURNS, {}))
    for job, found, other in zip(jobs, exact, usual, strict=True):
        bound = found["keeps"] + 2 if job["what"].split(",")[0] in METHODS else "–"
        table.add(job["what"], found["keeps"], bound, f"{found['peak']:.2f}", f"{other['peak']:.2f}")
    d = layers * width * (width + 1)
    table.notes = [
        f"A chain of {layers} linear layers, d = {d:,} in float32 ({4 * d / 1e6:.0f} MB), one sample per step, "
        f"K = {K}, {STEPS} steps; the larger of the two ranks.",
        "keeps: vectors in the optimizer's state besides the model, a local optimizer's among them. bound: two more.",
        "peak: what VmHWM in /proc/self/status has grown by since the model was made. A loop with a small model runs "
        "before, because code that is loaded for the first time would count.",
        f"The gradient of one layer, which autograd makes before it is added ({1 / layers:.2f}), and the parts of "
        f"messages (up to 4 MB, {4e6 / (4 * d):.2g}) are in it.",
        "glibc keeps freed gradients for later use unless MALLOC_MMAP_THRESHOLD_ is set (65536 here); the last column "
        "is without.",
        "LED rejects AdamW: it learns its correction from how far the models moved.",
    ]
    return table


def _what() -> list[str]:
    plain = ["SGD", "AdamW", "DDP, AdamW"]
    return plain + [f"{name}{local}" for name in METHODS for local in ("", ", AdamW") if name + local != "LED, AdamW"]


def memory(setting: Setting, what: str, width: int, layers: int) -> Found:
    """The peak of some steps, and what the optimizer keeps."""
    warm = setting.pick(WARM, WARM, width)
    _steps(what, _chain(warm, 2), warm)
    model = _chain(width, layers)
    d = sum(p.numel() for p in model.parameters())
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # VmHWM begins anew
    before = _bytes("VmRSS")
    kept = _steps(what, model, width)
    peak = torch.tensor((_bytes("VmHWM") - before) / 4 / d)
    dist.all_reduce(peak, op=dist.ReduceOp.MAX)
    return {"peak": float(peak), "keeps": round(kept / d)}


def _chain(width: int, layers: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))


def _steps(what: str, model: nn.Module, width: int) -> int:
    """Train; returns how many numbers the optimizer's state had, without the model."""
    x, kept = torch.ones(1, width), 0
    model = DistributedDataParallel(model) if what.startswith("DDP") else model
    optimizer = _optimizer(what, model.parameters())
    for _ in range(STEPS):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        kept = max(kept, _numbers(optimizer))
    return kept


def _optimizer(what: str, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    name, _, local = what.partition(", ")
    if name in METHODS:
        return METHODS[name](parameters, lr=ETA, K=K, local=local.lower() or None)
    return torch.optim.SGD(parameters, lr=ETA) if name == "SGD" else torch.optim.AdamW(parameters, lr=ETA)


def _numbers(optimizer: torch.optim.Optimizer) -> int:
    tables: Iterable[dict[str, Any]] = optimizer.state.values()
    return sum(v.numel() for table in tables for key, v in table.items() if isinstance(v, Tensor) and key != "x")


def _bytes(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    if found is None:
        raise OSError(f"/proc/self/status has no {name}")
    return 1024 * int(found[1])


if __name__ == "__main__":
    measured({"memory": memory})
