"""Plans: rows of W by name, folders that appear whole or not at all, hashes that find what was changed."""

from __future__ import annotations

import io
import os
import re
import shlex
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from rich.console import Console

from netfleet import ConfigError, Experiment, NetfleetError
from netfleet.cli import main
from netfleet.errors import StorageError
from netfleet.files import write_atomically
from netfleet.runs.build import build_topology
from netfleet.runs.config import experiment
from netfleet.runs.run import run_experiment
from netfleet.sites.operations.process import run_node
from netfleet.sites.planning.certificates import load_identity
from netfleet.sites.planning.folders import load_plan, load_site
from netfleet.sites.planning.nodes_file import NodeEntry, NodesFile, load_nodes, parse_address
from netfleet.sites.planning.overview import firewall, print_plan
from netfleet.sites.planning.plan import load_planned, make_plan
from netfleet.sites.planning.plan_files import write_plan
from netfleet.sites.relay.settings import RelaySettings, load_relay

NAMES = ("hospital-a", "hospital_b", "C", "d4", "lab")
BASE: dict[str, Any] = {
    "rounds": 3,
    "topology": {"kind": "erdos-renyi", "p": 0.5, "weights": "metropolis"},
    "problem": {"kind": "quadratics", "d": 3},
    "algorithms": [{"kind": "net-fleet", "K": 2, "eta": 0.1}],
}


def five(**options: Any) -> NodesFile:
    nodes = tuple(NodeEntry(name, f"10.0.0.{i}:7400") for i, name in enumerate(NAMES, start=1))
    return NodesFile(nodes, **options)


def planned(nodes: NodesFile, tmp_path: Path, **changes: Any) -> Experiment:
    file = tmp_path / "experiment.toml"
    file.write_text(tomli_w.dumps({**BASE, **changes}))
    return load_planned(file, [], nodes)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """The arguments of a command that succeeds."""
    (tmp_path / "e.toml").write_text(tomli_w.dumps(BASE))
    table = {"nodes": [{"name": name, "address": f"10.0.0.{i}:7400"} for i, name in enumerate(NAMES, start=1)]}
    (tmp_path / "nodes.toml").write_text(tomli_w.dumps(table))
    return ["plan", str(tmp_path / "e.toml"), "--nodes", str(tmp_path / "nodes.toml"), "--out", str(tmp_path / "out")]


@pytest.fixture
def out(files: list[str], tmp_path: Path, capsys: Any) -> Path:
    assert main(files) == 0
    capsys.readouterr()
    return tmp_path / "out"


# ---- the weights ----


def test_the_sites_rows_are_the_simulators_matrix(tmp_path: Path) -> None:
    nodes = five()
    settings = planned(nodes, tmp_path)
    topology = build_topology(settings.topology, settings.seeds[0])
    W = np.zeros((5, 5))
    plan = make_plan(settings, nodes)
    for site in plan.sites:
        W[site.number, site.number] = site.weight
        for other in site.neighbours:
            W[site.number, other.number] = other.weight
            assert other.name == NAMES[other.number]
            assert other.address == plan.sites[other.number].address
    assert np.array_equal(W, topology.W().toarray())
    assert plan.lam == topology.lam


def test_what_is_written_is_read_back_to_the_bit(out: Path, tmp_path: Path) -> None:
    nodes = five()
    settings = planned(nodes, tmp_path)
    plan = make_plan(settings, nodes)
    assert load_plan(out / "operator") == plan
    for site in plan.sites:
        found, again = load_site(out / site.name)
        assert found == site
        assert again == settings
        assert again.runs()[0].hash == plan.experiment


def test_one_site_alone_has_no_neighbours(tmp_path: Path) -> None:
    nodes = NodesFile((NodeEntry("alone", "localhost:7400"),))
    settings = planned(nodes, tmp_path)
    plan = make_plan(settings, nodes)
    write_plan(plan, tmp_path / "out", settings, nodes)
    site, _ = load_site(tmp_path / "out" / "alone")
    assert (site.weight, site.neighbours) == (1.0, ())
    assert load_plan(tmp_path / "out" / "operator") == plan


