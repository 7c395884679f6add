"""`netfleet doctor SITE`: a site's own checks, then its links, in both directions.

Before round 1 nobody serves. So the doctor serves the site's port itself, for other doctors only, and waits for those
of the neighbours if it is asked to. If the site trains already, its process answers in the doctor's place.
"""

import asyncio
import math
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from rich.filesize import decimal

import netfleet
from netfleet.errors import TransportError
from netfleet.files import locked
from netfleet.sites.doctor.answering import Answerer, DoctorServer
from netfleet.sites.doctor.asking import ANSWER, Link, ask, examine
from netfleet.sites.doctor.findings import Report, sort_findings
from netfleet.sites.doctor.links import is_refusal, link_findings, link_result
from netfleet.sites.doctor.local import MACHINE, Machine, OpenFolder, check_folder, check_port, open_folder
from netfleet.sites.doctor.pace import Pace
from netfleet.sites.doctor.probe import Diagnose, Diagnosis, probe_with
from netfleet.sites.doctor.questions import Question
from netfleet.sites.doctor.resources import Computed, check_machine, check_time
from netfleet.sites.network.transport import Refused, Transport
from netfleet.sites.operations.health import in_touch
from netfleet.sites.operations.logs import sender
from netfleet.sites.operations.tls_refusals import TlsRefusals, trace_handshakes
from netfleet.sites.planning.folders import Neighbour

T = TypeVar("T")
#: Seconds between two attempts while a neighbour is waited for; and for which a doctor that is done stays for another
#: since that one's last question.
PAUSE, STAY = 1.0, 15.0
#: Seconds since the last question of a neighbour that cannot be reached, after which it is waited for no more: enough
#: for some attempts, each of which may take as long as an answer may.
ENOUGH = 3 * (ANSWER + PAUSE)


class Heard:
    """The log of a doctor: what it refused."""

    def __init__(self) -> None:
        self.refusals: dict[tuple[str, str], int] = {}

    def event(self, what: str, *, level: str = "info", **fields: object) -> None:
        """Changes of pins and lists are no findings."""

    def refused(self, who: str, why: str) -> None:
        pair = sender(who), why
        if len(self.refusals) < 100 or pair in self.refusals:
            self.refusals[pair] = self.refusals.get(pair, 0) + 1


class Surroundings(NamedTuple):
    """What the doctor works with; tests give doubles."""

    transport: Callable[[OpenFolder], Transport]
    diagnose: Diagnose
    machine: Machine = MACHINE
    #: Within the context, callers that TLS rejects are reported.
    watching: Callable[[Refused], AbstractContextManager[object]] = lambda refused: nullcontext()


def real_surroundings(folder: Path, watch: bool = False) -> Surroundings:
    """gRPC over mutual TLS, sockets and this machine; `watch`: this process may redirect its standard error to find out
    who is rejected by TLS, and has not imported gRPC yet.
    """

    def transport(opened: OpenFolder) -> Transport:
        from netfleet.sites.network.grpc_transport import GrpcTransport
        from netfleet.sites.relay.client import RelayClient

        assert opened.identity is not None
        site, identity = opened.site, opened.identity
        relay = RelayClient(site.relay, identity, registers=True) if site.relay else None
        return GrpcTransport(identity, site.listen, opened.peers, relay=relay)

    watching = _watching if watch and trace_handshakes() else lambda refused: nullcontext()
    return Surroundings(transport, probe_with(folder), watching=watching)


@contextmanager
def _watching(refused: Refused) -> Iterator[None]:
    def note(who: str, why: str) -> None:
        if not why.startswith("answers with"):  # those that this site dials are examined anyway
            refused(who, why)

    with TlsRefusals(to_the_end=True) as watch:
        watch.listen(note)
        yield


