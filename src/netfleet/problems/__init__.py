"""What is trained; importing this package registers all problems."""

from netfleet.gradients.paths import Sample
from netfleet.problems.base import PROBLEMS, Problem, Scores
from netfleet.problems.module import ModuleProblem
from netfleet.problems.own_loop import OWN_LOOP
from netfleet.problems.supervised import make_problem, supervised
from netfleet.problems.synthetic import Logistic, Quadratics
from netfleet.problems.tasks import LOSSES, Task

__all__ = [
    "LOSSES",
    "OWN_LOOP",
    "PROBLEMS",
    "Logistic",
    "ModuleProblem",
    "Problem",
    "Quadratics",
    "Sample",
    "Scores",
    "Task",
    "make_problem",
    "supervised",
]
