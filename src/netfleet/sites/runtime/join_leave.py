"""How a site joins while the others train, and how it ends or leaves.

A new site, or one that rejoins, asks each neighbour (JOIN), which answers with the first round T of the link and waits
for it from then on. Then it takes the mean of their models and starts as every worker does, with its own gradient,
which adds nothing to Σ(y − g).
The flows of old links were taken back and those of the new ones start at zero. So the invariant holds among all sites,
whatever rounds the links begin in. Only its two ends agree on a link.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import torch
from torch import Tensor

from netfleet.algorithms import Algorithm
from netfleet.engines.job import Snapshot
from netfleet.engines.loop import Counted, begin
from netfleet.errors import ConfigError, FrameError, NoLinkError, RollbackError, TransportError
from netfleet.files import write_atomically
from netfleet.runs import checkpoint
from netfleet.sites.network.client import Answer, Wanted
from netfleet.sites.network.outbox import Message
from netfleet.sites.network.wire import Kind
from netfleet.sites.planning.folders import LEAVE_FILE, RUN_FOLDER
from netfleet.sites.planning.rollbacks import Pending, Rollbacks, read_rollbacks, rollbacks_in, write_rollbacks
from netfleet.sites.runtime.exchange import SiteSession
from netfleet.sites.runtime.kept import available, remove
from netfleet.sites.runtime.neighbourhood import SiteHost

#: Seconds for which a site asks its neighbours for a link, and for which it asks the others once one has agreed.
ASK, GRACE = 30.0, 3.0
#: Seconds between two attempts, and how often a neighbour is asked for its model.
PAUSE, TRIES = 0.5, 5
#: Seconds for which a site that is done, as all its neighbours are, still answers those that do not know yet.
INFORM = 5.0
_OVER = "says that the training is over"


def join(session: SiteSession, host: SiteHost, algorithm: Algorithm, config_hash: str) -> None:
    """Agree with the neighbours on first rounds, take the mean of their models, and save it as the checkpoint."""
    members, neighbourhood = session.members, session.members.neighbourhood
    if members.fixed is not None:
        raise members.fixed
    answers = session.loop.wait(_ask_all(session))
    _compare_rollbacks(session, answers)
    agreed = {j: answer.t for j, answer in answers.items() if answer.kind == Kind.JOINED}
    links = {j: t for j, t in agreed.items() if 0 < t < members.rounds}
    if not links:
        reasons = "; ".join(f"{c.neighbour.name} {c.waiting or 'did not answer'}" for c in members.contacts.values())
        error = TransportError if _OVER in reasons else NoLinkError
        raise error(f"no neighbour agreed to a link with {members.site.name} within {ASK:g} s: {reasons}")
    t = min(links.values())
    neighbourhood.lost = {j: t for j in neighbourhood.weights if j not in links}
    neighbourhood.since |= links
    members.check_enough()
    members.write_links()
    names = ", ".join(f"{members.name(j)} from round {first}" for j, first in sorted(links.items()))
    missing = ", ".join(f"{members.name(j)} ({members.contacts[j].waiting})" for j in sorted(neighbourhood.lost))
    again = checkpoint.exists(members.folder / RUN_FOLDER) or members.site.planned
    session.receipts.note_change("rejoined" if again else "joined", members.site.name, t, f"links: {names}")
    f = Counted(host.problem)
    x, f.problem.buffers = _mean_model(session, host, links)
    state = begin(host, algorithm, f, x)
    snapshot = Snapshot(t, state, f.problem.buffers, samples=f.samples, network=host.network_state())
    checkpoint.save(members.folder / RUN_FOLDER, snapshot, host, config_hash)
    _complete_rollbacks(members.folder)
    (members.folder / LEAVE_FILE).unlink(missing_ok=True)
    session.log.event("joined", level="warning" if missing else "info", round=t, links=names, missing=missing)


def _compare_rollbacks(session: SiteSession, answers: Mapping[int, Answer]) -> None:
    """If most of the neighbours were rolled back otherwise, so is this site, because it takes their model."""
    members, told = session.members, dict[Rollbacks, list[str]]()
    for j, answer in answers.items():
        found = rollbacks_in(answer.run)
        if found.is_possible(members.rounds):
            told.setdefault(found, []).append(members.name(j))
        else:
            session.log.refused(members.name(j), f"it says that it {found}, which a training like this cannot be")
    own, folder = members.site.rollbacks, members.folder
    others = max(told, key=lambda each: len(told[each]), default=own)
    if told and 2 * len(told[others]) <= sum(map(len, told.values())):
        sides = "; ".join(f"{', '.join(names)}: {each}" for each, names in told.items())
        raise ConfigError(
            f"the neighbours of {members.site.name} do not agree how their training was rolled back, and no side has "
            f"most of them: {sides}. Roll back those that were left out, or evict who is wrong; then start "
            f"{members.site.name} again with --rejoin"
        )
    if others != own:
        reached = checkpoint.reached(folder / RUN_FOLDER) if checkpoint.exists(folder / RUN_FOLDER) else 0
        write_rollbacks(folder, Pending(others, True, reached, rejoins=True))
        raise RollbackError(
            f"{members.site.name} {own}, and the training of its neighbours {others}, which it takes over; start "
            f"{members.site.name} again with --rejoin"
        )


def _complete_rollbacks(folder: Path) -> None:
    """The site has the state of its neighbours; what it kept from before their rollbacks is of no use with theirs."""
    known = read_rollbacks(folder)
    if known.rejoins:
        remove(folder, available(folder))
        write_rollbacks(folder, known._replace(pending=False, rejoins=False))


async def _ask_all(session: SiteSession) -> dict[int, Answer]:
    """The answers of all neighbours that agree, or were rolled back otherwise; if all were, of as many as possible."""
    tasks = {j: asyncio.ensure_future(_ask(session, j)) for j in session.members.contacts}
    until = time.monotonic() + ASK
    while (waiting := [task for task in tasks.values() if not task.done()]) and time.monotonic() < until:
        before = len(_agreed(session, tasks))
        await asyncio.wait(waiting, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
        if before == 0 and _agreed(session, tasks):
            until = min(until, time.monotonic() + GRACE)
    for task in tasks.values():
        task.cancel()
    return {j: task.result() for j, task in tasks.items() if task.done() and not task.cancelled()}


def _agreed(session: SiteSession, tasks: dict[int, asyncio.Task[Answer]]) -> list[Answer]:
    done = [task.result() for task in tasks.values() if task.done() and not task.cancelled()]
    return [answer for answer in done if answer.kind != Kind.DONE and answer.run == session.members.site.run_id]


async def _ask(session: SiteSession, j: int) -> Answer:
    """Ask neighbour j until it agrees or says why not."""
    contact = session.members.contacts[j]
    while True:
        try:
            answer = await session.client.join(contact)
            if answer.run != session.members.site.run_id:
                return answer
            if answer.kind != Kind.WAIT:
                contact.waiting = _OVER if answer.kind == Kind.DONE else ""
                return answer
            contact.waiting = "is about to join too"
        except TransportError as error:
            session.client.note_failure(contact, error)
        await asyncio.sleep(PAUSE)


def _mean_model(session: SiteSession, host: SiteHost, links: dict[int, int]) -> tuple[Tensor, Tensor | None]:
    """x `[1, d]` and the buffers `[1, b]`, over the neighbours that answer."""
    parts = [host.problem.start()[None]]
    if host.problem.initial_buffers is not None:
        parts.append(host.problem.initial_buffers[:1])
    models = session.loop.wait(_models(session, links, torch.cat(parts, dim=1).cpu()))
    if not models:
        raise NoLinkError(f"no neighbour gave {session.members.site.name} its model; try again")
    mean = torch.stack(models).mean(dim=0).to(host.problem.device)
    x, *buffers = torch.split(mean, [part.shape[1] for part in parts], dim=1)
    return x.contiguous(), buffers[0].contiguous() if buffers else None


async def _models(session: SiteSession, links: dict[int, int], like: Tensor) -> list[Tensor]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_model(session, j, t, torch.empty_like(like))) for j, t in links.items()]
    return [model for task in tasks if (model := task.result()) is not None]


async def _model(session: SiteSession, j: int, t: int, into: Tensor) -> Tensor | None:
    view, contact = into.view(torch.uint8)[0], session.members.contacts[j]
    expected = session.expected(j, t, words=describe_model(into), total=view.numel())
    wanted = Wanted(expected, view.numpy().data.cast("B"), lambda: bool(torch.isfinite(into).all()))
    for _ in range(TRIES):
        try:
            answer = await session.client.model(contact, wanted)
            return into if answer.kind == Kind.CHUNK else None
        except TransportError as error:
            session.client.note_failure(contact, error)
        await asyncio.sleep(PAUSE)
    return None


def describe_model(model: Tensor) -> str:
    """What the bytes of a model `[1, d]` are."""
    return f"model {model.dtype}[{model.shape[1]}]".replace("torch.", "")


def model_message(snapshot: Snapshot | None) -> Message:
    """The model and its buffers as a neighbour gets them."""
    if snapshot is None:
        raise FrameError("there is no model yet, or the site has a loop of its own; ask again later")
    parts = [snapshot.state.x] + ([] if snapshot.buffers is None else [snapshot.buffers.to(snapshot.state.x.dtype)])
    model = torch.cat(parts, dim=1).cpu().contiguous()
    return Message(describe_model(model), model.view(torch.uint8)[0])


async def stay(session: SiteSession, linger: float) -> None:
    """Wait until all neighbours are done too, or have not answered for `linger` seconds."""
    there = session.members.neighbourhood.neighbours(session.members.rounds)
    async with asyncio.TaskGroup() as group:
        for j in there:
            group.create_task(_wait_for(session, j, linger))
    await _wait_until(lambda: session.members.informed.issuperset(there), INFORM)
    await _wait_for_receipts(session, there)


async def _wait_for(session: SiteSession, j: int, linger: float) -> None:
    """Wait until neighbour j is done: it says so, or asks for what comes after the end."""
    contact, members, begun = session.members.contacts[j], session.members, time.monotonic()

    def given_up() -> bool:
        return j in members.done or time.monotonic() - max(begun, contact.last_heard or begun) > linger

    answer = await session.client.pull(contact, Wanted(session.expected(j, members.rounds), given_up=given_up))
    if answer.kind == Kind.DONE:
        members.informed.add(j)  # the request told it that this site is done, and had the last receipts
    elif j in members.done:
        await _give_receipts(session, j)
    else:
        waited = round(time.monotonic() - begun)
        session.log.event("unfinished", level="warning", neighbour=members.name(j), why=contact.waiting, waited=waited)


async def _wait_until(happened: Callable[[], bool], seconds: float) -> None:
    """Answer neighbours meanwhile."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not happened():
        await asyncio.sleep(0.05)


