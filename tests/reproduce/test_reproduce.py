"""Reproduction: panel files, runs by hash, claims and verdicts, and the results that are committed."""

from __future__ import annotations

import io
import json
import math
import runpy
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from netfleet.algorithms.build import make_algorithm
from netfleet.cli import main
from netfleet.errors import CheckpointError, ConfigError
from netfleet.runs.config import config_hash
from netfleet.runs.divergence import divergence
from netfleet.runs.history import History
from netfleet.runs.progress import Quiet, in_words
from reproduce import output, runs
from reproduce.claims import WINDOW, Claim, Verdict, judge, smoothed
from reproduce.panels import choose, find_panels, load_panel, merged, scaled
from reproduce.store import Store, file_name, read
from support.problems import need_data

ROOT = Path(__file__).parents[2] / "reproduce"
BASE = """
rounds = 8
checkpoint_every = 2
[topology]
workers = 4
[problem]
data = "digits"
partition = { kind = "shards", per_worker = 2 }
model = "softmax"
[evaluation]
every = 2
full_every = 4
"""
PANEL = """
title = "K"
figure = "fig"
base = "base/small.toml"
[experiment]
algorithm = { kind = "net-fleet", K = 2, eta = 0.05 }
[[curves]]
label = "K = 1"
algorithm.K = 1
[[curves]]
label = "K = 2"
[[claims]]
number = "1"
text = "K = 2 is ahead"
paper = "ahead"
measure = { kind = "lead", of = "K = 2", over = "K = 1" }
at_least = 0.0
"""


