"""How long rounds take, with their waits."""

from __future__ import annotations

from netfleet.sites.runtime.pace import ROUNDS, Pace


def test_the_pace_is_that_of_the_last_rounds() -> None:
    now = [0.0]
    pace = Pace(lambda: now[0])
    assert pace.seconds() is None
    for t in range(7, 7 + ROUNDS):  # resumed in round 7
        pace.note(t)
        now[0] += 2.0
    assert pace.seconds() == 2.0
    for t in range(7 + ROUNDS, 7 + 3 * ROUNDS):
        pace.note(t)
        now[0] += 5.0
    now[0] -= 5.0
    assert pace.seconds() == 5.0


def test_a_wait_slows_the_pace_while_it_lasts() -> None:
    now = [0.0]
    pace = Pace(lambda: now[0])
    for t in range(3):
        pace.note(t)
        now[0] += 1.0
    assert pace.seconds() == 1.0
    now[0] += 297.0  # the third round has lasted 298 s
    assert pace.seconds() == 100.0


def test_a_round_that_is_noted_again_does_not_count_twice() -> None:
    now = [0.0]
    pace = Pace(lambda: now[0])
    for t in (0, 1, 1, 1):
        pace.note(t)
        now[0] += 1.0
    pace.note(2)
    assert pace.seconds() == 2.0
