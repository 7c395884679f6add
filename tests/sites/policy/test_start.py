"""A site keeps its policy: before its first message, and with what happens later."""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from netfleet.cli import main
from netfleet.errors import FrameError, PolicyError
from netfleet.optim import join
from netfleet.runs.progress import Quiet
from netfleet.sites.network.loop_thread import LoopThread
from netfleet.sites.network.outbox import Outbox
from netfleet.sites.network.transport import Caller, MemoryNetwork
from netfleet.sites.network.wire import Frame, Kind
from netfleet.sites.operations.logs import Log
from netfleet.sites.operations.process import run_node
from netfleet.sites.planning.certificates import load_identity
from netfleet.sites.planning.folders import load_site
from netfleet.sites.planning.rollbacks import NONE
from netfleet.sites.policy.accountant import Budget
from netfleet.sites.policy.in_force import VARIABLE, PolicyInForce
from netfleet.sites.policy.rules import Terms
from netfleet.sites.policy.settings import parse_policy
from netfleet.sites.policy.start import open_site
from netfleet.sites.runtime import join_leave
from netfleet.sites.runtime.exchange import check_links
from netfleet.sites.runtime.membership import Membership
from netfleet.sites.runtime.runner import SiteRunner
from support.site_loops import LOOPS
from support.site_processes import plan_sites
from support.site_settings import DIGITS

RING: dict[str, Any] = {**DIGITS, "rounds": 2, "topology": {"kind": "ring"}}


def in_force(**tables: dict[str, Any]) -> PolicyInForce:
    return PolicyInForce(parse_policy(tables), Path("own.toml"), "ab" * 32)


def policy(folder: Path, **tables: dict[str, Any]) -> None:
    (folder / "policy.toml").write_text(tomli_w.dumps(tables))


class NoNetwork(MemoryNetwork):
    """A network that nobody may use."""

    def transport(self, *_: Any) -> Any:
        return self

    def serve(self, handler: Any) -> Any:
        raise AssertionError("the site serves")

    async def close(self) -> None:
        """There is nothing to close."""