def write_panels(folder: Path) -> Path:
    """Two panels that share a run."""
    (folder / "base").mkdir()
    (folder / "base" / "small.toml").write_text(BASE)
    (folder / "figa.toml").write_text(PANEL)
    (folder / "figb.toml").write_text(PANEL.replace("algorithm.K = 1", "algorithm.K = 3").replace("K = 1", "K = 3"))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_panels(tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of figa, made once."""
    folder = write_panels(tmp_path_factory.mktemp("made"))
    runs.make(runs.planned([load_panel(folder / "figa.toml")]), Store(folder / "results"), folder / "work")
    return folder / "results"


@pytest.fixture
def stored(folder: Path, made: Path) -> Store:
    """The folder has the results of figa."""
    shutil.copytree(made, folder / "results")
    return Store(folder / "results")


def history(accuracies: Sequence[float | None], label: str = "", seed: int = 0, every: int = 1) -> History:
    records = [{"round": every * i, "accuracy": a} for i, a in enumerate(accuracies)]
    return History({}, "", label, seed, records)


def page_script() -> dict[str, Any]:
    """What docs/make_reproduction.py defines."""
    return runpy.run_path(str(ROOT.parent / "docs" / "make_reproduction.py"))


def claim(measure: dict[str, Any], **bounds: Any) -> Claim:
    return Claim("1", "text", "paper", measure, **bounds)


# Panels


def test_tables_are_merged_key_by_key_until_the_kind_changes() -> None:
    base = {"a": {"kind": "x", "p": 1, "q": {"r": 1}}, "b": 1, "c": "word"}
    assert merged(base, {"a": {"p": 2}}) == {"a": {"kind": "x", "p": 2, "q": {"r": 1}}, "b": 1, "c": "word"}
    assert merged(base, {"a": {"kind": "y", "p": 2}})["a"] == {"kind": "y", "p": 2}
    assert merged(base, {"a": "word", "c": {"kind": "z"}}) == {"a": "word", "b": 1, "c": {"kind": "z"}}
    assert base["a"] == {"kind": "x", "p": 1, "q": {"r": 1}}, "the base is left as it was"


def test_a_panel_has_an_experiment_per_curve(folder: Path) -> None:
    panel = load_panel(folder / "figa.toml")
    assert [curve.label for curve in panel.curves] == ["K = 1", "K = 2"]
    assert [curve.experiment.algorithms[0]["K"] for curve in panel.curves] == [1, 2]
    assert {curve.experiment.rounds for curve in panel.curves} == {8}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("title", "titel"), "unknown key 'titel'.*did you mean 'title'"),
        (('label = "K = 2"', "algorithm.K = 5"), "a curve must be a table with a label"),
        (('kind = "net-fleet", ', ""), "curve 'K = 1': .*no kind"),
        (("algorithm.K = 1", "algorithm.K = 0"), "curve 'K = 1': .*K"),
        (("[experiment]", '[experiment]\nproblem.model = "cnnn"'), "curve 'K = 1': unknown model 'cnnn'"),
        (('over = "K = 1"', 'over = "K = 9"'), "names 'K = 9'"),
        (('kind = "lead"', 'kind = "leads"'), "unknown measure 'leads'"),
        (("at_least = 0.0", ""), "could not fail"),
        (
            ('figure = "fig"', 'figure = "fig"\naxes = ["seconds"]'),
            "axes in .* must be a list of one of 'round', .* got \\['seconds'\\]",
        ),
        (("small.toml", "smal.toml"), "cannot read"),
        (("[[claims]]", "[[claims"), "not valid TOML"),
        (('label = "K = 2"', 'label = "K = 1"\nalgorithm.K = 5'), "each with a label of its own"),
        (('kind = "lead", of = "K = 2", over = "K = 1"', 'kind = "range", of = ["K = 2"]'), "needs 2 curves or more"),
        (('over = "K = 1"', "over = []"), "needs a curve or more in of, and in over"),
        (("at_least = 0.0", "at_least = 95"), "bounds are shares"),
        (("at_least = 0.0", "at_least = 0.2\nat_most = 0.1"), "could not hold"),
        (('figure = "fig"', 'figure = "fig"\naxes = []'), "axes has \\[\\], expected"),
        (('figure = "fig"', 'figure = "fig"\nzoom = 90'), "zoom is an accuracy"),
        (('figure = "fig"', 'figure = "../fig"'), "figure must be letters"),
        (('figure = "fig"', 'figure = "all"'), "figure must be letters"),
        (('figure = "fig"', 'figure = "fig"\nlike = "figa"'), "figa.toml is like itself: figa → figa"),
        (('figure = "fig"', 'figure = "fig"\nchanges = {}'), "unknown key 'changes'"),
        (("[experiment]", "[experiment]\nalgorithms = []"), "a curve has one algorithm"),
        (('kind = "lead", of = "K = 2", over = "K = 1"', 'kind = "lowest", of = []'), "needs a curve or more"),
    ],
)
def test_a_bad_panel_file_is_refused_in_words(folder: Path, change: tuple[str, str], message: str) -> None:
    assert change[0] in PANEL
    (folder / "figa.toml").write_text(PANEL.replace(*change))
    with pytest.raises(ConfigError, match=message):
        load_panel(folder / "figa.toml")


def test_names_choose_panels_and_figures(folder: Path) -> None:
    panels = find_panels(folder)
    assert [p.name for p in choose(panels, ["figb"])] == ["figb"]
    assert [p.name for p in choose(panels, ["figb", "fig"])] == ["figb", "figa"]
    assert [p.name for p in choose(panels, ["all"])] == ["figa", "figb"]
    with pytest.raises(ConfigError, match=r"no figure or panel 'figc' \(did you mean 'fig[ab]?'\?\); known: all, fig"):
        choose(panels, ["figc"])
    with pytest.raises(ConfigError, match="no panel files"):
        find_panels(folder / "base" / "none")


def test_the_panels_of_a_figure_share_their_axes(folder: Path) -> None:
    (folder / "figb.toml").write_text('axes = ["bytes"]\n' + PANEL)
    with pytest.raises(ConfigError, match="figa and figb belong to fig; give them the same axes and zoom"):
        find_panels(folder)


def test_a_variant_changes_every_curve_of_the_panel_it_is_like(folder: Path) -> None:
    (folder / "figc.toml").write_text(
        'like = "figa"\nfigure = "other"\n[experiment]\nalgorithm.eta = 0.5\nrounds = 6\n'
    )
    panel, variant = load_panel(folder / "figa.toml"), load_panel(folder / "figc.toml")
    assert (variant.figure, variant.claims, variant.title) == ("other", panel.claims, panel.title)
    for old, new in zip(panel.curves, variant.curves, strict=True):
        assert new.experiment.algorithms[0] == old.experiment.algorithms[0] | {"eta": 0.5}
        assert (new.label, new.experiment.rounds) == (old.label, 6)


def test_all_goes_by_order(folder: Path) -> None:
    (folder / "figb.toml").write_text("order = 1\n" + PANEL)
    assert [p.name for p in choose(find_panels(folder), ["all"])] == ["figb", "figa"]


def test_all_leaves_out_what_is_large(folder: Path) -> None:
    (folder / "figa.toml").write_text("large = true\n" + PANEL)
    assert [p.name for p in choose(find_panels(folder), ["all"])] == ["figb"]
    assert [p.name for p in choose(find_panels(folder), ["fig"])] == ["figa", "figb"]


# Runs


class Counter(Quiet):
    """Counts the runs and rounds that are made, and may stop one."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.begun: list[str] = []
        self.rounds, self.stop_at = 0, stop_at

    def begin(self, label: str, done: int, rounds: int) -> None:
        self.begun.append(f"{label} from {done}")

    def round(self, t: int) -> None:
        self.rounds += 1
        if self.rounds == self.stop_at:
            raise KeyboardInterrupt


def test_a_run_that_two_panels_show_is_made_once(folder: Path) -> None:
    panels, store = list(find_panels(folder).values()), Store(folder / "results")
    todo = runs.planned(panels, store)
    assert [job.label for job in todo] == ["figa, K = 1, seed 0", "figa, K = 2, seed 0", "figb, K = 3, seed 0"]
    counter = Counter()
    runs.make(todo, store, folder / "work", counter)
    assert len(counter.begun) == 3
    assert runs.planned(panels, store) == []
    assert not list((folder / "work").iterdir()), "nothing is left over"
    found = runs.histories(panels[1], store)
    assert [h.label for h in found["K = 2"]] == ["K = 2"]


def test_an_interrupted_run_goes_on_from_its_checkpoint(folder: Path, made: Path) -> None:
    panel = load_panel(folder / "figa.toml")
    whole, broken = Store(made), Store(folder / "broken")
    with pytest.raises(KeyboardInterrupt):
        runs.make(runs.planned([panel]), broken, folder / "work", Counter(stop_at=8 + 5))
    again = Counter()
    todo = runs.planned([panel], broken)
    assert [job.work(folder / "work").rounds for job in todo] == [8 - 5]
    runs.make(todo, broken, folder / "work", again)
    assert len(again.begun) == 1, "the first run was finished and kept"
    assert "from 0" not in again.begun[0]
    for job in runs.planned([panel]):
        one, other = whole.load(job.run), broken.load(job.run)
        assert one is not None
        assert other is not None
        assert one.timeless() == other.timeless()


def test_a_run_that_another_command_makes_is_left_out(folder: Path) -> None:
    first, second = runs.planned([load_panel(folder / "figa.toml")])
    store = Store(folder / "results")
    with runs.locked_folder(folder / "work" / first.run.hash[:16]) as mine:
        assert mine
        assert runs.make([first, second], store, folder / "work") == [first]
    assert store.load(first.run) is None
    assert store.load(second.run) is not None


def test_a_run_that_was_made_meanwhile_is_not_made_again(folder: Path, stored: Store) -> None:
    counter = Counter()
    runs.make(runs.planned([load_panel(folder / "figa.toml")]), stored, folder / "work", counter)
    assert counter.begun == []
    assert not list((folder / "work").iterdir())


def test_the_time_left_counts_what_is_still_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("reproduce.runs.time.monotonic", lambda: clock[0])
    work = {
        "a": runs.Work(10, 1.0, "slow"),
        "b": runs.Work(10, 3.0, "slow"),
        "c": runs.Work(10, 1.0, "fast"),
        "d": runs.Work(5, 1.0, "?"),
    }
    display = runs.LiveTotal(Console(file=io.StringIO()), work | {"e": runs.Work(7, 1.0, "free")})
    display.begin("a", 0, 10)
    clock[0] = 20.0
    display.round(10)  # two seconds a unit
    display.end()
    assert display.left == pytest.approx(2 * 30 + 2 * (10 + 5 + 7))
    assert display.part == pytest.approx(20 / (20 + display.left))
    display.begin("b", 5, 10)  # further than was thought
    assert display.left == pytest.approx(2 * 15 + 2 * (10 + 5 + 7))
    display.end()  # it diverged
    assert display.left == pytest.approx(2 * (10 + 5 + 7))
    for label, rounds in (("c", 10), ("d", 5)):
        display.begin(label, 0, rounds)
        display.round(rounds)
        display.end()
    assert display.left > 0
    display.skip("e")
    assert display.part == 1.0
    assert display.aside() == "; 100 % of all, 0 s left"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(5, "5 s"), (90, "2 min"), (5400, "90 min"), (12_000, "3 h 20 min"), (7190, "2 h 0 min"), (59.7, "1 min")],
)
def test_durations_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


