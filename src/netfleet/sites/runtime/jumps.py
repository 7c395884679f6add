"""Which numbers are so unusual that somebody should look: norms of messages, the site's loss and its accuracy.

A norm is compared with the usual one, which is the largest that a round's median over the site's own message and those
of its neighbours has had so far. One neighbour cannot change a median of three. Norms that become small, or large again
after that, are ordinary: a tracked gradient vanishes at the optimum, and is there again when a site is lost.

A loss or an accuracy is compared with the last ones: it is unusual if it is worse than their median by more than a
threshold and by more than so many times their usual deviation from it. Before there are enough of them, a loss is
compared with the largest.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from netfleet.runs.history import Record
from netfleet.sites.planning.alarm_settings import AlarmSettings

#: Evaluations that the last one is compared with: at least, and at most.
LEAST, WINDOW = 10, 20
#: Usual deviations from the median (as standard deviations of normal numbers) that are still ordinary.
DEVIATIONS = 6.0
_NORMAL, _USUAL = 1.4826, "usual/"


class Jump(NamedTuple):
    """A number that is unusual; of messages, whose."""

    kind: str  # norm, loss or accuracy
    value: float
    usual: float
    site: str = ""

    @property
    def why(self) -> str:
        if self.kind == "norm":
            return f"a message of {self.site} has the norm {self.value:.3g}, where {self.usual:.3g} is usual"
        return f"the {self.kind} is {self.value:.4g}, where {self.usual:.4g} is usual"


class UsualNorms:
    """The usual norm of each vector of each exchange in a round."""

    def __init__(self) -> None:
        self._usual: dict[str, float] = {}

    def unusual(self, call: int, norms: Mapping[int, Sequence[float]], factor: float) -> dict[int, tuple[float, float]]:
        """Sites with an unusual norm, with that and the usual one; `norms` are those of each site's vectors."""
        found: dict[int, tuple[float, float]] = {}
        for argument, values in enumerate(zip(*norms.values(), strict=True)):
            usual = self._note(f"{call}/{argument}", statistics.median_low(map(_ordered, values)))
            for j, value in zip(norms, values, strict=True):
                if factor and usual > 0 and not value <= factor * usual:
                    found.setdefault(j, (value, usual))
        return found

    def _note(self, place: str, median: float) -> float:
        if math.isfinite(median):
            self._usual[place] = max(self._usual.get(place, 0.0), median)
        return self._usual.get(place, 0.0)

    def network_state(self) -> dict[str, Tensor]:
        """To be saved with a checkpoint, so that a restarted site finds the same."""
        return {f"{_USUAL}{place}": torch.tensor(value, dtype=torch.float64) for place, value in self._usual.items()}

    def load_network_state(self, memory: Mapping[str, Tensor]) -> None:
        found = {name: value for name, value in memory.items() if name.startswith(_USUAL)}
        self._usual = {name.removeprefix(_USUAL): float(value) for name, value in found.items()}


def _ordered(norm: float) -> float:
    return math.inf if math.isnan(norm) else norm


def score_jumps(records: Sequence[Record], settings: AlarmSettings) -> Iterator[Jump]:
    """Whether the last evaluation's loss or accuracy is unusual."""
    losses, accuracies = (_known(records, name) for name in ("loss", "accuracy"))
    if settings.loss and 1 < len(losses) <= LEAST:
        *before, last = losses
        most = max(map(abs, before))
        if last > settings.loss * most:
            yield Jump("loss", last, most)
    if settings.loss and len(losses) > LEAST:
        floor = 1e-3 * abs(losses[0])  # a loss that vanishes may vary by large factors
        *before, last = losses[-WINDOW - 1 :]
        usual, deviation = _usual(before)
        if last - usual > max(DEVIATIONS * deviation, (settings.loss - 1) * abs(usual), floor):
            yield Jump("loss", last, usual)
    if settings.accuracy and len(accuracies) > LEAST:
        *before, last = accuracies[-WINDOW - 1 :]
        usual, deviation = _usual(before)
        if usual - last > max(DEVIATIONS * deviation, settings.accuracy):
            yield Jump("accuracy", last, usual)


def _known(records: Sequence[Record], name: str) -> list[float]:
    """The values of a column, if the last record has one."""
    if not records or records[-1].get(name) is None:
        return []
    return [float(record[name]) for record in records if record.get(name) is not None]


def _usual(values: Sequence[float]) -> tuple[float, float]:
    """The median, and the usual deviation from it."""
    median = statistics.median(values)
    return median, _NORMAL * statistics.median([abs(value - median) for value in values])
