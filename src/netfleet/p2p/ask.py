"""Ask sites how they are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import grpc
import grpc.aio

from netfleet.p2p.sites import Neighbour, Site
from netfleet.p2p.tls import Identity
from netfleet.p2p.transport import STATUS, reason

#: Seconds for an answer, and the most bytes that it may have.
WITHIN, MOST = 5.0, 4 << 20


class Whom(NamedTuple):
    """A site to ask."""

    name: str
    address: str


class Said(NamedTuple):
    """Its answer, or why there is none."""

    whom: Whom
    table: dict[str, Any] | None
    why: str = ""


def whom(sites: Sequence[Site | Neighbour]) -> list[Whom]:
    """These sites, to be asked."""
    return [Whom(site.name, site.address) for site in sites]


def ask_all(sites: Sequence[Whom], identity: Identity, within: float = WITHIN) -> list[Said]:
    """Ask all of them at once."""
    return asyncio.run(_ask_all(sites, identity, within))


async def _ask_all(sites: Sequence[Whom], identity: Identity, within: float) -> list[Said]:
    credentials = grpc.ssl_channel_credentials(identity.ca, identity.key, identity.certificate)
    return await asyncio.gather(*(_ask(site, credentials, within) for site in sites))


async def _ask(site: Whom, credentials: grpc.ChannelCredentials, within: float) -> Said:
    options = [("grpc.ssl_target_name_override", site.name), ("grpc.max_receive_message_length", MOST)]
    async with grpc.aio.secure_channel(site.address, credentials, options=options) as channel:
        try:
            answer = await channel.unary_unary(STATUS)(b"", timeout=within, wait_for_ready=False)
            table = json.loads(answer)
        except grpc.aio.AioRpcError as error:
            late = error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            return Said(site, None, f"did not answer within {within:g} s" if late else reason(error))
        except ValueError:
            return Said(site, None, "answered something that is not JSON")
    return Said(site, table) if isinstance(table, dict) else Said(site, None, "answered something else")
