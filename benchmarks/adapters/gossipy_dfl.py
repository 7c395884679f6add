# /// script
# requires-python = "==3.11.*"
# dependencies = ["torch==2.13.0", "numpy==2.4.6", "gossipy-dfl==0.0.1"]
# ///
"""Gossip learning in GossipPy.

What differs from the job: GossipPy 0.0.1 has no synchronous exchange with all neighbours. In a round every node pushes
its model to one random neighbour, and a node that receives a model averages the two and then trains. A round has one
message and one training pass per node: 50 times 10 steps in all, as in the job, but a node may train twice or not at
all. The library passes once over a node's data; ``Handler`` hands it a random sample of K batches.

Settings: a round is one time step, the shortest that the simulator allows; no evaluation set is given, so none is made.
Which number of torch threads is faster depends on the model: try one and all. gossipy imports torchvision, which its
package does not list: an empty module stands in for it.
"""

# ruff: noqa: E402
import logging
import sys
from time import perf_counter
from types import ModuleType

import job as jobs
import numpy as np
import torch

sys.modules["torchvision"] = ModuleType("torchvision")  # imported by gossipy.data, used by its downloads only

from gossipy import LOG
from gossipy.core import AntiEntropyProtocol, CreateModelMode, StaticP2PNetwork
from gossipy.data import DataDispatcher
from gossipy.model import TorchModel
from gossipy.model.handler import TorchModelHandler
from gossipy.node import GossipNode
from gossipy.simul import GossipSimulator, SimulationReport

job = jobs.load()
torch.set_num_threads(job.threads or 1)
torch.manual_seed(job.seed)
LOG.setLevel(logging.ERROR)

Data = tuple[torch.Tensor, torch.Tensor]


class Model(TorchModel):
    def __init__(self) -> None:
        super().__init__()
        self.net = jobs.torch_model(job)

    def init_weights(self) -> None:
        """Keep the weights: all nodes start from the same model."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(jobs.as_input(job, x))


class Handler(TorchModelHandler):
    def _update(self, data: Data) -> None:
        rows = torch.randint(len(data[1]), (job.K * job.batch,))
        super()._update((data[0][rows], data[1][rows]))


class Clock(SimulationReport):
    def __init__(self) -> None:
        super().__init__()
        self.times = [perf_counter()]

    def update_timestep(self, t: int) -> None:
        self.times.append(perf_counter())


class Parts(DataDispatcher):
    def __init__(self) -> None:
        """The split is given by the job."""

    def __getitem__(self, idx: int) -> tuple[Data, None]:
        return (jobs.torch_images(job, job.parts[idx]), torch.from_numpy(job.y[job.parts[idx]])), None

    def has_test(self) -> bool:
        return False


network = StaticP2PNetwork(job.m, topology=job.W * (1 - np.eye(job.m)))
loss, mode = torch.nn.CrossEntropyLoss(), CreateModelMode.MERGE_UPDATE
handler = Handler(Model(), torch.optim.SGD, {"lr": job.eta}, loss, 1, job.batch, mode)
nodes = GossipNode.generate(Parts(), network, handler, round_len=1, sync=True)
simulator = GossipSimulator(nodes, Parts(), delta=1, protocol=AntiEntropyProtocol.PUSH)
simulator.init_nodes()
clock = Clock()
simulator.add_receiver(clock)
simulator.start(n_rounds=job.rounds + 1)
jobs.report(np.diff(clock.times).tolist(), threads=torch.get_num_threads())
