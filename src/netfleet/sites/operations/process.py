"""The process of a site: lock, log and signals around a `SiteRunner`. gRPC is imported after its trace is set up."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from rich.console import Console

from netfleet.data.sites import SITE_VARIABLE
from netfleet.errors import ConfigError, DivergedError, NetfleetError, NoLinkError
from netfleet.files import locked
from netfleet.problems.own_loop import OWN_LOOP
from netfleet.registry import make_importable
from netfleet.runs import checkpoint
from netfleet.runs.config import read_toml
from netfleet.runs.progress import Live
from netfleet.sites import LINGER
from netfleet.sites.operations.logs import Log, Logged
from netfleet.sites.operations.tls_refusals import TlsRefusals, trace_handshakes
from netfleet.sites.planning.certificates import expiry_warning, load_identity
from netfleet.sites.planning.folders import EXPERIMENT_FILE, LEAVE_FILE, RUN_FOLDER, Site, read_site
from netfleet.sites.policy.in_force import PolicyInForce
from netfleet.sites.policy.rules import Terms
from netfleet.sites.policy.start import check_metrics, open_site

if TYPE_CHECKING:
    from netfleet.sites.runtime.runner import SiteRunner


#: Seconds after which a site that was given up tries to come back, and tries again.
REJOIN_PAUSE = 2.0


class Stopped(KeyboardInterrupt):
    """SIGTERM: stop as on Ctrl-C, but with exit code 0."""


def run_node(
    folder: Path,
    rejoin: bool,
    metrics: str | None,
    style: str | None,
    linger: float,
    policy: Path | None = None,
    data_changed: bool = False,
) -> int:
    """Run a site until the training is over or somebody stops it; returns the exit code.

    `policy` is that of --policy; `data_changed` accepts rows that are not those of the last start.
    """
    make_importable(str(folder / EXPERIMENT_FILE))
    site, experiment, in_force = open_site(folder, policy)
    check_metrics(in_force, metrics)
    if experiment.problem["kind"] == OWN_LOOP:
        raise ConfigError(f"{site.name} trains with a loop of its own; start the program that calls {_join(folder)}")
    identity = load_identity(folder, site.name)
    if not rejoin:
        again = f"netfleet node {folder} --rejoin"
        check_stays(site, folder, f"to take part again with the others' current model: {again}")
    os.environ[SITE_VARIABLE] = site.name
    trace_handshakes()
    with locked(folder) as mine, TlsRefusals() as watch:
        if not mine:
            raise ConfigError(f"{folder} is already run by another process; stop that one first")
        log = Log(site.name, watch.terminal, style == "json" or (style is None and not watch.terminal.isatty()))
        watch.listen(log.refused)
        if warning := expiry_warning("this site's certificate", identity.expires):
            log.event("certificate", level="warning", why=warning)
        log_policy(log, in_force)
        from netfleet.sites.runtime.runner import SiteRunner

        terms = Terms(in_force, data_changed=data_changed)
        runners = [SiteRunner(folder, site, experiment, identity, log, linger, terms=terms)]
        if metrics is not None:
            from netfleet.sites.operations.prometheus import expose

            expose(lambda: runners[-1].status.status(), log, metrics, runners[-1].note_metrics)
        joins = rejoin or (not site.planned and not checkpoint.exists(folder / RUN_FOLDER))  # others have begun
        while (code := _run(runners[-1], joins, watch.terminal)) is None:
            time.sleep(REJOIN_PAUSE)
            runners.append(SiteRunner(folder, site, experiment, identity, log, linger, terms=terms))
            joins = True
        return code


def log_policy(log: Log, in_force: PolicyInForce) -> None:
    """Say which policy is in force, if one is."""
    if in_force.path is not None:
        log.event("policy", file=in_force.path, digest=in_force.name)


def _join(folder: Path) -> str:
    return f'netfleet.optim.join("{folder}")'


def check_stays(site: Site, folder: Path, remedy: str) -> None:
    """Raise if the site has left and its neighbours know: nobody waits for it any more."""
    path = folder / LEAVE_FILE
    if path.exists() and (t := path.read_text(encoding="ascii").strip()):
        raise ConfigError(f"{site.name} has left the training after round {t}; {remedy}")


def _run(runner: SiteRunner, rejoin: bool, terminal: TextIO) -> int | None:
    """Run it, and log what ended it; returns the exit code, or None if the site shall come back by itself."""
    signal.signal(signal.SIGTERM, _stop)
    try:
        if runner.log.as_json or not terminal.isatty():
            runner.run(Logged(runner.log), rejoin)
        else:
            with Live(Console(file=terminal)) as live:
                runner.run(live, rejoin)
    except Stopped:
        runner.log.event("stopped", round=_saved_round(runner.folder), next="start it again to resume from there")
    except KeyboardInterrupt:
        runner.log.event("interrupted", round=_saved_round(runner.folder))
        raise
    except NoLinkError as error:
        if not runner.site.rejoin:
            runner.log.event("failed", level="error", round=runner.status.t, why=error)
            raise
        runner.log.event("rejoining", level="warning", round=runner.status.t, why=error)
        return None
    except DivergedError as error:
        runner.log.event("diverged", level="error", round=runner.status.t, why=error)
        return 1
    except NetfleetError as error:
        runner.log.event("failed", level="error", round=runner.status.t, why=error)
        raise
    return 0


def _saved_round(folder: Path) -> int:
    return checkpoint.reached(folder / RUN_FOLDER) if checkpoint.exists(folder / RUN_FOLDER) else 0


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # only once: what is being written must be finished
    raise Stopped


def _is_running(folder: Path) -> bool:
    with locked(folder) as mine:
        return not mine


def leave(folder: Path, policy: Path | None = None) -> int:
    """Make a site leave: its process tells the neighbours, or this one if none is running."""
    site, experiment = read_site(folder), read_toml(folder / EXPERIMENT_FILE)
    if _saved_round(folder) >= experiment["rounds"]:
        raise ConfigError(f"{site.name} has done all {experiment['rounds']} rounds; there is nothing to leave")
    (folder / LEAVE_FILE).touch()
    if experiment["problem"]["kind"] == OWN_LOOP and not _is_running(folder):
        print(f"{site.name} leaves when the program that calls {_join(folder)} is started again", file=sys.stderr)
        return 0
    if not _is_running(folder):
        return run_node(folder, rejoin=False, metrics=None, style=None, linger=LINGER, policy=policy)
    print(f"{site.name} leaves after the current round, when its neighbours know", file=sys.stderr)
    while _is_running(folder):
        time.sleep(0.2)
    return 0
