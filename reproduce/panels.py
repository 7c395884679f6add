"""Panel files: strict TOML -> `Panel`, whose curves are experiments and whose claims are checks on them.

    title = "CNN on MNIST, non-i.i.d."      figure = "fig3"        base = "base/mnist.toml"
    [experiment]                            what every curve of the panel changes in the base
    [[curves]]                              label = "K = 8", algorithm.K = 8     (what this curve changes in that)
    [[claims]]                              number = "3", text = "…", paper = "…", measure = {…}, at_least = 0.95

Tables are merged key by key; a table with another `kind`, and a value that is no table, replaces the old one. A curve
has one `algorithm`. A variant has `like = "fig1b"`: it takes what it does not set from that panel, and its own
[experiment] changes every curve.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from netfleet.errors import ConfigError
from netfleet.registry import suggestion
from netfleet.report.plots import XName
from netfleet.runs.config import EngineConfig, Experiment, Table, experiment, make, read_toml
from reproduce.claims import Claim


@dataclass(frozen=True)
class Curve:
    """One line of a panel: an experiment with one algorithm, and a seed or more."""

    label: str
    experiment: Experiment


@dataclass(frozen=True, kw_only=True)
class _Drawing:
    """What a panel file says about its picture."""

    figure: str
    title: str
    axes: tuple[XName, ...] = ("round",)  # over what the curves are drawn
    order: int = 9  # in which "all" runs the panels
    large: bool = False  # not part of "all": needs an accelerator to finish in reasonable time
    headline: bool = False  # also drawn alone
    zoom: float = 0.0  # also drawn from this accuracy on, where the curves meet


@dataclass(frozen=True, kw_only=True)
class Panel(_Drawing):
    name: str
    curves: tuple[Curve, ...]
    claims: tuple[Claim, ...] = ()
    part: str = ""  # how many of the rounds are run, in words; empty: all


@dataclass(frozen=True, kw_only=True)
class _File(_Drawing):
    base: str
    curves: list[Any]
    experiment: Mapping[str, Any] = field(default_factory=dict)
    claims: list[Any] = field(default_factory=list)


def find_panels(folder: Path) -> dict[str, Panel]:
    """Every panel of a folder by name, in the order in which "all" makes them."""
    paths = sorted(folder.glob("*.toml"))
    if not paths:
        raise ConfigError(f"no panel files (*.toml) in {str(folder)!r}; run this in a checkout, or give --from FOLDER")
    panels = sorted((load_panel(path) for path in paths), key=lambda panel: (panel.order, panel.name))
    axes: dict[str, Panel] = {}
    for panel in panels:
        first = axes.setdefault(panel.figure, panel)
        if (panel.axes, panel.zoom) != (first.axes, first.zoom):
            both = f"{first.name} and {panel.name} belong to {panel.figure}"
            raise ConfigError(f"{both}; give them the same axes and zoom")
    return {panel.name: panel for panel in panels}


def choose(panels: Mapping[str, Panel], names: Sequence[str]) -> list[Panel]:
    """The panels with these names, those of figures with these names, or all that finish on an ordinary machine."""
    chosen: dict[str, Panel] = {}
    for name in names:
        found = [p for p in panels.values() if name in (p.name, p.figure) or (name == "all" and not p.large)]
        if not found:
            known = sorted({*panels, *(panel.figure for panel in panels.values()), "all"})
            raise ConfigError(f"no figure or panel {name!r}{suggestion(name, known)}; known: {', '.join(known)}")
        chosen |= {panel.name: panel for panel in found}
    return list(chosen.values())


def load_panel(path: Path) -> Panel:
    """Read and check a panel file, with the base that it names."""
    table, changes = _read(path)
    file = make(_File, table, str(path))
    if not file.axes:
        raise ConfigError(f"{path}: axes has [], expected one or more")
    if not 0 <= file.zoom < 1:
        raise ConfigError(f"{path}: zoom is an accuracy from 0 (none) to below 1, such as 0.9; got {file.zoom}")
    if file.figure == "all" or not re.fullmatch(r"[\w-]+", file.figure):
        raise ConfigError(f"{path}: figure must be letters, digits and -, and not 'all'; got {file.figure!r}")
    base = merged(read_toml(path.parent / file.base), file.experiment)
    curves = tuple(_curve(base, table, changes, path) for table in file.curves)
    labels = [curve.label for curve in curves]
    if not labels or len(set(labels)) < len(labels):
        raise ConfigError(f"{path}: expected one or more curves, each with a label of its own, got {labels}")
    if bad := [claim for claim in file.claims if not isinstance(claim, Mapping)]:
        raise ConfigError(f"{path}: a claim must be a table ([[claims]]), got {bad[0]!r}")
    claims = tuple(make(Claim, table, f"{path}, claim") for table in file.claims)
    for claim in claims:
        claim.check(labels, str(path))
    drawing = {key.name: getattr(file, key.name) for key in fields(_Drawing)}
    return Panel(name=path.stem, curves=curves, claims=claims, **drawing)


def _read(path: Path, below: tuple[Path, ...] = ()) -> tuple[Table, Table]:
    """A panel file completed by the panel that it is like, and what it changes in every curve of that."""
    if path in below:
        raise ConfigError(f"{path} is like itself: {' → '.join(p.stem for p in (*below, path))}")
    table = read_toml(path)
    if "like" not in table:
        return table, {}
    other, changes = _read(path.parent / f"{table.pop('like')}.toml", (*below, path))
    return other | {k: v for k, v in table.items() if k != "experiment"}, merged(changes, table.get("experiment", {}))


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Table:
    """`base` with `changes`: tables key by key unless their kind changes, anything else replaced."""
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        alike = isinstance(old, Mapping) and isinstance(value, Mapping)
        same = alike and value.get("kind", old.get("kind")) == old.get("kind")  # type: ignore[union-attr]
        result[key] = merged(old, value) if same else value  # type: ignore[arg-type]
    return result


def scaled(panel: Panel, rounds: int | None = None, seeds: int | None = None, **engine: Any) -> Panel:
    """The panel with at most so many rounds, or so many seeds from its first; its claims stay the same.

    `engine` is the device or number of threads that computes the same runs.
    """
    whole = max(curve.experiment.rounds for curve in panel.curves)
    made = min(whole, rounds or whole)
    changed = [replace(c, experiment=_scaled(c.experiment, made, seeds, engine)) for c in panel.curves]
    part = "" if made == whole else f"{made:,} of {whole:,} rounds"
    return replace(panel, curves=tuple(changed), part=part)


def _scaled(given: Experiment, rounds: int, seeds: int | None, engine: Table) -> Experiment:
    rounds, evaluation = min(rounds, given.rounds), given.evaluation
    if rounds < min(given.rounds, 20 * evaluation.every):  # a short curve needs more evaluations
        every = max(1, rounds // 50)
        full = evaluation.full_every // evaluation.every * every
        evaluation = replace(evaluation, every=every, full_every=full)
    chosen = tuple(range(given.seeds[0], given.seeds[0] + seeds)) if seeds else given.seeds
    other = make(EngineConfig, vars(given.engine) | engine, "")
    return replace(given, rounds=rounds, evaluation=evaluation, seeds=chosen, engine=other)


def _curve(base: Table, table: Any, changes: Mapping[str, Any], path: Path) -> Curve:
    if not isinstance(table, Mapping) or not isinstance(table.get("label"), str):
        raise ConfigError(f"{path}: a curve must be a table with a label, got {table!r}")
    label = table["label"]
    own = {key: value for key, value in table.items() if key != "label"}
    whole = merged(merged(base, own), changes)
    if not isinstance(whole.get("algorithm"), Mapping):
        raise ConfigError(f'{path}, curve {label!r}: no algorithm; add algorithm = {{kind = "net-fleet", …}}')
    if "algorithms" in whole:
        raise ConfigError(f"{path}, curve {label!r}: a curve has one algorithm = {{…}}; found algorithms")
    algorithm = whole.pop("algorithm")
    try:
        return Curve(label, experiment(whole | {"name": path.stem, "algorithms": [{**algorithm, "label": label}]}))
    except ConfigError as error:
        raise ConfigError(f"{path}, curve {label!r}: {error}") from None
