"""What `netfleet` alone shows: what one can do next."""

import argparse

TEXT = """\
netfleet: fully decentralized federated learning. No server, only neighbours.

  netfleet run                   the demo: four methods on digits (a minute)
  netfleet init                  write experiment.toml, with comments
  netfleet run experiment.toml   train; prints a table, writes report.html
  netfleet algorithms            all methods, with parameters and citations
  netfleet init --site trial     files for a trial of sites with their own data
  netfleet completion --help     let the TAB key complete commands and options

netfleet --help lists all commands, netfleet COMMAND --help the options of one."""


def run(_: argparse.Namespace) -> int:
    print(TEXT)
    return 0
