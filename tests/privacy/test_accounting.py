"""ε is that of the accounting library, noise is solved for it, and budgets end in time."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants import PRVAccountant, RDPAccountant
from scipy.optimize import brentq

from netfleet.algorithms.build import make_algorithm
from netfleet.errors import ConfigError
from netfleet.privacy.accounting import epsilon_spent, noise_for
from netfleet.privacy.mechanism import Rate
from netfleet.privacy.queries import queries_after
from netfleet.privacy.settings import Privacy
from netfleet.privacy.spending import Spending


@pytest.mark.parametrize(("noise", "rate", "queries", "delta"), [(1.0, 0.1, 500, 1e-5), (2.0, 0.3, 200, 1e-3)])
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_epsilon_is_that_of_the_library(noise: float, rate: float, queries: int, delta: float) -> None:
    ours = epsilon_spent(noise, rate, queries, delta)
    library = PRVAccountant()
    for _ in range(queries):
        library.step(noise_multiplier=noise, sample_rate=rate)
    assert ours == pytest.approx(library.get_epsilon(delta), rel=0.01)
    loose = RDPAccountant()
    loose.history = library.history
    assert ours <= loose.get_epsilon(delta)


def test_one_gaussian_answer_has_its_closed_form() -> None:
    """With every row in the batch a query is the Gaussian mechanism: δ(ε) of Balle and Wang (2018)."""
    noise, delta = 2.0, 1e-4

    def normal(z: float) -> float:
        return math.erfc(-z / math.sqrt(2)) / 2

    def excess(epsilon: float) -> float:
        left, right = 1 / (2 * noise) - epsilon * noise, -1 / (2 * noise) - epsilon * noise
        return normal(left) - math.exp(epsilon) * normal(right) - delta

    exact = brentq(excess, 0.1, 10)
    assert exact <= epsilon_spent(noise, 1.0, 1, delta) <= 1.01 * exact


@settings(max_examples=3, deadline=None)
@given(st.floats(0.5, 10), st.sampled_from([0.02, 0.2, 1.0]), st.integers(1, 300))
def test_the_solved_noise_is_the_least(epsilon: float, rate: float, queries: int) -> None:
    noise = noise_for(epsilon, 1e-5, rate, queries)
    assert epsilon_spent(noise, rate, queries, 1e-5) <= epsilon
    if noise > 0.2:  # the least that is used at all
        assert epsilon_spent(noise / 1.02, rate, queries, 1e-5) > epsilon


def test_more_queries_and_less_noise_cost_more() -> None:
    assert 0 == epsilon_spent(1, 0.1, 0, 1e-5) < epsilon_spent(1, 0.1, 10, 1e-5) < epsilon_spent(1, 0.1, 20, 1e-5)
    assert epsilon_spent(2, 0.1, 10, 1e-5) < epsilon_spent(1, 0.1, 10, 1e-5) < epsilon_spent(1, 0.2, 10, 1e-5)


def test_a_budget_ends_at_the_last_round_that_it_allows() -> None:
    queries = queries_after(make_algorithm({"kind": "net-fleet", "K": 5}), 40)
    spending = Spending({0: Rate(1.0, 0.2, 100), 1: Rate(1.0, 0.1, 200)}, 1e-5, 40, queries.__getitem__)
    last = spending.rounds_within(6.0)
    assert 0 < last < 40
    assert spending.epsilon(last) <= 6.0 < spending.epsilon(last + 1)
    assert spending.by_worker(last)[1] < spending.by_worker(last)[0]
    assert spending.rounds_within(1e3) == 40
    assert spending.rounds_within(1e-3) == -1


def test_gradients_are_counted_from_the_method_itself() -> None:
    assert queries_after(make_algorithm({"kind": "net-fleet", "K": 5}), 3) == (1, 6, 11, 16)
    assert queries_after(make_algorithm({"kind": "k-gt", "K": 5}), 2) == (0, 5, 10)
    assert queries_after(make_algorithm({"kind": "dsgd"}), 2) == (0, 1, 2)
    coins = [queries_after(make_algorithm({"kind": "proxskip", "K": 5}), 9, seed)[-1] for seed in (0, 1)]
    assert coins[0] != coins[1]  # the number of its steps follows from the seed


@pytest.mark.parametrize(
    ("kind", "why"), [("dfedsam", "uses a mini-batch twice"), ("svrg", "over all"), ("spider", "over all")]
)
def test_methods_that_the_accounting_does_not_cover(kind: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        queries_after(make_algorithm({"kind": kind}), 3)


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"clip": 0.0, "noise": 1.0}, r"privacy\.clip must be a finite number above 0"),
        ({"clip": 1.0}, "needs noise .* or epsilon"),
        ({"clip": 1.0, "noise": -1.0}, r"privacy\.noise must be"),
        ({"clip": 1.0, "epsilon": math.inf}, r"privacy\.epsilon must be"),
        ({"clip": 1.0, "noise": 1.0, "delta": 1.0}, r"privacy\.delta must lie between 0 and 1"),
    ],
)
def test_bad_settings(table: dict[str, float], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Privacy(**table)


def test_an_epsilon_that_no_noise_reaches() -> None:
    with pytest.raises(ConfigError, match="no reasonable noise keeps 1000 gradients within epsilon = 1e-05"):
        noise_for(1e-5, 1e-5, 1.0, 1000)
