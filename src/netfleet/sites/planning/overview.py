"""Prints a plan for the people who set it up: the sites, the firewall rules, what to do next."""

from collections.abc import Collection
from pathlib import Path

from rich.console import Console
from rich.table import Table

from netfleet.sites.planning.folders import Plan, Site
from netfleet.sites.planning.nodes_file import parse_address


def print_plan(
    plan: Plan,
    out: Path,
    console: Console,
    brought: Collection[str] = (),
    start: str = "netfleet node NAME",
    needs: str = "",
) -> None:
    """Print all of it.

    `brought` are the sites that sent a certificate request; `start` is how a site is started, `needs` what it needs.
    """
    table = Table("site", "address", "neighbours", "self-weight", title=f"{plan.name}: {plan.algorithm}")
    for site in plan.sites:
        names = ", ".join(each.name for each in site.neighbours)
        table.add_row(site.name, site.address, names, f"{site.weight:.6g}")
    console.print(table)
    say(console, f"λ = {plan.lam:.6g}, spectral gap {1 - plan.lam:.6g}, run {plan.run}")
    say(console, "\nFirewall: allow these connections and no others.")
    for site in plan.sites:
        say(console, f"  {site.name}: {firewall(site)}")
    if needs:
        say(console, f"\nNeeded: {needs}")
    say(console, "\nNext")
    for number, step in enumerate(_steps(out, brought, start), start=1):
        say(console, f"  {number}. {step}")


def print_admission(site: Site, folder: Path, console: Console) -> None:
    """Print what to do so that a new site can join."""
    names = ", ".join(each.name for each in site.neighbours)
    say(console, f"{site.name} is number {site.number}; each of its links has weight {site.neighbours[0].weight:.6g}.")
    say(console, f"\nFirewall: allow {site.name} ({parse_address(site.address, 'address').host}) at {names}.")
    say(console, f"  {site.name}: {firewall(site)}")
    say(console, "\nNext")
    say(console, f"  1. {names}: put {folder / site.name / site.name}.toml into neighbours.d in the site's folder.")
    say(console, f"  2. Copy {folder / site.name} to the new site, over a channel that you trust.")
    say(console, f"  3. There: netfleet node {site.name}. Nobody has to restart.")


def firewall(site: Site) -> str:
    """The port that must be open at a site, and for whom."""
    dialled, listened = parse_address(site.address, "address").port, parse_address(site.listen, "listen").port
    port = f"TCP {dialled}" if dialled == listened else f"TCP {dialled}, forwarded to {listened},"
    hosts = [f"{each.name} ({parse_address(each.address, 'address').host})" for each in site.neighbours]
    return f"{port} from {', '.join([*hosts, 'the operator (netfleet status)'])}"


def _steps(out: Path, brought: Collection[str], start: str) -> list[str]:
    steps = [f"Copy each folder of {out} to its site, over a channel that you trust: it holds the site's private key."]
    if brought:
        steps.append(f"{', '.join(brought)}: put the private key of the request beside it as node.key (mode 600).")
    if (out / "ca").exists():
        steps.append(f"Move {out / 'ca'} offline: its key can issue a certificate for any site.")
    steps.append("At each site, to see what it would run: netfleet approve NAME, netfleet policy init NAME.")
    return [*steps, f"At each site: {start}"]


def say(console: Console, text: str) -> None:
    """Print a text as it is: no markup, no line breaks of rich's own."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
