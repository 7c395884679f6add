"""Sites that are lost, leave, come back or come anew: the sum over those who are there stays exact."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch

from netfleet import make_topology, simulate
from netfleet.cli import main
from netfleet.privacy.receipts.lines import Membership, Sent
from netfleet.problems.module import ModuleProblem
from netfleet.runs.build import build_setting, build_topology
from netfleet.runs.config import experiment
from netfleet.sites.operations.status_table import components, invariant
from support.receipts import check_records, entries
from support.site_processes import (
    SiteProcesses,
    ask_shortly,
    die_before_the_checkpoint,
    die_before_the_links,
    die_when_someone_has_left,
    free_ports,
    site_processes,
)
from support.site_settings import DIGITS, QUADRATICS, M, check_optimum, gap, optimum, quadratics

pytestmark = pytest.mark.slow

#: Six sites that stay in one piece without any two of them.
SIX = {"kind": "watts-strogatz", "p": 0.0, "workers": 6, "weights": "metropolis"}
#: Noise on links until after sites were lost and came back; then the models come together.
NOISY = {**QUADRATICS, "rounds": 160, "privacy": {"link_noise": 0.3, "exact_rounds": 120}}
with_and_without_noise = pytest.mark.parametrize("table", [QUADRATICS, NOISY], ids=["plain", "link noise"])
PATIENCE = 1.0  # a process that runs never fails to answer, however slow the machine is


def numbers(names: list[str]) -> list[int]:
    return [int(name[1:]) for name in names]


@with_and_without_noise
def test_two_of_six_lost_for_good(tmp_path: Path, table: dict[str, Any]) -> None:
    dice = random.Random(3)
    with site_processes(
        tmp_path, {**table, "rounds": max(120, table["rounds"]), "topology": SIX}, 6, PATIENCE
    ) as sites:
        deaths = {victim: dice.randint(5, 20) for victim in dice.sample(sites.names, 2)}
        sites.start(hold=deaths)
        for victim, t in sorted(deaths.items(), key=lambda death: death[1]):
            sites.reach(t, victim)
            sites.kill(victim)
        rest = [name for name in sites.names if name not in deaths]
        assert set(sites.wait(*rest).values()) == {0}
        assert gap(sites, rest) < 1e-12
        check_optimum(sites, rest, optimum(quadratics(6), numbers(rest)), atol=1e-8)
        lost = [event for name in rest for event in sites.events(name, "lost")]
        assert {event["neighbour"] for event in lost} == set(deaths)
        assert all("patience: cannot be reached (" in event["why"] for event in lost)


def test_accuracy_recovers_when_two_of_six_are_lost(tmp_path: Path) -> None:
    problem = {**DIGITS["problem"], "partition": {"kind": "dirichlet", "alpha": 0.5}}
    method = {"kind": "net-fleet", "K": 4, "eta": 0.1}
    table = {**DIGITS, "problem": problem, "algorithms": [method], "rounds": 60, "topology": SIX}
    whole = build_setting(experiment(table), 0)
    rest = [i for i in range(6) if i not in (2, 5)]
    problem = ModuleProblem(whole.problem.model, whole.problem.data, [whole.problem.parts[i] for i in rest], batch=16)
    graph = nx.convert_node_labels_to_integers(whole.topology.graph.subgraph(rest))
    alone = simulate(method, topology=make_topology(graph, weights="metropolis"), problem=problem, rounds=60)
    with site_processes(tmp_path, table, 6, PATIENCE) as sites:
        deaths = {"s2": 8, "s5": 16}
        sites.start(hold=deaths)
        for victim, t in deaths.items():
            sites.reach(t, victim)
            sites.kill(victim)
        names = [f"s{i}" for i in rest]
        assert set(sites.wait(*names).values()) == {0}
        assert gap(sites, names) < 1e-12
        mean = torch.stack([sites.state(name)["x"] for name in names]).mean(dim=0)
        accuracy = whole.problem.evaluate(mean).accuracy.item()
        before = [record["accuracy"] for name in names for record in sites.history(name) if record["round"] == 8]
        assert accuracy > max(max(before) + 0.2, alone.last["accuracy"] - 0.03)  # as without them from the start


@with_and_without_noise
def test_a_site_that_was_dropped_says_so_and_comes_back(tmp_path: Path, table: dict[str, Any]) -> None:
    with site_processes(tmp_path, table, M, PATIENCE) as sites:
        sites.start(hold={"s3": 10, "s1": 20})  # the others are still there when s3 comes back
        sites.reach(10, "s3")
        sites.kill("s3")
        neighbours = ("s0", "s2")
        sites.until(lambda: all(sites.events(name, "lost") for name in neighbours))
        sites.start("s3")
        assert sites.wait("s3") == {"s3": 2}
        told = {event["neighbour"]: event["why"] for event in sites.events("s3", "lost")}
        assert told == dict.fromkeys(neighbours, "has dropped this site")
        assert "--rejoin" in sites.tail("s3")
        sites.start("s3", options=("--rejoin",))
        sites.until(lambda: bool(sites.events("s3", "joined")))
        sites.release()
        assert set(sites.wait().values()) == {0}
        assert gap(sites, sites.names) < 1e-12
        check_optimum(sites, sites.names, optimum(quadratics(), list(range(M))))
        rounds = [record["round"] for record in sites.history("s3")]
        assert rounds == sorted(set(rounds))
        check_records(sites.folders())
        assert changes(sites, "s0") == [("lost", "s3"), ("returned", "s3")]
        assert changes(sites, "s3") == [("lost", "s0"), ("lost", "s2"), ("rejoined", "s3")]


def changes(sites: SiteProcesses, name: str) -> list[tuple[str, str]]:
    """What a site's record says about its neighbourhood."""
    return [(change.event, change.site) for change in entries(sites.folder / name, Membership)]


