"""Puts the newest stored results into the pages that show them: python docs/make_performance.py

Between `<!-- bench NAME -->` and `<!-- end -->` the script puts the table `benchmarks/results/DATE/NAME.md`, after
`<!-- gpt2 -->` that of `examples/plays/compare_gpt2.py --show`.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]
CASES = ("cnn, ordinary", "cnn, tuned", "softmax, ordinary")
NAMES = {
    "plain": "a plain PyTorch loop",
    "gossipy_dfl": "GossipPy",
    "pfl_research": "pfl",
    "fedjax_fedavg": "FedJAX",
    "flower": "Flower",
    "decent": "decent-bench, LED",
    "decent, K-GT": "decent-bench, K-GT",
}


def newest(name: str) -> Path:
    """The latest result of a part."""
    return sorted((ROOT / "benchmarks" / "results").glob(f"*/{name}.md"))[-1]


def section(name: str, once: str = "") -> str:
    """A part's table, its notes and where it comes from; without the machine's line if the page says it once."""
    path = newest(name)
    title, _, rest = path.read_text(encoding="utf-8").replace(f"{once}\n\n" if once else "", "").partition("\n")
    table = rest.rstrip() + ("\n" if rest.rstrip().endswith("|") else "")
    return f"##{title}\n{table}\n- `netfleet bench {name}`, {path.parent.name}."


def machine() -> str:
    """The machine, as the parts write it, for a page that says it once."""
    return newest("limit").read_text(encoding="utf-8").splitlines()[2]


def speed(full: bool) -> str:
    """Other libraries' times over ours: the medians, or all that was measured."""
    path = newest("libraries")
    lines = path.read_text(encoding="utf-8").splitlines()
    known = {(row[0], row[1]): row for line in lines if len(row := line.strip("| ").split(" | ")) == 7}
    rows = [("seconds per round ÷ ours", "the paper's CNN", "the same, tuned by hand", "softmax regression")]
    for name, label in NAMES.items():
        ratios = [known[name, case][4] if (name, case) in known else "–" for case in CASES]
        rows.append((label, *(ratio if full else ratio.split()[0] for ratio in ratios)))
    if full:
        rows.append(("ours, seconds", *(known["ours", case][3] for case in CASES)))
    first, *rest = [f"| {' | '.join(row)} |" for row in rows]
    table = "\n".join([first, "|---|---|---|---|", *rest])
    peaks = {name: max(int(row[5]) for key, row in known.items() if key[0] == name) for name in ("ours", *NAMES)}
    memory = ", ".join(f"{NAMES.get(name, name)} {peak}" for name, peak in peaks.items())
    note = f"- Peak memory of one process in MB: {memory}.\n- `netfleet bench libraries`, {path.parent.name}."
    return f"{table}\n\n{note}" if full else table


def gpt2() -> str:
    """The test losses of a small GPT-2."""
    table: str = runpy.run_path(str(ROOT / "examples" / "plays" / "compare_gpt2.py"))["table"]()
    return table


def filled(text: str) -> str:
    """A page with its marked parts made anew."""
    once = machine() if "<!-- machine -->" in text else ""
    makers = {
        "bench": lambda name: section(name, once),
        "machine": lambda _: once,
        "speed": lambda w: speed(w != ""),
        "gpt2": lambda _: gpt2(),
    }
    return re.sub(
        r"<!-- (bench|machine|speed|gpt2) ?(\S*) -->.*?<!-- end -->",
        lambda mark: f"{mark[0].splitlines()[0]}\n{makers[mark[1]](mark[2])}\n<!-- end -->",
        text,
        flags=re.DOTALL,
    )


def pages() -> dict[Path, str]:
    """Every page that shows results, with what it should say."""
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))}
    return {path: filled(text) for path, text in texts.items() if re.search(r"<!-- (bench \S+|speed|gpt2) -->", text)}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
