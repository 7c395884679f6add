"""Reports: what a figure, the table and the page say is what the histories say."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from rich.cells import cell_len
from rich.console import Console

from netfleet.report import draw_curves, draw_labels, draw_overview, print_summary, summary, write_report
from netfleet.report.intervals import interval
from netfleet.report.live import POINTS, live_curves
from netfleet.report.plots import draw_spread, draw_tracking, label_powers, looks
from netfleet.report.table import best, cell, columns, verdict
from netfleet.runs.config import config_hash
from netfleet.runs.history import History, band, group
from netfleet.topology.topology import Topology, make_topology

CONFIG = {
    "rounds": 50,
    "topology": {"kind": "ring", "workers": 6, "weights": {"kind": "laplacian"}},
    "problem": {"kind": "classification", "data": {"kind": "digits"}, "partition": {"kind": "shards", "per_worker": 2}},
}


def history(
    label: str = "NET-FLEET",
    seed: int = 0,
    evaluations: int = 6,
    *,
    end: float = 0.9,
    labels: bool = True,
    optimum: bool = False,
    tracking: bool = True,
    diverged: bool = False,
) -> History:
    """A plausible run: everything improves towards `end`, and seeds differ a little."""
    records: list[dict[str, Any]] = []
    for k in range(evaluations):
        good = end * (1 - 2.0**-k) - 0.01 * seed * (k > 0)
        record: dict[str, Any] = {"round": 10 * k, "accuracy": good if labels else None, "loss": 2 - good, "eta": 0.05}
        for part, shift in (("mean", 0.0), ("min", -0.05), ("max", 0.05)):
            record[f"worker_accuracy_{part}"] = max(good + shift, 0.0) if labels else None
            record[f"worker_loss_{part}"] = 2 - good + shift
        record |= {"grad_norm2": 10.0**-k, "consensus_error": 0.0 if k == 0 else 10.0 ** (-k - seed)}
        record |= {"tracking_error": 1e-6 * k if tracking else None, "distance2": 10.0**-k if optimum else None}
        records.append(record | {"bytes": k * 5_000_000 + seed * k, "samples": 3200 * k, "seconds": 0.5 * k})
    if diverged:
        records[-1] |= {"loss": 1e30, "grad_norm2": 1e30, "consensus_error": 1e30}
    reason = f"{label} diverged: x is not finite" if diverged else None
    algorithm = {"kind": label.lower(), "K": 10, "eta": 0.05}
    return History({"algorithm": algorithm}, f"{seed:064x}", label, seed, records, reason)


def comparison(**kinds: Any) -> list[History]:
    return [
        history(label, seed, end=end, tracking=tracking, **kinds)
        for seed in (0, 1, 2)
        for label, end, tracking in (("GT-SGD", 0.8, True), ("NET-FLEET", 0.9, True), ("DSGD", 0.6, False))
    ]


def saved(figure: Figure) -> int:
    """Render it (warnings are errors) and return the number of bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=50)
    return len(buffer.getvalue())


def panel(figure: Figure, title: str) -> Any:
    return next(axes for axes in figure.axes if axes.get_title(loc="left") == title)


def lines_by_color(axes: Any) -> dict[str, np.ndarray]:
    return {
        to_hex(line.get_color()).upper(): line.get_xydata() for line in axes.get_lines() if len(line.get_xdata()) > 1
    }


# ---- bands and looks ----


def test_a_band_is_the_mean_and_range_over_seeds() -> None:
    runs = [history(seed=seed) for seed in (0, 1, 2)]
    accuracy = np.array([run["accuracy"] for run in runs])
    sent = np.array([run["bytes"] for run in runs])
    x, mean, low, high = band(runs, "accuracy", "bytes")
    np.testing.assert_allclose(x, sent.mean(axis=0))
    np.testing.assert_allclose(mean, accuracy.mean(axis=0))
    np.testing.assert_array_equal(low, accuracy.min(axis=0))
    np.testing.assert_array_equal(high, accuracy.max(axis=0))


