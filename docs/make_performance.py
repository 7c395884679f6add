"""Puts the newest stored results into the pages that show them: python docs/make_performance.py

Between `<!-- bench NAME -->` and `<!-- end -->` stands the table `benchmarks/results/DATE/NAME.md`: no number is typed.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAMES = {
    "plain": "a plain PyTorch loop",
    "gossipy_dfl": "GossipPy",
    "pfl_research": "pfl",
    "fedjax_fedavg": "FedJAX",
    "flower": "Flower",
    "decent": "decent-bench, LED",
    "decent, K-GT": "decent-bench, K-GT",
}
#: Libraries that stored results have and `netfleet bench` no longer runs.
GONE = {"fluke_fedavg"}


def newest(name: str) -> Path:
    """The latest result of a part."""
    return sorted((ROOT / "benchmarks" / "results").glob(f"*/{name}.md"))[-1]


def section(name: str, once: str = "") -> str:
    """A part's table, its notes and where it comes from; without the machine's line if the page says it once."""
    path = newest(name)
    text = re.sub(r"\| (\w+)[^\n]*\n", lambda row: "" if row[1] in GONE else row[0], path.read_text(encoding="utf-8"))
    title, _, rest = text.replace(f"{once}\n\n" if once else "", "").partition("\n")
    table = rest.rstrip() + ("\n" if rest.rstrip().endswith("|") else "")
    return f"##{title}\n{table}\n- `netfleet bench {name}`, {path.parent.name}."


def machine() -> str:
    """The machine, as the parts write it, for a page that says it once."""
    return newest("limit").read_text(encoding="utf-8").splitlines()[2]


def speed() -> str:
    """The README's small table: the medians of the other libraries' ratios."""
    rows = [line.strip("| ").split(" | ") for line in newest("libraries").read_text(encoding="utf-8").splitlines()]
    found: dict[str, dict[str, str]] = {}
    for cells in rows:
        if len(cells) == 7 and cells[0] in NAMES:
            found.setdefault(cells[0], {})[cells[1]] = cells[4].split()[0]
    cases = ("cnn, ordinary", "cnn, tuned", "softmax, ordinary")
    lines = [
        "| seconds per round ÷ ours | the paper's CNN | the same, tuned by hand | softmax regression |",
        "|---|---|---|---|",
    ]
    for name, ratios in sorted(found.items(), key=lambda item: list(NAMES).index(item[0])):
        lines.append(f"| {NAMES[name]} | {' | '.join(ratios.get(case, '–') for case in cases)} |")
    return "\n".join(lines)


def filled(text: str) -> str:
    """A page with its marked parts made anew."""
    once = machine() if "<!-- machine -->" in text else ""
    makers = {"bench": lambda name: section(name, once), "machine": lambda _: once, "speed": lambda _: speed()}
    return re.sub(
        r"<!-- (bench|machine|speed) ?(\S*) -->.*?<!-- end -->",
        lambda mark: f"{mark[0].splitlines()[0]}\n{makers[mark[1]](mark[2])}\n<!-- end -->",
        text,
        flags=re.DOTALL,
    )


def pages() -> dict[Path, str]:
    """Every page that shows results, with what it should say."""
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))}
    return {path: filled(text) for path, text in texts.items() if re.search(r"<!-- (bench \S+|speed) -->", text)}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
