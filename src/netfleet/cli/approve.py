"""Show the experiment and the code that a plan would run at this site, and approve it."""

import argparse
from pathlib import Path

from netfleet.cli.shared import add_policy
from netfleet.environment import need_packages


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="the site's folder, made by netfleet plan")
    parser.add_argument("--yes", action="store_true", help="approve without being asked")
    add_policy(parser)


def run(options: argparse.Namespace) -> int:
    need_packages("cryptography")
    from rich.console import Console

    from netfleet.sites.planning.module_places import make_site_importable
    from netfleet.sites.planning.overview import say
    from netfleet.sites.policy.approval import approvals_path, current, last_approval, write_approval
    from netfleet.sites.policy.approval_text import approval_lines
    from netfleet.sites.policy.in_force import find_policy

    folder, console = options.folder, Console()
    make_site_importable(folder)
    in_force = find_policy(folder, options.policy)
    path, now = approvals_path(folder, in_force), current(folder)
    for line in approval_lines(folder, now, last_approval(path, now)):
        say(console, line)
    if not (options.yes or _agrees(f"\nApprove this for {now.site}? [y/N] ")):
        say(console, "Nothing was approved.")
        return 1
    write_approval(path, now)
    say(console, f"wrote {path}")
    if not in_force.policy.code.approved:
        say(console, "No policy asks for it yet: to run approved code only, write approved = true below [code].")
    return 0


def _agrees(question: str) -> bool:
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:  # nobody is there to answer
        return False
