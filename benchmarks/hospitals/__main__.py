"""Trainings on the data of four hospitals for docs/hospitals.md: python -m benchmarks.hospitals RUNS

RUNS is a folder for outputs on test rows, from which it resumes. It takes an hour on two cores, and needs the files of
examples/hospitals in NETFLEET_DATA.
"""

import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.hospitals.rows import FOLDS, SITES, Floats, Rows, dataset, flamby_rows
from benchmarks.hospitals.scores import RESAMPLES, HeldRows, Values, held_rows, measured, one, per_seed, spread, summary
from benchmarks.hospitals.training import SEEDS, Setting, outputs, short, tuned
from netfleet.problems.scoring import METRICS
from netfleet.sites.evaluation.bootstrap import draw_rows

RESULTS = Path(__file__).parents[2] / "docs" / "hospitals.json"
METHODS = ("net-fleet", "k-gt", "led", "ld-sgd")
FEW = (20, 40, 80)  # training rows of a hospital that has few


def recipes() -> Iterator[tuple[str, Setting]]:
    """FLamby's own settings (common.py, config_heart_disease.json), to see that rows and split are the same."""
    epochs = 50 / 100 / 4  # 50 epochs of Adam, as rounds of 100 steps with 4 rows each
    adam = short(Setting("740/all", "ld-sgd", "pooled", eta=0.001, local="adam"))
    yield "pooled", replace(adam, rounds=round(486 * epochs))
    for site in SITES:
        count = len(flamby_rows(site).train)
        yield site, replace(adam, data="740/own, then all", who=site, rounds=round(count * epochs))
    for method in ("fedavg", "scaffold"):
        yield (
            method,
            replace(adam, data="740/own, then all", method=method, who="all", weights="rows", rounds=15, local=None),
        )


def blocks() -> Iterator[tuple[str, str, Setting]]:
    """The block of a table, the row's name, and what is trained before it is tuned."""
    for block, data in (("short", "740/all"), ("long", "740/all"), ("rows", "920/flamby")):
        for who in ("pooled", *SITES) if block != "short" else ():
            yield block, who, Setting(data, "net-fleet", who)
        for method, weights, graph in itertools.product(METHODS, ("rows", "equal"), ("ring", "complete")):
            setting = Setting(data, method, weights=weights, graph=graph)
            yield block, f"{method}, {weights}, {graph}", short(setting) if block == "short" else setting
    for scale, weights in itertools.product(("own, then all", "own"), ("rows", "equal")):
        setting = short(Setting(f"740/{scale}", "net-fleet", weights=weights))
        yield "scale", f"{scale}, {weights}", setting
    for method in ("fedavg", "scaffold"):
        yield "server", method, short(Setting("740/all", method, weights="rows"))


def folds(number: int) -> Iterator[tuple[str, Setting]]:
    data = f"920/{number}"
    for who in ("pooled", *SITES):
        yield who, Setting(data, "net-fleet", who)
    for weights in ("rows", "equal"):
        yield weights, Setting(data, "net-fleet", weights=weights)


def measure(runs: Path) -> None:
    runs.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"resamples": RESAMPLES, "patients": patients(), "recipes": {}}
    for name, setting in recipes():
        found["recipes"][name] = per_seed(outputs(setting, runs), held_rows(dataset(setting.data)))
    found["folds"], found["few"] = crossed(runs), few(runs)
    references: dict[str, Values] = {}
    for block, name, setting in blocks():
        chosen = replace(tuned(replace(setting, graph="ring"), runs), graph=setting.graph)
        made = outputs(chosen, runs)
        tests = held_rows(dataset(setting.data))
        values, seeds = measured(made, tests), per_seed(made, tests)
        references.setdefault(block, values)  # the first of a block
        row = {"l2": chosen.l2, "eta": chosen.eta, **seeds, "scores": summary(values, references[block])}
        found.setdefault(block, {})[name] = row
        print(block, name, chosen.l2, chosen.eta, seeds["accuracy"], flush=True)
        RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def patients() -> dict[str, list[int]]:
    """How many patients there are, and how many of them are ill."""
    labels = {site: np.concatenate([own_labels(number, site) for number in range(FOLDS)]) for site in SITES}
    labels["all"] = np.concatenate(list(labels.values()))
    return {site: [len(y), int(y.sum())] for site, y in labels.items()}


def crossed(runs: Path) -> dict[str, Any]:
    """Every patient of the 920 is tested once, by models that were trained without the patient's fifth."""
    kinds = ["pooled", "rows", "equal", "alone"]
    made: dict[str, list[Floats]] = {kind: [] for kind in kinds}
    parts = []
    for number in range(FOLDS):
        tests = held_rows(dataset(f"920/{number}"))
        by = {}
        for name, setting in folds(number):
            chosen = tuned(setting, runs)
            by[name] = outputs(chosen, runs, SEEDS[:1])[0]
            print("fold", number, name, chosen.l2, chosen.eta, flush=True)
        by["alone"] = np.choose(tests.sites, [by[site] for site in SITES])
        for kind in kinds:
            made[kind].append(by[kind])
        parts.append(tests)
    whole = HeldRows(np.concatenate([t.y for t in parts]), np.concatenate([t.sites for t in parts]))
    values = {kind: measured(np.concatenate(each)[None], whole, ("", *SITES)) for kind, each in made.items()}
    return {kind: summary(each, values["alone"]) for kind, each in values.items()}


def few(runs: Path) -> dict[str, Any]:
    """A hospital with few rows: together with the other three, which have all of theirs, and alone.

    Too few to hold some out: together with the penalty of the example, alone with the better of two.
    """
    found: dict[str, Any] = {}
    for site, rows in itertools.product(SITES, FEW):
        made: dict[str, list[Floats]] = {"joint": [], "alone 0.01": [], "alone 0.1": []}
        for number in range(FOLDS):
            base = Setting(f"920/{number}/{site}/{rows}", "net-fleet", weights="rows", l2=0.01, eta=0.03)
            alone = replace(base, who=site, eta=0.01)
            own = held_rows(dataset(base.data)).rows(site)
            for name, setting in zip(made, (base, alone, replace(alone, l2=0.1)), strict=True):
                made[name].append(outputs(setting, runs, SEEDS[:1])[0][own])
        labels = np.concatenate([own_labels(number, site) for number in range(FOLDS)])
        draws, y, values = [torch.arange(len(labels)), *draw_rows(labels, 0, RESAMPLES)], torch.from_numpy(labels), {}
        for name, each in made.items():
            joined = torch.from_numpy(np.concatenate(each))
            values[name] = np.array([one(METRICS["auroc"], joined[drawn], y[drawn]) for drawn in draws])
        best = max(("alone 0.01", "alone 0.1"), key=lambda name: values[name][0])
        found.setdefault(site, {})[str(rows)] = {
            "joint": spread(values["joint"]),
            "alone": spread(values[best]),
            "better": spread(values["joint"] - values[best]),
        }
        print("few", site, rows, found[site][str(rows)], flush=True)
    return found


def own_labels(number: int, site: str) -> Rows:
    tests = held_rows(dataset(f"920/{number}"))
    return tests.y[tests.rows(site)]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m benchmarks.hospitals RUNS")
    measure(Path(sys.argv[1]))
