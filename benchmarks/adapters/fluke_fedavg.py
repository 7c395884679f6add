# /// script
# requires-python = "==3.11.*"
# dependencies = [
#   "torch==2.13.0", "numpy==2.4.6", "pandas==3.1.1", "scikit-learn==1.9.1", "torchmetrics==1.9.0", "rich==15.0.0",
#   "psutil==7.2.2", "seaborn==0.13.2", "matplotlib==3.11.2", "diskcache==5.6.3", "cerberus==1.3.8", "omegaconf==2.4.0",
#   "networkx==3.6.1",
# ]
# [tool.netfleet]
# no-deps = ["fluke-fl==0.8.1"]
# ///
"""Federated averaging in fluke.

What differs from the job: a server method (FedAvg), so all workers start a round from the same model. fluke's gossip
(``GossipDFL``) is not used: there a client that received no model in a round does not train, so that a round has fewer
steps than the job. fluke passes over a client's whole data; ``RandomBatches`` ends after K batches.

Settings: no evaluation; models are kept in memory. fluke imports torchvision for its own models and downloads, which
are not used here: an empty stand-in takes its place. Which number of torch threads is
faster depends on the model: try one and all.
"""

# ruff: noqa: E402
from __future__ import annotations

import sys
from collections.abc import Iterator
from time import perf_counter
from unittest.mock import MagicMock

import job as jobs
import numpy as np
import torch
import torchmetrics  # noqa: F401 (looks for torchvision: before the stand-in)

for name in ("", ".models", ".datasets", ".datasets.utils", ".transforms"):
    sys.modules[f"torchvision{name}"] = MagicMock()

from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.server import Server
from fluke.utils import FederationObserver

job = jobs.load()
torch.set_num_threads(job.threads or 1)
torch.manual_seed(job.seed)
FlukeENV().set_eval_cfg(locals=False, server=False, pre_fit=False, post_fit=False)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = jobs.torch_model(job)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(jobs.as_input(job, x))


class RandomBatches(FastDataLoader):
    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        for _ in range(job.K):
            rows = torch.randint(self.max_size, (job.batch,))
            yield tuple(tensor[rows] for tensor in self.tensors)


class Clock(FederationObserver):
    def __init__(self) -> None:
        self.times = [perf_counter()]

    def end_round(self, round: int) -> None:
        self.times.append(perf_counter())


def make_client(i: int) -> Client:
    part = jobs.torch_images(job, job.parts[i]), torch.from_numpy(job.y[job.parts[i]])
    data = RandomBatches(*part, num_labels=10, batch_size=job.batch)
    return Client(i, data, None, optimizer, torch.nn.CrossEntropyLoss(), local_epochs=1)


optimizer = OptimizerConfigurator(DDict(name="SGD", lr=job.eta), DDict(name="StepLR", step_size=1, gamma=1.0))
clients = [make_client(i) for i in range(job.m)]
server = Server(Model(), None, clients)
algorithm = FedAVG(job.m, None, DDict(), clients=clients, server=server)
clock = Clock()
algorithm.set_callbacks([clock])
algorithm.run(job.rounds + 1, eligible_perc=1.0)
jobs.report(np.diff(clock.times).tolist(), threads=torch.get_num_threads())
