"""Everything that a site must refuse, over real TLS: it is refused, said once with who and why, and changes nothing."""

from __future__ import annotations

import ast
import asyncio
import io
import json
import re
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio
import pytest
import torch

import netfleet
from netfleet.algorithms.compression import pack
from netfleet.algorithms.compression.codecs import TopK
from netfleet.engines.host import Tag, _content
from netfleet.errors import FrameError, TransportError
from netfleet.sites.network import client as site_client
from netfleet.sites.network import wire
from netfleet.sites.network.client import Client, Wanted
from netfleet.sites.network.grpc_service import LARGEST, PULL, STATUS
from netfleet.sites.network.grpc_transport import GrpcTransport
from netfleet.sites.network.outbox import Outbox
from netfleet.sites.network.rate_limit import BURST, MOST, RateLimit
from netfleet.sites.network.receipts import NoReceipts
from netfleet.sites.network.server import SiteServer
from netfleet.sites.network.transport import Caller, Contact
from netfleet.sites.network.wire import CHUNK, Expected, Frame, Kind, SiteNews
from netfleet.sites.operations.logs import Log
from netfleet.sites.planning.certificates import Identity, load_identity
from netfleet.sites.planning.folders import Plan, load_site
from netfleet.sites.runtime.join_leave import model_message
from netfleet.sites.runtime.membership import Membership
from support.site_processes import plan_sites
from support.site_settings import under_way

ROUNDS, T = 10, 3  # of the training, and where the sites are
TRIES = 3
PATH: dict[str, Any] = {
    "rounds": ROUNDS,
    "topology": {"kind": "path"},
    "problem": {"kind": "quadratics", "d": 7},
    "algorithms": [{"kind": "net-fleet", "K": 2, "eta": 0.05}],
}
DENIED, TOO_MUCH = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.RESOURCE_EXHAUSTED


class World(NamedTuple):
    """Sites s0 - s1 - s2 in a row; s0 does not know s2."""

    folder: Path
    plan: Plan

    @property
    def run(self) -> bytes:
        return self.plan.sites[0].run_id

    def identity(self, name: str) -> Identity:
        return load_identity(self.folder / name, name)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    return World(folder / "plan", plan_sites(folder, PATH, 3))


class Heard(NamedTuple):
    """A log, and what it said."""

    log: Log
    stream: io.StringIO

    def refusals(self) -> list[tuple[str, str]]:
        events = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        return [(event["who"], event["why"]) for event in events if event["event"] == "refused"]


def hear(site: str) -> Heard:
    stream = io.StringIO()
    return Heard(Log(site, stream, as_json=True), stream)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(60):
            await scenario

    asyncio.run(in_time())


async def until(happened: Callable[[], bool]) -> None:
    while not happened():
        await asyncio.sleep(0.01)


# ---- s0 serves ----

MESSAGE = torch.arange(28, dtype=torch.uint8)
WORDS = "float32[7]"


class House(NamedTuple):
    """s0, as its server has it."""

    world: World
    members: Membership
    server: SiteServer
    heard: Heard

    def state(self) -> Any:
        """All that a request could change."""
        members, neighbourhood = self.members, self.members.neighbourhood
        outbox = {tag: (found.words, bytes(found.data)) for tag, found in members.outbox._messages.items()}
        contacts = {j: (c.t, c.last_heard, c.waiting, c.sent, c.received) for j, c in members.contacts.items()}
        links = dict(neighbourhood.weights), dict(neighbourhood.lost), dict(neighbourhood.since)
        known = dict(members.known), set(members.done), set(members.informed), members.left, members.finished
        files = sorted(path.name for path in members.folder.iterdir())
        return outbox, members.outbox.t, contacts, links, known, files


@asynccontextmanager
async def at_home(world: World, limit: RateLimit | None = None) -> AsyncIterator[House]:
    """The real server of s0 with messages of rounds 2 and 3."""
    site, _ = load_site(world.folder / "s0")
    heard, outbox = hear("s0"), Outbox()
    members = Membership(world.folder / "s0", site, ROUNDS, outbox, heard.log.refused)
    for t in (T - 1, T):
        outbox.post(Tag(t, 0), outbox.copy(WORDS, MESSAGE + t))
    members.start(T)
    model, status = lambda: model_message(None), lambda name: b"{}"
    server = SiteServer(site, outbox, members, heard.log.refused, NoReceipts(), model, status, limit)
    async with GrpcTransport(world.identity("s0"), site.listen).serve(server):
        yield House(world, members, server, heard)