def examine_site(
    folder: Path,
    policy: Path | None = None,
    wait: float = 0.0,
    around: Surroundings | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Check a site; neighbours that do not answer are waited for, at most `wait` seconds in all."""
    around, heard = around or real_surroundings(folder), Heard()
    report = Report(folder.resolve().name)
    with locked(folder) as mine:
        opened = open_folder(folder, policy, report, heard, around.machine)
        report.subject = opened.site.name
        check_folder(opened, report, around.machine, runs=not mine)
        computed = check_machine(opened, report, around.machine)
        if opened.identity is None or opened.peers is None:
            report.note("neighbours", "not asked: without valid certificates nobody would answer")
        else:
            serves = mine and check_port(opened, report)
            if not mine:
                place = opened.site.listen or "none: this site only dials out"
                report.note("port", f"{place}; its process runs")
            links = Links(opened, around.transport(opened), around.diagnose, heard, report)
            with around.watching(heard.refused):
                asyncio.run(
                    links.examine(computed.message, wait, serves, say, frozenset() if mine else in_touch(folder))
                )
    check_time(opened, _with_exchange(computed, report), report, around.machine)
    for (who, why), times in heard.refusals.items():
        report.add("warning", "caller", f"was refused {times} times: {why.replace(';', ',')}", "see who it is", who)
    report.findings = sort_findings(report.findings)
    return report


def _with_exchange(computed: Computed, report: Report) -> Pace | None:
    """The pace with the time that the slowest neighbour's message takes."""
    pace, size = computed.pace, computed.message
    times = [each.delay + size / each.rate for each in report.links if each.delay is not None and each.rate is not None]
    if not size or not times:
        return pace
    seconds = max(times)
    report.note("exchange", f"{decimal(size)} from each neighbour in each round: {seconds:.2g} s")
    return pace if pace is None or pace.known else pace._replace(seconds=pace.seconds + seconds)


class Links:
    """A site's links while its doctor runs."""

    def __init__(
        self, opened: OpenFolder, transport: Transport, diagnose: Diagnose, heard: Heard, report: Report
    ) -> None:
        self._opened, self._transport, self._diagnose = opened, transport, diagnose
        self._heard, self._report = heard, report

    async def examine(
        self,
        size: int,
        wait: float,
        serves: bool,
        say: Callable[[str], None],
        in_touch: frozenset[str] = frozenset(),
    ) -> None:
        """Examine all neighbours at once; `size` are the bytes of a message, `in_touch` the neighbours with which the
        site's own process trains.
        """
        site, neighbours = self._opened.site, self._opened.neighbours
        self._in_touch = in_touch
        self._answerer, self._stop = Answerer(site, self._transport, "doctor"), asyncio.Event()
        server = DoctorServer(neighbours, self._answerer, self._opened.peers, self._heard.refused)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._transport.close)
            if serves:
                with self._report.catching("port"):
                    await stack.enter_async_context(self._transport.serve(server))
                    if site.listen:
                        self._report.note("port", f"listens at {site.listen}")
            if wait:
                names = ", ".join(each.name for each in neighbours)
                say(f"{site.name}: asks {names}, and waits for them up to {wait:.0f} s; Ctrl-C ends the wait")
                with suppress(RuntimeError, ValueError):  # not the main thread, which has the signals
                    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._stop.set)
            served = serves or not self._report.has("port")
            links = await _all(self._examine(each, size, wait, say) for each in neighbours)
            for link, diagnosis in zip(links, await _all(map(self._reason, links)), strict=True):
                heard = link.neighbour.name in self._answerer.heard
                trains = link.neighbour.name in in_touch
                self._report.findings += link_findings(site, link, heard, diagnosis, served, trains)
                self._report.links.append(link_result(link, heard, trains))
            if serves:
                await self._part(links)

    async def _examine(self, to: Neighbour, size: int, wait: float, say: Callable[[str], None]) -> Link:
        """Examine a neighbour, again and again until it answers: it may not have begun yet."""
        by_relay = self._opened.site.relay and to.address  # it is tried after the address has not answered
        wait_here = 0.0 if to.name in self._in_touch else wait
        until = time.monotonic() + (max(wait_here, ANSWER + PAUSE) if by_relay else wait_here)
        while True:
            link = await examine(self._transport, self._opened.site, to, size)
            last = min(until, self._answerer.heard.get(to.name, math.inf) + ENOUGH)
            if link.answer is not None or self._stop.is_set() or time.monotonic() >= last:
                if wait:
                    say(f"{to.name}: {'no answer' if link.answer is None else 'answers'}")
                return link
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), PAUSE)

    async def _reason(self, link: Link) -> Diagnosis | None:
        """Why a neighbour did not answer; one that refuses has said it."""
        if link.answer is not None and link.dialled is not None and link.dialled.failure:
            return await self._diagnose(link.neighbour)
        if link.failure is None or link.answer is not None or is_refusal(link.failure):
            return None
        return await self._diagnose(link.neighbour)

    async def _part(self, links: Sequence[Link]) -> None:
        """Tell the other doctors that this one is done, and stay until they are, too."""
        there = [link.neighbour for link in links if link.answer is not None and link.answer.running == "doctor"]
        over = Question(netfleet.__version__, over=True)

        async def tell(to: Neighbour) -> None:
            with suppress(TransportError):
                await ask(self._transport, self._opened.site, to, over)

        await _all(map(tell, there))
        if not self._stop.is_set():
            await self._answerer.until_over([each.name for each in there], STAY)


async def _all(work: Iterable[Awaitable[T]]) -> list[T]:
    return list(await asyncio.gather(*work))
