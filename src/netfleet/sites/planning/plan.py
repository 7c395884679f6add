"""From an experiment and a list of sites to one folder per site: its row of W, its experiment and its certificate.

    DIR/NAME/      site.toml, experiment.toml, ca.pem, node.pem, node.key (not if the site brought a request),
                   pins/OTHER.pem: the certificate of each neighbour
    DIR/operator/  plan.toml, experiment.toml, ca.pem, node.pem, node.key: to ask the sites for their status;
                   certificates/NAME.pem: that of each site
    DIR/ca/        ca.pem, ca.key: to issue further certificates (not if the authority was given)
    DIR/relay/     relay.toml, ca.pem: for the relay, if nodes.toml names one

Everything is made in memory first, so bad input leaves no files; then in a hidden folder that is renamed to DIR.
"""

import json
import os
import secrets
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import tomli_w
from cryptography import x509

import netfleet
from netfleet.algorithms.base import Algorithm
from netfleet.algorithms.build import make_algorithm
from netfleet.data.csv_files import plan_data
from netfleet.data.own_sites import named_sites
from netfleet.data.sites import holds_own_data
from netfleet.errors import ConfigError, StorageError
from netfleet.files import write_atomically
from netfleet.problems.own_loop import OWN_LOOP
from netfleet.problems.site_weights import site_weights
from netfleet.registry import parameters, split
from netfleet.runs.build import build_topology, check_steps, network_for
from netfleet.runs.config import Experiment, RunConfig, Table, experiment, read_experiment, read_toml, without_none
from netfleet.runs.own_loop import check_own_loop
from netfleet.runs.requirements import check_link_noise, check_time_box
from netfleet.sites.planning import certificates, folders
from netfleet.sites.planning.certificates import OPERATOR, Authority, certificate_pem, fingerprint, issue, key_pem
from netfleet.sites.planning.folders import (
    CERTIFICATES_FOLDER,
    EXPERIMENT_FILE,
    NO_TRACKERS,
    PINS_FOLDER,
    PLAN_FILE,
    SITE_FILE,
    Neighbour,
    Plan,
    Site,
    with_hashes,
)
from netfleet.sites.planning.nodes_file import Address, NodeEntry, NodesFile, check_hosts, parse_address
from netfleet.sites.relay.settings import RELAY_FILE, RELAY_FOLDER, RelaySettings, load_relay
from netfleet.sites.runtime.neighbourhood import why_fixed
from netfleet.topology.graphs import GRAPHS
from netfleet.topology.topology import Topology

Files = dict[str, bytes]
_SITE_HEAD = """\
# Site {name} of a network that trains without a server, made by netfleet {version} (netfleet plan).
# Addresses, listen, patience, rejoin, keep, on_alarm, alarm and device may be changed; names, numbers and weights are
# part of the run's hash.
# Start it with: {start}
"""
_RELAY_HEAD = (
    "# A relay, made by netfleet plan. Start it with: netfleet relay DIR. It reads names again when they change.\n"
)
#: What is the same at all sites of a new plan, besides the run.
_SHARED = ("patience", "rejoin", "keep", "on_alarm", "alarm", "relay")
_PLAN_HEAD = "# All sites of the network, for the operator; made by netfleet {version} (netfleet plan).\n"


def load_planned(path: str | Path, overrides: Sequence[str], nodes: NodesFile) -> Experiment:
    """An experiment file with overrides; the default for `topology.workers` is the number of sites."""
    table = read_experiment(path, overrides)
    topology = table.setdefault("topology", {})
    if isinstance(topology, dict):
        kind, _ = split({"kind": "erdos-renyi", **topology}, "graph")
        asked = parameters(GRAPHS[kind]).get("workers")
        if asked is not None and asked.default is asked.empty:
            topology.setdefault("workers", len(nodes.nodes))
    return with_site_weights(with_site_data(experiment(table), nodes), nodes)