def half_a_return(sites: SiteProcesses, accident: Any) -> None:
    """s3 agrees with its neighbours on coming back, and dies before it can."""
    files = [sites.folder / name / "links.json" for name in ("s0", "s2")]
    before = [path.read_text() if path.exists() else "" for path in files]
    sites.kill("s3")
    sites.start("s3", options=("--rejoin",), before=accident)
    assert sites.wait("s3") == {"s3": -9}
    assert all(old != path.read_text() for old, path in zip(before, files, strict=True))


@with_and_without_noise
def test_a_site_comes_back_without_its_disk_and_a_state_from_before_a_return_is_fenced(
    tmp_path: Path, table: dict[str, Any]
) -> None:
    with site_processes(tmp_path, table, M) as sites:  # nobody's patience ever ends: s3 is not dropped
        sites.start(hold={"s3": 10, "s1": 20})
        sites.reach(10, "s3")
        sites.kill("s3")
        for path in sorted((sites.folder / "s3" / "run").iterdir()):
            path.unlink()
        sites.start("s3", options=("--rejoin",))
        sites.reach(20, *sites.names)
        assert all(sites.events(name, "rejoins") for name in ("s0", "s2"))
        half_a_return(sites, die_before_the_links)
        sites.start("s3")  # from its old disk, which knows nothing of the new links
        assert sites.wait("s3") == {"s3": 2}
        assert {event["why"] for event in sites.events("s3", "lost")} == {"has dropped this site"}
        sites.start("s3", options=("--rejoin",))
        sites.release()
        assert set(sites.wait().values()) == {0}
        assert gap(sites, sites.names) < 1e-12
        check_optimum(sites, sites.names, optimum(quadratics(), list(range(M))))


@with_and_without_noise
def test_half_a_return_goes_on_from_the_old_state_without_its_old_links(tmp_path: Path, table: dict[str, Any]) -> None:
    with site_processes(tmp_path, table, M) as sites:
        sites.start(hold={"s1": 20})
        sites.reach(20, *sites.names)
        half_a_return(sites, die_before_the_checkpoint)
        sites.start("s3")
        sites.release()
        assert set(sites.wait().values()) == {0}
        assert gap(sites, sites.names) < 1e-12
        check_optimum(sites, sites.names, optimum(quadratics(), list(range(M))))


