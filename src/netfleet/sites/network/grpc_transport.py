"""gRPC over mutual TLS. What gRPC raises becomes netfleet's errors here (`translated`), and nowhere else.

A site asks a neighbour over a connection that it made to its address; or else over one that the neighbour has made
(`reverse.py`); or else through the relay, if there is one.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import partial

import grpc
import grpc.aio

from netfleet.errors import CertificateError, TransportError
from netfleet.sites.network.grpc_channels import (
    STATUS_OPTIONS,
    link_options,
    listen,
    open_channel,
    reconnect_pauses,
    server_options,
    translated,
)
from netfleet.sites.network.grpc_service import PULL, STATUS, Service
from netfleet.sites.network.inbound import Inbound
from netfleet.sites.network.links import Link
from netfleet.sites.network.reverse import OPEN, RELAYED, Offer, ReverseCall, ReverseCalls
from netfleet.sites.network.transport import DIRECT, REVERSE, Caller, Handler, Way
from netfleet.sites.planning.certificates import Identity, first_certificate
from netfleet.sites.planning.folders import Neighbour, Site
from netfleet.sites.policy.peers import AnyPeers, Peers
from netfleet.sites.relay.client import LOOPBACK, RelayClient


class GrpcTransport:
    """A `Transport` with one connection per neighbour, which is kept."""

    def __init__(
        self,
        identity: Identity,
        listen: str = "",
        peers: Peers | None = None,
        inbound: Inbound | None = None,
        relay: RelayClient | None = None,
    ) -> None:
        """`listen` is the address to serve on; a client, and a site that only dials out, needs none. `peers` say whom
        it may dial, `inbound` is told who cannot dial this site, `relay` connects to sites that it cannot dial.
        """
        self._identity, self._listen, self._relay = identity, listen, relay
        self._peers: Peers = AnyPeers(identity.ca) if peers is None else peers
        self._inbound, self._reverse = inbound or Inbound(), ReverseCalls()
        self._links: dict[str, Link] = {}
        self._offering: dict[str, asyncio.Task[None]] = {}
        self._handler: Handler | None = None

    async def pull(self, to: Neighbour, request: bytes) -> AsyncGenerator[bytes, None]:
        roots, first = self._peers.roots(to.name), True
        link = await self._link(to, roots)
        self._offer_to(to)
        call = await self._reverse_call(to, link)
        told = f"{to.address}: {link.failure}" if to.address and link.failure else ""
        answers = self._ask(to, link, request) if call is None else call.ask(request, told)
        async with aclosing(answers):
            async for data in answers:
                if first and self._peers.roots(to.name) != roots:  # changed while this call waited
                    raise TransportError("was asked while another certificate of it counted; it is asked again")
                first = False
                yield data

    async def _reverse_call(self, to: Neighbour, link: Link) -> ReverseCall | None:
        """A call of the neighbour to send it a request, where this site has no connection as good."""
        call = None if link.ready else await self._reverse.take_next(to.name, relayed=not link.ready_by_relay)
        if call is not None:
            try:
                self._peers.check(call.caller.certificate, to)
            except CertificateError:
                call.over.set()
                raise
        return call

    async def _ask(self, to: Neighbour, link: Link, request: bytes) -> AsyncGenerator[bytes, None]:
        channel = link.channel
        if channel is None:
            raise TransportError("has not connected to this site, and has no address at which this site could dial it")
        call = channel.unary_stream(PULL)(request)
        try:
            async for data in call:
                yield data
        except grpc.aio.AioRpcError as error:
            raise self._failed(error, to, link, channel) from None
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            raise TransportError("was asked over a connection that was closed; it is asked again") from None
        finally:
            call.cancel()

    def _failed(
        self, error: grpc.aio.AioRpcError, to: Neighbour, link: Link, channel: grpc.aio.Channel
    ) -> TransportError:
        direct = channel is link.direct
        why = self._translated(error, to, link.roots, direct)
        if direct and error.code() == grpc.StatusCode.UNAVAILABLE:
            link.failure = str(why)
        if not direct and link.failure and error.code() == grpc.StatusCode.UNAVAILABLE:
            return TransportError(f"{why}; directly it {link.failure}")
        return why

    async def _link(self, to: Neighbour, roots: bytes) -> Link:
        """The connection to a neighbour; a new one when another certificate of it counts."""
        known = self._links.get(to.name)
        if known is not None and known.roots == roots:
            return known
        relay, options = self._relay, link_options()
        link = Link(
            roots,
            open_channel(self._identity, to.name, to.address, roots, options) if to.address else None,
            None
            if relay is None
            else lambda: open_channel(self._identity, to.name, relay.target(to.name), roots, options),
        )
        self._links[to.name] = link
        if known is not None:
            await known.close()
        return link

    def _offer_to(self, to: Neighbour) -> None:
        """From now on offer a neighbour that this site dials to ask over the same connection."""
        task = self._offering.get(to.name)
        if self._handler is None or self._links[to.name].channel is None:
            return
        if task is None or task.done():
            self._offering[to.name] = asyncio.ensure_future(self._keep_offering(to, self._handler))

    async def _keep_offering(self, to: Neighbour, handler: Handler) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(OPEN):
                group.create_task(self._keep_open(to, handler))

    async def _keep_open(self, to: Neighbour, handler: Handler) -> None:
        """Keep one call open at a neighbour, by which it may ask."""
        pauses = reconnect_pauses()
        while True:
            try:
                roots = self._peers.roots(to.name)
                link = await self._link(to, roots)
                channel = link.channel
                if channel is None:
                    return
                if not await self._offer(to, roots, handler).answer_one(channel):
                    await link.rest()
                pauses = reconnect_pauses()
                continue
            except grpc.aio.AioRpcError as error:
                if error.code() == grpc.StatusCode.UNIMPLEMENTED:  # an earlier version
                    return
                self._failed(error, to, link, channel)
            except CertificateError:
                pass  # whoever pulls is told why
            except (asyncio.CancelledError, grpc.aio.UsageError):  # also when `_link` has closed the connection
                if _is_cancelled():
                    raise
            await asyncio.sleep(next(pauses))

    def _offer(self, to: Neighbour, roots: bytes, handler: Handler) -> Offer:
        told = partial(self._inbound.not_dialled, to.name)
        return Offer(handler, lambda: self._caller(to, roots), told)

    def _caller(self, to: Neighbour, roots: bytes) -> Caller:
        """A neighbour that asks over a connection that this site made: TLS has accepted it by these certificates.

        A neighbour that is not pinned yet has to show itself first, by a request of its own.
        """
        shown = b"" if roots == self._identity.ca else first_certificate(roots)
        self._peers.check(shown, to)
        if self._peers.roots(to.name) != roots:  # it may have shown one that does not count any more
            raise CertificateError("it was connected while other certificates of it counted; it is connected again")
        return Caller(to.name, to.address or RELAYED, shown)

    async def status(self, to: Site | Neighbour, seconds: float) -> bytes:
        """Ask a site once for its status: at its address, or else through the relay."""
        failed = [TransportError("only dials out: it has no address at which it could be asked")]
        for target in self.targets(to).values():
            try:
                return await self.status_at(to, target, seconds)
            except CertificateError:
                raise
            except TransportError as error:
                failed.append(error)
        raise failed[1] if failed[1:] else failed[0]

    def targets(self, to: Site | Neighbour) -> dict[str, str]:
        """Where gRPC can dial a site: "direct" and "relay", as far as there is one."""
        direct = {DIRECT: to.address} if to.address else {}
        return direct if self._relay is None else {**direct, RELAYED: self._relay.target(to.name)}

    async def ways(self, to: Site | Neighbour, seconds: float) -> list[Way]:
        """Try every way to reach a site: its address, the relay, and, while this site serves, what it has dialled."""
        found = []
        for how, target in self.targets(to).items():
            try:
                await self.status_at(to, target, seconds)
                found.append(Way(how))
            except TransportError as error:
                found.append(Way(how, str(error)))
        if self._handler is not None:
            found.append(Way(REVERSE, "" if self._reverse.has(to.name) else "it has not dialled this site"))
        return found

    async def status_at(self, to: Site | Neighbour, target: str, seconds: float) -> bytes:
        """Ask a site once for its status in one of these ways."""
        roots = self._peers.roots(to.name)
        async with open_channel(self._identity, to.name, target, roots, STATUS_OPTIONS) as channel:
            try:
                answer: bytes = await channel.unary_unary(STATUS)(b"", timeout=seconds, wait_for_ready=False)
                return answer
            except grpc.aio.AioRpcError as error:
                if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise TransportError(f"did not answer within {seconds:g} s") from None
                raise self._translated(error, to, roots, target == to.address) from None

    def _translated(
        self, error: grpc.aio.AioRpcError, to: Site | Neighbour, roots: bytes, direct: bool
    ) -> TransportError:
        relayed = "" if direct or self._relay is None else self._relay.failure(to.name)
        if relayed and error.code() == grpc.StatusCode.UNAVAILABLE:
            return TransportError(f"cannot be reached ({relayed})")
        return translated(error, pinned=roots != self._identity.ca)

    @asynccontextmanager
    async def serve(self, handler: Handler) -> AsyncIterator[None]:
        server = grpc.aio.server(options=server_options())
        relay = self._relay if self._relay is not None and self._relay.registers else None
        relayed = (lambda peer: False) if relay is None else relay.has_accepted
        server.add_generic_rpc_handlers((Service(handler, self._reverse, self._inbound, relayed),))
        if self._listen:
            listen(server, self._identity, self._listen)
        port = 0 if relay is None else listen(server, self._identity, f"{LOOPBACK}:0")
        await server.start()
        if relay is not None:
            relay.register(port)
        self._handler = handler
        try:
            yield
        finally:
            await self._stop_offering()
            self._reverse.end_all()
            await server.stop(grace=1)

    async def _stop_offering(self) -> None:
        self._handler = None
        for task in self._offering.values():
            task.cancel()
        await asyncio.gather(*self._offering.values(), return_exceptions=True)
        self._offering.clear()

    async def close(self) -> None:
        for link in self._links.values():
            await link.close()
        if self._relay is not None:
            await self._relay.close()


def _is_cancelled() -> bool:
    """Whether somebody cancels this task: gRPC also raises CancelledError when the connection of a call is closed."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
