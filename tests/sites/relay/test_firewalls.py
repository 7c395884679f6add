"""Sites behind firewalls, each on a machine of its own, end with the same bits as if all could dial each other."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from netfleet.cli import main
from netfleet.runs.config import experiment
from netfleet.sites.network import grpc_channels, inbound, links
from netfleet.sites.planning.nodes_file import NodeEntry, NodesFile
from netfleet.sites.planning.plan import make_plan
from netfleet.sites.planning.plan_files import write_plan
from support.fork_server import ForkedPython
from support.namespaces import Machines, enter, namespaces
from support.site_processes import SiteProcesses, free_ports, hold_at, site_group
from support.site_settings import simulated

ROUNDS = 40
TABLE: dict[str, Any] = {
    "rounds": ROUNDS,
    "topology": {"kind": "complete", "workers": 3},
    "problem": {"kind": "quadratics", "d": 6},
    "algorithms": [{"kind": "net-fleet", "K": 2, "eta": 0.05}],
    "engine": {"dtype": "float64"},
}


def start_on(namespace: str, t: int = 0, gates: Any = None) -> None:
    """Before a site starts: it moves to its machine, loses no time, and waits after round t if there are gates."""
    enter(namespace)
    grpc_channels.HANDSHAKE_TIMEOUT, inbound.GRACE, links.DIRECT_FIRST = 1.0, 0.5, 0.5
    if gates is not None:
        hold_at(t, gates)


def start(sites: SiteProcesses, network: Machines, name: str, hold: int = 0) -> None:
    gates = sites.gates(name) if hold else None
    sites.start(name, before=functools.partial(start_on, network.name(name), hold, gates))


def start_relay(sites: SiteProcesses, network: Machines) -> ForkedPython:
    return network.fork("relay", ["-m", "netfleet", "relay", str(sites.folder / "relay"), "--log", "json"])


@pytest.mark.slow
def test_one_open_end_or_a_relay_is_enough(tmp_path: Path) -> None:
    """s0 is planned without an address; s2 is planned with one, but a firewall drops what comes to it."""
    with namespaces("s0", "s1", "s2", "relay") as network:
        address = {name: f"{network.address(name)}:7400" for name in ("s1", "s2", "relay")}
        open_ = [NodeEntry(name, address[name]) for name in ("s1", "s2")]
        nodes = NodesFile((NodeEntry("s0", reachable=False), *open_), relay=address["relay"])
        made = experiment(TABLE)
        plan = make_plan(made, nodes)
        write_plan(plan, tmp_path / "plan", made, nodes)
        network.drop_inbound("s0")
        network.drop_inbound("s2")
        with site_group(tmp_path, plan) as sites:
            relay = start_relay(sites, network)
            start(sites, network, "s0")
            start(sites, network, "s1")
            start(sites, network, "s2", hold=3)
            sites.until(lambda: len(sites.events("s2", "no_inbound")) == 2)
            assert {event["neighbour"] for event in sites.events("s2", "no_inbound")} == {"s0", "s1"}
            asked = ["-m", "netfleet", "status", str(sites.folder), "--json"]
            code, said, _ = network.fork("s1", asked).wait()
            assert code == 0, said
            assert '"no_inbound": ["s0", "s1"]' in said
            sites.release("s2")
            sites.reach(10, "s0")
            relay.kill()
            sites.kill("s0")
            relay = start_relay(sites, network)
            start(sites, network, "s0")
            assert sites.wait("s0", "s1", "s2") == {"s0": 0, "s1": 0, "s2": 0}
            assert not sites.events("s0", "no_inbound")  # its plan says so
            expected = simulated(TABLE)
            for i, name in enumerate(sites.names):
                assert torch.equal(sites.model(name)["x"], expected[i])


@pytest.mark.slow
def test_a_trial_on_one_machine_starts_the_relay(tmp_path: Path, capsys: Any) -> None:
    table = {**TABLE, "rounds": 3, "topology": {"kind": "ring", "workers": 2}}
    (port,) = free_ports(1)
    entries = NodeEntry("s0", reachable=False), NodeEntry("s1", reachable=False)
    made, nodes = experiment(table), NodesFile(entries, relay=f"127.0.0.1:{port}")
    write_plan(make_plan(made, nodes), tmp_path / "plan", made, nodes)
    assert main(["up", str(tmp_path / "plan")]) == 0
    assert capsys.readouterr().out.count("model.safetensors") == 2
    log = (tmp_path / "plan" / "relay" / "node.log").read_text()
    assert '"event": "connected", "dialled_by": "s0", "to": "s1"' in log
    assert '"event": "stopped"' in log
    expected = simulated(table)
    for i in range(2):
        found = load_file(tmp_path / "plan" / f"s{i}" / "model.safetensors")["x"]
        assert torch.equal(found, expected[i])
