"""Two sites on machines of their own (network namespaces), one of which drops what comes in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from netfleet.runs.config import experiment
from netfleet.sites.planning.nodes_file import NodeEntry, NodesFile
from netfleet.sites.planning.plan import make_plan
from netfleet.sites.planning.plan_files import write_plan
from support.namespaces import namespaces
from support.site_peers import PATH


def findings(said: str) -> dict[str, dict[str, Any]]:
    """Those of a report in JSON, by kind."""
    return {each["check"]: each for each in json.loads(said)["findings"]}


@pytest.mark.slow
def test_a_firewall_that_drops_inbound_connections_is_named_at_both_ends(tmp_path: Path) -> None:
    with namespaces("a", "b") as network:
        whole = experiment({**PATH, "topology": {"kind": "path", "workers": 2}})
        nodes = NodesFile(tuple(NodeEntry(f"s{i}", f"{network.address(m)}:7400") for i, m in enumerate("ab")))
        write_plan(make_plan(whole, nodes), tmp_path / "plan", whole, nodes)
        network.drop_inbound("a")
        doctor = ["-m", "netfleet", "doctor", "--wait", "60", "--json"]
        running = [network.fork(m, [*doctor, str(tmp_path / "plan" / f"s{i}")]) for i, m in enumerate("ab")]
        (code_a, said_a, _), (code_b, said_b, _) = (process.wait() for process in running)
    assert (code_a, code_b) == (0, 0)  # one open end is enough
    at_a, at_b = findings(said_a), findings(said_b)
    assert set(at_a) == {"inbound"}
    assert at_a["inbound"]["about"] == "s1"
    assert at_a["inbound"]["cure"].startswith("here: open TCP 7400 for s1 in the firewall")
    assert set(at_b) == {"blocked"}
    assert at_b["blocked"]["about"] == "s0"
    assert "a firewall drops the connection" in at_b["blocked"]["what"]
    (link,) = json.loads(said_a)["neighbours"]
    assert (link["to"], link["back"]) == ("yes", "no")
    (link,) = json.loads(said_b)["neighbours"]
    assert (link["to"], link["back"]) == ("by reverse", "yes")
