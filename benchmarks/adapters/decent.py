# /// script
# requires-python = "==3.13.*"
# dependencies = ["decent-bench==0.3.0", "decent-array==0.2.7", "numpy==2.5.4", "threadpoolctl==3.8.0"]
# ///
"""Softmax regression with LED and with K-GT in decent-bench, on its numpy back end.

What differs from the job: a method with a correction term (Local Exact Diffusion; K-GT is timed too, as ``kgt``), not
plain gossip; neural networks need its torch back end, and softmax regression is not among its costs, so ``Softmax``
adds it in numpy. The batches are drawn by decent-bench: at random, without replacement until the part is used up.

Settings: float32, also for the mixing matrix (the library's own is float64 and would turn all states into float64);
no snapshots of the states during the run. One and two BLAS threads take the same time.
"""

from time import perf_counter
from typing import Any

import job as jobs
import networkx as nx
import numpy as np
from decent_array import Array
from decent_array import interoperability as iop
from decent_bench.agents import Agent
from decent_bench.algorithms.p2p import KGT, LED
from decent_bench.costs import EmpiricalRiskCost
from decent_bench.networks import P2PNetwork
from threadpoolctl import threadpool_limits


class Softmax(EmpiricalRiskCost):
    """Mean cross-entropy of a linear model; the last row of the variable is the bias."""

    shape = (785, 10)
    m_smooth, m_cvx = float("nan"), 0.0
    n_samples, batch_size, dataset = 0, 0, ()

    def __init__(self, x: np.ndarray, y: np.ndarray, batch: int) -> None:
        self.x, self.y = x.reshape(len(x), -1), y
        self.n_samples, self.batch_size = len(x), batch

    def _get_batch_data(self, indices: Any = "batch") -> tuple[np.ndarray, np.ndarray]:
        rows = self._sample_batch_indices(indices)
        return self.x[rows], self.y[rows]

    def _probabilities(self, x: Array, images: np.ndarray) -> np.ndarray:
        variable = iop.to_numpy(x)
        scores = images @ variable[:-1] + variable[-1]
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        return scores / scores.sum(axis=1, keepdims=True)

    def gradient(self, x: Array, indices: Any = "batch", reduction: Any = "mean", **kwargs: Any) -> Array:
        images, labels = self._get_batch_data(indices)
        error = self._probabilities(x, images) / np.float32(len(labels))
        error[np.arange(len(labels)), labels] -= np.float32(1 / len(labels))
        return Array(np.concatenate([images.T @ error, error.sum(axis=0, keepdims=True)]))

    def function(self, x: Array, indices: Any = "batch", **kwargs: Any) -> float:
        images, labels = self._get_batch_data(indices)
        return float(-np.log(self._probabilities(x, images)[np.arange(len(labels)), labels]).mean())

    def predict(self, *_: Any, **__: Any) -> Array:
        raise NotImplementedError

    hessian = predict


def run(job: jobs.Job, algorithm: type[LED | KGT], eta: float) -> list[float]:
    costs = [Softmax(job.x[rows], job.y[rows], job.batch) for rows in job.parts]
    agents = [Agent(cost, state_snapshot_period=job.rounds + 2) for cost in costs]
    network = P2PNetwork(nx.from_numpy_array(job.W * (1 - np.eye(job.m))), agents)
    network.W = iop.from_numpy(job.W.astype(np.float32))
    start = Array(np.zeros(Softmax.shape, np.float32))
    times = [perf_counter()]
    method = algorithm(num_local_steps=job.K, step_size=job.eta, aux_step_size=eta, x0=start)
    method.run(network, job.rounds + 1, progress_callback=lambda _: times.append(perf_counter()))
    assert iop.to_numpy(agents[0].x).dtype == np.float32
    return np.diff(times).tolist()


if __name__ == "__main__":
    job = jobs.load()
    if job.model != "softmax":
        raise SystemExit("decent-bench runs neural networks on its torch back end only; this adapter has numpy")
    iop.set_backend("numpy")
    iop.set_seed(job.seed)
    threads = job.threads or 1
    with threadpool_limits(threads):
        kgt = run(job, KGT, 1.0)
        jobs.report(run(job, LED, 1 / job.K), threads=threads, kgt=kgt[1:])
