"""The same as plain.py between several workers, each with its own few labels: K-GT with local AdamW.

torchrun --nproc-per-node 3 examples/own_loop/decentralized.py                             # ranks of a cluster
python examples/own_loop/decentralized.py --join plan/hospital-a --worker 0 --workers 3    # a site of a plan
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from netfleet.data import load_dataset, make_partition
from netfleet.optim import KGT, Batches, join

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="mnist")
parser.add_argument("--steps", type=int, default=5000)
parser.add_argument("--lr", type=float, default=0.001)
parser.add_argument("--worker", type=int, default=os.environ.get("RANK", "0"), help="whose part of the data this is")
parser.add_argument("--workers", type=int, default=os.environ.get("WORLD_SIZE", "1"), help="the number of parts")
parser.add_argument("--join", metavar="FOLDER", help="the folder of a site")
options = parser.parse_args()

join(options.join) if options.join else dist.init_process_group("gloo")
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
optimizer = KGT(model.parameters(), lr=options.lr, K=10, local=torch.optim.AdamW)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps, eta_min=1e-5)
batches = Batches(loader, optimizer, steps=options.steps)
optimizer.keep(model=model, scheduler=scheduler)

for x, y in batches:
    step = batches.drawn  # also after a resume
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    if step % 1000 == 0 or step == options.steps:
        with torch.no_grad():
            accuracy = (model(data.test_x).argmax(dim=1) == data.test_y).float().mean()
        print(f"worker {options.worker}, step {step}: loss {loss:.3f}, accuracy {100 * accuracy:.2f} %", flush=True)
