"""What the memory order of one-channel images costs PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from benchmarks.measure import ResultTable, alternating, ratio
from benchmarks.setting import Setting, network
from netfleet.compute.threads import one_intra_op_thread
from netfleet.gradients.samples import DeviceSamples


def run(setting: Setting) -> ResultTable:
    """One gradient of the paper's CNN, batch 32, one thread."""
    table = ResultTable("Images with the channels last in memory, in PyTorch", "strides | ÷ ours")
    model, every = network("cnn"), torch.arange(32)
    images, labels = torch.rand(32, 1, 28, 28), torch.randint(0, 10, (32,))
    ours = DeviceSamples(images, labels, torch.float32, torch.device("cpu"), channels_last=True).inputs(every)
    theirs = images.contiguous(memory_format=torch.channels_last)

    def gradient(inputs: torch.Tensor) -> None:
        torch.autograd.grad(F.cross_entropy(model(inputs), labels), list(model.parameters()))

    with one_intra_op_thread():
        times = alternating([lambda: gradient(theirs), lambda: gradient(ours)], setting.pick(50, 10, 1))
    table.add(f"as `contiguous(channels_last)` returns them, {theirs.stride()}", ratio(*times))
    table.notes = [f"Ours: {ours.stride()}, what channels last means with one channel."]
    return table
