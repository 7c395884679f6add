"""Copies of a whole training run, each on a random half of every worker's rows, in one simulation.

Copies come in pairs that divide the rows between them. Each copy is a target whose members are known, and all other
pairs are its shadow models: as many with a row as without it, so chance alone favours no answer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import block_diag, csr_array
from torch import Tensor

from netfleet import randomness
from netfleet.data.tensors import to_dtype
from netfleet.engines.job import Job
from netfleet.engines.loop import Counted, advance, begin
from netfleet.engines.simulator import Simulator
from netfleet.errors import ConfigError, DivergedError
from netfleet.gradients.replica import outputs_of
from netfleet.privacy.mechanism import Mechanism, Rate, simulated_secret
from netfleet.privacy.queries import queries_after
from netfleet.privacy.settings import Privacy
from netfleet.privacy.spending import Spending
from netfleet.problems.module import ModuleProblem
from netfleet.topology.network import Mask, Network

#: Rows that a worker needs for a test.
LEAST = 2


@dataclass(frozen=True)
class Copies:
    """Several copies of a network that do not talk to each other."""

    network: Network
    count: int

    @property
    def m(self) -> int:
        return self.network.m * self.count

    @property
    def varying(self) -> bool:
        return self.network.varying

    @property
    def freezes(self) -> bool:
        return self.network.freezes

    def W(self, t: int = 0) -> csr_array:
        return csr_array(block_diag([self.network.W(t)] * self.count, format="csr"))

    def average(self, t: int = 0) -> None:
        """Each copy has an average of its own, and W has them."""

    def sends(self, i: int, t: int = 0) -> int:
        return self.network.sends(i % self.network.m, t)

    def messages(self, t: int = 0) -> int:
        return self.count * self.network.messages(t)

    def active(self, t: int = 0) -> Mask | None:
        mask = self.network.active(t)
        return None if mask is None else np.tile(mask, self.count)


class Shadows(NamedTuple):
    """What the copies ended with."""

    models: Tensor  # [copies, m, d]
    members: list[npt.NDArray[np.bool_]]  # by worker: [copies, rows], whether a row was trained on
    epsilon: float | None  # that the training of a copy has cost; None: it is not private


def train_shadows(
    job: Job, privacy: Privacy | None, count: int, rounds: int, progress: Callable[[int], None]
) -> Shadows:
    """Train copies of a job's first rounds, whose problem is private if there is `privacy`."""
    problem = job.problem
    assert isinstance(problem, ModuleProblem)
    members = [_halves(problem, i, count) for i in range(problem.m)]
    parts = [part[members[i][c]] for c in range(count) for i, part in enumerate(problem.parts)]
    halved, epsilon = _made_private(on_parts(problem, parts), job, privacy, rounds)
    host, f = Simulator(halved, Copies(job.network, count), job.threads, job.noise), Counted(halved)
    halved.buffers = None if halved.initial_buffers is None else halved.initial_buffers.clone()
    state = begin(host, job.algorithm, f, halved.start().repeat(halved.m, 1))
    for t in range(rounds):
        state = advance(host, job.algorithm, f, t, [state])
        progress(t + 1)
    if not bool(torch.isfinite(state.x).all()):
        raise DivergedError(f"{job.algorithm.title} diverged within {rounds} rounds on halves of the rows; lower eta")
    return Shadows(state.x.view(count, problem.m, -1), members, epsilon)


def _halves(problem: ModuleProblem, worker: int, count: int) -> npt.NDArray[np.bool_]:
    """Which rows of a worker each copy trains on, `[copies, rows]`: a copy the one half, the next one the other."""
    rows = len(problem.parts[worker])
    if rows < LEAST:
        raise ConfigError(
            f"membership inference trains on halves of a worker's rows, and {problem.worker_name(worker)} has {rows}; "
            f"it needs {LEAST} or more: use fewer workers, or --shadows 0 to leave it out"
        )
    coins = randomness.uniform("shadows", problem.seed, worker, np.arange(count // 2)[:, None], np.arange(rows)) < 0.5
    for coin in coins:
        if coin.all() or not coin.any():  # no copy has a worker without rows
            coin[0] = not coin[0]
    return np.stack([coins, ~coins], axis=1).reshape(count, rows)


def on_parts(problem: ModuleProblem, parts: list[npt.NDArray[np.int64]]) -> ModuleProblem:
    """The same problem with other parts of the data, and as many workers as there are parts."""
    made = ModuleProblem(
        problem.module(problem.start()),
        problem.data,
        parts,
        loss=problem.task,
        batch=min(problem.batch, min(map(len, parts))) if problem.sampling == "distinct" else problem.batch,
        l2=problem.l2,
        sampling=problem.sampling,
        batch_norm=problem.batch_norm,
        seed=problem.seed,
        dtype=problem.dtype,
        device=problem.device,
        gradients="auto" if problem.gradients == "processes" else problem.gradients,
    )
    if problem.shares is None:
        return made
    copies = len(parts) // problem.m
    return made.with_shares(np.tile(problem.shares.numpy(), copies) / copies)


def _made_private(
    halved: ModuleProblem, job: Job, privacy: Privacy | None, rounds: int
) -> tuple[ModuleProblem, float | None]:
    """With the clipping and the noise of the job's workers, and what they cost with half of the rows."""
    spending, m, rates = job.problem.spending, job.problem.m, {}
    if spending is None or privacy is None or privacy.clip is None:
        return halved, None
    for place, part in enumerate(halved.parts):
        rate = 1.0 if halved.batch == 0 else min(1.0, halved.batch / len(part))
        rates[place] = Rate(spending.rates[place % m].noise, rate, len(part))
    secret, queries = simulated_secret(halved.seed), queries_after(job.algorithm, rounds, halved.seed)
    mechanism = Mechanism(privacy.clip, rates, lambda t: secret)
    made = halved.private(mechanism, Spending(rates, spending.delta, rounds, queries.__getitem__))
    dearest = max(rates.items(), key=lambda item: item[1].rate / item[1].noise)
    return made, Spending(dict([dearest]), spending.delta, rounds, queries.__getitem__).epsilon(rounds)


def scores(problem: ModuleProblem, models: Tensor, rows: Tensor) -> Tensor:
    """How well each model fits each row, `[models, rows]`: the logit of its label's probability, or minus the loss."""
    inputs, targets = problem.data.train_x, problem.task.targets(problem.data.train_y, problem.data.name)
    assert isinstance(inputs, Tensor)
    assert isinstance(targets, Tensor)
    targets = to_dtype(targets, problem.dtype)
    found = []
    with torch.no_grad():
        for x in models:
            outputs = outputs_of(problem.module(x), inputs[rows].to(problem.device, problem.dtype))
            found.append(problem.task.loss(outputs, targets[rows].to(problem.device)).double().cpu())
    losses = torch.stack(found)
    if problem.task.outputs != "classes":
        return -losses
    return -losses - torch.log(-torch.expm1(-losses.clamp(min=1e-12)))
