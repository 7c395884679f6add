"""Unusual numbers raise an alarm and ordinary ones do not; sites can hold, and an evicted one changes nothing more."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from netfleet.algorithms import ALGORITHMS
from netfleet.algorithms.build import make_algorithm
from netfleet.algorithms.compression import Packed
from netfleet.cli import main
from netfleet.engines.loop import Counted
from netfleet.errors import ConfigError
from netfleet.privacy.receipts.lines import Membership, Sent
from netfleet.runs.build import build_setting
from netfleet.runs.config import experiment
from netfleet.sites.operations.logs import Log
from netfleet.sites.operations.process import holds_message
from netfleet.sites.operations.status import StatusAnswer
from netfleet.sites.operations.status_table import _remarks
from netfleet.sites.planning.alarm_settings import Alarm, AlarmSettings
from netfleet.sites.runtime.alarms import ALARM_FILE, Alarms, read_alarms, release
from netfleet.sites.runtime.jumps import LEAST, UsualNorms, score_jumps
from netfleet.sites.runtime.kept import available, kept_rounds
from netfleet.sites.runtime.rollback import roll_back, shared_rounds, site_rounds
from netfleet.sites.runtime.waits import Waits
from reproduce.store import read
from support.receipts import check_records, entries
from support.site_memory import MemorySites, Poison
from support.site_processes import plan_sites
from support.site_settings import DIGITS, QUADRATICS, optimum, quadratics

ROOT, USUAL = Path(__file__).parents[3], AlarmSettings()
METHODS = [name for name in sorted(ALGORITHMS) if not make_algorithm(name).server]


# ---- ordinary trainings ----


def messages(table: dict[str, Any], rounds: int) -> Iterator[tuple[int, list[list[float]], Tensor]]:
    """The norms of each vector of all workers' messages in every exchange, and their models."""
    setting = build_setting(experiment({**table, "rounds": rounds}), 0)
    topology, f, sent = setting.topology, Counted(setting.problem), list[list[list[float]]]()
    W = torch.as_tensor(topology.W().toarray())
    method = make_algorithm(table["algorithms"][0])

    def mix(*vectors: Tensor | Packed) -> Any:
        values = [v.values if isinstance(v, Packed) else v for v in vectors]
        sent.append([v.norm(dim=1).tolist() for v in values])
        mixed = [W.to(v.dtype) @ v for v in values]
        return mixed[0] if len(mixed) == 1 else tuple(mixed)

    state = method.init(f, mix, setting.problem.start().repeat(setting.problem.m, 1))  # type: ignore[arg-type]
    for t in range(rounds):
        f.begin(t)
        state = method.round(f, mix, t, state)  # type: ignore[arg-type]
        yield t, [vector for exchange in sent for vector in exchange], state.x
        sent.clear()


RING = {"kind": "ring", "workers": 5, "weights": "metropolis"}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "table", [{**QUADRATICS, "topology": RING}, {**DIGITS, "topology": RING}], ids=["quadratics", "digits"]
)
def test_no_ordinary_message_raises_an_alarm(table: dict[str, Any], method: str) -> None:
    spec = {"kind": method, "eta": 0.02}
    known = [UsualNorms() for _ in range(5)]
    for t, vectors, _ in messages({**table, "algorithms": [spec]}, 40):
        for i, norms in enumerate(known):
            near = {j: [vector[j] for vector in vectors] for j in (i, (i + 1) % 5, (i - 1) % 5)}
            assert not norms.unusual(0, near, USUAL.norm), (t, i)


def test_no_ordinary_evaluation_raises_an_alarm_and_a_divergence_does() -> None:
    """All runs of the paper's figures that are in the repository: by x̄, and by the worst worker of each round."""
    for path in sorted((ROOT / "reproduce" / "results").glob("*.json")):
        history = read(path)
        for prefix in ("", "worker_"):
            columns = {
                "accuracy": f"{prefix}accuracy{'_min' * bool(prefix)}",
                "loss": f"{prefix}loss{'_max' * bool(prefix)}",
            }
            records = [
                {"round": r["round"], **{name: r[c] for name, c in columns.items() if c in r}} for r in history.records
            ]
            found = [n for n in range(1, len(records) + 1) if list(score_jumps(records[:n], USUAL))]
            if history.diverged is None:
                assert not found, (path.name, prefix, found)
            elif not prefix and len(records) > 13:  # others diverge before there are enough evaluations
                assert found, path.name


