"""Engines supply `f` and `mix` and run the training loop, which all of them share."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

from netfleet.engines.collective import Collective, SingleHost
from netfleet.engines.job import Job, Snapshot
from netfleet.engines.simulator import run_simulator
from netfleet.engines.threads import run_threads


@dataclass(frozen=True)
class Engine:
    """Runs jobs; `collective` is what its processes compute together."""

    run: Callable[[Job], Snapshot]
    collective: Collective = field(default_factory=SingleHost)


def make_engine(kind: str) -> Engine:
    """The engine of this kind; torch.distributed is imported only if it is used, because that takes long."""
    if kind != "distributed":
        return Engine({"simulator": run_simulator, "threads": run_threads}[kind])
    from netfleet.engines.distributed import ProcessGroup, run_distributed

    ranks = ProcessGroup()
    return Engine(partial(run_distributed, ranks=ranks), ranks)


def processes(kind: str, device: str) -> AbstractContextManager[None]:
    """Within this, the process is a rank of the cluster if the engine needs one."""
    if kind != "distributed":
        return nullcontext()
    from netfleet.engines.ranks import joined

    return joined(device)


__all__ = ["Engine", "Job", "Snapshot", "make_engine", "processes"]
