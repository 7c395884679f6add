"""Engines supply `f` and `mix` and host the one training loop."""

from __future__ import annotations

from collections.abc import Callable

from netfleet.engines.loop import Snapshot
from netfleet.engines.peers import run_peers
from netfleet.engines.simulator import run_simulator

Engine = Callable[..., Snapshot]
ENGINES: dict[str, Engine] = {"simulator": run_simulator, "peers": run_peers}

__all__ = ["ENGINES", "Engine", "Snapshot"]
