"""Builds the status of a site.

Σ(y − g) over all sites can be checked without anyone's y − g: each site gives a sketch of its own, 64 sums of its
entries with random signs that all sites share. Sketches add up like the vectors themselves, and the norm of their sum
is that of the vectors' sum, up to a factor near 1; where that is 0, so is this.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

import torch
from torch import Tensor

import netfleet
from netfleet import randomness
from netfleet.algorithms import Algorithm
from netfleet.engines.job import Snapshot
from netfleet.runs.metrics import conserved_gap
from netfleet.sites.network.transport import Contact
from netfleet.sites.operations.status import SUMS, LinkStatus, SiteStatus, Sketch, WaitStatus
from netfleet.sites.planning.certificates import OPERATOR
from netfleet.sites.policy.in_force import NO_POLICY, PolicyInForce
from netfleet.sites.runtime.alarms import Alarms
from netfleet.sites.runtime.membership import Membership
from netfleet.sites.runtime.pace import Pace

#: Seconds below which an exchange is no wait.
SHORT = 0.2
#: Entries of a vector that are summed at a time.
_BLOCK = 1 << 18


class Sketcher:
    """Sketches of vectors, the same at all sites of a run."""

    def __init__(self, run: str) -> None:
        self._seed, self._signs = int(run[:12], 16), torch.empty(0, dtype=torch.int8)

    def __call__(self, vector: Tensor) -> tuple[float, ...]:
        d = vector.numel()
        if len(self._signs) != d:
            drawn = randomness.generator("sketch", self._seed).integers(0, 2, d, dtype="int8")
            self._signs = torch.from_numpy(2 * drawn - 1)
        total = torch.zeros(SUMS, dtype=torch.float64)  # on the host: some accelerators have no float64
        for part, signs in zip(torch.split(vector, _BLOCK), torch.split(self._signs, _BLOCK), strict=True):
            signed = part.cpu().double() * signs
            total += torch.nn.functional.pad(signed, (0, -len(signed) % SUMS)).view(-1, SUMS).sum(dim=0)
        return tuple(total.tolist())


class StatusBuilder:
    """Follows a site's rounds, and says how the site is."""

    def __init__(
        self,
        membership: Membership,
        algorithm: Algorithm,
        expires: datetime,
        refused: Callable[[], int],
        revocations: Callable[[], int] = lambda: 0,
        in_force: PolicyInForce = NO_POLICY,
        private: bool = False,
        alarms: Alarms | None = None,
        no_inbound: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        """`expires` is when the site's certificate does; `refused` counts rejections, `revocations` numbers lists,
        `no_inbound` names the neighbours that cannot dial this site.

        `private`: the site's gradients are. Nobody else sees scores then, which are not.
        """
        self._in_force, self._revocations = in_force, revocations
        self._alarms, self._no_inbound = alarms, no_inbound
        show = in_force.policy.show
        self._show = replace(show, scores_to_neighbours=False, scores_to_operator=False) if private else show
        self._membership, self._algorithm, self._expires, self._refused = membership, algorithm, expires, refused
        self._began, self._record = time.monotonic(), dict[str, float | None]()
        self.snapshot: Snapshot | None = None  # the last saved one
        self.t = self._bytes = 0  # of the last saved one
        site = membership.site
        self._pace = Pace()
        self._sketcher = Sketcher(site.run)
        self._sketches: deque[Sketch] = deque(maxlen=min(max(16, 2 * site.workers), 256))

    def note_round(self, snapshot: Snapshot, record: Mapping[str, float | None], gives_model: bool = True) -> None:
        """A round is saved; `record` is the last evaluation, `gives_model` whether the state is held for neighbours."""
        self.t, self._bytes = snapshot.t, snapshot.bytes
        self._pace.note(snapshot.t)
        self.snapshot = snapshot if gives_model else None
        self._record = {key: value for key, value in record.items() if value is None or math.isfinite(value)}
        gap = conserved_gap(snapshot.state)
        if gap is not None and (not self._sketches or self._sketches[-1].t < snapshot.t):
            self._sketches.append(Sketch(snapshot.t, self._sketcher(gap[0])))

    def status(self) -> SiteStatus:
        members, site, now = self._membership, self._membership.site, time.monotonic()
        pace = None if self._state() in ("left", "finished", "holding") else self._pace.seconds()
        return SiteStatus(
            site=site.name,
            number=site.number,
            run=site.run,
            algorithm=self._algorithm.title,
            state=self._state(),
            round=self.t,
            rounds=members.rounds,
            seconds=now - self._began,
            bytes=self._bytes,
            record=self._record,
            neighbours=tuple(self._link(j, contact, now) for j, contact in sorted(members.contacts.items())),
            known={str(k): t for k, t in sorted(members.known.items())},
            apart=tuple(members.name(k) for k in members.sites_apart()),
            refused=self._refused(),
            certificate_days=(self._expires - datetime.now(UTC)).days,
            sketches=tuple(self._sketches),
            wait=self._wait(),
            round_seconds=pace,
            left_seconds=None if pace is None else pace * (members.rounds - self.t),
            policy=self._in_force.name,
            revocations=self._revocations(),
            version=netfleet.__version__,
            alarms=() if self._alarms is None else self._alarms.standing(),
            no_inbound=self._no_inbound(),
        )

    def status_for(self, name: str) -> SiteStatus:
        """The status as far as the operator, the site itself or a neighbour may see it."""
        status, show = self.status(), self._show
        if name == OPERATOR:
            return status.for_operator(show)
        return status if name == self._membership.site.name else status.for_neighbour(name, show)

    def _state(self) -> str:
        if self._membership.left is not None:
            return "left"
        if self._membership.finished:
            return "finished"
        if self._membership.waits.holds:
            return "holding"
        return "training" if self._wait() is None else "waiting"

    def _wait(self) -> WaitStatus | None:
        members = self._membership
        seconds, cause = members.waits.seconds, members.cause()
        if members.finished or members.left is not None or seconds is None or seconds < SHORT or not cause.links:
            return None
        return WaitStatus(seconds, cause.site, members.name(cause.site), cause.state, cause.seconds)

    def _link(self, j: int, contact: Contact, now: float) -> LinkStatus:
        members = self._membership
        return LinkStatus(
            name=contact.neighbour.name,
            number=j,
            round=contact.t,
            lag=max(members.outbox.t - contact.t, 0),
            heard=None if contact.last_heard is None else now - contact.last_heard,
            waiting=contact.waiting,
            lost=members.neighbourhood.lost.get(j),
            left=j in members.gone,
            there=members.neighbourhood.there(j, self.t),
            sent=contact.sent,
            received=contact.received,
            silent=contact.silent,
        )
