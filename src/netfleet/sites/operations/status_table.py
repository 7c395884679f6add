"""Prints the status of sites for the people who operate them."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import networkx as nx
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from netfleet.errors import CheckpointError
from netfleet.runs.history import History
from netfleet.runs.progress import in_words
from netfleet.sites.operations.status import SiteStatus, StatusAnswer
from netfleet.sites.planning.folders import MODEL_FILE, RUN_FOLDER, Site
from netfleet.sites.planning.overview import say


class Invariant(NamedTuple):
    """‖Σ(y − g)‖ over some sites after round t, and the sum of their norms to compare it with."""

    t: int
    sites: int
    norm: float
    of: float


def print_status(answers: Sequence[StatusAnswer], console: Console) -> None:
    """A line for each site, then remarks about links and about all sites."""
    console.print(_table(answers))
    found = [answer.status for answer in answers if answer.status is not None]
    remarks = [line for answer in answers for line in _remarks(answer)]
    groups = components(found)
    for line in [*remarks, *_list_lines(found), *_apart_lines(found), *_invariant_lines(found, groups)]:
        say(console, line)
    if len(groups) > 1:
        parts = "; ".join(", ".join(group) for group in groups)
        say(console, f"These sites train in {len(groups)} groups that no longer reach each other: {parts}")


def print_json(answers: Sequence[StatusAnswer]) -> None:
    """All answers, for programs."""
    found = [answer.status for answer in answers if answer.status is not None]
    total = None if missing(found) else invariant(found)
    sites = {a.name: {"error": a.why} if a.status is None else asdict(a.status) for a in answers}
    table = {"sites": sites, "invariant": total and total._asdict(), "components": components(found)}
    print(json.dumps(table))


def print_results(folder: Path, sites: Sequence[Site], console: Console) -> None:
    """The result of every site at the end, from its history."""
    table = _columns("site", "rounds", "accuracy", "sent", "model")
    for site in sites:
        model = folder / site.name / MODEL_FILE
        try:
            record = History.load(folder / site.name / RUN_FOLDER).records[-1]
            cells = [str(record["round"]), _quality(record), decimal(record["bytes"])]
        except (CheckpointError, IndexError):
            cells = ["–"] * 3
        table.add_row(site.name, *cells, model.name if model.exists() else "–")
    console.print(table)
    say(console, f"Models are in {folder}/NAME, histories in {folder}/NAME/{RUN_FOLDER}.")


def _columns(*heads: str) -> Table:
    """A table that fits a terminal: long names are folded, numbers are not."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for head in heads:
        text = head in ("site", "state", "model")
        table.add_column(head, justify="left" if text else "right", no_wrap=head != "site", overflow="fold")
    return table


def _table(answers: Sequence[StatusAnswer]) -> Table:
    table = _columns("site", "state", "round", "lag", "accuracy", "sent", "received", "refused", "cert.")
    newest = max((answer.status.round for answer in answers if answer.status), default=0)
    for answer in answers:
        table.add_row(*map(escape, (answer.name, *_cells(answer.status, newest))))
    return table


def _cells(status: SiteStatus | None, newest: int) -> list[str]:
    if status is None:
        return ["no answer", *["–"] * 7]
    return [
        status.state,
        f"{status.round}/{status.rounds}",
        str(newest - status.round),
        _quality(status.record),
        decimal(sum(link.sent for link in status.neighbours)),
        decimal(sum(link.received for link in status.neighbours)),
        str(status.refused),
        f"{status.certificate_days} days",
    ]


def _quality(record: Mapping[str, float | None]) -> str:
    if (accuracy := record.get("accuracy")) is not None:
        return f"{100 * accuracy:.1f} %"
    return "–" if (loss := record.get("loss")) is None else f"loss {loss:.4g}"


