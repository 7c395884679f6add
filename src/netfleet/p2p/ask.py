"""Ask sites how they are. An answer may come from one that means harm: it is checked, and its texts are cleaned."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import grpc
import grpc.aio

from netfleet.p2p.logs import printable
from netfleet.p2p.report import SUMS
from netfleet.p2p.sites import Neighbour, Site
from netfleet.p2p.tls import Identity
from netfleet.p2p.transport import STATUS, reason
from netfleet.registry import fits

#: Seconds for an answer, and the most bytes that it may have.
WITHIN, MOST = 5.0, 4 << 20
_ANSWER = {
    "algorithm": str,
    "state": str,
    "round": int,
    "rounds": int,
    "refused": int,
    "certificate_days": int,
    "apart": list[str],
    "neighbours": list[dict],  # type: ignore[type-arg]
    "record": dict,
    "sketches": list[list],  # type: ignore[type-arg]
}
_LINK = {
    "name": str,
    "number": int,
    "heard": float | None,
    "waiting": str,
    "lost": int | None,
    "there": bool,
    "sent": int,
    "received": int,
}


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
    if not is_sound(table, site.name):
        return Said(site, None, "answered something that is no status of this site")
    return Said(site, _cleaned(table))


def is_sound(table: Any, name: str) -> bool:
    """Whether it is what a site of this name says of itself."""
    return (
        _has(table, {"site": str, **_ANSWER})
        and table["site"] == name
        and all(_has(link, _LINK) for link in table["neighbours"])
        and all(fits(value, float | None) for value in table["record"].values())
        and all(len(sketch) == 2 and _is_sketch(*sketch) for sketch in table["sketches"])
    )


def _has(table: Any, kinds: Mapping[str, Any]) -> bool:
    return isinstance(table, dict) and all(key in table and fits(table[key], kind) for key, kind in kinds.items())


def _is_sketch(t: Any, sums: Any) -> bool:
    return fits(t, int) and fits(sums, list[float]) and len(sums) == SUMS


def _cleaned(value: Any) -> Any:
    if isinstance(value, dict):
        return {printable(key): _cleaned(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_cleaned(each) for each in value]
    return printable(value) if isinstance(value, str) else value
