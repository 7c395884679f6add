"""Serve a page of a running simulation, cluster job or set of sites, on this machine only."""

import argparse
import contextlib
import os
import signal
import socket
import sys
from pathlib import Path

from netfleet.cli.shared import silence_grpc
from netfleet.environment import need_packages

#: Where the page is, unless told otherwise.
HOST, PORT = "127.0.0.1", 8400


def add(parser: argparse.ArgumentParser) -> None:
    words = "the folder of results, of one run, of a plan or of a site (default: the newest below runs/)"
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR", help=words)
    words = f"port (default: {PORT} or, where that is taken, any that is free)"
    parser.add_argument("--port", type=int, metavar="N", help=words)
    words = "address to serve at (%(default)s); whoever reaches another address can read the page"
    parser.add_argument("--host", default=HOST, metavar="ADDRESS", help=words)
    parser.add_argument("--socket", type=int, help=argparse.SUPPRESS)  # of `netfleet run --watch`


def run(options: argparse.Namespace) -> int:
    need_packages("bokeh", extra="watch")
    silence_grpc()
    return _serve_beside(options) if options.socket is not None else _serve(options)


def _serve(options: argparse.Namespace) -> int:
    from netfleet.watch.beside import listen, url
    from netfleet.watch.choice import source_of
    from netfleet.watch.server import Pages, Server, serve

    source, listening = source_of(options.folder), listen(options.host, options.port, PORT)
    server = Server(Pages(source), listening)
    print(f"netfleet watch: {url(listening)} shows {source.folder}; Ctrl-C ends it", file=sys.stderr, flush=True)
    if not server.loopback:
        print("netfleet watch: everybody who can reach this address can read the page", file=sys.stderr, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        serve(server, lambda: False)
    return 0


def _serve_beside(options: argparse.Namespace) -> int:
    """Serve at a socket that a run has given, until the run closes standard input or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run
    os.nice(5)
    from netfleet.watch.choice import source_of
    from netfleet.watch.closing import closed
    from netfleet.watch.server import Pages, Server, serve

    pages = Pages(source_of(options.folder, expected=True))
    serve(Server(pages, socket.socket(fileno=options.socket)), closed(sys.stdin))
    return 0