@asynccontextmanager
async def line(world: World, name: str) -> AsyncIterator[grpc.aio.Channel]:
    """A connection to s0 by someone who has a certificate and no manners."""
    identity, address = world.identity(name), world.plan.sites[0].address
    credentials = grpc.ssl_channel_credentials(identity.ca, identity.key, identity.certificate)
    options = [("grpc.ssl_target_name_override", "s0")]
    async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
        yield channel


async def refusal(channel: grpc.aio.Channel, request: bytes, method: str = PULL) -> grpc.StatusCode:
    """With what a request is turned down."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        async for _ in channel.unary_stream(method)(request):
            pass
    code: grpc.StatusCode = error.value.code()
    return code


async def good_neighbour(world: World) -> None:
    """s1 gets its message."""
    site, _ = load_site(world.folder / "s1")
    heard, into = hear("s1"), bytearray(28)
    transport = GrpcTransport(world.identity("s1"))
    client = Client(site, transport, heard.log.refused, NoReceipts())
    contact = Contact(next(each for each in site.neighbours if each.name == "s0"))
    wanted = Wanted(Expected(world.run, 0, T, 0, WORDS, 28), memoryview(into))
    assert (await client.pull(contact, wanted, [SiteNews(T)] * 3)).kind == Kind.CHUNK
    assert bytes(into) == bytes(MESSAGE + T)
    assert heard.refusals() == []
    await transport.close()


def asked(**changes: Any) -> Callable[[World], bytes]:
    """A request of s1, with something wrong about it."""

    def make(world: World) -> bytes:
        frame = Frame(Kind.PULL, world.run, 1, T, body=wire.pack_request([SiteNews(T)] * 3))
        return frame._replace(**changes).encode()

    return make


def damaged(damage: Callable[[bytes], bytes]) -> Callable[[World], bytes]:
    return lambda world: damage(asked()(world))


REQUESTS: dict[str, tuple[Callable[[World], bytes], grpc.StatusCode, str]] = {
    "another run": (asked(run=bytes(32)), DENIED, "a frame of run 000000000000, but this node's is .* different plans"),
    "another sender": (asked(sender=2), DENIED, "says it is from site 2, but came from site 1"),
    "an old round": (asked(t=T - 2), DENIED, "a request for round 1 while this site is in round 3"),
    "a round to come": (asked(t=T + 2), DENIED, "a request for round 5 while this site is in round 3"),
    "a round before all": (asked(t=-2), DENIED, "a frame of round -2"),
    "no request": (
        asked(kind=Kind.CHUNK, total=31),
        DENIED,
        "a request CHUNK where one of PULL, JOIN, MODEL, FACTS, KEY, RECEIPTS, CHECK was expected",
    ),
    "a key for noise": (asked(kind=Kind.KEY, t=0), DENIED, "this site adds no noise to its links"),
    "an answer": (asked(kind=Kind.DROPPED), DENIED, "a request DROPPED where"),
    "half a round": (asked(body=b"\0\0\0\1" + bytes(7)), DENIED, "a request of 11 bytes with news of 1 sites"),
    "half a number": (asked(body=b"\1"), DENIED, "a request of 1 bytes with news of 1 sites"),
    "too many rounds": (
        asked(body=struct.pack("!I", wire.SITES + 1) + bytes(9 * wire.SITES + 9)),
        DENIED,
        "a request of 589837 bytes with news of 65537 sites",
    ),
    "news that is no news": (
        asked(body=wire.pack_request([SiteNews(T)])[:-1] + b"\3"),
        DENIED,
        "a request that says of a site's alarm neither yes, no nor unknown",
    ),
    "half a certificate": (
        asked(body=wire.pack_request([SiteNews(T)], b"\1\0x")),
        DENIED,
        "a certificate or signature that is cut",
    ),
    "half a receipt": (
        asked(body=wire.pack_request([SiteNews(T)], bytes(2 + 40))),
        DENIED,
        "receipts that end in the middle",
    ),
    "a receipt for nothing": (
        asked(body=wire.pack_request([SiteNews(T)], bytes(2) + b"\7" + bytes(84) + bytes(2))),
        DENIED,
        "a receipt for the unknown thing 7",
    ),
    "a model of another round": (asked(kind=Kind.MODEL, t=T), DENIED, "a request MODEL for round 3; expected 0"),
    "facts of another round": (asked(kind=Kind.FACTS, t=T), DENIED, "a request FACTS for round 3; expected -1"),
    "nothing": (lambda world: b"", DENIED, "a frame of 0 bytes is truncated"),
    "truncated header": (damaged(lambda data: data[:50]), DENIED, "a frame of 50 bytes is truncated"),
    "truncated body": (damaged(lambda data: data[:-1]), DENIED, "30 bytes of body where its header says 31"),
    "corrupt": (damaged(lambda data: data[:-1] + b"x"), DENIED, "a corrupt frame: its checksum is wrong"),
    "another protocol": (
        damaged(lambda data: b"HTTP" + data[4:]),
        DENIED,
        "not a netfleet frame: it begins with b'HTTP'",
    ),
    "another version": (
        damaged(lambda data: data[:4] + b"\7" + data[5:]),
        DENIED,
        "of version 7, but this site supports 4",
    ),
    "another kind": (damaged(lambda data: data[:5] + b"\xff" + data[6:]), DENIED, "of the unknown kind 255"),
    "oversized": (damaged(lambda data: data + bytes(LARGEST)), TOO_MUCH, "an oversized one: more than"),
    "huge": (damaged(lambda data: data + bytes(20 * CHUNK)), TOO_MUCH, "an oversized one: more than"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", REQUESTS)
def test_bad_requests_of_a_neighbour(world: World, case: str) -> None:
    request, code, why = REQUESTS[case]

    async def scenario() -> None:
        async with at_home(world) as house, line(world, "s1") as channel:
            before = house.state()
            for _ in range(TRIES):
                assert await refusal(channel, request(world)) == code
            await until(lambda: house.heard.log.refusals.total() == TRIES)
            assert house.state() == before
            ((who, said),) = house.heard.refusals()
            assert who == "s1 (127.0.0.1)"
            assert re.search(why, said), said
            await good_neighbour(world)

    run(scenario())


@pytest.mark.parametrize(
    ("name", "method", "why"),
    [
        ("s2", PULL, "its certificate is good, but it is not a neighbour"),
        ("operator", PULL, "its certificate is good, but it is not a neighbour"),
        ("s2", STATUS, "asked for the status, but is neither operator nor neighbour"),
    ],
)
def test_valid_certificates_of_those_who_are_no_neighbours(world: World, name: str, method: str, why: str) -> None:
    async def scenario() -> None:
        async with at_home(world) as house, line(world, name) as channel:
            before = house.state()
            for _ in range(TRIES):
                assert await refusal(channel, asked()(world), method) == DENIED
            assert house.state() == before
            assert house.heard.refusals() == [(f"{name} (127.0.0.1)", why)]
            assert house.heard.log.refusals.total() == TRIES
            await good_neighbour(world)

    run(scenario())


@pytest.mark.parametrize(("name", "method"), [("s1", PULL), ("s1", STATUS), ("s2", PULL), ("operator", STATUS)])
def test_a_flood_one_after_the_other(world: World, name: str, method: str) -> None:
    """The same again and again, until the budget is used up; nobody else pays for it."""

    async def scenario() -> None:
        now = [0.0]
        async with at_home(world, RateLimit(clock=lambda: now[0])) as house, line(world, name) as channel:
            codes = []
            for _ in range(int(BURST) + 2 * TRIES):
                call = channel.unary_stream(method)(asked()(world))
                try:
                    async for _ in call:
                        pass
                except grpc.aio.AioRpcError as error:
                    codes.append(error.code())
            assert codes[-TRIES:] == [TOO_MUCH] * TRIES
            assert codes.count(TOO_MUCH) < 2 * TRIES + 1
            floods = [(who, why) for who, why in house.heard.refusals() if "a flood" in why]
            ((who, why),) = floods
            assert who == f"{name} (127.0.0.1)"
            assert "more than 50 requests or repeated MiB per second" in why
            now[0] = 10.0 if name == "s1" else 0.0
            await good_neighbour(world)

    run(scenario())


def test_a_flood_at_once_and_held_lines_that_are_let_go(world: World) -> None:
    async def scenario() -> None:
        async with at_home(world) as house:
            limit = house.server.limit
            async with line(world, "s1") as channel:
                ahead = asked(t=T + 1)(world)
                held = [channel.unary_stream(PULL)(ahead) for _ in range(MOST)]
                readers = [asyncio.ensure_future(anext(aiter(call))) for call in held]
                await until(lambda: under_way(limit, "s1") == MOST)
                for _ in range(TRIES):
                    assert await refusal(channel, asked()(world)) == TOO_MUCH
                assert house.heard.refusals() == [("s1 (127.0.0.1)", "a flood: more than 4 requests at a time")]
            await until(lambda: under_way(limit, "s1") == 0)  # it hung up
            await asyncio.gather(*readers, return_exceptions=True)
            await good_neighbour(world)

    run(scenario())


def test_strangers_cost_no_memory(world: World) -> None:
    async def scenario() -> None:
        async with at_home(world) as house:
            for name in ("s2", "operator", "s1", "s2"):
                async with line(world, name) as channel:
                    await refusal(channel, b"")
            assert set(house.server.limit._accounts) == {"", "operator", "s1"}

    run(scenario())


def test_calls_that_nobody_serves(world: World) -> None:
    async def scenario() -> None:
        async with at_home(world) as house, line(world, "s1") as channel:
            before = house.state()
            assert await refusal(channel, b"", "/netfleet.Peer/Other") == grpc.StatusCode.UNIMPLEMENTED
            assert house.state() == before
            await good_neighbour(world)

    run(scenario())


# ---- s1 answers ----

GOOD = torch.linspace(-1, 1, 7)
CONTENT = _content([pack(torch.zeros(1, 7))], [slice(0, 28)])
Answers = list[bytes]


def bytes_of(values: torch.Tensor) -> bytes:
    return values.numpy().tobytes()


def message(world: World, values: torch.Tensor = GOOD, words: str = CONTENT.words, **changes: Any) -> Answers:
    """The frames of a message of s1, with something wrong about it."""
    frames = wire.message(world.run, 1, T, 0, words, bytes_of(values))
    return [frame._replace(**changes).encode() for frame in frames]


def with_value(value: float) -> Callable[[World], Answers]:
    return lambda world: message(world, torch.cat([GOOD[:3], torch.tensor([value]), GOOD[4:]]))


def said(kind: Kind, **changes: Any) -> Callable[[World], Answers]:
    return lambda world: [Frame(kind, world.run, 1, T)._replace(**changes).encode()]


def chunked(*bodies: tuple[int, bytes]) -> Callable[[World], Answers]:
    """A message in chunks of one's own choice."""

    def make(world: World) -> Answers:
        (head, _) = wire.message(world.run, 1, T, 0, CONTENT.words, bytes(28))
        chunks = [head._replace(kind=Kind.CHUNK, offset=offset, body=body) for offset, body in bodies]
        return [frame.encode() for frame in (head, *chunks)]

    return make


