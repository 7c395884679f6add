"""Where a program listens."""

import errno
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

from netfleet.sites.planning.nodes_file import parse_address


class Listening(NamedTuple):
    """A family of addresses, and one of them."""

    family: socket.AddressFamily
    where: Any  # as `socket.bind` takes it


def has_ipv6() -> bool:
    """Whether the kernel has IPv6; many hardened machines start without it."""
    try:
        socket.socket(socket.AF_INET6).close()
    except OSError as error:
        return error.errno != errno.EAFNOSUPPORT
    return True


def listening(address: str, has_ipv6: Callable[[], bool] = has_ipv6) -> Listening:
    """Where to listen for `listen = "HOST:PORT"`; raises OSError.

    [::] stands for all interfaces. Without IPv6 these are 0.0.0.0, where gRPC listens then too.
    """
    host, port = parse_address(address, "listen")
    if host == "::" and not has_ipv6():
        host = "0.0.0.0"
    family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return Listening(family, where)
