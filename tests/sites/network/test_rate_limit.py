"""Turns: a neighbour that makes headway is never held up, one that does not soon is."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from netfleet.engines.host import Tag
from netfleet.errors import TransportError
from netfleet.sites.network.rate_limit import BURST, DEBT, MOST, RATE, Turns
from netfleet.sites.network.wire import CHUNK


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def served(turns: Turns, tag: Tag | None, sent: int = 0, name: str = "lab") -> bool:
    try:
        with turns.turn(name) as turn:
            turn.tag, turn.sent = tag, sent
    except TransportError:
        return False
    return True


def test_new_messages_cost_nothing() -> None:
    turns = Turns(Clock())
    assert all(served(turns, Tag(t, call), 40 * CHUNK) for t in range(-1, 1000) for call in (0, 1))


@pytest.mark.parametrize("tag", [None, Tag(3, 1), Tag(2, 5)])
def test_all_else_is_paid_from_a_budget(tag: Tag | None) -> None:
    clock = Clock()
    turns = Turns(clock)
    assert served(turns, Tag(3, 1))
    assert sum(served(turns, tag) for _ in range(1000)) == BURST
    assert served(turns, tag, name="another")
    clock.now = 0.5
    assert sum(served(turns, tag) for _ in range(1000)) == RATE / 2
    clock.now = 1000
    assert sum(served(turns, tag) for _ in range(1000)) == BURST


@pytest.mark.parametrize("size", [500, 1000, 100_000])
def test_large_messages_again_cost_more(size: int) -> None:
    clock = Clock()
    turns = Turns(clock)
    of_two = [served(turns, Tag(0, 0), size * CHUNK) for _ in range(5)]
    assert of_two == [True, True, False, False, False]  # the first was new
    clock.now = min(size - BURST, DEBT) / RATE
    assert not served(turns, Tag(1, 0))
    clock.now += 3 / RATE
    assert served(turns, Tag(1, 0))


def test_few_at_a_time() -> None:
    turns = Turns(Clock())
    with ExitStack() as stack:
        for number in range(MOST):
            assert turns.under_way("lab") == number
            stack.enter_context(turns.turn("lab"))
        assert not served(turns, None)
        assert served(turns, None, name="another")
    assert turns.under_way("lab") == 0
    assert served(turns, None)


def test_what_fails_is_paid_and_ended() -> None:
    turns = Turns(Clock())
    for _ in range(int(BURST)):
        with pytest.raises(ValueError, match="x"), turns.turn("lab"):
            raise ValueError("x")
    assert turns.under_way("lab") == 0
    assert not served(turns, None)
