"""Shared by several tests."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def start(arguments: list[str], ranks: int, **more: str) -> list[subprocess.Popen[str]]:
    """Some processes that know of each other, as torchrun would start them."""
    port, folder = str(free_port()), str(Path(__file__).parents[1])
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    path = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
    return [
        subprocess.Popen(
            [sys.executable, *arguments],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "PYTHONPATH": path, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]


def finish(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each."""
    ends = [process.communicate(timeout=600) for process in processes]
    return [(process.returncode, *end) for process, end in zip(processes, ends, strict=True)]


EXPERIMENT = """
name = "cluster"
rounds = 60
checkpoint_every = 10
[topology]
kind = "ring"
workers = 6
[problem]
kind = "quadratics"
sigma = 0.5
[[algorithms]]
kind = "net-fleet"
K = 3
eta = 0.02
[evaluation]
every = 5
[engine]
dtype = "float64"
"""
