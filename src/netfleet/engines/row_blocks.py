"""Rows of a stack of messages, copied by runs of contiguous rows rather than one by one."""

from collections.abc import Sequence

from torch import Tensor


class RowBlocks:
    """Some rows of a stack, in ascending order."""

    def __init__(self, places: Sequence[int]) -> None:
        self.count = len(places)
        starts = [i for i in range(len(places)) if i == 0 or places[i] != places[i - 1] + 1]
        ends = [*starts[1:], len(places)][: len(starts)]
        #: Each block of contiguous rows: its places in the stack, and among the chosen rows.
        self.runs = [(slice(places[a], places[b - 1] + 1), slice(a, b)) for a, b in zip(starts, ends, strict=True)]

    @property
    def contiguous(self) -> bool:
        """Whether these rows are one block."""
        return len(self.runs) == 1

    def put(self, stack: Tensor, values: Tensor) -> None:
        """Write values into these rows of a stack."""
        for place, row in self.runs:
            stack[place].copy_(values[row])

    def piece(self, stack: Tensor) -> Tensor:
        """These rows as a view of the stack; they must be contiguous."""
        ((place, _),) = self.runs
        return stack[place]

    def take(self, stack: Tensor, out: Tensor | None = None) -> Tensor:
        """These rows in one piece: a view of the stack if they are contiguous, else a copy (in `out`)."""
        if self.contiguous:
            return self.piece(stack)
        shape = (self.count, *stack.shape[1:])
        values = out if out is not None and out.shape == shape else stack.new_empty(shape)
        for place, row in self.runs:
            values[row].copy_(stack[place])
        return values