def test_a_short_run_is_the_first_part_of_the_whole(folder: Path, stored: Store) -> None:
    panel, store = load_panel(folder / "figa.toml"), stored
    short = scaled(panel, rounds=4)
    assert short.part == "4 of 8 rounds"
    runs.make(runs.planned([short]), store, folder / "work")
    (verdict, _) = output.judged_claims([short], store)[0].verdicts
    assert verdict is not None
    assert verdict.words.endswith("4 of 8 rounds)")
    for label, (long,) in runs.histories(panel, store).items():
        values = {r["round"]: r["accuracy"] for r in long}
        (part,) = runs.histories(short, store)[label]
        assert part.rounds == 4
        assert all(r["accuracy"] == values[r["round"]] for r in part if r["round"] in values)


def test_seeds_can_be_asked_for(folder: Path) -> None:
    panel = scaled(load_panel(folder / "figa.toml"), seeds=3)
    assert [(job.run.seed, job.run.label) for job in runs.planned([panel])] == [
        (seed, label) for seed in range(3) for label in ("K = 1", "K = 2")
    ]


def test_a_stored_run_can_be_verified(folder: Path, stored: Store) -> None:
    todo = runs.planned([load_panel(folder / "figa.toml")])
    checks = runs.verify(todo, stored, 4)
    assert [(check.rounds, check.different, check.largest) for check in checks] == [(4, 0, 0.0)] * 2
    assert all(check.values > 20 for check in checks)
    path = folder / "results" / file_name(todo[0].run.hash)
    content = json.loads(path.read_text())
    content["columns"]["accuracy"][1] += 0.25
    path.write_text(json.dumps(content))
    assert [(check.different, check.largest) for check in runs.verify(todo[:1], stored, 4)] == [(1, 0.25)]
    with pytest.raises(ConfigError, match="--verify 1 would verify nothing"):
        runs.verify(todo, stored, 1)


