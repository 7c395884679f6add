"""What Python shows: results and their parts in a terminal and in a notebook, figures, progress."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import netfleet as nf
from netfleet.environment import in_notebook
from netfleet.problems.synthetic import Quadratics
from netfleet.runs import progress
from netfleet.runs.progress import InNotebook, Live, Quiet, progress_display

PARTS: dict[str, Any] = {"topology": "ring", "workers": 4, "problem": "quadratics", "rounds": 20}


@pytest.fixture(scope="module")
def results() -> nf.Results:
    return nf.run([nf.NetFleet(K=5), {"kind": "dsgd", "label": "a <b> & c"}], **PARTS, seeds=[0, 1])


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """What a notebook shows: `IPython`, as far as the progress display uses it."""
    shown: list[dict[str, str]] = []

    class ZMQInteractiveShell:
        pass

    class Handle:
        def __init__(self) -> None:
            self.place = len(shown) - 1

        def update(self, content: dict[str, str], raw: bool) -> None:
            shown[self.place] = content

    def display(content: dict[str, str], raw: bool, display_id: bool) -> Handle:
        shown.append(content)
        return Handle()

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=ZMQInteractiveShell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    return shown


def test_results_are_a_list_that_shows_its_table(results: nf.Results) -> None:
    assert [h.label for h in results] == ["NET-FLEET", "a <b> & c"] * 2
    assert (len(results), results[-1].seed, [h.seed for h in results[:2]]) == (4, 1, [0, 0])
    text, page = repr(results), results._repr_html_()
    assert text == results.table()
    assert text.splitlines()[2].startswith("NET-FLEET ")
    assert "\x1b" not in text
    assert page.count("<tr>") == 3
    assert "<td>a &lt;b&gt; &amp; c</td>" in page
    assert "<b>" in page  # of the best


def test_results_compare_methods_and_write_a_report(results: nf.Results, tmp_path: Path) -> None:
    found = results.compare("distance2", to="NET-FLEET")
    assert [entry.row.label for entry in found.entries] == ["NET-FLEET", "a <b> & c"]
    assert "reference" in repr(found)
    assert found._repr_html_().count("<tr>") == 3
    assert results.report(tmp_path / "r.html").read_text(encoding="utf-8").startswith("<!")
    assert len(results.to_dataframe()) == sum(map(len, results))
    with pytest.raises(nf.ConfigError, match="no run has a column 'accurracy'"):
        results.compare("accurracy")


def test_a_figure_shows_itself_and_is_saved(results: nf.Results, tmp_path: Path) -> None:
    for draw in (results.plot, results[0].plot):
        figure = draw(tmp_path / "f.png")
        assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
        assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


def test_texts_of_objects_are_short(results: nf.Results) -> None:
    topology, history = nf.make_topology("ring", workers=4), results[0]
    texts = {
        topology: "<Topology 'ring': 4 workers, 4 links, weights 'laplacian', λ = ",
        Quadratics(3, d=5): "<Quadratics: 3 workers, 5 parameters>",
        nf.NetFleet(K=5): "NetFleet(eta=Constant(start=0.01), K=5)",
    }
    for thing, text in texts.items():
        assert repr(thing).startswith(text)
    assert repr(history).startswith("<History of NET-FLEET, seed 0: round 20, ")
    assert repr(nf.History({}, label="x")) == "<History of x, seed 0: round 0, nothing measured>"
    words = "<Experiment 'experiment': net-fleet, a <b> & c; ring, 4 workers, quadratics; 20 rounds, 2 seeds>"
    assert repr(results.experiment) == words
    assert "kind = &quot;ring&quot;" in results.experiment._repr_html_()
    assert "<td>NET-FLEET</td>" in history._repr_html_()


def test_a_diverged_run_is_marked_in_a_notebook() -> None:
    page = nf.run([{"kind": "dsgd", "eta": 1e4}, "ld-sgd"], **PARTS)._repr_html_()
    assert "<td>DSGD ✗</td>" in page
    assert "<p>✗ DSGD: diverged after round " in page


def test_progress_is_shown_where_somebody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    def kind(wanted: bool | None, *, terminal: bool) -> type:
        with monkeypatch.context() as patch:
            patch.setattr(progress.sys, "stderr", SimpleNamespace(isatty=lambda: terminal, write=len, flush=int))
            with progress_display(wanted, 1) as display:
                return type(display)

    assert kind(None, terminal=False) is kind(False, terminal=True) is Quiet
    assert kind(None, terminal=True) is kind(True, terminal=False) is Live
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert kind(True, terminal=True) is Quiet  # rank 0 shows it


def test_a_notebook_has_a_line_for_each_run(notebook: list[dict[str, str]], results: nf.Results) -> None:
    assert in_notebook()
    again = nf.run(["net-fleet", "dsgd"], **PARTS)
    assert len(notebook) == 2
    assert notebook[1]["text/plain"].startswith("[2/2] DSGD  20/20  ‖x̄ − x*‖² ")
    assert notebook[0]["text/html"].startswith('<progress value="20" max="20"></progress> [1/2] NET-FLEET  20/20')
    assert again.table().startswith(" " * 9)  # and not to the notebook itself
    nf.simulate("dsgd", **PARTS, progress=False)
    assert len(notebook) == 2


def test_a_terminals_ipython_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TerminalInteractiveShell", "NoneType"):
        shell = type(name, (), {})
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=shell))
        assert not in_notebook()
    assert issubclass(InNotebook, Quiet)
