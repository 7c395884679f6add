"""What an exchange costs a site besides the way of its bytes: signatures, checks, TLS, the record.

Two sites of a tiny plan train here, in threads, as real sites do: over mutual TLS, with records and checkpoints.
"""

import socket
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import torch

from netfleet.algorithms.build import make_algorithm
from netfleet.privacy.receipts.lines import Line, Sent
from netfleet.privacy.receipts.record import read_record
from netfleet.runs.config import experiment
from netfleet.runs.progress import Quiet
from netfleet.sites.costs.rounds import ModelSize, rounds_of
from netfleet.sites.costs.speed import measure_saving
from netfleet.sites.operations.logs import Log
from netfleet.sites.planning.certificates import load_identity
from netfleet.sites.planning.folders import load_site
from netfleet.sites.planning.nodes_file import NodeEntry, NodesFile
from netfleet.sites.planning.plan import make_plan
from netfleet.sites.planning.plan_files import write_plan
from netfleet.sites.runtime.runner import SiteRunner

#: Rounds of the trial, and those at its beginning that do not count.
_ROUNDS, _FIRST = 25, 5
_METHOD = {"kind": "net-fleet", "K": 1, "eta": 0.01}
_TABLE = {
    "rounds": _ROUNDS,
    "topology": {"kind": "complete", "workers": 2},
    "problem": {"kind": "quadratics", "d": 10},
    "algorithms": [_METHOD],
    "evaluation": {"every": _ROUNDS, "gradient": False},
}


def measure_exchange(folder: Path) -> float:
    """Seconds for each neighbour in each exchange, on the disk of this folder."""
    with tempfile.TemporaryDirectory(prefix=".rehearsal-", dir=folder) as place:
        plan, settings = Path(place) / "plan", experiment(_TABLE)
        names = ("a", "b")
        addresses = [f"127.0.0.1:{port}" for port in _free_ports(len(names))]
        nodes = tuple(NodeEntry(name, at, listen=at) for name, at in zip(names, addresses, strict=True))
        write_plan(make_plan(settings, NodesFile(nodes)), plan, settings, NodesFile(nodes))
        _run_all([plan / name for name in names])
        times = [line.time for line in read_record(plan / names[0]) if isinstance(line, Line) and _is_message(line)]
        round_seconds = (times[-1] - times[_FIRST]).total_seconds() / (len(times) - 1 - _FIRST)
        made = rounds_of(make_algorithm(_METHOD), ModelSize((torch.Size((10,)),)), _ROUNDS)
        saving = measure_saving(made, 1, folder)
        return max(round_seconds - saving, 0.0)


def _is_message(line: Line) -> bool:
    return isinstance(line.entry, Sent) and line.entry.what == "message"


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _run_all(folders: Sequence[Path]) -> None:
    """Train to the end; the first error of a site is raised."""
    errors: list[BaseException] = []

    def run(folder: Path) -> None:
        try:
            site, settings = load_site(folder)
            with (folder / "log").open("w") as file:
                runner = SiteRunner(folder, site, settings, load_identity(folder, site.name), Log(site.name, file), 5.0)
                runner.run(Quiet())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(folder,), daemon=True) for folder in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive() and not errors:  # the others would wait for one that has failed
            thread.join(timeout=0.1)
    if errors:
        raise errors[0]
