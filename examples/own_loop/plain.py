"""Plain PyTorch: a CNN on MNIST in one process. decentralized.py beside it is the same between several.

python examples/own_loop/plain.py --steps 5000
"""

import argparse
import os
from itertools import chain, islice, repeat

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from netfleet.data import load_dataset, make_partition

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="mnist")
parser.add_argument("--steps", type=int, default=5000)
parser.add_argument("--lr", type=float, default=0.001)
parser.add_argument("--worker", type=int, default=os.environ.get("RANK", "0"), help="whose part of the data this is")
parser.add_argument("--workers", type=int, default=os.environ.get("WORLD_SIZE", "1"), help="the number of parts")
options = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
data = load_dataset(options.data)
mine = make_partition({"kind": "shards", "per_worker": 2}, data, options.workers, seed=0)[options.worker]
loader = DataLoader(TensorDataset(data.train_x[mine], data.train_y[mine]), batch_size=32, shuffle=True)

channels, side = data.train_x.shape[1:3]
model = nn.Sequential(
    nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(16 * (side // 4) ** 2, data.classes),
)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps, eta_min=1e-5)
batches = islice(chain.from_iterable(repeat(loader)), options.steps)

for step, (x, y) in enumerate(batches, start=1):
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    if step % 1000 == 0 or step == options.steps:
        with torch.no_grad():
            accuracy = (model(data.test_x).argmax(dim=1) == data.test_y).float().mean()
        print(f"worker {options.worker}, step {step}: loss {loss:.3f}, accuracy {100 * accuracy:.2f} %", flush=True)
