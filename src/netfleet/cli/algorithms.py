"""List the methods with their parameters and citations."""

import argparse
import inspect

from netfleet.registry import make_importable, parameters


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="show the equations and the BibTeX of one method")
    parser.add_argument("--bibtex", action="store_true", help="print the BibTeX of all methods")


def run(options: argparse.Namespace) -> int:
    make_importable(None)
    from rich.console import Console
    from rich.table import Column, Table

    from netfleet.algorithms import ALGORITHMS
    from netfleet.algorithms.base import short_citation

    if options.name:
        method = ALGORITHMS[options.name]
        if options.name in ALGORITHMS.aliases:
            print(f"{options.name} is another name of {ALGORITHMS.aliases[options.name]}.", end="\n\n")
        print(inspect.getdoc(inspect.getmodule(method)) or inspect.getdoc(method), end="\n\n")
        print(getattr(method, "citation", ""))
        return 0
    if options.bibtex:
        print("\n".join(dict.fromkeys(getattr(ALGORITHMS[name], "citation", "") for name in ALGORITHMS)))
        return 0
    table = Table(Column("kind", no_wrap=True), "over", "parameters", "citation", title="Algorithms")
    for name in sorted(ALGORITHMS):
        known = ALGORITHMS[name]
        defaults = ", ".join(f"{key} = {p.default}" for key, p in parameters(known).items())
        over = "server" if getattr(known, "server", False) else "graph"
        table.add_row(
            "\n= ".join(ALGORITHMS.names(name)), over, defaults, short_citation(getattr(known, "citation", ""))
        )
    Console().print(table)
    print("netfleet algorithms NAME shows the equations and the BibTeX of a method; --bibtex prints the BibTeX of all.")
    print("A method of your own is one class: `python -m pydoc netfleet.algorithms.base.Algorithm` says what it sets.")
    return 0
