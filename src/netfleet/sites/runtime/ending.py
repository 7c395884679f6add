"""How a site ends: it stays until its neighbours have what they need, or tells them that it leaves."""

from __future__ import annotations

import asyncio
import time

from netfleet.files import write_atomically
from netfleet.sites.network.client import Wanted
from netfleet.sites.network.wire import Kind
from netfleet.sites.planning.folders import LEAVE_FILE
from netfleet.sites.runtime.session import SiteSession

#: Seconds for which a site that is done, as all its neighbours are, still answers those that do not know yet.
INFORM = 5.0


async def stay(session: SiteSession, linger: float) -> None:
    """Wait until all neighbours are done too; for one that cannot be reached at most `linger` seconds."""
    members = session.members
    there = members.neighbourhood.neighbours(members.rounds)
    async with asyncio.TaskGroup() as group:
        for j in there:
            group.create_task(_wait_for(session, j, linger))
    await _inform(session, set(there), INFORM)


async def _wait_for(session: SiteSession, j: int, linger: float) -> None:
    """Wait until neighbour j is done: it says so, or asks for what comes after the end."""
    contact, members = session.members.contacts[j], session.members
    wanted = Wanted(session.expected(j, members.rounds), given_up=lambda: j in members.done)
    try:
        async with asyncio.timeout(linger):
            answer = await session.client.pull(contact, wanted)
    except TimeoutError:
        session.log.event(
            "unfinished", level="warning", neighbour=contact.neighbour.name, why=contact.waiting, waited=linger
        )
    else:
        if answer.kind == Kind.DONE:
            members.informed.add(j)  # the request told it that this site is done


async def _inform(session: SiteSession, neighbours: set[int], seconds: float) -> None:
    """Answer until these neighbours know that this site is done."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not neighbours <= session.members.informed:
        await asyncio.sleep(0.05)


def leave(session: SiteSession, t: int, linger: float) -> None:
    """Answer until the neighbours know that round t is the first without this site, at most `linger` seconds."""
    members = session.members
    there = set(members.neighbourhood.neighbours(members.rounds))  # also those that join later
    session.loop.wait(_inform(session, there, linger))
    untold = [members.name(j) for j in sorted(there - members.informed)]
    session.log.event("left", round=t, untold=", ".join(untold))
    if not untold:  # else the site has to come back and tell them
        write_atomically(members.folder / LEAVE_FILE, lambda file: file.write(b"%d\n" % t))
