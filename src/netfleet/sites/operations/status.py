"""The state of all sites that were asked, for whoever looks after them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import networkx as nx
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from netfleet.errors import CheckpointError
from netfleet.runs.history import History
from netfleet.runs.progress import in_words
from netfleet.sites.operations.status_client import Said, ask_all, whom
from netfleet.sites.planning.folders import RUN_FOLDER, SITE_FILE, Site, admitted, load_plan, load_site
from netfleet.sites.planning.identity import OPERATOR, load_identity
from netfleet.sites.runtime.model import MODEL_FILE


class Invariant(NamedTuple):
    """‖Σ(y − g)‖ over some sites after round t, and the sum of their norms to compare it with."""

    t: int
    sites: int
    norm: float
    of: float


def print_status(said: Sequence[Said], console: Console) -> None:
    """A line for each site, then what can be said of all."""
    console.print(_table(said))
    answers = [each.table for each in said if each.table is not None]
    remarks = [line for each in said for line in _remarks(each)]
    groups = components(answers)
    for line in [*remarks, *_apart_lines(answers), *_invariant_lines(answers, groups)]:
        _say(console, line)
    if len(groups) > 1:
        parts = "; ".join(", ".join(group) for group in groups)
        _say(console, f"These sites train in {len(groups)} groups that no longer reach each other: {parts}")


def look(folder: Path) -> list[Said]:
    """Ask all sites of a plan or operator's folder, or a site and its neighbours from its own."""
    if (folder / SITE_FILE).is_file():
        site, _ = load_site(folder)
        return ask_all(whom([site, *site.neighbours]), load_identity(folder, site.name))
    operator = folder / OPERATOR if (folder / OPERATOR).is_dir() else folder
    sites = [*load_plan(operator).sites, *admitted(operator)]
    return ask_all(whom(sites), load_identity(operator, OPERATOR))


def print_json(said: Sequence[Said]) -> None:
    """All that was answered, for programs."""
    answers = [each.table for each in said if each.table is not None]
    found = None if missing(answers) else invariant(answers)
    print(
        json.dumps(
            {
                "sites": {each.whom.name: each.table or {"error": each.why} for each in said},
                "invariant": None if found is None else found._asdict(),
                "components": components(answers),
            }
        )
    )


def print_results(folder: Path, sites: Sequence[Site], console: Console) -> None:
    """What every site had in the end, from its history."""
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
    _say(console, f"Models are in {folder}/NAME, histories in {folder}/NAME/{RUN_FOLDER}.")


