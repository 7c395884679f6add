"""All workers as one host sees them: sums and lists over every host, for metrics, exact averages and the record.

Every call is made by all hosts at the same point of the run. Peers that trust nobody have no such view; what they
measure is their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor


class Collective(Protocol):
    """What hosts find out together."""

    @property
    def keeps_record(self) -> bool:
        """Whether this host keeps the record; one of them does."""

    def count(self, m: int) -> int:
        """Of m workers, how many take part."""

    def total(self, rows: Tensor) -> Tensor:
        """Σ over the rows `[rows, …]` of all hosts."""

    def gather(self, rows: Tensor, workers: Sequence[int]) -> Tensor:
        """The rows of all workers in their order, `[m, …]`; `workers` says whose the given ones are."""

    def first(self, act: Callable[[], Any]) -> Any:
        """Let the host that keeps the record act before the others; its result (as JSON) or error is everyone's."""


class SingleHost:
    """The collective of a host that has all workers, in their order."""

    keeps_record = True

    def count(self, m: int) -> int:
        return m

    def total(self, rows: Tensor) -> Tensor:
        return rows.sum(dim=0)

    def gather(self, rows: Tensor, workers: Sequence[int]) -> Tensor:
        return rows

    def first(self, act: Callable[[], Any]) -> Any:
        return act()


class SingleSite(SingleHost):
    """The collective of a site that knows of its own worker only."""

    def count(self, m: int) -> int:
        return 1
