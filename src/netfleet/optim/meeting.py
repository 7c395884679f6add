"""Where ranks are in their loops: they tell each other before they wait for anything else.

A rank that waits for another kind of message than the others send would hang, or abort the process in a thread of
Gloo's. So whatever ranks are about to do together begins with one small message of the same kind and size.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

import torch

from netfleet.engines.distributed import ProcessGroup
from netfleet.engines.loop import FINE
from netfleet.errors import ConfigError
from netfleet.optim.handover import interruptible

#: A relative difference of rates that is a matter of rounding, between machines.
_ROUNDING = 1e-9


class Point(Enum):
    """What a rank is about to do with the others, after so many rounds."""

    START = "start of its training after round {done}"
    EXCHANGE = "exchange after round {done}"
    END = "end of round {done}"
    AVERAGE = "averaged() after round {done}"
    SAVE = "save() after round {done}"
    LOAD = "load() after round {done}"


_POINTS = tuple(Point)
#: Where the rounds may differ: they are compared with all else then, or loaded.
_ANY_ROUND = ({Point.START}, {Point.LOAD})


class Place(NamedTuple):
    """Where a rank is: what it is about to do, in which round, and within a round with which learning rates."""

    point: Point
    t: int
    rate: float = 0.0  # the largest of its parameter groups
    mean_rate: float = 0.0

    @property
    def words(self) -> str:
        return self.point.value.format(done=max(self.t, 0) if self.point is not Point.END else self.t + 1)


def meet(ranks: ProcessGroup, place: Place, bad: Sequence[int] = FINE) -> Sequence[int]:
    """Wait until all ranks are at the same place; returns the least of what they say of values that are not finite."""
    point, *numbers = place
    mine = torch.tensor([_POINTS.index(point), *numbers, *bad], dtype=torch.float64)
    seen = [row.tolist() for row in interruptible(lambda: ranks.from_all(mine))]
    places = [Place(_POINTS[int(number)], int(t), *rates) for number, t, *rates in (row[:4] for row in seen)]
    _check_points(places)
    _check_rates(places)
    return min([int(number) for number in row[4:]] for row in seen)


def _check_points(places: Sequence[Place]) -> None:
    points = {place.point for place in places}
    if len(points) > 1 or (points not in _ANY_ROUND and len({place.t for place in places}) > 1):
        raise ConfigError(
            f"the ranks are at different points of their loops ({_by_rank([place.words for place in places])}); let "
            f"all ranks make the same number of steps, and call averaged(), save() and load() after the same one"
        )


def _check_rates(places: Sequence[Place]) -> None:
    what: dict[str, Callable[[Place], float]] = {
        "": lambda place: place.rate,
        " on average over the parameter groups": lambda place: place.mean_rate,
    }
    for name, rate in what.items():
        rates = [rate(place) for place in places]
        if max(rates) - min(rates) > _ROUNDING * max(map(abs, rates)):
            words = _by_rank([f"{value:.9g}{name}" for value in rates])
            raise ConfigError(
                f"the ranks have different learning rates in round {max(places[0].t, 0)} ({words}); step the scheduler "
                f"equally often on all of them, such as once a round (if optimizer.round_ended)"
            )


def _by_rank(words: Sequence[str]) -> str:
    """The words of each rank, once for ranks with the same."""
    ranks: dict[str, list[str]] = {}
    for rank, text in enumerate(words):
        ranks.setdefault(text, []).append(str(rank))
    names = (f"rank{'s' * (len(some) > 1)} {', '.join(some[:8])}{', …' * (len(some) > 8)}" for some in ranks.values())
    return "; ".join(f"{name}: {text}" for name, text in zip(names, ranks, strict=True))
