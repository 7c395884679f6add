"""Plain PyTorch: a CNN on MNIST in one process. decentralized.py beside it is the same on several.

python examples/own_loop/plain.py --steps 5000
"""

import argparse
from itertools import chain, repeat

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from netfleet.data import load_dataset

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="mnist")
parser.add_argument("--steps", type=int, default=500)
parser.add_argument("--lr", type=float, default=0.01)
options = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
data = load_dataset(options.data)
mine = torch.arange(len(data.train_y))
loader = DataLoader(TensorDataset(data.train_x[mine], data.train_y[mine]), batch_size=32, shuffle=True)
batches = chain.from_iterable(repeat(loader))

channels, side = data.train_x.shape[1:3]
model = nn.Sequential(
    nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(16 * (side // 4) ** 2, data.classes),
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)


def closure() -> torch.Tensor:
    """The loss of the next mini-batch, and its gradient."""
    x, y = next(batches)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    return loss


for step in range(options.steps):
    loss = optimizer.step(closure)
    if step % 100 == 99 or step == options.steps - 1:
        with torch.no_grad():
            accuracy = (model(data.test_x).argmax(dim=1) == data.test_y).float().mean()
        print(f"step {step + 1}: loss {loss:.3f}, accuracy {100 * accuracy:.2f} %")
