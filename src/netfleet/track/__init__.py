"""Trackers: where the records of a run go besides its history. Off unless an experiment asks (`[track]`, `track=`).

All of them write to this machine's disk and none uses the network. Their packages are imported when they are used.
"""

from netfleet.track import mlflow as _mlflow  # noqa: F401 (registers its tracker)
from netfleet.track import tensorboard as _tensorboard  # noqa: F401
from netfleet.track import wandb as _wandb  # noqa: F401
from netfleet.track.tracker import TRACKERS, Status, TrackedRun, Tracker

__all__ = ["TRACKERS", "Status", "TrackedRun", "Tracker"]
