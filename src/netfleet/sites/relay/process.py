"""The process of a relay: its log, its signals and the number of files that it may open."""

import asyncio
import resource
import signal
import sys
from pathlib import Path

from netfleet.sites.operations.logs import Log
from netfleet.sites.relay.server import Relay


def run_relay(folder: Path, listen: str, style: str | None) -> int:
    """Run a relay until somebody stops it; returns the exit code."""
    _allow_files()
    log = Log("relay", sys.stderr, style == "json" or (style is None and not sys.stderr.isatty()))
    relay = Relay(folder, log, listen)
    try:
        asyncio.run(_serve(relay))
    except asyncio.CancelledError:
        log.event("stopped")
    return 0


async def _serve(relay: Relay) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await relay.serve()


def _allow_files() -> None:
    """As many open files as the user may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