def with_site_data(experiment: Experiment, nodes: NodesFile) -> Experiment:
    """The experiment with the sites' names and statistics written into its data, where each site has its own."""
    if "data" not in experiment.problem:
        return experiment
    names = [node.name for node in nodes.nodes]
    if (listed := named_sites(experiment.problem["partition"])) not in (None, names):
        ours, theirs = ", ".join(listed or ()), ", ".join(names)
        raise ConfigError(
            f"problem.partition has the names {ours}, but the [[nodes]] are {theirs}; give both in the same order"
        )
    data = plan_data(experiment.problem["data"], names)
    return replace(experiment, problem=experiment.problem | {"data": data})


def with_site_weights(experiment: Experiment, nodes: NodesFile) -> Experiment:
    """The experiment with a number for each site in place of weights by rows, if the sites say how many they have."""
    weights, problem = experiment.problem["weights"], experiment.problem
    known = [node for node in nodes.nodes if node.rows]
    if not isinstance(weights, Mapping) or weights["kind"] != "rows":
        return experiment
    own = "data" in problem and holds_own_data(problem["data"])
    if len(known) < len(nodes.nodes) and (known or own):
        missing = next(node.name for node in nodes.nodes if not node.rows)
        cause = 'problem.weights = "rows" needs the number of training rows of every site, which no other site knows'
        raise ConfigError(f"{cause}; add rows = … to [[nodes]] {missing}, or give weights as numbers")
    if not known:
        return experiment  # sites that divide one data set know each other's parts
    numbers = site_weights(weights, [node.rows for node in nodes.nodes]).tolist()
    return replace(experiment, problem=problem | {"weights": numbers})


def make_plan(experiment: Experiment, nodes: NodesFile) -> Plan:
    """Give each site its row of W; raise if sites without a server cannot run the experiment."""
    run = _only_run(experiment)
    topology = _checked_topology(experiment, run, nodes)
    device = experiment.engine.device
    sites = with_hashes([replace(_site(i, nodes, topology), device=device) for i in range(topology.m)], run.hash)
    return Plan(experiment.name, run.label, experiment.rounds, topology.lam, run.hash, sites[0].run, sites)


def _only_run(experiment: Experiment) -> RunConfig:
    if len(experiment.seeds) > 1:
        raise ConfigError(
            f"sites train once, but the experiment has the seeds {', '.join(map(str, experiment.seeds))}; choose one: "
            f"--set seeds=[{experiment.seeds[0]}]"
        )
    if len(experiment.algorithms) > 1:
        labels = ", ".join(run.label for run in experiment.runs())
        choice = shlex.quote(f"algorithms=[{_inline(experiment.algorithms[0])}]")
        raise ConfigError(
            f"sites train with one algorithm, but the experiment has {labels}; choose one, for example: --set {choice}"
        )
    return experiment.runs()[0]


def _inline(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_inline(v)}" for key, v in value.items() if v is not None) + "}"
    return json.dumps(value, ensure_ascii=False)


def _checked_topology(experiment: Experiment, run: RunConfig, nodes: NodesFile) -> Topology:
    algorithm = make_algorithm(run.config["algorithm"])
    if algorithm.server:
        raise ConfigError(f"{algorithm.title} needs a server, and sites have only neighbours; try net-fleet")
    if experiment.network is not None:
        raise ConfigError("[network] simulates failures, but sites have real ones; leave it out")
    if experiment.track:
        raise ConfigError(f"[track]: {NO_TRACKERS}; leave it out")
    if experiment.problem["kind"] == OWN_LOOP:
        _check_own_loop(experiment, algorithm)
    check_steps(algorithm, experiment.rounds)
    if (nodes.patience or nodes.rejoin) and (why := why_fixed(algorithm)) is not None:
        raise why
    topology = build_topology(experiment.topology, run.seed)
    if topology.varying:
        raise ConfigError(
            f"graph {topology.name!r} changes from round to round, and sites have fixed neighbours; use a fixed graph"
        )
    if topology.m != len(nodes.nodes):
        raise ConfigError(
            f"the experiment has {topology.m} workers but there are {len(nodes.nodes)} sites; add or remove [[nodes]], "
            f"or change the graph (without topology.workers, a graph by name has one worker per site)"
        )
    network_for(algorithm, topology, run.seed)  # raises if the method does not go with these weights
    if experiment.privacy is not None and experiment.privacy.link_noise is not None:
        check_link_noise(algorithm, topology)
    if experiment.time_box is not None:
        check_time_box(algorithm, experiment.time_box, topology.m, by_clock=True)
    _check_labels(topology, [node.name for node in nodes.nodes])
    _check_reachable(topology, nodes)
    return topology


