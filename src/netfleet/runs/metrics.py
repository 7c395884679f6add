"""What is measured at an evaluation: accuracy, loss, the two terms of eq. (4), and the tracking invariant.

Every host measures its own workers and takes part in the sums over all workers (`engines/collective.py`).
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from netfleet.algorithms.base import State
from netfleet.engines.collective import Collective, SingleHost
from netfleet.engines.host import Host
from netfleet.engines.job import Snapshot
from netfleet.problems.base import Problem, Scores
from netfleet.runs.config import Evaluation
from netfleet.runs.history import Record

_BLOCK = 1 << 18  # parameters that are converted at a time: large models would need several copies in float64
_WHOLE = SingleHost()


def consensus_error(x: Tensor, collective: Collective = _WHOLE, m: int | None = None) -> Tensor:
    """(1/m) Σᵢ ‖xᵢ − x̄‖², the second term of eq. (4), in float64 (on the CPU: some accelerators have none)."""
    m = m or len(x)
    parts = (part.cpu().double() for part in torch.split(x, _BLOCK, dim=1))
    own = torch.stack([(part - collective.total(part) / m).square().sum() for part in parts]).sum()
    return collective.total(own[None]) / m


def distances(x: Tensor, collective: Collective = _WHOLE, m: int | None = None) -> Tensor:
    """‖xᵢ − x̄‖ of every row of x, in float64."""
    m = m or len(x)
    parts = (part.cpu().double() for part in torch.split(x, _BLOCK, dim=1))
    return torch.stack([(part - collective.total(part) / m).square().sum(dim=1) for part in parts]).sum(dim=0).sqrt()


def conserved_gap(state: State, columns: slice = slice(None)) -> Tensor | None:
    """yᵢ − gᵢ, or what takes its place, of every row, `[rows, d]`; None for states that track nothing."""
    fields = dict(zip(state._fields, state, strict=True))
    for names in (("c",), ("v", "v_i"), ("y", "g"), ("y", "u")):
        if fields.keys() >= set(names):
            first, *second = (fields[name][:, columns].cpu().double() for name in names)
            return first - second[0] if second else first
    return None


def tracking_error(state: State, collective: Collective = _WHOLE) -> Tensor | None:
    """‖Σᵢ (yᵢ − gᵢ)‖, or what takes its place, which a tracking method keeps at 0; None for other states."""
    gaps = (conserved_gap(state, slice(i, i + _BLOCK)) for i in range(0, state.x.shape[1], _BLOCK))
    totals = [collective.total(gap) for gap in gaps if gap is not None]
    return torch.cat(totals).norm() if totals else None


def averages(snapshot: Snapshot, host: Host) -> tuple[Tensor, Tensor | None]:
    """x̄ `[d]`, and the mean of the module buffers `[1, b]`, over the workers that the host knows of."""
    m, buffers = host.collective.count(host.problem.m), snapshot.buffers
    mean = host.collective.total(snapshot.state.x) / m
    return mean, None if buffers is None else (host.collective.total(buffers) / m)[None]


#: Is called with a name and a value of each worker.
PerWorker = Callable[[str, Tensor], None]


def measure(
    snapshot: Snapshot, host: Host, evaluation: Evaluation, *, full: bool = True, each: PerWorker | None = None
) -> Record:
    """The metrics of one moment, from the state of the host's workers.

    Unless `full`, without the expensive ones: the scores of the workers' own models, and f and ∇f. Only the host that
    keeps the record has the scores of x̄. `each` is told the workers' own accuracy and loss, and their distance from x̄.
    """
    problem, collective, x, buffers = host.problem, host.collective, snapshot.state.x, snapshot.buffers
    m = collective.count(problem.m)
    mean, shared = averages(snapshot, host)
    shares, wanted = (None if m != problem.m else problem.shares), evaluation.metrics
    record: Record = {}
    if collective.keeps_record:
        scores = problem.evaluate(mean[None], buffers=shared, limit=evaluation.test_samples, metrics=wanted)
        accuracy = None if scores.accuracy is None else scores.accuracy.item()
        record = {"accuracy": accuracy, "loss": scores.loss.item()}
        for name, error in (("accuracy", scores.accuracy_error), ("loss", scores.loss_error)):
            record |= {} if error is None else {f"{name}_se": error.item()}
        record |= {name: values[0] for name, values in scores.metrics.items()}
    if full:
        score = partial(problem.evaluate, x, workers=problem.workers, buffers=buffers, metrics=wanted)
        found = score(limit=evaluation.worker_test_samples)
        record |= _over_workers("worker", found, host, shares)
        if each is not None:
            _tell(each, found, x, host, m)
        if problem.has_own_tests:
            record |= _over_workers("own", score(own=True), host, shares)
    everyone = m == problem.m  # a site knows its own worker only
    consensus = consensus_error(x, collective, m) if everyone else None
    record["consensus_error"] = None if consensus is None else consensus.item()
    if full and evaluation.gradient:
        record |= measure_objective(problem, mean, evaluation.gradient_samples, collective)
        record["stationarity"] = None if consensus is None else record["grad_norm2"] + record["consensus_error"]
    error = tracking_error(snapshot.state, collective) if everyone else None
    record["tracking_error"] = None if error is None else error.item()
    if problem.optimum is not None:
        record["distance2"] = (mean - problem.optimum).cpu().double().square().sum().item()
    return record


def _tell(each: PerWorker, scores: Scores, x: Tensor, host: Host, m: int) -> None:
    known = {"accuracy": scores.accuracy, "loss": scores.loss, "distance": distances(x, host.collective, m)}
    for name, values in known.items():
        if values is not None:
            each(name, _gathered(values, host))


def _over_workers(prefix: str, scores: Scores, host: Host, shares: Tensor | None) -> Record:
    """Mean, least and greatest score over all workers' models; in the mean a worker counts as in the objective."""
    record: Record = {}
    core = ("accuracy", scores.accuracy, scores.accuracy_error), ("loss", scores.loss, scores.loss_error)
    for name, values, errors in core:
        found = _spread(None if values is None else _gathered(values, host), shares)
        record |= {f"{prefix}_{name}_{part}": value for part, value in found.items()}
        if errors is not None:  # of independent estimates
            off = _gathered(errors, host)
            record[f"{prefix}_{name}_mean_se"] = (off / len(off) if shares is None else off * shares).norm().item()
    for name, some in scores.metrics.items():  # a model may have no value
        numbers = [math.nan if value is None else value for value in some]
        every = _gathered(torch.tensor(numbers, dtype=torch.float64), host)
        known = ~every.isnan()
        counted = None if shares is None else shares[known] / shares[known].sum()
        found = _spread(every[known] if known.any() else None, counted)
        record |= {f"{prefix}_{name}_{part}": value for part, value in found.items()}
    return record


