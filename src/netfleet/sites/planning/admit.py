"""Lets a new site join a running training: makes its folder, and the file that its neighbours need.

The plan and the hash of the run do not change. The new links take their weight from the own weights of their two ends,
so W stays symmetric and doubly stochastic. A neighbour agrees by putting the file into its folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from netfleet.errors import ConfigError
from netfleet.sites.planning import folders
from netfleet.sites.planning.certificates import OPERATOR, Authority
from netfleet.sites.planning.folders import Neighbour, Plan, Site
from netfleet.sites.planning.nodes_file import NodeEntry, check_hosts
from netfleet.sites.planning.plan import site_files, toml, write_file, write_folder


def admit(
    folder: Path, node: NodeEntry, names: Sequence[str], authority: Authority, days: int = 365
) -> tuple[Site, float]:
    """Make the new site's folder inside the plan's folder; returns the site and the weight of its links."""
    plan, experiment = folders.load_plan(folder / OPERATOR), folder / OPERATOR / folders.EXPERIMENT_FILE
    others = [*plan.sites, *folders.admitted(folder / OPERATOR)]
    _check_free(node, others, folder)
    site = _site(node, _chosen(names, others), others, plan)
    if not experiment.is_file():
        raise ConfigError(f"{experiment} is missing; copy it from any site's folder of this plan")
    weight = site.neighbours[0].weight
    about = toml(asdict(Neighbour(site.name, site.number, site.address, weight)))
    files = site_files(site, node, experiment.read_bytes(), authority, days)
    write_folder(folder / site.name, {**files, f"{site.name}.toml": about})
    for name in names:
        if (folder / name).is_dir():  # the neighbour's folder exists here: a trial on one machine
            write_file(folder / name / folders.NEIGHBOURS_FOLDER / f"{site.name}.toml", about)
    write_file(folder / OPERATOR / folders.ADMITTED_FOLDER / f"{site.name}.toml", toml(asdict(site)))
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
    first, own = plan.sites[0], 1 - weight * len(chosen)
    links = tuple(Neighbour(s.name, s.number, s.address, weight) for s in chosen)
    where = (str(node.dialled), str(node.listened))
    return Site(node.name, len(others), *where, own, first.patience, plan.run, first.digests, links)
