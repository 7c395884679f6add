"""Weights & Biases, offline only: netfleet sends nothing, and `wandb sync` does if somebody calls it."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from netfleet.environment import need_packages
from netfleet.track.tracker import TRACKERS, Status, TrackedRun

#: What wandb would record of the machine besides the run, or send to its makers.
_QUIET = {"console": "off", "silent": True, "disable_git": True, "disable_code": True, "disable_job_creation": True}
_QUIET |= {"x_disable_stats": True, "x_disable_meta": True, "x_disable_machine_info": True}
_EXIT_CODES = {"finished": 0, "interrupted": 130}


@TRACKERS.register("wandb")
class WandB:
    """Weights & Biases, offline, in `dir`/wandb: a group for the experiment, with a run for each label and seed."""

    def __init__(self, dir: str = ".", project: str = "netfleet") -> None:
        need_packages("wandb", extra="wandb")
        self._dir, self._project = Path(dir), project

    def begin(self, run: TrackedRun) -> None:
        os.environ["WANDB_ERROR_REPORTING"] = "false"  # which would use the network
        import wandb

        self._dir.mkdir(parents=True, exist_ok=True)
        for known in (self._dir / "wandb").glob(f"offline-run-*-{run.id}"):
            shutil.rmtree(known)
        self._run = wandb.init(
            mode="offline",
            dir=self._dir,
            project=self._project,
            group=run.experiment,
            job_type=run.label,
            name=run.name,
            id=run.id,
            config=dict(run.parameters),
            reinit="create_new",
            settings=wandb.Settings(**_QUIET),
        )

    def record(self, round: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=round, commit=True)

    def end(self, status: Status) -> None:
        self._run.summary["status"] = status
        self._run.finish(exit_code=_EXIT_CODES.get(status, 1))
