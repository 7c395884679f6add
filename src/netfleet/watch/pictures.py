"""Where the page draws the nodes of a graph, and which of its links."""

from collections.abc import Sequence

import networkx as nx
import numpy as np

from netfleet.report.graph import layout
from netfleet.watch.news import Picture

#: Links that are drawn of a graph with more.
LINKS = 4000
#: Nodes up to which springs place them, which takes seconds for 1,000; of more, a random graph is a circle.
SPRINGS = 300


def picture_of(graph: nx.Graph, labels: Sequence[str]) -> Picture:
    """The picture of a graph on 0, 1, … with these names; of very many links, some at equal distances in the list."""
    places, every = layout(graph, SPRINGS), sorted((min(a, b), max(a, b)) for a, b in graph.edges)
    drawn = [every[i] for i in np.linspace(0, len(every) - 1, LINKS).astype(int)] if len(every) > LINKS else every
    words = f"{len(drawn):,} of its {len(every):,} links are drawn" if len(drawn) < len(every) else ""
    return Picture(list(labels), places[:, 0].tolist(), places[:, 1].tolist(), drawn, words)
