"""Shared by several tests."""

from __future__ import annotations

import socket

from support.fork_server import ForkedPython


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def start(arguments: list[str], ranks: int) -> list[ForkedPython]:
    """Some processes that know of each other, as torchrun would start them."""
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    places = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    return [ForkedPython(arguments, shared | place) for place in places]


def finish(processes: list[ForkedPython]) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each."""
    return [process.wait() for process in processes]


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
