"""What the rounds of a training cost each worker, and how many rounds its budget allows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from netfleet.privacy.accounting import epsilon_spent
from netfleet.privacy.mechanism import Rate


@dataclass(frozen=True)
class Spending:
    """The privacy that some workers spend."""

    rates: Mapping[int, Rate]  # by worker
    delta: float
    rounds: int
    counted: Callable[[int], int]  # gradients of a worker after so many rounds

    def epsilon(self, t: int) -> float:
        """The largest ε of a worker after t rounds."""
        return max(self.by_worker(t).values())

    def by_worker(self, t: int) -> dict[int, float]:
        count = self.counted(t)
        return {i: epsilon_spent(rate.noise, rate.rate, count, self.delta) for i, rate in self.rates.items()}

    def rounds_within(self, epsilon: float, first: int = 0) -> int:
        """The last round from `first` on after which no worker has spent more than ε; first − 1 if there is none."""
        if self.epsilon(self.rounds) <= epsilon:
            return self.rounds
        low, high = first - 1, self.rounds - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.epsilon(middle) <= epsilon else (low, middle - 1)
        return low
