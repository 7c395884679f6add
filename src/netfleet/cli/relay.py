"""Forward the encrypted bytes of sites that nobody can dial."""

import argparse
from pathlib import Path

from netfleet.environment import need_packages


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="the relay's folder, made by netfleet plan")
    words = "where it listens (default: as relay.toml says)"
    parser.add_argument("--listen", default="", metavar="HOST:PORT", help=words)
    words = "format of the log (default: text on a terminal, else json)"
    parser.add_argument("--log", choices=["text", "json"], help=words)


def run(options: argparse.Namespace) -> int:
    need_packages("cryptography")
    from netfleet.sites.relay.process import run_relay

    return run_relay(options.folder, options.listen, options.log)
