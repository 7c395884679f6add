"""Engines supply `f` and `mix` and host the one training loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from netfleet.engines.collective import Collective, SingleHost
from netfleet.engines.loop import Snapshot, Start
from netfleet.engines.simulator import run_simulator
from netfleet.engines.threads import run_threads

Engine = Callable[..., Snapshot]


def _run_distributed(*arguments: Any, **options: Any) -> Snapshot:
    """Imported only where it is used: torch.distributed takes its time."""
    from netfleet.engines.distributed import run_distributed

    return run_distributed(*arguments, **options)


ENGINES: dict[str, Engine] = {"simulator": run_simulator, "peers": run_threads, "distributed": _run_distributed}


def collective_of(kind: str) -> Collective:
    """What the processes of an engine find out together; the other engines are one process."""
    if kind != "distributed":
        return SingleHost()
    from netfleet.engines.distributed import ProcessGroup

    return ProcessGroup()


def processes(kind: str, device: str, backend: str) -> AbstractContextManager[None]:
    """The processes that an engine needs, for as long as this lasts."""
    if kind != "distributed":
        return nullcontext()
    from netfleet.engines.distributed import joined

    return joined(device, backend)


__all__ = ["ENGINES", "Engine", "Snapshot", "Start", "collective_of", "processes"]
