"""What `netfleet reproduce` does, from names to pictures and verdicts."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from netfleet.errors import ConfigError, StorageError
from netfleet.files import make_folder, write_atomically
from netfleet.runs.checkpoint import MANIFEST
from netfleet.runs.progress import Live
from reproduce import output, runs
from reproduce.panels import Panel, choose, find_panels, scaled
from reproduce.speedup import figure as fits
from reproduce.speedup import study as speedup
from reproduce.store import Store, rehash, short


@dataclass(frozen=True)
class Options:
    """The options of the command line, under the names that they have there."""

    names: Sequence[str] = ()
    rounds: int | None = None
    seeds: int | None = None
    draw: bool = False
    verify: int | None = None
    rehash: bool = False
    source: Path = Path(__file__).parent
    out: Path | None = None
    work: Path = Path("runs/reproduce")
    device: str | None = None
    threads: int | None = None

    @property
    def as_written(self) -> bool:
        """Whether the runs are those that the panel files ask for."""
        return self.rounds is None and self.seeds is None

    @property
    def folder(self) -> Path:
        """Where results and pictures go: beside the files, and for other runs below `work`, unless --out says so."""
        return self.out or (self.source if self.as_written else self.work)

    @property
    def pictures(self) -> Path:
        counts = [f"{n}-{word}" for n, word in ((self.rounds, "rounds"), (self.seeds, "seeds")) if n is not None]
        return self.folder / ("figures" if self.out or self.as_written else "-".join(counts))

    @property
    def store(self) -> Store:
        return Store(self.folder / "results", self.source / "results", self.work / "results")

    def panels(self) -> list[Panel]:
        """The panels that the names mean, with the rounds and seeds asked for."""
        for name, number in (("--rounds", self.rounds), ("--seeds", self.seeds)):
            if number is not None and number < 1:
                raise ConfigError(f"{name} must be at least 1, got {number}")
        names = [name for name in self.names if name not in self.studies()]
        panels = choose(find_panels(self.source), names) if names else []
        engine = {key: v for key in ("device", "threads") if (v := getattr(self, key)) is not None}
        return [scaled(panel, self.rounds, self.seeds, **engine) for panel in panels]

    def studies(self) -> list[str]:
        found = [name for name in self.names if name == speedup.NAME or name.startswith(f"{speedup.NAME}-")]
        if found and (self.verify, self.rounds, self.device, self.threads) != (None,) * 4:
            raise ConfigError(f"{speedup.NAME} takes --seeds and --draw only")
        return found


def run(options: Options) -> int:
    """Do what the options ask for and return the exit code; 1 where a verified run differs."""
    console = Console()
    if options.rehash:
        rehash_results(options, console)
    elif not options.names:
        if options.draw or options.verify is not None or not options.as_written:
            raise ConfigError('name the figures or panels; "all" means all that an ordinary machine can make')
        list_panels(options, console)
    elif options.verify is not None:
        return 0 if verify(options, options.verify, console) else 1
    else:
        try:
            reproduce(options, console)
        except KeyboardInterrupt:
            print("netfleet: interrupted; run the same command again to resume", file=sys.stderr)
            return 130
        except StorageError as error:
            raise StorageError(f"{error}. Then run the same command again to resume") from None
    return 0


def reproduce(options: Options, console: Console) -> None:
    """Make the runs that are missing, draw the figures and print the claims."""
    panels, store, names = options.panels(), options.store, options.studies()
    if panels and not options.draw:
        _run(panels, store, options.work, console)
    whole = output.by_figure(find_panels(options.source).values()) if panels else {}
    partial_pictures = options.work / "figures" if options.folder == options.source else options.pictures
    for name, members in output.by_figure(panels).items():
        complete, alone = len(members) == len(whole[name]), [panel for panel in members if panel.headline]
        if complete or members != alone:
            _draw(members, store, options.pictures if complete else partial_pictures, console)
        for panel in alone:
            if len(whole[name]) > 1:
                _draw([panel], store, options.pictures, console)
    if found := output.judged_claims(panels, store):
        console.print(output.console_table(found))
        console.print(output.LEGEND, style="dim", highlight=False)
    if names:
        _study(options, names, console)


def _run(panels: Sequence[Panel], store: Store, work: Path, console: Console) -> None:
    for run in runs.planned(panels):
        store.adopt(run.run)
    todo = runs.planned(panels, store)
    with runs.LiveTotal(console, {run.label: run.work(work) for run in todo}) as live:
        busy = runs.make(todo, store, work, live)
    for run in busy:
        console.print(f"{run.label}: left out, because another netfleet is making this run", highlight=False)


def _draw(panels: Sequence[Panel], store: Store, folder: Path, console: Console) -> None:
    name, absent = output.picture_name(panels), len(runs.planned(panels, store))
    if absent == len(runs.planned(panels)):
        console.print(f"{name}: no runs yet", highlight=False)
        return
    note = f" ({absent} {'run is' if absent == 1 else 'runs are'} missing)" if absent else ""
    _write(output.draw(panels, store), folder / name, note, console)


def _write(picture: Figure, path: Path, note: str, console: Console) -> None:
    make_folder(path.parent)
    write_atomically(path, lambda file: picture.savefig(file, format="png"))
    console.print(f"wrote {path}{note}", markup=False, highlight=False, soft_wrap=True)


def _study(options: Options, names: Sequence[str], console: Console) -> None:
    """Run the points that are missing of the named studies, draw the figure of all and print the slopes."""
    studies = speedup.find_studies(options.source, options.seeds)
    make_folder(folder := (options.out or options.source) / speedup.NAME)
    known = {study.name: speedup.Results(folder / f"{study.name}.json") for study in studies}
    points = [(p, known[s.name]) for s in speedup.choose(studies, names) for p in s.points()]
    if todo := [(p, results) for p, results in points if p.hash not in results and not options.draw]:
        with runs.LiveTotal(console, {point.label: point.work for point, _ in todo}) as live:
            for point, results in todo:
                results.keep(point, speedup.averaged_metric(point, live))
    found = fits.measured([(study, known[study.name]) for study in studies])
    picture = options.pictures / f"{speedup.NAME}.png"
    if not found:
        console.print(f"{picture.name}: no runs yet", highlight=False)
        return
    _write(fits.draw(found), picture, "", console)
    table = Table(*fits.HEADINGS, header_style="bold")
    for row in fits.slopes(found):
        table.add_row(*row)
    console.print(table)
    for sentence in speedup.margins([(study, known[study.name]) for study, _ in found]):
        console.print(sentence, highlight=False)


def verify(options: Options, rounds: int, console: Console) -> bool:
    """Make the first rounds of every stored run again and say how far they differ; whether none does."""
    store, wanted = options.store, runs.planned(options.panels())
    stored = [run for run in wanted if store.load(run.run) is not None]
    if not stored:
        raise ConfigError("none of these runs is stored, so there is nothing to verify; run them first")
    with Live(console, len(stored)) as live:
        checks = runs.verify(stored, store, rounds, live)
    table = Table("run", "hash", "rounds", "values", "differ", "largest difference in accuracy", header_style="bold")
    for check in checks:
        counts, gap = map(str, (check.rounds, check.values, check.different)), f"{100 * check.largest:.3g} points"
        table.add_row(check.run.label, short(check.run.run.hash), *counts, gap)
    console.print(table)
    console.print(f"{len(stored)} of {len(wanted)} runs are stored and were verified", highlight=False)
    return not any(check.different for check in checks)


def rehash_results(options: Options, console: Console) -> None:
    """Write options that netfleet has gained into the stored configs, and say which."""
    wanted = {run.folder(options.work) for run in runs.planned(list(find_panels(options.source).values()))}
    gained = [words for folder in (options.source, options.work) for words in rehash(folder / "results")]
    for words in sorted(set(gained)):
        console.print(f"{gained.count(words)} results gained {words}", markup=False)
    console.print(f"{len(gained)} results have a new hash; --verify some of them, then commit", highlight=False)
    if lost := sorted(p.parent.name for p in options.work.glob(f"*/{MANIFEST}") if p.parent not in wanted):
        console.print(f"unfinished runs in {options.work} that no panel asks for: {', '.join(lost)}", markup=False)


def list_panels(options: Options, console: Console) -> None:
    store = Store(options.source / "results")
    table = Table("panel", "figure", "what", "runs", "stored", header_style="bold")
    for panel in find_panels(options.source).values():
        count = len(runs.planned([panel]))
        name = panel.name + (" (large: not in all)" if panel.large else "")
        table.add_row(name, panel.figure, panel.title, str(count), str(count - len(runs.planned([panel], store))))
    console.print(table)