def test_seeds_of_different_length_meet_by_round() -> None:
    long, short = history(seed=0, evaluations=6), history(seed=1, evaluations=3)
    x, mean, _, _ = band([short, long], "loss", "round")
    np.testing.assert_array_equal(x, long["round"])
    np.testing.assert_allclose(mean[:3], (long["loss"][:3] + short["loss"]) / 2)
    np.testing.assert_array_equal(mean[3:], long["loss"][3:])


def test_a_band_skips_what_is_missing_or_not_finite() -> None:
    run = history(evaluations=4)
    run.records[1]["loss"], run.records[2]["loss"] = None, float("inf")
    np.testing.assert_array_equal(band([run], "loss").x, [0, 30])
    assert len(band([run], "nonsense").x) == 0
    assert len(band([], "loss").x) == 0


def test_groups_keep_the_order_of_appearance() -> None:
    groups = group(comparison())
    assert list(groups) == ["GT-SGD", "NET-FLEET", "DSGD"]
    assert [run.seed for run in groups["DSGD"]] == [0, 1, 2]


def test_every_algorithm_looks_different_and_net_fleet_is_the_most_prominent() -> None:
    styles = looks([*(f"method {i}" for i in range(30)), "net_fleet, K = 5"])
    assert len({(s.color, s.dashes, s.marker) for s in styles.values()}) == 31
    ours = styles["net_fleet, K = 5"]
    assert all(ours.width > s.width and ours.zorder > s.zorder for label, s in styles.items() if s is not ours)
    assert all(ours.color != s.color for s in styles.values() if s is not ours)


# ---- figures ----


def test_curves_show_the_mean_of_each_algorithm() -> None:
    runs = comparison()
    drawn = lines_by_color(panel(draw_curves(runs), "Accuracy"))
    for label, look in looks(group(runs)).items():
        expected = band(group(runs)[label], "accuracy")
        np.testing.assert_allclose(drawn[look.color], np.c_[expected.x, expected.mean])


def test_logarithmic_panels_skip_zeros() -> None:
    axes = panel(draw_curves(comparison()), "Consensus error")
    assert axes.get_yscale() == "log"
    assert [len(points) for points in lines_by_color(axes).values()] == [5, 5, 5]  # round 0 is left out
    assert all((points[:, 1] > 0).all() for points in lines_by_color(axes).values())
    assert axes.get_ylim()[0] > 0


def test_an_algorithm_that_is_exactly_zero_is_named_instead_of_drawn() -> None:
    exact = history("FedAvg")
    for record in exact:
        record["consensus_error"] = 0.0
    axes = panel(draw_curves([history(), exact]), "Consensus error")
    assert [text.get_text() for text in axes.texts] == ["exactly 0: FedAvg"]
    saved(draw_curves([exact]))


@pytest.mark.parametrize(
    ("x", "label", "unit"),
    [
        ("round", "communication rounds", 1),
        ("bytes", "MB sent by all workers", 1e6),
        ("samples", "training samples used by all workers (thousands)", 1e3),
    ],
)
def test_horizontal_axes_have_units(x: Any, label: str, unit: float) -> None:
    run = history()
    axes = panel(draw_curves([run], x), "Loss")
    assert axes.get_xlabel() == label
    np.testing.assert_allclose(axes.get_lines()[0].get_xdata(), run[x] / unit)


def test_panels_without_accuracy() -> None:
    def titles(figure: Figure) -> list[str]:
        return [axes.get_title(loc="left") for axes in figure.axes]

    rest = ["Loss", "Consensus error", "Squared gradient norm"]
    assert titles(draw_curves(comparison())) == ["Accuracy", *rest]
    assert titles(draw_curves(comparison(labels=False, optimum=True))) == ["Distance to the optimum", *rest]
    assert titles(draw_curves(comparison(labels=False))) == rest
    assert [t.split(" over ")[0] for t in titles(draw_overview(comparison(labels=False)))[:3]] == ["Loss"] * 3


