"""Writes docs/hospitals.md from docs/hospitals.json: python docs/make_hospitals.py

The measurement is `python -m benchmarks.hospitals RUNS`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "hospitals.json", HERE / "hospitals.md"
SITES = ("cleveland", "hungarian", "switzerland", "va")
TITLES = {"net-fleet": "NET-FLEET", "k-gt": "K-GT", "led": "LED", "ld-sgd": "LD-SGD"}
HEAD = """# Four hospitals

Made by `python docs/make_hospitals.py`; do not edit by hand.

UCI Heart Disease (Janosi, Steinbrunn, Pfisterer, Detrano; CC BY 4.0): 920 patients of four hospitals, 13 measurements,
and whether a vessel is narrowed. [examples/hospitals](../examples/hospitals) trains on them, from four files to a page
of results. This page says what can be reached, beside published results with a server.

## Beside FLamby

FLamby's Fed-Heart-Disease leaves out three columns and every patient with a missing value. 740 patients remain, 486
to train and 254 to test, with 13 inputs. The model is logistic regression, the budget 15 rounds of 100 local steps
with mini-batches of 4. Accuracy is over all 254 test rows, a mean over five seeds; the published numbers are from
FLamby's result files. Ours have the same rows, split, inputs and budget: the second column has FLamby's optimizers
and step sizes too, with our mini-batches and initial models.

"""
SCALES = """
**Scale and step size decide more than the method.** FLamby's federated runs train with each hospital's own mean
and deviation, and this accuracy is with those of all hospitals; its pooled training has those of all for both.
`netfleet statistics` gives every hospital the scale of all, without rows. NET-FLEET on a ring, FLamby's budget,
accuracy in per cent:

"""
METHODS_HEAD = """
Methods without a server, with the scale of all hospitals: mean ± deviation over five seeds. "Rows": every patient
counts alike, "alike": every hospital. The loss on held-out training rows (a quarter, three draws) chose penalty and
step size of each method, on the ring. Test rows chose nothing. The longer trainings are more than FLamby's methods
had.

"""
PATIENTS = """
## Each hospital

Did it help? Five folds of all 920 patients, with all columns; each patient is tested once. AUROC with 95 % intervals
from patients drawn again {resamples} times; differences use the same draws. "Alone" has a penalty and a step size of
its own, chosen on rows held out of its own. "Pooled" is one training on all rows at one place.

"""
FEW_HEAD = """
**A hospital with few patients.** The same, if one hospital has only so many training rows and the others have all of
theirs. Alone has the better of two penalties by its test rows, which favours it. AUROC together − alone:

"""
TAIL = """
Training together helps a hospital that has some dozens of patients; with a hundred and more, this model does not need
it.

- Switzerland has 8 healthy patients, so its AUROC decides nothing.
- Intervals are about patients, not about other trainings.
- Outputs of the five folds' models are ranked together, which lowers all values a little.

The trainings are made by `python -m benchmarks.hospitals runs/hospitals`.
"""
#: FLamby's result files (flamby/results/results_benchmark_fed_heart_disease, seeds 42 to 46), "Pooled Test".
PUBLISHED = {
    "pooled training": 0.795,
    "Cyclic, the best with a server": 0.785,
    "FedAdam, FedAdagrad, FedYogi": 0.779,
    "FedAvg": 0.748,
    "SCAFFOLD": 0.748,
    "Cleveland alone": 0.784,
    "Hungary alone": 0.727,
    "Switzerland alone": 0.483,
    "Long Beach VA alone": 0.611,
}
AGAIN = {"pooled training": "pooled", "FedAvg": "fedavg", "SCAFFOLD": "scaffold"}
AGAIN |= dict(zip(list(PUBLISHED)[-4:], SITES, strict=True))


def page() -> str:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    check_words(results)
    parts = [HEAD, published(results), SCALES, scales(results), METHODS_HEAD, methods(results), said(results)]
    parts += [PATIENTS.format(resamples=results["resamples"]), patients(results), FEW_HEAD, few_rows(results), TAIL]
    return "".join(parts)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def published(results: dict[str, Any]) -> str:
    again = {name: np.mean(results["recipes"][key]["accuracy"]) for name, key in AGAIN.items()}
    rows = [[name, f"{value:.3f}", f"{again[name]:.3f}" if name in again else ""] for name, value in PUBLISHED.items()]
    for method, title in (("fedavg", "FedAvg"), ("scaffold", "SCAFFOLD")):
        accuracy = np.mean(results["server"][method]["accuracy"])
        rows.append([f"{title}, with the scale and the tuning of the runs below", "", f"{accuracy:.3f}"])
    short = np.mean(results["short"]["net-fleet, rows, ring"]["accuracy"])
    rows.append(["**NET-FLEET on a ring, without a server** (below: rows)", "", f"**{short:.3f}**"])
    return table(["accuracy", "published", "ours"], rows)


def scales(results: dict[str, Any]) -> str:
    words = {"all": "of all", "own, then all": "own to train, of all to test, as FLamby", "own": "own for both"}
    by = {"all": {w: results["short"][f"net-fleet, {w}, ring"] for w in ("rows", "equal")}}
    by |= {scale: {w: results["scale"][f"{scale}, {w}"] for w in ("rows", "equal")} for scale in list(words)[1:]}
    rows = [[words[scale], *(percent(each["accuracy"]) for each in one.values())] for scale, one in by.items()]
    return table(["scale", "rows", "alike"], rows)


def percent(values: Sequence[float]) -> str:
    return f"{100 * np.mean(values):.1f} ± {100 * np.std(values, ddof=1):.1f}"


BLOCKS = {
    "short": "FLamby's rows and budget: 15 rounds of 100 steps",
    "long": "FLamby's rows, longer: 200 rounds of 10 steps, mini-batches of 16",
    "rows": "all columns; all 666 rows that are not tested on; longer",
}


def methods(results: dict[str, Any]) -> str:
    places = list(itertools.product(("rows", "equal"), ("ring", "complete")))
    rows = []
    for block, words in BLOCKS.items():
        rows.append([f"*{words}*", *[""] * (len(places) + 1)])
        for method in TITLES:
            found = [results[block][f"{method}, {weights}, {graph}"] for weights, graph in places]
            shown = [percent(each["accuracy"]) for each in found]
            rows.append([TITLES[method], *shown, f"{100 * np.mean(found[0]['auroc']):.1f}"])
        if "pooled" in results[block]:
            pooled = results[block]["pooled"]
            ends = percent(pooled["accuracy"]), f"{100 * np.mean(pooled['auroc']):.1f}"
            rows.append(["pooled, at one place", ends[0], "", "", "", ends[1]])
    return table(["", "rows, ring", "rows, complete", "alike, ring", "alike, complete", "AUROC (rows, ring)"], rows)


def said(results: dict[str, Any]) -> str:
    short, rows = (results[block]["net-fleet, rows, ring"]["scores"]["all"]["accuracy"] for block in ("short", "rows"))
    return f"""
