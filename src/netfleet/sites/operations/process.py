"""The process of a site: lock, log and signals around a `SiteRunner`. gRPC is imported after its trace is set up."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, TextIO

from rich.console import Console

from netfleet.data.sites import SITE_VARIABLE
from netfleet.errors import ConfigError, DivergedError, NetfleetError, NoLinkError, RollbackError
from netfleet.files import full_disk, locked, writing
from netfleet.problems.own_loop import OWN_LOOP
from netfleet.registry import Spec
from netfleet.runs import checkpoint
from netfleet.runs.config import read_toml
from netfleet.runs.progress import Live
from netfleet.sites import LINGER
from netfleet.sites.operations.logs import Log, Logged
from netfleet.sites.operations.tls_refusals import TlsRefusals, trace_handshakes
from netfleet.sites.planning.certificates import Identity, expiry_warning, load_identity
from netfleet.sites.planning.folders import (
    EXPERIMENT_FILE,
    LEAVE_FILE,
    RUN_FOLDER,
    Site,
    names_of_neighbours,
    read_site,
)
from netfleet.sites.planning.module_places import remember_places
from netfleet.sites.policy.in_force import PolicyInForce
from netfleet.sites.policy.rules import Terms
from netfleet.sites.policy.sources import named_modules
from netfleet.sites.policy.start import check_metrics, open_site
from netfleet.track.following import make_tracking

if TYPE_CHECKING:
    from netfleet.sites.runtime.runner import SiteRunner


#: How long before the end of a certificate it is a warning.
URGENT = timedelta(days=2)
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
    trackers: Sequence[Spec] = (),
) -> int:
    """Run a site until the training is over or somebody stops it; returns the exit code.

    `policy` is that of --policy; `data_changed` accepts rows that are not those of the last start; `trackers` are those
    of --track.
    """
    site, experiment, in_force = open_site(folder, policy)
    check_metrics(in_force, metrics)
    tracking = make_tracking(f"{experiment.name} at {site.name}", trackers)
    if experiment.problem["kind"] == OWN_LOOP:
        raise ConfigError(f"{site.name} trains with a loop of its own; start the program that calls {_join(folder)}")
    identity = load_identity(folder, site.name)
    if not rejoin:
        remedy = f"to take part again with the others' current model: netfleet node {folder} --rejoin"
        check_stays(site, folder, remedy)
    os.environ[SITE_VARIABLE] = site.name
    trace_handshakes()
    with locked(folder) as mine, TlsRefusals() as watch:
        if not mine:
            raise ConfigError(f"{folder} is already run by another process; stop that one first")
        as_json = style == "json" or (style is None and not watch.terminal.isatty())
        log = Log(site.name, watch.terminal, as_json, names_of_neighbours(folder))
        watch.listen(log.refused)
        log_start(log, identity, in_force)
        from netfleet.sites.runtime.runner import SiteRunner

        terms = Terms(in_force, data_changed=data_changed)
        remember_places(folder, named_modules(read_toml(folder / EXPERIMENT_FILE)))
        parts = folder, site, experiment, identity, log, linger
        make = partial(SiteRunner, *parts, terms=terms, tracking=tracking)
        runner, again = make(), False
        if metrics is not None:
            from netfleet.sites.operations.prometheus import expose

            expose(lambda: runner.status.status(), log, metrics, runner.note_metrics)
        joins = rejoin or (not site.planned and not checkpoint.exists(folder / RUN_FOLDER))  # others have begun
        while (code := _run(runner, joins, watch.terminal, again)) is None:
            time.sleep(REJOIN_PAUSE)
            runner, joins, again = make(), True, True
        return code


def log_start(log: Log, identity: Identity, in_force: PolicyInForce) -> None:
    """Say that the certificate ends soon, if it does, and which policy is in force, if one is."""
    if warning := expiry_warning("this site's certificate", identity.expires):
        level = "warning" if identity.expires - datetime.now(UTC) < URGENT else "info"
        log.event("certificate", level=level, why=warning)
    if in_force.path is not None:
        log.event("policy", file=in_force.path, digest=in_force.name)


def _join(folder: Path) -> str:
    return f'netfleet.optim.join("{folder}")'


def check_stays(site: Site, folder: Path, remedy: str) -> None:
    """Raise if the site has left and its neighbours know: nobody waits for it any more."""
    path = folder / LEAVE_FILE
    if path.exists() and (t := path.read_text(encoding="ascii").strip()):
        raise ConfigError(f"{site.name} has left the training after round {t}; {remedy}")


def _run(runner: SiteRunner, rejoin: bool, terminal: TextIO, again: bool = False) -> int | None:
    """Run it, and log what ended it; returns the exit code, or None if the site shall come back by itself.

    `again`: it has tried to come back before, and did not get far or was given up once more.
    """
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
    except RollbackError as error:
        runner.log.event("rejoining", level="warning", round=runner.status.t, why=error)
        return None
    except NoLinkError as error:
        if not runner.site.rejoin:
            runner.log.event("failed", level="error", round=runner.status.t, why=error)
            raise
        runner.log.event("rejoining", level="warning" if again else "info", round=runner.status.t, why=error)
        return None
    except DivergedError as error:
        runner.log.event("diverged", level="error", round=runner.status.t, why=error)
        return 1
    except NetfleetError as error:
        runner.log.event("failed", level="error", round=runner.status.t, why=error)
        raise
    except Exception as error:  # a full disk below Python, or an error in the code of the site: nobody sees a traceback
        log_failure(runner, error)
    return 0


def log_failure(runner: SiteRunner, error: Exception) -> NoReturn:
    """Log an error that is not netfleet's, and raise it: as a sentence if a disk is full, else as it is.

    Its own words may have a value from the site's data; so the log, which travels, has only its type and place.
    """
    told, place = full_disk(error), traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).name}, line {place.lineno}"
    why = told or f"{type(error).__name__} in {where}; standard error has the traceback"
    runner.log.event("failed", level="error", round=runner.status.t, why=why)
    raise error if told is None else told


def _saved_round(folder: Path) -> int:
    return checkpoint.reached(folder / RUN_FOLDER) if checkpoint.exists(folder / RUN_FOLDER) else 0


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # only once: what is being written must be finished
    raise Stopped


def _is_running(folder: Path) -> bool:
    with locked(folder) as mine:
        return not mine


def holds_message(site: Site, folder: Path) -> str:
    """Why a site that was asked to leave cannot yet: its neighbours have its message, and it holds one of theirs."""
    from netfleet.sites.runtime.alarms import read_alarms

    alarms = [alarm for alarm in read_alarms(folder) if alarm.kind == "norm" and site.on_alarm == "hold"]
    if not alarms:
        return ""
    found, evict = "; ".join(map(str, alarms)), "evict the site whose message it is (netfleet evict)"
    return f"first it has to end the round in which it holds ({found}): netfleet release {folder}, or {evict}"


def leave(folder: Path, policy: Path | None = None) -> int:
    """Make a site leave: its process tells the neighbours, or this one if none is running."""
    site, experiment = read_site(folder), read_toml(folder / EXPERIMENT_FILE)
    if _saved_round(folder) >= experiment["rounds"]:
        raise ConfigError(f"{site.name} has done all {experiment['rounds']} rounds; there is nothing to leave")
    with writing(folder / LEAVE_FILE):
        (folder / LEAVE_FILE).touch()
    if experiment["problem"]["kind"] == OWN_LOOP and not _is_running(folder):
        print(f"{site.name} leaves when the program that calls {_join(folder)} is started again", file=sys.stderr)
        return 0
    if not _is_running(folder):
        return run_node(folder, rejoin=False, metrics=None, style=None, linger=LINGER, policy=policy)
    print(f"{site.name} leaves after the current round, when its neighbours know", file=sys.stderr)
    if why := holds_message(site, folder):
        print(why, file=sys.stderr)
    while _is_running(folder):
        time.sleep(0.2)
    return 0
