"""A message with one number that is not finite is found out, whatever the type and wherever it is."""

from __future__ import annotations

import pytest
import torch

from netfleet.engines.host import all_finite

SIZE = 1003


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 1, SIZE // 2, SIZE - 1])
def test_one_bad_number_is_enough(dtype: torch.dtype, bad: float, place: int) -> None:
    values = torch.linspace(-3, 3, SIZE).to(dtype)[None]
    assert all_finite(values)
    values[0, place] = bad
    assert not all_finite(values)


def test_nothing_and_the_largest_numbers_are_finite() -> None:
    assert all_finite(torch.empty(1, 0))
    assert all_finite(torch.tensor([[torch.finfo(torch.float32).max, torch.finfo(torch.float32).min]]))