@pytest.mark.parametrize("evaluations", [0, 1])
@pytest.mark.parametrize("labels", [True, False])
def test_few_evaluations_can_be_drawn(evaluations: int, labels: bool) -> None:
    runs = [history(seed=seed, evaluations=evaluations, labels=labels) for seed in (0, 1)]
    figures = [draw_overview(runs), draw_spread(runs), draw_tracking(runs)]
    assert [figure is None for figure in figures] == [False, evaluations == 0, evaluations == 0]
    assert all(saved(figure) for figure in figures if figure is not None)


def test_a_diverged_run_ends_in_a_cross_and_leaves_mean_and_axis_alone() -> None:
    sound, lost = history("DSGD", 0), history("DSGD", 1, diverged=True)
    axes = panel(draw_curves([history(), sound, lost]), "Loss")
    color = looks(["NET-FLEET", "DSGD"])["DSGD"].color
    thick = next(line for line in axes.get_lines() if to_hex(line.get_color()).upper() == color)
    np.testing.assert_array_equal(thick.get_ydata(), sound["loss"])
    crosses = [line for line in axes.get_lines() if line.get_marker() == "X"]
    assert [(to_hex(cross.get_color()).upper(), cross.get_xdata()[0]) for cross in crosses] == [(color, 50)]
    assert crosses[0].get_ydata()[0] < axes.get_ylim()[1] < 5
    saved(draw_curves([lost]))


def test_labels_are_shown_as_they_are() -> None:
    names = ["_hidden", "$\\nonsense$", "<b>", "η = 0.1"]
    figure = draw_curves([history(name, evaluations=2) for name in names])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == names
    saved(figure)
    spread = draw_spread([history(name, evaluations=2) for name in names])
    assert spread is not None
    saved(spread)


def test_an_algorithm_keeps_its_look_where_others_are_missing() -> None:
    runs = [history("DSGD", tracking=False), history("GT-SGD"), history()]
    figure, styles = draw_tracking(runs), looks(group(runs))
    assert figure is not None
    assert set(lines_by_color(figure.axes[0])) == {styles["GT-SGD"].color, styles["NET-FLEET"].color}


def test_the_spread_covers_all_workers_of_all_seeds() -> None:
    runs = comparison()
    figure = draw_spread(runs)
    assert figure is not None
    path = panel(figure, "NET-FLEET").collections[0].get_paths()[0].vertices
    ours = group(runs)["NET-FLEET"]
    assert path[:, 1].max() == max(run["worker_accuracy_max"].max() for run in ours)
    assert path[:, 1].min() == min(run["worker_accuracy_min"].min() for run in ours)


@pytest.mark.parametrize(("workers", "classes"), [(1, 2), (4, 2), (50, 10), (539, 100)])
def test_labels_across_workers(workers: int, classes: int) -> None:
    counts = np.random.default_rng(0).poisson(2, (workers, classes))
    figure = draw_labels(counts)
    np.testing.assert_array_equal(figure.axes[0].images[0].get_array(), counts.T)
    low, high = counts.sum(axis=1).min(), counts.sum(axis=1).max()
    assert f"{low} to {high} samples" in figure.axes[0].get_title(loc="left") or low == high
    saved(figure)


def test_equal_totals_need_no_bars_and_empty_workers_do_no_harm() -> None:
    assert len(draw_labels(np.full((5, 3), 7)).axes) == 2  # the map and its colours
    saved(draw_labels(np.zeros((5, 3), dtype=int)))


def test_drawing_changes_no_global_setting() -> None:
    before = dict(matplotlib.rcParams)
    draw_overview([history()])
    draw_labels([[1, 2]])
    assert dict(matplotlib.rcParams) == before


# ---- table ----


