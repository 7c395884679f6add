"""Serves the status of a site in the format that Prometheus reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from netfleet.errors import ConfigError
from netfleet.sites.operations.logs import Log
from netfleet.sites.operations.status import LinkStatus, SiteStatus
from netfleet.sites.planning.nodes_file import parse_address

_RECORD = ("accuracy", "loss", "train_loss", "grad_norm2", "eta")
_LINK_GAUGES: tuple[tuple[str, str, Callable[[LinkStatus], float | None]], ...] = (
    ("round", "the round of a neighbour at its last sign of life", lambda link: link.round),
    ("silent_seconds", "time since a neighbour's last sign of life", lambda link: link.heard),
    ("waited_for", "1 while this site waits for a neighbour", lambda link: bool(link.waiting)),
    ("lost", "1 if a neighbour is lost", lambda link: link.lost is not None),
)


class Collector:
    """Reads the status at every scrape."""

    def __init__(self, status: Callable[[], SiteStatus], log: Log) -> None:
        self._status, self._log = status, log

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        finished, days = status.state == "finished", status.certificate_days
        yield GaugeMetricFamily("netfleet_round", "rounds done", value=status.round)
        yield GaugeMetricFamily("netfleet_rounds", "rounds of the training", value=status.rounds)
        yield GaugeMetricFamily("netfleet_finished", "1 when the training is over", value=finished)
        yield GaugeMetricFamily("netfleet_certificate_days", "days until a certificate expires", value=days)
        measured = GaugeMetricFamily("netfleet_measured", "the last evaluation of this site's model", labels=["name"])
        for name in _RECORD:
            if (value := status.record.get(name)) is not None:
                measured.add_metric([name], value)
        yield measured
        yield from _links(status.neighbours)
        refused = CounterMetricFamily("netfleet_refused", "rejections", labels=["who", "why"])
        for (who, why), count in list(self._log.refusals.items()):
            refused.add_metric([who, why], count)
        yield refused


def _links(links: Sequence[LinkStatus]) -> Iterator[Metric]:
    """Each neighbour's round, silence and bytes, and whether this site waits for it or has lost it."""
    for name, about, read in _LINK_GAUGES:
        gauge = GaugeMetricFamily(f"netfleet_neighbour_{name}", about, labels=["neighbour"])
        for link in links:
            if (value := read(link)) is not None:
                gauge.add_metric([link.name], float(value))
        yield gauge
    sent = CounterMetricFamily("netfleet_sent_bytes", "bytes sent since the start", labels=["neighbour"])
    received = CounterMetricFamily("netfleet_received_bytes", "bytes received since the start", labels=["neighbour"])
    for link in links:
        sent.add_metric([link.name], link.sent)
        received.add_metric([link.name], link.received)
    yield from (sent, received)


def expose(status: Callable[[], SiteStatus], log: Log, address: str) -> None:
    """Serve the numbers over HTTP to everyone who can reach the address; they are not secret."""
    host, port = parse_address(address, "--metrics")
    registry = CollectorRegistry()
    registry.register(Collector(status, log))
    try:
        start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigError(f"--metrics {address}: {error}; choose another port") from None
    log.event("metrics", url=f"http://{address}/metrics")
