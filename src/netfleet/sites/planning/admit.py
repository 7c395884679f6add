"""Lets a new site join a training that is under way."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from cryptography import x509

from netfleet.errors import ConfigError
from netfleet.problems.own_loop import OWN_LOOP
from netfleet.runs.config import read_toml
from netfleet.sites.planning import folders
from netfleet.sites.planning.certificates import OPERATOR, Authority, fingerprint
from netfleet.sites.planning.folders import (
    CERTIFICATES_FOLDER,
    EXPERIMENT_FILE,
    Neighbour,
    Plan,
    Site,
)
from netfleet.sites.planning.nodes_file import NodeEntry, check_hosts
from netfleet.sites.planning.plan import check_link
from netfleet.sites.planning.plan_files import (
    RELAY_HEAD,
    pins_of,
    site_files,
    site_table,
    to_toml,
    write_file,
    write_folder,
)
from netfleet.sites.policy.eviction import evicted_names
from netfleet.sites.relay.settings import RELAY_FILE, RELAY_FOLDER, load_relay


def admit(folder: Path, node: NodeEntry, names: Sequence[str], authority: Authority, days: int) -> Site:
    """Let a new site join a training run that is under way.

    It gets a folder inside the plan's, with the file that its neighbours need: a neighbour agrees by putting the file
    into its folder. The plan and the hash of the run do not change. The new links take their weight from the
    self-weights of their two ends, so W stays symmetric and doubly stochastic.
    """
    plan, experiment = folders.load_plan(folder / OPERATOR), folder / OPERATOR / EXPERIMENT_FILE
    others = [*plan.sites, *folders.admitted(folder / OPERATOR)]
    _check_free(node, others, folder)
    out = evicted_names(folder)
    chosen = _chosen(names, [site for site in others if site.name not in out])
    for other in chosen:
        check_link(node.name, node.address, other.name, other.address, other.relay)
    site = _new_site(node, chosen, others, plan)
    if not experiment.is_file():
        raise ConfigError(f"{experiment} is missing; copy it from any site's folder of this plan")
    if read_toml(experiment)["problem"]["kind"] == OWN_LOOP:
        raise ConfigError("a site with a loop of its own cannot join a training that others have begun; plan again")
    if read_toml(experiment)["problem"].get("weights", {"kind": "equal"}) != {"kind": "equal"}:
        raise ConfigError("the sites of this plan have weights, and a new one has none; plan again with all sites")
    if "link_noise" in read_toml(experiment).get("privacy", {}) and len(names) < 2:
        raise ConfigError(
            f"the links of this plan have noise, and the only neighbour of {node.name} would know all of its own; name "
            f"two --neighbours or more"
        )
    files = site_files(site, node, experiment.read_bytes(), authority, days, f"netfleet node {site.name}")
    shown = fingerprint(x509.load_pem_x509_certificate(files["node.pem"]))
    about = to_toml(asdict(Neighbour(site.name, site.number, site.address, site.neighbours[0].weight, shown)))
    issued = folder / OPERATOR / CERTIFICATES_FOLDER
    known = {path.stem: path.read_bytes() for path in issued.glob("*.pem")}
    revoked = folder / OPERATOR / folders.REVOKED_FILE
    lists = {folders.REVOKED_FILE: revoked.read_bytes()} if revoked.is_file() else {}
    write_folder(folder / site.name, {**files, **pins_of(site, known), **lists, f"{site.name}.toml": about})
    write_file(issued / f"{site.name}.pem", files["node.pem"])
    for name in names:
        if (folder / name).is_dir():  # the neighbour's folder exists here: a trial on one machine
            write_file(folder / name / folders.NEIGHBOURS_FOLDER / f"{site.name}.toml", about)
    write_file(folder / OPERATOR / folders.ADMITTED_FOLDER / f"{site.name}.toml", to_toml(site_table(site)))
    if site.relay and (folder / RELAY_FOLDER).is_dir():
        known_there = load_relay(folder / RELAY_FOLDER)
        table = asdict(replace(known_there, names=(*known_there.names, site.name)))
        write_file(folder / RELAY_FOLDER / RELAY_FILE, to_toml(table, RELAY_HEAD))
    return site


def _check_free(node: NodeEntry, others: Sequence[Site], folder: Path) -> None:
    for site in others:
        if node.name.lower() == site.name.lower() or (node.address and node.dialled == site.address):
            raise ConfigError(f"{node.name} at {node.address}: {site.name} at {site.address} already exists")
    check_hosts([*(NodeEntry(site.name, site.address, reachable=bool(site.address)) for site in others), node])
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


def _new_site(node: NodeEntry, chosen: Sequence[Site], others: Sequence[Site], plan: Plan) -> Site:
    """The new site with its row of W: each link gets half of the smallest self-weight left among its neighbours."""
    taken = {site.name: 0.0 for site in others}
    for site in others[len(plan.sites) :]:
        for each in site.neighbours:
            taken[each.name] += each.weight
    left = {site.name: site.weight - taken[site.name] for site in chosen}
    weight = min(min(left.values()) / 2, 1 / (len(chosen) + 1))
    if weight < 1e-6:
        poorest = min(left, key=lambda name: left[name])
        raise ConfigError(f"{poorest} has no self-weight left for another neighbour; choose other neighbours")
    first, own = plan.sites[0], 1 - weight * len(chosen)
    links = tuple(Neighbour(s.name, s.number, s.address, weight) for s in chosen)
    where = (node.dialled, node.listened)
    made = Site(node.name, len(others), *where, own, first.patience, plan.run, first.digests, links)
    made = replace(made, rejoin=first.rejoin, relay=first.relay)
    return replace(made, keep=first.keep, on_alarm=first.on_alarm, alarm=first.alarm)
