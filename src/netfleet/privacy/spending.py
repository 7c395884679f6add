"""What the rounds of a training cost each worker, and how many rounds its budget allows."""

from collections.abc import Mapping
from dataclasses import dataclass

from netfleet.privacy.accounting import epsilon_spent
from netfleet.privacy.mechanism import Rate


@dataclass(frozen=True)
class Spending:
    """The privacy that some workers spend."""

    rates: Mapping[int, Rate]  # by worker
    delta: float
    queries: tuple[int, ...]  # gradients of a worker after 0, 1, … rounds
    earlier: int = 0  # gradients of earlier trainings on the same rows

    def epsilon(self, t: int) -> float:
        """The largest ε of a worker after t rounds."""
        return max(self.by_worker(t).values())

    def by_worker(self, t: int) -> dict[int, float]:
        count = self.earlier + self.queries[t]
        return {i: epsilon_spent(rate.noise, rate.rate, count, self.delta) for i, rate in self.rates.items()}

    def rounds_within(self, epsilon: float) -> int:
        """The largest number of rounds after which no worker has spent more than ε; −1 if not even the start is."""
        low, high = -1, len(self.queries) - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.epsilon(middle) <= epsilon else (low, middle - 1)
        return low
