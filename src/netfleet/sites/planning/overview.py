"""Prints a plan for the people who set it up: the sites, the firewall rules, what to do next."""

from collections.abc import Collection
from pathlib import Path

from rich.console import Console
from rich.table import Table

from netfleet.sites.planning.certificates import OPERATOR
from netfleet.sites.planning.folders import CERTIFICATES_FOLDER, Neighbour, Plan, Site
from netfleet.sites.planning.nodes_file import parse_address
from netfleet.sites.relay.settings import RELAY_FILE, RELAY_FOLDER


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
        table.add_row(site.name, site.address or "only dials out", names, f"{site.weight:.6g}")
    console.print(table)
    say(console, f"λ = {plan.lam:.6g}, spectral gap {1 - plan.lam:.6g}, run {plan.run}")
    say(console, "\nFirewall: allow these connections and no others.")
    for site in plan.sites:
        say(console, f"  {site.name}: {firewall(site)}")
    if relay := plan.sites[0].relay:
        say(console, f"  relay: TCP {parse_address(relay, 'relay').port} from all sites and the operator")
    if needs:
        say(console, f"\nNeeded: {needs}")
    say(console, "\nNext")
    for number, step in enumerate(_steps(out, brought, start), start=1):
        say(console, f"  {number}. {step}")


def print_admission(site: Site, folder: Path, console: Console) -> None:
    """Print what to do so that a new site can join."""
    names = ", ".join(each.name for each in site.neighbours)
    say(console, f"{site.name} is number {site.number}; each of its links has weight {site.neighbours[0].weight:.6g}.")
    say(console, f"\nFirewall: allow {_with_host(site)} at {names}.")
    say(console, f"  {site.name}: {firewall(site)}")
    say(console, "\nNext")
    say(console, f"  1. {names}: put {folder / site.name / site.name}.toml into neighbours.d in the site's folder.")
    say(console, f"  2. Copy {folder / site.name} to the new site, over a channel that you trust.")
    say(console, f"  3. There: netfleet node {site.name}. Nobody has to restart.")
    for number, step in enumerate(_admission_steps(site, folder), start=4):
        say(console, f"  {number}. {step}")


def _admission_steps(site: Site, folder: Path) -> list[str]:
    copied = f"admitted/{site.name}.toml and certificates/{site.name}.pem are new in {folder / OPERATOR}"
    steps = [f"{copied}: whoever runs netfleet status with a copy of that folder needs them too."]
    if site.relay:
        steps.append(f"Put the new {folder / RELAY_FOLDER / RELAY_FILE} into the relay's folder.")
    if site.address and (closed := [each.name for each in site.neighbours if not each.address]):
        pinned = folder / OPERATOR / CERTIFICATES_FOLDER / f"{site.name}.pem"
        steps.append(f"{', '.join(closed)}: {site.name} cannot dial you, so first netfleet pin NAME {pinned}")
    return steps


def firewall(site: Site) -> str:
    """The port that must be open at a site, and for whom."""
    if not site.address:
        return f"nothing from outside; to {', '.join(dialled_by(site))}"
    dialled, listened = parse_address(site.address, "address").port, parse_address(site.listen, "listen").port
    port = f"TCP {dialled}" if dialled == listened else f"TCP {dialled}, forwarded to {listened},"
    hosts = [_with_host(each) for each in site.neighbours]
    return f"{port} from {', '.join([*hosts, 'the operator (netfleet status)'])}"


def dialled_by(site: Site) -> list[str]:
    """What a site without an address dials."""
    to = [f"{each.name} ({each.address})" for each in site.neighbours if each.address]
    return [*to, *([f"the relay ({site.relay})"] if site.relay else [])]


def _with_host(site: Site | Neighbour) -> str:
    host = parse_address(site.address, "address").host if site.address else "from wherever it dials out"
    return f"{site.name} ({host})"


def _steps(out: Path, brought: Collection[str], start: str) -> list[str]:
    steps = [f"Copy each folder of {out} to its site, over a channel that you trust: it holds the site's private key."]
    if brought:
        steps.append(f"{', '.join(brought)}: put the private key of the request beside it as node.key (mode 600).")
    if (out / "ca").exists():
        steps.append(f"Move {out / 'ca'} offline: its key can issue a certificate for any site.")
    if (out / RELAY_FOLDER).exists():
        steps.append(
            f"Copy {out / RELAY_FOLDER} to the relay (it holds no secret) and start it there: netfleet relay relay"
        )
    steps.append("At each site, to see what it would run: netfleet approve NAME, netfleet policy init NAME.")
    steps.append("At each site, within ten minutes of each other: netfleet doctor NAME --wait 600")
    return [*steps, f"At each site: {start}"]


def say(console: Console, text: str) -> None:
    """Print a text as it is: no markup, no line breaks of rich's own."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
