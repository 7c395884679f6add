"""Memory for the large vectors of a round, reused as soon as no tensor refers to it.

The system's allocator returns large blocks to the system and fetches new ones page by page; for large vectors that
costs several times the arithmetic done on them.
"""

import math
import mmap
import weakref
from collections import defaultdict

import numpy as np
import torch
from torch import Tensor

_SMALL = 1 << 18  # bytes below which the allocator is as good


class Arena:
    """Allocates tensors and reuses their memory when the last view of them is gone."""

    def __init__(self) -> None:
        self._free: defaultdict[int, list[mmap.mmap]] = defaultdict(list)

    def empty_like(self, x: Tensor) -> Tensor:
        """An uninitialised contiguous tensor of the shape, type and device of x."""
        return self.empty(x, len(x))

    def empty(self, like: Tensor, rows: int) -> Tensor:
        """The same with another number of rows."""
        shape = (rows, *like.shape[1:])
        size = math.prod(shape) * like.element_size()
        if like.device.type != "cpu" or size < _SMALL:
            return torch.empty(shape, dtype=like.dtype, device=like.device)
        free = self._free[size]
        block = free.pop() if free else _fresh(size)
        array = np.frombuffer(block, dtype=np.uint8, count=size)
        weakref.finalize(array, free.append, block).atexit = False
        return torch.from_numpy(array).view(like.dtype).view(shape)


def _fresh(size: int) -> mmap.mmap:
    """Pages from the system, huge ones where it has them, because rows of a data set are far apart."""
    length = math.ceil(size / mmap.PAGESIZE) * mmap.PAGESIZE
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return mmap.mmap(-1, length)
    block = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.madvise(mmap.MADV_HUGEPAGE)
    return block
