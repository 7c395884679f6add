"""For whom all wait: what answers say of it, passed on from neighbour to neighbour, whoever answers."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netfleet.engines.host import Tag
from netfleet.errors import FrameError, TransportError
from netfleet.sites.network import server
from netfleet.sites.network.client import Client, Wanted
from netfleet.sites.network.outbox import Outbox
from netfleet.sites.network.receipts import NoReceipts
from netfleet.sites.network.server import SiteServer
from netfleet.sites.network.transport import Contact, MemoryNetwork
from netfleet.sites.network.wait_cause import LINKS, LONGEST, STATES, Cause, State, pack_cause, unpack_cause
from netfleet.sites.network.wire import SITES, Expected, Kind
from netfleet.sites.planning.folders import Neighbour, load_site
from netfleet.sites.runtime.membership import Membership
from netfleet.sites.runtime.waits import Waits, cause_of
from support.site_peers import MESSAGE, PATH, WORDS, Log, T, run
from support.site_processes import plan_sites


@given(st.integers(0, SITES - 1), st.sampled_from(STATES), st.integers(0, LONGEST), st.integers(0, LINKS))
def test_a_cause_comes_back_as_it_was(site: int, state: State, seconds: int, links: int) -> None:
    cause = Cause(site, state, seconds, links)
    assert unpack_cause(pack_cause(cause)) == cause


@given(st.binary(max_size=20))
def test_nothing_else_comes_out_of_hostile_bytes(body: bytes) -> None:
    with contextlib.suppress(FrameError):
        cause = unpack_cause(body)
        assert cause is None or (cause.site < SITES and 0 <= cause.seconds <= LONGEST and 0 <= cause.links <= LINKS)


def test_a_wait_that_is_too_long_or_too_far_is_bounded() -> None:
    assert unpack_cause(pack_cause(Cause(1, "silent", 1e30, 1000))) == Cause(1, "silent", LONGEST, LINKS)
    assert unpack_cause(b"") is None  # of an earlier version


def contact(number: int, **known: object) -> Contact:
    made = Contact(Neighbour(f"s{number}", number, "127.0.0.1:1", 0.5), asked=100.0, last_heard=150.0)
    for name, value in known.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, Cause(1, "computing", 60.0, 1)),  # it has not answered yet, or sends
        ({"silent": True}, Cause(1, "silent", 10.0, 1)),
        ({"silent": True, "last_heard": None}, Cause(1, "silent", 60.0, 1)),
        ({"cause": Cause(1, "computing", 3.0, 0)}, Cause(1, "computing", 13.0, 1)),  # it computes
        ({"cause": Cause(1, "holding", 3.0, 0)}, Cause(1, "holding", 13.0, 1)),
        ({"cause": Cause(7, "silent", 30.0, 2)}, Cause(7, "silent", 40.0, 3)),
        (
            {"cause": Cause(7, "silent", 30.0, LINKS)},
            Cause(1, "computing", 60.0, 1),
        ),  # old news does not go round for ever
        ({"cause": Cause(0, "computing", 3.0, 1)}, Cause(1, "computing", 60.0, 1)),  # an old answer: it names this site
        ({"cause": Cause(0, "silent", 3.0, 1)}, Cause(0, "silent", 13.0, 2)),  # it cannot reach this site
    ],
)
def test_the_cause_of_the_wait_for_a_neighbour(known: dict[str, object], expected: Cause) -> None:
    assert cause_of(contact(1, **known), own=0, now=160.0) == expected


def test_a_silent_site_counts_more_than_one_that_computes_for_longer() -> None:
    now = time.monotonic()
    known = {1: contact(1, asked=now - 5000), 2: contact(2, asked=now - 5, silent=True, last_heard=now - 9)}
    waits = Waits(0, known)
    assert waits.cause()[:2] == (0, "computing")  # it has asked, and does not wait yet
    waits.begin()
    assert waits.cause()[:2] == (2, "silent")
    assert waits.seconds is not None
    known[2].asked = None  # that message has arrived
    assert waits.cause()[:2] == (1, "computing")
    waits.end()
    assert waits.cause()[:2] == (0, "computing")
    with waits.holding():  # after an alarm
        assert waits.holds
        assert waits.cause()[:2] == (0, "holding")
    assert not waits.holds
    assert waits.seconds is None


def test_a_site_learns_from_its_neighbour_for_whom_that_one_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """s0 waits for s1, which waits for s2, which does not serve."""
    plan_sites(tmp_path, PATH, 3)
    monkeypatch.setattr(server, "HOLD", 0.01)
    network = MemoryNetwork()

    async def scenario() -> None:
        found: list[Membership] = []
        for name in ("s0", "s1"):
            site, _ = load_site(tmp_path / "plan" / name)
            outbox, log = Outbox(), Log()
            members = Membership(tmp_path / "plan" / name, site, 10, outbox, log.refused)
            members.start(T)
            found.append(members)
        first, second = found
        second.outbox.post(Tag(T - 1, 0), second.outbox.copy(WORDS, MESSAGE))
        answers = (NoReceipts(), lambda: None, lambda name: b"{}")
        s1 = SiteServer(second.site, second.outbox, second, Log().refused, *answers)  # type: ignore[arg-type]
        async with network.transport("s1").serve(s1):
            await ask(second, network, "s1", 2)
            await ask(first, network, "s0", 1)
        assert first.cause()[:2] == (2, "silent")
        assert first.cause().links == 2
        assert first.contacts[1].cause is not None

    run(scenario())


async def ask(members: Membership, network: MemoryNetwork, name: str, j: int) -> None:
    """Ask a neighbour once for a message that is not there, and go on waiting."""
    members.waits.begin()
    members.contacts[j].asked = time.monotonic()
    client = Client(members.site, network.transport(name), Log().refused, NoReceipts())
    wanted = Wanted(Expected(members.site.run_id, j, T + 1, 0, WORDS, 28), memoryview(bytearray(28)))
    try:
        await client._attempt(members.contacts[j], Kind.PULL, wanted, members.news())
    except TransportError as error:
        client.note_failure(members.contacts[j], error)
