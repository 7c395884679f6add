"""What makes the simulator fast changes nothing else: memory that is used again, and threads."""

from __future__ import annotations

import gc

import pytest
import torch

from netfleet.compute.arena import Arena
from netfleet.compute.threads import ThreadPool

LARGE = 1 << 18


def test_memory_is_used_again_once_nobody_holds_it() -> None:
    arena, like = Arena(), torch.empty(4, LARGE)
    first = arena.empty_like(like)
    address, view = first.data_ptr(), first[1:3, ::2]
    del first
    second = arena.empty_like(like)
    assert second.data_ptr() != address, "a view still holds the first"
    del view
    gc.collect()
    third = arena.empty_like(like)
    assert third.data_ptr() == address
    assert (third.shape, third.dtype, third.is_contiguous()) == (like.shape, like.dtype, True)


@pytest.mark.parametrize("shape", [(3, 5), (2, LARGE + 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_an_arena_gives_tensors_that_do_not_overlap(shape: tuple[int, int], dtype: torch.dtype) -> None:
    arena = Arena()
    tensors = [arena.empty_like(torch.empty(shape, dtype=dtype)).fill_(i) for i in range(4)]
    assert all((tensor == i).all() for i, tensor in enumerate(tensors))


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 3, 40])
def test_a_pool_does_every_task_once(threads: int, count: int) -> None:
    done: list[int] = []
    slots: set[int] = set()

    def task(slot: int, i: int) -> None:
        slots.add(slot)
        done.append(i)

    ThreadPool(threads).each(task, count)
    assert sorted(done) == list(range(count))
    assert slots <= set(range(threads))


def test_an_error_in_any_thread_is_raised_and_the_pool_goes_on() -> None:
    pool = ThreadPool(3)

    def task(slot: int, i: int) -> None:
        if i == 7:
            raise ValueError("the seventh")

    for _ in range(5):
        with pytest.raises(ValueError, match="the seventh"):
            pool.each(task, 20)
    pool.each(lambda slot, i: None, 20)
