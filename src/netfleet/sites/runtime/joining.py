"""How a site comes in while the others train: anew, or again after it was dropped.

It asks each neighbour (JOIN), which answers with the first round T of the link and from then on waits for it there.
Then it takes the mean of their models and begins as every worker does, with its own gradient, which adds nothing to
Σ(y − g). Ledgers of old links were taken back, those of the new ones begin at zero: the invariant holds among all,
whatever rounds the links begin in. Each link is agreed upon by its two ends alone.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import grpc.aio
import torch
from torch import Tensor

from netfleet.engines.job import Snapshot
from netfleet.engines.loop import Counted, begin
from netfleet.errors import FrameError, TransportError
from netfleet.runs import checkpoint
from netfleet.runs.history import History
from netfleet.sites.network.transport import Answer, Wanted, reason
from netfleet.sites.network.wire import Expected, Kind
from netfleet.sites.planning.folders import LEAVE_FILE, RUN_FOLDER

if TYPE_CHECKING:
    from netfleet.sites.runtime.runner import Node

#: Seconds for which neighbours are asked to let a site in, and for which the others are asked once one has.
KNOCK, GRACE = 30.0, 3.0
#: How often a neighbour is asked for its model.
TRIES = 5


def join(node: Node, history: History) -> None:
    """Agree with the neighbours on first rounds, take their model, and write the checkpoint to begin from."""
    if node.desk.losable is not None:
        raise node.desk.losable
    links = node.bridge.wait(_knock_at_all(node))
    if not links:
        reasons = "; ".join(f"{c.about.name} {c.waiting or 'did not answer'}" for c in node.desk.contacts.values())
        raise TransportError(f"no neighbour let {node.site.name} in within {KNOCK:g} s: {reasons}")
    t = min(links.values())
    hood = node.hood
    hood.lost = {j: t for j in hood.weights if j not in links}
    hood.since |= links
    node.desk.write_links()
    x, buffers = _mean_model(node, links, t)
    snapshot = _first_snapshot(node, t, x, buffers)
    checkpoint.save(node.folder / RUN_FOLDER, snapshot, node.host, history.hash)
    (node.folder / LEAVE_FILE).unlink(missing_ok=True)
    names = ", ".join(f"{node.desk.name(j)} from round {first}" for j, first in sorted(links.items()))
    without = ", ".join(f"{node.desk.name(j)} ({node.desk.contacts[j].waiting})" for j in sorted(hood.lost))
    node.log.event("joined", round=t, links=names, without=without)


async def _knock_at_all(node: Node) -> dict[int, int]:
    """The first round of the link to every neighbour that lets this site in."""
    tasks = {j: asyncio.ensure_future(_knock(node, j)) for j in node.desk.contacts}
    until = time.monotonic() + KNOCK
    while (waiting := [task for task in tasks.values() if not task.done()]) and time.monotonic() < until:
        before = len(_let_in(tasks))
        await asyncio.wait(waiting, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
        if before == 0 and _let_in(tasks):
            until = min(until, time.monotonic() + GRACE)
    for task in tasks.values():
        task.cancel()
    return {j: t for j, t in _let_in(tasks).items() if 0 < t < node.experiment.rounds}


def _let_in(tasks: dict[int, asyncio.Task[Answer]]) -> dict[int, int]:
    done = {j: task.result() for j, task in tasks.items() if task.done() and not task.cancelled()}
    return {j: answer.t for j, answer in done.items() if answer.kind == Kind.JOINED}


async def _knock(node: Node, j: int) -> Answer:
    """Ask neighbour j until it says something."""
    contact = node.desk.contacts[j]
    while True:
        try:
            answer = await node.client.join(contact)
            if answer.kind != Kind.WAIT:
                contact.waiting = "says that the training is over" if answer.kind == Kind.DONE else ""
                return answer
            contact.waiting = "is about to join too"
        except FrameError as error:
            node.log.refused(contact.about.name, str(error))
            contact.waiting = f"sent what was refused: {error}"
        except (TransportError, grpc.aio.AioRpcError) as error:
            contact.waiting = reason(error)
        await asyncio.sleep(0.5)


def _mean_model(node: Node, links: dict[int, int], t: int) -> tuple[Tensor, Tensor | None]:
    """x `[1, d]` and the buffers `[1, b]`, over the neighbours that answer."""
    problem = node.host.problem
    parts = [problem.start()[None]]
    if problem.initial_buffers is not None:
        parts.append(problem.initial_buffers[:1])
    widths = [part.shape[1] for part in parts]
    models = node.bridge.wait(_models(node, links, t, torch.cat(parts, dim=1)))
    if not models:
        raise TransportError(f"no neighbour gave {node.site.name} its model; try again")
    mean = torch.stack(models).mean(dim=0)
    x, *buffers = torch.split(mean, widths, dim=1)
    return x.contiguous(), buffers[0].contiguous() if buffers else None


async def _models(node: Node, links: dict[int, int], t: int, like: Tensor) -> list[Tensor]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_model(node, j, t, torch.empty_like(like))) for j in links]
    return [task.result() for task in tasks if task.result() is not None]  # type: ignore[misc]


async def _model(node: Node, j: int, t: int, into: Tensor) -> Tensor | None:
    view = into.view(torch.uint8)[0]
    expected = Expected(bytes.fromhex(node.site.run), j, t, 0, _words(into), view.numel())
    wanted = Wanted(expected, view.numpy().data.cast("B"), lambda: bool(torch.isfinite(into).all()))
    for _ in range(TRIES):
        try:
            answer = await node.client.model(node.desk.contacts[j], wanted)
            return into if answer.kind == Kind.CHUNK else None
        except FrameError as error:
            node.log.refused(node.desk.name(j), str(error))
        except (TransportError, grpc.aio.AioRpcError) as error:
            node.desk.contacts[j].waiting = reason(error)
        await asyncio.sleep(0.5)
    return None


def _words(model: Tensor) -> str:
    return f"model {model.dtype}[{model.shape[1]}]".replace("torch.", "")


def _first_snapshot(node: Node, t: int, x: Tensor, buffers: Tensor | None) -> Snapshot:
    f = Counted(node.host.problem)
    f.problem.buffers = buffers
    state = begin(node.host, node.algorithm, f, x)
    return Snapshot(t, state, buffers, samples=f.samples, network=node.host.network_state())


def durable_model(node: Node) -> tuple[str, Tensor]:
    """The model as it was last made durable, for a neighbour that joins: what it is, and its bytes."""
    snapshot = node.report.snapshot
    if snapshot is None:
        raise FrameError("there is no model yet; ask again later")
    parts = [snapshot.state.x] + ([] if snapshot.buffers is None else [snapshot.buffers.to(snapshot.state.x.dtype)])
    model = torch.cat(parts, dim=1).contiguous()
    return _words(model), model.view(torch.uint8)[0]