# ---- unusual numbers ----


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=30), st.floats(1.1, 1e6))
def test_one_neighbour_of_two_does_not_change_what_is_usual(norms: list[float], factor: float) -> None:
    """However it grows, it is found as soon as it is too large for those of the others."""
    known, most = UsualNorms(), 0.0
    for t, norm in enumerate(norms):
        most = max(most, norm)
        liar = factor**t * most
        found = known.unusual(0, {0: [norm], 1: [norm], 2: [liar]}, 100.0)
        assert found.keys() == ({2} if liar > 100.0 * most > 0 else set())


def test_what_is_usual_comes_back_with_the_checkpoint() -> None:
    known, again = UsualNorms(), UsualNorms()
    known.unusual(0, {0: [1.0, 20.0], 1: [3.0, 4.0]}, 100.0)
    known.unusual(1, {0: [7.0], 1: [7.0]}, 100.0)
    again.load_network_state(known.network_state())
    assert again.network_state() == known.network_state()
    assert again.unusual(0, {0: [1.0, 1.0], 1: [101.0, 399.0]}, 100.0) == {1: (101.0, 1.0)}
    assert known.unusual(0, {0: [1.0], 1: [float("inf")], 2: [float("nan")]}, 100.0).keys() == {1, 2}
    assert not known.unusual(0, {0: [0.0, 0.0], 1: [1e9, 1e9]}, 0.0)  # turned off


@pytest.mark.parametrize(
    ("name", "usual", "last", "kind"),
    [
        ("loss", [1.0, 0.9, 0.8, 0.7, 0.6], 8.0, "loss"),
        ("loss", [1.0, 0.9, 0.8, 0.7, 0.6], 1.0, None),
        ("loss", [-5.0, -5.1, -5.0, -5.1, -5.0], 16.0, "loss"),
        ("loss", [1.0, 1e-9, 1e-9, 1e-9, 1e-9], 1e-7, None),  # it has vanished
        ("loss", [1.0, 0.9, 0.8, 0.7], 5.1, "loss"),  # with few of them, it must exceed the largest
        ("loss", [1.0, 0.2, 0.2, 0.2], 4.9, None),
        ("accuracy", [0.90, 0.91, 0.90, 0.92, 0.91], 0.6, "accuracy"),
        ("accuracy", [0.90, 0.91, 0.90, 0.92, 0.91], 0.8, None),
        ("accuracy", [0.5, 0.9, 0.4, 0.8, 0.6], 0.3, None),  # it always varies
    ],
)
def test_a_jump(name: str, usual: list[float], last: float, kind: str | None) -> None:
    records = [{"round": t, name: value} for t, value in enumerate([*usual, *usual, last])]
    found = [jump.kind for jump in score_jumps(records, USUAL)]
    assert found == ([kind] if kind else [])
    assert LEAST == 10
    assert not list(score_jumps(records, AlarmSettings(loss=0, accuracy=0)))
    assert not list(score_jumps([*records, {"round": 9, "grad_norm2": 1.0}], USUAL))  # another evaluation


@pytest.mark.parametrize(
    ("settings", "words"), [({"norm": 1.0}, "alarm.norm must be larger than 1"), ({"accuracy": -0.1}, "larger than 0")]
)
def test_settings_that_make_no_sense(settings: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        AlarmSettings(**settings)


# ---- sites ----

FIVE: dict[str, Any] = {
    **QUADRATICS,
    "rounds": 130,
    "algorithms": [{"kind": "net-fleet", "K": 2, "eta": 0.2}],
    "evaluation": {"every": 10},
    "topology": {"kind": "complete", "weights": "metropolis"},
}
FIRST, LIAR = 20, "s2"
POISON = {LIAR: Poison(FIRST)}
HONEST = ["s0", "s1", "s3", "s4"]
ALARMS_OFF = "[alarm]\nnorm = 0.0\nloss = 0.0\naccuracy = 0.0\n"


def planned(folder: Path, on_alarm: str, table: dict[str, Any] = FIVE) -> MemorySites:
    sites = MemorySites(plan_sites(folder, table, 5), folder)
    for place in sites.folders():
        path = place / "site.toml"
        path.write_text(path.read_text().replace('on_alarm = "continue"', f'on_alarm = "{on_alarm}"'))
    return sites


def until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.02)


def states(sites: MemorySites) -> dict[str, str]:
    return {name: runner.status.status().state for name, runner in list(sites.runners.items())}