def _check_own_loop(experiment: Experiment, algorithm: Algorithm) -> None:
    """Raise if loops of the sites' own cannot do what the experiment says."""
    if experiment.problem["weights"] != {"kind": "equal"}:
        raise ConfigError("problem.weights: a loop of a site's own weighs its loss itself; leave weights out")
    if experiment.privacy is not None and experiment.privacy.clip is not None:
        raise ConfigError("privacy.clip: a loop of a site's own clips and perturbs its gradients itself; leave it out")
    if experiment.evaluation.metrics:
        raise ConfigError("evaluation.metrics: a loop of a site's own measures its model itself; leave metrics out")
    if experiment.time_box is not None:
        raise ConfigError("[time_box]: a loop of a site's own counts its steps itself; leave [time_box] out")
    if experiment.contract is not None:
        raise ConfigError("[contract]: a loop of a site's own reads its data itself; leave [contract] out")
    check_own_loop(algorithm)


def _check_labels(topology: Topology, names: list[str]) -> None:
    """Raise if a graph from a file names the sites in another order: each would get the neighbours of another."""
    labels = [str(topology.graph.nodes[i].get("label", i)) for i in range(topology.m)]
    numbers = [str(i) for i in range(topology.m)]
    if labels not in (names, numbers) and set(labels) & set(names):
        raise ConfigError(
            f"the graph has the workers {', '.join(labels)} in this order, but the sites are {', '.join(names)}; list "
            f"the [[nodes]] in the order of the graph, under the same names"
        )


def _check_reachable(topology: Topology, nodes: NodesFile) -> None:
    """Raise if two neighbours could never connect."""
    for i, node in enumerate(nodes.nodes):
        for other in (nodes.nodes[j] for j in topology.neighbours(i)):
            check_link(node.name, node.address, other.name, other.address, nodes.relay)


def check_link(name: str, address: str, other: str, other_address: str, relay: str) -> None:
    """Raise unless one end of a link can dial the other, or both can dial a relay."""
    if not (address or other_address or relay):
        raise ConfigError(
            f"{name} and {other} are neighbours, and neither has an address that the other could dial; open a TCP port "
            f'at one of them and write it as its address in [[nodes]], or add relay = "host:port" to nodes.toml, '
            f"a machine that both can dial"
        )


def _site(i: int, nodes: NodesFile, topology: Topology) -> Site:
    node, row, patience = nodes.nodes[i], topology.row(i), float(nodes.patience)
    there = [(j, nodes.nodes[j]) for j in topology.neighbours(i)]
    links = tuple(Neighbour(other.name, j, other.dialled, row[j]) for j, other in there)
    made = Site(node.name, i, node.dialled, node.listened, row.get(i, 0.0), patience, "", (), links)
    relay = str(parse_address(nodes.relay, "relay")) if nodes.relay else ""
    made = replace(made, rejoin=nodes.rejoin, relay=relay)
    return replace(made, keep=nodes.keep, on_alarm=nodes.on_alarm, alarm=nodes.alarm, rows=node.rows)


