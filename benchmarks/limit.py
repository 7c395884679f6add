"""One round against the bare gradient work in it, and that against the machine."""

import torch

from benchmarks.measure import ResultTable, Timed, alternating, milliseconds, ratio, seconds
from benchmarks.setting import Setting, rounds
from netfleet.compute.threads import available_threads
from netfleet.gradients.native.layers import recognise
from netfleet.problems import ModuleProblem


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
    for model in ("cnn", "mlp", "softmax"):
        f, plain = setting.problem(model, data), setting.problem(model, data, gradients="looped")
        go = rounds(f, setting.topology(), setting.K)
        whole, work, theirs = alternating([go, _bare(f, setting.K), _bare(plain, setting.K)], repeats)
        middle = milliseconds(work).middle
        speed = _flops(f) * setting.K * f.m / (middle / 1e3)
        columns = f"{milliseconds(whole).middle:.1f}", f"{middle:.1f}", ratio(whole, work), ratio(theirs, work)
        table.add(model, f.path, *columns, f"{speed / 1e9:.0f}", f"{speed / peak:.0%}")
    table.notes = [
        f"Peak: a product of {size} × {size} float32 matrices, {available_threads()} threads: "
        f"{peak / 1e9:.0f} GFLOP/s.",
        "FLOPs are those of the dense gradient (twice the multiplications of forward, weight and input gradients). The "
        "native path does fewer: behind max-pooling and ReLU it visits only the pixels that have a gradient.",
        "PyTorch's gradients are the looped path on the same threads: channels last, pooling before ReLU.",
    ]
    return table


def _bare(f: ModuleProblem, steps: int) -> Timed:
    """Only the gradients of a round."""
    x, samples = f.start().repeat(f.m, 1), [f.sample(0, k) for k in range(steps)]

    def go() -> None:
        for sample in samples:
            f._path.gradients(x, sample, None)

    return go


def _flops(f: ModuleProblem) -> float:
    """Of one worker's gradient, by the book: every layer thrice, the first twice (nobody needs the data's gradient)."""
    total = 0.0
    for n, layer in enumerate(recognise(f.model, tuple(f.data.train_x.shape[1:])) or []):
        area = layer.kernel_h * layer.kernel_w * layer.rows * layer.columns
        total += 2.0 * f.batch * layer.cin * layer.cout * (area or 1) * (3 if n else 2)
    return total
