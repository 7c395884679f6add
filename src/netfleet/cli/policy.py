"""Make a site's own policy, or compare a plan with it."""

import argparse
from pathlib import Path

from netfleet.cli.shared import add_policy
from netfleet.environment import need_packages
from netfleet.registry import make_importable


def add(parser: argparse.ArgumentParser) -> None:
    words = "init writes a first policy that fits the plan; check says what each rule says of the plan"
    parser.add_argument("action", choices=["init", "check"], help=words)
    parser.add_argument("folder", type=Path, metavar="DIR", help="the site's folder, made by netfleet plan")
    add_policy(parser)


def run(options: argparse.Namespace) -> int:
    need_packages("cryptography")
    return _init(options.folder, options.policy) if options.action == "init" else _check(options.folder, options.policy)


def _init(folder: Path, given: Path | None) -> int:
    from rich.console import Console

    from netfleet.sites.planning.overview import say
    from netfleet.sites.policy.in_force import POLICY_FILE
    from netfleet.sites.policy.start import folder_facts
    from netfleet.sites.policy.starter import write_starting_policy

    path = given or folder / POLICY_FILE
    write_starting_policy(path, folder_facts(folder))
    say(Console(), f"wrote {path}; read it, and make it as strict as this site needs it")
    return 0


def _check(folder: Path, given: Path | None) -> int:
    from rich.console import Console

    from netfleet.sites.planning.folders import EXPERIMENT_FILE
    from netfleet.sites.planning.overview import say
    from netfleet.sites.policy.in_force import find_policy
    from netfleet.sites.policy.rules import enforce
    from netfleet.sites.policy.start import all_findings

    make_importable(str(folder / EXPERIMENT_FILE))
    console, in_force = Console(), find_policy(folder, given)
    if in_force.path is None:
        say(console, f"{folder} has no policy, so everything is allowed; make one with netfleet policy init {folder}")
        return 0
    findings = all_findings(folder, in_force)
    say(console, f"{in_force.path} ({in_force.name})")
    for finding in findings:
        mark = "holds " if finding.holds else "BROKEN"
        say(console, f"  {mark} {finding.rule}: the plan has {finding.has}; allowed: {finding.allows}")
    enforce(in_force, findings)
    return 0
