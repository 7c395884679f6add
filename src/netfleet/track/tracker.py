"""What a tracker is, and what it is told of a run."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from netfleet.registry import Registry

#: How a run ended; "interrupted" by Ctrl-C or a signal, "failed" by an error.
Status = Literal["finished", "diverged", "interrupted", "failed"]
Parameter = str | int | float | bool


@dataclass(frozen=True)
class TrackedRun:
    """One run of an experiment: a method with a seed."""

    experiment: str
    label: str
    seed: int
    config: Mapping[str, Any]
    hash: str
    #: Names the run in a tracker. It stays when the run is resumed or lengthened; a run that starts again gets another.
    id: str
    folder: Path | None = None

    @property
    def name(self) -> str:
        return f"{self.label}, seed {self.seed}"

    @property
    def parameters(self) -> dict[str, Parameter]:
        """The resolved config without tables in tables, and its hash.

        >>> config = {"algorithm": {"eta": 0.1, "rho": None}, "sizes": [1, 2]}
        >>> TrackedRun("ring", "DSGD", 0, config, "f00d", "1").parameters
        {'algorithm.eta': 0.1, 'algorithm.rho': 'null', 'sizes': '[1, 2]', 'hash': 'f00d'}
        """
        return dict(_flat(self.config, "")) | {"hash": self.hash}


@runtime_checkable
class Tracker(Protocol):
    """Follows one run after the other: `begin`, a `record` for each evaluation, `end`.

    A run that is resumed begins again, and all its records come again, first those that it has already. So a tracker
    drops in `begin` what it has under this id, and no point is there twice or missing. An error that a tracker raises
    becomes a warning: it gets nothing more of that run, and the run goes on.
    """

    def begin(self, run: TrackedRun) -> None: ...

    def record(self, round: int, values: Mapping[str, float]) -> None: ...

    def end(self, status: Status) -> None: ...


TRACKERS: Registry[Tracker] = Registry("tracker", Tracker)


def _flat(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Parameter]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            plain = isinstance(value, str | int | float)
            yield f"{prefix}{key}", value if plain else json.dumps(value, ensure_ascii=False)
