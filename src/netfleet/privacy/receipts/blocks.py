"""One line for many repetitions: before the first of a block leaves, a line says how many more it stands for.

Blocks grow from 1 to `LARGEST`, and end after an hour. So a few answers are counted exactly, and a status poll every
second needs a line for some thousand answers; the numbers are never too low.
"""

import time
from collections.abc import Callable, Hashable
from typing import NamedTuple

#: The most repetitions that a line stands for, the seconds after which there is a new one, and the counters kept.
LARGEST, SECONDS, KEPT = 1024, 3600.0, 1000


class Block(NamedTuple):
    """Numbers of repetitions, from 1 on."""

    first: int
    last: int


class _Counter(NamedTuple):
    number: int
    block: Block
    began: float


class Blocks:
    """Counters by any key; the oldest are forgotten."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._counters = clock, dict[Hashable, _Counter]()

    def next(self, key: Hashable, begin: int = 0) -> Block | None:
        """Count one more; the block that begins with it, if one does. Counting begins after `begin`, up to 0."""
        now = self._clock()
        number, block, began = self._counters.pop(key, _Counter(begin, Block(1, 0), now))
        number += 1
        begins = number > 0 and (number > block.last or now - began > SECONDS)
        if begins:
            block = Block(number, number + min(number, LARGEST) - 1)
        self._counters[key] = _Counter(number, block, now if begins else began)
        while len(self._counters) > KEPT:
            del self._counters[next(iter(self._counters))]
        return block if begins else None
