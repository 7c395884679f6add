"""The `[privacy]` table of an experiment."""

import math
from dataclasses import dataclass

from netfleet.errors import ConfigError
from netfleet.registry import check_fields


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """Differential privacy of single training rows.

    A gradient is the sum of its rows' gradients, each clipped to the length `clip`, plus Gaussian noise with standard
    deviation `noise` · `clip`, divided by the expected size of the mini-batch. Without `noise`, each worker takes the
    least with which all rounds spend at most (`epsilon`, `delta`). With both, a worker stops before it exceeds them.
    """

    clip: float
    noise: float | None = None
    epsilon: float | None = None
    delta: float = 1e-5

    def __post_init__(self) -> None:
        check_fields(self, "privacy")
        for name in ("clip", "noise", "epsilon"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"privacy.{name} must be a finite number above 0, got {value!r}")
        if not 0 < self.delta < 1:
            raise ConfigError(
                f"privacy.delta must lie between 0 and 1, got {self.delta!r}; it should be well below 1 / (rows of the "
                f"smallest worker)"
            )
        if self.noise is None and self.epsilon is None:
            raise ConfigError(
                "privacy needs noise (a factor of clip, such as 1.0) or epsilon, for which the noise is solved; add one"
            )
