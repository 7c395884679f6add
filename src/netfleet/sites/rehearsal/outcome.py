"""The prediction beside what happened, from the records and the evaluations of the sites."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from netfleet.errors import ConfigError
from netfleet.privacy.receipts.record import RECORD_FILE
from netfleet.sites.evaluation.matrix import collected, folders_here
from netfleet.sites.evaluation.results import EVALUATION_FILE, SiteEvaluation, read_evaluation
from netfleet.sites.planning.certificates import OPERATOR
from netfleet.sites.planning.folders import PLAN_FILE, SITE_FILE, Site, all_sites, read_site
from netfleet.sites.rehearsal.done import Done, read_done
from netfleet.sites.rehearsal.measurement import read_measurements
from netfleet.sites.rehearsal.results import REHEARSAL_FILE, Rehearsal, SitePrediction, read_rehearsal


@dataclass(frozen=True)
class Scores:
    """Of a site's two models on its own test rows; None: they were not evaluated."""

    joint: float | None = None
    alone: float | None = None
    better: float | None = None


@dataclass(frozen=True)
class SiteComparison:
    """A site's prediction for the rounds that it has done, and what happened."""

    name: str
    seconds: float
    sent: float
    predicted: SitePrediction
    done: Done | None
    scores: Scores


@dataclass(frozen=True)
class Comparison:
    """The sites that are known here."""

    run: str
    rounds: int
    sites: tuple[SiteComparison, ...]
    data: str
    notes: tuple[str, ...]


def compare(folder: Path, measured: Sequence[Path] = ()) -> Comparison:
    """Read the prediction in a plan's, the operator's or a site's folder, and what is known of the training.

    `measured` are files of sites on other machines.
    """
    found = read_rehearsal(find_prediction(folder))
    sites, places = _sites(folder)
    if sites[0].run != found.run:
        came, expected = found.run[:12], sites[0].run[:12]
        raise ConfigError(f"the rehearsal in {folder} is of run {came}, and this is run {expected}; rehearse again")
    told = read_measurements(measured, [site.name for site in sites])
    done = {name: each.done for name, each in told.items()} | {name: read_done(place) for name, place in places.items()}
    scores = {name: _scores(each) for name, each in _evaluations(folder, sites).items()}
    names = [site.name for site in sites]
    rows = [_beside(each, found, done.get(each.name), scores) for each in found.sites if each.name in names]
    return Comparison(found.run, found.rounds, tuple(rows), found.data, tuple(_notes(found, rows)))


def check_not_begun(path: Path, run: str) -> None:
    """Raise if there is a prediction of this run whose training has begun: it would be lost."""
    if not path.exists() or read_rehearsal(path).run != run:
        return
    begun = [name for name, place in _sites(path.parent)[1].items() if read_done(place) is not None]
    if begun:
        raise ConfigError(
            f"{begun[0]} has begun to train, and {path} has the prediction from before; --compare shows what came of "
            f"it; move the file to predict again"
        )


def find_prediction(folder: Path) -> Path:
    """A plan's rehearsal may have been made with the operator's folder."""
    own, operator = folder / REHEARSAL_FILE, folder / OPERATOR / REHEARSAL_FILE
    return operator if operator.exists() and not own.exists() else own


def _sites(folder: Path) -> tuple[list[Site], Mapping[str, Path]]:
    """The sites, and the folders of those that are on this machine."""
    if (folder / SITE_FILE).is_file():
        site = read_site(folder)
        return [site], {site.name: folder}
    is_operator = (folder / PLAN_FILE).is_file()
    sites = all_sites(folder if is_operator else folder / OPERATOR)
    places = {site.name: (folder.parent if is_operator else folder) / site.name for site in sites}
    return sites, {name: place for name, place in places.items() if (place / RECORD_FILE).is_file()}


def _evaluations(folder: Path, sites: list[Site]) -> Mapping[str, SiteEvaluation]:
    if (folder / SITE_FILE).is_file():
        path = folder / EVALUATION_FILE
        return {sites[0].name: read_evaluation(path)} if path.exists() else {}
    plan = folder.parent if (folder / PLAN_FILE).is_file() else folder
    return collected(plan, sites, folders_here(plan, sites))


def _scores(found: SiteEvaluation) -> Scores:
    own = {model.kind: model for model in found.models if model.site == found.site and not model.best}
    joint, alone = (own[kind].scores[found.metric].value if kind in own else None for kind in ("joint", "alone"))
    return Scores(joint, alone, None if found.comparison is None else found.comparison.better.value)


def _beside(each: SitePrediction, found: Rehearsal, done: Done | None, scores: Mapping[str, Scores]) -> SiteComparison:
    """The prediction for as many rounds as were done."""
    share = 1.0 if done is None else done.rounds / found.rounds
    return SiteComparison(
        each.name, found.seconds * share, each.sent * share, each, done, scores.get(each.name, Scores())
    )


def _notes(found: Rehearsal, rows: Sequence[SiteComparison]) -> Iterator[str]:
    yield f"The prediction is of {found.time} (netfleet {found.netfleet})."
    if absent := [row.name for row in rows if row.done is None]:
        yield (
            f"What it took at {', '.join(absent)} is not known here; each runs netfleet rehearse DIR --measure --out "
            f"FILE.json and sends the file, for --measured."
        )
    unscored = [row.name for row in rows if row.scores.better is None]
    if found.data and unscored:
        yield f"No evaluation with a model trained alone from {', '.join(unscored)}: netfleet evaluate."
    if found.data in ("file", "made up"):
        yield "Predicted gains are of other rows than the sites' own."
