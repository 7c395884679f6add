"""One round against the bare gradient work in it, and that against the machine."""

import math

import torch

from benchmarks.measure import ResultTable, Timed, alternating, milliseconds, ratio, seconds
from benchmarks.setting import Setting, rounds
from netfleet.compute.threads import available_threads
from netfleet.gradients.native.blocks import recognise_blocks
from netfleet.gradients.native.layers import recognise
from netfleet.problems import ModuleProblem

MODELS: dict[str, dict[str, object]] = {
    **{kind: {"kind": kind} for kind in ("cnn", "mlp", "softmax")},
    "resnet18, 8 channels": {"kind": "resnet18", "width": 8},
    "resnet18, 8, GroupNorm": {"kind": "resnet18", "width": 8, "norm": "group"},
    "resnet18, 16 channels": {"kind": "resnet18", "width": 16},
}


def run(setting: Setting) -> ResultTable:
    table = ResultTable(
        f"One NET-FLEET round against the bare gradient work, m = {setting.m}, K = {setting.K}, batch {setting.batch}",
        "model | path | round, ms | gradients only, ms | round ÷ gradients | PyTorch's gradients ÷ ours | GFLOP/s | "
        "of peak",
    )
    repeats, size, data = setting.pick(21, 5, 1), setting.pick(2048, 2048, 256), setting.images()
    a, b = torch.randn(2, size, size)
    before = torch.get_num_threads()
    torch.set_num_threads(available_threads())
    peak = 2 * size**3 / min(seconds(lambda: a @ b) for _ in range(8))
    torch.set_num_threads(before)
    colours = setting.images(10_000, shape=(3, 32, 32))
    for name, model in MODELS.items():
        given = (model, colours, setting.pick(10, 10, 2)) if "resnet" in name else (model, data)
        f, plain = setting.problem(*given), setting.problem(*given, gradients="looped")
        go = rounds(f, setting.topology(f.m), setting.K)
        whole, work, theirs = alternating([go, _bare(f, setting.K), _bare(plain, setting.K)], repeats)
        middle = milliseconds(work).middle
        speed = _flops(f) * setting.K * f.m / (middle / 1e3)
        columns = f"{milliseconds(whole).middle:.1f}", f"{middle:.1f}", ratio(whole, work), ratio(theirs, work)
        table.add(name, f.path, *columns, f"{speed / 1e9:.0f}", f"{speed / peak:.0%}")
    table.notes = [
        f"Peak: a product of {size} × {size} float32 matrices, {available_threads()} threads: "
        f"{peak / 1e9:.0f} GFLOP/s.",
        "FLOPs are those of the dense gradient (twice the multiplications of forward, weight and input gradients). The "
        "native path does fewer: behind max-pooling and ReLU it visits only the pixels that have a gradient, and 3 × 3 "
        "convolutions of a ResNet by Winograd's method need 16 multiplications for 36.",
        "PyTorch's gradients are the looped path on the same threads, for the CNN with channels last.",
        "The ResNets have 10 workers, images of 3 × 32 × 32 (figure 2 cut down) and, unless said, batch normalisation.",
    ]
    return table


def _bare(f: ModuleProblem, steps: int) -> Timed:
    """Only the gradients of a round."""
    x, samples = f.start().repeat(f.m, 1), [f.sample(0, k) for k in range(steps)]

    def go() -> None:
        for sample in samples:
            f._path.gradients(x, sample, f.buffers)

    return go


def _flops(f: ModuleProblem) -> float:
    """Of one worker's gradient, by the book: every layer thrice, the first twice (nobody needs the data's gradient)."""
    shape = f.data.inputs
    if blocks := recognise_blocks(f.model, shape, f._probed.moving):
        found = [layer.kernel**2 * layer.cin * math.prod(layer.shape) for layer in blocks.layers]
        found.append(blocks.outputs * blocks.layers[-1].cout)
    else:
        chain = recognise(f.model, shape) or []
        areas = [layer.kernel_h * layer.kernel_w * layer.rows * layer.columns for layer in chain]
        found = [layer.cin * layer.cout * (area or 1) for layer, area in zip(chain, areas, strict=True)]
    return 2.0 * f.batch * (3 * sum(found) - found[0])