def check_honest(sites: MemorySites) -> None:
    """The honest sites have their optimum, and Σ(y − g) = 0."""
    final = [sites.end(name, LIAR).final for name in HONEST]
    states: list[Any] = [snapshot.state for snapshot in final if snapshot is not None]
    assert float(sum(state.y - state.g for state in states).norm()) < 1e-12
    expected = optimum(quadratics(5), [0, 1, 3, 4])
    assert max(float((state.x[0] - expected).norm()) for state in states) < 1e-12


@pytest.mark.slow
def test_sites_that_hold_have_used_nothing_of_an_evicted_one(tmp_path: Path) -> None:
    sites = planned(tmp_path, "hold")
    sites.start(poison=POISON)
    until(lambda: [states(sites).get(name) for name in HONEST] == ["holding"] * 4)
    for name in HONEST:
        (alarm,) = sites.events(name, "alarm")
        assert (alarm["level"], alarm["round"], alarm["kind"]) == ("error", FIRST + 1, "norm")
        assert "a message of s2 has the norm" in alarm["why"]
        assert read_alarms(sites.folder / name) == (Alarm("norm", LIAR, FIRST + 1),)
        status = sites.runners[name].status.status_for("operator")
        assert "alarm (norm of messages of s2, since round 21)" in " ".join(_remarks(StatusAnswer(name, status)))
    assert main(["evict", str(sites.folder), LIAR, "--why", "its features are a thousand times too large"]) == 0
    check_honest(sites)
    with pytest.raises(ConfigError, match="the operator has evicted s2 from this training: its features are"):
        sites.end(LIAR)
    for name in HONEST:
        assert [event["round"] for event in sites.events(name, "evicted")] == [FIRST + 1]
        (change,) = entries(sites.folder / name, Membership)
        assert (change.event, change.site) == ("evicted", LIAR)
        assert not read_alarms(sites.folder / name)
    check_records(sites.folders())


@pytest.mark.slow
def test_a_poisoned_model_is_taken_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sites = planned(tmp_path, "continue")
    sites.start(poison={LIAR: Poison(FIRST, 3.0)})  # a wrong model, but not an infinite one
    for name in sites.names:
        sites.end(name)
    found = [site_rounds(folder) for folder in sites.folders(*HONEST)]
    assert max(shared_rounds(found)) == 130
    assert main(["evict", str(sites.folder), LIAR, "--why", "poison"]) == 0
    assert main(["rollback", str(sites.folder), "--to", "64"]) == 0
    assert "s2" not in capsys.readouterr().out.partition("s0: from")[2]
    sites.start(*HONEST)
    check_honest(sites)