async def _give_receipts(session: SiteSession, j: int) -> None:
    """Give neighbour j the receipts for its last messages, if it is still there."""
    until, contact = time.monotonic() + INFORM, session.members.contacts[j]
    while time.monotonic() < until:
        try:
            await session.client.give_receipts(contact)
            break
        except TransportError as error:
            session.client.note_failure(contact, error)
        await asyncio.sleep(PAUSE)


async def _wait_for_receipts(session: SiteSession, neighbours: Collection[int]) -> None:
    """Wait shortly until these neighbours have confirmed this site's last messages."""
    members = session.members

    def unconfirmed() -> list[str]:
        return [members.name(j) for j in neighbours if session.receipts.unconfirmed(members.name(j))]

    await _wait_until(lambda: not unconfirmed(), INFORM)
    if names := unconfirmed():
        session.log.event("unconfirmed", neighbours=", ".join(names))


async def leave(session: SiteSession, t: int, linger: float) -> None:
    """Answer until the neighbours know that round t is the first without this site, at most `linger` seconds."""
    members = session.members
    there = set(members.neighbourhood.neighbours(members.rounds))  # also those that join later
    await _wait_until(lambda: there <= members.informed, linger)
    await asyncio.gather(*(_give_receipts(session, j) for j in there & members.informed))
    await _wait_for_receipts(session, there & members.informed)
    uninformed = [members.name(j) for j in sorted(there - members.informed)]
    level = "warning" if uninformed else "info"
    session.log.event("left", level=level, round=t, not_informed=", ".join(uninformed))
    if not uninformed:  # else the site has to come back and tell them
        write_atomically(members.folder / LEAVE_FILE, lambda file: file.write(b"%d\n" % t))