def test_what_a_second_run_lacks_counts_as_different(folder: Path) -> None:
    job = runs.planned([load_panel(folder / "figa.toml")])[0]
    check = runs.compare(job, history([0.1, 0.2, 0.3]), history([0.1, 0.2]), 2)
    assert (check.rounds, check.values, check.different) == (2, 6, 2)


def test_a_diverged_run_is_kept_with_its_reason(folder: Path) -> None:
    wild = PANEL.replace("eta = 0.05", "eta = 1e30").replace("at_least = 0.0", "at_least = -1.0")
    (folder / "figa.toml").write_text(wild)
    panel, store = load_panel(folder / "figa.toml"), Store(folder / "results")
    runs.make(runs.planned([panel]), store, folder / "work")
    assert runs.planned([panel], store) == []
    (line,) = output.judged_claims([panel], store)
    assert line.cells()[5:7] == ["–", "undecided: K = 2, K = 1 diverged"]
    assert page_script()["counts_of"]([line]) == "0 hold, 0 do not, 1 undecided"


# Store


def test_a_result_whose_config_was_changed_is_refused(folder: Path, stored: Store) -> None:
    job = runs.planned([load_panel(folder / "figa.toml")])[0]
    path = folder / "results" / file_name(job.run.hash)
    path.write_text(path.read_text().replace('"rounds": 8', '"rounds": 9'))
    with pytest.raises(CheckpointError, match="hash is not the file's name"):
        stored.load(job.run)
    path.write_text("{")
    with pytest.raises(CheckpointError, match="is not the result"):
        stored.load(job.run)


