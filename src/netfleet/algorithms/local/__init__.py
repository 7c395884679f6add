"""Local optimizers: how a local step moves along its corrected direction, for any method that lets `f.step` move."""

from netfleet.algorithms.local.local import Local, with_local
from netfleet.algorithms.local.optimizers import OPTIMIZERS, LocalOptimizer, LocalSpec, make_local

__all__ = ["OPTIMIZERS", "Local", "LocalOptimizer", "LocalSpec", "make_local", "with_local"]
