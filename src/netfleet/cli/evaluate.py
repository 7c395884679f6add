"""Compare models on a site's own test rows: joint, alone, others'; or all models on all sites."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from netfleet.cli.shared import add_policy, say_wrote
from netfleet.environment import need_packages
from netfleet.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console


def add(parser: argparse.ArgumentParser) -> None:
    words = (
        "a site's folder; or a plan's: sites whose folders are in it, and evaluations that others sent to its operator"
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help=words)
    add_policy(parser)
    words = "evaluate although the site's rows are not those of its last start"
    parser.add_argument("--data-changed", action="store_true", help=words)


def run(options: argparse.Namespace) -> int:
    need_packages("cryptography")
    from netfleet.sites.planning.certificates import OPERATOR

    is_plan = (options.folder / OPERATOR).is_dir()
    if is_plan and options.policy is not None:
        raise ConfigError("--policy is of one site, and this is a plan; each of its sites has its own")
    return _plan(options) if is_plan else _site(options)


def _site(options: argparse.Namespace) -> int:
    from rich.console import Console

    from netfleet.sites.evaluation.evaluate import evaluate_site
    from netfleet.sites.evaluation.page import print_site, write_site_page
    from netfleet.sites.evaluation.results import EVALUATION_FILE, PAGE_FILE, write_evaluation
    from netfleet.sites.policy.start import open_site

    folder, console = options.folder, Console()
    found = evaluate_site(folder, open_site(folder, options.policy), data_changed=options.data_changed)
    print_site(found, console)
    write_evaluation(found, folder / EVALUATION_FILE)
    write_site_page(found, folder / PAGE_FILE)
    return _say(console, folder / EVALUATION_FILE, folder / PAGE_FILE)


def _plan(options: argparse.Namespace) -> int:
    from rich.console import Console

    from netfleet.sites.evaluation.matrix import evaluate_plan, write_matrix
    from netfleet.sites.evaluation.page import print_matrix, write_plan_page
    from netfleet.sites.evaluation.results import EVALUATION_FILE, PAGE_FILE

    folder, console = options.folder, Console()
    matrix = evaluate_plan(folder, options.data_changed)
    print_matrix(matrix, console)
    write_matrix(matrix, folder / EVALUATION_FILE)
    write_plan_page(matrix, folder / PAGE_FILE)
    return _say(console, folder / EVALUATION_FILE, folder / PAGE_FILE)


def _say(console: "Console", *paths: Path) -> int:
    for path in paths:
        say_wrote(console, path)
    return 0
