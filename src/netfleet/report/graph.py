"""Pictures of a topology: the graph with its links shaded by weight."""

import math
from pathlib import Path as File

import networkx as nx
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure

from netfleet.files import write_atomically
from netfleet.topology.topology import Topology

Points = npt.NDArray[np.float64]
SHADES = LinearSegmentedColormap.from_list("links", ["#c9d6e3", "#5b84b1", "#12355b"])
NODE, IDLE = "#e4572e", "#e3e6ea"
LABELLED = 64  # workers up to which their numbers can be read
LARGE = 2000  # workers beyond which a layout by springs takes minutes


def draw_topology(topology: Topology, where: str | File | Axes) -> None:
    """Draw into a file, whose suffix says the format, or into axes.

    Of a time-varying topology, all links that any round uses are grey and those of round 0 shaded.
    """
    if not isinstance(where, Axes):
        figure = Figure(figsize=(6, 6), layout="constrained")
        draw_topology(topology, figure.subplots())
        path = File(where)
        write_atomically(path, lambda file: figure.savefig(file, format=path.suffix[1:] or "png", dpi=150))
        return
    places = layout(topology.graph)
    ends = np.array(topology.graph.edges, dtype=int).reshape(-1, 2)
    W = topology.W()
    weights = np.asarray(W.maximum(W.T)[ends[:, 0], ends[:, 1]], dtype=np.float64) if len(ends) else np.zeros(0)
    order = np.argsort(weights, kind="stable")  # heavy links on top
    curves = _curves(topology.graph, places, ends[order])
    _draw_links(where, curves, weights[order])
    m = len(places)
    size, rim = min(320.0, max(6.0, 6400 / m)), 0.8 if m <= LABELLED else 0.3
    where.scatter(places[:, 0], places[:, 1], s=size, color=NODE, edgecolors="white", linewidths=rim, zorder=3)
    for i, (x, y) in enumerate(places if m <= LABELLED else ()):
        where.text(x, y, str(i), ha="center", va="center", color="white", fontsize=min(9, 18 / math.sqrt(m) + 3))
    lam, gap = topology.lam, 1 - topology.lam  # λ with as many digits as tell it from one
    digits = f"{lam:.{max(3, 1 - math.floor(math.log10(gap)))}f}" if 0 < gap < 1 else f"{lam:g}"
    counts = f"{topology.name}: m = {topology.m}, {len(ends)} edges"
    where.set_title(f"{counts}\nλ = {digits}, spectral gap 1 − λ = {topology.gap:.3g}")
    points = np.concatenate([places, *curves])  # in a square, even where that is a line or a point
    low, high = points.min(axis=0), points.max(axis=0)
    half = max(0.6 * float((high - low).max()), 0.5)
    (x, y) = (low + high) / 2
    where.set(xlim=(x - half, x + half), ylim=(y - half, y + half), aspect="equal")
    where.axis("off")


def _draw_links(axes: Axes, curves: list[Points], weights: Points) -> None:
    if not len(weights):
        return
    width = min(2.0, max(0.25, 10 / math.sqrt(len(weights))))
    alpha = min(1.0, max(0.05, 40 / math.sqrt(len(weights)) / 2))
    used = weights > 0
    busy, idle = ([c for c, on in zip(curves, used, strict=True) if on == wanted] for wanted in (True, False))
    axes.add_collection(LineCollection(idle, colors=IDLE, linewidths=width))
    low, high = float(weights[used].min()), float(weights[used].max())
    alike = high - low <= 1e-9 * high
    scale = Normalize(low - 1 if alike else low, high)
    links = LineCollection(busy, linewidths=width, alpha=alpha)
    links.set_color(SHADES(scale(weights[used])) if not alike else [SHADES(0.5)])
    axes.add_collection(links)
    if not alike and isinstance(axes.figure, Figure):
        bar = axes.figure.colorbar(ScalarMappable(scale, SHADES), ax=axes, shrink=0.5, pad=0.01)
        bar.set_label("weight of the link")


def layout(graph: nx.Graph) -> Points:
    """Where the workers go, [m, 2]: their own `pos`, a circle if ring-like, dense or large, else by springs.

    A hub to which everyone is linked and nothing else goes to the middle.
    """
    m = len(graph)
    if all("pos" in graph.nodes[i] for i in graph):
        return np.array([graph.nodes[i]["pos"] for i in range(m)], dtype=np.float64)
    along = sum(graph.has_edge(i, (i + 1) % m) for i in range(m))
    hubs = [i for i, degree in graph.degree if degree == m - 1 == graph.number_of_edges()]
    if m > 3 and hubs:
        return np.insert(_clock(m - 1), hubs[0], 0.0, axis=0)
    if m <= 3 or m > LARGE or along > 2 / 3 * m or nx.density(graph) > 1 / 3:
        return _clock(m) if m > 1 else np.zeros((1, 2))
    places = nx.kamada_kawai_layout(graph) if m <= LABELLED else nx.spring_layout(graph, seed=0)
    return np.array([places[i] for i in range(m)], dtype=np.float64)


def _clock(count: int) -> Points:
    """Points on the unit circle, from the top and to the right."""
    angle = 2 * np.pi * np.arange(count) / count
    return np.stack([np.sin(angle), np.cos(angle)], axis=1)


def _curves(graph: nx.Graph, places: Points, ends: npt.NDArray[np.int64]) -> list[Points]:
    """The links as lines [n, 2]; on a lattice those that run past other workers, as around a torus, as arcs."""
    a, b = places[ends[:, 0]], places[ends[:, 1]]
    length = np.linalg.norm(b - a, axis=1)
    lattice = "pos" in graph.nodes[0] and bool((places == np.round(places)).all())
    bulge = np.where(length > 1.5, 0.6, 0.0) if lattice else np.zeros(len(ends))
    along = (b - a) / np.maximum(length, 1e-12)[:, None]
    across = np.c_[-along[:, 1], along[:, 0]] * bulge[:, None]
    steps = np.linspace(0, 1, 25)[:, None] if lattice else np.array([[0.0], [1.0]])
    return [p + steps * (q - p) + 4 * steps * (1 - steps) * r for p, q, r in zip(a, b, across, strict=True)]
