# /// script
# requires-python = "==3.11.*"
# dependencies = ["torch==2.13.0", "numpy==2.4.6", "pfl==0.6.0"]
# ///
"""Federated averaging in pfl.

What differs from the job: a server method (FedAvg): pfl has no gossip, so all workers start a round from the same
model. pfl walks through a user's data in order; every round hands it a new random sample of K batches.

Settings: pfl divides the users among processes that torchrun starts. ``--threads`` is their number, with one torch
thread in each: two processes were the fastest on two cores, ahead of one process with one or with two torch threads.
The memory reported is that of one process.
"""

# ruff: noqa: E402
import os
import sys
from time import perf_counter

import job as jobs
import numpy as np
import torch

job = jobs.load()
actors = job.threads or os.cpu_count() or 1
if actors > 1 and "TORCHELASTIC_RUN_ID" not in os.environ:
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={actors}"]
    os.execv(sys.executable, [sys.executable, *launch, *sys.argv])
torch.set_num_threads(1)
torch.manual_seed(job.seed)

from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = jobs.torch_model(job)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.net(jobs.as_input(job, x)), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
        return {}


class Clock(TrainingProcessCallback):
    def __init__(self) -> None:
        self.times = [perf_counter()]

    def after_central_iteration(self, *args: object, **kwargs: object) -> tuple[bool, Metrics]:
        self.times.append(perf_counter())
        return False, Metrics()


images, labels, parts = jobs.torch_images(job), torch.from_numpy(job.y), torch.from_numpy(job.parts)


def sample(user: int) -> Dataset:
    rows = parts[user, torch.randint(parts.shape[1], (job.K * job.batch,))]
    return Dataset((images[rows], labels[rows]))


net = Model()
model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
users = FederatedDataset(sample, get_user_sampler("minimize_reuse", list(range(job.m))))
rounds = job.rounds + 1
algorithm = NNAlgorithmParams(rounds, evaluation_frequency=rounds + 1, train_cohort_size=job.m, val_cohort_size=None)
training = NNTrainHyperParams(job.batch, None, job.eta, local_num_steps=job.K)
clock = Clock()
FederatedAveraging().run(
    algorithm, SimulatedBackend(users, users), model, training, callbacks=[clock], send_metrics_to_platform=False
)
if int(os.environ.get("RANK", 0)) == 0:
    jobs.report(np.diff(clock.times).tolist(), threads=actors)
