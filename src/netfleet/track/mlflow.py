"""MLflow's file store: a folder that the MLflow page reads, and that needs no database and no server."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from netfleet.environment import need_packages
from netfleet.track.tracker import TRACKERS, Status, TrackedRun

if TYPE_CHECKING:
    from mlflow import MlflowClient

_ID, _STATUS = "netfleet.id", "netfleet.status"
_LONGEST = 6000  # characters of a parameter
_ENDED = {"finished": "FINISHED", "interrupted": "KILLED"}


@TRACKERS.register("mlflow")
class MLflow:
    """MLflow's file store in `dir`: an experiment of the same name, with a run for each label and seed."""

    def __init__(self, dir: str = "mlruns") -> None:
        need_packages("mlflow", extra="mlflow")
        self._dir = Path(dir)

    def begin(self, run: TrackedRun) -> None:
        from mlflow.entities import Param

        self._client = _client(self._dir)
        experiment = self._experiment(run.experiment)
        self._forget(experiment, run.id)
        tags = {_ID: run.id, "netfleet.label": run.label, "netfleet.seed": str(run.seed)}
        self._run = self._client.create_run(experiment, run_name=run.name, tags=tags).info.run_id
        params = [Param(name, str(value)[:_LONGEST]) for name, value in run.parameters.items()]
        for first in range(0, len(params), 100):  # as many as MLflow takes at once
            self._client.log_batch(self._run, params=params[first : first + 100])

    def record(self, round: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(self._run, [Metric(name, value, now, round) for name, value in values.items()])

    def end(self, status: Status) -> None:
        self._client.set_tag(self._run, _STATUS, status)
        self._client.set_terminated(self._run, _ENDED.get(status, "FAILED"))

    def _experiment(self, name: str) -> str:
        known = self._client.get_experiment_by_name(name)
        return str(self._client.create_experiment(name) if known is None else known.experiment_id)

    def _forget(self, experiment: str, id: str) -> None:
        """Delete the run that is about to be tracked again."""
        for known in self._client.search_runs([experiment], f"tags.`{_ID}` = '{id}'"):
            self._client.delete_run(known.info.run_id)


def _client(folder: Path) -> "MlflowClient":
    """A client of the file store, which newer versions want to be asked for; MLflow's telemetry stays off."""
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=folder.resolve().as_uri())
