"""Rows of messages: copied as blocks, received where they lie, averaged in the workers' order wherever they lie."""

from __future__ import annotations

import pytest
import torch

from netfleet import make_topology
from netfleet.compute.products import Product, as_sparse
from netfleet.engines.host import part_of
from netfleet.engines.row_blocks import RowBlocks


@pytest.mark.parametrize("places", [[], [0], [2, 3, 4], [0, 2, 3, 7], [1, 3, 5]])
def test_rows_are_taken_and_put_as_by_indices(places: list[int]) -> None:
    stack = torch.arange(48, dtype=torch.uint8).view(8, 6)
    rows = RowBlocks(places)
    assert rows.count == len(places)
    taken = rows.take(stack)
    assert torch.equal(taken, stack[places])
    other, wanted = torch.zeros(8, 12, dtype=torch.uint8), torch.zeros(8, 12, dtype=torch.uint8)
    rows.put(other[:, 3:9], taken)
    wanted[places, 3:9] = stack[places]
    assert torch.equal(other, wanted)


def test_only_rows_that_lie_together_are_one_piece() -> None:
    stack = torch.zeros(4, 2)
    RowBlocks([1, 2]).piece(stack).fill_(1)
    assert stack[:, 0].tolist() == [0, 1, 1, 0]
    with pytest.raises(ValueError, match="unpack"):
        RowBlocks([0, 2]).piece(stack)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_averages_have_the_same_bits_wherever_vectors_lie(dtype: torch.dtype) -> None:
    W = make_topology("erdos-renyi", workers=30, seed=1).W()
    x = torch.randn(30, 5000, generator=torch.Generator().manual_seed(0), dtype=dtype)
    mine = [3, 4, 11, 29]
    hosts = [(7 * j) % 4 if j not in mine else 2 for j in range(30)]
    found = []
    for part in (part_of(W, mine), part_of(W, mine, hosts)):
        found.append(Product(1)(as_sparse(part.W, dtype), x[part.need], len(mine)))
    assert [hosts[j] for j in part.need] == sorted(hosts[j] for j in part.need)
    assert not torch.equal(torch.tensor(part.need), torch.tensor(sorted(part.need)))
    assert torch.equal(*found)
    assert torch.allclose(found[0].double(), torch.from_numpy(W.toarray()[mine]) @ x.double(), atol=1e-5)
