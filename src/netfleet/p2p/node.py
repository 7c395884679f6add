"""One site at work: trains with its neighbours, round by round, and goes on from its disk after any crash.

The training loop is everyone's (`engines/loop.py`) and runs in the main thread; the network runs in a thread of its
own, and `Bridge` is the one place where the first waits for the second.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import TimeoutError as NotYet
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from netfleet.compression import make_algorithm
from netfleet.config import Experiment
from netfleet.engines.block import Content, Tag
from netfleet.engines.loop import Snapshot, train
from netfleet.errors import TransportError
from netfleet.experiment import build_problem, open_run
from netfleet.history import History
from netfleet.p2p.outbox import Outbox
from netfleet.p2p.site import Neighbourhood, SiteHost
from netfleet.p2p.sites import Site
from netfleet.p2p.tls import Identity
from netfleet.p2p.transport import Answer, Client, Contact, Refused, Server, serve
from netfleet.p2p.wire import Expected, Frame, Kind
from netfleet.problems.pool import one_intra_op_thread
from netfleet.progress import Display
from netfleet.recorder import RunRecorder

#: Seconds for which a site that is done stays for neighbours that cannot be reached.
LINGER = 60.0
_T = TypeVar("_T")


class Bridge:
    """An event loop in a thread, and the way to wait for it that signals can interrupt."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="network", daemon=True)
        self._thread.start()

    def wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Do it over there, and wait for it here."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            while True:
                try:
                    return future.result(timeout=0.5)
                except NotYet:
                    if future.done():
                        raise
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End the loop and its thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=5)


class Node:
    """A site's process."""

    def __init__(self, folder: Path, site: Site, experiment: Experiment, identity: Identity, refused: Refused) -> None:
        self.folder, self.site, self.experiment, self.identity = folder, site, experiment, identity
        self.refused, self.outbox = refused, Outbox()
        self.contacts = {each.number: Contact(each) for each in site.neighbours}
        weights = {each.number: each.weight for each in site.neighbours}
        self.hood = Neighbourhood(site.workers, site.number, weights)
        self._run = bytes.fromhex(site.run)
        self._done: set[int] = set()  # neighbours that need nothing more
        self._told: set[int] = set()  # neighbours that know that this site is done
        self.finished = False

    def run(self, display: Display) -> History:
        """Train to the end and return the site's own History."""
        (run,) = self.experiment.runs()
        history, start = open_run(run, self.folder / "run", True, self.experiment.engine)
        algorithm = make_algorithm(run.config["algorithm"])
        seed, engine = run.seed, self.experiment.engine
        problem = build_problem(self.experiment.problem, self.site.workers, seed, engine).at([self.site.number])
        self.bridge = Bridge()
        try:
            self._server, self._client = self.bridge.wait(self._connect())
            self.host = SiteHost(problem, self.hood, algorithm, self.exchange, self.outbox)
            rounds, evaluation = self.experiment.rounds, self.experiment.evaluation
            recorder = RunRecorder(history, algorithm, rounds, evaluation, 1, display)
            display.begin(self.site.name, history.resumed, rounds)
            with one_intra_op_thread():
                history.final = train(self.host, algorithm, rounds, recorder, start)
            self._finish(history.final)
            return history
        finally:
            display.end()
            self._hang_up()

    async def _connect(self) -> tuple[Any, Client]:
        self._handler = Server(self.site, self.outbox, self.contacts, self.refused, self._standing, self.status)
        return await serve(self.site, self.identity, self._handler), Client(self.site, self.identity, self.refused)

    def _hang_up(self) -> None:
        async def close() -> None:
            if hasattr(self, "_client"):
                await self._client.close()
                await self._server.stop(grace=1)

        self.bridge.wait(close())
        self.bridge.close()

    def exchange(self, tag: Tag, need: Sequence[int], stack: Tensor, content: Content) -> None:
        """Serve this site's message, and pull those of its neighbours into the stack."""
        own = stack[need.index(self.site.number)]
        self.outbox.post(tag, content.words, own)
        rows = {j: stack[row] for row, j in enumerate(need) if j != self.site.number}
        for j, answer in self.bridge.wait(self._pull_all(tag, rows, content)).items():
            if answer.kind != Kind.CHUNK:
                self._lose(j, tag, answer)
                rows[j].copy_(own)  # nothing flows over the link

    async def _pull_all(self, tag: Tag, rows: dict[int, Tensor], content: Content) -> dict[int, Answer]:
        async with asyncio.TaskGroup() as group:
            tasks = {j: group.create_task(self._pull(j, tag, row, content)) for j, row in rows.items()}
        return {j: task.result() for j, task in tasks.items()}

    async def _pull(self, j: int, tag: Tag, row: Tensor, content: Content) -> Answer:
        expected = Expected(self._run, j, *tag, content.words, row.numel())
        return await self._client.pull(
            self.contacts[j], expected, row.numpy().data.cast("B"), lambda: content.finite(row)
        )

    def _lose(self, j: int, tag: Tag, answer: Answer) -> None:
        self.host.drop(j, tag.t)
        if not self.hood.neighbours():
            raise TransportError(f"{self.site.name} has no neighbour left")

    def _standing(self, j: int, request: Frame) -> Frame | None:
        """What neighbour j is told instead of a message."""
        if j in self.hood.lost:
            return Frame(Kind.DROPPED, self._run, self.site.number, self.hood.lost[j])
        if request.t >= self.experiment.rounds:
            self._done.add(j)  # it asks for what comes after the end: it has all it needs
            if self.finished:
                self._told.add(j)
                return Frame(Kind.DONE, self._run, self.site.number, self.experiment.rounds)
        return None

    def _finish(self, final: Snapshot) -> None:
        """Stay until all neighbours have what they need of this site."""
        self.finished = True
        self.outbox.t = self.experiment.rounds - 1
        self._handler.announce()
        self.bridge.wait(self._linger())

    async def _linger(self) -> None:
        expected = Expected(self._run, 0, self.experiment.rounds, 0, "", 0)
        for j in self.hood.neighbours():
            if j not in self._done:
                try:
                    async with asyncio.timeout(LINGER):
                        await self._client.pull(
                            self.contacts[j], expected._replace(sender=j), memoryview(bytearray()), lambda: True
                        )
                    self._done.add(j)
                except TimeoutError:
                    pass
        until = time.monotonic() + 5
        while time.monotonic() < until and not set(self.hood.neighbours()) <= self._told:
            await asyncio.sleep(0.05)

    async def status(self) -> bytes:
        """What the operator sees."""
        return b"{}"
