"""Pauses between attempts."""

from __future__ import annotations

import random
from itertools import islice

from netfleet.sites.network.pauses import growing


def test_pauses_double_up_to_the_most_and_leave_the_users_random_numbers_alone() -> None:
    """A site answers in a thread of the user's program, whose loop may draw from the module `random`."""
    before = random.getstate()
    pauses = list(islice(growing(1.0, 3.0), 6))
    assert random.getstate() == before
    for pause, middle in zip(pauses, (1, 2, 3, 3, 3, 3), strict=True):
        assert middle / 2 <= pause <= 1.5 * middle
    assert len(set(pauses)) == len(pauses)
