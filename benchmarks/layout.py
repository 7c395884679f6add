"""What the memory order of one-channel images costs: python benchmarks/layout.py

One gradient of the paper's CNN (batch 32, one thread), images as `contiguous` with channels_last returns them and
as netfleet lays them out, in alternating runs; prints the first time over the second with its quartiles.
"""

from __future__ import annotations

import statistics
import time

import torch
import torch.nn.functional as F

from netfleet.models import MODELS
from netfleet.problems.rows import Rows

REPEATS = 60


def main() -> None:
    torch.set_num_threads(1)
    model = MODELS.build("cnn", inputs=(1, 28, 28), classes=10)
    images, labels = torch.rand(32, 1, 28, 28), torch.randint(0, 10, (32,))
    ours = Rows(images, labels, torch.float32, torch.device("cpu"), channels_last=True).inputs(torch.arange(32))
    theirs = images.contiguous(memory_format=torch.channels_last)

    def seconds(inputs: torch.Tensor) -> float:
        start = time.perf_counter()
        torch.autograd.grad(F.cross_entropy(model(inputs), labels), list(model.parameters()))
        return time.perf_counter() - start

    ratios = [seconds(theirs) / seconds(ours) for _ in range(REPEATS)][10:]
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"strides {theirs.stride()} / {ours.stride()}: {middle:.2f} [{low:.2f}, {high:.2f}]")


if __name__ == "__main__":
    main()