ANSWERS: dict[str, tuple[Callable[[World], Answers], str]] = {
    "another run": (lambda world: message(world, run=bytes(32)), "a frame of run 000000000000, but this node's"),
    "another sender": (lambda world: message(world, sender=2), "says it is from site 2, but came from site 1"),
    "an old round": (lambda world: message(world, t=T - 1), "a message of round 2, exchange 0, where round 3"),
    "another exchange": (lambda world: message(world, call=1), "a message of round 3, exchange 1, where round 3"),
    "a wrong shape": (
        lambda world: message(world, GOOD[:6], "float32[6] in 24"),
        "a message of 24 bytes where 28 were expected",
    ),
    "a wrong description": (
        lambda world: message(world, words="float32[6] in 28"),
        r"'float32\[6\] in 28' where 'float32\[7\] in 28' was expected",
    ),
    "a wrong dtype": (
        lambda world: message(world, words="int32[7] in 28"),
        r"'int32\[7\] in 28' where 'float32\[7\] in 28' was expected",
    ),
    "a wide dtype": (
        lambda world: message(world, GOOD.double(), "float64[7] in 56"),
        "a message of 56 bytes where 28 were expected",
    ),
    "a long description": (lambda world: message(world, words="x" * 2000), "a description of 2000 bytes"),
    "NaN": (with_value(float("nan")), r"not finite \(NaN or infinity\)"),
    "infinity": (with_value(float("inf")), r"not finite \(NaN or infinity\)"),
    "minus infinity": (with_value(float("-inf")), r"not finite \(NaN or infinity\)"),
    "an oversized frame": (lambda world: [bytes(LARGEST + 1)], "an oversized frame: more than"),
    "a huge frame": (lambda world: [bytes(8 * CHUNK)], "an oversized frame: more than"),
    "an oversized message": (
        chunked((0, bytes(28)), (28, b"x")),
        "a frame of round 3 with bytes 28 to 29 of 28",
    ),
    "a truncated message": (lambda world: message(world)[:1], "a truncated message: the stream ended before"),
    "nothing": (lambda world: [], "a truncated message: the stream ended before"),
    "a truncated frame": (lambda world: [message(world)[0][:-1]], "bytes of body where its header says"),
    "half a header": (lambda world: [b"NTFL"], "a frame of 4 bytes is truncated"),
    "a corrupt frame": (
        lambda world: [message(world)[0], message(world)[1][:-1] + b"\xff"],
        "a corrupt frame: its checksum is wrong",
    ),
    "another protocol": (lambda world: [b"\x80\x04" + bytes(100)], r"begins with b'\\x80\\x04\\x00\\x00', not b'NTFL'"),
    "chunks out of order": (
        chunked((14, bytes(14)), (0, bytes(14))),
        "bytes 14 to 28 where those from 0 on were expected",
    ),
    "a chunk twice": (chunked((0, bytes(14)), (0, bytes(14))), "bytes 0 to 14 where those from 14 on were expected"),
    "a wait for a site beyond all numbers": (
        said(Kind.WAIT, t=T, body=b"\xff" * 10),
        "an answer WAIT for site 4294967295, state 255, .* too large",
    ),
    "a wait with other bytes": (said(Kind.WAIT, t=T, body=b"s9\n"), "an answer WAIT with 3 bytes; expected none or 10"),
    "chunks without bytes": (chunked((0, b"")), "bytes 0 to 0 where"),
    "no head": (lambda world: message(world)[1:], "a frame CHUNK where another was expected"),
    "a request": (said(Kind.PULL), "a message of 0 bytes where|a frame PULL where another was expected"),
    "gone, in another run": (said(Kind.DROPPED, run=bytes(32)), "a frame of run 000000000000"),
    "gone, says another": (said(Kind.LEFT, sender=2), "says it is from site 2"),
    "ages ahead": (
        said(Kind.WAIT, t=2**60),
        "says that it is in round 1152921504606846976, but has nothing for round 3",
    ),
}


