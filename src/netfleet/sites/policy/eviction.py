"""Throws a site out of a training: the operator's list says so, and its neighbours drop it as soon as they have that.

The list is that of revoked certificates (`revocation.py`), which the authority signs, so no site can evict another.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import networkx as nx

from netfleet.algorithms.build import make_algorithm
from netfleet.errors import ConfigError
from netfleet.runs.config import load_experiment
from netfleet.sites.planning.certificates import OPERATOR, Authority, read_certificate
from netfleet.sites.planning.folders import EXPERIMENT_FILE, REVOKED_FILE, Site, all_sites
from netfleet.sites.policy.pinning import revoke_site
from netfleet.sites.policy.revocation import read_list
from netfleet.sites.runtime.neighbourhood import why_fixed


class Evicted(NamedTuple):
    """What the operator has to know."""

    number: int  # of the list
    neighbours: tuple[str, ...]  # sites that need the list
    parts: tuple[tuple[str, ...], ...]  # groups of the sites that are left, which can reach each other


def evict_site(plan: Path, name: str, files: Sequence[Path], why: str, authority: Authority, path: Path) -> Evicted:
    """Evict a site, with its certificates of the plan and those in these files; `path` is the list so far."""
    sites = {site.name: site for site in all_sites(plan / OPERATOR)}
    if name not in sites:
        raise ConfigError(f"{name} is no site of {plan}; the sites are {', '.join(sites)}")
    (run,) = load_experiment(plan / OPERATOR / EXPERIMENT_FILE).runs()
    if (fixed := why_fixed(make_algorithm(run.config["algorithm"]))) is not None:
        raise ConfigError(f"{name} cannot be evicted: {fixed}")
    made = revoke_site(plan, name, files, why, authority, path, evict=True)
    left = [site for site in sites.values() if site.name not in made.evicted()]
    graph = graph_of(list(sites.values()))
    parts = [tuple(sorted(part)) for part in nx.connected_components(graph.subgraph(site.name for site in left))]
    return Evicted(made.number, tuple(sorted(graph[name])), tuple(sorted(parts)))


def graph_of(sites: Sequence[Site]) -> nx.Graph:
    """Who talks to whom, by name."""
    graph = nx.Graph()
    graph.add_nodes_from(site.name for site in sites)
    graph.add_edges_from((site.name, each.name) for site in sites for each in site.neighbours)
    return graph


def evicted_names(plan: Path) -> set[str]:
    """The sites that the operator of this plan has evicted."""
    path = plan / OPERATOR / REVOKED_FILE
    return set(read_list(path, read_certificate(plan / OPERATOR / "ca.pem")).evicted()) if path.exists() else set()
