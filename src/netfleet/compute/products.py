"""W times the vectors of workers; the order of summation depends on neither threads nor hosts."""

import warnings

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from netfleet.compute.arena import Arena
from netfleet.compute.threads import ThreadPool


class Product:
    """Multiplies on some threads, into reused memory."""

    def __init__(self, threads: int) -> None:
        self._pool, self._arena = ThreadPool(threads), Arena()

    def __call__(self, W: Tensor, x: Tensor, rows: int, out: Tensor | None = None) -> Tensor:
        """W x as `[rows, d]`, in `out` if that is given; a W of one row gives the same to all of them."""
        if x.device.type != "cpu":
            product = (W @ x).expand(rows, -1)
            return product.contiguous() if out is None else out.copy_(product)
        # columns per product: a function of d alone, so that the result does not depend on the number of threads
        width = min(16384, max(2048, x.shape[1] // 32 // 1024 * 1024))
        out = self._arena.empty(x, rows) if out is None else out

        def columns(_: int, i: int) -> None:
            part = slice(i * width, (i + 1) * width)
            if len(W) == rows:
                torch.mm(W, x[:, part], out=out[:, part])
            else:
                out[:, part] = torch.mm(W, x[:, part])

        self._pool.each(columns, -(-x.shape[1] // width))
        return out


def as_sparse(W: csr_array, dtype: torch.dtype) -> Tensor:
    """W as a sparse torch matrix: each row of a product is then summed by itself, in the order of W's indices.

    These need not ascend (`check_invariants` would ask for it).
    """
    rows, columns = (torch.from_numpy(part.astype(np.int64)) for part in (W.indptr, W.indices))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        values = torch.from_numpy(W.data)
        return torch.sparse_csr_tensor(rows, columns, values, W.shape, dtype=dtype, check_invariants=False)
