"""The machines of other tests do what they promise."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.namespaces import Machines, namespaces

ANSWER = """
import socket, sys
server = socket.create_server(("0.0.0.0", 7000))
print("ready", flush=True)
while True:
    server.accept()[0].close()
"""


@pytest.fixture
def machines() -> Iterator[Machines]:
    with namespaces("a", "b") as network:
        for name in ("a", "b"):
            process = network.start(name, ["python3", "-c", ANSWER], stdout=subprocess.PIPE)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield network


def dial(network: Machines, machine: str, to: str) -> str:
    command = ["timeout", "0.3", "bash", "-c", f"</dev/tcp/{network.address(to)}/7000"]
    return {0: "reached", 124: "silence"}.get(network.run(machine, command).returncode, "refused")


def test_a_machine_behind_a_firewall_dials_out_only_and_a_cut_one_is_alone(machines: Machines) -> None:
    assert dial(machines, "a", "b") == dial(machines, "b", "a") == "reached"
    machines.drop_inbound("a")
    assert dial(machines, "a", "b") == dial(machines, "a", "a") == "reached"
    assert dial(machines, "b", "a") == "silence"
    machines.accept_inbound("a")
    for cut in (("a",), ("a", "b")):
        machines.cut(*cut)
        assert dial(machines, "a", "b") == dial(machines, "b", "a") == "silence"
        machines.heal(*cut)
        assert dial(machines, "b", "a") == "reached"


def test_nothing_is_left() -> None:
    with namespaces("a") as network:
        process, path = network.start("a", ["sleep", "600"]), Path("/run/netns") / network.name("a")
        forked = network.fork("a", ["-m", "timeit", "-n1", "-r1", "__import__('time').sleep(600)"])
        assert path.exists()
    assert process.wait() == -9
    assert not path.exists()
    assert not forked.running()
