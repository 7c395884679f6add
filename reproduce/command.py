"""What `netfleet reproduce` does, from names to pictures and verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from netfleet.errors import ConfigError
from netfleet.files import write_atomically
from netfleet.runs.checkpoint import MANIFEST
from netfleet.runs.progress import Live
from reproduce import figures, runs, tables
from reproduce.panels import Panel, Scale, choose, find_panels, on, only, scaled
from reproduce.progress import LiveTotal
from reproduce.store import Store, make_folder, short
from reproduce.store import rehash as rehash_results


@dataclass(frozen=True)
class Places:
    """Where configs are read from, where finished runs and pictures go, and where unfinished runs wait."""

    source: Path
    results: Path
    pictures: Path
    parts: Path  # pictures of a figure of which only some panels were asked for
    work: Path

    def store(self) -> Store:
        return Store(self.results, self.source / "results", self.work / "results")


def places(source: Path, scale: Scale, rounds: int | None, seeds: int | None, out: Path | None, work: Path) -> Places:
    """What the files ask for goes beside them; scaled runs share one folder below `work`."""
    as_written = scale == "full" and rounds is None and seeds is None
    folder = out or (source if as_written else work)
    variant = "-".join([scale, *(f"{v}-{w}" for v, w in ((rounds, "rounds"), (seeds, "seeds")) if v is not None)])
    pictures = folder / "figures" if out or as_written else folder / variant
    return Places(source, folder / "results", pictures, work / "figures" if folder == source else pictures, work)


def selected(
    source: Path, names: Sequence[str], scale: Scale, rounds: int | None, seeds: int | None, **engine: Any
) -> list[Panel]:
    """The panels that the names mean, at the scale asked for."""
    for name, number in (("--rounds", rounds), ("--seeds", seeds)):
        if number is not None and number < 1:
            raise ConfigError(f"{name} must be at least 1, got {number}")
    if rounds is not None and scale != "full":
        raise ConfigError(f"--rounds {rounds} and --scale {scale} both say how many rounds; give one of them")
    return [on(scaled(panel, scale, rounds, seeds), **engine) for panel in choose(find_panels(source), names)]


def reproduce(
    panels: Sequence[Panel], where: Places, console: Console, *, run: bool = True, curves: Sequence[str] = ()
) -> None:
    """Make the runs that are missing (of some curves, or all), draw the figures and print the claims."""
    store = where.store()
    if run:
        _run(only(panels, curves) if curves else panels, store, where.work, console)
    whole = figures.by_figure(list(find_panels(where.source).values()))
    for name, members in figures.by_figure(panels).items():
        complete, alone = len(members) == len(whole[name]), [panel for panel in members if panel.headline]
        if complete or members != alone:
            _draw(members, store, where.pictures if complete else where.parts, console)
        for panel in alone:
            if len(whole[name]) > 1:
                _draw([panel], store, where.pictures, console)
    found = tables.lines(panels, store)
    if found:
        console.print(tables.console_table(found))
        console.print(tables.LEGEND, style="dim", highlight=False)


def _run(panels: Sequence[Panel], store: Store, work: Path, console: Console) -> None:
    for job in runs.jobs(panels):
        store.adopt(job.run)
    todo = runs.jobs(panels, store)
    with LiveTotal(console, {job.label: job.work(work) for job in todo}, runs.paces(store)) as live:
        busy = runs.perform(todo, store, work, live)
    for job in busy:
        console.print(f"{job.label}: another netfleet makes this run at this moment; it was left out", highlight=False)


def _draw(panels: Sequence[Panel], store: Store, folder: Path, console: Console) -> None:
    name = figures.file_name(panels)
    absent = len(runs.jobs(panels, store))
    if absent == len(runs.jobs(panels)):
        console.print(f"{name}: no runs yet", highlight=False)
        return
    make_folder(folder)
    path = folder / name
    picture = figures.draw(panels, store)
    write_atomically(path, lambda file: picture.savefig(file, format="png"))
    note = f" ({absent} {'run is' if absent == 1 else 'runs are'} missing)" if absent else ""
    console.print(f"wrote {path}{note}", markup=False, highlight=False, soft_wrap=True)


def verify(
    panels: Sequence[Panel], where: Places, rounds: int, console: Console, *, curves: Sequence[str] = ()
) -> bool:
    """Make the first rounds of every stored run again and say how far they differ; whether none does."""
    store, jobs = where.store(), runs.jobs(only(panels, curves) if curves else panels)
    stored = [job for job in jobs if store.load(job.run) is not None]
    if not stored:
        raise ConfigError("none of these runs is stored, so there is nothing to verify; run them first")
    with Live(console, len(stored)) as live:
        checks = runs.verify(stored, store, rounds, live)
    table = Table("run", "hash", "rounds", "values", "differ", "largest difference in accuracy", header_style="bold")
    for check in checks:
        gap = f"{100 * check.largest:.3g} points"
        table.add_row(check.label, short(check.hash), *map(str, (check.rounds, check.values, check.different)), gap)
    console.print(table)
    console.print(f"{len(stored)} of {len(jobs)} runs are stored and were verified", highlight=False)
    return not any(check.different for check in checks)


def rehash(source: Path, work: Path, console: Console) -> None:
    """Write options that netfleet has gained into the stored configs, and say which."""
    panels = list(find_panels(source).values())
    gained = {path: new for folder in (source, work) for path, new in rehash_results(folder / "results").items()}
    for words in sorted({", ".join(new) for new in gained.values()}):
        console.print(f"{sum(', '.join(new) == words for new in gained.values())} results gained {words}", markup=False)
    console.print(f"{len(gained)} results have a new hash; --verify some of them, then commit", highlight=False)
    wanted = {job.folder(work) for job in runs.jobs(panels)}
    if lost := sorted(p.parent.name for p in work.glob(f"*/{MANIFEST}") if p.parent not in wanted):
        console.print(f"unfinished runs in {work} that no panel asks for: {', '.join(lost)}", markup=False)


def overview(source: Path, console: Console) -> None:
    """Print every panel with its runs and how many of them are stored."""
    store = Store(source / "results")
    table = Table("panel", "figure", "what", "runs", "stored", header_style="bold")
    for panel in find_panels(source).values():
        count = len(runs.jobs([panel]))
        name = panel.name + (" (large: not in all)" if panel.large else "")
        table.add_row(name, panel.figure, panel.title, str(count), str(count - len(runs.jobs([panel], store))))
    console.print(table)
