"""Sites in threads of this process, over the transport in memory: for everything that is not about TLS or processes."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from netfleet.privacy.account import ACCOUNT_FILE, Epoch
from netfleet.privacy.link_noise import simulated_links
from netfleet.privacy.mechanism import simulated_secret
from netfleet.problems.base import Problem
from netfleet.runs.history import History
from netfleet.runs.progress import Quiet
from netfleet.sites.network.transport import MemoryNetwork
from netfleet.sites.operations.logs import Log
from netfleet.sites.planning.certificates import load_identity
from netfleet.sites.planning.folders import RUN_FOLDER, Plan, Site, load_site
from netfleet.sites.runtime.link_keys import KEYS_FILE
from netfleet.sites.runtime.runner import SiteRunner
from support.site_processes import SiteProcesses, plan_sites

_BUILDING = threading.Lock()


class ThreadSafeRunner(SiteRunner):
    """torch traces one module at a time in a process."""

    def _problem(self) -> Problem:
        with _BUILDING:
            return super()._problem()

    def _private(self, problem: Problem, resumes: bool) -> Problem:
        with _BUILDING:  # it tries the model
            return super()._private(problem, resumes)


def run_in_memory(folder: Path, table: Mapping[str, Any], count: int, linger: float = 10.0) -> list[History]:
    """Train with sites s0, s1, … in threads of these names; their histories. The first error of a site is raised."""
    return run_planned(plan_sites(folder, table, count), folder, linger)


def undisturbed_sites(folder: Path, table: Mapping[str, Any], count: int) -> SiteProcesses:
    """The files that sites leave behind if nothing ever happens to them."""
    plan = plan_sites(folder, table, count)
    give_simulated_secrets(plan, folder)
    run_planned(plan, folder)
    return SiteProcesses(folder, plan)


def give_simulated_secrets(plan: Plan, folder: Path, seed: int = 0) -> None:
    """Let the sites draw what the simulator draws: for private gradients (they take this epoch over) and links."""
    for site in plan.sites:
        epoch, place = Epoch(simulated_secret(seed).key.hex()), folder / "plan" / site.name
        (place / ACCOUNT_FILE).write_text(json.dumps(asdict(epoch)))
        (place / RUN_FOLDER).mkdir()
        (place / RUN_FOLDER / KEYS_FILE).write_text(json.dumps(_keys(site, seed)))


def _keys(site: Site, seed: int) -> dict[str, Any]:
    """A file of keys for noise, as if the site had agreed with its neighbours on the simulator's secrets."""
    links = {}
    for number in (neighbour.number for neighbour in site.neighbours):
        secret = simulated_links(seed)(min(site.number, number), max(site.number, number))
        links[f"{number}/0"] = {"public": bytes(32).hex(), "secret": secret.key.hex()}
    return {"run": site.run, "private": bytes(range(32)).hex(), "links": links}


def run_planned(plan: Plan, folder: Path, linger: float = 10.0) -> list[History]:
    """Train with the sites of a plan that is in the folder."""
    count = len(plan.sites)
    network, ended = MemoryNetwork(), queue.Queue[tuple[int, History | BaseException]]()

    def run(i: int) -> None:
        place, name = folder / "plan" / f"s{i}", f"s{i}"
        try:
            site, settings = load_site(place)
            with (place / "node.log").open("w") as file:
                identity, log = load_identity(place, name), Log(name, file)
                runner = ThreadSafeRunner(place, site, settings, identity, log, linger, network.transport(name))
                ended.put((i, runner.run(Quiet())))
        except BaseException as error:
            ended.put((i, error))

    for i in range(count):
        threading.Thread(target=run, args=(i,), name=f"s{i}", daemon=True).start()
    found: dict[int, History] = {}
    while len(found) < count:
        i, result = ended.get(timeout=120.0)
        if isinstance(result, BaseException):
            raise result
        found[i] = result
    return [found[i] for i in range(count)]
