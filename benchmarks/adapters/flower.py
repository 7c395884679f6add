# /// script
# requires-python = "==3.11.*"
# dependencies = ["torch==2.13.0", "numpy==2.4.6", "flwr[simulation]==1.41.0"]
# ///
"""Federated averaging in Flower's simulation engine, with Ray.

What differs from the job: a server method (FedAvg): Flower has no gossip, so all workers start a round from the same
model.

Settings: no evaluation, no telemetry. The data are read once in every actor, never sent with a message. ``--threads``
is the number of actors, with one torch thread in each: two actors were the fastest on two cores, ahead of one actor
with one or with two torch threads. The memory reported leaves out Ray's processes.
"""

import os
import sys
from collections.abc import Iterable
from time import perf_counter

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

import job as jobs
import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

arguments = tuple(sys.argv[1:])
client, server = ClientApp(), ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    job = jobs.load(arguments)
    torch.set_num_threads(1)
    images, labels = jobs.torch_images(job), torch.from_numpy(job.y)
    part = torch.from_numpy(job.parts[int(context.node_config["partition-id"])])
    model, loss_of = jobs.torch_model(job), torch.nn.CrossEntropyLoss()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=job.eta)
    for _ in range(job.K):
        rows = part[torch.randint(len(part), (job.batch,))]
        optimizer.zero_grad()
        loss_of(model(jobs.as_input(job, images[rows])), labels[rows]).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": job.K * job.batch})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


class TimedFedAvg(FedAvg):
    times: list[float]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        result = super().aggregate_train(server_round, replies)
        self.times.append(perf_counter())
        return result


strategy = TimedFedAvg(fraction_evaluate=0.0)


@server.main()
def serve(grid: Grid, context: Context) -> None:
    job = jobs.load(arguments)
    strategy.min_available_nodes = strategy.min_train_nodes = job.m
    strategy.times = [perf_counter()]
    strategy.start(grid, ArrayRecord(jobs.torch_model(job).state_dict()), job.rounds + 1)


if __name__ == "__main__":
    job = jobs.load(arguments)
    actors = job.threads or os.cpu_count() or 1
    backend = {"init_args": {"num_cpus": actors}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, job.m, backend_config=backend)
    jobs.report(np.diff(strategy.times).tolist(), threads=actors)
