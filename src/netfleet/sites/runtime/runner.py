"""One site at work: trains with its neighbours, round by round, and goes on from its disk after any crash.

The training loop is everyone's (`engines/loop.py`) and runs in the main thread; the network runs in another. In round t
a site (1) has made its state durable, (2) serves its message, (3) pulls its neighbours' and (4) computes.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from netfleet.algorithms.build import make_algorithm
from netfleet.compute.threads import one_intra_op_thread
from netfleet.engines.collective import SingleHost
from netfleet.engines.host import Content, Host, Tag
from netfleet.engines.job import Job, Snapshot, Start
from netfleet.engines.loop import train
from netfleet.errors import ConfigError, TransportError
from netfleet.files import write_atomically
from netfleet.runs.build import build_problem
from netfleet.runs.config import Experiment
from netfleet.runs.history import History
from netfleet.runs.progress import Display
from netfleet.runs.recorder import RunRecorder
from netfleet.runs.run import open_run
from netfleet.sites import LINGER
from netfleet.sites.network.loop_thread import Bridge
from netfleet.sites.network.outbox import Outbox
from netfleet.sites.network.transport import Answer, Client, SiteServer, Wanted, serve
from netfleet.sites.network.wire import Expected, Kind
from netfleet.sites.operations.logs import Log
from netfleet.sites.operations.report import Report
from netfleet.sites.planning.folders import LEAVE_FILE, RUN_FOLDER, Site
from netfleet.sites.planning.identity import Identity
from netfleet.sites.runtime import joining
from netfleet.sites.runtime.membership import FrontDesk
from netfleet.sites.runtime.model import MODEL_FILE, write_model
from netfleet.sites.runtime.neighbourhood import SiteHost, check_losable
from netfleet.sites.runtime.waiting import Waiting

#: Seconds for which a site that is done, as all others are, still answers them.
LAST_WORDS = 5.0


class Left(Exception):
    """The site was asked to leave."""


class Node:
    """A site's process."""

    def __init__(
        self, folder: Path, site: Site, experiment: Experiment, identity: Identity, log: Log, linger: float = LINGER
    ) -> None:
        self.folder, self.site, self.experiment, self.identity = folder, site, experiment, identity
        self.log, self.linger = log, linger
        (self.run_config,) = experiment.runs()
        self.algorithm = make_algorithm(self.run_config.config["algorithm"])
        self.outbox = Outbox()
        if experiment.engine.device != "cpu":
            raise ConfigError(
                f'sites compute on the CPU, got device = {experiment.engine.device!r}; use device = "cpu"'
            )
        self.desk = FrontDesk(folder, site, experiment.rounds, self.outbox, log.refused)
        self.hood = self.desk.hood
        self._check_losable()
        self.report = Report(site, self.desk, identity, experiment.rounds, self.algorithm)
        self.report.refused = log.refusals.total
        self.desk.report = self.report.table
        self._run = bytes.fromhex(site.run)

    def _check_losable(self) -> None:
        try:
            check_losable(self.algorithm)
        except ConfigError as error:
            self.desk.losable = error
            if self.site.patience:
                raise

    def run(self, display: Display, rejoin: bool = False) -> History:
        """Train to the end, or until the site leaves, and return its own History."""
        history, start = self._open()
        problem = self._problem()
        self.bridge, self.waiting = Bridge(), Waiting(self.desk, self.log, display)
        try:
            self.client = self.bridge.wait(self._make_client())
            self.host = SiteHost(problem, self.hood, self.algorithm, self.exchange, self.outbox)
            if rejoin:
                self.desk.joining = True
                self._server = self.bridge.wait(self._serve())  # neighbours that let it in see that it is there
                joining.join(self, history)
                history, start = self._open()
            first = None if start is None else start(self.algorithm.State, problem.device, problem.workers)
            self._begin(history, first)
            history.final = self._train(history, first, display)
            return history
        finally:
            self._hang_up()

    def _open(self) -> tuple[History, Start | None]:
        return open_run(self.run_config, self.folder / RUN_FOLDER, True, SingleHost())

    def _problem(self) -> Any:
        workers = max(self.site.workers, self.site.number + 1)
        seed, engine = self.run_config.seed, self.experiment.engine
        return build_problem(self.experiment.problem, workers, seed, engine).at([self.site.number])

    def _begin(self, history: History, first: Snapshot | None) -> None:
        """Open the doors; whoever was dropped by all its neighbours has nothing to open them for."""
        if first is not None:
            self.host.load_network_state(first.network)
        self.desk.start(history.resumed)
        self._check_company(history.resumed)
        self.desk.snapshot = functools.partial(joining.durable_model, self)
        if not self.desk.joining:
            self._server = self.bridge.wait(self._serve())
        self.desk.joining = False
        self.log.event("started", round=history.resumed, rounds=self.experiment.rounds, listens=self.site.listen)

    async def _make_client(self) -> Client:
        return Client(self.site, self.identity, self.log.refused)

    async def _serve(self) -> Any:
        self._handler = SiteServer(self.site, self.outbox, self.desk, self.log.refused)
        return await serve(self.site, self.identity, self._handler)

    def _train(self, history: History, first: Snapshot | None, display: Display) -> Snapshot:
        rounds, start = self.experiment.rounds, None if first is None else lambda *_: first
        recorder = SiteRecorder(self, history, self.algorithm, replace(self.experiment, checkpoint_every=1), display)
        display.begin(self.site.name, history.resumed, rounds)
        try:
            with one_intra_op_thread():
                final = train(self.host, Job(self.host.problem, self.hood, self.algorithm, rounds, recorder, start))
            self._finish(final)
        except Left:
            final = recorder.last
            self._depart(final)
        finally:
            display.end()
        return final

    def _hang_up(self) -> None:
        async def close() -> None:
            if hasattr(self, "client"):
                await self.client.close()
            if hasattr(self, "_server"):
                await self._server.stop(grace=1)

        self.bridge.wait(close())
        self.bridge.close()

    # ---- a round ----

    def exchange(self, tag: Tag, need: Sequence[int], stack: Tensor, content: Content) -> None:
        """Serve this site's message, and pull those of its neighbours into the stack."""
        own = stack[need.index(self.site.number)]
        self.outbox.post(tag, content.words, own)
        rows = {j: stack[row] for row, j in enumerate(need) if j != self.site.number}
        with self.waiting:
            answers = self.bridge.wait(self._pull_all(tag, rows, content), self.waiting.glance)
        for j, answer in answers.items():
            if answer.kind != Kind.CHUNK:
                rows[j].copy_(own)  # nothing flows over the link
                self._without(j, tag.t, answer)
        self._check_company(tag.t)

    async def _pull_all(self, tag: Tag, rows: dict[int, Tensor], content: Content) -> dict[int, Answer]:
        rounds = self.desk.gossip()
        async with asyncio.TaskGroup() as group:
            tasks = {j: group.create_task(self._pull(j, tag, row, content, rounds)) for j, row in rows.items()}
        return {j: task.result() for j, task in tasks.items()}

    async def _pull(self, j: int, tag: Tag, row: Tensor, content: Content, rounds: Sequence[int]) -> Answer:
        wanted = Wanted(
            Expected(self._run, j, *tag, content.words, row.numel()),
            row.numpy().data.cast("B"),
            lambda: content.finite(row),
            lambda: not self.hood.there(j, tag.t),
        )
        return await self.client.pull(self.desk.contacts[j], wanted, rounds)

    def _without(self, j: int, t: int, answer: Answer) -> None:
        """Go on without neighbour j from round t on."""
        self.desk.contacts[j].waiting = ""
        if j in self.hood.lost:  # in an earlier exchange of this round
            return
        if answer.kind == Kind.JOIN:
            self.log.event("returns", neighbour=self.desk.name(j), without_from=t, again_from=self.desk.first(j))
            return
        if self.desk.losable is not None:
            raise TransportError(f"{self.desk.name(j)} {_why(answer)}, and {self.desk.losable}")
        self.host.drop(j, t)
        if answer.kind in (Kind.LEFT, Kind.DROPPED):
            self.desk.write_links()
        if answer.kind == Kind.LEFT:
            self.bridge.wait(self.client.confirm(self.desk.contacts[j], self.experiment.rounds))
        self.log.event("lost", level="warning", neighbour=self.desk.name(j), round=t, why=_why(answer))

    def _check_company(self, t: int) -> None:
        if not self.hood.agreed():
            raise TransportError(
                f"{self.site.name} has no neighbour left in round {t}: all are gone, or have dropped this site. Its "
                f"state is kept; take part again with the others' current model: netfleet node {self.folder} --rejoin"
            )

    # ---- the end ----

    def _finish(self, final: Snapshot) -> None:
        """Write the model, and stay until all neighbours have what they need of this site."""
        self._write_model(final)
        self.desk.finished = True
        self._handler.announce()
        self.log.event("finished", round=final.t, model=self.folder / MODEL_FILE)
        self.bridge.wait(self._stay())

    async def _stay(self) -> None:
        there = self.hood.neighbours(self.experiment.rounds)
        async with asyncio.TaskGroup() as group:
            for j in there:
                group.create_task(self._see_off(j))
        await self._answer_until(set(there))

    async def _see_off(self, j: int) -> None:
        """Wait until neighbour j is done too."""
        contact, t = self.desk.contacts[j], self.experiment.rounds
        wanted = Wanted(Expected(self._run, j, t, 0, "", 0), given_up=lambda: j in self.desk.done)
        try:
            async with asyncio.timeout(self.linger):
                await self.client.pull(contact, wanted)
        except TimeoutError:
            self.log.event(
                "unfinished", level="warning", neighbour=contact.about.name, why=contact.waiting, waited=self.linger
            )

    def _depart(self, final: Snapshot) -> None:
        """Tell the neighbours that they go on without this site."""
        self._write_model(final)
        self.desk.left = final.t
        self._handler.announce()
        self.log.event("leaving", round=final.t, model=self.folder / MODEL_FILE)
        there = set(self.hood.neighbours(self.experiment.rounds))  # those who come later too
        self.bridge.wait(self._answer_until(there, self.linger))
        untold = [self.desk.name(j) for j in sorted(there - self.desk.told)]
        self.log.event("left", round=final.t, untold=", ".join(untold))
        if not untold:  # else it has to come back and tell them
            write_atomically(self.folder / LEAVE_FILE, lambda file: file.write(b"%d\n" % final.t))

    async def _answer_until(self, told: set[int], seconds: float = LAST_WORDS) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not told <= self.desk.told:
            await asyncio.sleep(0.05)

    def _write_model(self, final: Snapshot) -> None:
        about = {"run": self.site.run, "site": self.site.name, "round": final.t}
        write_model(self.folder / MODEL_FILE, self.host.problem, final, **about)


class SiteRecorder(RunRecorder):
    """Keeps a site's record; every round is durable, and then looked at."""

    def __init__(self, node: Node, *settings: Any) -> None:
        super().__init__(*settings)
        self.node = node
        self._apart: list[int] = []

    def record(self, snapshot: Snapshot, host: Host) -> None:
        super().record(snapshot, host)
        self.last, node = snapshot, self.node
        node.report.see(snapshot, self.history.records[-1] if self.history.records else {})
        self._look_around()
        if (node.folder / LEAVE_FILE).exists() and snapshot.t < self.rounds:
            raise Left

    def _look_around(self) -> None:
        desk, apart = self.node.desk, self.node.desk.apart()
        if apart != self._apart:
            self._apart = apart
            rest = len(desk.known) - len(apart)
            names = ", ".join(desk.name(k) for k in apart)
            self.node.log.event("apart", level="warning", sites=names, goes_on_with=rest - 1)


def _why(answer: Answer) -> str:
    return {
        Kind.WAIT: "did not answer for longer than this site's patience",
        Kind.DROPPED: "has dropped this site",
        Kind.LEFT: "has left",
        Kind.DONE: "says that the training is over",
    }.get(answer.kind, answer.kind.name)
