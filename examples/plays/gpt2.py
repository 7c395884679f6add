"""A small GPT-2 on Shakespeare's plays: AdamW in step at every batch, or a method with local AdamW and K steps a round.

torchrun --nproc-per-node 2 examples/plays/gpt2.py                     # K-GT with local AdamW, K = 10
torchrun --nproc-per-node 2 examples/plays/gpt2.py --method AdamW      # gradients averaged in every step (DDP)

Each rank has the lines of speakers of its own. The last line that rank 0 prints is the result as JSON.
"""

import argparse
import json
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from transformer import transformer

import netfleet.optim
from netfleet.data import load_dataset

parser = argparse.ArgumentParser()
parser.add_argument("--method", default="KGT", help="a class of netfleet.optim, or AdamW")
parser.add_argument("--K", type=int, default=10)
parser.add_argument("--graph", default="ring")
parser.add_argument("--lr", type=float, default=0.003)
parser.add_argument("--steps", type=int, default=2000)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--data", help="a text file in which speeches begin with a speaker's name (default: Shakespeare)")
options = parser.parse_args()

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
data = load_dataset({"kind": "plays", "length": 64, "path": options.data})
mine = data.groups % ranks == rank  # speakers are numbered by how much they say
torch.manual_seed(options.seed)
model = transformer((64,), data.classes, width=64, layers=2)
torch.manual_seed(1000 * options.seed + rank)  # the order of the batches
loader = DataLoader(TensorDataset(data.train_x[mine], data.train_y[mine]), batch_size=16, shuffle=True, drop_last=True)


def loss_of(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(module(x).flatten(0, 1), y.flatten())


@torch.no_grad()
def test_loss() -> float:
    """Over all speakers' test lines."""
    model.eval()
    parts = zip(data.test_x.split(256), data.test_y.split(256), strict=True)
    total = sum(loss_of(model, x, y) * len(x) for x, y in parts)
    model.train()
    return float(total / len(data.test_x))


def rate(step: int) -> float:
    """Up for the first twentieth, then a cosine down to a tenth."""
    warm = options.steps // 20
    return min((step + 1) / warm, 0.55 + 0.45 * math.cos(math.pi * step / options.steps))


if options.method == "AdamW":
    trained: nn.Module = DistributedDataParallel(model)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    batches = netfleet.optim.Batches(loader, steps=options.steps)
else:
    trained = model
    method, graph = getattr(netfleet.optim, options.method), {"kind": options.graph, "weights": "metropolis"}
    optimizer = method(model.parameters(), lr=options.lr, K=options.K, topology=graph, local=torch.optim.AdamW)
    batches = netfleet.optim.Batches(loader, optimizer, steps=options.steps)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)

for x, y in batches:
    loss = loss_of(trained, x, y)
    loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    if batches.drawn % 500 == 0 and rank == 0:
        print(f"step {batches.drawn}: loss {loss:.3f} on a batch of rank 0", flush=True)

own = torch.tensor([test_loss()])
dist.all_reduce(own)
if isinstance(optimizer, netfleet.optim.Decentralized):
    with optimizer.averaged():
        joint = test_loss()
else:
    joint = test_loss()
if rank == 0:
    print(json.dumps({**vars(options), "ranks": ranks, "average model": joint, "worker": float(own) / ranks}))
dist.destroy_process_group()
