"""Doctors ask and answer each other: over mutual TLS, at a site that trains, and with whatever somebody may send."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from netfleet.cli import main
from netfleet.errors import FrameError, TransportError
from netfleet.sites.doctor import site as site_doctor
from netfleet.sites.doctor.answering import NOT_YET, Answerer, DoctorServer
from netfleet.sites.doctor.asking import Link, ask, examine, speed
from netfleet.sites.doctor.findings import Finding, Report
from netfleet.sites.doctor.links import link_findings, link_result
from netfleet.sites.doctor.local import MACHINE, open_folder
from netfleet.sites.doctor.probe import Diagnosis
from netfleet.sites.doctor.questions import MOST_BYTES, TEXT, Question, SiteAnswer, pack, random_frames, unpack
from netfleet.sites.doctor.site import Heard, Links, real_surroundings
from netfleet.sites.network import wire
from netfleet.sites.network.outbox import Outbox
from netfleet.sites.network.receipts import NoReceipts
from netfleet.sites.network.server import SiteServer
from netfleet.sites.network.transport import Caller, MemoryNetwork, MemoryTransport, Way
from netfleet.sites.network.wire import Frame, Kind
from netfleet.sites.planning.folders import Neighbour, load_site, read_site
from netfleet.sites.runtime.membership import Membership
from support.doctors import Hospital
from support.site_loops import LOOPS
from support.site_peers import PATH, Log
from support.site_processes import plan_sites


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """s0 - s1 - s2 in a row."""
    folder = tmp_path_factory.mktemp("plan")
    plan_sites(folder, PATH, 3)
    return folder / "plan"


def links_of(folder: Path) -> tuple[Links, Report]:
    """The links of a site's doctor, over gRPC and TLS."""
    report, heard, around = Report(folder.name), Heard(), real_surroundings(folder)
    opened = open_folder(folder, None, report, heard, MACHINE)
    return Links(opened, around.transport(opened), around.diagnose, heard, report), report


def test_doctors_of_all_sites_find_each_other_over_tls(plan: Path) -> None:
    """Each begins when it likes; none ends before the others are done with it."""
    doctors = [links_of(plan / f"s{i}") for i in range(3)]

    async def all_at_once() -> None:
        await asyncio.gather(*(links.examine(1 << 20, 60.0, True, lambda text: None) for links, _ in doctors))

    asyncio.run(all_at_once())
    reports = [report for _, report in doctors]
    assert [report.findings for report in reports] == [[], [], []]
    seen = [(link.name, link.to, link.back, link.state) for link in reports[1].links]
    assert seen == [("s0", "yes", "yes", "doctor"), ("s2", "yes", "yes", "doctor")]
    assert all(link.rate and link.rate > 0 for report in reports for link in report.links)


