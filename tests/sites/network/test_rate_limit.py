"""The rate limit never slows down a neighbour that gets new messages, and soon stops one that does not."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from netfleet.engines.host import Tag
from netfleet.sites.network.rate_limit import BURST, DEBT, MOST, RATE, RateLimit
from netfleet.sites.network.transport import Busy
from netfleet.sites.network.wire import CHUNK
from support.site_settings import under_way


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def served(limit: RateLimit, tag: Tag | None, sent: int = 0, name: str = "lab") -> bool:
    try:
        with limit.serve(name) as request:
            request.tag, request.sent = tag, sent
    except Busy:
        return False
    return True


def test_new_messages_cost_nothing() -> None:
    limit = RateLimit(Clock())
    assert all(served(limit, Tag(t, call), 40 * CHUNK) for t in range(-1, 1000) for call in (0, 1))


@pytest.mark.parametrize("tag", [None, Tag(3, 1), Tag(2, 5)])
def test_all_else_is_paid_from_a_budget(tag: Tag | None) -> None:
    clock = Clock()
    limit = RateLimit(clock)
    assert served(limit, Tag(3, 1))
    assert sum(served(limit, tag) for _ in range(1000)) == BURST
    assert served(limit, tag, name="another")
    clock.now = 0.5
    assert sum(served(limit, tag) for _ in range(1000)) == RATE / 2
    clock.now = 1000
    assert sum(served(limit, tag) for _ in range(1000)) == BURST


@pytest.mark.parametrize("size", [500, 1000, 100_000])
def test_large_messages_again_cost_more(size: int) -> None:
    clock = Clock()
    limit = RateLimit(clock)
    of_two = [served(limit, Tag(0, 0), size * CHUNK) for _ in range(5)]
    assert of_two == [True, True, False, False, False]  # the first was new
    clock.now = min(size - BURST, DEBT) / RATE
    assert not served(limit, Tag(1, 0))
    clock.now += 3 / RATE
    assert served(limit, Tag(1, 0))


def test_few_at_a_time() -> None:
    limit = RateLimit(Clock())
    with ExitStack() as stack:
        for number in range(MOST):
            assert under_way(limit, "lab") == number
            stack.enter_context(limit.serve("lab"))
        assert not served(limit, None)
        assert served(limit, None, name="another")
    assert under_way(limit, "lab") == 0
    assert served(limit, None)


def test_what_fails_is_paid_and_ended() -> None:
    limit = RateLimit(Clock())
    for _ in range(int(BURST)):
        with pytest.raises(ValueError, match="x"), limit.serve("lab"):
            raise ValueError("x")
    assert under_way(limit, "lab") == 0
    assert not served(limit, None)