- **0.785 is reached without a server**, with the published rows and budget. With 254 test rows NET-FLEET's accuracy has
  the interval {between(short["value"])}, so methods that differ by one or two per cent cannot be told apart.
- **More columns and patients help more than any method.** With all columns, missing values filled and indicated, the
  same 254 patients get {rows["value"][0]:.3f} {between(rows["value"])}. That is no longer FLamby's task.
- **Nothing is lost against training at one place**: {signed(rows["better"])} in the last block.
- Graph and method hardly matter here: four hospitals, and a convex problem.
"""


def between(values: Sequence[float]) -> str:
    return f"[{values[1]:.3f}, {values[2]:.3f}]"


def signed(values: Sequence[float | None], digits: int = 3) -> str:
    shown = [f"{value:+.{digits}f}".replace("-", "−") for value in values if value is not None]
    return f"{shown[0]} [{shown[1]}, {shown[2]}]" if len(shown) == 3 else "–"


NAMES = dict(zip((*SITES, "all"), ("Cleveland", "Hungary", "Switzerland", "Long Beach VA", "all"), strict=True))


def patients(results: dict[str, Any]) -> str:
    found, rows = results["folds"], []
    for site, name in NAMES.items():
        count, ill = results["patients"][site]
        cells = [f"{name}, {count}, {ill} ill"]
        low = found["alone"][site]["auroc"]["value"]
        cells += [f"{low[0]:.3f} {between(low)}"]
        cells += [signed(found[kind][site]["auroc"]["better"]) for kind in ("rows", "equal", "pooled")]
        rows.append([*cells, signed(found["rows"][site]["accuracy"]["better"])])
    heads = ["patients", "alone", "rows − alone", "alike − alone", "pooled − alone", "accuracy: rows − alone"]
    return table(heads, rows) + patients_said(results)


def patients_said(results: dict[str, Any]) -> str:
    accuracy = {name: row["scores"]["all"]["accuracy"]["value"][0] for name, row in results["rows"].items()}
    joint, others = accuracy["net-fleet, rows, ring"], ", ".join(f"{accuracy[site]:.3f}" for site in SITES)
    return f"""
**No hospital's model became better or worse by more than its patients can show.** What training together gives here is
one model for all: on FLamby's 254 test patients it has {joint:.3f} accuracy. The models that the hospitals trained
alone, in the order above, have {others}.
"""


def few_rows(results: dict[str, Any]) -> str:
    counts = list(next(iter(results["few"].values())))
    rows = [[NAMES[site], *(signed(by[count]["better"]) for count in counts)] for site, by in results["few"].items()]
    return table(["", *(f"{count} rows" for count in counts)], rows)


def check_words(results: dict[str, Any]) -> None:
    """Raise if the results contradict the words of the page."""
    short = {name: np.mean(row["accuracy"]) for name, row in results["short"].items()}
    differences = [results["folds"]["rows"][site]["auroc"]["better"] for site in SITES]
    words = {
        "our runs of FLamby's recipes end like its own, but for the two smallest hospitals": all(
            abs(np.mean(results["recipes"][AGAIN[name]]["accuracy"]) - PUBLISHED[name]) < 0.01
            for name in list(AGAIN)[:5]
        ),
        "0.785 is reached": short["net-fleet, rows, ring"] >= 0.785,
        "the scale decides more than the method": min(short[f"{method}, rows, ring"] for method in TITLES)
        > np.mean(results["scale"]["own, rows"]["accuracy"]) + 0.02,
        "with few rows it helps the larger hospitals": all(
            results["few"][site]["20"]["better"][1] > 0 for site in SITES[:2]
        ),
        "no difference of a hospital can be told from 0": all(low < 0 < high for _, low, high in differences),
        "more columns and patients help": np.mean(results["rows"]["net-fleet, rows, ring"]["accuracy"])
        > max(short.values()) + 0.01,
    }
    if wrong := [claim for claim, holds in words.items() if not holds]:
        raise ValueError(
            f"{RESULTS.name} does not say that {'; '.join(wrong)}; rewrite the words in {Path(__file__).name}"
        )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
