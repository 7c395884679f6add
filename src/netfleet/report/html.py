"""The report of an experiment: one HTML file that contains everything, to be mailed or archived."""

import base64
import io
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import matplotlib
import numpy.typing as npt
from matplotlib.figure import Figure
from PIL import Image

import netfleet
from netfleet.files import write_atomically
from netfleet.report import plots, table
from netfleet.report.graph import draw_topology
from netfleet.report.intervals import LEVEL
from netfleet.report.live import live_curves
from netfleet.report.looks import looks
from netfleet.report.page import render
from netfleet.report.plots import DPI, QUANTITIES
from netfleet.report.scores import score_grids
from netfleet.runs.config import config_hash
from netfleet.runs.history import History, group, has
from netfleet.topology.topology import Topology

Table = Mapping[str, Any]  # of an experiment file
PACKAGES = ("torch", "numpy", "scipy", "networkx", "matplotlib")
LARGE = 300_000  # bytes of SVG above which a PNG is smaller
LONG = 100  # letters of a specification above which only its kind is shown; the whole config is at the report's end
MANY_LINKS = 2000  # from which a graph is drawn as PNG
SVG: Any = {"svg.hashsalt": "netfleet", "svg.fonttype": "path"}  # ids and glyphs that depend on the figure alone


def write_report(
    path: str | Path,
    *,
    histories: Sequence[History],
    topology: Topology,
    label_counts: npt.ArrayLike | None,
    config: Table,
    config_text: str,
    title: str,
) -> None:
    """Write the report of some histories, one per algorithm and seed, as one self-contained HTML file.

    `config` is the resolved experiment (`Experiment.to_table()`) and `config_text` the same as TOML.
    """
    rows, xs = table.summary(histories), [x for x in QUANTITIES if has(histories, x)]
    page = render(
        "report.html",
        title=title,
        lead=_lead(config, topology, rows),
        facts=_facts(config, topology, histories),
        verdict=table.verdict(rows),
        columns=table.columns(rows),
        rows=[_method(row, rows, histories) for row in rows],
        sampling=table.sampling_note(histories),
        scores=score_grids(histories),
        level=f"{100 * LEVEL:.0f} %",
        several_seeds=any(row.seeds > 1 for row in rows),
        live=asdict(live_curves(histories, _reference(rows))),
        figures={
            **{x: _image(plots.draw_curves(histories, x)) for x in xs},
            "spread": _image(plots.draw_spread(histories)),
            "tracking": _image(plots.draw_tracking(histories)),
            "labels": None if label_counts is None else _image(plots.draw_labels(label_counts)),
            "graph": _draw_graph(topology),
        },
        quantities=[(x, QUANTITIES[x].over) for x in xs],
        network=_network(topology),
        runs=histories,
        hash=config_hash([history.hash for history in histories]),
        config_text=config_text,
        versions=[
            ("Python", platform.python_version()),
            ("netfleet", netfleet.__version__),
            *((name, metadata.version(name)) for name in PACKAGES),
        ],
    )
    write_atomically(Path(path), lambda file: file.write(page.encode()))


def _reference(rows: Sequence[table.Row]) -> str:
    """The best method, to which the others' differences are."""
    ranked = table.ranking(rows)[1]
    return ranked[0].label if ranked else ""


def _lead(config: Table, topology: Topology, rows: Sequence[table.Row]) -> str:
    problem = config.get("problem", {})
    task = f"minimised {_spec(problem)}" if problem else "ran"
    if "data" in problem:
        task = f"trained {_kind(problem.get('model', 'a model'))} on {_kind(problem['data'])}"
        task += f", split by {_spec(problem['partition'])}," if "partition" in problem else ""
    seeds = sorted({row.seeds for row in rows}) or [0]
    times = "once each" if seeds == [1] else f"with {'up to ' * (len(seeds) > 1)}{seeds[-1]} seeds each"
    *most, last = [row.label for row in rows] or ["Nothing"]
    methods = f"{', '.join(most)} and {last}" if most else last
    return (
        f"{methods} {task} over {topology.m} workers without a server, on the graph {_graph(config, topology)} "
        f"(λ = {topology.lam:.4g}, spectral gap {topology.gap:.3g}), for {config.get('rounds', '?')} rounds, {times}."
    )


