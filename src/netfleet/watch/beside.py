"""A page beside a run: another process, which ends after the run, also if the run is killed."""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from netfleet.errors import ConfigError

#: Seconds that the page's process has at the end, to show it to its viewers.
_END = 10.0


def url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def listen(host: str, port: int | None, usual: int) -> socket.socket:
    """A socket that listens at a port; without one, at the usual one or, where that is taken, at any that is free."""
    if port is not None and not 0 <= port <= 65_535:
        raise ConfigError(f"the port must be a number from 0 to 65535, got {port}; 0 is any that is free")
    for each in [usual, 0] if port is None else [port]:
        with contextlib.suppress(OSError):
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return socket.create_server((host, each), family=family, backlog=64)
    advice = "choose another --port, or --port 0 for any that is free"
    raise ConfigError(
        f"cannot serve at {host}:{port}: the port is taken, or the address is not this machine's; {advice}"
    )


@contextmanager
def page_beside(folder: Path, listening: socket.socket) -> Iterator[None]:
    """Within the context, another process serves the page of a folder at the socket."""
    number = listening.fileno()
    command = [sys.executable, "-m", "netfleet", "watch", str(folder), "--socket", str(number)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[number]) as process:
        listening.close()
        try:
            yield
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(_END)
            except subprocess.TimeoutExpired:
                process.kill()
