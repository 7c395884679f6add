"""Rows for a trial, drawn by chance."""

import io

import numpy as np


def made_up_rows(number: int, rows: int = 150) -> bytes:
    """The .npz file of a site: rows `x` of four numbers, which lie elsewhere at each site, and labels `y`."""
    dice, file = np.random.default_rng(number), io.BytesIO()
    x = dice.normal(number - 1, 1, size=(rows, 4))
    y = x @ [1.0, -1.0, 0.5, 0.0] + dice.normal(size=rows) > 0
    np.savez(file, x=x, y=y.astype(int))
    return file.getvalue()