def test_a_site_comes_back_while_another_is_gone(tmp_path: Path) -> None:
    with site_processes(tmp_path, QUADRATICS, M, PATIENCE) as sites:
        sites.start(hold={"s3": 10, "s0": 10, "s1": 20})
        sites.reach(10, "s3", "s0")
        sites.kill("s3")
        sites.kill("s0")
        sites.until(lambda: all(sites.events(name, "lost") for name in ("s1", "s2")))
        sites.start("s3", options=("--rejoin",), before=ask_shortly)
        sites.until(lambda: bool(sites.events("s3", "joined")))
        sites.release()
        rest = ["s1", "s2", "s3"]
        assert set(sites.wait(*rest).values()) == {0}
        (event,) = sites.events("s3", "joined")
        assert event["missing"].startswith("s0 ")
        assert gap(sites, rest) < 1e-12
        check_optimum(sites, rest, optimum(quadratics(), numbers(rest)))


def test_a_site_leaves_and_who_hears_of_it_does_not_forget_it(tmp_path: Path, capsys: Any) -> None:
    """s2 hears that s3 has left, and is killed before it has saved the round in which it heard."""
    with site_processes(tmp_path, QUADRATICS, M) as sites:
        sites.start(hold={"s1": 10})
        sites.reach(10, *sites.names)
        assert sites.stop("s2") == 0
        sites.start("s2", before=die_when_someone_has_left)
        sites.release()
        assert main(["leave", str(sites.folder / "s3")]) == 0
        assert sites.wait("s2") == {"s2": -9}
        sites.start("s2")
        assert set(sites.wait().values()) == {0}
        rest = [name for name in sites.names if name != "s3"]
        assert gap(sites, rest) < 1e-12
        check_optimum(sites, rest, optimum(quadratics(), numbers(rest)))
        assert sites.round("s3") < QUADRATICS["rounds"]
        assert sites.model("s3")["x"].shape == (6,)
        whys = {event["why"] for name in rest for event in sites.events(name, "lost")}
        assert whys == {"has left"}
        check_records(sites.folders())
        assert [changes(sites, name) for name in ("s0", "s1", "s3")] == [[("left", "s3")], [], [("left", "s3")]]
        assert not any(sites.events(name, "unconfirmed") for name in sites.names)
        assert main(["node", str(sites.folder / "s3")]) == 2
        assert "s3 has left the training after round" in capsys.readouterr().err


def test_a_new_site_joins(tmp_path: Path, capsys: Any) -> None:
    with site_processes(tmp_path, QUADRATICS, M) as sites:
        sites.start(hold={"s2": 10})
        sites.reach(10, *sites.names)
        (port,) = free_ports(1)
        address = f"127.0.0.1:{port}"
        words = ["admit", str(sites.folder), "new", address, "--listen", address, "--neighbours", "s0,s1,s3"]
        assert main(words) == 0
        assert "Nobody has to restart" in capsys.readouterr().out
        sites.start("new")
        sites.until(lambda: bool(sites.events("new", "joined")))
        sites.release()
        assert set(sites.wait().values()) == {0}
        names = [*sites.names, "new"]
        assert gap(sites, names) < 1e-12
        assert not any(sites.events(name, "unreachable") for name in names)
        check_records(sites.folders(*names))
        assert changes(sites, "new") == [("joined", "new")]
        (served,) = sites.events("s0", "served")
        since = json.loads((sites.folder / "s0" / "links.json").read_text())["since"]
        assert (served["neighbour"], served["round"]) == ("new", since[str(M)])
        assert not sites.events("s2", "served")
        assert [changes(sites, name) for name in ("s0", "s2")] == [[("admitted", "new")], []]
        assert [each.what for each in entries(sites.folder / "s0", Sent) if each.to == ("new",)][:1] == ["model"]
        old, new = quadratics(), quadratics(M + 1)
        A, b = torch.cat([old.A, new.A[M:]]), torch.cat([old.b, new.b[M:]])
        expected = torch.linalg.solve(A.sum(dim=0), (A @ b[..., None]).sum(dim=0))[:, 0]
        check_optimum(sites, names, expected)


