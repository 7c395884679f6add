"""Prints the status of sites for the people who operate them."""

import json
import math
from collections.abc import Collection, Mapping, Sequence
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
from netfleet.sites.network.wait_cause import STATES
from netfleet.sites.operations.status import SiteStatus, StatusAnswer
from netfleet.sites.planning.alarm_settings import first_alarm
from netfleet.sites.planning.folders import MODEL_FILE, RUN_FOLDER, Site
from netfleet.sites.planning.overview import say

#: Days before the end of a certificate from which on it is red, and the colours of states.
ENDS_SOON = 14
_STATES = {"training": "green", "waiting": "yellow", "finished": "blue", "left": "dim"}
#: Columns of a terminal that has room for the bytes too.
WIDE = 100


class Invariant(NamedTuple):
    """‖Σ(y − g)‖ over some sites after round t, and the sum of their norms to compare it with."""

    t: int
    sites: int
    norm: float
    of: float


def print_status(answers: Sequence[StatusAnswer], console: Console) -> None:
    """A line for each site, then remarks about links and about all sites."""
    console.print(status_table(answers, console.width))
    for line in status_lines(answers):
        say(console, line)


def status_lines(answers: Sequence[StatusAnswer]) -> list[str]:
    """Remarks below the table, the causes of waits first."""
    found = [answer.status for answer in answers if answer.status is not None]
    remarks = [line for answer in answers for line in _remarks(answer)]
    groups = components(found)
    first = first_alarm({status.site: status.alarms for status in found})
    alarmed = [first.words] if first is not None and sum(len(status.alarms) for status in found) > 1 else []
    lines = [
        *cause_lines(found),
        *alarmed,
        *remarks,
        *_list_lines(found),
        *_apart_lines(found),
        *_invariant_lines(found, groups),
    ]
    if len(groups) > 1:
        parts = "; ".join(", ".join(group) for group in groups)
        lines.append(f"These sites train in {len(groups)} groups that no longer reach each other: {parts}")
    return lines


def print_json(answers: Sequence[StatusAnswer]) -> None:
    """All answers, for programs."""
    found = [answer.status for answer in answers if answer.status is not None]
    total = None if missing(found) else invariant(found)
    sites = {a.name: {"left" if a.left else "error": a.why} if a.status is None else asdict(a.status) for a in answers}
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


def status_table(answers: Sequence[StatusAnswer], width: int = WIDE) -> Table:
    """A line for each site, in colours where the terminal has them; without the bytes where it is narrow."""
    bytes_too = ("sent", "received") if width >= WIDE else ()
    table = _columns("site", "state", "round", "pace", "left", "accuracy", "at", "refused", "cert.", *bytes_too)
    causes = {status.wait.cause for answer in answers if (status := answer.status) is not None and status.wait}
    for answer in answers:
        cells = list(map(escape, (answer.name, *_cells(answer)[: len(table.columns) - 1])))
        colours = _colours(answer, causes)
        table.add_row(*(f"[{colours[i]}]{cell}[/]" if i in colours else cell for i, cell in enumerate(cells)))
    return table


def _cells(answer: StatusAnswer) -> list[str]:
    status = answer.status
    if status is None:
        return ["left" if answer.left else "no answer", *["–"] * 9]
    at = status.record.get("round")
    return [
        status.state,
        f"{status.round}/{status.rounds}",
        _pace(status.round_seconds),
        "–" if not status.left_seconds else in_words(status.left_seconds),
        _quality(status.record),
        "–" if at is None else f"{at:.0f}",
        str(status.refused),
        f"{status.certificate_days} d",
        decimal(sum(link.sent for link in status.neighbours)),
        decimal(sum(link.received for link in status.neighbours)),
    ]


def _pace(seconds: float | None) -> str:
    """Seconds for a round."""
    return "–" if not seconds else f"{seconds:.2g} s" if seconds < 9.95 else in_words(seconds)


def _colours(answer: StatusAnswer, causes: Collection[int]) -> dict[int, str]:
    """The colour of some cells of a site's line: red, if somebody should look there."""
    status = answer.status
    if status is None:
        return {1: _STATES["left"]} if answer.left else {0: "bold red", 1: "red"}
    state = _STATES.get(status.state, "yellow")
    site = {0: "bold red"} if status.number in causes and status.state != "training" else {}
    refused = {7: "yellow"} if status.refused else {}
    return {1: state} | site | refused | ({8: "red"} if status.certificate_days < ENDS_SOON else {})


def cause_lines(found: Sequence[SiteStatus]) -> list[str]:
    """For whom the sites wait in the end: a sentence for each cause, with the names that any of the sites knows."""
    names = {link.number: link.name for status in found for link in status.neighbours}
    names |= {status.number: status.site for status in found}
    waiting: dict[int, list[SiteStatus]] = {}
    for status in found:
        if status.wait is not None:
            waiting.setdefault(status.wait.cause, []).append(status)
    return [_cause_line(names.get(number, f"site {number}"), sites, found) for number, sites in waiting.items()]


def _cause_line(name: str, waiting: Sequence[SiteStatus], found: Sequence[SiteStatus]) -> str:
    waits = [status.wait for status in waiting if status.wait is not None]
    wait = max(waits, key=lambda each: (STATES.index(each.state), each.since))
    others = [status.site for status in waiting if status.site != name]
    everybody = len(others) > 1 and len(others) == sum(status.site != name for status in found)
    who = "All wait" if everybody else f"{', '.join(others) or name} wait{'' if len(others) > 1 else 's'}"
    if not others:
        return f"{name} waits for a neighbour that cannot reach it, for {in_words(wait.seconds)}."
    what = f"{wait.state}{' after an alarm' if wait.state == 'holding' else ''}"
    return f"{who} for {name}, which has been {what} for {in_words(wait.since)}."


def _quality(record: Mapping[str, float | None]) -> str:
    if (accuracy := record.get("accuracy")) is not None:
        return f"{100 * accuracy:.1f} %"
    return "–" if (loss := record.get("loss")) is None else f"loss {loss:.4g}"


def _remarks(answer: StatusAnswer) -> list[str]:
    """A line for each link that is lost, waited for, or open in one direction only."""
    if answer.status is None:
        return [f"{answer.name}: {answer.why}"]
    lines = [f"{answer.name}: alarm ({alarm}); nobody has looked yet" for alarm in answer.status.alarms]
    lines += [f"{answer.name}: {name} cannot dial it; see event no_inbound" for name in answer.status.no_inbound]
    for link in answer.status.neighbours:
        if link.lost is not None and not link.left:
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
        title = found[0].algorithm
        return [f"No Σ(y − g): {title} tracks no gradient, or no site here has told (only the operator is)."]
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
