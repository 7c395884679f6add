"""Asks sites for their status."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from netfleet.errors import TransportError
from netfleet.sites.network.grpc_transport import GrpcTransport
from netfleet.sites.network.identity import Identity, load_identity
from netfleet.sites.operations.status import SiteStatus, parse_status
from netfleet.sites.planning.certificates import OPERATOR
from netfleet.sites.planning.folders import SITE_FILE, Neighbour, Site, all_sites, load_site

#: Seconds for an answer.
TIMEOUT = 5.0


class StatusAnswer(NamedTuple):
    """A site's status, or why there is none."""

    name: str
    status: SiteStatus | None
    why: str = ""


def ask_folder(folder: Path) -> list[StatusAnswer]:
    """Ask all sites of a plan's or operator's folder, or a site and its neighbours from the site's own folder."""
    if (folder / SITE_FILE).is_file():
        site, _ = load_site(folder)
        return ask_all([site, *site.neighbours], load_identity(folder, site.name))
    operator = folder / OPERATOR if (folder / OPERATOR).is_dir() else folder
    return ask_all(all_sites(operator), load_identity(operator, OPERATOR))


def ask_all(sites: Sequence[Site | Neighbour], identity: Identity, timeout: float = TIMEOUT) -> list[StatusAnswer]:
    """Ask all of them at once."""

    async def ask() -> list[StatusAnswer]:
        transport = GrpcTransport(identity)
        return await asyncio.gather(*(_ask(site, transport, timeout) for site in sites))

    return asyncio.run(ask())


async def _ask(site: Site | Neighbour, transport: GrpcTransport, timeout: float) -> StatusAnswer:
    try:
        return StatusAnswer(site.name, parse_status(await transport.status(site, timeout), site.name))
    except TransportError as error:
        return StatusAnswer(site.name, None, str(error))
