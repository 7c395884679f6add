"""Serves the status of a site in the format that Prometheus reads."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily as Counter
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import Metric

from netfleet.errors import ConfigError
from netfleet.sites.operations.logs import Log
from netfleet.sites.operations.status import LinkStatus, SiteStatus
from netfleet.sites.planning.nodes_file import parse_address

_RECORD = ("accuracy", "loss", "train_loss", "grad_norm2", "eta", "epsilon")
#: Numbers about each neighbour.
_LINK: tuple[tuple[type[Gauge | Counter], str, str, Callable[[LinkStatus], float | None]], ...] = (
    (Gauge, "neighbour_round", "the round of a neighbour at its last sign of life", lambda link: link.round),
    (Gauge, "neighbour_silent_seconds", "time since a neighbour's last sign of life", lambda link: link.heard),
    (Gauge, "neighbour_waited_for", "1 while this site waits for a neighbour", lambda link: bool(link.waiting)),
    (Gauge, "neighbour_lost", "1 if a neighbour is lost", lambda link: link.lost is not None),
    (Counter, "sent_bytes", "bytes sent since the start", lambda link: link.sent),
    (Counter, "received_bytes", "bytes received since the start", lambda link: link.received),
)


class Collector:
    """Reads the status at every scrape."""

    def __init__(self, status: Callable[[], SiteStatus], log: Log) -> None:
        self._status, self._log = status, log

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        finished, days = status.state == "finished", status.certificate_days
        yield Gauge("netfleet_round", "rounds done", value=status.round)
        yield Gauge("netfleet_rounds", "rounds of the training", value=status.rounds)
        yield Gauge("netfleet_finished", "1 when the training is over", value=finished)
        yield Gauge("netfleet_certificate_days", "days until a certificate expires", value=days)
        yield Gauge("netfleet_alarm", "alarms that nobody has looked at", value=len(status.alarms))
        wait = Gauge("netfleet_wait_seconds", "the current wait; the site that is its cause", labels=["cause", "state"])
        if status.wait is not None:
            wait.add_metric([status.wait.name, status.wait.state], status.wait.seconds)
        yield wait
        for name, about, seconds in (
            ("round", "seconds for a round", status.round_seconds),
            ("left", "seconds until the training is over, at this pace", status.left_seconds),
        ):
            yield Gauge(f"netfleet_{name}_seconds", about, value=seconds)
        yield Gauge("netfleet_measured_round", "the round of the last evaluation", value=status.record.get("round"))
        measured = Gauge("netfleet_measured", "the last evaluation of this site's model", labels=["name"])
        for name in _RECORD:
            if (value := status.record.get(name)) is not None:
                measured.add_metric([name], value)
        yield measured
        for family, name, about, read in _LINK:
            metric = family(f"netfleet_{name}", about, labels=["neighbour"])
            for link in status.neighbours:
                if (number := read(link)) is not None:
                    metric.add_metric([link.name], float(number))
            yield metric
        refused = Counter("netfleet_refused", "rejections", labels=["who", "why"])
        for (who, why), count in list(self._log.refusals.items()):
            refused.add_metric([who, why], count)
        yield refused


def expose(
    status: Callable[[], SiteStatus], log: Log, address: str, record: Callable[[str], object] = lambda address: None
) -> None:
    """Serve the numbers over HTTP to everyone who can reach the address; they are not secret.

    `record` is called with the address first.
    """
    host, port = parse_address(address, "--metrics")
    registry = CollectorRegistry()
    registry.register(Collector(status, log))
    record(address)
    try:
        start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigError(f"--metrics {address}: {error}; choose another port") from None
    log.event("metrics", url=f"http://{address}/metrics")
