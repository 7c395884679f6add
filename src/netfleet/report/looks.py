"""How a method looks in every figure and on every page: colour, line style and marker."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

Looks = Mapping[str, "Look"]

# Colours that stay apart for colour-blind readers (Okabe and Ito, Tol); the strongest is NET-FLEET's.
OURS, OTHERS = "#D55E00", ("#0072B2", "#009E73", "#AA4499", "#777777", "#56B4E9", "#E69F00", "#882255", "#999933")
DASHES: tuple[tuple[float, ...], ...] = ((5, 1.6), (1.2, 1.2), (6, 1.6, 1.2, 1.6), (2.6, 1.2), (8, 1.4, 2.4, 1.4))
MARKERS = ("s", "^", "D", "v", "P", "<", "h")


class Look(NamedTuple):
    color: str
    dashes: tuple[float, ...]
    marker: str
    width: float
    zorder: float

    def line(self) -> dict[str, Any]:
        """Arguments of matplotlib."""
        style = (0, self.dashes) if self.dashes else "-"
        return {"color": self.color, "linestyle": style, "linewidth": self.width, "zorder": self.zorder}


def looks(labels: Iterable[str]) -> dict[str, Look]:
    """A colour, line style and marker for each label; the first NET-FLEET is the most prominent."""
    labels = list(dict.fromkeys(labels))
    ours = next((label for label in labels if "netfleet" in re.sub("[^a-z]", "", label.lower())), None)
    others = [label for label in labels if label != ours]
    result = {
        label: Look(OTHERS[i % len(OTHERS)], DASHES[i % len(DASHES)], MARKERS[i % len(MARKERS)], 1.6, 3 - i / 1000)
        for i, label in enumerate(others)
    }
    return result if ours is None else result | {ours: Look(OURS, (), "o", 2.5, 4)}
