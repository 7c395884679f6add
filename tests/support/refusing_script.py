"""A training script of a user, for tests/test_exit_codes.py: `SCRIPT WHO WHERE`; one rank's call is refused, or all."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

import netfleet.optim

who, where = sys.argv[1:]
dist.init_process_group("gloo")
refused = who == "all" or dist.get_rank() == int(who)
model = torch.nn.Linear(3, 1)
K = 0 if refused and where == "constructor" else 2
optimizer = netfleet.optim.NetFleet(model.parameters(), lr=0.05, K=K, topology="complete")
for step in range(6):
    if refused and step == 4:
        optimizer.add_param_group({"params": [torch.zeros(2, requires_grad=True)]})
    model(torch.ones(4, 3)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