def test_a_stored_history_says_what_was_measured(folder: Path, stored: Store) -> None:
    job = runs.planned([load_panel(folder / "figa.toml")])[0]
    history = stored.load(job.run)
    assert history is not None
    assert history["round"].tolist() == [0, 2, 4, 6, 8]
    assert np.isfinite(history["worker_accuracy_mean"]).tolist() == [True, False, True, False, True]
    assert history.config == job.run.config


def test_results_outlive_options_that_netfleet_gains(
    folder: Path, stored: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    panel = load_panel(folder / "figa.toml")
    for job in runs.planned([panel]):  # as if there had been no evaluation.gradient when they were made
        history = stored.load(job.run)
        assert history is not None
        (folder / "results" / file_name(history.hash)).unlink()
        fewer = {key: value for key, value in history.config["evaluation"].items() if key != "gradient"}
        history.config = history.config | {"evaluation": fewer}
        history.hash = config_hash(history.config)
        stored.save(history)
    assert len(runs.planned([panel], stored)) == 2
    assert main(["reproduce", "--rehash", "--from", str(folder)]) == 0
    assert "2 results gained evaluation.gradient = true" in capsys.readouterr().out
    assert runs.planned([panel], stored) == []
    assert len(list((folder / "results").iterdir())) == 2
    assert main(["reproduce", "--rehash", "--from", str(folder)]) == 0
    assert "0 results have a new hash" in capsys.readouterr().out


# Claims


def test_smoothing_is_the_mean_of_the_last_values() -> None:
    values = [float(i * i % 7) for i in range(25)]
    found = smoothed(history(values), "accuracy")["accuracy"]
    expected = [np.mean(values[max(0, i - WINDOW + 1) : i + 1]) for i in range(25)]
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        ({"kind": "value", "of": "a"}, 0.5),
        ({"kind": "lowest", "of": ["a", "b", "c"]}, 0.5),
        ({"kind": "lead", "of": "c", "over": ["a", "b"]}, 0.2),
        ({"kind": "lead", "of": ["a", "c"], "over": "b"}, -0.2),
        ({"kind": "range", "of": ["a", "b", "c"]}, 0.4),
        ({"kind": "least-step", "of": ["a", "b", "c"]}, 0.2),
        ({"kind": "least-step", "of": ["a", "c", "b"]}, -0.2),
    ],
)
def test_measures(measure: dict[str, Any], expected: float) -> None:
    curves = {label: [history([0.0] * 5 + [v] * WINDOW)] for label, v in (("a", 0.5), ("b", 0.7), ("c", 0.9))}
    verdict = judge(claim(measure, at_least=0.0), curves)
    assert verdict is not None
    assert verdict.number == pytest.approx(expected)
    assert verdict.holds == (expected >= 0)


