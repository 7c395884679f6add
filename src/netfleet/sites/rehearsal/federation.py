"""The federation of a plan, as its operator or one of its sites knows it."""

from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from netfleet.errors import ConfigError
from netfleet.registry import make_importable
from netfleet.runs.build import build_topology
from netfleet.runs.config import Experiment, load_experiment
from netfleet.sites.planning.alarm_settings import KEEP
from netfleet.sites.planning.certificates import OPERATOR
from netfleet.sites.planning.folders import EXPERIMENT_FILE, PLAN_FILE, SITE_FILE, load_plan
from netfleet.sites.planning.nodes_file import parse_address
from netfleet.sites.policy.start import open_site
from netfleet.topology.topology import Topology


@dataclass(frozen=True)
class Federation:
    """Who trains what with whom. A site does not know the names of sites that are no neighbours."""

    folder: Path  # whose rehearsal this is
    run: str
    names: tuple[str, ...]
    addresses: tuple[str, ...]  # empty: not known here
    experiment: Experiment
    topology: Topology
    rows: dict[str, int] = field(default_factory=dict)  # as the plan says
    keep: int = KEEP  # checkpoints at each site
    own: int | None = None  # the site whose folder this is; None: the operator's

    @property
    def links(self) -> list[tuple[int, int]]:
        """By both ends, in ascending order."""
        pairs = ((i, j) for i in range(len(self.names)) for j in self.topology.neighbours(i))
        return sorted({(min(pair), max(pair)) for pair in pairs})

    @property
    def on_one_machine(self) -> bool:
        """Whether this is a trial: all sites are on this machine."""
        return all(address and _is_loopback(address) for address in self.addresses)


def open_federation(folder: Path, policy: Path | None = None) -> Federation:
    """From a plan's, an operator's or a site's folder; raises if it was changed since `netfleet plan`."""
    if (folder / SITE_FILE).is_file():
        return _of_site(folder, policy)
    operator = folder / OPERATOR if (folder / OPERATOR).is_dir() else folder
    if not (operator / PLAN_FILE).is_file():
        raise ConfigError(f"{folder} is no folder of netfleet plan: of all sites, the operator or one site")
    plan, path = load_plan(operator), operator / EXPERIMENT_FILE
    make_importable(str(path))
    experiment = load_experiment(path)
    (run,) = experiment.runs()
    if run.hash != plan.experiment:
        raise ConfigError(f"{path} is not the experiment of {operator / PLAN_FILE}: it was changed; restore the file")
    names, addresses = tuple(site.name for site in plan.sites), tuple(site.address for site in plan.sites)
    rows = {site.name: site.rows for site in plan.sites if site.rows}
    return Federation(folder, plan.run, names, addresses, experiment, _topology(experiment), rows, plan.sites[0].keep)


def _of_site(folder: Path, policy: Path | None) -> Federation:
    site, experiment, _ = open_site(folder, policy)
    topology = _topology(experiment)
    if not site.planned:
        raise ConfigError(f"{site.name} joined after the plan was made; rehearse with a folder of the plan")
    known = {site.number: (site.name, site.address)} | {n.number: (n.name, n.address) for n in site.neighbours}
    names, addresses = zip(*(known.get(i, (f"site {i}", "")) for i in range(topology.m)), strict=True)
    rows = {site.name: site.rows} if site.rows else {}
    return Federation(folder, site.run, names, addresses, experiment, topology, rows, site.keep, site.number)


def _topology(experiment: Experiment) -> Topology:
    return build_topology(experiment.topology, experiment.seeds[0])


def _is_loopback(address: str) -> bool:
    host = parse_address(address, "address").host
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
