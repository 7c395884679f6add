"""The command line. Nothing heavy is imported before a command needs it, so that `--help` answers at once."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netfleet.cli.sites import add_peers
from netfleet.errors import ConfigError, NetfleetError
from netfleet.registry import make_importable

if TYPE_CHECKING:
    from rich.console import Console

    from netfleet.runs.build import Settings
    from netfleet.runs.config import Experiment
    from netfleet.runs.history import History
    from netfleet.topology.topology import Topology


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 a run diverged or differs, 2 bad input, 130 interrupted."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except NetfleetError as error:
        if _speaks() or not error.shared:
            print(f"netfleet: error: {_rank()}{error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return _interrupted()


def _speaks() -> bool:
    """Of the ranks of a job, one speaks for all."""
    return "WORLD_SIZE" not in os.environ or os.environ.get("RANK", "0") == "0"


def _rank() -> str:
    """Who speaks, where several may."""
    return f"rank {os.environ.get('RANK', '?')}: " if int(os.environ.get("WORLD_SIZE", "1")) > 1 else ""


def _interrupted(what_next: str = "") -> int:
    print("netfleet: interrupted" + (f"; {what_next}" if what_next else ""), file=sys.stderr)
    return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="netfleet", description="Fully decentralized federated learning: no server, only neighbours."
    )
    parser.add_argument("--version", action="version", version=f"netfleet {version('netfleet')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_run(commands)
    _add_tune(commands)
    _add_theory(commands)
    _add_topology(commands)
    _add_algorithms(commands)
    add_peers(commands)
    _add_bench(commands)
    _add_reproduce(commands)
    return parser


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    run = commands.add_parser("run", help="run an experiment file and write a report; without a file, the demo")
    _add_experiment(run)
    run.add_argument("--out", type=Path, metavar="DIR", help="where results go (default: runs/NAME-HASH)")
    run.add_argument("--resume", action="store_true", help="go on with the unfinished runs in --out")
    run.add_argument("--overwrite", action="store_true", help="delete the runs in --out and start again")
    run.add_argument(
        "--engine",
        help='"simulator" (all workers at once), "threads" (one thread per worker) or "distributed" (torchrun)',
    )
    run.add_argument("--device", help='"cpu", "cuda", "cuda:1", …')
    run.add_argument("--threads", metavar="N", help="cores to use (default: all; results do not depend on it)")
    run.set_defaults(command=_run)


def _add_experiment(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", nargs="?", metavar="FILE.toml", help="the experiment (default: the embedded demo)")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a value of the file, "
        "for example --set rounds=50 --set topology.workers=8 --set algorithms.eta=0.1 (all algorithms)",
    )


def _add_tune(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    tune = commands.add_parser("tune", help="try every method of an experiment on the same grid of step sizes")
    _add_experiment(tune)
    tune.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="NAME=A,B,…",
        help="the values of a parameter (default: eta=0.001,0.003,0.01,0.03,0.1,0.3); more than once for more of them",
    )
    tune.add_argument(
        "--halving", action="store_true", help="a few rounds for all, three times as many for the better third, …"
    )
    tune.add_argument(
        "--target",
        type=float,
        metavar="A",
        help="the best is first at this accuracy (without accuracy: loss), not highest in the end",
    )
    tune.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where runs and results go; gone on with if there (runs/tune-NAME-HASH)",
    )
    tune.set_defaults(command=_tune)


def _add_theory(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    theory = commands.add_parser("theory", help="what the theorems say of an experiment, and what it does")
    _add_experiment(theory)
    theory.add_argument("--only", action="store_true", help="only say what the theorems say; train nothing")
    theory.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where runs and theory.png go; gone on with if there (runs/theory-NAME-HASH)",
    )
    theory.set_defaults(command=_theory)


def _add_topology(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    topology = commands.add_parser("topology", help="describe and draw a graph and its consensus matrix")
    topology.add_argument(
        "kind",
        nargs="?",
        default="erdos-renyi",
        metavar="KIND|FILE.toml",
        help='a graph ("ring", "torus", …; default: erdos-renyi) or an experiment file',
    )
    topology.add_argument("--workers", type=int, metavar="M", help="number of workers (default: 20)")
    topology.add_argument(
        "--ranks", type=int, metavar="N", help="say how well its workers can be placed on N processes"
    )
    topology.add_argument("--weights", help="laplacian (default), metropolis, max-degree, uniform")
    topology.add_argument("--seed", type=int, help="of a random graph (default: 0, or the file's first)")
    topology.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a parameter of the graph, for example --set p=0.3",
    )
    topology.add_argument(
        "--out",
        type=Path,
        default=Path("topology.png"),
        metavar="FILE.png",
        help="where the drawing goes (default: topology.png)",
    )
    topology.set_defaults(command=_topology)


def _add_algorithms(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    algorithms = commands.add_parser("algorithms", help="list the methods with their parameters and citations")
    algorithms.add_argument("name", nargs="?", help="show one method: its equations and BibTeX")
    algorithms.add_argument("--bibtex", action="store_true", help="print the BibTeX of all methods")
    algorithms.set_defaults(command=_algorithms)


def _add_bench(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    bench = commands.add_parser(
        "bench", help="measure the simulator against the limit, a plain PyTorch loop and other libraries"
    )
    bench.add_argument("parts", nargs="*", metavar="PART", help="what to measure (default: all; --list shows them)")
    bench.add_argument("--quick", action="store_true", help="fewer repeats and sizes: a look, not a result")
    bench.add_argument("--list", action="store_true", help="show the parts and stop")
    bench.add_argument(
        "--out",
        type=Path,
        default=Path("benchmarks/results"),
        metavar="DIR",
        help="where the tables go, in a folder with today's date (default: benchmarks/results)",
    )
    bench.set_defaults(command=_bench)


def _add_reproduce(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    reproduce = commands.add_parser("reproduce", help="run and draw the paper's figures and judge its claims")
    reproduce.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help='a figure ("fig3"), a panel ("fig3b"), "speedup" ("speedup-cnn"), "all" (panels); without, a list',
    )
    reproduce.add_argument(
        "--scale",
        choices=("full", "half", "quick"),
        default="full",
        help="all rounds (default), the first half of them, or the first twentieth",
    )
    reproduce.add_argument("--rounds", type=int, metavar="N", help="the first N rounds, where there are more")
    reproduce.add_argument(
        "--seeds", type=int, metavar="N", help="so many, from the file's first on (default: its own)"
    )
    reproduce.add_argument(
        "--curve", action="append", default=[], metavar="LABEL", help="run only the curve called so (may be repeated)"
    )
    reproduce.add_argument("--draw", action="store_true", help="only draw and judge what is there; run nothing")
    reproduce.add_argument(
        "--verify", type=int, metavar="N", help="run N rounds of each stored run again and compare; write nothing"
    )
    reproduce.add_argument(
        "--rehash", action="store_true", help="after netfleet gained options: write them into the stored runs' configs"
    )
    reproduce.add_argument(
        "--from", dest="source", type=Path, default=Path("reproduce"), metavar="DIR", help="the configs (reproduce)"
    )
    reproduce.add_argument(
        "--out", type=Path, metavar="DIR", help="results and figures (the configs' folder; below --work if scaled)"
    )
    reproduce.add_argument(
        "--work", type=Path, default=Path("runs/reproduce"), metavar="DIR", help="unfinished runs (runs/reproduce)"
    )
    reproduce.add_argument("--device", help='"cpu", "cuda", "cuda:1", …')
    reproduce.add_argument("--threads", type=int, metavar="N", help="cores to use (default: all)")
    reproduce.set_defaults(command=_reproduce)


def _run(options: argparse.Namespace) -> int:
    from rich.console import Console

    make_importable(options.file)
    from netfleet.engines import processes
    from netfleet.runs.build import Settings
    from netfleet.runs.config import load_experiment
    from netfleet.runs.progress import Live
    from netfleet.runs.run import run_experiment

    shortcuts = {"kind": options.engine, "device": options.device, "threads": options.threads}
    overrides = options.set + [f"engine.{key}={value}" for key, value in shortcuts.items() if value is not None]
    experiment = load_experiment(options.file, overrides)
    if experiment.engine.kind != "distributed" and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            f"torchrun started {os.environ['WORLD_SIZE']} processes, but engine {experiment.engine.kind!r} is one; add "
            f"--engine distributed, or start it without torchrun"
        )
    out = options.out or Path("runs") / f"{_slug(experiment.name)}-{experiment.hash[:8]}"
    speaks = experiment.engine.kind != "distributed" or _speaks()
    console = Console(quiet=not speaks)
    try:
        with (
            processes(experiment.engine.kind, experiment.engine.device),
            Live(console, len(experiment.runs())) as live,
        ):
            settings = Settings(experiment)
            histories = run_experiment(
                experiment, out, resume=options.resume, overwrite=options.overwrite, display=live, settings=settings
            )
    except KeyboardInterrupt:
        again = ["netfleet", "run", *([options.file] if options.file else [])]
        again += [word for override in overrides for word in ("--set", override)]
        command = shlex.join([*again, "--out", str(out), "--resume"])
        return _interrupted(f"what was reached is in {out}. Go on with: {command}") if speaks else 130
    if speaks:
        _report(experiment, histories, settings, out, console)
    return 1 if any(history.diverged for history in histories) else 0


def _report(experiment: Experiment, histories: list[History], settings: Settings, out: Path, console: Console) -> None:
    from netfleet.report import print_summary
    from netfleet.runs.run import write_report_files

    print_summary(histories, console)
    for path in write_report_files(experiment, histories, settings, out):
        console.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)
    for history in histories:
        if history.diverged:
            print(f"netfleet: {history.diverged}", file=sys.stderr)


def _tune(options: argparse.Namespace) -> int:
    from rich.console import Console

    make_importable(options.file)
    from netfleet.report.tuning import report_tuning
    from netfleet.runs.config import load_experiment
    from netfleet.runs.progress import Live
    from netfleet.runs.tuning import parse_grid, starts, tune

    experiment = _on_one_machine(load_experiment(options.file, options.set), "tune")
    grid = parse_grid(options.grid)
    out = options.out or Path("runs") / f"tune-{_slug(experiment.name)}-{experiment.hash[:8]}"
    console = Console()
    try:
        with Live(console, starts(experiment, grid, halving=options.halving)) as live:
            results = tune(experiment, grid, out, halving=options.halving, target=options.target, display=live)
    except KeyboardInterrupt:
        return _interrupted(f"the same command with --out {out} goes on")
    return 0 if report_tuning(experiment, grid, results, out, console) else 1


def _on_one_machine(experiment: Experiment, command: str) -> Experiment:
    if experiment.engine.kind == "distributed":
        raise ConfigError(
            f'netfleet {command} runs in one process, but the file says engine.kind = "distributed"; add '
            f"--set engine.kind=simulator"
        )
    return experiment


def _theory(options: argparse.Namespace) -> int:
    from rich.console import Console

    make_importable(options.file)
    from netfleet.files import write_atomically
    from netfleet.report.theory import draw_theory, explain
    from netfleet.runs.config import load_experiment
    from netfleet.runs.progress import Live
    from netfleet.runs.run import run_experiment

    console = Console()
    explained = explain(_on_one_machine(load_experiment(options.file, options.set), "theory"), console)
    if options.only:
        return 0
    experiment = explained.experiment
    out = options.out or Path("runs") / f"theory-{_slug(experiment.name)}-{experiment.hash[:8]}"
    try:
        with Live(console, len(experiment.runs())) as live:
            histories = run_experiment(experiment, out, resume=True, display=live)
    except KeyboardInterrupt:
        return _interrupted(f"the same command with --out {out} goes on")
    picture = draw_theory(histories, explained)
    write_atomically(out / "theory.png", lambda file: picture.savefig(file, format="png"))
    console.print(f"wrote {out / 'theory.png'}", markup=False, highlight=False, soft_wrap=True)
    return 1 if any(history.diverged for history in histories) else 0


def _topology(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    make_importable(options.kind if options.kind.endswith(".toml") else None)
    from netfleet.report.graph import draw_topology

    if options.out.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"--out {options.out}: a drawing is a .png, .svg or .pdf file")
    topology = _named_topology(options)
    table = Table(title=f"{topology.name}, {topology.m} workers", show_header=False)
    for key, value in topology.describe().items():
        if key not in ("name", "workers") and value is not None:
            table.add_row(key.replace("_", " "), f"{value:.6g}" if isinstance(value, float) else str(value))
    if options.ranks is not None:
        table.add_row(f"on {options.ranks} ranks", _placement(topology, options.ranks))
    Console().print(table)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    draw_topology(topology, options.out)
    print(f"wrote {options.out}")
    return 0


def _placement(topology: Topology, ranks: int) -> str:
    from netfleet.engines.placement import place_on, quality_on

    if not 1 <= ranks <= topology.m:
        raise ConfigError(f"--ranks must be from 1 to the number of workers, {topology.m}, got {ranks}")
    sentence = quality_on(topology, place_on(topology, ranks)).sentence
    return f"{sentence} (means over rounds)" if topology.varying else sentence


def _named_topology(options: argparse.Namespace) -> Topology:
    """The topology of an experiment file, or of a kind with its parameters."""
    from netfleet.runs.build import build_topology
    from netfleet.runs.config import load_experiment, parse_overrides
    from netfleet.topology.topology import make_topology

    if options.kind.endswith(".toml"):
        changes = [f"topology.{change}" for change in options.set]
        changes += [f"topology.{k}={v}" for k in ("workers", "weights") if (v := getattr(options, k)) is not None]
        experiment = load_experiment(options.kind, changes)
        return build_topology(experiment.topology, experiment.seeds[0] if options.seed is None else options.seed)
    params = parse_overrides(options.set)
    file = "path" in params
    workers = params.pop("workers", options.workers or (None if file else 20))
    return make_topology(
        {"kind": options.kind, **params}, workers=workers, weights=options.weights, seed=options.seed or 0
    )


def _algorithms(options: argparse.Namespace) -> int:
    import inspect

    from rich.console import Console
    from rich.table import Column, Table

    make_importable(None)
    from netfleet.algorithms import ALGORITHMS
    from netfleet.algorithms.base import short_citation
    from netfleet.registry import parameters

    if options.name:
        method = ALGORITHMS[options.name]
        print(inspect.getdoc(inspect.getmodule(method)) or inspect.getdoc(method), end="\n\n")
        print(getattr(method, "citation", ""))
        return 0
    if options.bibtex:
        print("\n".join(dict.fromkeys(getattr(ALGORITHMS[name], "citation", "") for name in ALGORITHMS)))
        return 0
    table = Table(Column("kind", no_wrap=True), "over", "parameters", "citation", title="Algorithms")
    for name in sorted(ALGORITHMS):
        known: Any = ALGORITHMS[name]
        defaults = ", ".join(f"{key} = {p.default}" for key, p in parameters(known).items())
        over = "server" if known.server else "graph"
        table.add_row(name, over, defaults, short_citation(known.citation))
    Console().print(table)
    print("netfleet algorithms NAME shows the equations of a method and its BibTeX; --bibtex prints all of them.")
    return 0


def _use_checkout(folder: str) -> None:
    """Let the code of a checkout's folder be imported; benchmarks and reproduction are not in the wheel."""
    places = [Path.cwd(), Path(__file__).resolve().parents[3]]
    root = next((place for place in places if (place / folder / "__init__.py").is_file()), None)
    if root is None:
        raise ConfigError(
            f"this command needs netfleet's source: {folder}/ is neither in {Path.cwd()} nor beside the installed "
            f"package; clone the repository and run the command there"
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))


