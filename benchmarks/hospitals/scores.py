"""Scores on test rows, with intervals from rows that are drawn again."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import netfleet as nf
from benchmarks.hospitals.rows import SITES, Floats, Rows, place
from netfleet.problems.scoring import METRICS, Metric
from netfleet.sites.evaluation.bootstrap import draw_rows

RESAMPLES = 400


@dataclass(frozen=True)
class HeldRows:
    """Test rows: their labels, their hospitals, and how they are drawn again."""

    y: Rows
    sites: Rows

    @functools.cached_property
    def draws(self) -> dict[str, torch.Tensor]:
        """Of all rows and of each hospital, with replacement within hospital and label."""
        every = draw_rows(2 * self.sites + self.y, 0, RESAMPLES)
        strata = {site: np.flatnonzero(self.sites == place(site)) for site in SITES}
        return {"": every} | {
            site: torch.from_numpy(rows)[draw_rows(self.y[rows], 0, RESAMPLES)] for site, rows in strata.items()
        }

    def rows(self, site: str) -> Rows:
        return np.flatnonzero(self.sites == place(site)) if site else np.arange(len(self.y))


def held_rows(data: nf.Dataset) -> HeldRows:
    assert isinstance(data.test_y, torch.Tensor)
    assert data.test_groups is not None
    return HeldRows(data.test_y.numpy().astype(np.int64), data.test_groups.numpy().astype(np.int64))


Values = dict[str, dict[str, Floats]]  # by hospital ("": all) and metric: the value, then those on the draws


def measured(found: Floats, tests: HeldRows, sites: Sequence[str] = ("",)) -> Values:
    """The mean over seeds of each metric, on all rows or on those of some hospitals too."""
    y, made = torch.from_numpy(tests.y), torch.from_numpy(found)
    values: Values = {}
    for site in sites:
        many = [torch.from_numpy(tests.rows(site)), *tests.draws[site]]
        values[site] = {
            name: np.array([np.mean([one(METRICS[name], each[rows], y[rows]) for each in made]) for rows in many])
            for name in ("accuracy", "auroc")
        }
    return values


def per_seed(found: Floats, tests: HeldRows) -> dict[str, list[float]]:
    """Accuracy and AUROC over all test rows, of each seed."""
    y, made = torch.from_numpy(tests.y), torch.from_numpy(found)
    return {name: [round(one(METRICS[name], each, y), 4) for each in made] for name in ("accuracy", "auroc")}


def one(metric: Metric, outputs: torch.Tensor, y: torch.Tensor) -> float:
    value = metric(outputs[:, None], y[:, None].double())
    return float("nan") if value is None else value


def summary(values: Values, reference: Values | None = None) -> dict[str, Any]:
    """Each metric with its interval and, with a reference, the difference to it on the same draws."""
    return {
        site or "all": {
            name: {"value": spread(v)} | ({} if reference is None else {"better": spread(v - reference[site][name])})
            for name, v in by.items()
        }
        for site, by in values.items()
    }


def spread(values: Floats) -> list[float | None]:
    """The value, and from 2.5 to 97.5 per cent of the draws."""
    found = [values[0], *np.nanquantile(values[1:], (0.025, 0.975))] if np.isfinite(values[0]) else [np.nan] * 3
    return [None if np.isnan(value) else round(float(value), 4) for value in found]
