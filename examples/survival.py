"""Survival: Cox's proportional hazards at three sites whose patients differ in age and in how long they are watched.

    python examples/survival.py

The data is drawn here: the log-hazard is linear with the coefficients HAZARD, so that the answer is known.
"""

import numpy as np

import netfleet as nf

HAZARD = np.array([1.0, -0.7, 0.4, 0.0])


def draw(rows: int = 900) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, (time, event) and site of each patient."""
    dice = np.random.default_rng(0)
    site = np.arange(rows) % 3
    x = dice.normal(size=(rows, len(HAZARD)))
    x[:, 0] += 0.5 * (site - 1)
    time = dice.exponential(np.exp(-x @ HAZARD))
    watched = dice.exponential(np.array([1.0, 2.0, 4.0])[site])
    return x, np.stack([np.minimum(time, watched), time <= watched], axis=1), site


def main(rounds: int = 50) -> tuple[nf.History, nf.Problem]:
    x, y, site = draw()
    data = nf.make_dataset(x, y, groups=site, name="survival")
    problem = nf.make_problem(data, "linear", loss="cox", batch=0)  # batch = 0: the exact partial likelihood
    method, evaluation = nf.NetFleet(K=10, eta=0.1), {"every": 25, "metrics": ["concordance"]}
    history = nf.simulate(method, topology="complete", problem=problem, rounds=rounds, evaluation=evaluation)
    return history, problem


if __name__ == "__main__":
    history, problem = main()
    weights = history.final.state.x.mean(0)[: len(HAZARD)]
    print(
        f"concordance {history.last['concordance']:.3f}; coefficients {weights.numpy().round(2)}, drawn with {HAZARD}"
    )