def _bench(options: argparse.Namespace) -> int:
    _use_checkout("benchmarks")
    from benchmarks import PARTS, run_parts

    if options.list:
        print("\n".join(f"{name:12} {what}" for name, what in PARTS.items()))
        return 0
    run_parts(options.parts, options.out, options.quick)
    return 0


def _reproduce(options: argparse.Namespace) -> int:
    from rich.console import Console

    _use_checkout("reproduce")
    from reproduce import command
    from reproduce import speedup_figure as speedup

    console = Console()
    if options.rehash:
        command.rehash(options.source, options.work, console)
        return 0
    if not options.names:
        given = (options.draw, options.rounds, options.seeds, options.curve, options.scale != "full")
        if any(given) or options.verify is not None:
            raise ConfigError('say which figures or panels; "all" means all that an ordinary machine can make')
        command.overview(options.source, console)
        return 0
    engine = {key: v for key in ("device", "threads") if (v := getattr(options, key)) is not None}
    scale, rounds, seeds = options.scale, options.rounds, options.seeds
    where = command.places(options.source, scale, rounds, seeds, options.out, options.work)
    studies = speedup.asked(options.names)
    if studies and (options.verify is not None or rounds is not None or options.curve or engine):
        raise ConfigError(f"{speedup.NAME} takes --scale, --seeds and --draw only")
    names = [name for name in options.names if name not in studies]
    panels = command.selected(options.source, names, scale, rounds, seeds, **engine) if names else []
    if options.verify is not None:
        return 0 if command.verify(panels, where, options.verify, console, curves=options.curve) else 1
    try:
        if panels:
            command.reproduce(panels, where, console, run=not options.draw, curves=options.curve)
        if studies:
            known = speedup.find(options.source, scale, seeds)
            to_run = speedup.chosen(known, studies)
            folder = (options.out or options.source) / speedup.NAME
            speedup.reproduce(known, [] if options.draw else to_run, folder, where.pictures / "speedup.png", console)
    except KeyboardInterrupt:
        return _interrupted("what was reached is kept; the same command goes on")
    return 0


def _slug(name: str) -> str:
    kept = "".join(c if c.isalnum() or c in "-_." else "-" for c in name.lower()).strip("-.")
    if not kept:
        raise ConfigError(f"name = {name!r} has no letter or digit to name a folder by; give --out")
    return kept