def _gathered(values: Tensor, host: Host) -> Tensor:
    return host.collective.gather(values, host.problem.workers).cpu().double()


def _spread(values: Tensor | None, shares: Tensor | None) -> dict[str, float | None]:
    if values is None:
        return dict.fromkeys(("mean", "min", "max"))
    mean = values.mean() if shares is None else values @ shares
    return {"mean": mean.item(), "min": values.min().item(), "max": values.max().item()}


def measure_objective(problem: Problem, mean: Tensor, samples: int, collective: Collective = _WHOLE) -> Record:
    """f and ∇f at x̄: each host's workers in proportion to their number, from as many samples for each worker.

    The squared norm of an estimated gradient is too large by the estimate's variance, which is taken off; so it may be
    below 0 where ∇f almost vanishes. Its standard error there is up to √2 times too large.
    """
    m = collective.count(problem.m)
    value, slope, deviations = problem.estimated_objective(mean, -(-samples // m))

    def total(part: Tensor) -> Tensor:
        return collective.total(part[None] * (len(problem.workers) / m)).cpu().double()

    gradient, errors = total(slope), {}
    norm2 = gradient.square().sum()
    if deviations is not None:
        apart = ((row.square().sum(), row @ gradient) for row in map(total, deviations[1]))
        variance, along = torch.tensor(list(apart), dtype=torch.float64).T
        norm2 = norm2 - variance.sum()
        errors = {"train_loss_se": total(deviations[0]).norm().item(), "grad_norm2_se": 2 * along.norm().item()}
    return {"train_loss": total(value).item(), "grad_norm2": norm2.item(), **errors}