def test_summary_is_the_last_value_over_seeds() -> None:
    runs = [history(seed=seed) for seed in (0, 1, 2)]
    (row,) = summary(runs)
    last = np.array([run.last["accuracy"] for run in runs])
    assert row.values["accuracy"].mean == pytest.approx(last.mean())
    assert row.values["accuracy"].std == pytest.approx(last.std(ddof=1))
    workers = row.values["worker_accuracy"]
    assert workers.low == min(run.last["worker_accuracy_min"] for run in runs)
    assert workers.high == max(run.last["worker_accuracy_max"] for run in runs)
    assert summary(runs[:1])[0].values["accuracy"].std is None


def test_columns_that_no_run_has_are_left_out() -> None:
    def names(**kinds: Any) -> set[str]:
        return {column.name for column in columns(summary([history(**kinds)]))}

    assert names() - names(labels=False) == {"accuracy", "worker_accuracy"}
    assert names(optimum=True) - names() == {"distance2"}


def test_the_best_is_marked_in_quality_columns_only() -> None:
    rows = summary(comparison())
    winners = {column.name: best(rows, column) for column in columns(rows)}
    assert winners["accuracy"] == winners["loss"] == {"NET-FLEET"}
    assert winners["bytes"] == winners["samples"] == winners["seconds"] == frozenset()
    assert not any(best(rows[:1], column) for column in columns(rows))


def test_diverged_runs_are_marked_and_never_the_best() -> None:
    rows = summary([history(), *(history("DSGD", seed, end=0.99, diverged=seed == 1) for seed in (0, 1))])
    assert rows[1].mark == "1 of 2 seeds diverged after round 50"
    assert rows[1].values["loss"].mean == pytest.approx(history(end=0.99).last["loss"])  # of the sound seed
    assert all(best(rows, column) <= {"NET-FLEET"} for column in columns(rows))
    assert summary([history(diverged=True)])[0].mark == "diverged after round 50"


def test_the_verdict_compares_the_two_best_seed_by_seed() -> None:
    assert verdict(summary(comparison())).startswith("NET-FLEET ends with the highest accuracy of x̄, 86.19 ± 1.00 %")
    close = [history(label, seed, end=end) for label, end in (("A", 0.9), ("B", 0.899)) for seed in (0, 1)]
    assert "the difference over 2 seeds is 0.10 to 0.10 points (95 % interval)" in verdict(summary(close))
    crossed = [
        history(label, seed, end=end)
        for seed, pair in enumerate(((0.9, 0.8), (0.8, 0.85)))
        for label, end in zip("AB", pair, strict=True)
    ]
    assert "2 seeds do not tell them apart" in verdict(summary(crossed))
    assert "seeds" not in verdict(summary([history("A"), history("B", end=0.8)]))
    assert "nearest to the optimum" in verdict(summary(comparison(labels=False, optimum=True)))
    assert verdict(summary([history()])) == ""


