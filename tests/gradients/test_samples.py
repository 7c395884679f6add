"""Mini-batches are functions of their address, also where they are drawn ahead."""

from __future__ import annotations

import pytest
import torch

from support.problems import digits_problem


@pytest.mark.parametrize("sampling", ["replacement", "distinct"])
def test_mini_batches_do_not_depend_on_the_order_in_which_they_are_asked_for(sampling: str) -> None:
    one, other = (digits_problem(4, "softmax", batch=5, sampling=sampling) for _ in range(2))
    forwards = {(t, k): one.sample(t, k).rows for t in range(3) for k in range(6)}
    for t in (2, 0, 1):
        for k in (5, 0, 3, 1, 4, 2):
            assert torch.equal(other.sample(t, k).rows, forwards[t, k])  # type: ignore[arg-type]
    alone = one.at([2])
    assert torch.equal(alone.sample(1, 4).rows[0], forwards[1, 4][2])  # type: ignore[index]
