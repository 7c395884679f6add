"""Machines for tests: network namespaces on one bridge, each with its own address, firewall and ports.

with namespaces("a", "b", "relay") as network:
    network.drop_inbound("a")                                     # a can dial out, nobody can dial it
    process = network.fork("a", ["-m", "netfleet", "node", str(folder)])  # a forked Python: no import of torch
    network.run("b", ["ip", "address"])                           # any command
    network.cut("a"), network.heal("a")                           # its cable; cut("a", "b"): between these two

`functools.partial(enter, network.name("a"))` is for `before` of `SiteProcesses.start`: that site is then on machine a.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.fork_server import ForkedPython

#: Ports on which somebody may listen: those below the ones that the system gives to clients.
LISTENING = "1-32767"
_NUMBERS = itertools.count()
_CLONE_NEWNET = 0x40000000


def enter(name: str) -> None:
    """Move this process, which must have one thread, into a namespace."""
    with open(f"/run/netns/{name}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {name}")


class Machines:
    """The machines of one test; `namespaces` makes and removes them."""

    def __init__(self, names: Sequence[str]) -> None:
        self._prefix = f"nf-{os.getpid()}-{next(_NUMBERS)}"
        self._addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, start=1)}
        self._forked: list[ForkedPython] = []
        self._started: list[subprocess.Popen[str]] = []
        self._switch = f"{self._prefix}-switch"

    def name(self, machine: str) -> str:
        """The name of its network namespace."""
        return f"{self._prefix}-{list(self._addresses).index(machine)}"

    def address(self, machine: str) -> str:
        return self._addresses[machine]

    def run(self, machine: str, command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command there, to its end; `options` are those of `subprocess.run`."""
        options = {"capture_output": True, "text": True, "timeout": 120, **options}
        return subprocess.run(["ip", "netns", "exec", self.name(machine), *command], **options)

    def start(self, machine: str, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start a command there; `options` are those of `subprocess.Popen`. It is killed with the machines."""
        process = subprocess.Popen(["ip", "netns", "exec", self.name(machine), *command], text=True, **options)
        self._started.append(process)
        return process

    def fork(self, machine: str, arguments: Sequence[str], more: Mapping[str, str] | None = None) -> ForkedPython:
        """What `start` with `python ARGUMENTS` does, without the seconds of importing torch."""
        process = ForkedPython(arguments, more, functools.partial(enter, self.name(machine)))
        self._forked.append(process)
        return process

    def drop_inbound(self, machine: str) -> None:
        """Drop, without an answer, what comes to a port on which somebody may listen, as a firewall does."""
        self._rule("add", machine, "iif", "eth0", "ipproto", "tcp", "dport", LISTENING)

    def accept_inbound(self, machine: str) -> None:
        self._rule("del", machine, "iif", "eth0", "ipproto", "tcp", "dport", LISTENING)

    def cut(self, machine: str, other: str | None = None) -> None:
        """Lose all packets of a machine, or those between two; connections stay open and hang."""
        if other is None:
            _ip("-n", self._switch, "link", "set", self._port(machine), "nomaster")
        else:
            self._between("add", machine, other)

    def heal(self, machine: str, other: str | None = None) -> None:
        if other is None:
            _ip("-n", self._switch, "link", "set", self._port(machine), "master", "bridge")
        else:
            self._between("del", machine, other)

    def _between(self, what: str, *pair: str) -> None:
        for machine, other in (pair, pair[::-1]):
            self._rule(what, machine, "iif", "eth0", "from", self.address(other))

    def _rule(self, what: str, machine: str, *selector: str) -> None:
        _ip("-n", self.name(machine), "rule", what, "pref", "1", *selector, "blackhole")

    def _port(self, machine: str) -> str:
        return f"port{list(self._addresses).index(machine)}"

    def make(self) -> None:
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "bridge", "up", "type", "bridge")
        for machine in self._addresses:
            self._add(machine)

    def _add(self, machine: str) -> None:
        name, port = self.name(machine), self._port(machine)
        _ip("netns", "add", name)
        _ip("link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", port, "netns", self._switch)
        _ip("-n", self._switch, "link", "set", port, "master", "bridge", "up")
        _ip("-n", name, "address", "add", f"{self.address(machine)}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", name, "link", "set", device, "up")
        # What is for this machine is found by the first rule. Ours have to come before it.
        _ip("-n", name, "rule", "add", "pref", "10", "lookup", "local")
        _ip("-n", name, "rule", "del", "pref", "0")

    def remove(self) -> None:
        for process in self._forked:  # one that has only just started is not in its namespace yet
            process.end()
        for started in self._started:
            started.kill()
            started.communicate()  # closes its pipes
        for name in [self._switch, *map(self.name, self._addresses)]:
            _remove(name)


@contextlib.contextmanager
def namespaces(*names: str) -> Iterator[Machines]:
    """Machines with these names, each of which reaches all others; what runs on them is killed at the end."""
    _remove_those_of_dead_processes()
    machines = Machines(names)
    try:
        try:
            machines.make()
        except (OSError, RuntimeError) as error:
            pytest.skip(f"this machine allows no network namespaces: {error}")
        yield machines
    finally:
        machines.remove()


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def _remove(name: str) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        for process in _ip("netns", "pids", name).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        _ip("netns", "del", name)


def _remove_those_of_dead_processes() -> None:
    """A test that was killed could not clean up."""
    for path in Path("/run/netns").glob("nf-*-*"):
        if not Path("/proc", path.name.split("-")[1]).exists():
            _remove(path.name)
