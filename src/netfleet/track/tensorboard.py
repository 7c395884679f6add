"""TensorBoard's event files, in the run's own folder: `tensorboard --logdir runs` shows runs by folder.

The records are written one by one with TensorBoard's own writer of records, without a thread and without tensorflow.
Parameters and status are those of its HParams page. Values have single precision.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from netfleet.environment import need_packages
from netfleet.track.tracker import TRACKERS, Status, TrackedRun

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

_NAME = "events.out.tfevents.{time:010.0f}.netfleet"
_OURS = "events.out.tfevents.*.netfleet"


@TRACKERS.register("tensorboard")
class TensorBoard:
    """TensorBoard's event files in the run's folder; those of a run that is not saved are below `dir`."""

    def __init__(self, dir: str = "runs") -> None:
        need_packages("tensorboard", extra="tensorboard")
        self._dir = Path(dir)

    def begin(self, run: TrackedRun) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder = run.folder or self._dir / run.experiment / f"{run.name}, {run.id}"
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob(_OURS):
            path.unlink()
        self._writer = RecordWriter((folder / _NAME.format(time=time.time())).open("wb", buffering=0))
        self._write_event(file_version="brain.Event:2")
        self._write_start(run)

    def record(self, round: int, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write_event(step=round, summary=Summary(value=scalars))

    def end(self, status: Status) -> None:
        from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

        known = {"finished": api_pb2.STATUS_SUCCESS, "interrupted": api_pb2.STATUS_UNKNOWN}
        code = known.get(status, api_pb2.STATUS_FAILURE)
        ended = plugin_data_pb2.SessionEndInfo(status=code, end_time_secs=time.time())
        content = plugin_data_pb2.HParamsPluginData(session_end_info=ended)
        self._write_event(summary=_hparams(metadata.SESSION_END_INFO_TAG, content))
        self._writer.close()

    def _write_start(self, run: TrackedRun) -> None:
        from tensorboard.plugins.hparams import metadata, plugin_data_pb2

        started = plugin_data_pb2.SessionStartInfo(group_name=run.name, start_time_secs=time.time())
        for name, value in run.parameters.items():
            field = {bool: "bool_value", str: "string_value"}.get(type(value), "number_value")
            setattr(started.hparams[name], field, value)
        content = plugin_data_pb2.HParamsPluginData(session_start_info=started)
        self._write_event(summary=_hparams(metadata.SESSION_START_INFO_TAG, content))

    def _write_event(self, **fields: object) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.write(Event(wall_time=time.time(), **fields).SerializeToString())


def _hparams(tag: str, content: "HParamsPluginData") -> "Summary":
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import metadata

    about = metadata.create_summary_metadata(content)
    return Summary(value=[Summary.Value(tag=tag, metadata=about, tensor=metadata.NULL_TENSOR)])
