"""How long a site's rounds take, with their waits, and how long the rest will."""

import time
from collections import deque
from collections.abc import Callable

#: Rounds over which the pace is a mean.
ROUNDS = 20


class Pace:
    """The pace of the last rounds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends: deque[tuple[int, float]] = deque(maxlen=ROUNDS + 1)

    def note(self, t: int) -> None:
        """Round t − 1 is done."""
        if not self._ends or t > self._ends[-1][0]:
            self._ends.append((t, self._clock()))

    def seconds(self) -> float | None:
        """Seconds for a round; one that takes longer than those before counts too. None before the first."""
        if not self._ends:
            return None
        (first, begun), (last, ended), now = self._ends[0], self._ends[-1], self._clock()
        mean = (ended - begun) / (last - first) if last > first else 0.0
        if now - ended > mean > 0:
            return (now - begun) / (last - first + 1)
        return mean or None
