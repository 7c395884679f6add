"""Runs one site: it trains with its neighbours round by round, and resumes from its disk after any crash.

The training loop is the same as everywhere (`engines/loop.py`); the network runs in a thread of its own. In round t a
site (1) has saved its state, (2) serves its message, (3) pulls its neighbours' and (4) computes. Nothing here needs the
main thread: where the gradients come from a loop of the user's (`OwnLoop`), that loop has it.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from netfleet.algorithms import Algorithm
from netfleet.algorithms.build import make_algorithm
from netfleet.compute.threads import one_intra_op_thread
from netfleet.engines.collective import SingleHost
from netfleet.engines.job import Job, Recorder, Snapshot, Start
from netfleet.engines.loop import train
from netfleet.engines.time_box import ClockSteps
from netfleet.errors import CheckpointError, DivergedError, FrameError, NetfleetError
from netfleet.privacy.account import SiteAccount
from netfleet.privacy.build import check_buffers, make_private
from netfleet.privacy.queries import queries_after
from netfleet.privacy.spending import Spending
from netfleet.problems.base import Problem
from netfleet.problems.module import ModuleProblem
from netfleet.problems.own_loop import NO_WAY_BACK, OWN_LOOP
from netfleet.runs.config import Experiment
from netfleet.runs.contract_check import data_facts
from netfleet.runs.divergence import divergence
from netfleet.runs.history import History
from netfleet.runs.progress import Display
from netfleet.runs.requirements import check_time_box
from netfleet.runs.run import open_run
from netfleet.sites import LINGER
from netfleet.sites.costs.rounds import size_of
from netfleet.sites.doctor.answering import Answerer
from netfleet.sites.doctor.local import OpenFolder
from netfleet.sites.doctor.resources import quick_findings
from netfleet.sites.network.client import Client
from netfleet.sites.network.grpc_transport import GrpcTransport
from netfleet.sites.network.inbound import Inbound
from netfleet.sites.network.loop_thread import LoopThread
from netfleet.sites.network.outbox import Message, Outbox
from netfleet.sites.network.server import SiteServer
from netfleet.sites.network.transport import Transport
from netfleet.sites.operations.health import signs_of_life
from netfleet.sites.operations.logs import Log, printable
from netfleet.sites.planning.certificates import Identity, pem_of
from netfleet.sites.planning.folders import MODEL_FILE, RUN_FOLDER, Site
from netfleet.sites.planning.rollbacks import read_rollbacks
from netfleet.sites.policy.peers import Peers, SitePeers
from netfleet.sites.policy.rules import NO_TERMS, Terms, enforce
from netfleet.sites.relay.client import RelayClient
from netfleet.sites.runtime.alarms import Alarms
from netfleet.sites.runtime.budget import last_round, site_budget
from netfleet.sites.runtime.data_check import (
    check_same_rows,
    check_site_data,
    rows_digest,
    site_problem,
    warnings_about,
)
from netfleet.sites.runtime.exchange import SiteExchange, SiteSession, Waiting, check_links
from netfleet.sites.runtime.facts import Facts, check_same_facts, compare_facts, facts_message, shortened, write_facts
from netfleet.sites.runtime.join_leave import join, leave, model_message, stay
from netfleet.sites.runtime.link_keys import LinkKeys
from netfleet.sites.runtime.membership import Membership
from netfleet.sites.runtime.models import ModelWriter, is_private
from netfleet.sites.runtime.neighbourhood import SiteHost, why_fixed
from netfleet.sites.runtime.receipts import PrivacyState, SiteReceipts
from netfleet.sites.runtime.recorder import AskedToLeave, OwnLoopRecorder, SiteRecorder
from netfleet.sites.runtime.rollback import check_complete, check_rejoined
from netfleet.sites.runtime.site_noise import Agreement, SiteNoise, sent_model
from netfleet.sites.runtime.status_builder import StatusBuilder
from netfleet.sites.runtime.step_record import StepRecord
from netfleet.track.following import NO_TRACKING, Tracking


@dataclass(frozen=True)
class OwnLoop:
    """A training loop from outside, as a site's runner sees it; its parts are called in the training's thread."""

    problem: Problem
    algorithm: Algorithm  # the plan's method with the loop's step sizes
    around: Callable[[Recorder], Recorder]  # a recorder that calls the site's own when there is something to save
    facts: Facts
    model: Callable[[Snapshot], Mapping[str, Tensor]]  # the model by its parameters' names
    measured: Callable[[], Mapping[str, float]]  # what the loop knows of its model, such as "loss"


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
        terms: Terms = NO_TERMS,
        peers: Peers | None = None,
        tracking: Tracking = NO_TRACKING,
    ) -> None:
        """The default transport is gRPC over mutual TLS with this identity, and with peers from the folder."""
        check_complete(folder)
        self._tracking = tracking
        site = replace(site, rollbacks=read_rollbacks(folder).rollbacks)  # they may be others than when it was read
        self._terms, in_force = terms, terms.in_force
        self.folder, self.site, self.experiment, self.log = folder, site, experiment, log
        inbound = Inbound(site.address, log)
        if transport is None:
            peers = peers or SitePeers(folder, identity.ca, identity.certificate, log, in_force)
            relay = RelayClient(site.relay, identity, registers=True) if site.relay else None
            transport = GrpcTransport(identity, site.listen, peers, inbound, relay)
        self._linger, self._transport, self._peers, self._identity = linger, transport, peers, identity
        (self._run_config,) = experiment.runs()
        self._account: SiteAccount | None = None  # where gradients are private
        self._spending: Spending | None = None
        self._keys: LinkKeys | None = None  # where links have noise
        self._budget = site_budget(experiment.privacy, in_force.policy.privacy)
        self._rows = ""  # digest of the site's rows
        self.algorithm = make_algorithm(self._run_config.config["algorithm"])
        fixed = why_fixed(self.algorithm)
        if fixed is not None and site.patience:
            raise fixed
        self.receipts = SiteReceipts(folder, site, identity, log, self._privacy_state, self._check_signer)
        told = self.receipts.note_change, (lambda name: None) if peers is None else peers.why_evicted
        self._members = Membership(folder, site, experiment.rounds, Outbox(), log.refused, fixed, in_force, *told)
        self._alarms = Alarms(folder, site, log, self._members.waits)
        if experiment.problem["kind"] == OWN_LOOP:
            self._members.remedy = NO_WAY_BACK
        counted = log.refusals.total, lambda: 0 if peers is None else peers.revocations
        private = is_private(experiment)
        self._models = ModelWriter(folder, site, experiment, scores=in_force.policy.show.scores_in_model)
        self.status = StatusBuilder(
            self._members,
            self.algorithm,
            identity.expires,
            *counted,
            in_force,
            private,
            self._alarms,
            lambda: inbound.unable,
        )

    def run(self, display: Display, rejoin: bool = False) -> History:
        """Train to the end, or until the site leaves, and return its own History."""
        with ExitStack() as stack:
            session, history = self.train(stack, display, rejoin)
            session.loop.wait(self.stay(session))
            if words := divergence(history.records, self.algorithm):
                raise DivergedError(words)
            return history

    def train(
        self, stack: ExitStack, display: Display, rejoin: bool = False, own: OwnLoop | None = None
    ) -> tuple[SiteSession, History]:
        """Train, and write the model; the site answers its neighbours until the stack is closed."""
        if not rejoin:
            check_rejoined(self.folder)
        self.receipts.open()
        stack.push(self._close_record)
        history, start = self._open()
        problem, algorithm = (self._problem(), self.algorithm) if own is None else (own.problem, own.algorithm)
        self.check_data(problem)
        self._check_machine(problem)
        problem = self._private(problem, start is not None and not rejoin)
        if rejoin:
            last_round(problem, self._budget, self.experiment.rounds, first=0)  # raises before anybody hears of it
        session, connections = self._connect(stack)
        loop, members = session.loop, self._members
        noise = self._noise(session, problem, display, start is not None and not rejoin)
        exchange = SiteExchange(session, display)
        parts = members.neighbourhood, algorithm, exchange, members.outbox, noise, self._alarms.norms
        host = SiteHost(problem, *parts)
        if rejoin:
            members.set_joining(True)
            loop.wait(self._serve(connections))  # neighbours that agree see that this site is there
            join(session, host, algorithm, history.hash)
            history, start = self._open()
            if self._account is not None:
                self._account.begin(history.resumed, self.site.planned)
        first = self._resume(host, algorithm, history, start)
        if rejoin:
            members.set_joining(False)
        elif own is None:
            loop.wait(self._serve(connections))
        else:
            self._serve_and_compare(session, connections, own.facts, first is None, display)
        self.log.event("started", round=history.resumed, rounds=members.rounds, listen=self.site.listen)
        with self._tracking.of(history) as follow:
            history.final = self._train(session, host, history, first, display, own, follow)
            if own is None and (words := divergence(history.records, algorithm)):
                history.mark_diverged(words, durable=False)
        return session, history

    def note_metrics(self, address: str) -> None:
        """Record that the site's metrics can be read at an address."""
        self.receipts.open()
        self.receipts.note_metrics(address)

    async def stay(self, session: SiteSession) -> None:
        """After the training: answer until the neighbours have what they need."""
        if self._members.left is not None:
            await leave(session, self._members.left, self._linger)
        else:
            await stay(session, self._linger)

    def _open(self) -> tuple[History, Start | None]:
        return open_run(self._run_config, self.folder / RUN_FOLDER, True, SingleHost())

    def _problem(self) -> Problem:
        return site_problem(self.site, self.experiment)

    def _private(self, problem: Problem, resumes: bool) -> Problem:
        """The problem as `[privacy]` wants it; a training that does not resume draws anew."""
        privacy = self.experiment.privacy
        if privacy is None or not is_private(self.experiment):
            return problem
        queries = queries_after(self.algorithm, self.experiment.rounds, problem.seed)
        back = self.site.rollbacks
        self._account = SiteAccount(self.folder, queries, resumes, self._rows, back.key, back.to)
        made = make_private(problem, privacy, queries, self._account)
        self._spending = made.spending
        return made

    def check_data(self, problem: Problem) -> None:
        """Raise if contract or policy forbid to train with the site's data; nothing has been sent by then."""
        findings = check_site_data(self.site, self.experiment, problem, self._terms)
        enforce(self._terms.in_force, findings)
        if isinstance(problem, ModuleProblem):
            self._note_rows(problem)

    def _note_rows(self, problem: ModuleProblem) -> None:
        """Compare the rows with those of the last start, and say what is odd about them."""
        facts, number = data_facts(problem, self.site.number), self.site.number
        assert facts is not None
        self._rows, accepted = rows_digest(problem, number), self._terms.data_changed
        changed = check_same_rows(self.folder / RUN_FOLDER, self._rows, facts.rows, accepted)
        for why in [*([] if changed is None else [changed]), *warnings_about(facts, problem.batch)]:
            self.log.event("data", why=why)

    def _check_machine(self, problem: Problem) -> None:
        """The quick part of `netfleet doctor`: what would end the training later is in the log at its start."""
        neighbours = [contact.neighbour for contact in self._members.contacts.values()]
        about = self.folder, self.site, neighbours, self._terms.in_force, self.experiment, self._identity
        for finding in quick_findings(OpenFolder(*about, None), self.algorithm, size_of(problem)):
            self.log.event("doctor", level=finding.level, why=finding)

    def _noise(self, session: SiteSession, problem: Problem, display: Display, resumes: bool) -> SiteNoise | None:
        privacy, members = self.experiment.privacy, self._members
        if privacy is None or privacy.link_noise is None:
            return None
        check_buffers(problem)
        self._keys = LinkKeys(self.folder / RUN_FOLDER, self.site.run, self.site.name, resumes, self.site.rollbacks.key)
        agree = Agreement(session, self._keys, Waiting(members, self.log, display))
        return SiteNoise(members.neighbourhood, privacy, self.experiment.rounds, agree)

    def _connect(self, stack: ExitStack) -> tuple[SiteSession, AsyncExitStack]:
        loop, connections = stack.enter_context(LoopThread()), AsyncExitStack()
        stack.enter_context(signs_of_life(self.folder, loop, self.status.status))
        stack.callback(lambda: loop.wait(connections.aclose()))
        connections.push_async_callback(self._transport.close)
        client = Client(self.site, self._transport, self.log.refused, self.receipts)
        return SiteSession(self._members, client, self.receipts, loop, self.log, self._alarms), connections

    def _close_record(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        members = self._members
        ended = "finished" if members.finished else "left" if members.left is not None else "stopped"
        self.receipts.close(printable(str(error)) if isinstance(error, NetfleetError) else ended)

    def _resume(self, host: SiteHost, algorithm: Algorithm, history: History, start: Start | None) -> Snapshot | None:
        """Restore messages and links before neighbours may ask; the checkpoint is read once."""
        try:
            first = None if start is None else start(algorithm.State, host.problem.device, host.problem.workers)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; {self._members.remedy}") from None
        if first is not None:
            host.load_network_state(first.network)
        self._members.start(history.resumed)
        check_links(self._members, history.resumed)  # a site that all neighbours have dropped has nobody to serve
        return first

    async def _serve(self, connections: AsyncExitStack, facts: Facts | None = None) -> None:
        members = self._members
        answers = (self._model_message, self._status_for)
        told = None if facts is None else facts_message(facts)
        answering = self.site, members.outbox, members, self.log.refused, self.receipts, *answers
        key = None if self._keys is None else self._key_for
        checks = Answerer(self.site, self._transport, "node", lambda: members.outbox.t)
        server = SiteServer(*answering, facts=told, peers=self._peers, key=key, checks=checks)
        await connections.enter_async_context(self._transport.serve(server))

    def _model_message(self) -> Message:
        """What a neighbour that joins gets; with noise on links, what it could have been sent already."""
        if not self._terms.in_force.policy.show.model_to_joining:
            raise FrameError("this site's policy does not give its model away (show.model_to_joining)")
        found = model_message(self.status.snapshot)
        return found if self._keys is None else sent_model(self._members.outbox, found)

    def _key_for(self, j: int) -> Message:
        assert self._keys is not None
        return self._keys.statement(j, self._members.first_round(j)).message()

    def _status_for(self, name: str) -> bytes:
        """The status as JSON for a name, once it is on record that it leaves."""
        answer = self.status.status_for(name)
        self.receipts.note_status(name, answer.measured())
        return answer.to_json().encode()

    def _privacy_state(self) -> PrivacyState:
        """For the record: what was spent so far, and the policy in force."""
        spent = None if self._spending is None else self._spending.epsilon(max(self._members.outbox.t, 0))
        return PrivacyState(spent, self._terms.in_force.digest or None)

    def _check_signer(self, name: str, certificate: bytes) -> None:
        """A receipt or a message counts only with a certificate (DER) that the neighbour could connect with."""
        contact = self._members.find_neighbour(name)
        if self._peers is not None and contact is not None:
            self._peers.check(pem_of(certificate), contact.neighbour)

    def _serve_and_compare(
        self, session: SiteSession, connections: AsyncExitStack, facts: Facts, fresh: bool, display: Display
    ) -> None:
        """Begin to answer; a site that starts from scratch then compares its facts with its neighbours'."""
        known = shortened(facts) if fresh else check_same_facts(self.folder / RUN_FOLDER, shortened(facts))
        session.loop.wait(self._serve(connections, known))
        if fresh:
            waiting = Waiting(self._members, self.log, display)
            with waiting:
                compare_facts(session, known, waiting.report)
            write_facts(self.folder / RUN_FOLDER, known)

    def _train(
        self,
        session: SiteSession,
        host: SiteHost,
        history: History,
        first: Snapshot | None,
        display: Display,
        own: OwnLoop | None,
        follow: Callable[[], None],
    ) -> Snapshot:
        rounds, start = self.experiment.rounds, None if first is None else lambda *_: first
        algorithm = self.algorithm if own is None else own.algorithm
        recorder = self._recorder(session, host.problem, history, algorithm, display, own, follow)
        job = Job(host.problem, host.network, algorithm, rounds, recorder, start, steps=self._steps())
        display.begin(self.site.name, history.resumed, rounds)
        try:
            with one_intra_op_thread() if own is None else nullcontext():  # a loop has threads of its own
                final = train(host, job)
            self._write_model(host.problem, final, history, own)
            self._members.finish()
            self.log.event("finished", round=final.t, model=self.folder / MODEL_FILE)
        except AskedToLeave as asked:
            final = asked.snapshot
            self._write_model(host.problem, final, history, own)
            self._members.leave(final.t)
            self.receipts.note_change("left", self.site.name, final.t)
            self.log.event("leaving", round=final.t, model=self.folder / MODEL_FILE)
        finally:
            display.end()
        return final

    def _steps(self) -> Callable[[Sequence[int]], ClockSteps] | None:
        """How many local steps fit into a round, where its time is limited."""
        box = self.experiment.time_box
        if box is None:
            return None
        K = check_time_box(self.algorithm, box, self.site.workers, by_clock=True)
        return lambda workers: ClockSteps(box.seconds, box.least, K, StepRecord(self.folder / RUN_FOLDER))

    def _recorder(
        self,
        session: SiteSession,
        problem: Problem,
        history: History,
        algorithm: Algorithm,
        display: Display,
        own: OwnLoop | None,
        follow: Callable[[], None],
    ) -> Recorder:
        settings = replace(self.experiment, checkpoint_every=1)
        last = last_round(problem, self._budget, settings.rounds, history.resumed)
        if last < settings.rounds:
            self.log.event("budget", round=last, why="the privacy budget allows no further round")
        parts = session, self.status, self._models, last, history, algorithm, settings, display, None, follow
        return SiteRecorder(*parts) if own is None else own.around(OwnLoopRecorder(own.measured, *parts))

    def _write_model(self, problem: Problem, final: Snapshot, history: History, own: OwnLoop | None) -> None:
        if own is None:
            self._models.write_last(problem, final, history.records)
        else:
            self._models.write_tensors(own.model(final), final)