def test_losing_a_cut_vertex_leaves_two_groups_that_go_on_and_say_so(tmp_path: Path) -> None:
    table = {**QUADRATICS, "rounds": 60, "topology": {"kind": "path", "workers": 5}}
    with site_processes(tmp_path, table, 5, PATIENCE) as sites:
        sites.start(hold={"s2": 5, "s0": 20, "s4": 20})
        sites.reach(5, "s2")
        sites.kill("s2")
        rest = ["s0", "s1", "s3", "s4"]
        sites.reach(20, *rest)
        assert all(sites.events(name, "unreachable") for name in rest)
        answers = sites.ask()
        assert components(answers) == [["s0", "s1"], ["s3", "s4"]]
        gone = [link for status in answers for link in status.neighbours if link.lost is not None]
        assert [link.waiting for link in gone] == ["", ""]  # nobody waits for it any more
        found = invariant([status for status in answers if status.site in ("s0", "s1")])
        assert found is not None
        assert found.norm < 1e-12 * max(found.of, 1)
        sites.release()
        assert set(sites.wait(*rest).values()) == {0}
        for pair in (["s0", "s1"], ["s3", "s4"]):
            assert gap(sites, pair) < 1e-12
            check_optimum(sites, pair, optimum(quadratics(5), numbers(pair)))
        (event,) = sites.events("s0", "unreachable")[-1:]
        assert event["sites"] == "site 2, site 3, site 4"


@pytest.mark.parametrize("spec", [{"kind": "net-fleet", "K": 2, "compress": "top-k"}])
def test_patience_is_refused_where_a_loss_could_not_be_taken_back(tmp_path: Path, spec: dict[str, Any]) -> None:
    table = {**QUADRATICS, "algorithms": [spec]}
    with pytest.raises(Exception, match="patience = 0"), site_processes(tmp_path, table, M, PATIENCE):
        pass


def test_the_graph_of_these_tests_survives_any_two_losses() -> None:
    assert nx.node_connectivity(build_topology(SIX).graph) >= 3


def test_a_port_that_is_taken_is_a_clear_error(tmp_path: Path) -> None:
    with site_processes(tmp_path, QUADRATICS, M) as sites, socket.create_server(address(sites, "s0")):
        sites.start("s0")
        assert sites.wait("s0") == {"s0": 2}
        assert "cannot listen on" in sites.tail("s0")


def address(sites: SiteProcesses, name: str) -> tuple[str, int]:
    host, port = next(site.listen for site in sites.plan.sites if site.name == name).rsplit(":", 1)
    return host, int(port)


def test_a_new_site_may_not_have_anothers_name_as_its_host(tmp_path: Path, capsys: Any) -> None:
    with site_processes(tmp_path, QUADRATICS, M) as sites:
        assert main(["admit", str(sites.folder), "new", "s1:7777", "--neighbours", "s0"]) == 2
    assert "is the name of another site" in capsys.readouterr().err


def test_a_site_that_was_given_up_comes_back_by_itself(tmp_path: Path) -> None:
    with site_processes(tmp_path, QUADRATICS, M, PATIENCE, rejoin=True) as sites:
        sites.start(hold={"s3": 10, "s1": 20})
        sites.reach(10, "s3")
        os.kill(sites.running["s3"].pid, signal.SIGSTOP)  # it is there, and does not know how time passes
        sites.until(lambda: all(sites.events(name, "lost") for name in ("s0", "s2")))
        os.kill(sites.running["s3"].pid, signal.SIGCONT)
        sites.release("s3")
        sites.until(lambda: bool(sites.events("s3", "joined")))
        sites.release()
        assert set(sites.wait().values()) == {0}
        assert len(sites.events("s3", "rejoining")) == 1
        assert gap(sites, sites.names) < 1e-12
        check_optimum(sites, sites.names, optimum(quadratics(), list(range(M))))
        check_records(sites.folders())
