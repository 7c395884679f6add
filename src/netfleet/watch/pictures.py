"""Where the page draws the nodes of a graph, and which of its links."""

from collections.abc import Sequence

import networkx as nx
import numpy as np

from netfleet.report.graph import Points, layout
from netfleet.watch.news import Picture

#: Links that are drawn of a graph with more.
LINKS = 4000
#: Nodes up to which they are placed as in a report. More would take seconds, or hide each other on a circle.
SPRINGS = 300
_GOLDEN = np.pi * (3 - np.sqrt(5))


def picture_of(graph: nx.Graph, labels: Sequence[str]) -> Picture:
    """The picture of a graph on 0, 1, … with these names; of very many links, some at equal distances in the list."""
    placed = len(graph) <= SPRINGS or all("pos" in graph.nodes[i] for i in graph)
    places = layout(graph) if placed else _disc(len(graph))
    every = sorted((min(a, b), max(a, b)) for a, b in graph.edges)
    drawn = [every[i] for i in np.linspace(0, len(every) - 1, LINKS).astype(int)] if len(every) > LINKS else every
    words = f"{len(drawn):,} of its {len(every):,} links are drawn" if len(drawn) < len(every) else ""
    return Picture(list(labels), places[:, 0].tolist(), places[:, 1].tolist(), drawn, words)


def _disc(count: int) -> Points:
    """Points that fill a disc evenly, the first in its middle."""
    i = np.arange(count)
    places: Points = (np.sqrt((i + 0.5) / count) * np.stack([np.sin(i * _GOLDEN), np.cos(i * _GOLDEN)])).T
    return places