def write_plan(
    plan: Plan, out: Path, experiment: Experiment, nodes: NodesFile, authority: Authority | None = None, days: int = 365
) -> None:
    """Make the folders of all sites and of the operator in `out`, with a fresh authority unless one is given."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} already exists and is not an empty folder; choose another --out, or remove it")
    signer = authority or certificates.new_authority(f"netfleet CA {plan.run[:12]}")
    files = _files(plan, experiment, nodes, signer, days)
    if authority is None:
        files |= {"ca/ca.pem": certificate_pem(signer.certificate), "ca/ca.key": key_pem(signer.key)}
    try:
        _write_folder(out, files)
    except StorageError:
        raise
    except OSError as error:
        raise ConfigError(f"cannot write to {out}: {error}; choose another --out") from None


def _files(plan: Plan, experiment: Experiment, nodes: NodesFile, authority: Authority, days: int) -> Files:
    text = _toml(without_none(experiment.to_table()))
    operator = _credentials(authority, OPERATOR, "", days)
    contents = {OPERATOR: {PLAN_FILE: _plan_toml(plan), EXPERIMENT_FILE: text, **operator}}
    for site, node in zip(plan.sites, nodes.nodes, strict=True):
        contents[site.name] = _site_files(site, node, text, authority, days, start_command(experiment, site.name))
    issued = {site.name: contents[site.name]["node.pem"] for site in plan.sites}
    contents[OPERATOR] |= {f"{CERTIFICATES_FOLDER}/{name}.pem": pem for name, pem in issued.items()}
    for site in plan.sites:
        contents[site.name] |= _pins(site, issued)
    if nodes.relay:
        contents[RELAY_FOLDER] = _relay_files(plan.sites, operator["ca.pem"])
    return {f"{folder}/{name}": content for folder, files in contents.items() for name, content in files.items()}


def _relay_files(sites: Sequence[Site], ca: bytes) -> Files:
    """What a relay needs: all sites and the operator may use it."""
    address = parse_address(sites[0].relay, "relay")
    names = (*(site.name for site in sites), OPERATOR)
    settings = RelaySettings(str(address), str(Address("::", address.port)), names)
    return {RELAY_FILE: _toml(asdict(settings), _RELAY_HEAD), "ca.pem": ca}


def _pins(site: Site, issued: Mapping[str, bytes]) -> Files:
    """The certificates of a site's neighbours, as far as they are known."""
    names = [each.name for each in site.neighbours]
    return {f"{PINS_FOLDER}/{name}.pem": issued[name] for name in names if name in issued}


def _plan_toml(plan: Plan) -> bytes:
    """What all sites share is written once."""
    shared = ("digests", "run", *_SHARED)
    sites = [{k: v for k, v in _site_table(site).items() if k not in shared} for site in plan.sites]
    table = {**asdict(plan), "sites": sites, **{key: _site_table(plan.sites[0])[key] for key in _SHARED}}
    return _toml(table, _PLAN_HEAD.format(version=netfleet.__version__))


def _site_table(site: Site) -> Table:
    """A site as its file says it; fingerprints are in the files of neighbours that are admitted later."""
    links = [{k: v for k, v in asdict(each).items() if (k, v) != ("fingerprint", "")} for each in site.neighbours]
    own = {key: value for key, value in asdict(site).items() if key != "rollbacks" and (key, value) != ("rows", 0)}
    return own | {"neighbours": links}


def start_command(experiment: Experiment, name: str) -> str:
    """How a site is started."""
    if experiment.problem["kind"] == OWN_LOOP:
        return f'a program of its own, which calls netfleet.optim.join("{name}")'
    return f"netfleet node {name}"


def needs(experiment: Experiment) -> str:
    """What every site must have."""
    if experiment.problem["kind"] == OWN_LOOP:
        method = experiment.algorithms[0]
        return (
            f"each site needs a program with a training loop, which calls netfleet.optim.join and makes the optimizer "
            f"of {method['kind']} with the plan's settings (the learning rate is its own), for the same model from the "
            f"same initial values. It computes where the program has the model."
        )
    device = experiment.engine.device
    found = "each site computes on its CPU" if device == "cpu" else f"each site needs the device {device!r}"
    return f"{found}; for another, change device in its site.toml."


