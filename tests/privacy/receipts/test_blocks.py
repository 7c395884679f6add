"""One line for many repetitions: never too few are announced, and few lines are needed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from netfleet.privacy.receipts.blocks import LARGEST, SECONDS, Block, Blocks


@given(st.lists(st.floats(0, SECONDS / 3), max_size=300))
def test_every_repetition_is_announced_before_it_happens(pauses: list[float]) -> None:
    now, announced, lines = 0.0, 0, 0
    blocks = Blocks(lambda: now)
    for number, pause in enumerate(pauses, start=1):
        now += pause
        block = blocks.next("operator")
        if block is not None:
            assert block.first == number
            announced, lines = block.last, lines + 1
        assert number <= announced <= 2 * number
    assert lines <= 10 + now / SECONDS


def test_a_poll_every_second_of_a_day_needs_few_lines() -> None:
    now = [0.0]
    blocks, made = Blocks(lambda: now[0]), list[Block]()
    for now[0] in range(86_400):
        if (block := blocks.next("operator")) is not None:
            made.append(block)
    assert made[:4] == [(1, 1), (2, 3), (4, 7), (8, 15)]
    assert len(made) < 10 + 86_400 / LARGEST


def test_counting_can_begin_later_and_keys_are_apart() -> None:
    blocks = Blocks()
    assert [blocks.next("a", begin=-1) for _ in range(3)] == [None, (1, 1), (2, 3)]
    assert blocks.next("b") == (1, 1)
