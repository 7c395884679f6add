"""The examples for real sites do what they say, and the guide names all that a site may say."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path
from typing import get_args

import pytest
import torch
import yaml
from prometheus_client.core import Metric

from netfleet import NetFleet
from netfleet.cli import GROUPS, make_parser
from netfleet.problems.synthetic import Quadratics
from netfleet.sites.doctor.findings import Level
from netfleet.sites.operations.logs import Log
from netfleet.sites.operations.prometheus import Collector
from netfleet.sites.operations.status import SiteStatus

ROOT = Path(__file__).parents[2]
SITES = ROOT / "examples" / "sites"
GUIDE = (ROOT / "docs" / "sites.md").read_text(encoding="utf-8")


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
    rows = dict(re.findall(r"^\| `([a-z_]+)` \| [a-z, ]+ \| (.*?) \|", GUIDE, flags=re.MULTILINE))
    for name, fields in events().items():
        assert name in rows, f"docs/sites.md does not have the event {name}"
        assert fields <= set(re.findall(r"`(\w+)`", rows[name])), f"docs/sites.md: fields of {name}"
    assert len(events()) > 15


def levels() -> dict[str, set[str]]:
    """The levels that every event may have, as its call says."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "src" / "netfleet" / "sites").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assignments = [each for node in ast.walk(tree) if isinstance(node, ast.Assign) for each in _assigned(node)]
        chosen = {ast.unparse(target): value for target, value in assignments}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".event", "self.event")):
                given = [each.value for each in node.keywords if each.arg == "level"]
                value = chosen.get(ast.unparse(given[0]), given[0]) if given else ast.Constant("info")
                names = strings(value) & {"info", "warning", "error"}
                names |= set(get_args(Level)) if ast.unparse(value) == "finding.level" else set()
                assert names, f"{path.name}: level of {ast.unparse(node)}"
                found.setdefault(ast.literal_eval(node.args[0]), set()).update(names)
    return found


def _assigned(node: ast.Assign) -> list[tuple[ast.expr, ast.expr]]:
    """Names and their values, also of an assignment of several."""
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


def test_the_guide_has_the_levels_of_every_event() -> None:
    rows = dict(
        re.findall(r"^\| `([a-z_]+)` \| ((?:info|warning|error)(?:, (?:info|warning|error))*) \|", GUIDE, re.MULTILINE)
    )
    for name, names in levels().items():
        assert name in rows, f"docs/sites.md: level of {name}"
        assert set(rows[name].split(", ")) == names, f"docs/sites.md: level of {name}"


def all_metrics() -> list[Metric]:
    status = SiteStatus("s0", 0, "", "", "waiting", 0, 0, 0.0, 0, {}, (), {}, (), 0, 0, ())
    return list(Collector(lambda: status, Log("site")).collect())


def test_alerts_are_about_metrics_that_there_are() -> None:
    table = yaml.safe_load((SITES / "alerts.yaml").read_text())
    rules = [rule for group in table["groups"] for rule in group["rules"]]
    labels = {f"{m.name}_total" if m.type == "counter" else m.name for m in all_metrics()}
    assert len(rules) > 5
    for rule in rules:
        named = set(re.findall(r"netfleet_\w+", rule["expr"]))
        assert named, rule["alert"]
        assert named <= labels, rule["alert"]
        assert rule["labels"]["severity"] in ("page", "ticket")


def test_the_guide_has_every_metric() -> None:
    metrics = all_metrics()
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
        make_parser().parse_args(shlex.split(line))


def test_whatever_happens_the_guide_has_a_command_for_it() -> None:
    table = GUIDE[GUIDE.index("| what happens | what you see | what to do |") :].split("\n\n")[0]
    known = {module.__name__.rpartition(".")[2] for group in GROUPS.values() for module in group}
    _, _, *rows = table.splitlines()
    assert len(rows) > 15
    for row in rows:
        commands = re.findall(r"`netfleet (\w+)", row.split(" | ")[-1])
        assert commands, row
        assert set(commands) <= known, row


def test_tests_that_the_threat_model_names_exist() -> None:
    text = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)`", text)
    assert named
    assert all((ROOT / path).is_file() for path in named)
    functions = re.findall(r"`(test_\w+)`", text)
    there = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in functions if f"def {name}(" not in there] == []
