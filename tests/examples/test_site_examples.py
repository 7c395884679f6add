"""The examples for real sites do what they say, and the guide names all that a site may say."""

from __future__ import annotations

import ast
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from netfleet import NetFleet
from netfleet.cli import _parser, main
from netfleet.problems.synthetic import Quadratics
from netfleet.runs.config import read_toml
from netfleet.sites.operations.logs import Log
from netfleet.sites.operations.prometheus import Collector
from netfleet.sites.operations.status import SiteStatus
from netfleet.sites.planning.folders import load_plan
from netfleet.sites.planning.nodes_file import load_nodes
from support.fork_server import ForkedPython
from support.site_processes import free_ports
from support.site_settings import simulated

ROOT = Path(__file__).parents[2]
SITES = ROOT / "examples" / "sites"
GUIDE = (ROOT / "docs" / "sites.md").read_text(encoding="utf-8")
ROUNDS = 10


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The examples, with ports that are free, as the current folder."""
    shutil.copytree(SITES, tmp_path / "sites")
    nodes = tmp_path / "sites" / "nodes.toml"
    text = nodes.read_text()
    used = sorted(set(re.findall(r"127\.0\.0\.1:(\d+)", text)))
    for old, new in zip(used, free_ports(len(used)), strict=True):
        text = text.replace(f"127.0.0.1:{old}", f"127.0.0.1:{new}")
    nodes.write_text(text)
    monkeypatch.chdir(tmp_path / "sites")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path / "sites"


def plan(file: str, *overrides: str) -> None:
    changes = [word for override in (f"rounds={ROUNDS}", *overrides) for word in ("--set", override)]
    assert main(["plan", file, "--nodes", "nodes.toml", "--out", "plan", *changes]) == 0


def models(folder: Path) -> list[torch.Tensor]:
    """What the sites ended with, flat and in their order."""
    names = [site.name for site in load_plan(folder / "plan" / "operator").sites]
    found = [load_file(folder / "plan" / name / "model.safetensors") for name in names]
    return [torch.cat([values.flatten() for values in model.values()]) for model in found]


def spread(rows: list[torch.Tensor]) -> torch.Tensor:
    stack = torch.stack(rows)
    return (stack - stack.mean(dim=0)).norm() / stack.norm()


@pytest.mark.slow
def test_the_hospitals_train_as_the_simulator_does(folder: Path, capsys: Any) -> None:
    plan("hospitals.toml")
    capsys.readouterr()
    assert main(["up", "plan"]) == 0
    said = capsys.readouterr().out
    found = models(folder)
    assert len(found) >= 3
    table = read_toml(folder / "plan" / "operator" / "experiment.toml")
    expected = simulated(table)
    assert all(torch.allclose(found[i], expected[i], rtol=0, atol=1e-5) for i in range(len(found)))
    assert 0 < spread(found) < 0.5
    assert said.count("model.safetensors") == len(found)


@pytest.mark.slow
def test_sites_with_their_own_data_train_as_the_simulator_does(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [node.name for node in load_nodes(folder / "nodes.toml").nodes]
    monkeypatch.setattr(sys, "argv", ["toy_data.py", "patients", *names])
    runpy.run_path("toy_data.py", run_name="__main__")
    for name in names:
        assert main(["statistics", "own_data.toml", "--site", name, "--out", f"{name}.json"]) == 0
    assert main(["statistics", "own_data.toml", "--merge", *(f"{n}.json" for n in names), "--out", "all.json"]) == 0
    plan("own_data.toml", "problem.data.statistics=all.json")
    shutil.move("patients", "elsewhere/patients")
    code, _, said = ForkedPython(["-m", "netfleet", "node", "plan/hospital-a"]).wait()
    assert code == 2
    assert "there is no file patients/hospital-a.csv" in said
    monkeypatch.setenv("NETFLEET_DATA", "elsewhere")
    sites = [ForkedPython(["-m", "netfleet", "node", f"plan/{name}", "--linger", "10"]) for name in names]
    ends = [site.wait() for site in sites]
    assert [code for code, _, _ in ends] == [0] * len(names), ends[0][2]
    found, expected = models(folder), simulated({**read_toml("own_data.toml"), "rounds": ROUNDS, "engine": {}})
    assert all(torch.allclose(found[i], expected[i], rtol=0, atol=1e-5) for i in range(len(found)))
    losses = {line for name in names for line in _last_lines(folder / "plan" / name / "run" / "history.jsonl")}
    assert len(losses) == len(names)  # each of its own data


def _last_lines(path: Path) -> Iterator[str]:
    yield re.sub(r'"seconds": .*', "", path.read_text().splitlines()[-1])


def command_of_unit() -> list[str]:
    (line,) = re.findall(r"^ExecStart=(.*)$", (SITES / "netfleet-node@.service").read_text(), flags=re.MULTILINE)
    return shlex.split(line.replace("%S", "/var/lib").replace("%i", "hospital-a"))


def commands_of_containers() -> list[list[str]]:
    entry, default = re.findall(r"^(?:ENTRYPOINT|CMD) (\[.*\])$", (SITES / "Dockerfile").read_text(), re.MULTILINE)
    (words,) = re.findall(r"^  command: \[(.*)\]$", (SITES / "compose.yaml").read_text(), flags=re.MULTILINE)
    given = [word.strip(' "') for word in words.split(",")]
    return [[*ast.literal_eval(entry), *ast.literal_eval(default)], [*ast.literal_eval(entry), *given]]


@pytest.mark.parametrize("command", [command_of_unit(), *commands_of_containers()], ids=["unit", "image", "compose"])
def test_services_ask_for_a_command_that_there_is(command: list[str]) -> None:
    program, *words = command
    assert Path(program).name == "netfleet"
    options = _parser().parse_args(words)
    assert options.folder in (Path("/var/lib/netfleet/hospital-a"), Path("/site"))
    assert (options.log, options.rejoin) == ("json", False)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_the_unit_is_one(tmp_path: Path) -> None:
    text = (SITES / "netfleet-node@.service").read_text()
    unit = tmp_path / "netfleet-node@hospital-a.service"
    unit.write_text(text.replace(command_of_unit()[0], sys.executable))  # it must be there
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_containers_are_those_of_their_plan(tmp_path: Path, capsys: Any) -> None:
    text = (SITES / "compose.yaml").read_text()
    nodes = load_nodes(SITES / "compose-nodes.toml")
    services = re.findall(r'^  (\S+):\n    <<: \*site\n    volumes: \["\./plan/(\S+):/site"\]$', text, re.MULTILINE)
    assert services == [(node.name, node.dialled.host) for node in nodes.nodes]
    words = [str(SITES / "hospitals.toml"), "--nodes", str(SITES / "compose-nodes.toml"), "--out", str(tmp_path / "p")]
    assert main(["plan", *words]) == 0


@pytest.mark.parametrize("path", sorted(SITES.iterdir()), ids=lambda path: path.name)
def test_no_host_of_a_registry_is_written_down(path: Path) -> None:
    assert not re.search(r"https?://|\.(io|com|org)/", path.read_text())


# ---- the guide ----


def test_a_lone_neighbour_can_compute_every_gradient() -> None:
    """What docs/threat-model.md says of y: worker 1, the only neighbour of worker 0, knows all that worker 0 mixed."""
    W = torch.tensor([[0.75, 0.25], [0.25, 0.75]], dtype=torch.float64)
    problem = Quadratics(2, d=5, sigma=1.0, seed=0, dtype=torch.float64)
    method = NetFleet(K=3, eta=0.05)

    def mix(*vectors: torch.Tensor) -> list[torch.Tensor]:
        return [W @ each for each in vectors]

    state = method.init(problem, mix, problem.start().repeat(2, 1))  # type: ignore[arg-type]
    gradient = state.y[0]  # the first message
    for t in range(5):
        mixed = W[0] @ state.y
        state = method.round(problem, mix, t, state)  # type: ignore[arg-type]
        gradient = state.y[0] - mixed + gradient
        assert torch.allclose(gradient, state.g[0], rtol=0, atol=1e-12)


def strings(node: ast.AST) -> set[str]:
    return {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def events() -> dict[str, set[str]]:
    """Every event that is logged anywhere in sites, and its fields."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "src" / "netfleet" / "sites").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".event", "self.event")):
                names = {each.arg for each in node.keywords if each.arg and each.arg != "level"}
                found.setdefault(ast.literal_eval(node.args[0]), set()).update(names)
    return found


