"""Comparisons over seeds: paired differences, labels of several folders, tables as files, and what a user reads."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netfleet import ConfigError, History
from netfleet.cli import main
from netfleet.report.comparison import Question, compare, sheet
from netfleet.report.export import Sheet, as_csv, as_latex, as_markdown
from netfleet.report.forest import draw_comparison
from netfleet.report.intervals import interval
from netfleet.runs.compare import find_runs
from netfleet.runs.config import config_hash


def run(label: str, seed: int, *accuracies: float, folder: Path | None = None, **config: Any) -> History:
    """A history with an evaluation after every tenth round."""
    algorithm = {"kind": label.lower(), "eta": config.pop("eta", 0.1)}
    config = {"rounds": 10 * len(accuracies), "algorithm": algorithm, "seed": seed, **config}
    history = History(config, config_hash(config), label, seed, folder=folder)
    if folder is not None:
        history.write_config()
    for t, accuracy in enumerate(accuracies, start=1):
        history.append({"round": 10 * t, "accuracy": accuracy, "loss": 1 - accuracy, "distance2": None})
    return history


OURS, THEIRS = (0.9, 0.94, 0.92), (0.85, 0.9, 0.8)
RUNS = [run(label, s, 0.5, v) for label, values in (("ours", OURS), ("theirs", THEIRS)) for s, v in enumerate(values)]


def test_differences_are_taken_seed_by_seed_to_the_best() -> None:
    found = compare(RUNS, Question())
    assert (found.column, found.reference, found.notes) == ("accuracy", "ours", ())
    assert [entry.row.label for entry in found.entries] == ["ours", "theirs"]
    assert found.entries[0].gap is None
    assert found.entries[1].gap == interval([b - a for a, b in zip(OURS, THEIRS, strict=True)])
    other = compare(RUNS, Question(reference="theirs")).entries[0].gap
    assert other == interval([a - b for a, b in zip(OURS, THEIRS, strict=True)])
    losses = compare(RUNS, Question(column="loss"))
    assert losses.reference == "ours"  # the lower, the better
    assert losses.entries[1].gap.mean == pytest.approx(-found.entries[1].gap.mean)  # type: ignore[union-attr]


SCORES = st.lists(st.tuples(*[st.floats(0, 1)] * 3), min_size=2, max_size=6)


@given(SCORES)
def test_what_a_seed_adds_to_every_method_does_not_change_the_differences(scores: list[tuple[float, ...]]) -> None:
    def gap(common: float) -> Any:
        pairs = [(s, a + common * c, b + common * c) for s, (a, b, c) in enumerate(scores)]
        histories = [h for s, a, b in pairs for h in (run("a", s, a), run("b", s, b))]
        (entry,) = (e for e in compare(histories, Question(reference="a")).entries if e.row.label == "b")
        return entry.gap

    assert gap(10.0) == pytest.approx(gap(0.0), abs=1e-12)


def test_the_best_and_any_round_can_be_compared() -> None:
    histories = [run("a", 0, 0.3, 0.9, 0.6), run("b", 0, 0.5, 0.7, 0.7)]
    assert compare(histories, Question()).reference == "b"
    assert compare(histories, Question(at="best")).entries[0].row.values["accuracy"].mean == 0.9
    assert compare(histories, Question(at=10)).reference == "b"
    with pytest.raises(ConfigError, match="no run has a value of accuracy after round 15; there are values after: 10"):
        compare(histories, Question(at=15))


def test_rounds_to_a_target_are_counted_over_the_seeds_that_reach_it() -> None:
    histories = [run("a", 0, 0.3, 0.8), run("a", 1, 0.8, 0.9), run("b", 0, 0.9, 0.9), run("b", 1, 0.3, 0.4)]
    rows = {row[0]: row[-1] for row in sheet(compare(histories, Question(target=0.75))).rows}
    assert rows == {"a": "15", "b": "10 (1 of 2 seeds)"}
    assert sheet(compare(histories, Question(target=0.95))).rows[0][-1] == "–"
    losses = sheet(compare(histories, Question(column="loss", target=0.25)))
    assert (losses.headings[-1], {row[0]: row[-1] for row in losses.rows}) == ("rounds to 0.25", rows)
    for target in (90.0, math.nan):
        with pytest.raises(ConfigError, match=r"0\.9"):
            compare(histories, Question(target=target))


def test_what_a_reader_must_know_is_noted() -> None:
    lost = run("lost", 0, 0.2)
    lost.mark_diverged("it did", durable=True)
    partly = run("partly", 1, 0.2)
    partly.mark_diverged("it did", durable=True)
    alone, unfinished = run("alone", 7, 0.9, 0.8), run("open", 0, 0.4, rounds=500)
    found = compare([*RUNS, lost, run("partly", 0, 0.5, 0.6), partly, alone, unfinished], Question(reference="ours"))
    assert found.notes[:2] == (
        "open: 1 of 1 runs are not finished (round 10 of 500); --at 10 compares all there",
        "alone shares no seed with ours, so they have no paired difference",
    )
    assert "open, partly share one seed with ours, so these differences have no interval" in found.notes
    one = compare([*RUNS, unfinished], Question(reference="ours")).notes
    assert "open shares one seed with ours, so their difference has no interval" in one
    many = compare([*RUNS, *(run(label, 0, 0.3) for label in "abcd")], Question(reference="ours")).notes
    assert "4 methods share one seed with ours, so these differences have no interval" in many
    assert "partly: 1 of 2 seeds diverged after round 10" in found.notes
    assert found.notes[-1] == "the runs differ not only in the algorithm but also in rounds"
    cells = {row[0]: row[1:] for row in sheet(found).rows}
    assert cells["lost"] == ("1", "diverged", "–")
    assert cells["partly"][0] == "1 of 2"
    assert cells["alone"][-1] == "–"
    assert cells["open"][-1] == "-50.00"
    figure = draw_comparison(found, [*RUNS, lost, partly, alone, unfinished, run("partly", 0, 0.5, 0.6)])
    words = [text.get_text() for text in figure.axes[0].texts]
    assert {"ours", "diverged", "no shared seed"} <= set(words)


@pytest.mark.parametrize(
    ("question", "words"),
    [
        (
            Question(column="acuracy"),
            r"no run has a column 'acuracy' \(did you mean 'accuracy'\?\); there are: accuracy, loss$",
        ),
        (Question(column="distance2"), "no run has a column 'distance2'"),
        (Question(reference="our"), r"no method is called 'our' \(did you mean 'ours'\?\); there are: ours; theirs"),
    ],
)
def test_a_bad_question_gets_one_clear_sentence(question: Question, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        compare(RUNS, question)


def test_runs_without_an_evaluation_cannot_be_compared() -> None:
    with pytest.raises(ConfigError, match="none of the runs has an evaluation yet"):
        compare([run("a", 0)], Question())
    found = compare([*RUNS, run("new", 0, rounds=5)], Question())
    assert found.notes[0] == "new: 1 of 1 runs are not finished (round 0 of 5); it has no evaluation yet"


def test_labels_tell_folders_and_settings_apart(tmp_path: Path) -> None:
    for name, eta in (("x", 0.1), ("y", 0.1)):
        for seed in (0, 1):
            run("DSGD", seed, 0.5, folder=tmp_path / name / f"dsgd-seed{seed}", eta=eta)
    run("only", 0, 0.5, folder=tmp_path / "y" / "only-seed0")
    for eta in (0.1, 0.3):
        run("tuned", 0, 0.5, folder=tmp_path / "tune" / f"{eta}", eta=eta)
    found = find_runs([tmp_path / "x", tmp_path / "y", tmp_path / "x"])
    assert [(h.label, h.seed) for h in found] == [
        ("x: DSGD", 0),
        ("x: DSGD", 1),
        ("y: DSGD", 0),
        ("y: DSGD", 1),
        ("only", 0),
    ]
    assert [h.label for h in find_runs([tmp_path / "tune"])] == ["tuned, eta = 0.1", "tuned, eta = 0.3"]
    assert {h.label for h in find_runs([tmp_path / "x"])} == {"DSGD"}
    assert {h.label for h in find_runs([tmp_path / "x" / "dsgd-seed0"])} == {"DSGD"}
    run("DSGD", 0, 0.5, folder=tmp_path / "x" / "copy")
    with pytest.raises(ConfigError, match="both hold DSGD with seed 0; delete or move one of them"):
        find_runs([tmp_path / "x"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "nowhere is not a folder; give a folder that `netfleet run`, `tune` or `sweep` wrote"),
        (["."], "no runs in ."),
        ([".", "--at", "first"], "--at takes last, best or the number of a round, got 'first'"),
        ([".", "--write", "table.xlsx"], "the name 'table.xlsx' must end in .csv, .md, .tex"),
        ([".", "--figure", "figure.gif"], "the name 'figure.gif' must end in .png, .pdf, .svg"),
    ],
)
def test_bad_arguments_are_refused(
    arguments: list[str], words: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_the_command_prints_writes_and_draws(tmp_path: Path, capsys: Any) -> None:
    for history in RUNS:
        run(history.label, history.seed, *history["accuracy"], folder=tmp_path / f"{history.label}-{history.seed}")
    files = [tmp_path / f"table.{suffix}" for suffix in ("csv", "md", "tex")]
    options = [word for file in files for word in ("--write", str(file))]
    assert main(["compare", str(tmp_path), *options, "--figure", str(tmp_path / "f.svg"), "--target", "0.85"]) == 0
    said = capsys.readouterr().out
    assert "theirs" in said
    assert "rounds to 85 %" in said
    assert (tmp_path / "f.svg").read_text().startswith("<?xml")
    assert main(["compare", str(tmp_path), "--format", "csv"]) == 0
    first, second = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (first["method"], first["difference"], second["shared_seeds"]) == ("ours", "", "3")
    assert float(second["low"]) < float(second["difference"]) < min(0, float(second["high"]))
    assert [file.read_text().splitlines()[0] for file in files[1:]] == [
        "| method | seeds | accuracy, % | to ours [points, 95 % interval] | rounds to 85 % |",
        r"\begin{tabular}{lrrrr}",
    ]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, capsys: Any) -> None:
    run("a", 0, 0.5, folder=tmp_path / "a")
    for option, name in (("--write", "t.md"), ("--figure", "f.png")):
        assert main(["compare", str(tmp_path), option, str(tmp_path / "missing" / name)]) == 2
        assert f"cannot write {tmp_path / 'missing' / name}" in capsys.readouterr().err


def test_names_are_escaped() -> None:
    table = Sheet(("method", "loss"), (("a|b_c & 100 %", "-1.5 ± 0.2"), ("x", "1.0e-05 [0.1, 2]")), ({"m": 'a,"b'},))
    assert as_markdown(table).splitlines()[2] == "| a\\|b_c & 100 % | -1.5 ± 0.2 |"
    assert r"a|b\_c \& 100 \% & $-1.5 \pm 0.2$ \\" in as_latex(table)
    assert r"x & $1.0e-05\;[0.1, 2]$ \\" in as_latex(table)
    assert as_csv(table) == 'm\n"a,""b"\n'
