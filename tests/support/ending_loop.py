"""A user's script for tests/optim/test_endings.py: `SCRIPT HOW`; it ends in the middle of a round."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

import netfleet.optim

how = sys.argv[1]
dist.init_process_group("gloo")
pid = torch.tensor(os.getpid())
dist.broadcast(pid, 0)
first = int(pid)
model = torch.nn.Linear(3, 1)
optimizer = netfleet.optim.NetFleet(model.parameters(), lr=0.05, K=4, topology="complete")
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
if how == "kept":
    optimizer.keep(scheduler=scheduler)
for step in range(6):
    if how == "interrupted" and step == 4 and dist.get_rank() == 0:  # it waits for the other rank in vain
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    if how == "interrupted" and step == 4 and dist.get_rank() == 1:
        until = time.monotonic() + 20
        while Path(f"/proc/{first}/status").exists() and time.monotonic() < until:
            if "State:\tZ" in Path(f"/proc/{first}/status").read_text():
                break
            time.sleep(0.05)
        os._exit(0)
    model(torch.ones(4, 3)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
if how == "error":
    raise RuntimeError("the loop's own")
if how == "destroyed":
    dist.destroy_process_group()
