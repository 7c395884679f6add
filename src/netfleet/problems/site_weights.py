"""How much each worker's data counts: the shares p of the objective Σᵢ pᵢ fᵢ.

Methods minimise the plain mean of what the workers compute, so worker i computes m pᵢ fᵢ in place of fᵢ. That is exact
for every method, graph and engine, and needs no other W. A worker with a large share needs a smaller step size, by up
to the factor m pᵢ, which `cap` bounds. The alternative, a W with pᵢ Wᵢⱼ = pⱼ Wⱼᵢ and a weighted average, is exact too,
but mixes slowly: methods with local steps took more rounds with it (tests/problems/test_site_weights.py has both).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from netfleet.errors import ConfigError
from netfleet.registry import Registry

Shares = npt.NDArray[np.float64]
#: `weights = "rows"` or a table; numbers, one per worker, are a list.
WeightSpec = str | Mapping[str, Any] | Sequence[float]
SITE_WEIGHTS: Registry[Shares] = Registry("site weights")


@SITE_WEIGHTS.register("equal")
def equal(sizes: Sequence[int]) -> Shares:
    """All workers count alike, as in the paper."""
    return np.full(len(sizes), 1 / len(sizes))


@SITE_WEIGHTS.register("rows")
def rows(sizes: Sequence[int], cap: float = 1.0) -> Shares:
    """pᵢ = nᵢ/n: every row counts alike, up to `cap`, the largest share of one worker; the rest share the excess."""
    if not 1 / len(sizes) <= cap <= 1:
        least = f"1/{len(sizes)}"
        raise ConfigError(f"weights 'rows': cap is a share from {least} (of {len(sizes)} workers) to 1, got {cap:g}")
    shares = np.asarray(sizes, dtype=np.float64)
    capped = np.zeros(len(sizes), dtype=bool)
    while True:
        free = shares * ~capped
        found = np.where(capped, cap, free / max(free.sum(), 1e-300) * (1 - cap * capped.sum()))
        if (over := (found > cap * (1 + 1e-12)) & ~capped).any():
            capped |= over
        else:
            return np.asarray(found / found.sum())


def resolve_weights(spec: Any) -> dict[str, Any] | list[float]:
    """A specification as an experiment's config has it; raises if it is none."""
    if isinstance(spec, str | Mapping):
        return SITE_WEIGHTS.resolve(spec, {"sizes": None})
    spec = spec.tolist() if isinstance(spec, np.ndarray) else spec
    numbers = isinstance(spec, Sequence) and all(
        isinstance(v, int | float | np.number) and not isinstance(v, bool) for v in spec
    )
    if not numbers or not spec or not all(0 < v < float("inf") for v in spec):
        words = 'must be "equal", "rows", a table with a kind, or a positive number for each worker'
        raise ConfigError(f"problem.weights {words}, got {spec!r}")
    return [float(v) for v in spec]


def site_weights(spec: WeightSpec, sizes: Sequence[int]) -> Shares:
    """The workers' shares, which sum to 1; `sizes` are their numbers of training rows."""
    resolved = resolve_weights(spec)
    if isinstance(resolved, dict):
        return SITE_WEIGHTS.build(resolved, sizes=sizes)
    if len(resolved) != len(sizes):
        raise ConfigError(f"problem.weights has {len(resolved)} numbers for {len(sizes)} workers; give one for each")
    shares = np.asarray(resolved, dtype=np.float64)
    return np.asarray(shares / shares.sum())
