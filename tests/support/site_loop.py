"""A training loop as a user writes it, for a site: `python site_loop.py FOLDER [KEY=NUMBER …]`."""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import netfleet.optim


def data(worker: int) -> TensorDataset:
    """Another part of a line for each worker."""
    generator = torch.Generator().manual_seed(worker)
    x = torch.randn(40, 3, generator=generator) + worker
    return TensorDataset(x, x.sum(dim=1, keepdim=True) + worker)


def make_model(seed: int, hidden: int, frozen: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, hidden), nn.BatchNorm1d(hidden), nn.Dropout(0.2), nn.Linear(hidden, 1))
    nn.init.constant_(model[3].bias.requires_grad_(False), frozen)
    return model


def main(folder: str, seed: int = 0, K: int = 3, hidden: int = 4, frozen: int = 1, led: int = 0) -> None:
    site = netfleet.optim.join(folder, linger=10.0)
    model = make_model(seed, hidden, frozen)
    optimizer: netfleet.optim.Decentralized
    if led:
        optimizer = netfleet.optim.LED(model.parameters(), lr=0.05, K=K)
    else:
        optimizer = netfleet.optim.KGT(model.parameters(), lr=0.05, K=K, local=torch.optim.AdamW)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.9)
    loader = DataLoader(data(site.worker), batch_size=8, shuffle=True)
    batches = netfleet.optim.Batches(loader, optimizer)
    optimizer.keep(model=model, scheduler=scheduler)
    for x, y in batches:
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        site.report(loss=loss.item())


if __name__ == "__main__":
    main(sys.argv[1], **{key: int(value) for key, value in (word.split("=") for word in sys.argv[2:])})
