"""Attack the messages of an experiment or a plan, and report what they show of the sites' data."""

import argparse
from dataclasses import fields
from pathlib import Path

from netfleet.cli.shared import add_set, default_folder, interrupted, resumable, say_wrote
from netfleet.errors import DataError
from netfleet.registry import make_importable

_WORDS = {
    "rounds": "rounds whose messages are attacked",
    "victims": "workers that are attacked, at most",
    "shadows": "trainings for membership inference; 0 leaves it out",
    "training": "rounds of each of these trainings",
    "inverted": "victims whose inputs are looked for by optimisation",
    "steps": "steps of that search",
}


def add(parser: argparse.ArgumentParser) -> None:
    words = "an experiment, a plan's folder or a site's folder (default: the embedded demo)"
    parser.add_argument("target", nargs="?", metavar="FILE-or-PLAN", help=words)
    add_set(parser, "change a value of the experiment, for example --set problem.batch=8")
    words = "methods to audit in place of the experiment's, with its step size, such as net-fleet,k-gt,ld-sgd"
    parser.add_argument("--methods", metavar="A,B,…", help=words)
    for name, text in _WORDS.items():
        parser.add_argument(f"--{name}", type=int, metavar="N", help=text)
    words = "folder for audit.json and audit.html (default: the plan's or the site's folder, or runs/audit-NAME-HASH)"
    parser.add_argument("--out", type=Path, metavar="DIR", help=words)


def run(options: argparse.Namespace) -> int:
    make_importable(options.target)
    from rich.console import Console

    from netfleet.files import make_folder
    from netfleet.privacy.audit import AuditOptions, audit
    from netfleet.privacy.audit.page import write_page
    from netfleet.privacy.audit.table import print_audit
    from netfleet.privacy.audit.target import find_target, methods_by_name
    from netfleet.runs.progress import Live

    asked = {field.name: getattr(options, field.name) for field in fields(AuditOptions)}
    settings = AuditOptions(**{name: value for name, value in asked.items() if value is not None})
    target, console = find_target(options.target, options.set), Console()
    experiment = target.experiment
    methods = methods_by_name(options.methods, experiment) if options.methods else experiment.algorithms
    beside = target.folder or default_folder(experiment.name, experiment.hash, "audit-")
    out = options.out or beside
    runs = len(methods) * (1 if experiment.privacy is None else 2)
    try:
        with Live(console, runs) as live:
            found = audit(experiment, settings, methods=methods, victim=target.victim, display=live)
    except KeyboardInterrupt:
        return interrupted("nothing was written")
    except DataError as error:
        if target.own_data and target.victim is None:
            raise DataError(f"{error}; or audit at each site its own rows: netfleet audit SITE-FOLDER") from None
        raise
    print_audit(found, console)
    with resumable("Then run the same command again"):
        make_folder(out)
        say_wrote(console, found.write_json(out))
        say_wrote(console, write_page(found, experiment, out))
    return 0
