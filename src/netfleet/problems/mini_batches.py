"""The rows of mini-batches, a pure function of (seed, worker, round, step)."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from netfleet import randomness
from netfleet.gradients.paths import Sample

Rows = npt.NDArray[np.int64]
Sampling = Literal["replacement", "distinct"]
_DRAWN = 1 << 20  # rows that are drawn ahead, at most


class MiniBatches:
    """Of some workers: `parts[j]` are the training rows of workers[j]. The steps of a round are drawn together."""

    def __init__(
        self, parts: Sequence[Rows], workers: Sequence[int], batch: int, sampling: Sampling, seed: int
    ) -> None:
        self._batch, self._sampling, self._seed, self._workers = batch, sampling, seed, workers
        self._ids = np.asarray(workers, dtype=np.int64)[:, None]
        self._sizes = np.array([len(part) for part in parts])[:, None]
        self._offsets = np.concatenate([[0], np.cumsum(self._sizes)[:-1]])[:, None]
        self._rows = np.concatenate(parts)
        self._drawn = -1, 0, torch.empty(0)  # a round, its first drawn step, and `[steps, workers, batch]` rows
        self._steps = 0  # the largest step that was asked for

    def sample(self, t: int, k: int) -> Sample:
        drawn_for, first, drawn = self._drawn
        if t != drawn_for or not 0 <= k - first < len(drawn):
            self._steps = max(self._steps, k)
            most = max(_DRAWN // (len(self._workers) * self._batch), 1)
            steps = np.arange(k, min(self._steps, k + most - 1) + 1)
            first, drawn = k, torch.from_numpy(self._draw(t, steps))
            self._drawn = t, first, drawn
        rows = drawn[k - first]
        return Sample(t, k, rows.numel(), rows)

    def _draw(self, t: int, steps: Rows) -> Rows:
        """The rows of all mini-batches of some steps of a round, `[steps, workers, batch]`."""
        if self._sampling == "replacement":
            k, place = steps[:, None, None], np.arange(self._batch)
            local = randomness.integers(self._sizes, "batch", self._seed, self._ids, t, k, place)
        else:
            local = np.array([[self._distinct(j, t, int(k)) for j in range(len(self._workers))] for k in steps])
        rows: Rows = self._rows[self._offsets + local]
        return rows

    def _distinct(self, j: int, t: int, k: int) -> Rows:
        draw = randomness.generator("batch", self._seed, self._workers[j], t, k)
        return draw.choice(int(self._sizes[j, 0]), self._batch, replace=False)