def _site_files(site: Site, node: NodeEntry, experiment: bytes, authority: Authority, days: int, start: str) -> Files:
    head = _SITE_HEAD.format(name=site.name, version=netfleet.__version__, start=start)
    own = _credentials(authority, site.name, node.host, days, node.request)
    return {SITE_FILE: _toml(_site_table(site), head), EXPERIMENT_FILE: experiment, **own}


def _credentials(authority: Authority, name: str, host: str, days: int, request: str = "") -> Files:
    """The authority's certificate, that of the name, and its key unless the site sent a certificate request."""
    key = None if request else certificates.new_key()
    public = certificates.read_request(Path(request), name) if key is None else key.public_key()
    own = certificate_pem(issue(authority, name, host, public, days))
    files = {"ca.pem": certificate_pem(authority.certificate), "node.pem": own}
    return files if key is None else files | {"node.key": key_pem(key)}


def _toml(table: Table, head: str = "") -> bytes:
    return (head + tomli_w.dumps(table)).encode()


def _write_file(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a file atomically, in a folder that is made if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: file.write(content), mode)


def _write_folder(out: Path, files: Files) -> None:
    """Write all files below `out` or none; only their owner can ever read keys."""
    out.parent.mkdir(parents=True, exist_ok=True)
    hidden = out.parent / f".{out.name}-{secrets.token_hex(4)}.tmp"
    try:
        for name, content in files.items():
            _write_file(hidden / name, content, 0o600 if name.endswith(".key") else 0o666)
        os.replace(hidden, out)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise


def admit(folder: Path, node: NodeEntry, names: Sequence[str], authority: Authority, days: int) -> Site:
    """Let a new site join a training run that is under way.

    It gets a folder inside the plan's, with the file that its neighbours need: a neighbour agrees by putting the file
    into its folder. The plan and the hash of the run do not change. The new links take their weight from the
    self-weights of their two ends, so W stays symmetric and doubly stochastic.
    """
    plan, experiment = folders.load_plan(folder / OPERATOR), folder / OPERATOR / EXPERIMENT_FILE
    others = [*plan.sites, *folders.admitted(folder / OPERATOR)]
    _check_free(node, others, folder)
    chosen = _chosen(names, others)
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
    files = _site_files(site, node, experiment.read_bytes(), authority, days, f"netfleet node {site.name}")
    shown = fingerprint(x509.load_pem_x509_certificate(files["node.pem"]))
    about = _toml(asdict(Neighbour(site.name, site.number, site.address, site.neighbours[0].weight, shown)))
    issued = folder / OPERATOR / CERTIFICATES_FOLDER
    known = {path.stem: path.read_bytes() for path in issued.glob("*.pem")}
    revoked = folder / OPERATOR / folders.REVOKED_FILE
    lists = {folders.REVOKED_FILE: revoked.read_bytes()} if revoked.is_file() else {}
    _write_folder(folder / site.name, {**files, **_pins(site, known), **lists, f"{site.name}.toml": about})
    _write_file(issued / f"{site.name}.pem", files["node.pem"])
    for name in names:
        if (folder / name).is_dir():  # the neighbour's folder exists here: a trial on one machine
            _write_file(folder / name / folders.NEIGHBOURS_FOLDER / f"{site.name}.toml", about)
    _write_file(folder / OPERATOR / folders.ADMITTED_FOLDER / f"{site.name}.toml", _toml(_site_table(site)))
    if site.relay and (folder / RELAY_FOLDER).is_dir():
        known_there = load_relay(folder / RELAY_FOLDER)
        table = asdict(replace(known_there, names=(*known_there.names, site.name)))
        _write_file(folder / RELAY_FOLDER / RELAY_FILE, _toml(table, _RELAY_HEAD))
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