def _facts(config: Table, topology: Topology, histories: Sequence[History]) -> list[tuple[str, str]]:
    problem, engine = config.get("problem", {}), config.get("engine", {})
    seeds = sorted({history.seed for history in histories})
    facts = {
        "workers": topology.m,
        "graph": _graph(config, topology),
        "problem": problem.get("kind") if "data" in problem else (_spec(problem) if problem else None),
        **{key: problem.get(key) for key in ("data", "partition", "model", "batch")},
        "rounds": config.get("rounds"),
        "seeds": ", ".join(map(str, seeds)) if len(seeds) <= 10 else f"{len(seeds)} of them",
        "engine": ", ".join(str(engine[key]) for key in ("kind", "dtype", "device") if key in engine),
    }
    return [(name, _spec(value)) for name, value in facts.items() if value not in (None, "")]


def _graph(config: Table, topology: Topology) -> str:
    spec = {k: v for k, v in config.get("topology", {}).items() if k not in ("workers", "weights")}
    return _spec(spec) if "kind" in spec else topology.name


def _kind(value: object) -> str:
    return str(value.get("kind", "")) if isinstance(value, Mapping) else str(value)


def _spec(value: object) -> str:
    """A specification as text: `shards (per_worker = 2)`."""
    if isinstance(value, bool | float):
        return str(value).lower() if isinstance(value, bool) else f"{value:g}"
    if not isinstance(value, Mapping):
        return str(value)
    params = [f"{key} = {_spec(inner)}" for key, inner in value.items() if key != "kind" and inner is not None]
    text = ", ".join(params)
    return f"{_kind(value)} ({text if len(text) < LONG else '…'})".strip() if params else _kind(value)


def _method(row: table.Row, rows: Sequence[table.Row], histories: Sequence[History]) -> dict[str, object]:
    """A row of the table for the template: texts, and how the figures draw the method."""
    (first, *_), shown = group(histories)[row.label], table.columns(rows)
    algorithm = first.config.get("algorithm")
    settings = [f"K = {algorithm['K']}"] if isinstance(algorithm, Mapping) and "K" in algorithm else []
    etas = [record["eta"] for record in first if record.get("eta") is not None]  # a schedule has become numbers
    if etas:
        settings.append(f"η = {etas[0]:g}" + (f" → {etas[-1]:g}" if etas[-1] != etas[0] else ""))
    return {
        "label": row.label,
        "mark": row.mark,
        "reason": row.diverged[0][2] if row.diverged else "",
        "settings": ", ".join(settings),
        "look": looks(history.label for history in histories)[row.label],
        "cells": [(table.cell(row, column), row.label in table.best(rows, column)) for column in shown],
    }


def _network(topology: Topology) -> list[tuple[str, str]]:
    about = topology.describe()
    degrees = f"{about['degree_min']} to {about['degree_max']}, {about['degree_mean']:.3g} on average"
    lam, messages = "λ, the second largest |eigenvalue| of W", "messages in a round"
    if topology.varying:
        lam, messages = "λ, the contraction per round (W varies in time)", "messages in round 0"
    numbers = {
        "workers": f"{about['workers']:,}",
        "links": f"{about['edges']:,}",
        "neighbours of a worker": str(about["degree_min"]) if about["degree_min"] == about["degree_max"] else degrees,
        "diameter": "not computed" if about["diameter"] is None else str(about["diameter"]),
        "weights": str(about["weights"]),
        lam: f"{about['lambda']:.6g}",
        "spectral gap 1 − λ": f"{about['spectral_gap']:.4g}",
        messages: f"{topology.messages():,}",
    }
    return list(numbers.items())


def _draw_graph(topology: Topology) -> str:
    figure = Figure((6, 5), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    draw_topology(topology, axes)
    axes.set_title("")  # its numbers stand beside it
    return _svg(figure) if topology.graph.number_of_edges() <= MANY_LINKS else _png(figure)


def _image(figure: Figure | None) -> str | None:
    """A figure as a data URL: SVG, or PNG where that is smaller."""
    if figure is None:
        return None
    drawing = _svg(figure)
    return drawing if len(drawing) <= LARGE else _png(figure)


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    with matplotlib.rc_context(SVG):
        figure.savefig(buffer, format="svg", dpi=DPI, transparent=True, metadata={"Date": None})
    # Lines "L 12.345678 9.876543" are half of a drawing: a hundredth of a point is all that an eye can tell.
    text = re.sub(r"^([ML] -?\d+\.\d\d)\d*( -?\d+\.\d\d)\d*", r"\1\2", buffer.getvalue(), flags=re.MULTILINE)
    return f"data:image/svg+xml;base64,{base64.b64encode(text.encode()).decode()}"


def _png(figure: Figure) -> str:
    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=DPI, transparent=True)
    Image.open(drawn).quantize(256).save(small, format="png", optimize=True)  # a third of the size
    return f"data:image/png;base64,{base64.b64encode(small.getvalue()).decode()}"
