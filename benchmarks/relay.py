"""One message between two sites in three ways, taken in turn: directly, over a connection that the sender has made, and
through a relay.
"""

import contextlib
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

import torch

from benchmarks import site_processes
from benchmarks.measure import ResultTable, Spread, alternating, ratio
from benchmarks.processes import variables
from benchmarks.setting import Setting
from benchmarks.site_messages import make_server, transport_of
from netfleet.compute.threads import one_intra_op_thread
from netfleet.engines.host import all_finite
from netfleet.errors import TransportError
from netfleet.sites.network.client import Client, Wanted
from netfleet.sites.network.loop_thread import LoopThread
from netfleet.sites.network.outbox import Outbox
from netfleet.sites.network.receipts import NoReceipts
from netfleet.sites.network.transport import Contact
from netfleet.sites.network.wire import Expected, Kind
from netfleet.sites.planning.certificates import load_identity
from netfleet.sites.planning.folders import load_site

D = 10_000_000  # float32 numbers in a message: 40 MB
CONFIG = {"topology": {"kind": "complete", "workers": 2}, "problem": {"kind": "quadratics"}}
NOTES = [
    "exchange: from one process to another on one machine, as a site does it: post (a copy), pull into memory that is "
    "there already, check the checksum and the order of every frame, check that all numbers are finite. The three ways "
    "take turns.",
    "reverse: the receiver cannot dial the sender; it asks over the connection that the sender has made to it.",
    "relay: neither can dial the other. The bytes pass through the relay and through a local socket at each site: four "
    "connections one after the other, where a direct exchange has one. Three processes share the two cores, so all of "
    "that adds to the time. Between machines a relay also costs its way through the network, twice.",
]


class Way(NamedTuple):
    """Which of sender and receiver has an address, and whether there is a relay."""

    name: str
    sender: bool
    receiver: bool
    relay: bool = False


WAYS = (
    Way("direct", True, True),
    Way("reverse: only the receiver can be dialled", False, True),
    Way("relay: nobody can be dialled", False, False, relay=True),
)


def run(setting: Setting) -> ResultTable:
    table = ResultTable(
        "One message between two sites: direct, reverse, relayed (loopback, mutual TLS)",
        "what | how | seconds | it ÷ direct",
        notes=list(NOTES),
    )
    d, repeats = setting.pick(D, D, 1000), setting.pick(25, 7, 2)
    with one_intra_op_thread(), contextlib.ExitStack() as stack:
        exchanges = [stack.enter_context(exchange(way, d)) for way in WAYS]
        times = alternating(exchanges, repeats)
    for way, taken in zip(WAYS, times, strict=True):
        table.add(f"exchange of {4 * d / 1e6:.3g} MB", way.name, Spread.of(taken), ratio(taken, times[0]))
    return table


@contextlib.contextmanager
def exchange(way: Way, d: int) -> Iterator[Callable[[], None]]:
    """A function that exchanges one message in a way; sender and relay are processes."""
    ports = site_processes.free_ports(3)
    given = [port if there else 0 for port, there in zip(ports, (way.sender, way.receiver), strict=False)]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        plan = Path(folder) / "plan"
        site_processes.write_sites(plan, CONFIG, given, relay=ports[2] if way.relay else 0)
        if way.relay:
            stack.enter_context(_process("netfleet", "relay", str(plan / "relay"), "--listen", f"127.0.0.1:{ports[2]}"))
        sender = stack.enter_context(_process("benchmarks.site_messages", str(plan / "s0"), str(d)))
        assert sender.stdin
        yield stack.enter_context(_receiving(sender.stdin, plan / "s1", d))


@contextlib.contextmanager
def _process(*command: str) -> Iterator[subprocess.Popen[str]]:
    pipe, program = subprocess.PIPE, [sys.executable, "-m", *command]
    options = {"stdin": pipe, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(program, text=True, bufsize=1, env=variables(), **options) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def _receiving(sender: IO[str], folder: Path, d: int) -> Iterator[Callable[[], None]]:
    site, _ = load_site(folder)
    identity, contact = load_identity(folder, site.name), Contact(site.neighbours[0])
    into, rounds = torch.ones(4 * d, dtype=torch.uint8), itertools.count()  # of ones, so its pages are there
    view, refusals = into.numpy().data.cast("B"), list[str]()

    async def connect() -> Client:
        transport = transport_of(site, identity)
        stack.push_async_callback(transport.close)
        await stack.enter_async_context(transport.serve(make_server(site, Outbox())))
        return Client(site, transport, lambda who, why: refusals.append(why), NoReceipts())

    async def pull() -> None:
        t = next(rounds)
        print(t, file=sender)
        expected = Expected(site.run_id, contact.neighbour.number, t, 0, f"float32[{d}]", len(view))
        answer = await client.pull(contact, Wanted(expected, view, lambda: all_finite(into.view(torch.float32))))
        if answer.kind != Kind.CHUNK or refusals:
            raise TransportError(f"no message, but {answer}: {'; '.join(refusals)}")

    with LoopThread() as loop:
        stack = contextlib.AsyncExitStack()
        client = loop.wait(connect())
        try:
            yield lambda: loop.wait(pull())
        finally:
            loop.wait(stack.aclose())
