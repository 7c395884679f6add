"""Serve a page of a running simulation, cluster job or set of sites, on this machine only."""

import argparse
import contextlib
import sys
from pathlib import Path

from netfleet.cli.shared import silence_grpc
from netfleet.environment import need_packages

#: Where the page is, unless told otherwise.
HOST, PORT = "127.0.0.1", 8400


def add(parser: argparse.ArgumentParser) -> None:
    words = "the folder of results, of one run, of a plan or of a site (default: the newest below runs/)"
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR", help=words)
    parser.add_argument("--port", type=int, default=PORT, metavar="N", help="port (%(default)s); 0: any that is free")
    words = "address to serve at (%(default)s); whoever reaches another address can read the page"
    parser.add_argument("--host", default=HOST, metavar="ADDRESS", help=words)
    parser.add_argument("--until-closed", action="store_true", help=argparse.SUPPRESS)  # standard input


def run(options: argparse.Namespace) -> int:
    need_packages("bokeh", extra="watch")
    silence_grpc()
    from netfleet.watch.choice import source_of
    from netfleet.watch.closing import closed
    from netfleet.watch.server import Pages, Server, serve

    source = source_of(options.folder)
    server = Server(Pages(source), options.host, options.port)
    print(f"netfleet watch: {server.url} shows {source.folder}; Ctrl-C ends it", file=sys.stderr, flush=True)
    if not server.loopback:
        print("netfleet watch: everybody who can reach this address can read the page", file=sys.stderr, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        serve(server, closed(sys.stdin) if options.until_closed else lambda: False)
    return 0