def _columns(*heads: str) -> Table:
    """A table that fits a terminal; names may be folded, numbers not."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for head in heads:
        text = head in ("site", "state", "model")
        table.add_column(head, justify="left" if text else "right", no_wrap=head != "site", overflow="fold")
    return table


def _table(said: Sequence[Said]) -> Table:
    table = _columns("site", "state", "round", "lag", "accuracy", "sent", "received", "refused", "cert.")
    newest = max((each.table["round"] for each in said if each.table), default=0)
    for each in said:
        table.add_row(*map(escape, (each.whom.name, *_cells(each.table, newest))))
    return table


def _cells(answer: dict[str, Any] | None, newest: int) -> list[str]:
    if answer is None:
        return ["no answer", *["–"] * 7]
    record, links = answer["record"], answer["neighbours"]
    return [
        answer["state"],
        f"{answer['round']}/{answer['rounds']}",
        str(newest - answer["round"]),
        _quality(record),
        decimal(sum(link["sent"] for link in links)),
        decimal(sum(link["received"] for link in links)),
        str(answer["refused"]),
        f"{answer['certificate_days']} days",
    ]


def _quality(record: dict[str, Any]) -> str:
    if record.get("accuracy") is not None:
        return f"{100 * record['accuracy']:.1f} %"
    return f"loss {record['loss']:.4g}" if record.get("loss") is not None else "–"


def _remarks(said: Said) -> list[str]:
    """What is worth a line of its own."""
    if said.table is None:
        return [f"{said.whom.name}: {said.why}"]
    lines = []
    for link in said.table["neighbours"]:
        if link["lost"] is not None:
            lines.append(f"{said.whom.name}: without {link['name']} since round {link['lost']}")
        elif link["waiting"]:
            heard = "never heard of" if link["heard"] is None else f"last heard of {in_words(link['heard'])} ago"
            lines.append(f"{said.whom.name}: waits for {link['name']}, which {link['waiting']}; {heard}")
    return lines


def _apart_lines(answers: Sequence[dict[str, Any]]) -> list[str]:
    """Who hears no more of whom, unless it has been said that they lost each other."""
    links = [(answer["site"], link) for answer in answers for link in answer["neighbours"]]
    names = {f"site {link['number']}": link["name"] for _, link in links}  # a site knows its neighbours' only
    lost = {(site, link["name"]) for site, link in links if link["lost"] is not None}
    lines: dict[str, list[str]] = {}
    for answer in answers:
        apart = [names.get(name, name) for name in answer["apart"]]
        if apart := [name for name in apart if (answer["site"], name) not in lost]:
            lines.setdefault(", ".join(apart), []).append(answer["site"])
    return [f"{', '.join(sites)}: no longer connected to {apart}" for apart, sites in lines.items()]


def missing(answers: Sequence[dict[str, Any]]) -> list[str]:
    """Sites that train with those who answered, but did not answer."""
    there = {link["name"] for answer in answers for link in answer["neighbours"] if link["there"]}
    return sorted(there - {answer["site"] for answer in answers})


def invariant(answers: Sequence[dict[str, Any]]) -> Invariant | None:
    """Σ(y − g) after the newest round that all of these sites still have a sketch of."""
    sketches = [{int(t): sums for t, sums in answer["sketches"]} for answer in answers]
    shared = set.intersection(*(set(each) for each in sketches)) if sketches else set()
    if not shared:
        return None
    t = max(shared)
    columns = list(zip(*(each[t] for each in sketches), strict=True))
    norm = math.hypot(*(math.fsum(column) for column in columns))
    return Invariant(t, len(answers), norm, math.fsum(math.hypot(*each[t]) for each in sketches))


def _invariant_lines(answers: Sequence[dict[str, Any]], groups: Sequence[Sequence[str]]) -> list[str]:
    """Σ(y − g) of every group of sites."""
    if not answers:
        return ["No site answered: none is running, or none can be reached from here."]
    if not any(answer["sketches"] for answer in answers):
        return [f"{answers[0]['algorithm']} tracks no gradient: there is no Σ(y − g)."]
    return [
        _invariant_line(
            [answer for answer in answers if answer["site"] in group],
            f" ({', '.join(group)})" if len(groups) > 1 else "",
        )
        for group in groups
    ]


def _invariant_line(answers: Sequence[dict[str, Any]], whose: str) -> str:
    if names := missing(answers):
        return f"Σ(y − g) is 0 over all sites that train together only; there is no answer from {', '.join(names)}."
    if silent := [answer["site"] for answer in answers if not answer["sketches"]]:
        return f"Σ(y − g): nothing from {', '.join(silent)}; sites tell it the operator only, after their first round."
    found = invariant(answers)
    if found is None:
        return f"Σ(y − g): there is no round of which all of these sites{whose} still know."
    where = f"after round {found.t} over {found.sites} sites{whose}"
    return f"‖Σ(y − g)‖ = {found.norm:.2e} {where}, where Σ‖y − g‖ = {found.of:.3g}."


def components(answers: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Groups of sites that reach each other: a link is there if no end that answered has given it up."""
    graph, names = nx.Graph(), {answer["site"] for answer in answers}
    graph.add_nodes_from(names)
    up = {(answer["site"], link["name"]) for answer in answers for link in answer["neighbours"] if link["there"]}
    graph.add_edges_from((a, b) for a, b in up if (b, a) in up or b not in names)
    return sorted(sorted(group) for group in nx.connected_components(graph))


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
