"""Lets a new site join a running training: makes its folder, and the file that its neighbours need.

The plan and the hash of the run do not change. The new links take their weight from the own weights of their two ends,
so W stays symmetric and doubly stochastic. A neighbour agrees by putting the file into its folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from netfleet.errors import ConfigError
from netfleet.sites.planning import plan as planning
from netfleet.sites.planning.certificates import OPERATOR, Authority, certificate_pem
from netfleet.sites.planning.folders import (
    ADMITTED_FOLDER,
    EXPERIMENT_FILE,
    NEIGHBOURS_FOLDER,
    SITE_FILE,
    Neighbour,
    Plan,
    Site,
    admitted,
    load_plan,
)
from netfleet.sites.planning.nodes_file import NodeEntry, check_hosts


def admit(
    folder: Path, node: NodeEntry, names: Sequence[str], authority: Authority, days: int = 365
) -> tuple[Site, float]:
    """Make the new site's folder inside the plan's folder; returns the site and the weight of its links."""
    plan = load_plan(folder / OPERATOR)
    others = [*plan.sites, *admitted(folder / OPERATOR)]
    _check_free(node, others, folder)
    site = _site(node, _chosen(names, others), others, plan)
    weight = site.neighbours[0].weight
    about = asdict(Neighbour(site.name, site.number, site.address, weight))
    planning.write_folder(folder / site.name, _files(folder, plan, site, node, authority, days, about))
    for name in names:
        if (folder / name).is_dir():  # the neighbour's folder exists here: a trial on one machine
            (folder / name / NEIGHBOURS_FOLDER).mkdir(exist_ok=True)
            planning.write_file(folder / name / NEIGHBOURS_FOLDER / f"{site.name}.toml", planning.toml(about))
    (folder / OPERATOR / ADMITTED_FOLDER).mkdir(exist_ok=True)
    planning.write_file(folder / OPERATOR / ADMITTED_FOLDER / f"{site.name}.toml", planning.toml(asdict(site)))
    return site, weight


def _check_free(node: NodeEntry, others: Sequence[Site], folder: Path) -> None:
    for site in others:
        if node.name.lower() == site.name.lower() or str(node.dialled) == site.address:
            raise ConfigError(f"{node.name} at {node.address}: {site.name} at {site.address} already exists")
    check_hosts([*(NodeEntry(site.name, site.address) for site in others), node])
    if (folder / node.name).exists():
        raise ConfigError(f"{folder / node.name} already exists; remove it, or choose another name")


def _chosen(names: Sequence[str], others: Sequence[Site]) -> list[Site]:
    known = {site.name: site for site in others}
    unknown = [name for name in names if name not in known]
    if unknown or not names or len(set(names)) != len(names):
        raise ConfigError(
            f"--neighbours must be some of {', '.join(known)}, each once; got {', '.join(names) or 'none'}"
        )
    return [known[name] for name in names]


def _site(node: NodeEntry, chosen: Sequence[Site], others: Sequence[Site], plan: Plan) -> Site:
    """The new site with its row of W: each link gets half of the smallest own weight left among its neighbours."""
    taken = {site.name: 0.0 for site in others}
    for site in others[len(plan.sites) :]:
        for each in site.neighbours:
            taken[each.name] += each.weight
    left = {site.name: site.weight - taken[site.name] for site in chosen}
    weight = min(min(left.values()) / 2, 1 / (len(chosen) + 1))
    if weight < 1e-6:
        poorest = min(left, key=lambda name: left[name])
        raise ConfigError(f"{poorest} has no own weight left to give to a new neighbour; choose other neighbours")
    first = plan.sites[0]
    return Site(
        name=node.name,
        number=len(others),
        address=str(node.dialled),
        listen=str(node.listened),
        weight=1 - weight * len(chosen),
        patience=first.patience,
        run=plan.run,
        digests=first.digests,
        neighbours=tuple(Neighbour(s.name, s.number, s.address, weight) for s in chosen),
    )


def _files(
    folder: Path, plan: Plan, site: Site, node: NodeEntry, authority: Authority, days: int, about: dict[str, object]
) -> dict[str, bytes]:
    experiment = folder / OPERATOR / EXPERIMENT_FILE
    if not experiment.is_file():
        raise ConfigError(f"{experiment} is missing; copy it from any site's folder of this plan")
    return {
        SITE_FILE: planning.toml(asdict(site), planning.site_head(site.name)),
        EXPERIMENT_FILE: experiment.read_bytes(),
        "ca.pem": certificate_pem(authority.certificate),
        f"{site.name}.toml": planning.toml(about),
        **planning.site_credentials(authority, node, days),
    }
