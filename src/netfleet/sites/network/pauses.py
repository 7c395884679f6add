"""Pauses between attempts, so that nobody is asked too often and sites do not retry in step."""

from collections.abc import Iterator
from random import Random

#: A generator of its own: the global one belongs to the user's program, which may have seeded it.
_JITTER = Random()


def growing(first: float, most: float) -> Iterator[float]:
    """Seconds that grow from the first to the second, with jitter."""
    while True:
        yield first * _JITTER.uniform(0.5, 1.5)
        first = min(2 * first, most)
