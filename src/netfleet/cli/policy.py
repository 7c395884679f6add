"""Make a site's own policy, or compare a plan and the site's data with it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from netfleet.cli.shared import add_policy
from netfleet.environment import need_packages

if TYPE_CHECKING:
    from netfleet.sites.policy.in_force import PolicyInForce
    from netfleet.sites.policy.rules import Finding


def add(parser: argparse.ArgumentParser) -> None:
    words = "init writes a first policy that fits the plan; check tries all that a start checks, and sends nothing"
    parser.add_argument("action", choices=["init", "check"], help=words)
    parser.add_argument("folder", type=Path, metavar="DIR", help="the site's folder, made by netfleet plan")
    add_policy(parser)


def run(options: argparse.Namespace) -> int:
    need_packages("cryptography")
    return _init(options.folder, options.policy) if options.action == "init" else _check(options.folder, options.policy)


def _init(folder: Path, given: Path | None) -> int:
    from netfleet.sites.policy.in_force import new_policy_path
    from netfleet.sites.policy.start import folder_facts
    from netfleet.sites.policy.starter import write_starting_policy

    path = new_policy_path(folder, given)
    write_starting_policy(path, folder_facts(folder))
    _say(f"wrote {path}; read it, and make it as strict as this site needs it")
    return 0


def _check(folder: Path, given: Path | None) -> int:
    from netfleet.sites.planning.module_places import make_site_importable
    from netfleet.sites.policy.in_force import find_policy
    from netfleet.sites.policy.start import findings_before_import

    make_site_importable(folder)
    in_force = find_policy(folder, given)
    if in_force.path is None:
        _say(f"{folder} has no policy, so everything is allowed; make one with netfleet policy init {folder}")
    else:
        _say(f"{in_force.path} ({in_force.name})")
    _show(in_force, findings_before_import(folder, in_force))
    _check_data(folder, in_force)
    return 0


def _check_data(folder: Path, in_force: PolicyInForce) -> None:
    """What needs the plan's code and the site's data, which a broken rule keeps from being read."""
    from netfleet.sites.planning.folders import load_site
    from netfleet.sites.runtime.data_check import check_rows_of, inspect_data

    site, experiment = load_site(folder)
    data = inspect_data(site, experiment, in_force)
    _show(in_force, data.rules)
    if data.facts is not None:
        classes = f" of {data.facts.classes} classes" if data.facts.classes else ""
        _say(f"data: {data.facts.rows} training rows{classes}")
    for why in data.doubts:
        _say(f"  doubtful: {why}")
    check_rows_of(folder, site, data)


def _show(in_force: PolicyInForce, findings: Sequence[Finding]) -> None:
    """A line for each rule; then an error, if one is broken."""
    from netfleet.sites.policy.rules import enforce

    for finding in findings:
        mark = "holds " if finding.holds else "BROKEN"
        _say(f"  {mark} {finding.rule}: the plan has {finding.has}; allowed: {finding.allows}")
    enforce(in_force, findings)


def _say(text: str) -> None:
    from rich.console import Console

    from netfleet.sites.planning.overview import say

    say(Console(), text)
