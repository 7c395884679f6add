"""The table of every model on every site's test rows, from what the sites give: scores, never rows."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from netfleet.errors import DataError
from netfleet.files import write_atomically
from netfleet.sites.evaluation.evaluate import evaluate_site
from netfleet.sites.evaluation.page import write_site_page
from netfleet.sites.evaluation.results import (
    EVALUATION_FILE,
    PAGE_FILE,
    Interval,
    SiteEvaluation,
    read_evaluation,
    write_evaluation,
)
from netfleet.sites.planning.certificates import OPERATOR
from netfleet.sites.planning.folders import MODEL_FILE, SITE_FILE, Site, all_sites
from netfleet.sites.policy.start import open_site

#: In the operator's folder: the files that sites sent, NAME.json.
COLLECTED_FOLDER = "evaluations"


@dataclass(frozen=True)
class MatrixRow:
    """A model on the test rows of each site, by the site's name; a site that is missing has no score of it."""

    model: str
    site: str  # whose it is; empty: each site's own baseline
    cells: dict[str, Interval]


@dataclass(frozen=True)
class Matrix:
    """Every model on every site, as far as the sites give it; `absent` says why a site gives nothing."""

    run: str
    metric: str
    sites: tuple[str, ...]
    rows: tuple[MatrixRow, ...]
    verdicts: dict[str, str]
    absent: dict[str, str]
    tests: dict[str, int]


def evaluate_plan(folder: Path, data_changed: bool = False) -> Matrix:
    """Evaluate at each site whose folder is here, read what the others sent, and put all into one table."""
    sites = all_sites(folder / OPERATOR)
    here = folders_here(folder, sites)
    for place in here:
        found = evaluate_site(place, open_site(place), here, data_changed)
        write_evaluation(found, place / EVALUATION_FILE)
        write_site_page(found, place / PAGE_FILE)
    return make_matrix([site.name for site in sites], collected(folder, sites, here), sites[0].run)


def folders_here(folder: Path, sites: Sequence[Site]) -> list[Path]:
    """The folders of sites that have trained on this machine."""
    places = [folder / site.name for site in sites]
    return [place for place in places if (place / SITE_FILE).is_file() and (place / MODEL_FILE).is_file()]


def collected(folder: Path, sites: Sequence[Site], here: Sequence[Path]) -> dict[str, SiteEvaluation]:
    """The evaluations of sites by name: those in the folders that are here, else those that were sent."""
    found = {}
    for site in sites:
        own = folder / site.name / EVALUATION_FILE
        path = own if folder / site.name in here else folder / OPERATOR / COLLECTED_FOLDER / f"{site.name}.json"
        if path.exists():
            found[site.name] = _checked(read_evaluation(path), site, path)
    return found


def _checked(found: SiteEvaluation, site: Site, path: Path) -> SiteEvaluation:
    if (found.site, found.run) != (site.name, site.run):
        came, expected = f"{found.site} in run {found.run[:12]}", f"{site.name} in run {site.run[:12]}"
        raise DataError(f"{path} is of {came}, expected {expected}; ask the site for its {EVALUATION_FILE} of this run")
    return found


def make_matrix(names: Sequence[str], found: dict[str, SiteEvaluation], run: str) -> Matrix:
    """The table of some sites from their evaluations."""
    absent = {name: "nothing has come from it" for name in names if name not in found}
    absent |= {name: each.withheld for name, each in found.items() if each.withheld}
    given = {name: each for name, each in found.items() if not each.withheld}
    metrics = [each.metric for each in given.values()]
    metric = max(metrics, key=metrics.count) if metrics else ""
    cells: dict[tuple[str, str], dict[str, Interval]] = {}
    for name, each in given.items():
        for model in each.models:
            if metric in model.scores and not model.best:
                cells.setdefault((model.site, model.kind), {})[name] = model.scores[metric]
    order = {"joint": 0, "alone": 1, "baseline": 2}
    ranked = sorted(cells, key=lambda key: (order.get(key[1], 1), [*names, key[0]].index(key[0])))
    rows = tuple(
        MatrixRow(f"{kind} of {site}" if site else "baseline", site, cells[site, kind]) for site, kind in ranked
    )
    verdicts = {name: each.comparison.words for name, each in given.items() if each.comparison is not None}
    tests = {name: each.rows for name, each in given.items()}
    return Matrix(run, metric, tuple(names), rows, verdicts, absent, tests)


def write_matrix(matrix: Matrix, path: Path) -> None:
    text = json.dumps(asdict(matrix), indent=1, ensure_ascii=False) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))
