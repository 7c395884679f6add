"""Takes a site, which does not run, back to an earlier round.

What is in the site's folder is changed here: checkpoint, links, models. `rollbacks.json` says first that this has
begun, and in the end that it is complete; it can be repeated until then. What follows from the new number of rollbacks
happens at the next start: the record says it (`receipts.py`), and private gradients and links get new noise
(`account.py`, `link_keys.py`), because the same noise under other numbers would show their difference.

Rounds after that one are computed again. `history.jsonl` loses them at the next start, and `steps.jsonl` keeps them, so
that a repeated round takes as many local steps as before.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from netfleet.errors import CheckpointError, ConfigError
from netfleet.files import locked
from netfleet.prediction.model_file import read_info
from netfleet.runs import checkpoint
from netfleet.sites.planning.alarm_settings import first_alarm
from netfleet.sites.planning.folders import BEST_FILE, LEAVE_FILE, MODEL_FILE, RUN_FOLDER, SITE_FILE, read_site
from netfleet.sites.planning.rollbacks import Pending, Rollbacks, read_rollbacks, write_rollbacks
from netfleet.sites.policy.eviction import evicted_names
from netfleet.sites.runtime.alarms import ALARM_FILE, read_alarms
from netfleet.sites.runtime.kept import available, check_kept, let_go, restore
from netfleet.sites.runtime.membership import links_before


def folders_of(folder: Path) -> list[Path]:
    """A site's folder, or those of all sites in a plan's folder that were not evicted."""
    if (folder / SITE_FILE).is_file():
        return [folder]
    found = [path.parent for path in sorted(folder.glob(f"*/{SITE_FILE}"))]
    if not found:
        raise ConfigError(f"{folder} is neither a site's folder nor one with folders of sites; check the path")
    out = evicted_names(folder)
    return [path for path in found if read_site(path).name not in out]


class SiteRounds(NamedTuple):
    """To which rounds a site can go back."""

    name: str
    folder: Path
    reached: int | None  # None: it has no checkpoint
    rounds: tuple[int, ...]
    rollbacks: Rollbacks
    pending: bool

    def is_there(self, to: int) -> bool:
        """Whether it was rolled back to this round, and has done nothing since."""
        return self.rollbacks.number > 0 and self.reached == self.rollbacks.to == to and not self.pending

    def target(self, to: int) -> Rollbacks:
        """The rollbacks after one to this round; one that is not complete is completed."""
        return self.rollbacks if self.pending and self.rollbacks.to == to else self.rollbacks.next(to)


def site_rounds(folder: Path) -> SiteRounds:
    site, known, run = read_site(folder), read_rollbacks(folder), folder / RUN_FOLDER
    reached = checkpoint.reached(run) if checkpoint.exists(run) else None
    return SiteRounds(site.name, folder, reached, tuple(available(folder)), known.rollbacks, known.pending)


def shared_rounds(sites: Sequence[SiteRounds]) -> list[int]:
    """The rounds to which all of them can go back."""
    return sorted(set.intersection(*(set(site.rounds) for site in sites))) if sites else []


def roll_back(folders: Sequence[Path], to: int) -> list[SiteRounds]:
    """Take sites back to a round, or none of them if one cannot; returns how they were before.

    Those that have done nothing since a rollback to this round stay as they are.
    """
    with ExitStack() as stack:
        for folder in folders:
            if not stack.enter_context(locked(folder)):
                raise ConfigError(f"{folder} is run by another process; stop that one first")
        sites = [site_rounds(folder) for folder in folders]
        if all(site.is_there(to) for site in sites):
            return []
        target = _target(sites, to)
        for site in sites:
            _check(site, to, target)
        for site in sites:
            if site.rollbacks != target or site.pending:
                _roll_back(site, to, target)
    return sites


def _target(sites: Sequence[SiteRounds], to: int) -> Rollbacks:
    """The rollbacks that all will have. Some may have them already, if this was interrupted before."""
    least = min(sites, key=lambda site: (site.rollbacks.number, not site.pending))
    target = least.target(to)
    for site in sites:
        if site.rollbacks not in (least.rollbacks, target):
            raise ConfigError(
                f"{site.name} {site.rollbacks}, and {least.name} {least.rollbacks}, so they cannot be rolled back "
                f"together; first roll back the one that was left out, or let it come with --rejoin"
            )
    return target


def _check(site: SiteRounds, to: int, target: Rollbacks) -> None:
    leave = site.folder / LEAVE_FILE
    if leave.exists() and leave.read_text(encoding="ascii").strip():
        raise ConfigError(f"{site.name} has left the training; it can come back with netfleet node --rejoin")
    check_rejoined(site.folder)
    if site.pending and site.rollbacks != target:
        raise ConfigError(
            f"{site.name}: the rollback to round {site.rollbacks.to} is not complete; repeat that one first"
        )
    if to not in site.rounds:
        there = f"of round {to}, but of {', '.join(map(str, site.rounds))}" if site.rounds else "at all"
        raise CheckpointError(
            f"{site.name} has no checkpoint {there}; choose another round, or roll back the "
            f"other sites one by one and let this one come back without it: netfleet node {site.folder} --rejoin"
        )
    check_kept(site.folder, to)


def _roll_back(site: SiteRounds, to: int, target: Rollbacks) -> None:
    folder, before = site.folder, read_rollbacks(site.folder)
    reached = before.reached if before.pending else site.reached or to
    write_rollbacks(folder, Pending(target, True, reached))
    restore(folder, to)
    links_before(folder, to)
    for path in _later_models(folder, to):
        path.unlink()
    (folder / ALARM_FILE).unlink(missing_ok=True)
    let_go(folder)
    write_rollbacks(folder, Pending(target, False, reached))


def _later_models(folder: Path, to: int) -> Iterator[Path]:
    """Models of rounds that are discarded."""
    for path in (folder / MODEL_FILE, folder / BEST_FILE):
        if path.exists() and read_info(path).origin.round > to:
            yield path


def check_complete(folder: Path) -> None:
    """Raise if a rollback of this site was interrupted."""
    known = read_rollbacks(folder)
    if known.pending and not known.rejoins:
        to = known.rollbacks.to
        raise ConfigError(f"a rollback of {folder} was interrupted; complete it: netfleet rollback {folder} --to {to}")


def check_rejoined(folder: Path) -> None:
    """Raise if the site has taken over its neighbours' rollbacks, but not yet their state."""
    if read_rollbacks(folder).rejoins:
        raise ConfigError(
            f"the state in {folder} is from before its neighbours were rolled back; start the site with the state of "
            f"its neighbours: netfleet node {folder} --rejoin"
        )


def remarks(sites: Sequence[SiteRounds], show: Callable[[str], object]) -> None:
    """Say to which rounds sites can go back."""
    for site in sites:
        where = "no checkpoint" if site.reached is None else f"in round {site.reached}"
        show(f"{site.name}: {where}; can go back to {', '.join(map(str, site.rounds)) or 'no round'}")
    if len(sites) > 1:
        shared = shared_rounds(sites)
        show(f"all of them: {', '.join(map(str, shared)) or 'no round; sites without one come with --rejoin'}")
    if (first := first_alarm({site.name: read_alarms(site.folder) for site in sites})) is not None:
        before = [r for r in shared_rounds(sites) if r < first.round]
        show(f"{first.words} To go back to before it: {f'--to {before[-1]}' if before else 'no such round is left'}")
        if len(sites) == 1:
            show(
                "Another site may have had one earlier (netfleet status names the first of all). All sites go back to "
                "the same round: choose one that each of them has."
            )
