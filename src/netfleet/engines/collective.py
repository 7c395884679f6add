"""What hosts compute together: sums and lists over all workers, for metrics, exact averages and the record.

All hosts make every call, at the same point of the run. A site has no such view: it measures its own worker only.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from netfleet.errors import EngineError, NetfleetError

T = TypeVar("T")


class Collective(Protocol):
    """What hosts compute together."""

    @property
    def keeps_record(self) -> bool:
        """Whether this host keeps the record; exactly one does."""

    def count(self, m: int) -> int:
        """How many of m workers the results are about."""

    def total(self, rows: Tensor) -> Tensor:
        """Σ over the rows `[rows, …]` of all hosts."""

    def gather(self, rows: Tensor, workers: Sequence[int]) -> Tensor:
        """The rows of all workers in their order, `[m, …]`; `workers` are those of the given rows."""

    def first(self, act: Callable[[], T]) -> T:
        """Let the host that keeps the record act; every host gets its result (as JSON) or raises its error."""


class SingleHost:
    """The collective of a host that has all workers, in their order."""

    keeps_record = True

    def count(self, m: int) -> int:
        return m

    def total(self, rows: Tensor) -> Tensor:
        return rows.sum(dim=0)

    def gather(self, rows: Tensor, workers: Sequence[int]) -> Tensor:
        return rows

    def first(self, act: Callable[[], T]) -> T:
        return act()


class SingleSite(SingleHost):
    """The collective of a site, which knows its own worker only."""

    def count(self, m: int) -> int:
        return 1


def agreed(collective: Collective, act: Callable[[], T]) -> T:
    """What `act` returns on this host; if it fails on some hosts, all hosts stop here."""
    error: NetfleetError | None = None
    try:
        result = act()
    except NetfleetError as found:
        error = found
    failed, hosts = collective.total(torch.tensor([[int(error is not None), 1]])).tolist()
    if error is not None:
        error.shared = failed == hosts
        raise error
    if failed:
        raise EngineError(f"{failed} of {hosts} processes failed; their own messages say why")
    return result