def test_the_guide_has_every_event_and_its_fields() -> None:
    rows = dict(re.findall(r"^\| `([a-z]+)` \| (.*?) \|", GUIDE, flags=re.MULTILINE))
    for name, fields in events().items():
        assert name in rows, f"docs/sites.md does not have the event {name}"
        assert fields <= set(re.findall(r"`(\w+)`", rows[name])), f"docs/sites.md: fields of {name}"
    assert len(events()) > 15


def test_the_guide_has_every_metric() -> None:
    status = SiteStatus("s0", 0, "", "", "training", 0, 0, 0.0, 0, {}, (), {}, (), 0, 0, ())
    metrics = list(Collector(lambda: status, Log("site")).collect())
    assert len(metrics) > 10
    for metric in metrics:
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        assert f"`{name}" in GUIDE, f"docs/sites.md does not have the metric {name}"


@pytest.mark.parametrize(
    "page", ["docs/sites.md", "docs/threat-model.md", "examples/sites/README.md"], ids=lambda page: Path(page).stem
)
def test_commands_in_the_guide_are_those_of_the_program(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    lines = re.findall(r"^\$ (?:\w+='?\S+ )*netfleet (.*?)(?:\s+#.*)?$", text, flags=re.MULTILINE)
    assert lines or "threat" in page
    for line in lines:
        _parser().parse_args(shlex.split(line))


def test_tests_that_the_threat_model_names_exist() -> None:
    text = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)`", text)
    assert named
    assert all((ROOT / path).is_file() for path in named)
    functions = re.findall(r"`(test_\w+)`", text)
    there = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in functions if f"def {name}(" not in there] == []