def _remarks(answer: StatusAnswer) -> list[str]:
    """A line for each link that is lost or waited for."""
    if answer.status is None:
        return [f"{answer.name}: {answer.why}"]
    lines = []
    for link in answer.status.neighbours:
        if link.lost is not None:
            lines.append(f"{answer.name}: without {link.name} since round {link.lost}")
        elif link.waiting:
            heard = "never heard from" if link.heard is None else f"last heard from {in_words(link.heard)} ago"
            lines.append(f"{answer.name}: waits for {link.name}, which {link.waiting}; {heard}")
    return lines


def _list_lines(found: Sequence[SiteStatus]) -> list[str]:
    """Which sites have an older revocation list than others."""
    newest = max((status.revocations for status in found), default=0)
    behind = [status for status in found if status.revocations < newest]
    return [f"{status.site}: has revocation list {status.revocations or 'none'}, not {newest}" for status in behind]


def _apart_lines(found: Sequence[SiteStatus]) -> list[str]:
    """Which sites no longer hear of which others, except where a line above says that they lost each other."""
    links = [(status.site, link) for status in found for link in status.neighbours]
    names = {f"site {link.number}": link.name for _, link in links}  # a site knows only its neighbours' names
    lost = {(site, link.name) for site, link in links if link.lost is not None}
    lines: dict[str, list[str]] = {}
    for status in found:
        apart = [names.get(name, name) for name in status.apart]
        if apart := [name for name in apart if (status.site, name) not in lost]:
            lines.setdefault(", ".join(apart), []).append(status.site)
    return [f"{', '.join(sites)}: no longer connected to {apart}" for apart, sites in lines.items()]


def missing(found: Sequence[SiteStatus]) -> list[str]:
    """Sites that train with those that answered, but did not answer."""
    there = {link.name for status in found for link in status.neighbours if link.there}
    return sorted(there - {status.site for status in found})


def invariant(found: Sequence[SiteStatus]) -> Invariant | None:
    """Σ(y − g) after the newest round of which all of these sites still have a sketch."""
    sketches = [dict(status.sketches) for status in found]
    shared = set.intersection(*(set(each) for each in sketches)) if sketches else set()
    if not shared:
        return None
    t = max(shared)
    columns = list(zip(*(each[t] for each in sketches), strict=True))
    norm = math.hypot(*(math.fsum(column) for column in columns))
    return Invariant(t, len(found), norm, math.fsum(math.hypot(*each[t]) for each in sketches))


def _invariant_lines(found: Sequence[SiteStatus], groups: Sequence[Sequence[str]]) -> list[str]:
    """Σ(y − g) of every group of sites."""
    if not found:
        return ["No site answered: none is running, or none can be reached from here."]
    if not any(status.sketches for status in found):
        return [f"{found[0].algorithm} tracks no gradient: there is no Σ(y − g)."]
    names = [f" ({', '.join(group)})" if len(groups) > 1 else "" for group in groups]
    members = [[status for status in found if status.site in group] for group in groups]
    return [_invariant_line(*each) for each in zip(members, names, strict=True)]


def _invariant_line(found: Sequence[SiteStatus], whose: str) -> str:
    if names := missing(found):
        return f"Σ(y − g) is 0 only over all sites that train together; there is no answer from {', '.join(names)}."
    if silent := [status.site for status in found if not status.sketches]:
        return f"Σ(y − g): nothing from {', '.join(silent)}; sites tell only the operator, after their first round."
    total = invariant(found)
    if total is None:
        return f"Σ(y − g): there is no round of which all of these sites{whose} have a sketch."
    where = f"after round {total.t} over {total.sites} sites{whose}"
    return f"‖Σ(y − g)‖ = {total.norm:.2e} {where}, where Σ‖y − g‖ = {total.of:.3g}."


def components(found: Sequence[SiteStatus]) -> list[list[str]]:
    """Groups of sites that reach each other; a link counts unless one of its ends has answered that it is lost."""
    graph, names = nx.Graph(), {status.site for status in found}
    graph.add_nodes_from(names)
    up = {(status.site, link.name) for status in found for link in status.neighbours if link.there}
    graph.add_edges_from((a, b) for a, b in up if (b, a) in up or b not in names)
    return sorted(sorted(group) for group in nx.connected_components(graph))
