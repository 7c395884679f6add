"""Commands that a script starts by name, in processes forked from one that has loaded netfleet (`fork_server.py`).

`netfleet`, `torchrun` and `python` in `folder` are small clients: they send their arguments, variables and standard
streams to a server, which forks, and end as the forked process ends. A signal goes on to it. What they cannot do this
way (`python -c`) they leave to the real Python. `netfleet up` and torchrun start their processes with `sys.executable`,
which is that client there.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from support.fork_server import SERVER, run_here

CLIENT = """#!{python} -IS
import json, os, signal, socket, struct, sys

arguments = {prefix} + sys.argv[1:]
while arguments[:1] == ["-u"]:
    del arguments[0]
if not arguments or arguments[0].startswith("-") and arguments[0] != "-m":
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
socket.send_fds(server, [b"+"], [0, 1, 2])
asked = json.dumps([arguments, dict(os.environ), os.getcwd()]).encode()
server.sendall(struct.pack("<q", len(asked)) + asked)
answers = server.makefile("r")
pid = int(answers.readline())
for each in (signal.SIGTERM, signal.SIGINT):
    signal.signal(each, lambda number, frame: os.kill(pid, number))
code = int(answers.readline())
if code < 0:
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""

COMMANDS = {"python": [], "netfleet": ["-m", "netfleet"], "torchrun": ["-m", "torch.distributed.run"]}


@contextlib.contextmanager
def forked_commands() -> Iterator[Path]:
    """A folder with them, for the PATH; all that they started and that still runs is killed."""
    folder = Path(tempfile.mkdtemp(prefix="forked-"))
    address = str(folder / "server")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        for name, prefix in COMMANDS.items():
            (folder / name).write_text(CLIENT.format(python=sys.executable, prefix=prefix, address=address))
            (folder / name).chmod(0o755)
        server = SERVER.Process(target=_serve, args=(listener, str(folder / "python")))
        server.start()
    try:
        yield folder
    finally:
        server.terminate()  # it ends its children
        server.join()
        shutil.rmtree(folder)


def _serve(listener: socket.socket, python: str) -> None:
    """Fork for each client; tell it how its process ended, and kill the process of a client that is gone."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    clients: dict[int, socket.socket] = {}
    woken = _wake_when_a_child_ends()
    try:
        while True:
            ready = _ready(listener.fileno(), woken, *(client.fileno() for client in clients.values()))
            if woken in ready:
                os.read(woken, 1000)
            for pid, client in list(clients.items()):
                if client.fileno() in ready:
                    os.kill(pid, signal.SIGKILL)
                if (code := _ended(pid)) is not None:
                    with contextlib.suppress(OSError):
                        client.sendall(f"{code}\n".encode())
                    clients.pop(pid).close()
            if listener.fileno() in ready:
                client, _ = listener.accept()
                if (pid := os.fork()) == 0:
                    _be_client(client, python)
                clients[pid] = client
    finally:
        for pid in clients:
            os.kill(pid, signal.SIGKILL)


def _wake_when_a_child_ends() -> int:
    """A file descriptor that can be read then."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    return woken


def _ready(listener: int, woken: int, *clients: int) -> set[int]:
    """Who has something to say, once someone has; clients only when they are gone."""
    waits = select.poll()
    for file in (listener, woken):
        waits.register(file, select.POLLIN)
    for file in clients:
        waits.register(file, 0)  # the end of a connection is always told
    return {file for file, _ in waits.poll()}


def _ended(pid: int) -> int | None:
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def _be_client(client: socket.socket, python: str) -> None:
    """Do what a client wants, with its streams."""
    signal.set_wakeup_fd(-1)
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(each, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code = 1
    try:
        _, streams, _, _ = socket.recv_fds(client, 1, 3)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        file = client.makefile("rwb")
        arguments, environment, folder = json.loads(file.read(*struct.unpack("<q", file.read(8))))
        file.write(f"{os.getpid()}\n".encode())
        file.flush()
        sys.executable = python
        sys.stdin = os.fdopen(0, closefd=False)  # multiprocessing has closed the one before
        run_here(arguments, environment, folder)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as at any end
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
