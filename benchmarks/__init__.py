"""`netfleet bench`: the simulator against the limit of the machine and against what else one could use.

Each part is a module with `run(quick) -> Report`; its table goes to `DIR/DATE/NAME.md`.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from netfleet.errors import ConfigError

PARTS = {
    "limit": "one round against the bare gradient work and the machine's peak",
    "paths": "native, stacked and looped gradients against each other",
    "peers": "a plain PyTorch loop and other libraries, each in an environment of its own",
    "growth": "time and memory for up to 5,000 workers and 10 million parameters",
    "evaluation": "what the metrics cost",
    "cores": "threads, processes and the interpreter lock",
    "mixing": "dense and sparse W",
    "layout": "the memory order of images",
    "start": "start-up times",
    "distributed": "ranks on one machine: bytes on the wire, an exchange against bare messages, a step against DDP",
    "p2p": "real peers: a message against bare gRPC and TLS, a round and a killed node against other systems",
}


def run_parts(names: Sequence[str], out: Path, quick: bool) -> None:
    """Run the named parts (none: all) and write their tables."""
    for name in names:
        if name not in PARTS:
            raise ConfigError(f"no benchmark {name!r}; there are: {', '.join(PARTS)}")
    folder = out / date.today().isoformat()
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or PARTS:
        print(f"{name}: {PARTS[name]}", flush=True)
        report = importlib.import_module(f"benchmarks.{name}").run(quick)
        path = folder / f"{name}.md"
        path.write_text(report.markdown(), encoding="utf-8")
        print(f"wrote {path}", flush=True)
