"""The `[privacy]` table of an experiment."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from netfleet.errors import ConfigError
from netfleet.registry import check_fields


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """What others may learn: differential privacy of single training rows (`clip`), noise on links, or both.

    A gradient is the sum of its rows' gradients, each clipped to the length `clip`, plus Gaussian noise with standard
    deviation `noise` · `clip`, divided by the expected size of the mini-batch. Without `noise`, each worker takes the
    least with which all rounds spend at most (`epsilon`, `delta`). With both, a worker stops before it exceeds them.

    With `link_noise`, the two ends of every link add noise of this standard deviation to all that they send, with
    opposite signs; the last `exact_rounds` rounds have none.
    """

    clip: float | None = None
    noise: float | None = None
    epsilon: float | None = None
    delta: float = 1e-5
    link_noise: float | None = None
    exact_rounds: int = 0

    def __post_init__(self) -> None:
        check_fields(self, "privacy")
        for name in ("clip", "noise", "epsilon", "link_noise"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"privacy.{name} must be a finite number above 0, got {value!r}")
        if not 0 < self.delta < 1:
            raise ConfigError(
                f"privacy.delta must lie between 0 and 1, got {self.delta!r}; it should be well below 1 / (rows of the "
                f"smallest worker)"
            )
        self._check_rows()
        self._check_links()

    def _check_rows(self) -> None:
        if self.clip is None:
            if self.noise is not None or self.epsilon is not None or self.link_noise is None:
                raise ConfigError(
                    "privacy needs clip, the largest length of a row's gradient; add clip = 1.0, or leave noise and "
                    "epsilon out and add link_noise for noise on links alone"
                )
        elif self.noise is None and self.epsilon is None:
            raise ConfigError(
                "privacy needs noise (a factor of clip, such as 1.0) or epsilon, for which the noise is solved; add one"
            )

    def _check_links(self) -> None:
        if self.exact_rounds < 0 or (self.exact_rounds and self.link_noise is None):
            raise ConfigError(
                f"privacy.exact_rounds is the number of rounds at the end without link_noise, got {self.exact_rounds} "
                f"with link_noise = {self.link_noise}; use 0 or more, and only with link_noise"
            )

    def to_table(self) -> dict[str, Any]:
        """As an experiment file says it; without what concerns links where there is no noise on them."""
        table = asdict(self)
        return table if self.link_noise is not None else {k: table[k] for k in ("clip", "noise", "epsilon", "delta")}
