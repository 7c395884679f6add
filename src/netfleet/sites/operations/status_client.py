"""Ask sites how they are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import grpc
import grpc.aio

from netfleet.sites.network.transport import STATUS, reason
from netfleet.sites.operations.logs import printable
from netfleet.sites.operations.report import SUMS
from netfleet.sites.planning.folders import Neighbour, Site
from netfleet.sites.planning.identity import Identity

#: Seconds for an answer, and the most bytes that it may have.
WITHIN, MOST = 5.0, 4 << 20
_REPORT: dict[str, Any] = {
    "site": str,
    "algorithm": str,
    "state": str,
    "round": int,
    "rounds": int,
    "record": dict,
    "neighbours": list,
    "apart": list,
    "refused": int,
    "certificate_days": int,
    "sketches": list,
}
_LINK: dict[str, Any] = {
    "name": str,
    "number": int,
    "round": int,
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
    if not is_report(table) or table["site"] != site.name:
        return Said(site, None, "answered something that is not this site's report; it may run another version")
    return Said(site, cleaned(table))


def is_report(table: Any) -> bool:
    """Whether it has what a site says of itself, each of its kind; whoever is asked may mean harm."""
    return (
        isinstance(table, dict)
        and all(isinstance(table.get(key), kind) for key, kind in _REPORT.items())
        and all(_has(link, _LINK) for link in table["neighbours"])
        and all(isinstance(name, str) for name in table["apart"])
        and all(value is None or isinstance(value, int | float) for value in table["record"].values())
        and all(_is_sketch(each) for each in table["sketches"])
    )


def _has(table: Any, kinds: dict[str, Any]) -> bool:
    return isinstance(table, dict) and all(isinstance(table.get(key), kind) for key, kind in kinds.items())


def _is_sketch(each: Any) -> bool:
    return (
        isinstance(each, list)
        and len(each) == 2
        and isinstance(each[0], int)
        and isinstance(each[1], list)
        and len(each[1]) == SUMS
        and all(isinstance(value, float) for value in each[1])
    )


def cleaned(value: Any) -> Any:
    """Without what steers a terminal."""
    if isinstance(value, dict):
        return {printable(str(key)): cleaned(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [cleaned(inner) for inner in value]
    return printable(value) if isinstance(value, str) else value
