"""One message between two processes, in three ways over the same certificates: ours, bare gRPC, and TLS on a socket.

`python -m benchmarks.site_messages FOLDER D` is the sender: a site's folder, and how many float32 numbers.
"""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import grpc
import grpc.aio
import torch
from torch import Tensor

from benchmarks.measure import Timed, alternating
from benchmarks.processes import environment
from netfleet.engines.host import Tag, all_finite
from netfleet.errors import TransportError
from netfleet.sites.network.client import Client, Wanted
from netfleet.sites.network.grpc_transport import GrpcTransport
from netfleet.sites.network.loop_thread import LoopThread
from netfleet.sites.network.outbox import Message, Outbox
from netfleet.sites.network.server import SiteServer
from netfleet.sites.network.transport import Contact
from netfleet.sites.network.wire import Expected, Frame, Kind
from netfleet.sites.planning.certificates import Identity, load_identity
from netfleet.sites.planning.folders import Site, load_site

CHUNK = 1 << 20
METHOD = "/bare/Pull"


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
    """Knows the neighbours and lets nobody wait."""

    def __init__(self, site: Site) -> None:
        self._contacts = {each.name: Contact(each) for each in site.neighbours}

    def find_neighbour(self, name: str) -> Contact | None:
        return self._contacts.get(name)

    def answer_instead(self, j: int, request: Frame) -> Frame | None:
        return None

    def first_round(self, j: int) -> int:
        return 0

    def note_rounds(self, j: int, t: int, rounds: Sequence[int]) -> None:
        """It is of no use here."""

    def add_link(self, j: int) -> Frame:
        raise NotImplementedError


def no_model() -> Message:
    """Nobody asks for it here."""
    raise NotImplementedError


def send(folder: Path, d: int) -> None:
    """Serve in all three ways; a line of the standard input names the round whose message is posted."""
    site, _ = load_site(folder)
    identity = load_identity(folder, site.name)
    data = torch.randn(d).view(torch.uint8)
    view, outbox, loop = data.numpy().data.cast("B"), Outbox(), LoopThread()

    async def start() -> tuple[Any, Any, int]:
        members, status = OpenMembers(site), lambda name: b"{}"
        server = SiteServer(site, outbox, members, _complain, no_model, status)
        ours = GrpcTransport(identity, site.listen).serve(server)
        await ours.__aenter__()  # until the process ends
        bare = grpc.aio.server()
        bare.add_generic_rpc_handlers((BareService(view),))
        pair = [(identity.key, identity.certificate)]
        port = bare.add_secure_port(
            "127.0.0.1:0", grpc.ssl_server_credentials(pair, identity.ca, require_client_auth=True)
        )
        await bare.start()
        return ours, bare, port

    _, _, bare_port = servers = loop.__enter__().wait(start())
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_send_plainly, args=(listener, _tls(folder, server=True), view), daemon=True).start()
    print(bare_port, listener.getsockname()[1], flush=True)
    for line in sys.stdin:
        outbox.post(Tag(int(line), 0), f"float32[{d}]", data)
    del servers


def _send_plainly(listener: socket.socket, context: ssl.SSLContext, view: memoryview) -> None:
    """Answer each byte with the message."""
    accepted, _ = listener.accept()
    with context.wrap_socket(accepted, server_side=True) as line:
        while line.recv(1):
            line.sendall(view)


def _tls(folder: Path, server: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(folder / "node.pem", folder / "node.key")
    context.load_verify_locations(folder / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _complain(who: str, why: str) -> None:
    raise TransportError(f"{who}: {why}")


def exchanges(sender: Path, receiver: Path, d: int, repeats: int) -> list[list[float]]:
    """Seconds of each way, taken in turn: ours, bare gRPC, TLS on a socket."""
    with _sending(sender, d) as (post, bare, plain):
        site, _ = load_site(receiver)
        name = site.neighbours[0].name
        into = torch.ones(4 * d, dtype=torch.uint8)  # its pages are there
        identity = load_identity(receiver, site.name)
        with (
            LoopThread() as loop,
            socket.create_connection(("127.0.0.1", plain)) as opened,
            _tls(receiver, server=False).wrap_socket(opened, server_hostname=name) as line,
        ):
            ours = _ours(loop, site, identity, post, into, d)
            runs = [ours, _bare(loop, bare, identity, name, into), lambda: _receive_plainly(line, into)]
            return alternating(runs, repeats)


@contextmanager
def _sending(folder: Path, d: int) -> Iterator[tuple[Callable[[int], None], int, int]]:
    """The sender's process: a function that lets it post, and the ports of the other two ways."""
    command, pipe = [sys.executable, "-m", __name__, str(folder), str(d)], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment()) as process:
        stdin, stdout = cast(IO[str], process.stdin), cast(IO[str], process.stdout)

        def post(t: int) -> None:
            stdin.write(f"{t}\n")
            stdin.flush()

        try:
            bare, plain = map(int, stdout.readline().split())
            yield post, bare, plain
        finally:
            process.kill()


def _ours(loop: LoopThread, site: Site, identity: Identity, post: Callable[[int], None], into: Tensor, d: int) -> Timed:
    """As a site does it: the other posts, this one pulls and checks."""
    view, contact, t = into.numpy().data.cast("B"), Contact(site.neighbours[0]), -1

    client = Client(site, GrpcTransport(identity), _complain)

    def go() -> None:
        nonlocal t
        t += 1
        post(t)
        expected = Expected(bytes.fromhex(site.run), contact.neighbour.number, t, 0, f"float32[{d}]", len(view))
        wanted = Wanted(expected, view, lambda: all_finite(into.view(torch.float32)))
        answer = loop.wait(client.pull(contact, wanted))
        if answer.kind != Kind.CHUNK:
            raise TransportError(f"no message, but {answer}")

    return go


def _bare(loop: LoopThread, port: int, identity: Identity, name: str, into: Tensor) -> Timed:
    view = into.numpy().data.cast("B")

    async def connect() -> Any:
        credentials = grpc.ssl_channel_credentials(identity.ca, identity.key, identity.certificate)
        options = [("grpc.ssl_target_name_override", name)]
        return grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options)

    channel = loop.wait(connect())

    async def pull() -> None:
        have = 0
        async for data in channel.unary_stream(METHOD)(b""):
            view[have : have + len(data)] = data
            have += len(data)

    return lambda: loop.wait(pull())


def _receive_plainly(line: ssl.SSLSocket, into: Tensor) -> None:
    view = into.numpy().data.cast("B")
    line.sendall(b"?")
    have = 0
    while have < len(view):
        have += line.recv_into(view[have:])


if __name__ == "__main__":
    send(Path(sys.argv[1]), int(sys.argv[2]))
