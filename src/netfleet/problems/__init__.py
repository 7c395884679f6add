"""What is trained; importing this package registers all problems."""

from netfleet.gradients.paths import Sample
from netfleet.problems.base import PROBLEMS, Problem, Scores
from netfleet.problems.module import LOSSES, ModuleProblem
from netfleet.problems.synthetic import Logistic, Quadratics

__all__ = ["LOSSES", "PROBLEMS", "Logistic", "ModuleProblem", "Problem", "Quadratics", "Sample", "Scores"]
