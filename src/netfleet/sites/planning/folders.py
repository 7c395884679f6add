"""The folders of a site and of the operator: what they contain, and how they are read back and checked.

The hash of the run covers the experiment, the sites' names in their order and the weights. It does not cover addresses,
because a site may move: its neighbours then change a line of their `site.toml`. A site has the digest of every row of W
but only its own row. So it can check its row and the hash without knowing who else talks to whom.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from netfleet.errors import ConfigError
from netfleet.runs.config import Experiment, Table, config_hash, load_experiment, make, read_toml
from netfleet.sites.planning.alarm_settings import KEEP, USUAL, AlarmSettings, OnAlarm, check_keep, read_alarm
from netfleet.sites.planning.nodes_file import check_name, check_patience, parse_address, tables
from netfleet.sites.planning.rollbacks import NONE, Rollbacks, read_rollbacks

SITE_FILE, PLAN_FILE, EXPERIMENT_FILE = "site.toml", "plan.toml", "experiment.toml"
#: Why neither a plan nor a site's folder may ask for a tracker.
NO_TRACKERS = "a plan does not decide where a site's metrics go, and a site has them in its own run/history.jsonl"
#: In a site's folder: its history and checkpoints, its model, and the file that asks it to leave.
RUN_FOLDER, MODEL_FILE, LEAVE_FILE = "run", "model.safetensors", "leave"
#: Further models: the best one by validation rows, and those of a training without neighbours, with its folder.
BEST_FILE, ALONE_FILE, ALONE_BEST_FILE = (
    "model-best.safetensors",
    "model-alone.safetensors",
    "model-alone-best.safetensors",
)
ALONE_FOLDER = "alone"
#: Models that others gave to the site, NAME.safetensors.
GIVEN_FOLDER = "models"
#: What joined after the plan was made, one file each: a site's neighbours, and sites in the operator's folder.
NEIGHBOURS_FOLDER, ADMITTED_FOLDER = "neighbours.d", "admitted"
#: Certificates: those of a site's neighbours, and of all sites in the operator's folder; and those that are revoked.
PINS_FOLDER, CERTIFICATES_FOLDER, REVOKED_FILE = "pins", "certificates", "revoked.pem"
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Neighbour:
    """A site that this one talks to, and the weight of that link in W. One without an address only dials out."""

    name: str
    number: int
    address: str
    weight: float
    fingerprint: str = ""  # SHA-256 of its certificate, of one that was admitted; empty: its pin says it

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.address:
            parse_address(self.address, f"address of {self.name}")


@dataclass(frozen=True)
class Site:
    """One worker of the plan: its row of W by name, and where it listens. One without an address only dials out.

    `run` is the hash of the run in hexadecimal; `digests` are the hashes of all rows, from which it can be checked.
    """

    name: str
    number: int
    address: str
    listen: str
    weight: float
    patience: float
    run: str
    digests: tuple[str, ...]
    neighbours: tuple[Neighbour, ...]
    device: str = ""  # where it computes; empty: where the experiment says
    rejoin: bool = False  # comes back by itself if the others have given it up
    rows: int = 0  # its training rows, if nodes.toml says them
    keep: int = KEEP  # checkpoints
    on_alarm: OnAlarm = "continue"
    alarm: AlarmSettings = USUAL
    rollbacks: Rollbacks = NONE  # not in site.toml
    relay: str = ""  # where it meets neighbours that nobody can dial; empty: nowhere

    def __post_init__(self) -> None:
        check_name(self.name)
        check_patience(self.patience)
        check_keep(self.keep, self.on_alarm)
        for key in ("address", "listen", "relay"):
            if getattr(self, key):
                parse_address(getattr(self, key), f"{key} of {self.name}")

    @property
    def workers(self) -> int:
        return len(self.digests)

    @property
    def run_id(self) -> bytes:
        """What frames of this run have; another one after each rollback."""
        return self.rollbacks.run_id(self.run)

    @property
    def planned(self) -> bool:
        """Whether the site is in the plan; others join later."""
        return self.number < self.workers

    @property
    def digest(self) -> str:
        """SHA-256 of the site's row of W, by name."""
        row = [[each.number, each.name, each.weight] for each in self.neighbours]
        return config_hash([self.number, self.name, self.weight, row])


@dataclass(frozen=True)
class Plan:
    """All sites and what they run, as the operator knows it. `experiment` is the hash of the run's config."""

    name: str
    algorithm: str
    rounds: int
    lam: float
    experiment: str
    run: str
    sites: tuple[Site, ...]


def run_hash(experiment: str, digests: Iterable[str]) -> str:
    """The hash that every message of a run carries, from that of its config and the digests of its rows."""
    return config_hash([experiment, list(digests)])


