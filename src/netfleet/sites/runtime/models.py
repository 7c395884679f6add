"""The models that a site writes: the last one of a training, and the best one by the site's validation rows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from netfleet.engines.job import Snapshot
from netfleet.prediction.model_file import read_info, write_model
from netfleet.prediction.model_info import Kind, ModelInfo, Origin, model_info
from netfleet.problems.base import Problem
from netfleet.problems.module import ModuleProblem
from netfleet.runs.config import Experiment
from netfleet.runs.history import Record
from netfleet.sites.planning.folders import ALONE_BEST_FILE, ALONE_FILE, BEST_FILE, MODEL_FILE, Site

_FILES: dict[Kind, tuple[str, str]] = {"joint": (MODEL_FILE, BEST_FILE), "alone": (ALONE_FILE, ALONE_BEST_FILE)}


def is_private(experiment: Experiment) -> bool:
    """Whether the plan has private gradients; scores and what is chosen by them are not covered by that."""
    return experiment.privacy is not None and experiment.privacy.clip is not None


@dataclass(frozen=True)
class ModelWriter:
    """Writes models of one training at a site; `scores` says whether their files have the site's scores."""

    folder: Path
    site: Site
    experiment: Experiment
    kind: Kind = "joint"
    scores: bool = True

    @property
    def path(self) -> Path:
        return self.folder / _FILES[self.kind][0]

    @property
    def best_path(self) -> Path:
        return self.folder / _FILES[self.kind][1]

    @property
    def has_validation(self) -> bool:
        """Whether the site's evaluations are on validation rows; test rows must not choose a model."""
        return bool(self.experiment.problem.get("validation"))

    def write_last(self, problem: Problem, final: Snapshot, records: Sequence[Record]) -> None:
        stays = self.kind == "alone" and is_private(self.experiment)
        self._write(self.path, problem, final, records, self._origin(final, stays=stays))

    def write_tensors(self, tensors: Mapping[str, Tensor], final: Snapshot) -> None:
        """Write a model whose architecture is known to the program that trained it only."""
        write_model(self.path, ModelInfo(self._origin(final)), tensors)

    def keep_best(self, problem: Problem, snapshot: Snapshot, records: Sequence[Record]) -> None:
        """Write the snapshot if its loss is less than that of the one in the file; the earlier one of two alike.

        After a rollback there may be no file, because its round was discarded.
        """
        losses = {record["round"]: record["loss"] for record in records if record.get("loss") is not None}
        if not self.has_validation or snapshot.t not in losses:
            return
        known = read_info(self.best_path).origin.round if self.best_path.exists() else None
        if known is None or losses[snapshot.t] < losses.get(known, math.inf):
            origin = self._origin(snapshot, best=True, stays=is_private(self.experiment))
            self._write(self.best_path, problem, snapshot, records, origin)

    def _origin(self, at: Snapshot, best: bool = False, stays: bool = False) -> Origin:
        return Origin(self.site.run, self.site.name, at.t, self.kind, best, stays)

    def _write(self, path: Path, problem: Problem, at: Snapshot, records: Sequence[Record], origin: Origin) -> None:
        """The named parameters and buffers of the site's model; of a problem without a module, its vector x."""
        if not isinstance(problem, ModuleProblem):
            write_model(path, ModelInfo(origin), {"x": at.state.x[0]})
            return
        statistics = problem.statistics(at.state.x, problem.workers, at.buffers)
        module = problem.module(at.state.x[0], None if statistics is None else statistics[0])
        measured = self._measured(at.t, records) if self.scores and not is_private(self.experiment) else {}
        write_model(path, model_info(problem, self.experiment, origin, measured), module.state_dict())

    def _measured(self, t: int, records: Sequence[Record]) -> dict[str, float]:
        """The scores of a round by name."""
        names = ["accuracy", "loss", *(str(name).rpartition(":")[2] for name in self.experiment.evaluation.metrics)]
        found = next((record for record in reversed(records) if record["round"] == t), {})
        values = {name: found.get(name) for name in names}
        return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
