"""What a site says of itself, in the format that Prometheus reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from netfleet.errors import ConfigError
from netfleet.sites.operations.logs import Log
from netfleet.sites.operations.report import Report
from netfleet.sites.planning.nodes_file import parse_address

_RECORD = ("accuracy", "loss", "train_loss", "grad_norm2", "eta")
_LINK_GAUGES: tuple[tuple[str, str, Callable[[dict[str, Any]], float | None]], ...] = (
    ("round", "the round that a neighbour was last heard of in", lambda link: link["round"]),
    ("silent_seconds", "time since a neighbour was heard of", lambda link: link["heard"]),
    ("waited_for", "1 while a neighbour is waited for", lambda link: bool(link["waiting"])),
    ("lost", "1 if a neighbour is gone", lambda link: link["lost"] is not None),
)


class Collector:
    """Reads the report anew at every scrape."""

    def __init__(self, report: Report, log: Log) -> None:
        self.report, self.log = report, log

    def collect(self) -> Iterator[Metric]:
        table = self.report.table()
        yield _gauge("netfleet_round", "rounds that are done", table["round"])
        yield _gauge("netfleet_rounds", "rounds of the training", table["rounds"])
        yield _gauge("netfleet_finished", "1 when the training is over", float(table["state"] == "finished"))
        yield _gauge("netfleet_certificate_days", "days until a certificate ends", table["certificate_days"])
        measured = GaugeMetricFamily("netfleet_measured", "the last evaluation of this site's model", labels=["name"])
        for name in _RECORD:
            if table["record"].get(name) is not None:
                measured.add_metric([name], table["record"][name])
        yield measured
        yield from _links(table["neighbours"])
        refused = CounterMetricFamily("netfleet_refused", "what was not taken", labels=["who", "why"])
        for (who, why), count in list(self.log.refusals.items()):
            refused.add_metric([who, why], count)
        yield refused


def _gauge(name: str, about: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, about, value=value)


def _links(links: list[dict[str, Any]]) -> Iterator[Metric]:
    """Each neighbour's round, silence, bytes, and whether it is waited for or lost."""
    for name, about, read in _LINK_GAUGES:
        gauge = GaugeMetricFamily(f"netfleet_neighbour_{name}", about, labels=["neighbour"])
        for link in links:
            if (value := read(link)) is not None:
                gauge.add_metric([link["name"]], float(value))
        yield gauge
    for key in ("sent", "received"):
        counter = CounterMetricFamily(f"netfleet_{key}_bytes", f"bytes {key} since the start", labels=["neighbour"])
        for link in links:
            counter.add_metric([link["name"]], link[key])
        yield counter


def expose(report: Report, log: Log, address: str) -> None:
    """Serve the numbers over HTTP, to whoever can reach the address; it has no secrets and takes no orders."""
    host, port = parse_address(address, "--metrics")
    registry = CollectorRegistry()
    registry.register(Collector(report, log))
    try:
        start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigError(f"--metrics {address}: {error}; choose another port") from None
    log.event("metrics", url=f"http://{address}/metrics")
