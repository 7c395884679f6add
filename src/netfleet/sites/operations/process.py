"""The process of a site: what surrounds a `Node`. gRPC is imported only after its trace has been set up."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from rich.console import Console

from netfleet.errors import ConfigError, DivergedError, NetfleetError
from netfleet.registry import make_importable
from netfleet.runs import checkpoint
from netfleet.runs.progress import Live
from netfleet.sites import LINGER
from netfleet.sites.operations import tls_refusals as handshakes
from netfleet.sites.operations.logs import Log, Logged
from netfleet.sites.planning.certificates import expiry_warning
from netfleet.sites.planning.folders import EXPERIMENT_FILE, LEAVE_FILE, RUN_FOLDER, Site, load_site
from netfleet.sites.planning.identity import load_identity

if TYPE_CHECKING:
    from netfleet.sites.runtime.runner import Node

#: Tells a site's own data factory whose data to load.
SITE_VARIABLE = "NETFLEET_SITE"
LOCK_FILE = ".lock"


class Stopped(KeyboardInterrupt):
    """SIGTERM: stop as if interrupted, but that is no failure."""


def run_node(folder: Path, rejoin: bool, metrics: str | None, style: str | None, linger: float) -> int:
    """Be a site until the training is over or someone stops it; the exit code."""
    make_importable(str(folder / EXPERIMENT_FILE))
    site, experiment = load_site(folder)
    identity = load_identity(folder, site.name)
    if not rejoin:
        _check_stays(site, folder)
    os.environ[SITE_VARIABLE] = site.name
    handshakes.prepare()
    with _locked(folder), handshakes.Handshakes() as watch:
        log = Log(site.name, watch.terminal, _as_json(style, watch.terminal))
        watch.listen(log.refused)
        if warning := expiry_warning("this site's certificate", identity.expires):
            log.event("certificate", level="warning", why=warning)
        from netfleet.sites.runtime.runner import Node

        node = Node(folder, site, experiment, identity, log, linger)
        _expose(node, metrics)
        return _guarded(node, rejoin or _is_new(site, folder), watch.terminal)


def _as_json(style: str | None, terminal: TextIO) -> bool:
    return style == "json" or (style is None and not terminal.isatty())


def _is_new(site: Site, folder: Path) -> bool:
    """Whether it comes to a training that the others have begun."""
    return not site.planned and not checkpoint.exists(folder / RUN_FOLDER)


def _check_stays(site: Site, folder: Path) -> None:
    """Raise if the site has left, and its neighbours know: nobody waits for it any more."""
    path = folder / LEAVE_FILE
    if path.exists() and (t := path.read_text(encoding="ascii").strip()):
        raise ConfigError(
            f"{site.name} has left the training after round {t}; to take part again with the others' current model: "
            f"netfleet node {folder} --rejoin"
        )


def _expose(node: Node, address: str | None) -> None:
    if address is not None:
        from netfleet.sites.operations.prometheus import expose

        expose(node.report, node.log, address)


def _guarded(node: Node, rejoin: bool, terminal: TextIO) -> int:
    """Run it; whatever ends it is said in the log too."""
    signal.signal(signal.SIGTERM, _stop)
    try:
        if node.log.as_json or not terminal.isatty():
            node.run(Logged(node.log), rejoin)
        else:
            with Live(Console(file=terminal)) as live:
                node.run(live, rejoin)
    except Stopped:
        node.log.event("stopped", round=_reached(node), next="start it again to go on from there")
    except KeyboardInterrupt:
        node.log.event("interrupted", round=_reached(node))
        raise
    except DivergedError as error:
        node.log.event("diverged", level="error", round=node.report.t, why=error)
        return 1
    except NetfleetError as error:
        node.log.event("failed", level="error", round=node.report.t, why=error)
        raise
    return 0


def _reached(node: Node) -> int:
    """The round that is durable."""
    folder = node.folder / RUN_FOLDER
    return checkpoint.reached(folder) if checkpoint.exists(folder) else 0


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: what is being written must be finished
    raise Stopped


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """A site is one process; the lock goes with it, however it ends."""
    with open(folder / LOCK_FILE, "w", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{folder} is already run by another process; stop that first") from None
        yield


def _is_running(folder: Path) -> bool:
    try:
        with _locked(folder):
            return False
    except ConfigError:
        return True


def leave(folder: Path) -> int:
    """Take a site out of the training: its process, or this one if there is none, tells the neighbours."""
    site, experiment = load_site(folder)
    if checkpoint.exists(folder / RUN_FOLDER) and checkpoint.reached(folder / RUN_FOLDER) >= experiment.rounds:
        raise ConfigError(f"{site.name} has done all {experiment.rounds} rounds; there is nothing to leave")
    (folder / LEAVE_FILE).touch()
    if not _is_running(folder):
        return run_node(folder, rejoin=False, metrics=None, style=None, linger=LINGER)
    print(f"{site.name} leaves after the round under way, when its neighbours know", file=sys.stderr)
    while _is_running(folder):
        time.sleep(0.2)
    return 0
