"""What an experiment says of its CSV files; checked when it is made, without reading any."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from netfleet.data.columns import Feature, Scale, make_features
from netfleet.data.sites import PLACE, check_sites
from netfleet.data.splits import check_share
from netfleet.data.statistics import Moments
from netfleet.data.table import Format, make_format
from netfleet.data.targets import Target, make_target
from netfleet.errors import ConfigError


@dataclass(frozen=True)
class Declaration:
    """The keys of `data = {kind = "csv", …}`, and what they mean."""

    path: str
    target: str
    features: Mapping[str, Any] | Sequence[str]
    sites: Sequence[str] | None
    group: str | None
    classes: Sequence[str | float] | None
    positive_above: float | None
    event: str | None
    missing: Sequence[str]
    scale: Scale
    statistics: str | Mapping[str, Any] | None
    test: float
    delimiter: str
    decimal: Literal[".", ","]

    def __post_init__(self) -> None:
        check_sites(self.sites)
        check_share(self.test)
        if self.own_files and self.group is not None:
            raise ConfigError(f'path = "{self.path}" is a file for each site; leave group = "{self.group}" out')
        if not self.own_files and self.group is None and self.sites is not None:
            cure = f"write {PLACE} into path, name the column of the sites with group, or leave sites out"
            raise ConfigError(f'sites are listed, but path = "{self.path}" is one file; {cure}')
        for column in (*self.goal.columns, *([self.group] if self.group else [])):
            if column in self.inputs:
                raise ConfigError(f"column {column!r} is the target or the group; leave it out of features")
        if isinstance(self.statistics, Mapping):
            self.constants(self.statistics)

    @cached_property
    def inputs(self) -> dict[str, Feature]:
        """The columns that are inputs, in alphabetical order."""
        return make_features(self.features, self.scale)

    @cached_property
    def goal(self) -> Target:
        return make_target(self.target, self.classes, self.positive_above, self.event)

    @cached_property
    def format(self) -> Format:
        return make_format(self.delimiter, self.decimal, self.missing)

    @property
    def own_files(self) -> bool:
        """Whether each site has a file of its own."""
        return PLACE in self.path

    @property
    def scaled(self) -> list[str]:
        """The columns that need sums over all sites."""
        return [name for name, feature in self.inputs.items() if feature.needs_moments]

    @property
    def digest(self) -> str:
        """Names everything that sums over training rows depend on, apart from the rows."""
        said = {key: value for key, value in vars(self).items() if key in _IN_DIGEST}
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]

    def constants(self, table: Mapping[str, Any]) -> dict[str, Moments]:
        """The mean and deviation of each scaled column, as `netfleet plan` has written them."""
        try:
            return {name: Moments(float(table[name]["mean"]), float(table[name]["deviation"])) for name in self.scaled}
        except (KeyError, TypeError, ValueError):
            columns = ", ".join(self.scaled)
            raise ConfigError(
                f"statistics must be a file, or a table with mean and deviation of each of {columns}, got {table!r}"
            ) from None

    def without_statistics(self) -> ConfigError:
        """The error of a site that needs the sums of all."""
        return ConfigError(
            f"columns {', '.join(self.scaled)} are scaled or filled by statistics over all sites, which no site knows "
            f'alone; run netfleet statistics at each site, merge the files, and add statistics = "statistics.json"'
        )


_IN_DIGEST = (
    "target",
    "features",
    "classes",
    "positive_above",
    "event",
    "missing",
    "scale",
    "test",
    "delimiter",
    "decimal",
)
