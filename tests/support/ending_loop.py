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
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts tests in the background ignores it
dist.init_process_group("gloo")
pid = torch.tensor(os.getpid())
dist.broadcast(pid, 0)
first = int(pid)
model = torch.nn.Linear(3, 1)
optimizer = netfleet.optim.NetFleet(model.parameters(), lr=0.05, K=4, topology="complete")
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
if how == "kept":
    optimizer.keep(scheduler=scheduler)
INTERRUPTS = ("interrupted", "caught", "averaged")


def wait_for_the_first() -> None:
    """Until rank 0 has ended, and not for ever."""
    until = time.monotonic() + 20
    status = Path(f"/proc/{first}/status")
    while status.exists() and "State:\tZ" not in status.read_text() and time.monotonic() < until:
        time.sleep(0.05)
    os._exit(0)


def loop() -> None:
    for step in range(6):
        if how in INTERRUPTS and step == 4:  # rank 0 waits for the other rank in vain
            if dist.get_rank() == 1:
                wait_for_the_first()
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            if how == "averaged":
                with optimizer.averaged():
                    pass
        model(torch.ones(4, 3)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()


try:
    loop()
except KeyboardInterrupt:
    if how != "caught":
        raise
if how == "error":
    raise RuntimeError("the loop's own")
if how == "destroyed":
    dist.destroy_process_group()
