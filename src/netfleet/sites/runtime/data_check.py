"""What a site finds out about its own data before round 0."""

import torch
from torch import Tensor

from netfleet.problems.base import Problem
from netfleet.problems.module import ModuleProblem
from netfleet.sites.policy.rules import DataFacts


def data_facts(problem: Problem, number: int) -> DataFacts | None:
    """The training rows of worker `number`, and how many classes are among them; None: the problem has no data."""
    if not isinstance(problem, ModuleProblem):
        return None
    part, labels = torch.from_numpy(problem.parts[number]), problem.data.train_y
    if problem.data.classes is None or not isinstance(labels, Tensor) or labels.dim() != 1:
        return DataFacts(len(part), None)
    return DataFacts(len(part), len(torch.unique(labels[part])))
