"""Runs one site: it trains with its neighbours round by round, and resumes from its disk after any crash.

The training loop is the same as everywhere (`engines/loop.py`) and runs in the main thread; the network runs in
another. In round t a site (1) has saved its state, (2) serves its message, (3) pulls its neighbours' and (4) computes.
"""

from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from netfleet.algorithms.build import make_algorithm
from netfleet.compute.threads import one_intra_op_thread
from netfleet.engines.collective import SingleHost
from netfleet.engines.host import Host
from netfleet.engines.job import Job, Snapshot, Start
from netfleet.engines.loop import train
from netfleet.errors import CheckpointError, ConfigError, DivergedError
from netfleet.problems.base import Problem
from netfleet.problems.module import ModuleProblem
from netfleet.runs.build import build_problem
from netfleet.runs.checkpoint import write_tensors
from netfleet.runs.config import Experiment
from netfleet.runs.divergence import divergence
from netfleet.runs.history import History
from netfleet.runs.progress import Display
from netfleet.runs.recorder import RunRecorder
from netfleet.runs.run import open_run
from netfleet.sites import LINGER
from netfleet.sites.network.client import Client
from netfleet.sites.network.grpc_transport import GrpcTransport
from netfleet.sites.network.loop_thread import LoopThread
from netfleet.sites.network.outbox import Outbox
from netfleet.sites.network.server import SiteServer
from netfleet.sites.network.transport import Transport
from netfleet.sites.operations.logs import Log
from netfleet.sites.planning.certificates import Identity
from netfleet.sites.planning.folders import LEAVE_FILE, MODEL_FILE, RUN_FOLDER, Site
from netfleet.sites.runtime.exchange import SiteExchange, SiteSession, check_links
from netfleet.sites.runtime.join_leave import join, leave, model_message, stay
from netfleet.sites.runtime.membership import Membership
from netfleet.sites.runtime.neighbourhood import SiteHost, why_fixed
from netfleet.sites.runtime.status_builder import StatusBuilder


