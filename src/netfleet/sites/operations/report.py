"""How a site is: what `netfleet status` asks for and Prometheus reads.

Σ(y − g) over sites can be checked without anyone's y − g: each site gives a sketch of its own, 64 sums of its entries
with random signs that all sites share. Sketches add up like the vectors themselves, and the norm of their sum is that
of the vectors' sum, up to a factor near 1; where that is 0, so is this.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor

from netfleet import randomness
from netfleet.algorithms import Algorithm
from netfleet.engines.job import Snapshot
from netfleet.runs.metrics import conserved_gap
from netfleet.sites.network.transport import Contact
from netfleet.sites.planning.folders import Site
from netfleet.sites.planning.identity import Identity
from netfleet.sites.runtime.membership import FrontDesk

#: Sums in a sketch, and entries that are taken at a time.
SUMS, _BLOCK = 64, 1 << 18


class Sketcher:
    """Sketches of vectors, the same at all sites of a run."""

    def __init__(self, run: str) -> None:
        self._seed, self._signs = int(run[:12], 16), torch.empty(0, dtype=torch.int8)

    def __call__(self, vector: Tensor) -> list[float]:
        """The sketch of a vector `[d]`."""
        d = vector.numel()
        if len(self._signs) != d:
            drawn = randomness.generator("sketch", self._seed).integers(0, 2, d, dtype="int8")
            self._signs = torch.from_numpy(2 * drawn - 1)
        total = torch.zeros(SUMS, dtype=torch.float64)
        for part, signs in zip(torch.split(vector, _BLOCK), torch.split(self._signs, _BLOCK), strict=True):
            signed = part.double() * signs
            total += torch.nn.functional.pad(signed, (0, -len(signed) % SUMS)).view(-1, SUMS).sum(dim=0)
        return total.tolist()


class Report:
    """What a site says of itself."""

    def __init__(self, site: Site, desk: FrontDesk, identity: Identity, rounds: int, algorithm: Algorithm) -> None:
        self.site, self.desk, self.identity, self.rounds, self.algorithm = site, desk, identity, rounds, algorithm
        self.began, self.bytes, self.t, self.record = time.monotonic(), 0, 0, dict[str, Any]()
        self.snapshot: Snapshot | None = None  # the last durable one
        self.refused: Callable[[], int] = int
        self._sketcher = Sketcher(site.run)
        self._sketches: deque[tuple[int, list[float]]] = deque(maxlen=min(max(16, 2 * site.workers), 256))

    def see(self, snapshot: Snapshot, record: dict[str, Any]) -> None:
        """A round is durable."""
        self.t, self.bytes, self.record, self.snapshot = snapshot.t, snapshot.bytes, record, snapshot
        gap = conserved_gap(snapshot.state)
        if gap is not None and (not self._sketches or self._sketches[-1][0] < snapshot.t):
            self._sketches.append((snapshot.t, self._sketcher(gap[0])))

    def table(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        desk, now = self.desk, time.monotonic()
        return {
            "site": self.site.name,
            "number": self.site.number,
            "run": self.site.run,
            "algorithm": self.algorithm.title,
            "state": self._state(),
            "round": self.t,
            "rounds": self.rounds,
            "seconds": now - self.began,
            "bytes": self.bytes,
            "record": {k: v for k, v in self.record.items() if v is None or math.isfinite(v)},
            "neighbours": [self._neighbour(j, c, now) for j, c in sorted(desk.contacts.items())],
            "known": {str(k): t for k, t in sorted(desk.known.items())},
            "apart": [desk.name(k) for k in desk.apart()],
            "refused": self.refused(),
            "certificate_days": (self.identity.expires - datetime.now(UTC)).days,
            "sketches": list(self._sketches),
        }

    def _state(self) -> str:
        if self.desk.left is not None:
            return "left"
        if self.desk.finished:
            return "finished"
        return "waiting" if any(c.waiting for c in list(self.desk.contacts.values())) else "training"

    def _neighbour(self, j: int, contact: Contact, now: float) -> dict[str, Any]:
        hood = self.desk.hood
        return {
            "name": contact.about.name,
            "number": j,
            "round": contact.t,
            "lag": max(self.desk.outbox.t - contact.t, 0),
            "heard": None if contact.heard is None else now - contact.heard,
            "waiting": contact.waiting,
            "lost": hood.lost.get(j),
            "there": hood.there(j, self.t),
            "sent": contact.sent,
            "received": contact.received,
        }