@pytest.mark.parametrize("width", [120, 100, 80, 60])
def test_the_table_fits_the_console_and_loses_nothing(width: int) -> None:
    runs = [*comparison(), history("[bold]lost[/bold]", diverged=True)]
    console = Console(width=width, file=io.StringIO())
    print_summary(runs, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    rows = summary(runs)
    assert "…" not in text
    assert all(cell_len(line.rstrip()) <= width for line in text.splitlines())
    assert all(cell(row, column) in text for row in rows for column in columns(rows) if not row.diverged)
    assert "[bold]lost" in text
    assert "diverged after round 50" in " ".join(text.split())


# ---- the page ----


class Page(HTMLParser):
    """What a browser would load and show."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]

    def handle_data(self, data: str) -> None:
        self.text += data


def report(path: Path, histories: list[History], *, labels: bool = True, **changes: Any) -> Page:
    topology: Topology = changes.pop("topology", None) or make_topology("ring", workers=6)
    counts = np.arange(60).reshape(6, 10) if labels else None
    given = {"config": CONFIG, "config_text": 'name = "ring"', "title": "Six workers", **changes}
    write_report(path, histories=histories, topology=topology, label_counts=counts, **given)
    return Page(path)


@pytest.fixture(scope="session")  # pytest would end that of a module when it has run the slow tests
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    hostile = history("<script>alert(1)</script>", diverged=True)
    text = 'name = "</pre><script>"'
    return report(
        tmp_path_factory.mktemp("report") / "report.html", [*comparison(), hostile], config_text=text, title="a <b> & c"
    )


@pytest.mark.slow
def test_the_page_is_self_contained(page: Page) -> None:
    assert page.links
    assert all(link.startswith("data:image/") for link in page.links)
    assert not re.search(r"url\(|@import|https?://", page.source)
    assert not {"link", "iframe", "object"} & set(page.tags)
    assert page.tags.count("script") == 2  # the numbers of the curves and what draws them, both in the page


def test_what_the_user_wrote_is_escaped(page: Page) -> None:
    assert page.source.count("<script") == 2  # the page's own
    assert "<script>alert" not in page.source
    assert "<script>alert(1)</script>" in page.text
    assert 'name = "</pre><script>"' in page.text
    assert "a <b> & c" in page.text
    assert "b" not in page.tags


def test_the_page_says_what_was_run_and_who_won(page: Page) -> None:
    words = " ".join(page.text.split())
    topology = make_topology("ring", workers=6)
    assert "over 6 workers" in words
    assert f"spectral gap {topology.gap:.3g}" in words
    assert "shards (per_worker = 2)" in words
    assert "K = 10, η = 0.05" in words
    assert verdict(summary(comparison())) in words
    assert "diverged after round 50" in words
    assert "netfleet run experiment.toml" in words
    assert f"{2:064x}" in words  # the hash of a run
    hostile = history("<script>alert(1)</script>", diverged=True)
    assert f"hash is {config_hash([run.hash for run in [*comparison(), hostile]])}" in words


def test_the_numbers_of_the_live_curves_are_those_of_the_histories(page: Page) -> None:
    found = re.search(r'<script type="application/json" id="live-data">(.*?)</script>', page.source, re.DOTALL)
    assert found is not None
    told, groups = json.loads(found[1]), group(comparison())
    assert [name for name, _ in told["quantities"]] == ["round", "bytes", "samples"]
    assert dict(told["quantities"])["bytes"] == "MB sent by all workers"
    assert told["first"] == "NET-FLEET"
    titles = [panel["title"] for panel in told["panels"]]
    assert titles == ["Accuracy", "Loss", "Consensus error", "Squared gradient norm", "Tracking error"]
    assert [panel["log"] for panel in told["panels"]] == [False, False, True, True, True]
    methods = {each["label"]: each for each in told["methods"]}
    for label, runs in groups.items():
        accuracy, sent = methods[label]["curves"][0], band(runs, "bytes").mean / 1e6
        for part in ("mean", "low", "high"):
            np.testing.assert_allclose(accuracy[part], getattr(band(runs, "accuracy"), part), 1e-5)
        np.testing.assert_allclose(methods[label]["xs"]["bytes"], sent, 1e-5)
    assert methods["NET-FLEET"]["curves"][0]["gap"] == []
    (lost,) = (each for each in told["methods"] if each["lost"])
    assert lost["label"] == "<script>alert(1)</script>, seed 0, diverged"
    assert lost["curves"][1]["mean"][-1] == 1e30
    mine, theirs = ({run.seed: run.records[5]["loss"] for run in groups[name]} for name in ("GT-SGD", "NET-FLEET"))
    expected = interval([mine[seed] - theirs[seed] for seed in mine])
    loss = methods["GT-SGD"]["curves"][1]
    np.testing.assert_allclose(loss["gap"][5], expected.mean, 1e-5)
    np.testing.assert_allclose(loss["half"][5], expected.high - expected.mean, 1e-5, 1e-12)


def test_a_long_run_is_thinned_with_its_first_and_last_evaluation() -> None:
    run = history(evaluations=3000)
    for t, record in enumerate(run.records):  # the powers of two of so many would underflow
        record |= {"round": t, "loss": 1 + t / 3000, "grad_norm2": 1.0, "consensus_error": 1.0}
    (method,) = live_curves([run], "NET-FLEET").methods
    assert len(method.xs["round"]) == POINTS
    assert (method.xs["round"][0], method.xs["round"][-1]) == (0, 2999)
    assert method.curves[1].mean[-1] == pytest.approx(run.records[-1]["loss"], rel=1e-5)


def test_the_page_has_every_figure_and_a_switch(page: Page) -> None:
    assert page.tags.count("img") == 7  # curves over three quantities, workers, graph, labels, tracking
    assert page.source.count('type="radio"') == 3
    assert page.source.count(" checked>") == 1


MEASURED = """<script>
const names = [...document.querySelectorAll("tbody th")].map(cell => {
  const range = document.createRange();
  range.selectNodeContents([...cell.childNodes].find(node => node.nodeType === 3 && node.data.trim()));
  return new Set([...range.getClientRects()].map(line => line.top)).size;
});
document.title = "lines: " + names;
</script></body>"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_names_are_not_broken_into_letters(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    names = ["NET-FLEET", "Momentum Tracking"]
    source = report(path, [history(name, seed) for name in names for seed in (0, 1)], labels=False).source
    path.write_text(source.replace("</body>", MEASURED), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    for width in (420, 1200):
        command = ["chromium", *flags, f"--window-size={width},900", "--dump-dom", path.as_uri()]
        shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
        found = re.search(r"<title>lines: ([\d,]+)</title>", shown)
        assert found is not None
        assert max(map(int, found[1].split(","))) <= 2, width


@pytest.mark.slow
def test_a_page_without_labels_or_tracking_is_the_same_each_time(tmp_path: Path) -> None:
    run = history("DSGD", labels=False, tracking=False)
    run.records = [{k: v for k, v in record.items() if k not in ("bytes", "samples")} for record in run]
    runs = [run]
    first = report(tmp_path / "a.html", runs, labels=False)
    second = report(tmp_path / "b.html", runs, labels=False)
    assert first.source == second.source
    assert first.tags.count("img") == 3  # curves over rounds, workers, graph
    assert "Labels across workers" not in first.text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "b.html"]


@pytest.mark.slow
def test_a_large_page_stays_small(tmp_path: Path) -> None:
    runs = [history(label, s, evaluations=100) for label in ("NET-FLEET", "A", "B", "C") for s in range(5)]
    topology = make_topology({"kind": "erdos-renyi", "p": 0.3}, workers=200)  # 6,000 links: drawn as pixels
    report(tmp_path / "large.html", runs, topology=topology)
    assert (tmp_path / "large.html").stat().st_size < 2_000_000


def test_importing_the_report_does_not_import_torch() -> None:
    code = "import netfleet.report, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_values_that_no_axis_can_hold_are_left_out() -> None:
    huge = history()
    for record, loss in zip(huge.records, (1.0, 10.0, 1e150, 1e250, 1e300, 1e307), strict=True):
        record |= {"loss": loss, "consensus_error": loss}
    assert saved(draw_curves([huge])) > 0


def test_powers_of_ten_are_plain_text() -> None:
    axis = Figure().subplots().yaxis
    axis.axes.set_yscale("log")
    axis.axes.set_ylim(1e-3, 1e2)
    label_powers(axis)
    major, minor = axis.get_major_formatter(), axis.get_minor_formatter()
    assert [major(value) for value in (1e-12, 1.0, 1e5)] == ["10⁻¹²", "10⁰", "10⁵"]
    axis.axes.set_ylim(1, 3)
    minor.set_locs([1.5, 2.0])
    assert [minor(value) for value in (1.5, 2.0)] == ["1.5×10⁰", "2×10⁰"]
