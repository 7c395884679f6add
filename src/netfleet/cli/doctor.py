"""Check a site or a plan before round 1: links in both directions, clocks, certificates, data, disk, memory."""

import argparse
from pathlib import Path

from netfleet.cli.node import seconds
from netfleet.cli.shared import add_policy, silence_grpc
from netfleet.environment import need_packages


def add(parser: argparse.ArgumentParser) -> None:
    words = "a site's folder, or the plan's or the operator's (all that an operator can check)"
    parser.add_argument("folder", type=Path, metavar="DIR", help=words)
    words = "wait up to S seconds for neighbours that do not answer yet, and answer their doctors meanwhile"
    parser.add_argument("--wait", type=seconds, default=0.0, metavar="S", help=words)
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_policy(parser)


def run(options: argparse.Namespace) -> int:
    need_packages("grpc", "cryptography")
    from rich.console import Console

    from netfleet.sites.doctor.print_report import print_json, print_report
    from netfleet.sites.planning.folders import SITE_FILE
    from netfleet.sites.planning.overview import say

    if (options.folder / SITE_FILE).is_file():
        from netfleet.sites.doctor.site import examine_site, real_surroundings

        errors, around = Console(stderr=True), real_surroundings(options.folder, watch=True)
        report = examine_site(options.folder, options.policy, options.wait, around, lambda text: say(errors, text))
    else:
        silence_grpc()
        from netfleet.sites.doctor.plan import examine_plan

        report = examine_plan(options.folder)
    if options.json:
        print_json(report)
    else:
        print_report(report, Console())
    return int(report.errors > 0)
