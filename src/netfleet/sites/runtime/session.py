"""What the parts of a running site share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from netfleet.algorithms import Algorithm
from netfleet.runs.config import Experiment
from netfleet.sites.network.client import Client
from netfleet.sites.network.loop_thread import LoopThread
from netfleet.sites.network.outbox import Outbox
from netfleet.sites.network.transport import Contact
from netfleet.sites.network.wire import Expected
from netfleet.sites.operations.logs import Log
from netfleet.sites.planning.folders import Site
from netfleet.sites.runtime.membership import Membership
from netfleet.sites.runtime.neighbourhood import Neighbourhood


@dataclass(frozen=True)
class SiteSession:
    """One site while it is connected to the others."""

    folder: Path
    site: Site
    experiment: Experiment
    algorithm: Algorithm
    log: Log
    outbox: Outbox
    membership: Membership
    loop: LoopThread
    client: Client

    @property
    def rounds(self) -> int:
        """Rounds of the training."""
        return self.experiment.rounds

    @property
    def neighbourhood(self) -> Neighbourhood:
        """The site's row of W."""
        return self.membership.neighbourhood

    @property
    def contacts(self) -> dict[int, Contact]:
        """The neighbours by number."""
        return self.membership.contacts

    def expected(self, j: int, t: int, call: int = 0, words: str = "", total: int = 0) -> Expected:
        """What a message of neighbour j must be."""
        return Expected(bytes.fromhex(self.site.run), j, t, call, words, total)
