"""Regression: disease progression of 442 diabetes patients, dealt out to eight workers by age.

python examples/regression.py        (needs scikit-learn, which brings the data)
"""

import numpy as np
from sklearn.datasets import load_diabetes

import netfleet as nf


def main(rounds: int = 200) -> tuple[nf.History, nf.Problem]:
    x, y = load_diabetes(return_X_y=True)
    x, y = x / x.std(0), (y - y.mean()) / y.std()
    by_age = np.empty(len(x), dtype=int)
    by_age[np.argsort(x[:, 0])] = np.arange(len(x)) * 8 // len(x)  # workers whose patients differ
    data = nf.make_dataset(x, y, groups=by_age, test=0.25, name="diabetes")
    problem = nf.make_problem(data, "linear", weights="rows", l2=0.01, batch=0)
    ring, evaluation = {"kind": "ring", "weights": "metropolis"}, {"every": 20, "metrics": ["r2", "rmse"]}
    method = nf.NetFleet(K=5, eta=0.05)
    history = nf.simulate(method, topology=ring, workers=8, problem=problem, rounds=rounds, evaluation=evaluation)
    return history, problem


if __name__ == "__main__":
    history, _ = main()
    history.plot("regression.png")
    print(f"R² of the average model: {history.last['r2']:.3f}")