def site_runner(folder: Path, network: MemoryNetwork, **tables: dict[str, Any]) -> SiteRunner:
    """s0 with a policy, connected to a network in memory."""
    site, settings = load_site(folder)
    parts = folder, site, settings, load_identity(folder, "s0"), Log("s0", io.StringIO())
    return SiteRunner(*parts, transport=network.transport("s0"), terms=Terms(in_force(**tables)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A site with two neighbours."""
    plan_sites(tmp_path, RING, 3)
    return tmp_path / "plan" / "s0"


@pytest.fixture
def loop_folder(tmp_path: Path) -> Path:
    plan_sites(tmp_path / "loops", LOOPS, 3)
    return tmp_path / "loops" / "plan" / "s0"


def start(folder: Path, metrics: str | None = None) -> int:
    return run_node(folder, rejoin=False, metrics=metrics, style=None, linger=0.0)


def test_a_plan_that_breaks_a_rule_is_refused_by_node(folder: Path) -> None:
    policy(folder, training={"least_batch": 17})
    with pytest.raises(PolicyError, match=r"rule training\.least_batch: the plan has batch = 16, .* allows 17 or more"):
        start(folder)
    with pytest.raises(PolicyError, match="least_batch"):
        run_node(folder, rejoin=True, metrics=None, style=None, linger=0.0)
    assert not (folder / "run").exists()


def test_a_plan_that_breaks_a_rule_is_refused_by_join(loop_folder: Path) -> None:
    policy(loop_folder, neighbours={"least": 3})
    with pytest.raises(PolicyError, match=r"rule neighbours\.least: the plan has 2 \(s1, s2\)"):
        join(loop_folder)
    (loop_folder / "policy.toml").unlink()
    outside = loop_folder.parent / "outside.toml"
    outside.write_text(tomli_w.dumps({"neighbours": {"least": 3}}))
    with pytest.raises(PolicyError, match=r"rule neighbours\.least"):
        join(loop_folder, policy=outside)


def test_join_starts_where_the_policy_agrees(loop_folder: Path) -> None:
    policy(loop_folder, neighbours={"least": 2, "names": ["s1", "s2"]}, training={"least_batch": 32})
    site = join(loop_folder)
    site.close()
    assert site.name == "s0"


def test_a_rule_is_broken_before_any_code_of_the_plan_is_imported(folder: Path, capsys: Any) -> None:
    path = folder / "experiment.toml"
    path.write_text(path.read_text().replace('kind = "digits"', 'kind = "no_such_module:load"'))
    policy(folder, training={"least_batch": 17})
    with pytest.raises(PolicyError, match="least_batch"):
        start(folder)
    assert main(["policy", "check", str(folder)]) == 2
    assert "BROKEN training.least_batch" in capsys.readouterr().out


def test_a_site_that_needs_a_policy_does_not_start_without(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "required")
    with pytest.raises(PolicyError, match="is missing"):
        start(folder)
    assert main(["policy", "init", str(folder)]) == 0
    assert open_site(folder).in_force.path == folder / "policy.toml"


def test_a_first_policy_is_written_where_the_site_says_that_it_is(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "own.toml"))
    assert main(["policy", "init", str(folder)]) == 0
    assert not (folder / "policy.toml").exists()
    assert open_site(folder).in_force.path == tmp_path / "own.toml"


def test_metrics_are_exposed_only_where_the_policy_agrees(folder: Path, loop_folder: Path) -> None:
    for place in (folder, loop_folder):
        policy(place, show={"metrics": False})
    with pytest.raises(PolicyError, match=r"rule show\.metrics: --metrics 127\.0\.0\.1:1 is not allowed"):
        start(folder, "127.0.0.1:1")
    with pytest.raises(PolicyError, match=r"show\.metrics"):
        join(loop_folder, metrics="127.0.0.1:1")
    open_site(folder)


# ---- privacy, by a double of the accountant ----


def test_privacy_is_required_and_counted_at_the_site(folder: Path) -> None:
    policy(folder, privacy={"required": True, "epsilon": 3.0})
    with pytest.raises(PolicyError, match=r"rule privacy\.required: the plan has no differential privacy"):
        open_site(folder)
    asked: list[int | None] = []

    def accountant(settings: Any, rows: int | None) -> Budget:
        asked.append(rows)
        return Budget(None if rows is None else 300 / rows, 1e-6)

    site, settings, found = open_site(folder, accountant=accountant)
    parts = folder, site, settings, load_identity(folder, "s0"), Log("s0")
    runner = SiteRunner(*parts, terms=Terms(found, accountant))
    problem = runner._problem()
    runner.check_data(problem)
    rows = len(problem.parts[0])  # type: ignore[attr-defined]
    assert asked == [None, rows]
    stricter = in_force(privacy={"epsilon": 300 / rows - 0.01})
    with pytest.raises(PolicyError, match=r"rule privacy\.epsilon: the plan has ε = 0\.\d+ at this site"):
        SiteRunner(*parts, terms=Terms(stricter, accountant)).check_data(problem)


def test_too_few_rows_are_refused_before_the_network_is_there(folder: Path) -> None:
    runner = site_runner(folder, NoNetwork(), data={"least_rows": 1000})
    with pytest.raises(PolicyError, match=r"rule data\.least_rows: the plan has \d+ training rows of this site"):
        runner.run(Quiet())
    with pytest.raises(AssertionError, match="the site serves"):
        site_runner(folder, NoNetwork(), data={"least_rows": 10}).run(Quiet())


# ---- later ----


class Heard:
    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def refused(self, who: str, why: str) -> None:
        self.said.append((who, why))


def members(folder: Path, found: PolicyInForce) -> tuple[Membership, Heard]:
    heard = Heard()
    return Membership(folder, load_site(folder)[0], 10, Outbox(), heard.refused, in_force=found), heard


def admit(folder: Path, name: str, number: int) -> None:
    (folder / "neighbours.d").mkdir(exist_ok=True)
    table = {"name": name, "number": number, "address": "127.0.0.1:7400", "weight": 0.01}
    (folder / "neighbours.d" / f"{name}.toml").write_text(tomli_w.dumps(table))


def test_a_neighbour_that_is_admitted_later_must_be_allowed_by_name(folder: Path) -> None:
    found, heard = members(folder, in_force(neighbours={"names": ["s1", "s2", "clinic"]}))
    admit(folder, "stranger", 3)
    admit(folder, "clinic", 4)
    assert found.find_neighbour("stranger") is None
    ((who, why),) = heard.said
    assert who == "stranger"
    assert "rule neighbours.names: the plan has stranger, the policy allows s1, s2, clinic" in why
    assert found.find_neighbour("clinic") is not None


def test_an_admission_that_the_policy_forbids_is_found_at_the_start_too(folder: Path) -> None:
    policy(folder, neighbours={"names": ["s1", "s2"]})
    admit(folder, "stranger", 3)
    with pytest.raises(PolicyError, match=r"neighbours\.names: the plan has stranger"):
        open_site(folder)


def test_a_site_that_loses_too_many_neighbours_sends_nothing_more(folder: Path) -> None:
    found, _ = members(folder, in_force(neighbours={"least": 2}))
    check_links(found, 3)
    found.neighbourhood.drop(2, 3)
    with pytest.raises(PolicyError, match=r"neighbours\.least: the plan has 1 \(s1\), the policy allows 2 or more"):
        check_links(found, 3)
    check_links(members(folder, in_force(neighbours={"least": 1}))[0], 3)


class Agreeing:
    """A neighbour that agrees to every link."""

    def __init__(self, run: str, number: int) -> None:
        self._answer = Frame(Kind.JOINED, NONE.run_id(run), number, 1).encode()

    async def pull(self, caller: Caller, read: Callable[[], Awaitable[bytes]]) -> AsyncGenerator[bytes, None]:
        yield self._answer

    async def status(self, caller: Caller) -> bytes:
        return b""


def test_a_site_that_rejoins_needs_enough_neighbours_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_leave, "GRACE", 0.2)
    network, connections = MemoryNetwork(), AsyncExitStack()
    runner = site_runner(folder, network, neighbours={"least": 2})
    with LoopThread() as loop:
        serving = network.transport("s1").serve(Agreeing(runner.site.run, 1))
        loop.wait(connections.enter_async_context(serving))
        with pytest.raises(PolicyError, match=r"neighbours\.least: the plan has 1 \(s1\)"):
            runner.run(Quiet(), rejoin=True)
        loop.wait(connections.aclose())
    assert not (folder / "links.json").exists()


# ---- what is shown ----


def runner_with(folder: Path, **show: bool) -> SiteRunner:
    runner = site_runner(folder, MemoryNetwork(), show=show)
    runner.status._record = {"accuracy": 0.5}
    runner.status._sketches.append((1, (0.0,)))  # type: ignore[arg-type]
    return runner


def seen(runner: SiteRunner, name: str) -> tuple[bool, bool]:
    """Whether somebody sees scores and sketches."""
    status = runner.status.status_for(name)
    return "accuracy" in status.record, bool(status.sketches)


def test_scores_and_sketches_are_shown_to_whom_the_policy_names(folder: Path) -> None:
    open_to_all = runner_with(folder)
    assert [seen(open_to_all, name) for name in ("s1", "operator", "s0")] == [(True, False), (True, True), (True, True)]
    closed = runner_with(folder, scores_to_neighbours=False, scores_to_operator=False, sketches_to_operator=False)
    found = [seen(closed, name) for name in ("s1", "operator", "s0")]
    assert found == [(False, False), (False, False), (True, True)]
    assert closed.status.status_for("operator").policy == "ab" * 6


def test_the_model_is_given_away_only_where_the_policy_agrees(folder: Path) -> None:
    with pytest.raises(FrameError, match="there is no model yet"):
        runner_with(folder)._model_message()
    with pytest.raises(FrameError, match=r"show\.model_to_joining"):
        runner_with(folder, model_to_joining=False)._model_message()


# ---- the commands ----


def test_a_first_policy_fits_the_plan_and_is_not_overwritten(folder: Path, capsys: Any) -> None:
    assert main(["policy", "check", str(folder)]) == 0
    assert "has no policy" in capsys.readouterr().out
    assert main(["policy", "init", str(folder)]) == 0
    assert main(["policy", "check", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "holds  neighbours.names: the plan has s1, s2; allowed: s1, s2" in text
    assert "holds  training.least_batch: the plan has batch = 16; allowed: 16 or more" in text
    assert "BROKEN" not in text
    before = (folder / "policy.toml").read_text()
    assert main(["policy", "init", str(folder)]) == 2
    assert "already exists" in capsys.readouterr().err
    assert (folder / "policy.toml").read_text() == before


def test_a_first_policy_may_be_written_elsewhere(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "own.toml"
    assert main(["policy", "init", str(folder), "--policy", str(outside)]) == 0
    assert main(["policy", "check", str(folder), "--policy", str(outside)]) == 0
    assert not (folder / "policy.toml").exists()