def test_the_end_is_the_mean_of_the_last_window() -> None:
    values = [0.1] * 30 + [0.80, 0.90] * (WINDOW // 2)
    verdict = judge(claim({"kind": "value", "of": "a"}, at_most=0.86), {"a": [history(values)]})
    assert verdict is not None
    assert verdict.number == verdict.low == verdict.high == pytest.approx(0.85)
    assert verdict.ours() == "85.0 %"


def test_a_verdict_is_decided_if_the_whole_interval_of_paired_differences_is_on_one_side() -> None:
    def verdict(*differences: float) -> Verdict:
        base = [0.5, 0.8, 0.9, 0.6, 0.7][: len(differences)]  # seeds differ by far more than the methods
        ends = {"a": [b + d for b, d in zip(base, differences, strict=True)], "b": base}
        curves = {label: [history([end] * 12, seed=i) for i, end in enumerate(found)] for label, found in ends.items()}
        made = judge(claim({"kind": "lead", "of": "a", "over": "b"}, at_least=0.0), curves)
        assert made is not None
        return made

    sure = verdict(0.010, 0.012, 0.014)
    assert (sure.number, sure.low, sure.high) == pytest.approx((0.012, 0.012 - 0.0049683, 0.012 + 0.0049683), abs=1e-6)
    assert (sure.words, sure.ours()) == ("holds", "+1.20 [0.70, 1.70]")
    assert verdict(-0.010, -0.012, -0.014).words == "does not hold"
    assert verdict(0.010, 0.012, -0.001).words == "too close to call"
    assert verdict(0.010, 0.012, -0.001).holds is None


def test_the_worst_pair_decides_and_not_the_worst_seed() -> None:
    """The least of noisy steps would lie below the least step even where all of them are equal."""
    steps = {"a": (0.5, 0.5, 0.5), "b": (0.6, 0.7, 0.65), "c": (0.8, 0.75, 0.85)}
    curves = {label: [history([v] * 12, seed=i) for i, v in enumerate(values)] for label, values in steps.items()}
    verdict = judge(claim({"kind": "least-step", "of": ["a", "b", "c"]}, at_least=0.0), curves)
    assert verdict is not None
    assert verdict.number == pytest.approx(0.15)


def test_seeds_are_paired() -> None:
    curves = {"a": [history([0.5] * 12, seed=0), history([0.9] * 12, seed=1)], "b": [history([0.8] * 12, seed=1)]}
    verdict = judge(claim({"kind": "lead", "of": "a", "over": "b"}, at_least=0.05), curves)
    assert verdict is not None
    assert (verdict.number, verdict.seeds) == (pytest.approx(0.1), 1)


def test_the_range_over_seeds_needs_two() -> None:
    curves = {"a": [history([value] * 12, seed=seed) for seed, value in enumerate((0.91, 0.95, 0.93))]}
    check = claim({"kind": "seed-range", "of": "a"}, at_most=0.05)
    verdict = judge(check, curves, asked=3)
    assert verdict is not None
    assert (verdict.number, verdict.words, verdict.ours()) == (pytest.approx(0.04), "holds", "+4.00")
    assert judge(check, {"a": curves["a"][:1]}, asked=3) is None


def test_one_seed_that_decides_by_little_is_provisional() -> None:
    def words(number: float, seeds: int = 1) -> str:
        curves = {"a": [history([number] * 12, seed=seed) for seed in range(seeds)]}
        verdict = judge(claim({"kind": "value", "of": "a"}, at_least=0.95), curves)
        assert verdict is not None
        return verdict.words

    assert words(0.955) == "holds (provisional)"
    assert words(0.945) == "does not hold (provisional)"
    assert words(0.97) == "holds"
    assert words(0.955, seeds=2) == "holds"


def test_a_number_beside_its_bound_has_the_digits_that_tell_them_apart() -> None:
    verdict = judge(claim({"kind": "value", "of": "a"}, at_least=0.975), {"a": [history([0.9754] * 12)]})
    assert verdict is not None
    assert verdict.ours() == "97.54 %"


def test_overall_is_the_mean_over_rounds() -> None:
    uneven = History({}, "", "a", 0, [{"round": t, "accuracy": t / 10} for t in (0, 1, 2, 5, 10)])
    verdict = judge(claim({"kind": "value", "of": "a"}, take="overall", at_least=0.0), {"a": [uneven]})
    assert verdict is not None
    assert verdict.number == pytest.approx(0.5)


def test_a_column_that_is_measured_seldom_is_taken_in_the_same_rounds() -> None:
    records = [
        {"round": t, "accuracy": 0.9} | ({"worker_accuracy_mean": t / 40} if t % 4 == 0 else {}) for t in range(41)
    ]
    curves = {"a": [History({}, "", "a", 0, records)]}
    verdict = judge(claim({"kind": "value", "of": "a"}, at_least=0.0), curves, "worker_accuracy_mean")
    assert verdict is not None
    assert verdict.number == pytest.approx(np.mean([32, 36, 40]) / 40)


def test_without_runs_there_is_no_verdict() -> None:
    assert judge(claim({"kind": "value", "of": "a"}, at_least=0.0), {"a": []}) is None
    assert not claim({"kind": "value", "of": "a"}, at_least=0.0).holds(math.nan)


def test_the_tables_for_a_page(folder: Path) -> None:
    panel, store = scaled(load_panel(folder / "figa.toml"), seeds=2), Store(folder / "results")
    runs.make(runs.planned([panel])[:3], store, folder / "work")
    found, page = output.judged_claims([panel], store), page_script()
    head, _, row = (line.strip("| ").split(" | ") for line in page["markdown"](found).splitlines())
    assert len(head) == len(row) == 5
    assert row[:3] == ["figa", "K = 2 is ahead", "ahead (≥ +0.00)"]
    assert row[3].rstrip("*").endswith("1 of 2 seeds)")
    first, second = page["values"]([panel], store, "results/").splitlines()[2:]
    assert "±" in first, "two seeds"
    assert "±" not in second
    for run in (job.run for job in runs.planned([panel])[:3]):
        assert f"](results/{file_name(run.hash)})" in first + second


# The command


def test_the_command_runs_draws_and_judges(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--from", str(folder), "--work", str(folder / "work")]
    assert main(["reproduce", "fig", *where]) == 0
    said = capsys.readouterr().out
    assert "% of all" in said
    assert "holds" in said
    assert (folder / "figures" / "fig.png").stat().st_size > 10_000
    assert len(list((folder / "results").iterdir())) == 3
    assert main(["reproduce", "figa", "--draw", *where]) == 0
    assert (folder / "work" / "figures" / "figa.png").exists(), "a part of a figure is kept apart"
    assert len(list((folder / "figures").iterdir())) == 1
    assert main(["reproduce", "fig", "--verify", "2", *where]) == 0
    assert main(["reproduce", "--from", str(folder)]) == 0


def test_a_headline_panel_is_also_drawn_alone(folder: Path) -> None:
    (folder / "figb.toml").write_text("headline = true\n" + PANEL)
    where = ["--from", str(folder), "--work", str(folder / "work")]
    assert main(["reproduce", "figb", *where]) == 0
    assert [path.name for path in (folder / "figures").iterdir()] == ["figb.png"]
    assert main(["reproduce", "fig", *where]) == 0
    assert sorted(path.name for path in (folder / "figures").iterdir()) == ["fig.png", "figb.png"]


def test_other_scales_are_kept_apart(folder: Path) -> None:
    where = ["--from", str(folder), "--work", str(folder / "work")]
    assert main(["reproduce", "figa", "--rounds", "4", "--seeds", "2", *where]) == 0
    assert len(list((folder / "work" / "results").iterdir())) == 4
    assert (folder / "work" / "4-rounds-2-seeds" / "figa.png").exists()
    assert not (folder / "results").exists()


def test_runs_made_for_another_question_are_taken(folder: Path) -> None:
    where = ["--from", str(folder), "--work", str(folder / "work")]
    assert main(["reproduce", "figa", "--seeds", "2", *where]) == 0
    made = {path: path.stat().st_mtime_ns for path in (folder / "work" / "results").iterdir()}
    assert main(["reproduce", "figa", *where]) == 0
    assert len(list((folder / "results").iterdir())) == 2, "seed 0 of two curves, brought over"
    assert main(["reproduce", "figa", "--seeds", "3", *where]) == 0
    assert all(path.stat().st_mtime_ns == time for path, time in made.items())


def test_a_zoom_is_a_second_row_that_begins_higher(folder: Path) -> None:
    for name in ("figa", "figb"):
        (folder / f"{name}.toml").write_text("zoom = 0.5\n" + PANEL)
    panels, store = list(find_panels(folder).values()), Store(folder / "results")
    runs.make(runs.planned(panels), store, folder / "work")
    axes = output.draw(panels, store).axes
    assert [panel.get_title(loc="left") for panel in axes] == ["K", "K", "K, from 50%", "K, from 50%"]
    assert [panel.get_ylim()[0] == 0.5 for panel in axes] == [False, False, True, True]


def test_drawing_runs_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "all", "--draw", "--from", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "fig.png: no runs yet" in said
    assert "not run" in said
    assert not (folder / "results").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--rounds", "0"],
        ["--seeds", "0"],
        ["--from", "nowhere"],
        ["--verify", "5"],
        ["--out", "/dev/null/results"],
        ["--work", "/dev/null/work"],
    ],
)
def test_bad_input_is_said(folder: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "figa", "--from", str(folder), *arguments]) == 2
    assert "netfleet: error:" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--verify", "5"], ["--draw"], ["--seeds", "2"], ["--rounds", "2"]])