def with_hashes(sites: Sequence[Site], experiment: str) -> tuple[Site, ...]:
    """The sites with the digests of all rows and the hash of the run."""
    digests = tuple(site.digest for site in sites)
    return tuple(replace(site, digests=digests, run=run_hash(experiment, digests)) for site in sites)


def read_site(folder: Path) -> Site:
    """A site from its folder, without looking into its experiment; nothing is imported."""
    path, _ = (_expect(folder / name, "a site's folder") for name in (SITE_FILE, EXPERIMENT_FILE))
    site = _site(read_toml(path), path)
    if not _SHA256.fullmatch(site.run):
        raise ConfigError(f"{path}: run must be 64 hexadecimal digits, got {site.run!r}; restore the file")
    if site.number < 0 or (site.planned and site.digests[site.number] != site.digest):
        raise ConfigError(
            f"{path}: name, number or weights are not those that were planned; restore the file, or plan again for all"
        )
    return replace(site, rollbacks=read_rollbacks(folder).rollbacks)


def pins_folder(folder: Path) -> Path:
    """Where a site, or the operator, has the certificates of the sites that it knows."""
    return folder / (CERTIFICATES_FOLDER if (folder / PLAN_FILE).is_file() else PINS_FOLDER)


def names_of_known(folder: Path) -> list[str]:
    """The sites that a site's or the operator's folder knows."""
    is_operator = (folder / PLAN_FILE).is_file()
    return [site.name for site in all_sites(folder)] if is_operator else names_of_neighbours(folder)


def names_of_neighbours(folder: Path) -> list[str]:
    """A site's neighbours: those of the plan, and those that were admitted later."""
    admitted = sorted(path.stem for path in (folder / NEIGHBOURS_FOLDER).glob("*.toml"))
    return [*(each.name for each in read_site(folder).neighbours), *admitted]


def all_neighbours(folder: Path) -> list[Neighbour]:
    """A site's neighbours: those of the plan, then those that were admitted later."""
    paths = sorted((folder / NEIGHBOURS_FOLDER).glob("*.toml"))
    return [*read_site(folder).neighbours, *(make(Neighbour, read_toml(path), str(path)) for path in paths)]


def load_site(folder: Path) -> tuple[Site, Experiment]:
    """Read a site's folder; raise if its row of W or its experiment has changed since `netfleet plan`."""
    site, experiment_path = read_site(folder), folder / EXPERIMENT_FILE
    if "track" in read_toml(experiment_path):  # which is not part of the hash
        raise ConfigError(f"{experiment_path} has [track]: {NO_TRACKERS}; remove it from the file")
    experiment = load_experiment(experiment_path)
    runs = experiment.runs()
    if len(runs) != 1 or run_hash(runs[0].hash, site.digests) != site.run:
        raise ConfigError(
            f"{experiment_path} is not the experiment of run {site.run[:12]}: it was changed, or the plan "
            f"was made with another version of netfleet; restore the file, or install the version named in {SITE_FILE}"
        )
    return site, experiment


def load_plan(folder: Path) -> Plan:
    """Read the operator's folder; raise if it has changed since `netfleet plan`."""
    path = _expect(folder / PLAN_FILE, "the operator's folder")
    table = read_toml(path)
    told = {"digests": [], "run": str(table.get("run", "")), "patience": table.pop("patience", 0)}
    told |= {key: table.pop(key) for key in ("rejoin", "keep", "on_alarm", "alarm", "relay") if key in table}
    sites = [_site({**told, **each}, path) for each in tables(table, "sites", path)]
    plan = make(Plan, {**table, "sites": sites}, str(path))
    found = with_hashes(plan.sites, plan.experiment)
    if not found or found[0].run != plan.run:
        raise ConfigError(f"{path} does not have the sites and weights of run {plan.run[:12]}; restore the file")
    return replace(plan, sites=found)


def all_sites(folder: Path) -> list[Site]:
    """Every site that the operator's folder knows: those of the plan, then those that joined later."""
    return [*load_plan(folder).sites, *admitted(folder)]


def admitted(folder: Path) -> list[Site]:
    """The sites that joined after the plan was made, by number, from the operator's folder."""
    paths = sorted((folder / ADMITTED_FOLDER).glob("*.toml"))
    return sorted((_site(read_toml(path), path) for path in paths), key=lambda site: site.number)


def _expect(path: Path, what: str) -> Path:
    if not path.is_file():
        raise ConfigError(f"{path.parent} is not {what} made by netfleet plan: it has no {path.name}; check the path")
    return path


def _site(table: Table, path: Path) -> Site:
    found = tables(table, "neighbours", path)
    try:
        neighbours = [make(Neighbour, each, "[[neighbours]]") for each in found]
        return make(Site, {**table, "neighbours": neighbours, "alarm": read_alarm(table)}, "a site")
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
