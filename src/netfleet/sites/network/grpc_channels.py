"""gRPC's connections and ports with our limits, over mutual TLS; and its errors in netfleet's words."""

from collections.abc import Iterator

import grpc
import grpc.aio

from netfleet.errors import CertificateError, ConfigError, FrameError, TransportError
from netfleet.sites.network.grpc_service import LARGEST
from netfleet.sites.network.pauses import growing
from netfleet.sites.network.transport import Busy
from netfleet.sites.operations.logs import printable
from netfleet.sites.operations.tls_refusals import NOT_PINNED, OTHER_AUTHORITY, failure
from netfleet.sites.planning.certificates import Identity

Options = list[tuple[str, int]]
#: Seconds for a TLS handshake; a connection that takes longer is closed. As many for a connection without an answer.
HANDSHAKE_TIMEOUT = 10.0
#: Pauses before a connection is tried again grow from the first to the second, in seconds.
RECONNECT = (0.1, 1.0)
_BOTH: Options = [
    ("grpc.max_receive_message_length", LARGEST),
    ("grpc.max_send_message_length", LARGEST),
    ("grpc.max_metadata_size", 8192),
    ("grpc.absolute_max_metadata_size", 16384),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),  # a site that computes for hours must learn that a connection is dead
]
#: Bounds what a client without a certificate can use: connections (fewer than the process may open files) and time.
_SERVER: Options = [
    *_BOTH,
    ("grpc.so_reuseport", 0),
    ("grpc.max_concurrent_streams", 16),
    ("grpc.max_allowed_incoming_connections", 400),
    ("grpc.max_connection_idle_ms", 600_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
]
#: What gRPC says to callers when its server stops.
_STOPS = "Cancelling all calls"
#: Of a connection that is used for a status only, which has 4 MiB at most.
STATUS_OPTIONS: Options = [("grpc.max_receive_message_length", 4 << 20)]


def link_options() -> Options:
    """Of a connection to a neighbour, which is kept."""
    first, most = (_milliseconds(seconds) for seconds in RECONNECT)
    return [
        *_BOTH,
        ("grpc.enable_retries", 0),
        ("grpc.initial_reconnect_backoff_ms", first),
        ("grpc.max_reconnect_backoff_ms", most),
        ("grpc.min_reconnect_backoff_ms", _milliseconds(HANDSHAKE_TIMEOUT)),
    ]


def server_options() -> Options:
    return [*_SERVER, ("grpc.server_handshake_timeout_ms", _milliseconds(HANDSHAKE_TIMEOUT))]


def _milliseconds(seconds: float) -> int:
    return round(1000 * seconds)


def reconnect_pauses() -> Iterator[float]:
    """Pauses of whoever tries again what needs a connection."""
    return growing(*RECONNECT)


def open_channel(identity: Identity, name: str, target: str, roots: bytes, options: Options) -> grpc.aio.Channel:
    """A channel to a site with this name, which TLS knows by the certificates `roots`; it connects when it is used."""
    named = [*options, ("grpc.ssl_target_name_override", name)]
    credentials = grpc.ssl_channel_credentials(roots, identity.key, identity.certificate)
    return grpc.aio.secure_channel(target, credentials, options=named)


def listen(server: grpc.aio.Server, identity: Identity, address: str) -> int:
    """Let a server listen at an address; returns the port."""
    credentials = grpc.ssl_server_credentials(
        [(identity.key, identity.certificate)], identity.ca, require_client_auth=True
    )
    try:
        return int(server.add_secure_port(address, credentials))
    except RuntimeError as error:
        raise ConfigError(
            f"cannot listen on {address} ({error}); free the port, or change listen in site.toml"
        ) from None


def translated(error: grpc.aio.AioRpcError, pinned: bool = False) -> TransportError:
    """Why a call failed; the other site is the subject. `pinned` says that TLS knows it by its own certificate."""
    words, code = printable((error.details() or error.code().name).splitlines()[0]), error.code()
    if words == _STOPS:
        return TransportError("is stopping")
    if "message larger than max" in words:
        return FrameError(f"an oversized frame: more than {LARGEST} bytes")
    if code == grpc.StatusCode.UNAVAILABLE:
        if (why := failure(words)) is not None:
            if pinned and why == OTHER_AUTHORITY:
                return CertificateError(f"answers with {NOT_PINNED}; if it was renewed: netfleet pin")
            return TransportError(f"answers with {why}")
        last = words.rpartition("last error: ")[2].removeprefix("UNKNOWN: ")[-160:]
        return TransportError(f"cannot be reached ({last})")
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED:
        return Busy(f"refuses: {words}")
    return TransportError(f"refuses: {words}" if code == grpc.StatusCode.PERMISSION_DENIED else words)