class AskedToLeave(Exception):
    """The operator has asked the site to leave; `snapshot` is the last saved one."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot


class SiteRecorder(RunRecorder):
    """Saves every round, and checks then whether the site was asked to leave."""

    def __init__(self, session: SiteSession, status: StatusBuilder, *settings: Any) -> None:
        super().__init__(*settings)
        self._session, self._status = session, status
        self._apart: list[int] = []

    def record(self, snapshot: Snapshot, host: Host) -> None:
        super().record(snapshot, host)
        self._status.note_round(snapshot, self.history.records[-1] if self.history.records else {})
        members = self._session.members
        if (apart := members.sites_apart()) != self._apart:
            self._apart, names, log = apart, ", ".join(members.name(k) for k in apart), self._session.log
            if apart:
                log.event("unreachable", level="warning", sites=names, connected=len(members.known) - len(apart) - 1)
            else:
                log.event("reconnected")
        if (members.folder / LEAVE_FILE).exists() and snapshot.t < self.rounds:
            raise AskedToLeave(snapshot)


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
        if (device := experiment.engine.device) != "cpu":
            raise ConfigError(f'sites compute on the CPU, got device = {device!r}; use device = "cpu"')
        self.folder, self.site, self.experiment, self.log = folder, site, experiment, log
        self._linger, self._transport = linger, transport or GrpcTransport(identity, site.listen)
        (self._run_config,) = experiment.runs()
        self._algorithm = make_algorithm(self._run_config.config["algorithm"])
        fixed = why_fixed(self._algorithm)
        if fixed is not None and site.patience:
            raise fixed
        self._members = Membership(folder, site, experiment.rounds, Outbox(), log.refused, fixed)
        self.status = StatusBuilder(self._members, self._algorithm, identity.expires, log.refusals.total)

    def run(self, display: Display, rejoin: bool = False) -> History:
        """Train to the end, or until the site leaves, and return its own History."""
        history, start = self._open()
        problem, members = self._problem(), self._members
        with LoopThread() as loop, ExitStack() as stack:
            connections = AsyncExitStack()
            stack.callback(lambda: loop.wait(connections.aclose()))
            connections.push_async_callback(self._transport.close)
            session = SiteSession(members, Client(self.site, self._transport, self.log.refused), loop, self.log)
            exchange = SiteExchange(session, display)
            host = SiteHost(problem, members.neighbourhood, self._algorithm, exchange, members.outbox)
            if rejoin:
                members.set_joining(True)
                loop.wait(self._serve(connections))  # neighbours that agree see that this site is there
                join(session, host, self._algorithm, history.hash)
                history, start = self._open()
            first = self._resume(host, history, start)
            if rejoin:
                members.set_joining(False)
            else:
                loop.wait(self._serve(connections))
            self.log.event("started", round=history.resumed, rounds=members.rounds, listen=self.site.listen)
            history.final = self._train(session, host, history, first, display)
            if words := divergence(history.records, self._algorithm):
                raise DivergedError(words)
            return history

    def _open(self) -> tuple[History, Start | None]:
        return open_run(self._run_config, self.folder / RUN_FOLDER, True, SingleHost())

    def _problem(self) -> Problem:
        workers = max(self.site.workers, self.site.number + 1)
        seed, engine = self._run_config.seed, self.experiment.engine
        return build_problem(self.experiment.problem, workers, seed, engine).at([self.site.number])

    def _resume(self, host: SiteHost, history: History, start: Start | None) -> Snapshot | None:
        """Restore messages and links before neighbours may ask; the checkpoint is read once."""
        try:
            first = None if start is None else start(self._algorithm.State, host.problem.device, host.problem.workers)
        except CheckpointError as error:
            advice = f"a site can also start with its neighbours' current model: netfleet node {self.folder} --rejoin"
            raise CheckpointError(f"{error}; {advice}") from None
        if first is not None:
            host.load_network_state(first.network)
        self._members.start(history.resumed)
        check_links(self._members, history.resumed)  # a site that all neighbours have dropped has nobody to serve
        return first

    async def _serve(self, connections: AsyncExitStack) -> None:
        members, status = self._members, self.status
        answers = (lambda: model_message(status.snapshot), status.status_for)
        server = SiteServer(self.site, members.outbox, members, self.log.refused, *answers)
        await connections.enter_async_context(self._transport.serve(server))

    def _train(
        self, session: SiteSession, host: SiteHost, history: History, first: Snapshot | None, display: Display
    ) -> Snapshot:
        rounds, start = self.experiment.rounds, None if first is None else lambda *_: first
        settings = replace(self.experiment, checkpoint_every=1)
        recorder = SiteRecorder(session, self.status, history, self._algorithm, settings, display)
        job = Job(host.problem, host.network, self._algorithm, rounds, recorder, start)
        display.begin(self.site.name, history.resumed, rounds)
        try:
            with one_intra_op_thread():
                final = train(host, job)
            self._write_model(host.problem, final)
            self._members.finish()
            self.log.event("finished", round=final.t, model=self.folder / MODEL_FILE)
            session.loop.wait(stay(session, self._linger))
        except AskedToLeave as asked:
            final = asked.snapshot
            self._write_model(host.problem, final)
            self._members.leave(final.t)
            self.log.event("leaving", round=final.t, model=self.folder / MODEL_FILE)
            leave(session, final.t, self._linger)
        finally:
            display.end()
        return final

    def _write_model(self, problem: Problem, final: Snapshot) -> None:
        """Write the named parameters and buffers of the site's model; of a problem without a module, its vector x."""
        x, buffers = final.state.x[0], None if final.buffers is None else final.buffers[0]
        tensors = dict(problem.module(x, buffers).state_dict()) if isinstance(problem, ModuleProblem) else {"x": x}
        about = {"run": self.site.run, "site": self.site.name, "round": str(final.t)}
        write_tensors(self.folder / MODEL_FILE, tensors, about)