@pytest.mark.slow
def test_the_checkpoints_before_an_alarm_stay_at_all_sites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only s0 looks at norms; the others keep theirs because s0 has an alarm."""
    small = {"kind": "net-fleet", "K": 2, "eta": 1e-5}
    sites = planned(tmp_path, "continue", {**FIVE, "rounds": 40, "algorithms": [small]})
    for folder in sites.folders():
        path = folder / "site.toml"
        text = path.read_text().replace("keep = 16", "keep = 4")
        path.write_text(text if folder.name == "s0" else text.partition("[alarm]")[0] + ALARMS_OFF)
    sites.start(poison=POISON)
    for name in sites.names:
        sites.end(name)
    assert 20 not in kept_rounds(40, 4)
    assert available(sites.folder / "s0") == sorted(kept_rounds(FIRST + 1, 4) | kept_rounds(40, 4))
    assert [read_alarms(folder) != () for folder in sites.folders()] == [True, False, False, False, False]
    assert main(["rollback", str(sites.folder)]) == 0
    said = capsys.readouterr().out
    assert "The first alarm was in round 21: norm of messages of s2 (at s0)." in said
    assert "To go back to before it: --to 20" in said
    assert main(["release", str(sites.folder / "s0")]) == 0
    assert not read_alarms(sites.folder / "s0")


def test_a_site_that_holds_goes_on_when_somebody_has_looked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sites = planned(tmp_path, "hold", {**FIVE, "rounds": 5})
    (sites.folder / "s0" / "alarm.json").write_text('[{"kind": "loss", "site": "", "round": 0}]')
    sites.start()
    until(lambda: states(sites).get("s0") == "holding")
    assert main(["release", str(sites.folder / "s0")]) == 0
    assert "s0: released (loss, since round 0)" in capsys.readouterr().out
    for name in sites.names:
        assert sites.end(name).rounds == 5
    assert [event["round"] for event in sites.events("s0", "released")] == [0]
    assert main(["release", str(sites.folder / "s0")]) == 0
    assert "s0: there is no alarm" in capsys.readouterr().out


LOSS = '[{"kind": "loss", "site": "", "round": 3}]'


def test_a_site_that_is_started_again_still_holds(tmp_path: Path) -> None:
    """It sends nothing new before somebody has looked, and needs no further round to leave."""
    sites = planned(tmp_path, "hold", {**FIVE, "rounds": 5})
    sites.start()
    for name in sites.names:
        sites.end(name)
    roll_back(sites.folders(), 2)
    for name in ("s0", "s1"):
        (sites.folder / name / ALARM_FILE).write_text(LOSS)
    sites.start()
    until(lambda: [states(sites).get(name) for name in ("s0", "s1")] == ["holding"] * 2)
    until(lambda: len(sent_rounds(sites, "s3")) == 6)  # the others have sent, and wait
    assert sent_rounds(sites, "s0") == sent_rounds(sites, "s1") == [*range(5)]
    (sites.folder / "s1" / "leave").touch()
    until(lambda: bool(sites.events("s1", "leaving")))
    assert main(["release", str(sites.folder / "s0")]) == 0
    for name in sites.names:
        sites.end(name)
    assert sent_rounds(sites, "s0") == [*range(5), 2, 3, 4]
    assert sent_rounds(sites, "s1") == [*range(5)]
    assert sites.events("s1", "leaving")[0]["round"] == 2


def sent_rounds(sites: MemorySites, name: str) -> list[int]:
    """Of which rounds a site has offered messages, in turn."""
    return [sent.round for sent in entries(sites.folder / name, Sent) if sent.what == "message"]


def alarms_of(folder: Path) -> tuple[Alarms, io.StringIO]:
    sites, log = plan_sites(folder, QUADRATICS, 4), io.StringIO()
    return Alarms(folder / "plan" / "s0", sites.sites[0], Log("s0", log, as_json=True), Waits(0, {})), log


def test_what_stays_unusual_in_one_exchange_of_each_round_raises_one_alarm(tmp_path: Path) -> None:
    alarms, log = alarms_of(tmp_path)
    usual, unusual = {0: [1.0], 1: [1.0], 2: [1.0]}, {0: [1.0], 1: [1.0], 2: [1e6]}
    for t in range(4):
        alarms.check_norms(t, 0, unusual, "s{}".format)
        alarms.check_norms(t, 1, usual, "s{}".format)
    assert [json.loads(line)["round"] for line in log.getvalue().splitlines()] == [0]
    alarms.check_norms(4, 0, usual, "s{}".format)
    alarms.check_norms(5, 0, unusual, "s{}".format)
    assert [json.loads(line)["round"] for line in log.getvalue().splitlines()] == [0, 5]


def test_no_alarm_is_released_unseen(tmp_path: Path) -> None:
    alarms, _ = alarms_of(tmp_path)
    folder, raised, seen = tmp_path / "plan" / "s0", range(100), set[str]()

    def raise_all() -> None:
        for t in raised:
            values = {0: [1.0], 1: [1.0], 1000 + t: [1e6]}
            alarms.check_norms(t, t, values, "s{}".format)

    thread = threading.Thread(target=raise_all)
    thread.start()
    while thread.is_alive():
        seen |= {alarm.site for alarm in release(folder)}
    assert seen | {alarm.site for alarm in read_alarms(folder)} == {f"s{1000 + t}" for t in raised}


def test_who_leaves_while_a_message_is_held_is_told_what_is_needed(tmp_path: Path) -> None:
    folder = tmp_path / "s0"
    site = replace(plan_sites(tmp_path, QUADRATICS, 4).sites[0], on_alarm="hold")
    folder.mkdir()
    assert not holds_message(site, folder)
    (folder / ALARM_FILE).write_text(LOSS)
    assert not holds_message(site, folder)  # it holds between two rounds, where it can leave
    (folder / ALARM_FILE).write_text('[{"kind": "norm", "site": "s2", "round": 3}]')
    assert "(norm of messages of s2, since round 3): netfleet release" in holds_message(site, folder)
    assert not holds_message(replace(site, on_alarm="continue"), folder)
