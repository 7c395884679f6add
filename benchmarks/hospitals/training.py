"""Trains a logistic regression on them: the four together, one alone, or all rows at one place."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import netfleet as nf
from benchmarks.hospitals.rows import SITES, Floats, dataset, place
from netfleet.problems.module import ModuleProblem

SEEDS, TUNED_ON = (0, 1, 2, 3, 4), (10, 11, 12)
VALIDATION = 0.25  # of the training rows
L2 = (0.0, 0.01, 0.03, 0.1)
ETAS = {15: (0.003, 0.01, 0.03), 200: (0.01, 0.03, 0.1)}  # by the number of rounds


@dataclass(frozen=True)
class Setting:
    """One training: on which rows, by whom, how, for how long."""

    data: str
    method: str
    who: str = "all"  # the four hospitals; "pooled": one worker with all rows; or a hospital's name: it alone
    graph: str = "ring"
    weights: str = "equal"
    rounds: int = 200
    K: int = 10
    batch: int = 16
    eta: float = 0.02
    l2: float = 0.0
    local: str | None = None

    def problem(self, seed: int, validation: float = 0.0) -> ModuleProblem:
        data = dataset(self.data)
        assert data.groups is not None
        together = {"workers": 4, "partition": "sites", "weights": self.weights}
        mine = np.flatnonzero(data.groups == place(self.who)) if self.who in SITES else np.arange(data.rows)
        split: dict[str, Any] = together if self.who == "all" else {"workers": 1, "partition": [mine]}
        made = nf.make_problem(
            data, "linear", loss="bce", batch=self.batch, l2=self.l2, seed=seed, validation=validation, **split
        )
        assert isinstance(made, ModuleProblem)
        return made

    def train(self, seed: int, validation: float = 0.0) -> tuple[ModuleProblem, Floats]:
        """The problem, and the trained model's outputs on its test rows."""
        problem = self.problem(seed, validation)
        topology = {"kind": self.graph if self.who == "all" else "complete", "workers": problem.m}
        method = {"kind": self.method, "K": self.K, "eta": self.eta} | ({"local": self.local} if self.local else {})
        quiet = {"every": self.rounds, "gradient": False, "worker_test_samples": 1}
        history = nf.simulate(
            method,
            topology=topology | {"weights": "metropolis"},
            problem=problem,
            rounds=self.rounds,
            seed=seed,
            evaluation=quiet,
            progress=False,
        )
        assert history.final is not None
        x = history.final.state.x.mean(0)
        return problem, problem.outputs(x, torch.arange(problem.data.tests)).flatten().double().numpy()

    @property
    def key(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:16]


def short(setting: Setting) -> Setting:
    """With FLamby's budget."""
    return replace(setting, rounds=15, K=100, batch=4)


def tuned(setting: Setting, runs: Path) -> Setting:
    """With the penalty and the step size of the least loss on rows that were held out of the training rows."""
    file = runs / f"tuned-{setting.key}.json"
    if not file.exists():
        points = [replace(setting, l2=l2, eta=eta) for l2 in L2 for eta in ETAS[setting.rounds]]
        losses = [float(np.mean([validation_loss(point, seed) for seed in TUNED_ON])) for point in points]
        chosen = points[int(np.argmin(losses))]
        file.write_text(json.dumps({"l2": chosen.l2, "eta": chosen.eta, "loss": min(losses)}))
    found = json.loads(file.read_text())
    return replace(setting, l2=found["l2"], eta=found["eta"])


def validation_loss(setting: Setting, seed: int) -> float:
    """Over the held-out rows of those who train, each row alike."""
    problem, outputs = setting.train(seed, VALIDATION)
    groups = problem.data.test_groups
    assert groups is not None
    seen = (groups == place(setting.who)).numpy() if setting.who in SITES else np.ones(len(outputs), bool)
    y = problem.data.test_y
    assert isinstance(y, torch.Tensor)
    loss = np.logaddexp(0, np.where(y.numpy() > 0, -outputs, outputs))[seen].mean()
    return float(loss) if np.isfinite(loss) else float("inf")


def outputs(setting: Setting, runs: Path, seeds: Sequence[int] = SEEDS) -> Floats:
    """Of the models of some seeds on the test rows `[seeds, rows]`."""
    file = runs / f"outputs-{setting.key}-{len(seeds)}.npy"
    if not file.exists():
        np.save(file, np.array([setting.train(seed)[1] for seed in seeds]))
    return np.load(file)  # type: ignore[no-any-return]
