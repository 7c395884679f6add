"""Rows of messages from place to place, by runs of neighbouring rows: bytes are copied as blocks, not one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor


class Run(NamedTuple):
    """RowBlocks that lie together: where in the whole, and where among the chosen ones."""

    place: slice
    row: slice


class RowBlocks:
    """Some rows of a stack, in ascending order."""

    def __init__(self, places: Sequence[int]) -> None:
        self.count, self.runs = len(places), _runs(places)

    @property
    def together(self) -> bool:
        """Whether they lie together."""
        return len(self.runs) == 1

    def put(self, stack: Tensor, values: Tensor) -> None:
        """Write values into these rows of a stack."""
        for place, row in self.runs:
            stack[place].copy_(values[row])

    def piece(self, stack: Tensor) -> Tensor:
        """These rows as they lie in the stack, which must be together."""
        (run,) = self.runs
        return stack[run.place]

    def take(self, stack: Tensor, room: Tensor | None = None) -> Tensor:
        """These rows in one piece: as they lie in the stack where they lie together, else a copy (in `room`)."""
        if self.together:
            return self.piece(stack)
        shape = (self.count, *stack.shape[1:])
        values = room if room is not None and room.shape == shape else stack.new_empty(shape)
        for place, row in self.runs:
            values[row].copy_(stack[place])
        return values


def _runs(places: Sequence[int]) -> list[Run]:
    starts = [i for i in range(len(places)) if i == 0 or places[i] != places[i - 1] + 1]
    ends = [*starts[1:], len(places)][: len(starts)]
    return [Run(slice(places[a], places[b - 1] + 1), slice(a, b)) for a, b in zip(starts, ends, strict=True)]
