# /// script
# requires-python = "==3.11.*"
# dependencies = ["torch==2.13.0", "numpy==2.4.6"]
# ///
"""Local SGD with gossip in plain PyTorch, as a user would write it without any library.

The method is LD-SGD: every worker has a model and an optimizer of its own and makes K steps; then every worker takes
the weighted average of its neighbours' parameters. Which number of torch threads is faster depends on the
model: try one and all.
"""

import job as jobs
import torch
from torch import nn

job = jobs.load()
torch.set_num_threads(job.threads or 1)
torch.manual_seed(job.seed)

images, labels = jobs.torch_images(job), torch.from_numpy(job.y)
parts, weights = torch.from_numpy(job.parts), job.W.tolist()
neighbours = [job.neighbours(i) for i in range(job.m)]
models = [jobs.torch_model(job) for _ in range(job.m)]
for model in models:
    model.load_state_dict(models[0].state_dict())
optimizers = [torch.optim.SGD(model.parameters(), lr=job.eta) for model in models]
loss_of = nn.CrossEntropyLoss()


def train(i: int) -> None:
    for _ in range(job.K):
        rows = parts[i, torch.randint(parts.shape[1], (job.batch,))]
        optimizers[i].zero_grad()
        loss_of(models[i](jobs.as_input(job, images[rows])), labels[rows]).backward()
        optimizers[i].step()


@torch.no_grad()
def mix() -> None:
    old = [[p.clone() for p in model.parameters()] for model in models]
    for i, model in enumerate(models):
        for k, p in enumerate(model.parameters()):
            p.mul_(weights[i][i])
            for j in neighbours[i]:
                p.add_(old[j][k], alpha=weights[i][j])


def run_round() -> None:
    for i in range(job.m):
        train(i)
    mix()


jobs.report(jobs.time_rounds(job, run_round), threads=torch.get_num_threads())
