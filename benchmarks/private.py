"""A private step, clipped gradients and noise, beside one that is not and beside Opacus on the same models and rows."""

import functools
import importlib.util
import secrets
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.measure import ResultTable, Timed, alternating, milliseconds, ratio
from benchmarks.setting import Setting
from netfleet.compute.threads import available_threads
from netfleet.data.tensors import only
from netfleet.gradients.paths import Sample
from netfleet.gradients.replica import Replica
from netfleet.privacy.noise import add_gaussian
from netfleet.problems import ModuleProblem

CLIP, NOISE = 1.0, 1.0
#: A private step of Opacus on one model: from inputs and targets to the gradient in its parameters.
OpacusStep = Callable[[Tensor, Tensor], None]
MakeStep = Callable[[nn.Module, int, float], OpacusStep]


def run(setting: Setting) -> ResultTable:
    columns = "model | workers | batch | private, ms | ÷ not private | of it noise"
    table = ResultTable(
        "One private step: clipped gradients of all samples, and noise",
        f"{columns} | Opacus's hooks ÷ ours | Opacus's ghost clipping ÷ ours",
    )
    data, few = setting.images(8000, tests=100), setting.pick(10, 2, 1)
    for model in ("cnn", "mlp"):
        for workers in (1, setting.m):
            for batch in setting.pick((32, 256), (32, 256), (4,)):
                f = setting.problem(model, data, workers, batch=batch)
                _compare(table, model, f, few)
    table.notes = [
        "private: the sum of clipped gradients of each worker, with ChaCha20's noise. not private: the mean gradient.",
        "Opacus: `GradSampleModule`, and `GradSampleModuleFastGradientClipping` with ghost clipping, which Opacus 1.6 "
        "has for linear layers. A step ends with the noisy gradient (`pre_step`); no optimizer moves the model. Its "
        "noise is `torch.normal`, not a cryptographic stream. A step of several workers is a loop over their models.",
        "Opacus ran with 1 or with all threads of PyTorch, whichever a trial found faster; ours has one per worker.",
    ]
    return table


def _compare(table: ResultTable, model: str, f: ModuleProblem, repeats: int) -> None:
    x, sample, count = f.start().repeat(f.m, 1), f.sample(0, 1), 10 if f.m == 1 else 1
    runs: list[Timed] = [functools.partial(private, f, x, sample), functools.partial(noisy, f, torch.zeros_like(x))]
    runs.append(functools.partial(f._path.gradients, x, sample, None))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus's hooks make PyTorch warn in every step
        runs += [opacus_loop(f, x, sample, make) for make in (hooks_step, ghost_step)] if _has_opacus() else []
        often = [functools.partial(_often, run, count) for run in runs]
        _, times, noise, plain, *theirs = alternating([_rest, *often], repeats)
    ratios = [str(ratio(t, times)) for t in theirs] or ["not installed"] * 2
    table.add(
        model, f.m, f.batch, milliseconds([t / count for t in times]), ratio(times, plain), ratio(noise, times), *ratios
    )


def _rest() -> None:
    """PyTorch's threads wait busily for some time after Opacus's step, on cores that ours would use."""
    time.sleep(0.5)


def _often(run: Timed, count: int) -> None:
    """A step of one model is too short to be timed alone."""
    for _ in range(count):
        run()


def private(f: ModuleProblem, x: Tensor, sample: Sample) -> Tensor:
    """The noisy sums of clipped gradients of each worker."""
    assert sample.rows is not None
    out = f._path.clipped(x, list(sample.rows), CLIP)
    noisy(f, out)
    return out


def noisy(f: ModuleProblem, out: Tensor) -> None:
    keys = [secrets.token_bytes(32) for _ in range(len(out))]
    add_gaussian(out, keys, [CLIP * NOISE] * len(out), f._pool)


def _has_opacus() -> bool:
    return importlib.util.find_spec("opacus") is not None


def opacus_loop(f: ModuleProblem, x: Tensor, sample: Sample, make: MakeStep) -> Timed:
    """A step of each worker's model on its own rows, one after the other, with the better number of threads."""
    assert sample.rows is not None
    replica = Replica(f.model, f.task.loss, frozenset())
    step = make(replica.model, f.batch, NOISE)
    batches = [(only(f._train.inputs(rows)).contiguous(), only(f._train.targets(rows))) for rows in sample.rows]

    def loop(threads: int, workers: int) -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        for row, (inputs, targets) in zip(x[:workers], batches, strict=False):
            replica.load(row)
            step(inputs, targets)
        torch.set_num_threads(before)

    choices = sorted({1, available_threads()})
    trials = alternating([functools.partial(loop, threads, 1) for threads in choices], 3)
    best = choices[int(np.argmin([min(times) for times in trials]))]
    return functools.partial(loop, best, f.m)


def hooks_step(model: nn.Module, batch: int, noise: float) -> OpacusStep:
    """Opacus with the gradients of all samples in memory."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    module, criterion = GradSampleModule(model), nn.CrossEntropyLoss()
    sgd = torch.optim.SGD(module.parameters(), lr=0.1)
    optimizer = DPOptimizer(sgd, noise_multiplier=noise, max_grad_norm=CLIP, expected_batch_size=batch)

    def step(inputs: Tensor, targets: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        criterion(module(inputs), targets).backward()
        optimizer.pre_step()

    return step


def ghost_step(model: nn.Module, batch: int, noise: float) -> OpacusStep:
    """Opacus with two backward passes: the norms of the samples' gradients, then the sum of the clipped ones."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    module = GradSampleModuleFastGradientClipping(model, max_grad_norm=CLIP, use_ghost_clipping=True)
    sgd = torch.optim.SGD(module.parameters(), lr=0.1)
    optimizer = DPOptimizerFastGradientClipping(
        sgd, noise_multiplier=noise, max_grad_norm=CLIP, expected_batch_size=batch
    )
    criterion = DPLossFastGradientClipping(module, optimizer, nn.CrossEntropyLoss())

    def step(inputs: Tensor, targets: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        criterion(module(inputs), targets).backward()
        optimizer.pre_step()

    return step
