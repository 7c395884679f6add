"""Sites whose training comes from outside: by a stand-in in threads of this process, by a real loop in processes."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from netfleet.algorithms.build import make_algorithm
from netfleet.engines.host import Host
from netfleet.engines.job import LoopState, Recorder, Snapshot
from netfleet.errors import NetfleetError
from netfleet.optim.join import joined
from netfleet.problems.synthetic import Quadratics
from netfleet.runs.history import History
from netfleet.runs.progress import Quiet
from netfleet.sites.network import client, grpc_channels
from netfleet.sites.network.transport import MemoryNetwork
from netfleet.sites.operations.logs import Log
from netfleet.sites.planning.certificates import load_identity
from netfleet.sites.planning.folders import Plan, load_site
from netfleet.sites.runtime.facts import INITIAL
from netfleet.sites.runtime.runner import OwnLoop, SiteRunner
from support import site_loop
from support.fork_server import SERVER
from support.site_processes import SiteProcesses, plan_sites
from support.site_settings import quadratics

#: An experiment whose sites have loops of their own.
LOOPS: dict[str, Any] = {
    "rounds": 6,
    "topology": {"kind": "ring", "weights": "metropolis"},
    "problem": {"kind": "own-loop"},
    "algorithms": [{"kind": "net-fleet", "K": 2, "eta": 0.05}],
    "evaluation": {"every": 2},
}
FACTS = {"parameters": "6 numbers", "frozen parameters": "none", INITIAL: "zero"}


class CountingRecorder(Recorder):
    """The recorder of a loop whose own state is how many rounds it has seen."""

    def __init__(self, then: Recorder) -> None:
        self._then, self.seen = then, 0

    def due(self, t: int) -> bool:
        return True

    def record(self, snapshot: Snapshot, host: Host) -> None:
        self.seen = self.seen + 1 if snapshot.loop is None else int(snapshot.loop.text)
        state = LoopState({"x": snapshot.state.x[0]}, str(self.seen))
        self._then.record(replace(snapshot, loop=state), host)


def own_loop(i: int, facts: dict[str, str], local: Quadratics | None = None) -> OwnLoop:
    """A loop that trains a site's quadratic."""
    method = make_algorithm(LOOPS["algorithms"][0])
    local = local or quadratics(3).at([i])
    return OwnLoop(local, method, CountingRecorder, facts, lambda final: {"w": final.state.x[0]}, lambda: {"loss": 0.5})


def train_loops(
    folder: Path,
    plan: Plan,
    make: Callable[[int], OwnLoop],
    only: list[int] | None = None,
    linger: float = 10.0,
    within: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> dict[int, History | BaseException]:
    """Run these sites in threads, and collect how each ended."""
    network, ended = MemoryNetwork(), queue.Queue[tuple[int, History | BaseException]]()
    wanted = list(range(len(plan.sites))) if only is None else only

    def run(i: int) -> None:
        try:
            place, name = folder / "plan" / f"s{i}", f"s{i}"
            site, settings = load_site(place)
            with within(), ExitStack() as stack, (place / "node.log").open("a") as file:
                log, identity = Log(name, file), load_identity(place, name)
                runner = SiteRunner(place, site, settings, identity, log, linger, network.transport(name))
                session, history = runner.train(stack, Quiet(), own=make(i))
                session.loop.wait(runner.stay(session))
            ended.put((i, history))  # its record is closed now
        except BaseException as error:
            ended.put((i, error))

    for i in wanted:
        threading.Thread(target=run, args=(i,), name=f"s{i}", daemon=True).start()
    return dict(ended.get(timeout=60.0) for _ in wanted)


#: What `site_loop.py` trains with.
SITE_LOOP: dict[str, Any] = {**LOOPS, "algorithms": [{"kind": "k-gt", "K": 3, "local": {"kind": "adamw"}}]}


def be_loop(folder: str, settings: dict[str, Any], before: Callable[[], None] | None) -> None:
    """The process of a site with a loop; it ends as a script would."""
    log = os.open(Path(folder) / "node.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    client.PAUSES, grpc_channels.RECONNECT = (0.02, 0.1), (0.1, 0.1)
    if before is not None:
        before()
    try:
        site_loop.main(folder, **settings)
    except NetfleetError as error:
        print(f"netfleet: error: {error}", file=sys.stderr, flush=True)
        raise SystemExit(2) from None
    finally:
        if (site := joined()) is not None:
            site.close()


class LoopProcesses(SiteProcesses):
    """Sites whose processes run `site_loop.py`."""

    def start_loop(self, name: str, before: Callable[[], None] | None = None, **settings: Any) -> None:
        arguments = (str(self.folder / name), settings, before)
        self.running[name] = SERVER.Process(target=be_loop, args=arguments, daemon=True)
        self.running[name].start()


@contextmanager
def loop_processes(folder: Path, table: Mapping[str, Any], count: int) -> Iterator[LoopProcesses]:
    """Sites that are gone when the test is over."""
    made = LoopProcesses(folder, plan_sites(folder, table, count))
    try:
        yield made
    finally:
        for process in made.running.values():
            process.kill()
            process.join()
