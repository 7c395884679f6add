"""Predict hours, bytes and each site's gain before a training; compare with what happened after it."""

import argparse
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from netfleet.cli.shared import add_policy, say_wrote, silence_grpc
from netfleet.environment import need_packages
from netfleet.errors import ConfigError

if TYPE_CHECKING:
    from netfleet.sites.rehearsal.federation import Federation
    from netfleet.sites.rehearsal.inputs import Known

T = TypeVar("T", int, float)


def add(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("folder", type=Path, metavar="DIR", help="a plan's or the operator's folder, or a site's")
    task = parser.add_mutually_exclusive_group()
    task.add_argument("--measure", action="store_true", help="at a site: write how fast it is, for the operator")
    task.add_argument("--compare", action="store_true", help="put the prediction beside what happened")
    option("--out", type=Path, metavar="FILE.json", help="with --measure: the file to write")
    option("--classes", action="store_true", help="with --measure: also say how many rows of each class there are")
    words = "what sites wrote with --measure, netfleet statistics or netfleet doctor --json"
    option("--measured", type=Path, nargs="+", default=[], metavar="FILE", help=words)
    option("--rows", metavar="NAME=N,…", help="training rows of sites, or one number for all")
    option("--step-seconds", metavar="NAME=S,…", help="seconds of a local step at sites, or one number for all")
    option("--bandwidth", type=_positive, metavar="MBIT", help="Mbit/s of links that were not measured (100)")
    option("--latency", type=_positive, metavar="MS", help="milliseconds for a request on such links (20)")
    option("--parameters", type=int, metavar="N", help="size of the model, where sites have loops of their own")
    words = "rows in the plan's columns to train on in place of the sites' own, which are elsewhere"
    option("--data", type=Path, metavar="FILE.csv", help=words)
    option("--no-gain", action="store_true", help="do not train: predict time and bytes only")
    option("--json", action="store_true", help="print JSON")
    add_policy(parser)


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError("must be a number above 0")
    return value


def run(options: argparse.Namespace) -> int:
    need_packages("cryptography", "grpc")
    silence_grpc()
    if options.measure:
        return _measure(options)
    if options.out is not None or options.classes:
        raise ConfigError("--out and --classes belong to --measure; add it, or leave them out")
    return _compare(options) if options.compare else _rehearse(options)


def _measure(options: argparse.Namespace) -> int:
    from rich.console import Console

    from netfleet.sites.policy.start import open_site
    from netfleet.sites.rehearsal.measurement import write_measurement
    from netfleet.sites.rehearsal.own_speed import measure_site

    if options.out is None:
        raise ConfigError("--measure writes a file for the operator; say which: --out FILE.json")
    opened = open_site(options.folder, options.policy)
    write_measurement(measure_site(options.folder, opened, options.classes), options.out)
    say_wrote(Console(), options.out)
    return 0


def _rehearse(options: argparse.Namespace) -> int:
    from rich.console import Console

    from netfleet.runs.progress import Live
    from netfleet.sites.rehearsal.federation import open_federation
    from netfleet.sites.rehearsal.outcome import check_not_begun
    from netfleet.sites.rehearsal.page import print_rehearsal, write_page
    from netfleet.sites.rehearsal.rehearse import rehearse
    from netfleet.sites.rehearsal.results import PAGE_FILE, REHEARSAL_FILE, as_json, write_rehearsal

    federation, console, path = (
        open_federation(options.folder, options.policy),
        Console(),
        options.folder / REHEARSAL_FILE,
    )
    check_not_begun(path, federation.run)
    with Live(Console(stderr=True), runs=2) as live:
        found = rehearse(federation, _known(options, federation), live)
    write_rehearsal(found, path)
    write_page(found, path.with_name(PAGE_FILE))
    if options.json:
        print(as_json(found))
        return 0
    print_rehearsal(found, console)
    say_wrote(console, path)
    say_wrote(console, path.with_name(PAGE_FILE))
    return 0


def _known(options: argparse.Namespace, federation: "Federation") -> "Known":
    from netfleet.sites.rehearsal.inputs import FAR, NEAR, Known
    from netfleet.sites.rehearsal.measurement import read_measurements
    from netfleet.sites.rehearsal.timeline import Link

    def link(assumed: Link) -> Link:
        latency = assumed.latency if options.latency is None else options.latency / 1000
        return Link(latency, assumed.rate if options.bandwidth is None else options.bandwidth * 1e6 / 8)

    names = federation.names
    return Known(
        measured=read_measurements(options.measured, names),
        rows=_by_site(options.rows, "--rows", names, int),
        step_seconds=_by_site(options.step_seconds, "--step-seconds", names, float),
        link=link(FAR),
        local=link(NEAR),
        data=options.data,
        parameters=options.parameters,
        gains=not options.no_gain,
    )


def _by_site(text: str | None, option: str, names: tuple[str, ...], number: Callable[[str], T]) -> Mapping[str, T]:
    """`a=3,b=4`, or one number for all."""
    if text is None:
        return {}
    pairs = [each.rpartition("=") for each in text.split(",")]
    try:
        values = {name.strip(): number(value) for name, _, value in pairs}
    except ValueError:
        raise ConfigError(f"{option} takes NAME=NUMBER,…, or one number for all sites; got {text!r}") from None
    if not all(value > 0 and math.isfinite(value) for value in values.values()):
        raise ConfigError(f"{option} takes numbers above 0, got {text!r}")
    if list(values) == [""]:
        return dict.fromkeys(names, values[""])
    if unknown := [name for name in values if name not in names]:
        raise ConfigError(f"{option}: {unknown[0] or text!r} is none of the sites {', '.join(names)}")
    return values


def _compare(options: argparse.Namespace) -> int:
    from rich.console import Console

    from netfleet.sites.rehearsal.outcome import compare, find_prediction
    from netfleet.sites.rehearsal.page import print_comparison, write_page
    from netfleet.sites.rehearsal.results import PAGE_FILE, as_json, read_rehearsal

    found, path, console = compare(options.folder, options.measured), find_prediction(options.folder), Console()
    write_page(read_rehearsal(path), path.with_name(PAGE_FILE), found)
    if options.json:
        print(as_json(found))
        return 0
    print_comparison(found, console)
    say_wrote(console, path.with_name(PAGE_FILE))
    return 0
