"""Pauses between attempts, so that nobody is asked too often and sites do not retry in step."""

import random
from collections.abc import Iterator


def growing(first: float, most: float) -> Iterator[float]:
    """Seconds that grow from the first to the second, with jitter."""
    while True:
        yield first * random.uniform(0.5, 1.5)
        first = min(2 * first, most)
