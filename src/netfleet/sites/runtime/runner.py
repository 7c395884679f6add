"""Runs one site: it trains with its neighbours round by round, and resumes from its disk after any crash.

The training loop is the same as everywhere (`engines/loop.py`) and runs in the main thread; the network runs in
another. In round t a site (1) has saved its state, (2) serves its message, (3) pulls its neighbours' and (4) computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

from netfleet.algorithms import Algorithm
from netfleet.algorithms.build import make_algorithm
from netfleet.compute.threads import one_intra_op_thread
from netfleet.engines.loop import Snapshot, Start, train
from netfleet.errors import ConfigError
from netfleet.problems.base import Problem
from netfleet.runs.build import build_problem
from netfleet.runs.config import Experiment
from netfleet.runs.history import History
from netfleet.runs.progress import Display
from netfleet.runs.run import open_run
from netfleet.sites import LINGER
from netfleet.sites.network.client import Client
from netfleet.sites.network.grpc_transport import GrpcTransport
from netfleet.sites.network.identity import Identity
from netfleet.sites.network.loop_thread import LoopThread
from netfleet.sites.network.outbox import Outbox
from netfleet.sites.network.server import SiteServer
from netfleet.sites.network.transport import Transport
from netfleet.sites.operations.logs import Log
from netfleet.sites.planning.folders import RUN_FOLDER, Site
from netfleet.sites.runtime import ending, joining
from netfleet.sites.runtime.exchange import SiteExchange, check_links
from netfleet.sites.runtime.ledger import check_losable
from netfleet.sites.runtime.membership import Membership
from netfleet.sites.runtime.model import MODEL_FILE, model_message, write_model
from netfleet.sites.runtime.neighbourhood import SiteHost
from netfleet.sites.runtime.recorder import AskedToLeave, SiteRecorder
from netfleet.sites.runtime.session import SiteSession
from netfleet.sites.runtime.status_builder import StatusBuilder
from netfleet.sites.runtime.waiting import Waiting


class SiteRunner:
    """One site, from its start to its end."""

    def __init__(
        self,
        folder: Path,
        site: Site,
        experiment: Experiment,
        identity: Identity,
        log: Log,
        linger: float = LINGER,
        transport: Transport | None = None,
    ) -> None:
        """The default transport is gRPC over mutual TLS with this identity."""
        if experiment.engine.device != "cpu":
            raise ConfigError(
                f'sites compute on the CPU, got device = {experiment.engine.device!r}; use device = "cpu"'
            )
        self.folder, self.site, self.experiment, self.log = folder, site, experiment, log
        self._linger, self._transport = linger, transport or GrpcTransport(identity, site.listen)
        (self._run_config,) = experiment.runs()
        self._algorithm = make_algorithm(self._run_config.config["algorithm"])
        self._outbox, fixed = Outbox(), _why_fixed(self._algorithm, site)
        self._membership = Membership(folder, site, experiment.rounds, self._outbox, log.refused, fixed)
        self.status = StatusBuilder(self._membership, self._algorithm, identity.expires, log.refusals.total)

    def run(self, display: Display, rejoin: bool = False) -> History:
        """Train to the end, or until the site leaves, and return its own History."""
        history, start = self._open()
        problem = self._problem()
        with LoopThread() as loop, _connected(loop, self._transport) as connections:
            client = Client(self.site, self._transport, self.log.refused)
            session = SiteSession(
                self.folder,
                self.site,
                self.experiment,
                self._algorithm,
                self.log,
                self._outbox,
                self._membership,
                loop,
                client,
            )
            exchange = SiteExchange(session, Waiting(self._membership, self.log, display))
            host = SiteHost(problem, self._membership.neighbourhood, self._algorithm, exchange, self._outbox)
            if rejoin:
                self._membership.set_joining(True)
                server = loop.wait(self._serve(connections))  # neighbours that agree see that this site is there
                joining.join(session, host, history.hash)
                history, start = self._open()
            start = self._resume(session, host, history, start)
            if rejoin:
                self._membership.set_joining(False)
            else:
                server = loop.wait(self._serve(connections))
            self.log.event("started", round=history.resumed, rounds=session.rounds, listens=self.site.listen)
            history.final = self._train(session, host, server, history, start, display)
            return history

    def _open(self) -> tuple[History, Start | None]:
        return open_run(self._run_config, self.folder / RUN_FOLDER, True, self.experiment.engine)

    def _problem(self) -> Problem:
        workers = max(self.site.workers, self.site.number + 1)
        seed, engine = self._run_config.seed, self.experiment.engine
        return build_problem(self.experiment.problem, workers, seed, engine).at([self.site.number])

    def _resume(self, session: SiteSession, host: SiteHost, history: History, start: Start | None) -> Start | None:
        """Restore messages and links before neighbours may ask; the checkpoint is read once."""
        if start is not None:
            snapshot = start(host.problem.workers)
            host.load_network_state(snapshot.network)
            start = lambda workers: snapshot  # noqa: E731
        self._membership.start(history.resumed)
        check_links(session, history.resumed)  # a site that all neighbours have dropped has nobody to serve
        return start

    async def _serve(self, connections: AsyncExitStack) -> SiteServer:
        server = SiteServer(
            self.site,
            self._outbox,
            self._membership,
            self.log.refused,
            model=lambda: model_message(self.status.snapshot),
            status=self.status.status_for,
        )
        await connections.enter_async_context(self._transport.serve(server))
        return server

    def _train(
        self,
        session: SiteSession,
        host: SiteHost,
        server: SiteServer,
        history: History,
        start: Start | None,
        display: Display,
    ) -> Snapshot:
        recorder = SiteRecorder(session, self.status, history, display)
        display.begin(self.site.name, history.resumed, session.rounds)
        try:
            with one_intra_op_thread():
                final = train(host, self._algorithm, session.rounds, recorder, start)
            self._write_model(host, final)
            self._membership.finish()
            server.announce()
            self.log.event("finished", round=final.t, model=self.folder / MODEL_FILE)
            session.loop.wait(ending.stay(session, self._linger))
        except AskedToLeave as asked:
            final = asked.snapshot
            self._write_model(host, final)
            self._membership.leave(final.t)
            server.announce()
            self.log.event("leaving", round=final.t, model=self.folder / MODEL_FILE)
            ending.leave(session, final.t, self._linger)
        finally:
            display.end()
        return final

    def _write_model(self, host: SiteHost, final: Snapshot) -> None:
        about = {"run": self.site.run, "site": self.site.name, "round": final.t}
        write_model(self.folder / MODEL_FILE, host.problem, final, **about)


def _why_fixed(algorithm: Algorithm, site: Site) -> ConfigError | None:
    """Why the method needs fixed links, if it does; raises where the site's patience would give one up."""
    try:
        check_losable(algorithm)
    except ConfigError as error:
        if site.patience:
            raise
        return error
    return None


@contextmanager
def _connected(loop: LoopThread, transport: Transport) -> Iterator[AsyncExitStack]:
    """What is open in the network's thread; all of it is closed at the end."""
    connections = AsyncExitStack()
    connections.push_async_callback(transport.close)
    try:
        yield connections
    finally:
        loop.wait(connections.aclose())