def test_a_doctor_alone_says_that_nobody_is_there(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(plan / "s0"), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    (finding,) = said["findings"]
    assert (finding["check"], finding["about"], finding["level"]) == ("refused", "s1", "error")
    assert said["neighbours"][0]["to"] == "no"
    assert main(["doctor", str(plan / "s0")]) == 1
    text = capsys.readouterr().out
    assert "error refused: s1 refuses the connection at 127.0.0.1:" in text
    assert "s0: 1 error, 0 warnings" in text


def node(plan: Path, network: MemoryNetwork, log: Log) -> SiteServer:
    """The server of s0 while it trains, in round 3."""
    site, _ = load_site(plan / "s0")
    outbox = Outbox()
    members = Membership(plan / "s0", site, 10, outbox, log.refused)
    members.start(3)
    checks = Answerer(site, network.transport("s0"), "node", lambda: outbox.t, seconds=0.0)
    parts = NoReceipts(), lambda: None, lambda name: b"{}"
    return SiteServer(site, outbox, members, log.refused, *parts, checks=checks)  # type: ignore[arg-type]


def test_a_site_that_trains_answers_in_place_of_its_doctor(plan: Path) -> None:
    async def scenario() -> None:
        network, log = MemoryNetwork(), Log()
        site = read_site(plan / "s1")
        (to, other) = site.neighbours
        async with network.transport("s0").serve(node(plan, network, log)):
            link = await examine(network.transport("s1"), site, to, 100)
            assert link.answer is not None
            assert (link.answer.running, link.answer.round, link.answer.run) == ("node", 3, site.run)
            assert "does not serve" in link.answer.back  # s1 does not listen here
            with pytest.raises(TransportError, match="its certificate is good, but it is not a neighbour"):
                await ask(network.transport("stranger"), site, to, Question("1"))
            assert log.whys() == "its certificate is good, but it is not a neighbour"
            assert (await examine(network.transport("s1"), site, other, 100)).answer is None

    asyncio.run(scenario())


def test_a_doctor_answers_doctors_only(plan: Path) -> None:
    async def scenario() -> None:
        network, log, site = MemoryNetwork(), Log(), read_site(plan / "s1")
        server = DoctorServer(site.neighbours, Answerer(site, network.transport("s1"), "doctor"), None, log.refused)

        async def send(request: bytes) -> list[bytes]:
            async def read() -> bytes:
                return request

            return [data async for data in server.pull(Caller("s0", "memory"), read)]

        run = bytes.fromhex(site.run)
        with pytest.raises(FrameError, match=NOT_YET):
            await send(Frame(Kind.PULL, run, 0, 0).encode())
        with pytest.raises(FrameError, match=NOT_YET):
            await server.status(Caller("operator", "memory"))
        too_much = Frame(Kind.CHECK, run, 0, -1, total=MOST_BYTES + 1, body=pack(Question("1")))
        with pytest.raises(FrameError, match=f"at most {MOST_BYTES}"):
            await send(too_much.encode())
        with pytest.raises(FrameError, match="not a netfleet frame"):
            await send(b"x" * 200)
        assert len(log.refusals) == 2  # asking for messages is no attack: that neighbour has begun already

    asyncio.run(scenario())


def _refusal(plan: Path, request: bytes) -> Finding:
    """What s1 finds when s0 refuses this request."""
    site = read_site(plan / "s1")

    def take() -> None:
        frame = wire.decode(request)
        wire.check_origin(frame, frame.run, site.number)

    with pytest.raises(FrameError) as refused:
        take()
    link = Link(site.neighbours[0], failure=TransportError(f"refuses: {refused.value}"))
    (finding,) = link_findings(site, link, False, None)
    return finding


@pytest.mark.parametrize(
    ("said", "check"),
    [
        ("the relay r:1 cannot be reached: Connection refused", "relay"),
        ("the relay r:1 says: 's0' is not among the names in relay.toml", "relay"),
        ("the relay r:1 says: s1 is not connected to the relay", "absent"),
    ],
)
def test_a_relay_that_is_down_is_not_blamed_on_the_neighbour_behind_it(plan: Path, said: str, check: str) -> None:
    absent = Diagnosis("absent", "only dials out", "start it")
    link = Link(Neighbour("s1", 1, "", 0.5), failure=TransportError(f"cannot be reached ({said})"))
    (finding,) = link_findings(read_site(plan / "s0"), link, False, absent)
    assert finding.check == check
    assert (said in finding.what) == (check == "relay")


def test_other_software_and_other_plans_are_named(plan: Path) -> None:
    site = read_site(plan / "s1")
    request = Frame(Kind.CHECK, bytes.fromhex(site.run), site.number, -1).encode()
    later = request[:4] + bytes([wire.VERSION + 1]) + request[5:]
    assert _refusal(plan, later).check == "version"
    assert _refusal(plan, request[:5] + b"\xff" + request[6:]).check == "version"
    assert _refusal(plan, Frame(Kind.CHECK, bytes(32), site.number + 1, -1).encode()).check == "plan"


def test_a_site_with_a_loop_of_its_own(tmp_path: Path) -> None:
    """Its data, size and pace are not known here; its links are checked all the same."""
    plan_sites(tmp_path, LOOPS, 3)
    site = Hospital(tmp_path)
    report = site.examine()
    assert report.findings == []
    assert [(link.to, link.back) for link in report.links] == [("yes", "yes")] * 2
    assert "disk" not in {result.check for result in report.results}


@settings(max_examples=30)
@example(b"[" * TEXT)
@example(b"1" * 9999)
@example(b'{"version": 1, "back": false, "over": false}')
@given(st.binary(max_size=200) | st.text(max_size=50).map(str.encode))
def test_whatever_is_sent_is_refused(data: bytes) -> None:
    for cls in (Question, SiteAnswer):
        with pytest.raises(FrameError, match="netfleet doctor"):
            unpack(cls, data)


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN", "1e300", "1" + "0" * 400])
@pytest.mark.parametrize("key", ["time", "round"])
def test_numbers_are_finite_and_bounded(key: str, number: str) -> None:
    said = json.loads(pack(SiteAnswer("1", "ab", "node", 3, 1.0)))
    data = json.dumps({**said, key: "HERE"}).replace('"HERE"', number)
    with pytest.raises(FrameError, match=key):
        unpack(SiteAnswer, data.encode())


def test_to_say_whether_a_site_can_be_dialled_only_its_address_is_tried(plan: Path) -> None:
    class AddressOnly(MemoryTransport):
        async def ways(self, to: Neighbour, seconds: float) -> list[Way]:
            raise AssertionError("this also dials the relay")

    async def scenario() -> None:
        network, site = MemoryNetwork(), read_site(plan / "s1")
        answerer = Answerer(site, AddressOnly(network, "s1", b"", None), "doctor", seconds=0.0)
        request = Frame(Kind.CHECK, bytes.fromhex(site.run), 0, -1, body=pack(Question("1", back=True)))
        (frame,) = await answerer.answer(request, site.neighbours[0])
        answer = unpack(SiteAnswer, frame.body)
        assert (answer.dialled, answer.back) == (site.neighbours[0].address, "cannot be reached (it does not serve)")

    asyncio.run(scenario())


def test_a_doctor_stays_for_one_that_has_asked_just_now(plan: Path) -> None:
    async def scenario() -> None:
        network, site = MemoryNetwork(), read_site(plan / "s1")
        answerer = Answerer(site, network.transport("s1"), "doctor")
        (s0, _), run = site.neighbours, bytes.fromhex(site.run)

        async def ask_it(over: bool) -> None:
            await answerer.answer(Frame(Kind.CHECK, run, 0, -1, body=pack(Question("1", over=over))), s0)

        await answerer.until_over(["s0"], 0.0)  # it has never asked
        await ask_it(over=False)
        answerer.heard["s0"] += 1000.0
        staying = asyncio.ensure_future(answerer.until_over(["s0"], 0.0))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not staying.done()
        await ask_it(over=True)
        await asyncio.wait_for(staying, 60)

    asyncio.run(scenario())


def attempts_of(plan: Path, monkeypatch: pytest.MonkeyPatch, heard: list[float], wait: float, relay: str = "") -> int:
    """How often s0's doctor asks a neighbour that never answers; `heard` is when it has asked, at each attempt."""
    links, _ = links_of(plan / "s0")
    links._opened = links._opened._replace(site=replace(links._opened.site, relay=relay))
    links._in_touch = frozenset()
    attempts: list[Link] = []

    async def unreachable(transport: object, site: object, to: Neighbour, size: int) -> Link:
        attempts.append(Link(to, failure=TransportError("did not answer within 5 s")))
        if heard:
            links._answerer.heard[to.name] = time.monotonic() + heard[len(attempts) - 1]
        return attempts[-1]

    async def scenario() -> None:
        links._answerer, links._stop = Answerer(links._opened.site, links._transport, "doctor"), asyncio.Event()
        await links._examine(read_site(plan / "s0").neighbours[0], 100, wait, lambda text: None)

    monkeypatch.setattr(site_doctor, "examine", unreachable)
    monkeypatch.setattr(site_doctor, "ANSWER", 0.05)
    monkeypatch.setattr(site_doctor, "PAUSE", 0.0)
    asyncio.run(scenario())
    return len(attempts)


def test_a_neighbour_that_still_asks_is_waited_for(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is there, and cannot be reached yet: its last question counts, not its first."""
    assert attempts_of(plan, monkeypatch, [1000.0, 1000.0, -1000.0], 1000.0) == 3


def test_the_relay_is_tried_after_an_address_also_without_waiting(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert attempts_of(plan, monkeypatch, [], 0.0) == 1
    assert attempts_of(plan, monkeypatch, [], 0.0, relay="192.0.2.9:7500") > 1


def test_a_neighbour_with_which_the_site_trains_is_no_error(plan: Path) -> None:
    """It has dialled the site's process, which is not the doctor's."""
    site, blocked = read_site(plan / "s0"), Diagnosis("blocked", "does not answer", "open it")
    closed = Link(site.neighbours[0], failure=TransportError("did not answer within 5 s"))
    (finding,) = link_findings(site, closed, False, blocked, in_touch=True)
    assert (finding.level, finding.check) == ("warning", "blocked")
    assert link_result(closed, False, True).to == "by reverse"
    dials_out = closed._replace(neighbour=Neighbour("s1", 1, "", 0.5))
    assert list(link_findings(site, dials_out, False, None, in_touch=True)) == []
    refuses = closed._replace(failure=TransportError("refuses: it is not a neighbour"))
    (finding,) = link_findings(site, refuses, False, None, in_touch=True)
    assert finding.level == "error"
    assert link_result(refuses, False, True).to == "no"


def test_a_delay_that_varies_makes_no_link_of_many_gigabytes_a_second() -> None:
    assert speed(1_000_000, 0.06, 0.064) == pytest.approx(1_000_000 / 0.006)
    assert speed(1_000_000, 0.11, 0.01) == pytest.approx(1e7)


def test_texts_are_bounded_and_printable() -> None:
    answer = SiteAnswer("1\x1b[31m", "ab", "node", 3, 1.0, back="x" * 1000)
    found = unpack(SiteAnswer, pack(answer))
    assert found.version.isprintable()
    assert len(found.back) <= 300


@pytest.mark.parametrize("total", [0, 1, 1 << 20, (1 << 20) + 1])
def test_random_bytes_are_as_many_as_were_asked_for(total: int) -> None:
    frames = list(random_frames(bytes(32), 0, total))
    assert sum(len(frame.body) for frame in frames) == total
    assert [frame.offset for frame in frames] == list(range(0, total, 1 << 20))
