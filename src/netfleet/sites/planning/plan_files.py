"""The files of a plan, in one folder for each site: its row of W, its experiment and its certificate.

    DIR/NAME/      site.toml, experiment.toml, ca.pem, node.pem, node.key (not if the site brought a request),
                   pins/OTHER.pem: the certificate of each neighbour
    DIR/operator/  plan.toml, experiment.toml, ca.pem, node.pem, node.key: to ask the sites for their status;
                   certificates/NAME.pem: that of each site
    DIR/ca/        ca.pem, ca.key: to issue further certificates (not if the authority was given)
    DIR/relay/     relay.toml, ca.pem: for the relay, if nodes.toml names one

Everything is made in memory first, so bad input leaves no files; then in a hidden folder that is renamed to DIR.
"""

import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import tomli_w

import netfleet
from netfleet.errors import ConfigError, StorageError
from netfleet.files import write_atomically
from netfleet.runs.config import Experiment, Table, without_none
from netfleet.sites.planning import certificates
from netfleet.sites.planning.certificates import OPERATOR, Authority, certificate_pem, issue, key_pem
from netfleet.sites.planning.folders import (
    CERTIFICATES_FOLDER,
    EXPERIMENT_FILE,
    PINS_FOLDER,
    PLAN_FILE,
    SITE_FILE,
    Plan,
    Site,
)
from netfleet.sites.planning.nodes_file import Address, NodeEntry, NodesFile, parse_address
from netfleet.sites.planning.plan import start_command
from netfleet.sites.relay.settings import RELAY_FILE, RELAY_FOLDER, RelaySettings

Files = dict[str, bytes]
_SITE_HEAD = """\
# Site {name} of a network that trains without a server, made by netfleet {version} (netfleet plan).
# Addresses, listen, patience, rejoin, keep, on_alarm, alarm and device may be changed; names, numbers and weights are
# part of the run's hash.
# Start it with: {start}
"""
RELAY_HEAD = (
    "# A relay, made by netfleet plan. Start it with: netfleet relay DIR. It reads names again when they change.\n"
)
#: What is the same at all sites of a new plan, besides the run.
_SHARED = ("patience", "rejoin", "keep", "on_alarm", "alarm", "relay")
_PLAN_HEAD = "# All sites of the network, for the operator; made by netfleet {version} (netfleet plan).\n"


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
        write_folder(out, files)
    except StorageError:
        raise
    except OSError as error:
        raise ConfigError(f"cannot write to {out}: {error}; choose another --out") from None


def _files(plan: Plan, experiment: Experiment, nodes: NodesFile, authority: Authority, days: int) -> Files:
    text = to_toml(without_none(experiment.to_table()))
    operator = _credentials(authority, OPERATOR, "", days)
    contents = {OPERATOR: {PLAN_FILE: _plan_toml(plan), EXPERIMENT_FILE: text, **operator}}
    for site, node in zip(plan.sites, nodes.nodes, strict=True):
        contents[site.name] = site_files(site, node, text, authority, days, start_command(experiment, site.name))
    issued = {site.name: contents[site.name]["node.pem"] for site in plan.sites}
    contents[OPERATOR] |= {f"{CERTIFICATES_FOLDER}/{name}.pem": pem for name, pem in issued.items()}
    for site in plan.sites:
        contents[site.name] |= pins_of(site, issued)
    if nodes.relay:
        contents[RELAY_FOLDER] = _relay_files(plan.sites, operator["ca.pem"])
    return {f"{folder}/{name}": content for folder, files in contents.items() for name, content in files.items()}


def _relay_files(sites: Sequence[Site], ca: bytes) -> Files:
    """What a relay needs: all sites and the operator may use it."""
    address = parse_address(sites[0].relay, "relay")
    names = (*(site.name for site in sites), OPERATOR)
    settings = RelaySettings(str(address), str(Address("::", address.port)), names)
    return {RELAY_FILE: to_toml(asdict(settings), RELAY_HEAD), "ca.pem": ca}


def pins_of(site: Site, issued: Mapping[str, bytes]) -> Files:
    """The certificates of a site's neighbours, as far as they are known."""
    names = [each.name for each in site.neighbours]
    return {f"{PINS_FOLDER}/{name}.pem": issued[name] for name in names if name in issued}


def _plan_toml(plan: Plan) -> bytes:
    """What all sites share is written once."""
    shared = ("digests", "run", *_SHARED)
    sites = [{k: v for k, v in site_table(site).items() if k not in shared} for site in plan.sites]
    table = {**asdict(plan), "sites": sites, **{key: site_table(plan.sites[0])[key] for key in _SHARED}}
    return to_toml(table, _PLAN_HEAD.format(version=netfleet.__version__))


def site_table(site: Site) -> Table:
    """A site as its file says it; fingerprints are in the files of neighbours that are admitted later."""
    links = [{k: v for k, v in asdict(each).items() if (k, v) != ("fingerprint", "")} for each in site.neighbours]
    own = {key: value for key, value in asdict(site).items() if key != "rollbacks" and (key, value) != ("rows", 0)}
    return own | {"neighbours": links}


def site_files(site: Site, node: NodeEntry, experiment: bytes, authority: Authority, days: int, start: str) -> Files:
    head = _SITE_HEAD.format(name=site.name, version=netfleet.__version__, start=start)
    own = _credentials(authority, site.name, node.host, days, node.request)
    return {SITE_FILE: to_toml(site_table(site), head), EXPERIMENT_FILE: experiment, **own}


def _credentials(authority: Authority, name: str, host: str, days: int, request: str = "") -> Files:
    """The authority's certificate, that of the name, and its key unless the site sent a certificate request."""
    key = None if request else certificates.new_key()
    public = certificates.read_request(Path(request), name) if key is None else key.public_key()
    own = certificate_pem(issue(authority, name, host, public, days))
    files = {"ca.pem": certificate_pem(authority.certificate), "node.pem": own}
    return files if key is None else files | {"node.key": key_pem(key)}


def to_toml(table: Table, head: str = "") -> bytes:
    return (head + tomli_w.dumps(table)).encode()


def write_file(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a file atomically, in a folder that is made if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: file.write(content), mode)


def write_folder(out: Path, files: Files) -> None:
    """Write all files below `out` or none; only their owner can ever read keys."""
    out.parent.mkdir(parents=True, exist_ok=True)
    hidden = out.parent / f".{out.name}-{secrets.token_hex(4)}.tmp"
    try:
        for name, content in files.items():
            write_file(hidden / name, content, 0o600 if name.endswith(".key") else 0o666)
        os.replace(hidden, out)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise
