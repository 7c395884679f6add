"""Sites whose training comes from outside, in threads of this process: a stand-in for loops of users."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from netfleet.algorithms.build import make_algorithm
from netfleet.engines.host import Host
from netfleet.engines.job import LoopState, Recorder, Snapshot
from netfleet.problems.synthetic import Quadratics
from netfleet.runs.history import History
from netfleet.runs.progress import Quiet
from netfleet.sites.network.transport import MemoryNetwork
from netfleet.sites.operations.logs import Log
from netfleet.sites.planning.certificates import load_identity
from netfleet.sites.planning.folders import Plan, load_site
from netfleet.sites.runtime.facts import INITIAL
from netfleet.sites.runtime.runner import OwnLoop, SiteRunner
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
                ended.put((i, history))
        except BaseException as error:
            ended.put((i, error))

    for i in wanted:
        threading.Thread(target=run, args=(i,), name=f"s{i}", daemon=True).start()
    return dict(ended.get(timeout=60.0) for _ in wanted)