def test_a_graph_from_a_file_must_name_the_sites_in_their_order(tmp_path: Path) -> None:
    edges = tmp_path / "edges.txt"
    edges.write_text("hospital-b hospital-a\nhospital-b hospital-c\n")
    topology = {"kind": "edge-list", "path": str(edges)}
    in_order = NodesFile(tuple(NodeEntry(f"hospital-{x}", f"{x}.org:1") for x in "abc"))
    plan = make_plan(planned(in_order, tmp_path, topology=topology), in_order)
    assert [n.name for n in plan.sites[0].neighbours] == ["hospital-b"]
    other = NodesFile(tuple(NodeEntry(f"hospital-{x}", f"{x}.org:1") for x in "bac"))
    with pytest.raises(ConfigError, match="list the \\[\\[nodes\\]\\] in the order of the graph"):
        make_plan(planned(other, tmp_path, topology=topology), other)
    numbers = NodesFile(tuple(NodeEntry(str(i), f"x{i}.org:1") for i in (1, 2, 3)))
    assert make_plan(planned(numbers, tmp_path, topology={"kind": "ring"}), numbers).sites[2].name == "3"


# ---- the run's hash ----


def hash_of(tmp_path: Path, nodes: NodesFile, **changes: Any) -> str:
    return make_plan(planned(nodes, tmp_path, **changes), nodes).run


def test_the_run_hash_covers_what_is_computed_and_not_where(tmp_path: Path) -> None:
    nodes = five()
    same = hash_of(tmp_path, nodes)
    moved = tuple(replace(node, address=f"{node.name}.example.org:9", listen="0.0.0.0:8") for node in nodes.nodes)
    assert hash_of(tmp_path, NodesFile(moved, patience=60)) == same
    assert hash_of(tmp_path, nodes, engine={"threads": 3}) == same
    renamed = (replace(nodes.nodes[0], name="other"), *nodes.nodes[1:])
    others = [
        hash_of(tmp_path, NodesFile(renamed)),
        hash_of(tmp_path, NodesFile(nodes.nodes[::-1])),
        hash_of(tmp_path, nodes, rounds=4),
        hash_of(tmp_path, nodes, seeds=[1]),
        hash_of(tmp_path, nodes, topology={**BASE["topology"], "weights": "laplacian"}),
        hash_of(tmp_path, nodes, algorithms=[{"kind": "net-fleet", "K": 2, "eta": 0.2}]),
    ]
    assert len({same, *others}) == len(others) + 1


def test_the_run_hash_covers_weights_that_come_from_a_file(tmp_path: Path) -> None:
    nodes, path = NodesFile((NodeEntry("a", "h:1"), NodeEntry("b", "h:2"))), tmp_path / "W.csv"
    topology = {"kind": "complete", "weights": {"kind": "matrix", "path": str(path)}}
    found = set()
    for text in ("0.5,0.5\n0.5,0.5\n", "0.6,0.4\n0.4,0.6\n"):
        path.write_text(text)
        found.add(hash_of(tmp_path, nodes, topology=topology))
    assert len(found) == 2


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("site.toml", r"\nweight = .*", "\nweight = 0.5", "weights are not those that were planned"),
        ("site.toml", r"\nnumber = 0", "\nnumber = 1", "are not those that were planned"),
        ("site.toml", r"\nnumber = 0", "\nnumber = -5", "are not those that were planned"),
        ("site.toml", r'\nname = "hospital-a"', '\nname = "hospital-z"', "are not those that were planned"),
        ("site.toml", r'\nrun = "..', '\nrun = "00', "is not the experiment of run 00"),
        ("site.toml", r'\nrun = "..', '\nrun = "zz', "run must be 64 hexadecimal digits, got 'zz"),
        ("site.toml", r"\npatience = 0.0", "\npatience = -1.0", "patience must be a number of seconds"),
        ("site.toml", r"\npatience = 0.0", "\npatince = 1.0", r"site.toml: unknown key 'patince' in a site \(did you"),
        ("site.toml", r"\npatience = 0.0", "", "needs 'patience'"),
        ("site.toml", r'\naddress = "10.0.0.1:7400"', '\naddress = "10.0.0.1"', 'must be "host:port"'),
        ("site.toml", r"neighbours", "neighbors", "unknown key 'neighbors'"),
        ("site.toml", r"\nlisten", "\nlisten = 1\nlisten", "is not valid TOML"),
        ("experiment.toml", r"rounds = 3", "rounds = 4", "is not the experiment of run"),
        ("experiment.toml", r"0,\n", "0,\n 1,\n", "is not the experiment of run"),
    ],
)
def test_a_changed_folder_is_found_out(out: Path, file: str, old: str, new: str, words: str) -> None:
    path = out / "hospital-a" / file
    text, count = re.subn(old, new, path.read_text(), count=1)
    assert count == 1
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_site(out / "hospital-a")


