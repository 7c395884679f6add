"""Sites in threads of this process, over the transport in memory: for everything that is not about TLS or processes."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from netfleet.gradients.paths import Sample
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
from netfleet.sites.policy.peers import SitePeers
from netfleet.sites.runtime.link_keys import KEYS_FILE
from netfleet.sites.runtime.runner import SiteRunner
from support.site_processes import SiteProcesses, plan_sites

_BUILDING = threading.Lock()


class Poison(NamedTuple):
    """A site whose gradients are larger than they should be."""

    first: int  # round
    factor: float = 1000.0


def poison_gradients(problem: Problem, poison: Poison) -> None:
    honest = problem.grad

    def grad(x: Tensor, sample: Sample) -> Tensor:
        return honest(x, sample) * (poison.factor if sample.t >= poison.first else 1.0)

    problem.grad = grad  # type: ignore[method-assign]


class ThreadSafeRunner(SiteRunner):
    """torch traces one module at a time in a process."""

    poison: Poison | None = None

    def _problem(self) -> Problem:
        with _BUILDING:
            problem = super()._problem()
        if self.poison is not None:
            poison_gradients(problem, self.poison)
        return problem

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
    """Train with the sites of a plan that is in the folder, to the end; the first error of a site is raised."""
    sites = MemorySites(plan, folder, linger)
    sites.start()
    return [sites.end(site.name) for site in plan.sites]


class MemorySites:
    """Sites of a plan on disk in threads of this process, which know each other by their certificates."""

    def __init__(self, plan: Plan, folder: Path, linger: float = 10.0) -> None:
        self.plan, self.folder, self._linger = plan, folder / "plan", linger
        self._network, self._ended = MemoryNetwork(), queue.Queue[tuple[str, History | BaseException]]()
        self._found: dict[str, History | BaseException] = {}
        self.names = [site.name for site in plan.sites]
        self.runners: dict[str, ThreadSafeRunner] = {}

    def start(self, *names: str, poison: Mapping[str, Poison] | None = None, rejoin: bool = False) -> None:
        """Start some sites, or all."""
        for name in names or self.names:
            self._found.pop(name, None)
            arguments = (name, (poison or {}).get(name), rejoin)
            threading.Thread(target=self._run, args=arguments, name=name, daemon=True).start()

    def _run(self, name: str, poison: Poison | None, rejoin: bool) -> None:
        place = self.folder / name
        try:
            site, settings = load_site(place)
            with (place / "node.log").open("a") as file:
                identity, log = load_identity(place, name), Log(name, file, as_json=True)
                peers = SitePeers(place, identity.ca, identity.certificate, log)
                transport = self._network.transport(name, identity.certificate, peers)
                parts = place, site, settings, identity, log, self._linger, transport
                runner = self.runners[name] = ThreadSafeRunner(*parts, peers=peers)
                runner.poison = poison
                self._ended.put((name, runner.run(Quiet(), rejoin)))
        except BaseException as error:
            self._ended.put((name, error))

    def end(self, name: str, *failing: str) -> History:
        """Wait for the end of a site; the first error of any is raised, but not of those that are said to fail."""
        while name not in self._found:
            ended, result = self._ended.get(timeout=120.0)
            if isinstance(result, BaseException) and ended not in failing:
                raise result
            self._found[ended] = result
        found = self._found[name]
        if isinstance(found, BaseException):
            raise found
        return found

    def events(self, name: str, what: str) -> list[dict[str, Any]]:
        """What a site logged."""
        lines = (self.folder / name / "node.log").read_text().splitlines()
        return [event for line in lines if (event := json.loads(line))["event"] == what]

    def folders(self, *names: str) -> list[Path]:
        """The folders of some sites, or all."""
        return [self.folder / name for name in names or self.names]
