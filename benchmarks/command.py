"""What `netfleet bench` does: it runs parts and writes their tables to `OUT/DATE/PART.md`."""

import importlib
from collections.abc import Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import BinaryIO

from netfleet.errors import ConfigError
from netfleet.files import make_folder, write_atomically

RESULTS = Path(__file__).with_name("results")
PARTS = {
    "limit": "one round against the bare gradient work and the machine's peak",
    "gradients": "native, stacked and looped gradients against each other",
    "private": "clipped gradients and noise against a step without, and against Opacus",
    "libraries": "a plain PyTorch loop and other libraries, each in an environment of its own",
    "growth": "time and memory for up to 5,000 workers and 10 million parameters",
    "cluster": "ranks on one machine: bytes on the wire, an exchange against bare messages, a step against DDP",
    "memory": "peak memory of a training loop of one's own beside AdamW and DDP",
    "relay": "a message between sites over a connection of the other's, and through a relay, against a direct one",
    "sites": "real sites: a message against bare gRPC, a round and a killed site against other systems",
}


def run(names: Sequence[str], out: Path | None = None, *, quick: bool = False, show_parts: bool = False) -> int:
    """Run the named parts (none: all) and write their tables, or only list the parts; return the exit code."""
    for name in names:
        if name not in PARTS:
            raise ConfigError(f"no benchmark {name!r}; the parts are: {', '.join(PARTS)}")
    if show_parts:
        print("\n".join(f"{name:12} {what}" for name, what in PARTS.items()))
        return 0
    from benchmarks.setting import PAPER, QUICK  # imports torch, which the list of parts does not need

    folder = (out or RESULTS) / date.today().isoformat()
    make_folder(folder)
    for name in names or PARTS:
        print(f"{name}: {PARTS[name]}", flush=True)
        table = importlib.import_module(f"benchmarks.{name}").run(QUICK if quick else PAPER)
        path = folder / f"{name}.md"
        write_atomically(path, partial(_write, table.markdown()))
        print(f"wrote {path}", flush=True)
    return 0


def _write(text: str, file: BinaryIO) -> None:
    file.write(text.encode())