def test_options_without_names_are_refused(
    folder: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "--from", str(folder), *options]) == 2
    assert "name the figures or panels" in capsys.readouterr().err


def test_verifying_says_what_was_not_there(folder: Path, stored: Store, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--from", str(folder), "--work", str(folder / "work")]
    assert main(["reproduce", "fig", "--verify", "2", *where]) == 0
    assert "2 of 3 runs are stored and were verified" in capsys.readouterr().out
    path = next((folder / "results").iterdir())
    content = json.loads(path.read_text())
    content["columns"]["accuracy"][1] += 0.25
    path.write_text(json.dumps(content))
    assert main(["reproduce", "fig", "--verify", "2", *where]) == 1


def test_rehashing_names_the_unfinished_runs_that_are_lost(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = folder / "work"
    panel, store = load_panel(folder / "figa.toml"), Store(folder / "results")
    with pytest.raises(KeyboardInterrupt):
        runs.make(runs.planned([panel]), store, work, Counter(stop_at=3))
    assert main(["reproduce", "--rehash", "--from", str(folder), "--work", str(work)]) == 0
    assert "unfinished" not in capsys.readouterr().out
    for path in work.iterdir():
        path.rename(work / "0123456789abcdef")
    assert main(["reproduce", "--rehash", "--from", str(folder), "--work", str(work)]) == 0
    assert "0123456789abcdef" in "".join(capsys.readouterr().out.split())
    assert main(["reproduce", "--rehash", "--from", str(folder / "nowhere")]) == 2


# What is committed


def test_every_committed_result_belongs_to_a_panel() -> None:
    wanted = {file_name(job.run.hash) for job in runs.planned(list(find_panels(ROOT).values()))}
    found = {path.name for path in (ROOT / "results").glob("*.json")}
    assert found <= wanted, "no panel shows these; delete them"
    for path in sorted((ROOT / "results").glob("*.json")):
        stored = read(path)
        assert stored.diverged or stored.rounds == stored.config["rounds"]
        blown_up = divergence(stored.records, make_algorithm(stored.config["algorithm"]))
        assert stored.diverged or blown_up is None, f"{path.name} would now be marked: {blown_up}"


@pytest.mark.slow
def test_committed_numbers_are_what_the_configs_give() -> None:
    """The first rounds again, from the configs; other machines round otherwise, so equal to a tenth of a point."""
    need_data("mnist")
    panels = [load_panel(ROOT / f"tune-{name}.toml") for name in ("net-fleet", "gt-sgd")]
    todo = [job for job in runs.planned(panels) if job.run.label == "η = 0.01"]
    checks = runs.verify(todo, Store(ROOT / "results"), 4)
    assert len(checks) == len(todo)
    assert all(check.largest < 1e-3 for check in checks)


@pytest.mark.parametrize("name", ["tuned", "since"])
def test_the_tuned_comparisons_take_the_best_step_size_of_each_grid(name: str) -> None:
    panels, store = find_panels(ROOT), Store(ROOT / "results")
    chosen = [curve.experiment.algorithms[0] for curve in panels[name].curves]
    grids = []
    for algorithm in chosen:
        found = {}
        for curve in panels[f"tune-{algorithm['kind']}"].curves:
            history = store.load(curve.experiment.runs()[0])
            assert history is not None
            assert history.config["problem"]["validation"] > 0, "step sizes are not chosen on test data"
            last = [record["accuracy"] for record in history.records[-WINDOW:]]
            found[curve.experiment.algorithms[0]["eta"]] = -1.0 if history.diverged else float(np.mean(last))
        grids.append(sorted(found))
        assert algorithm["eta"] == max(found, key=lambda eta: found[eta]), algorithm["kind"]
    assert all(grid == grids[0] for grid in grids)