def test_a_neighbour_may_move(out: Path) -> None:
    path = out / "hospital-a" / "site.toml"
    site, _ = load_site(out / "hospital-a")
    moved = site.neighbours[0]
    path.write_text(path.read_text().replace(moved.address, "new.example.org:9000"))
    assert load_site(out / "hospital-a")[0].neighbours[0] == replace(moved, address="new.example.org:9000")


def test_a_changed_plan_is_found_out(out: Path) -> None:
    path = out / "operator" / "plan.toml"
    path.write_text(re.sub(r"\nweight = .*", "\nweight = 0.123", path.read_text(), count=1))
    with pytest.raises(ConfigError, match="does not have the sites and weights of run"):
        load_plan(out / "operator")


def test_other_folders_are_not_taken_for_a_plans(out: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not a site's folder made by netfleet plan: it has no site\.toml"):
        load_site(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="is not the operator's folder made by netfleet plan"):
        load_plan(out / "C")
    (out / "C" / "experiment.toml").unlink()
    with pytest.raises(ConfigError, match=r"it has no experiment.toml"):
        load_site(out / "C")


# ---- the folders ----


def test_the_folders_hold_what_they_should_and_keys_are_private(out: Path) -> None:
    found = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    site = ("ca.pem", "experiment.toml", "node.key", "node.pem", "site.toml")
    operator = ("ca.pem", "experiment.toml", "node.key", "node.pem", "plan.toml")
    expected = [f"{name}/{file}" for name in NAMES for file in site]
    plan = load_plan(out / "operator")
    expected += [f"{site.name}/pins/{other.name}.pem" for site in plan.sites for other in site.neighbours]
    expected += [f"operator/{file}" for file in operator] + [f"operator/certificates/{name}.pem" for name in NAMES]
    assert found == sorted([*expected, "ca/ca.key", "ca/ca.pem"])
    for key in out.rglob("*.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    for file in ("experiment.toml", "ca.pem"):
        assert len({(out / name / file).read_bytes() for name in NAMES}) == 1
    assert len({(out / name / "node.key").read_bytes() for name in (*NAMES, "operator")}) == 6
    for name in (*NAMES, "operator"):
        assert load_identity(out / name, name).name == name


def test_a_secret_is_private_from_its_first_byte(tmp_path: Path) -> None:
    path, seen = tmp_path / "secret", []
    (tmp_path / ".secret.tmp").write_text("left by a crash, for all to read")

    def write(file: Any) -> None:
        seen.append(stat.S_IMODE(os.fstat(file.fileno()).st_mode))
        file.write(b"secret")

    before = os.umask(0)
    try:
        write_atomically(path, write, 0o600)
        write_atomically(tmp_path / "open", lambda file: file.write(b"open"))
    finally:
        os.umask(before)
    assert seen == [0o600]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o666


def test_nothing_is_left_behind_when_the_disk_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = five()
    settings = planned(nodes, tmp_path)
    plan, before = make_plan(settings, nodes), sorted(tmp_path.iterdir())

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="No space left on device; free some space there"):
            write_plan(plan, tmp_path / "out", settings, nodes)
    assert sorted(tmp_path.iterdir()) == before


def test_bad_input_leaves_no_trace(files: list[str], tmp_path: Path, capsys: Any) -> None:
    text = (tmp_path / "nodes.toml").read_text()
    (tmp_path / "nodes.toml").write_text(text.replace('"lab"', '"lab", request = "none.csr"'))
    before = sorted(tmp_path.rglob("*"))
    assert main(files) == 2
    assert f"cannot read {tmp_path / 'none.csr'}" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_holds_something_is_refused(files: list[str], tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    out.mkdir()
    assert main(files) == 0
    for _ in range(2):
        assert main(files) == 2
        assert f"{out} already exists and is not an empty folder" in capsys.readouterr().err
    assert main([*files[:-1], str(tmp_path / "e.toml")]) == 2
    assert "already exists and is not an empty folder" in capsys.readouterr().err
    assert main([*files[:-1], str(tmp_path / "new" / "deep")]) == 0
    assert main([*files[:-1], str(tmp_path / "e.toml" / "x")]) == 2
    assert "cannot write to" in capsys.readouterr().err


# ---- nodes.toml ----

GOOD = '[[nodes]]\nname = "a"\naddress = "10.0.0.1:7400"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "there are no sites"),
        ("nodes = []", "there are no sites"),
        ("nodes = 3", r"nodes must be \[\[nodes\]\] tables"),
        ('nodes = ["a"]', r"nodes must be \[\[nodes\]\] tables"),
        ("[[nodes]\n", "is not valid TOML"),
        ("patient = 3\n" + GOOD, r"unknown key 'patient' in the file \(did you mean 'patience'\?\)"),
        ("patience = -1\n" + GOOD, "patience must be a number of seconds, 0"),
        ("patience = nan\n" + GOOD, "patience must be a number of seconds, 0"),
        ("patience = inf\n" + GOOD, "patience must be a number of seconds, 0"),
        ('patience = "long"\n' + GOOD, "patience in the file must be a number"),
        (GOOD + 'adress = "x:1"\n', r"unknown key 'adress' in \[\[nodes\]\] number 1"),
        ('[[nodes]]\nname = "a"\naddress = ""', "a needs either an address"),
        ('[[nodes]]\nname = "a"', "a needs either an address.*or reachable = false"),
        ('[[nodes]]\naddress = "h:1"', r"\[\[nodes\]\] number 1 needs 'name'"),
        (GOOD + '[[nodes]]\nname = 3\naddress = "h:1"', r"name in \[\[nodes\]\] number 2 must be a text"),
        (GOOD + '[[nodes]]\nname = "A"\naddress = "h:1"', "two sites have the name 'A'"),
        (GOOD + '[[nodes]]\nname = "b"\naddress = "10.0.0.1:7400"', "two sites have the address '10.0.0.1:7400'"),
        (
            '[[nodes]]\nname = "a"\naddress = "H.org:1"\n[[nodes]]\nname = "b"\naddress = "h.ORG:01"',
            "the address 'h.org:1'",
        ),
        (GOOD + '[[nodes]]\nname = "b"\naddress = "A:1"', "the host of b, 'a', is the name of another site"),
        (GOOD + '[[nodes]]\nname = "b"\naddress = "operator:1"', "the host of b, 'operator', is the name of another"),
        *(
            (f'[[nodes]]\nname = "{name}"\naddress = "h:1"', words)
            for name, words in {
                "operator": "is reserved",
                "CA": "is reserved",
                "": "is not valid for a site",
                "-a": "is not valid for a site",
                "a b": "is not valid for a site",
                "../a": "is not valid for a site",
                "klinikum-münchen": "is not valid for a site",
                "x" * 64: "is not valid for a site",
            }.items()
        ),
        *(
            (f'[[nodes]]\nname = "a"\naddress = "{address}"', f"address of a{words}")
            for address, words in {
                "host": ' must be "host:port"',
                ":7400": ' must be "host:port"',
                "::1:7400": ' must be "host:port"',
                "http://h:1": ' must be "host:port"',
                "h:": " must end in a port from 1 to 65535",
                "h:0": " must end in a port",
                "h:65536": " must end in a port",
                "h:-1": " must end in a port",
                "h:٣": " must end in a port",
                "h: 1": " must end in a port",
                "0.0.0.0:7400": ": other machines cannot reach 0.0.0.0:7400",
                "[::]:7400": ": other machines cannot reach",
                "10.0.0:1": ": '10.0.0' is neither an IP address nor a host's name",
                "10.0.0.256:1": ": '10.0.0.256' is neither",
                "[10.0.0.1]:1": ' must be "host:port"',
                "[fe80::1%eth0]:1": ": .* is neither",
                "a..b:1": ": .* is neither",
                "-a.org:1": ": .* is neither",
                "a b:1": ": .* is neither",
                "krankenhäuser.de:1": ": .* is neither",
            }.items()
        ),
        (GOOD + 'listen = "7400"', 'listen of a must be "host:port"'),
    ],
)
def test_bad_nodes_are_explained(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "nodes.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=words) as caught:
        load_nodes(path)
    assert str(caught.value).startswith(str(path))


def test_a_missing_nodes_file_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load_nodes(tmp_path / "none.toml")


def test_addresses_come_in_their_usual_form(tmp_path: Path) -> None:
    path = tmp_path / "nodes.toml"
    path.write_text('[[nodes]]\nname = "a"\naddress = "[0::1]:07400"\nrequest = "a.csr"\n')
    (node,) = load_nodes(path).nodes
    assert (str(node.dialled), str(node.listened)) == ("[::1]:7400", "[::]:7400")
    assert node.request == str(tmp_path / "a.csr")
    assert parse_address("Host_1.Example.org:1", "x") == ("host_1.example.org", 1)


# ---- the experiment ----


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seeds": [0, 1]}, r"has the seeds 0, 1; choose one: --set seeds=\[0\]"),
        ({"topology": {"kind": "ring", "workers": 4}}, "has 4 workers but there are 5 sites; add or remove"),
        ({"topology": {"kind": "random-matching"}}, "'random-matching' changes from round to round"),
        ({"topology": {"kind": "one-peer-exponential"}}, "changes from round to round"),
        ({"topology": {"kind": "hypercube"}}, "power of two"),
        ({"topology": {"kind": "rnig"}}, r"unknown graph 'rnig' \(did you mean 'ring'"),
        ({"topology": {"kind": 3}}, "graph: the table has no kind"),
        ({"topology": 3}, r"\[topology\] must be a table"),
        ({"topology": {"kind": "edge-list", "path": "none.txt"}}, "no file 'none.txt'"),
        ({"algorithms": [{"kind": "fedavg"}]}, "FedAvg needs a server, and sites have only neighbours"),
        ({"network": {"loss": 0.1}}, r"\[network\] simulates failures"),
        (
            {
                "topology": {"kind": "path", "weights": {"kind": "laplacian", "factor": 1.9}},
                "algorithms": [{"kind": "d2"}],
            },
            "diverges if",
        ),
        ({"topology": {"kind": "erdos-renyi", "p": 0.0}}, "connected|p must"),
    ],
)
def test_experiments_that_sites_cannot_run_are_explained(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    nodes = five()
    with pytest.raises(NetfleetError, match=words):
        make_plan(planned(nodes, tmp_path, **changes), nodes)


def test_a_disconnected_graph_is_refused(tmp_path: Path) -> None:
    (tmp_path / "edges.txt").write_text("0 1\n2 3\n3 4\n")
    topology = {"kind": "edge-list", "path": str(tmp_path / "edges.txt")}
    with pytest.raises(NetfleetError, match="falls into 2 components"):
        make_plan(planned(five(), tmp_path, topology=topology), five())


def test_of_several_algorithms_one_is_chosen_as_the_error_says(tmp_path: Path) -> None:
    algorithms = [
        {"kind": "net-fleet", "K": 2, "eta": {"kind": "cosine", "start": 0.1, "rounds": 3}, "label": "it's ours"},
        {"kind": "dsgd"},
    ]
    nodes = five()
    settings = planned(nodes, tmp_path, algorithms=algorithms)
    with pytest.raises(ConfigError, match="has it's ours, DSGD; choose one") as caught:
        make_plan(settings, nodes)
    option, value = shlex.split(str(caught.value).split("for example: ")[1])
    assert option == "--set"
    chosen = load_planned(tmp_path / "experiment.toml", [value], nodes)
    assert chosen.algorithms == settings.algorithms[:1]
    assert make_plan(chosen, nodes).algorithm == "it's ours"


def test_weights_by_rows_are_made_of_what_the_sites_say(tmp_path: Path) -> None:
    own = {"kind": "classification", "data": "netfleet.data.sources:digits", "weights": "rows"}
    with pytest.raises(ConfigError, match=r"training rows of every site.*; add rows = … to \[\[nodes\]\] hospital-a"):
        planned(five(), tmp_path, problem=own)
    sizes = [100, 300, 100, 400, 100]
    nodes = replace(five(), nodes=tuple(replace(n, rows=r) for n, r in zip(five().nodes, sizes, strict=True)))
    found = planned(nodes, tmp_path, problem={"kind": "quadratics", "weights": "rows"}).problem["weights"]
    assert found == pytest.approx([0.1, 0.3, 0.1, 0.4, 0.1])
    assert planned(nodes, tmp_path).problem["weights"] == {"kind": "equal"}, "rows alone change nothing"
    some = replace(nodes, nodes=(replace(nodes.nodes[0], rows=0), *nodes.nodes[1:]))
    with pytest.raises(ConfigError, match="training rows of every site"):
        planned(some, tmp_path, problem={"kind": "quadratics", "weights": "rows"})
    assert planned(five(), tmp_path, problem={"weights": "rows"}).problem["weights"]["kind"] == "rows"
    with pytest.raises(ConfigError, match="rows of a must be its number of training rows, got -1"):
        NodeEntry("a", "10.0.0.1:7400", rows=-1)


def test_workers_left_out_are_as_many_as_sites(tmp_path: Path) -> None:
    assert planned(five(), tmp_path).topology["workers"] == 5
    (tmp_path / "least.toml").write_text("rounds = 1")
    assert load_planned(tmp_path / "least.toml", [], five()).topology["workers"] == 5
    assert planned(five(), tmp_path, topology={"kind": "ring", "workers": 5}) == experiment(
        {**BASE, "topology": {"kind": "ring", "workers": 5}}
    )


# ---- the command ----


def test_the_command_says_what_to_open_and_what_to_do(files: list[str], tmp_path: Path, capsys: Any) -> None:
    assert main([*files, "--set", "topology.kind=ring", "--set", "topology={kind='ring'}"]) == 0
    said = capsys.readouterr().out
    plan = load_plan(tmp_path / "out" / "operator")
    assert "hospital-a: TCP 7400 from hospital_b (10.0.0.2), lab (10.0.0.5), the operator (netfleet status)" in said
    assert f"λ = {plan.lam:.6g}, spectral gap {1 - plan.lam:.6g}, run {plan.run}" in said
    assert f"Move {tmp_path / 'out' / 'ca'} offline" in said
    assert "netfleet node NAME" in said


def test_sites_that_only_dial_out_need_an_open_end_or_a_relay(tmp_path: Path, capsys: Any) -> None:
    """a - b - c in a row: b and c have no address."""
    entries = (NodeEntry("a", "10.0.0.1:1"), NodeEntry("b", reachable=False), NodeEntry("c", reachable=False))
    row = {"topology": {"kind": "path"}}
    with pytest.raises(ConfigError, match=r'b and c are neighbours, and neither has an address.*relay = "host:port"'):
        make_plan(planned(NodesFile(entries), tmp_path, **row), NodesFile(entries))
    nodes = NodesFile(entries, patience=7.0, rejoin=True, relay="Relay.example.org:7500")
    made, out = planned(nodes, tmp_path, **row), tmp_path / "out"
    write_plan(make_plan(made, nodes), out, made, nodes)
    plan = load_plan(out / "operator")
    assert plan == make_plan(made, nodes)
    assert {site.relay for site in plan.sites} == {"relay.example.org:7500"}
    assert [site.listen for site in plan.sites] == ["[::]:1", "", ""]
    assert firewall(plan.sites[0]) == "TCP 1 from b (from wherever it dials out), the operator (netfleet status)"
    assert firewall(plan.sites[1]) == "nothing from outside; to a (10.0.0.1:1), the relay (relay.example.org:7500)"
    assert firewall(plan.sites[2]) == "nothing from outside; to the relay (relay.example.org:7500)"
    assert sorted(path.name for path in (out / "relay").iterdir()) == ["ca.pem", "relay.toml"]  # no key
    assert main(["admit", str(out), "d", "--neighbours", "c"]) == 0
    assert load_relay(out / "relay") == RelaySettings(
        "relay.example.org:7500", "[::]:7500", ("a", "b", "c", "operator", "d")
    )
    assert f"Put the new {out / 'relay' / 'relay.toml'} into the relay's folder" in capsys.readouterr().out
    same = NodesFile(tuple(NodeEntry(name, f"10.0.0.9:{port}") for port, name in enumerate("abc", start=1)))
    assert make_plan(planned(same, tmp_path, **row), same).run == plan.run  # who dials is no part of the run


@pytest.mark.parametrize("relay", ["10.0.0.1:7400", "nowhere", "h:0"])
def test_a_bad_relay_is_explained(relay: str) -> None:
    with pytest.raises(ConfigError, match="relay"):
        five(relay=relay)


def test_a_forwarded_port_and_brought_requests_are_spoken_of(tmp_path: Path) -> None:
    nodes = NodesFile((NodeEntry("a", "h:1", listen="0.0.0.0:2"), NodeEntry("b", "[::1]:3")))
    plan = make_plan(planned(nodes, tmp_path, topology={"kind": "ring"}), nodes)
    assert firewall(plan.sites[0]) == "TCP 1, forwarded to 2, from b (::1), the operator (netfleet status)"
    text = io.StringIO()
    print_plan(plan, tmp_path, Console(file=text, width=200), brought=["b"])
    said = text.getvalue()
    assert "b: put the private key of the request beside it as node.key" in said
    assert "offline" not in said


def test_without_the_packages_the_command_says_what_to_install(files: list[str]) -> None:
    code = f"import sys; sys.modules['cryptography'] = None\nfrom netfleet.cli import main; sys.exit(main({files!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'netfleet[sites]'" in done.stderr


def test_the_files_of_an_authority_come_together(files: list[str], capsys: Any) -> None:
    assert main([*files, "--ca-cert", "ca.pem"]) == 2
    assert "give both --ca-cert and --ca-key" in capsys.readouterr().err


@pytest.mark.parametrize("days", ["0", "-3", "3651", "99999999999"])
def test_days_are_bounded(files: list[str], days: str, tmp_path: Path, capsys: Any) -> None:
    assert main([*files, "--days", days]) == 2
    assert "must be valid for 1 to 3650 days" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, "each site computes on its CPU"),
        ({"engine": {"device": "cuda"}}, "each site needs the device 'cuda'"),
        ({"problem": {"kind": "own-loop"}}, "each site needs a program with a training loop"),
    ],
)
def test_a_plan_says_what_each_site_needs(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], table: dict[str, Any], words: str
) -> None:
    (tmp_path / "e.toml").write_text(tomli_w.dumps({**BASE, **table}))
    assert main(files) == 0
    said = capsys.readouterr().out
    assert words in said
    own = "problem" in table
    assert ('netfleet.optim.join("NAME")' in said) == own
    assert ("netfleet node NAME" in said) != own
    head = (tmp_path / "out" / NAMES[0] / "site.toml").read_text()
    assert (f'netfleet.optim.join("{NAMES[0]}")' in head) == own


def test_commands_that_do_not_train_loops_say_what_does(files: list[str], tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(tomli_w.dumps({**BASE, "problem": {"kind": "own-loop"}}))
    assert main(files) == 0
    table = experiment({**BASE, "problem": {"kind": "own-loop"}, "topology": {"kind": "ring", "workers": 3}})
    with pytest.raises(ConfigError, match=r"netfleet\.optim\.join"):
        run_experiment(table)
    with pytest.raises(ConfigError, match=r"netfleet\.optim\.join"):
        run_node(tmp_path / "out" / NAMES[0], rejoin=False, metrics=None, style=None, linger=0.0)
