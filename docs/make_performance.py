"""Puts the newest committed results into the pages that show them: python docs/make_performance.py

Between `<!-- NAME -->` and `<!-- end -->` stands the table `benchmarks/results/DATE/NAME.md`: no number is typed.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAMES = {
    "plain": "a plain PyTorch loop",
    "gossipy_dfl": "GossipPy",
    "pfl_research": "pfl",
    "fluke_fedavg": "fluke",
    "fedjax_fedavg": "FedJAX",
    "flower": "Flower",
    "decent": "decent-bench, LED",
    "decent, K-GT": "decent-bench, K-GT",
}
PARTS = ("peers", "limit", "paths", "growth", "evaluation", "cores", "start", "distributed", "p2p")


def newest(name: str) -> Path:
    """The latest result of a part."""
    return sorted((ROOT / "benchmarks" / "results").glob(f"*/{name}.md"))[-1]


def section(name: str) -> str:
    """A part's table, its notes and where it comes from."""
    path = newest(name)
    title, _, rest = path.read_text(encoding="utf-8").partition("\n")
    return f"<!-- {name} -->\n##{title}\n{rest.rstrip()}\n- `netfleet bench {name}`, {path.parent.name}.\n<!-- end -->"


def performance(text: str) -> str:
    """The page with its tables made anew."""
    for name in PARTS:
        text = re.sub(rf"<!-- {name} -->.*?<!-- end -->", lambda _, n=name: section(n), text, flags=re.DOTALL)
    return text


def speed(text: str) -> str:
    """The README's small table: the medians of the peers' ratios."""
    rows = [line.strip("| ").split(" | ") for line in newest("peers").read_text(encoding="utf-8").splitlines()]
    found: dict[str, dict[str, str]] = {}
    for cells in rows:
        if len(cells) == 7 and cells[0] not in ("library", "ours") and "---" not in cells[0]:
            found.setdefault(cells[0], {})[cells[1]] = cells[4].split()[0]
    cases = ("cnn, ordinary", "cnn, tuned", "softmax, ordinary")
    lines = [
        "| seconds per round ÷ ours | the paper's CNN | the same, tuned by hand | softmax regression |",
        "|---|---|---|---|",
    ]
    for name, ratios in sorted(found.items(), key=lambda item: list(NAMES).index(item[0])):
        lines.append(f"| {NAMES[name]} | {' | '.join(ratios.get(case, '–') for case in cases)} |")
    made = "<!-- speed -->\n" + "\n".join(lines) + "\n<!-- end -->"
    return re.sub(r"<!-- speed -->.*?<!-- end -->", lambda _: made, text, flags=re.DOTALL)


def pages() -> dict[Path, str]:
    """Every page with what it should say."""
    docs = ROOT / "docs"
    tables = {docs / f"{name}.md": performance for name in ("performance", "cluster", "sites")}
    paths = {**tables, ROOT / "README.md": speed}
    return {path: make(path.read_text(encoding="utf-8")) for path, make in paths.items()}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
