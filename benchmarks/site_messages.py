"""One message between two processes, in two ways over the same certificates: ours, and bare gRPC.

`python -m benchmarks.site_messages FOLDER D` is the sender: a site's folder, and how many float32 numbers. One that
only dials out dials its neighbours.
"""

import contextlib
import itertools
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import torch

from benchmarks.measure import alternating
from benchmarks.processes import variables
from netfleet.engines.host import Tag, all_finite
from netfleet.errors import TransportError
from netfleet.sites.network.client import Client, Wanted
from netfleet.sites.network.grpc_transport import GrpcTransport
from netfleet.sites.network.loop_thread import LoopThread
from netfleet.sites.network.outbox import Message, Outbox
from netfleet.sites.network.receipts import NoReceipts
from netfleet.sites.network.server import SiteServer
from netfleet.sites.network.transport import Contact
from netfleet.sites.network.wait_cause import Cause
from netfleet.sites.network.wire import Expected, Frame, Kind, SiteNews
from netfleet.sites.planning.certificates import Identity, load_identity
from netfleet.sites.planning.folders import Neighbour, Site, load_site
from netfleet.sites.relay.client import RelayClient

CHUNK = 1 << 20


class BareService(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A gRPC service as short as it can be: all bytes, in chunks."""

    def __init__(self, data: memoryview) -> None:
        self.data = data

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        return grpc.unary_stream_rpc_method_handler(self.pull)

    async def pull(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        for start in range(0, len(self.data), CHUNK):
            yield bytes(self.data[start : start + CHUNK])


class OpenMembers:
    """Knows the neighbours and keeps nobody waiting."""

    def __init__(self, site: Site) -> None:
        self._contacts = {each.name: Contact(each) for each in site.neighbours}

    def find_neighbour(self, name: str) -> Contact | None:
        return self._contacts.get(name)

    def answer_instead(self, j: int, request: Frame) -> Frame | None:
        return None

    def first_round(self, j: int) -> int:
        return 0

    def note_news(self, j: int, t: int, news: Sequence[SiteNews]) -> None: ...

    def note_compared(self, j: int) -> None: ...

    def cause(self) -> Cause:
        return Cause(0, "computing", 0.0)

    def add_link(self, j: int) -> Frame:
        raise TransportError("the benchmark adds no link")


def no_model() -> Message:
    raise TransportError("the benchmark has no model")


def _complain(who: str, why: str) -> None:
    raise TransportError(f"{who}: {why}")


def _refused(who: str, why: str) -> None:
    print(f"{who}: {why}", file=sys.stderr)


def transport_of(site: Site, identity: Identity) -> GrpcTransport:
    relay = RelayClient(site.relay, identity, registers=not site.address) if site.relay else None
    return GrpcTransport(identity, site.listen, relay=relay)


def make_server(site: Site, outbox: Outbox) -> SiteServer:
    return SiteServer(site, outbox, OpenMembers(site), _refused, NoReceipts(), no_model, lambda name: b"{}")


async def dial(transport: GrpcTransport, to: Neighbour) -> None:
    """Make the connection to a neighbour that will ask over it; what this asks itself is of no use."""
    with contextlib.suppress(TransportError):
        async for _ in transport.pull(to, b""):
            pass


def send(folder: Path, d: int) -> None:
    """Serve in both ways; a line of the standard input names the round whose message is posted."""
    site, _ = load_site(folder)
    identity, outbox, data = load_identity(folder, site.name), Outbox(), torch.randn(d).view(torch.uint8)

    async def start() -> tuple[Any, Any]:
        transport = transport_of(site, identity)
        ours = transport.serve(make_server(site, outbox))
        await ours.__aenter__()  # until the process ends
        for to in (each for each in site.neighbours if each.address and not site.address):
            await dial(transport, to)
        bare = grpc.aio.server()
        bare.add_generic_rpc_handlers((BareService(data.numpy().data.cast("B")),))
        pair = [(identity.key, identity.certificate)]
        credentials = grpc.ssl_server_credentials(pair, identity.ca, require_client_auth=True)
        print(bare.add_secure_port("127.0.0.1:0", credentials), flush=True)
        await bare.start()
        return ours, bare

    with LoopThread() as loop:
        servers = loop.wait(start())
        for line in sys.stdin:
            outbox.post(Tag(int(line), 0), outbox.copy(f"float32[{d}]", data))
        del servers


def exchanges(sender: Path, receiver: Path, d: int, repeats: int) -> list[list[float]]:
    """Seconds of each way, taken in turn: ours, bare gRPC."""
    command, pipe = [sys.executable, "-m", __name__, str(sender), str(d)], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1, env=variables()) as process:
        try:
            assert process.stdout
            return _receive(process, int(process.stdout.readline()), receiver, d, repeats)
        finally:
            process.kill()


def _receive(sender: subprocess.Popen[str], port: int, folder: Path, d: int, repeats: int) -> list[list[float]]:
    site, _ = load_site(folder)
    identity, contact = load_identity(folder, site.name), Contact(site.neighbours[0])
    into, rounds = torch.ones(4 * d, dtype=torch.uint8), itertools.count()  # of ones, so its pages are there
    view = into.numpy().data.cast("B")

    async def connect() -> tuple[Client, Any]:
        credentials = grpc.ssl_channel_credentials(identity.ca, identity.key, identity.certificate)
        options = [("grpc.ssl_target_name_override", contact.neighbour.name)]
        channel = grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options)
        return Client(site, GrpcTransport(identity), _complain, NoReceipts()), channel

    async def ours() -> None:
        """As a site does it: the other posts, this one pulls and checks."""
        t = next(rounds)
        print(t, file=sender.stdin)
        expected = Expected(site.run_id, contact.neighbour.number, t, 0, f"float32[{d}]", len(view))
        answer = await client.pull(contact, Wanted(expected, view, lambda: all_finite(into.view(torch.float32))))
        if answer.kind != Kind.CHUNK:
            raise TransportError(f"no message, but {answer}")

    async def bare() -> None:
        have = 0
        async for data in channel.unary_stream("/bare/Pull")(b""):
            view[have : have + len(data)] = data
            have += len(data)

    with LoopThread() as loop:
        client, channel = loop.wait(connect())
        return alternating([lambda: loop.wait(ours()), lambda: loop.wait(bare())], repeats)


if __name__ == "__main__":
    send(Path(sys.argv[1]), int(sys.argv[2]))
