"""The `[time_box]` table of an experiment."""

import math
from dataclasses import dataclass

from netfleet.errors import ConfigError
from netfleet.registry import check_fields


@dataclass(frozen=True, kw_only=True)
class TimeBox:
    """Rounds of limited time.

    A round's local steps take about `seconds`. `step_seconds` says how long a step takes at each worker, or at all of
    them, for engines that do not go by the clock: only sites do.
    """

    seconds: float
    least: int = 1
    step_seconds: float | tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        check_fields(self, "time_box")
        durations = self.step_seconds if isinstance(self.step_seconds, tuple) else (self.step_seconds,)
        for name, value in [("seconds", self.seconds), *(("step_seconds", each) for each in durations)]:
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"time_box.{name} must be a finite number of seconds above 0, got {value!r}")
        if self.least < 1:
            raise ConfigError(f"time_box.least, the fewest local steps of a round, must be 1 or more, got {self.least}")

    def steps(self, worker: int, K: int) -> int:
        """The local steps that fit at a worker, by `step_seconds`."""
        durations = self.step_seconds
        assert durations is not None
        fit = int(self.seconds / (durations[worker] if isinstance(durations, tuple) else durations) + 1e-9)
        return min(max(fit, self.least), K)

    def check(self, K: int, m: int, by_clock: bool) -> None:
        """Raise if the table does not fit a method with K local steps and m workers."""
        if self.least > K:
            raise ConfigError(f"time_box.least = {self.least} is more than the method's K = {K} local steps; lower it")
        if by_clock:
            return
        if self.step_seconds is None:
            raise ConfigError(
                "time_box.step_seconds is missing: a simulation does not go by the clock; give the seconds of a local "
                "step, one number for all workers or a list with one for each"
            )
        if isinstance(self.step_seconds, tuple) and len(self.step_seconds) != m:
            raise ConfigError(
                f"time_box.step_seconds has {len(self.step_seconds)} numbers for {m} workers; give one for each, or "
                f"one number for all"
            )