class Rogue(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A neighbour's server that answers with what it is given, and counts."""

    def __init__(self, script: Callable[[int], Sequence[bytes]]) -> None:
        self.script, self.asked = script, 0

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        return grpc.unary_stream_rpc_method_handler(self.answer)

    async def answer(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        self.asked += 1
        for data in self.script(self.asked):
            yield data


@asynccontextmanager
async def asking(
    world: World, script: Callable[[int], Sequence[bytes]], patience: float = 0.0
) -> AsyncIterator[tuple[Rogue, Client, Contact, Heard]]:
    """s0's real client, and s1's certificate in the wrong hands."""
    identity, heard, rogue = world.identity("s1"), hear("s0"), Rogue(script)
    site, _ = load_site(world.folder / "s0")
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((rogue,))
    keys = [(identity.key, identity.certificate)]
    server.add_secure_port(world.plan.sites[1].address, grpc.ssl_server_credentials(keys, identity.ca, True))
    await server.start()
    transport = GrpcTransport(world.identity("s0"))
    client = Client(replace(site, patience=patience), transport, heard.log.refused, NoReceipts())
    try:
        yield rogue, client, Contact(site.neighbours[0]), heard
    finally:
        await transport.close()
        await server.stop(grace=0)


def want(world: World, into: torch.Tensor) -> Wanted:
    row = into.view(torch.uint8)
    return Wanted(
        Expected(world.run, 1, T, 0, CONTENT.words, 28), row.numpy().data.cast("B"), lambda: CONTENT.finite(row)
    )


@pytest.mark.parametrize("case", ANSWERS)
def test_bad_answers_of_a_neighbour(world: World, case: str) -> None:
    """Nothing of them gets out of `pull`, which goes on to ask; a good answer of the same neighbour is then taken."""
    make, why = ANSWERS[case]
    bad, good = make(world), message(world)

    async def scenario() -> None:
        script = lambda number: bad if number <= TRIES else good  # noqa: E731
        async with asking(world, script) as (rogue, client, contact, heard):
            into = torch.zeros(7)
            answer = await client.pull(contact, want(world, into))
            assert answer[:2] == (Kind.CHUNK, T)
            assert torch.equal(into, GOOD)
            assert rogue.asked == TRIES + 1
            ((who, said),) = heard.refusals()
            assert who == "s1"
            assert re.search(why, said), said
            assert heard.log.refusals.total() == TRIES
            assert (contact.t, contact.waiting) == (T, "")

    run(scenario())


@pytest.mark.parametrize(
    "case", ["another run", "an old round", "NaN", "an oversized frame", "a corrupt frame", "ages ahead"]
)
def test_who_has_nothing_but_bad_answers_is_as_good_as_silent(world: World, case: str) -> None:
    bad = ANSWERS[case][0](world)

    async def scenario() -> None:
        async with asking(world, lambda number: bad, patience=0.3) as (_, client, contact, heard):
            assert (await client.pull(contact, want(world, torch.zeros(7)))).kind == Kind.WAIT
            assert (contact.t, contact.last_heard) == (-1, None)
            assert len(heard.refusals()) == 1

    run(scenario())


def test_who_says_not_yet_is_waited_for(world: World) -> None:
    wait, good = said(Kind.WAIT)(world), message(world)

    async def scenario() -> None:
        script = lambda number: wait if number <= TRIES else good  # noqa: E731
        async with asking(world, script, patience=1e-3) as (rogue, client, contact, heard):
            assert (await client.pull(contact, want(world, torch.zeros(7)))).kind == Kind.CHUNK
            assert (rogue.asked, heard.refusals()) == (TRIES + 1, [])

    run(scenario())


# ---- no pickle anywhere ----

FORBIDDEN = {"pickle", "cPickle", "_pickle", "shelve", "marshal", "dill", "cloudpickle", "joblib", "dbm"}


PACKAGE = Path(netfleet.__file__).parent
SOURCES = [*sorted((PACKAGE / "sites").rglob("*.py")), PACKAGE / "runs" / "checkpoint.py"]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_nothing_is_ever_unpickled(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert not {alias.name.split(".")[0] for alias in node.names} & FORBIDDEN
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in FORBIDDEN
            assert not (node.module == "torch" and {alias.name for alias in node.names} & {"load", "save"})
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            assert name not in ("torch.load", "torch.save", "np.load", "numpy.load", "eval", "exec", "__import__")


def test_a_pickle_is_not_a_frame() -> None:
    bomb = b"\x80\x04cos\nsystem\n(S'true'\ntR." + struct.pack("!200x")
    with pytest.raises(netfleet.errors.FrameError, match="not a netfleet frame"):
        wire.decode(bomb)


def test_what_a_codec_cannot_read_is_refused() -> None:
    """Places beyond the end, for example, which only who decodes them sees."""
    message = torch.tensor([[100, 0, 0, 0, 0, 0, 128, 63]], dtype=torch.uint8)
    decode = TopK(share=0.1).decode
    expected = Expected(b"", 0, 0, 0, "", 8)
    wanted = Wanted(expected, finite=lambda: bool(decode(message, 10, torch.float32).isfinite().all()))
    with pytest.raises(FrameError, match="cannot be decoded"):
        site_client._is_finite(wanted)


class Slow:
    """A server's handler that answers late."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def pull(self, caller: Caller, read: Callable[[], Awaitable[bytes]]) -> AsyncGenerator[bytes, None]:
        await read()
        self.asked.set()
        await asyncio.sleep(60)
        yield b""

    async def status(self, caller: Caller) -> bytes:
        return b"{}"


def test_a_neighbour_that_stops_is_said_to_stop(world: World) -> None:
    """gRPC's own words for it, "Cancelling all calls", would be in the log as what the neighbour does."""

    async def scenario() -> None:
        handler, address = Slow(), load_site(world.folder / "s0")[0].listen
        transport = GrpcTransport(world.identity("s1"))

        async def ask() -> None:
            to = next(each for each in world.plan.sites[1].neighbours if each.name == "s0")
            async for _ in transport.pull(to, b"x"):
                raise AssertionError

        async with GrpcTransport(world.identity("s0"), address).serve(handler):
            asked = asyncio.create_task(ask())
            await handler.asked.wait()
        with pytest.raises(TransportError, match=r"^is stopping$"):
            await asked
        await transport.close()

    run(scenario())
