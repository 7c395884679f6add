"""What `netfleet reproduce speedup` does: runs the missing points of the studies, draws them and fits their slopes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from netfleet.errors import ConfigError
from netfleet.files import write_atomically
from reproduce.panels import DIVISORS, Scale
from reproduce.progress import LiveTotal
from reproduce.speedup.figure import draw
from reproduce.speedup.fit import Measured, fit, rows
from reproduce.speedup.results import Results, make_points, margin
from reproduce.speedup.study import Study, load_study
from reproduce.store import make_folder

#: The studies' folder beside the panels, their name on the command line, and that of their picture.
NAME = "speedup"
HEADINGS = ("study", "line", "rounds", "points", "exponent of m", "of SK", "of mSK")
#: The corollary speaks of S ≥ (mK)³; how much further inside, and how that is said.
RANGES = {"S ≥ 16(mK)³": 16.0, "S ≥ (mK)³": 1.0, "all": 0.0}


def find_studies(source: Path, scale: Scale = "full", seeds: int | None = None) -> list[Study]:
    """The studies of a checkout: all numbers of rounds, the first half of them or the first two, and so many seeds."""
    studies = [load_study(path) for path in sorted((source / NAME).glob("*.toml"))]
    if not studies:
        raise ConfigError(f"no studies (*.toml) in {str(source / NAME)!r}; run this in a checkout of netfleet")
    return [_scaled(study, scale, seeds) for study in studies]


def _scaled(study: Study, scale: Scale, seeds: int | None) -> Study:
    rounds = sorted(study.rounds)
    rounds = rounds[: max(2, len(rounds) // DIVISORS[scale])] if scale != "full" else rounds
    chosen = study.seeds if seeds is None else list(range(study.seeds[0], study.seeds[0] + seeds))
    return replace(study, rounds=rounds, seeds=chosen)


def choose(studies: Sequence[Study], names: Sequence[str]) -> list[Study]:
    """The studies that names ask for: "speedup" (all) or "speedup-STUDY"."""
    known = {f"{NAME}-{study.name}": study for study in studies}
    for name in names:
        if name != NAME and name not in known:
            raise ConfigError(f"unknown study {name!r}; there are {NAME} (all of them), {', '.join(known)}")
    return [study for name, study in known.items() if NAME in names or name in names]


def reproduce(
    studies: Sequence[Study], to_run: Sequence[Study], results: Path, picture: Path, console: Console
) -> None:
    """Run the points that are missing of some studies, draw the figure of all and print the slopes."""
    make_folder(results)
    known = {study.name: Results(results / f"{study.name}.json") for study in studies}
    todo = [(p, known[s.name]) for s in to_run for p in s.points() if known[s.name].of(p) is None]
    if todo:
        with LiveTotal(console, {point.label: point.work for point, _ in todo}) as live:
            make_points(todo, live)
    found = measured([(study, known[study.name]) for study in studies])
    if not found:
        console.print(f"{picture.name}: no runs yet", highlight=False)
        return
    make_folder(picture.parent)
    figure = draw(found)
    write_atomically(picture, lambda file: figure.savefig(file, format="png"))
    console.print(f"wrote {picture}", markup=False, highlight=False, soft_wrap=True)
    table = Table(*HEADINGS, header_style="bold")
    for row in slopes(found):
        table.add_row(*row)
    console.print(table)
    for sentence in margins([(study, known[study.name]) for study, _ in found]):
        console.print(sentence, highlight=False)


def measured(known: Sequence[tuple[Study, Results]]) -> list[tuple[Study, Measured]]:
    """The studies with something to show; one that is not finished says so in its title."""
    found: list[tuple[Study, Measured]] = []
    for study, results in known:
        lines, points = rows(study, results), len(list(study.points()))
        if done := sum(len(row.values) for line in lines.values() for row in line):
            part = f" ({done} of {points} runs)" if done < points else ""
            found.append((replace(study, title=study.title + part), lines))
    return found


def slopes(found: Sequence[tuple[Study, Measured]]) -> list[tuple[str, ...]]:
    """Under HEADINGS, the exponents of every line in each of the ranges that has enough points."""
    return [
        (study.title, label, words, str(len(some)), *(str(e or "–") for e in (law.workers, law.steps, law.work)))
        for study, lines in found
        for label, line in lines.items()
        for words, times in RANGES.items()
        if (law := fit(some := [row for row in line if row.inside(times)])) is not None
    ]


def margins(found: Sequence[tuple[Study, Results]]) -> list[str]:
    """How the runs whose constants are known compare with Theorem 1, a sentence for each study."""
    known = [(study.title, m) for study, results in found if (m := margin(study, results)) is not None]
    return [
        f"{title}: {m.runs} runs of NET-FLEET, with η up to {m.excess:,.0f} times what Theorem 1 admits, are at most "
        f"{m.ratio:.2g} of its right-hand side"
        for title, m in known
    ]
