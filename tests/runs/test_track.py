"""Trackers: what they are told in each course of a run, and that each tool reads back what netfleet has written."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import netfleet as nf
from netfleet.cli import main
from netfleet.engines.collective import SingleHost
from netfleet.errors import ConfigError, Interrupted
from netfleet.runs.config import experiment, without_none
from netfleet.runs.history import History, Record
from netfleet.runs.progress import Display
from netfleet.runs.run import _tracking, run_experiment
from netfleet.runs.sweep import parse_axes, points, sweep
from netfleet.sites.planning.folders import load_site
from netfleet.track import Status, TrackedRun, Tracker
from netfleet.track.following import ID_FILE, NO_TRACKING, TrackWarning, scalars
from support.site_processes import site_processes
from support.torchrun import finish, start

TABLE: dict[str, Any] = {
    "name": "small",
    "rounds": 7,
    "seeds": [0, 1],
    "checkpoint_every": 3,
    "topology": {"kind": "ring", "workers": 4},
    "problem": {"kind": "quadratics", "d": 3, "sigma": 0.3},
    "algorithms": [{"kind": "net-fleet", "K": 2, "eta": 0.05}, {"kind": "dsgd", "eta": 0.05}],
    "evaluation": {"every": 2},
}
ONE = TABLE | {"seeds": [0], "algorithms": [{"kind": "dsgd", "eta": 0.05}]}
WILD = ONE | {"rounds": 60, "algorithms": [{"kind": "dsgd", "eta": 1e9}]}
Points = dict[int, dict[str, float]]


@dataclass
class Memory:
    """A tracker that keeps, by id, the runs with what it was told of them."""

    runs: dict[str, TrackedRun] = field(default_factory=dict)
    points: dict[str, list[tuple[int, Mapping[str, float]]]] = field(default_factory=dict)
    ended: dict[str, Status] = field(default_factory=dict)

    def begin(self, run: TrackedRun) -> None:
        self._id, self.runs[run.id], self.points[run.id] = run.id, run, []
        self.ended.pop(run.id, None)

    def record(self, round: int, values: Mapping[str, float]) -> None:
        self.points[self._id].append((round, values))

    def end(self, status: Status) -> None:
        self.ended[self._id] = status


class Failing(Memory):
    """A tracker whose disk is full from a round on."""

    def record(self, round: int, values: Mapping[str, float]) -> None:
        if round >= 4:
            raise OSError("No space left on device")
        super().record(round, values)


class CtrlC(Display):
    """Somebody presses Ctrl-C when a record is shown."""

    def record(self, record: Record) -> None:
        if record["round"] == 4:
            raise KeyboardInterrupt


def expected(history: History) -> list[tuple[int, Mapping[str, float]]]:
    return [(record["round"], scalars(record)) for record in history]


def run_tracked(table: Mapping[str, Any], out: Path | None, **options: Any) -> tuple[Memory, list[History]]:
    memory = options.pop("memory", None) or Memory()
    return memory, run_experiment(experiment(table), out, trackers=[memory], **options)


def check_whole(memory: Memory, histories: list[History]) -> None:
    """Each run is there once, with all that its history has."""
    assert len(memory.runs) == len(histories)
    for run, tracked, history in zip(memory.runs.values(), memory.points.values(), histories, strict=True):
        assert (run.label, run.seed, run.hash) == (history.label, history.seed, history.hash)
        assert run.config == history.config
        assert tracked == expected(history)


def test_every_record_of_every_run_is_tracked_under_its_name_and_round(tmp_path: Path) -> None:
    memory, histories = run_tracked(TABLE, tmp_path)
    check_whole(memory, histories)
    names = [(run.experiment, run.name) for run in memory.runs.values()]
    methods = [("small", f"{label}, seed {seed}") for seed in (0, 1) for label in ("NET-FLEET", "DSGD")]
    assert names == methods
    assert set(memory.ended.values()) == {"finished"}
    first = next(iter(memory.points.values()))
    assert [t for t, _ in first] == [0, 2, 4, 6, 7]
    assert {"loss", "consensus_error", "eta", "bytes", "seconds"} <= set(first[0][1])


def test_parameters_are_the_resolved_config_and_its_hash(tmp_path: Path) -> None:
    memory, (history,) = run_tracked(ONE, None)
    (run,) = memory.runs.values()
    assert run.parameters["algorithm.eta"] == 0.05
    assert run.parameters["topology.weights.kind"] == "laplacian"
    assert run.parameters["hash"] == history.hash
    assert all(isinstance(value, str | int | float) for value in run.parameters.values())


def test_what_has_no_value_or_is_no_number_is_no_scalar() -> None:
    assert scalars({"round": 3, "loss": 1, "accuracy": None, "words": "x"}) == {"loss": 1.0}


@pytest.mark.parametrize("rounds", [7, 11])
def test_a_run_that_is_resumed_or_lengthened_is_the_same_run_without_gaps(tmp_path: Path, rounds: int) -> None:
    memory, _ = run_tracked(ONE, tmp_path)
    _, histories = run_tracked({**ONE, "rounds": rounds}, tmp_path, resume=True, memory=memory)
    check_whole(memory, histories)
    assert [t for t, _ in next(iter(memory.points.values()))] == [0, 2, 4, 6, 7] if rounds == 7 else [0, 2, 4, 6, 8, 10]


def test_ctrl_c_is_a_status_and_the_resumed_run_has_every_point_once(tmp_path: Path) -> None:
    memory = Memory()
    with pytest.raises(Interrupted):
        run_tracked(ONE, tmp_path, memory=memory, display=CtrlC())
    assert list(memory.ended.values()) == ["interrupted"]
    assert next(iter(memory.points.values())) == expected(History.load(tmp_path / "dsgd-seed0"))
    _, histories = run_tracked(ONE, tmp_path, resume=True, memory=memory)
    check_whole(memory, histories)
    assert list(memory.ended.values()) == ["finished"]


def test_a_run_that_is_overwritten_is_another_run(tmp_path: Path) -> None:
    memory, _ = run_tracked(ONE, tmp_path)
    run_tracked(ONE, tmp_path, overwrite=True, memory=memory)
    assert len(memory.runs) == 2


def test_a_tracker_may_come_later(tmp_path: Path) -> None:
    run_experiment(experiment(ONE), tmp_path)
    memory, histories = run_tracked(ONE, tmp_path, resume=True)
    check_whole(memory, histories)
    assert list(memory.ended.values()) == ["finished"]


@pytest.mark.parametrize("saved", [True, False])
def test_divergence_is_a_status(tmp_path: Path, saved: bool) -> None:
    memory, histories = run_tracked(WILD, tmp_path if saved else None)
    check_whole(memory, histories)
    assert list(memory.ended.values()) == ["diverged"]


def test_an_error_is_a_status() -> None:
    class Broken(Display):
        def record(self, record: Record) -> None:
            raise RuntimeError("broken")

    memory = Memory()
    with pytest.raises(RuntimeError):
        run_tracked(ONE, None, memory=memory, display=Broken())
    assert list(memory.ended.values()) == ["failed"]


def test_a_tracker_that_fails_is_a_warning_and_the_run_and_other_trackers_go_on(tmp_path: Path) -> None:
    failing, memory = Failing(), Memory()
    words = r"DSGD, seed 0: the tracker Failing failed in round 4: OSError: No space left on device. The run goes on"
    with pytest.warns(TrackWarning, match=words) as found:
        histories = run_experiment(experiment(ONE), tmp_path, trackers=[failing, memory])
    assert len(found) == 1
    assert [history.timeless() for history in histories] == [h.timeless() for h in run_experiment(experiment(ONE))]
    check_whole(memory, histories)
    assert [t for t, _ in next(iter(failing.points.values()))] == [0, 2]
    assert failing.ended == {}


def test_a_failure_in_one_run_does_not_end_the_tracking_of_the_next() -> None:
    with pytest.warns(TrackWarning):
        histories = run_experiment(experiment(TABLE), trackers=[failing := Failing()])
    assert len(failing.runs) == len(histories)


def test_trackers_are_where_the_record_is_kept_only() -> None:
    class OtherRank(SingleHost):
        keeps_record = False

    assert _tracking(experiment(ONE), [Memory()], OtherRank()) is NO_TRACKING


def test_tracking_changes_neither_results_nor_hashes(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    plain, tracked = experiment(ONE), experiment(ONE | {"track": {"kind": "tensorboard"}})
    assert tracked.hash == plain.hash
    assert "track" not in plain.to_table()
    assert experiment(without_none(tracked.to_table())) == tracked
    assert [h.timeless() for h in run_experiment(tracked, tmp_path)] == [h.timeless() for h in run_experiment(plain)]


def test_a_run_that_a_sweep_makes_once_is_tracked_for_every_point(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    table = ONE | {"algorithms": [*ONE["algorithms"], {"kind": "ld-sgd", "K": 2}], "track": "tensorboard"}
    results = sweep(points(table, parse_axes(["algorithms.K=1,2"])), tmp_path)
    folders = [history.folder or Path() for result in results for history in result.histories]
    assert len({(folder / ID_FILE).read_text() for folder in folders}) == len(folders) == 4
    assert all(len(list(folder.glob("events.*"))) == 1 for folder in folders)


# What Python gives


def test_python_takes_an_object_a_function_or_several() -> None:
    memory, seen = Memory(), list[tuple[str, int, float]]()
    given = [memory, lambda run, round, values: seen.append((run.name, round, values["loss"]))]
    history = nf.simulate("dsgd", topology="ring", workers=4, problem="quadratics", rounds=3, track=given)
    check_whole(memory, [history])
    assert seen == [("DSGD, seed 0", record["round"], record["loss"]) for record in history]


def test_python_tracks_a_files_experiment(tmp_path: Path) -> None:
    (file := tmp_path / "small.toml").write_text(experiment(ONE).to_toml())
    memory = Memory()
    assert isinstance(memory, Tracker)
    check_whole(memory, list(nf.run(file, track=memory)))


def test_a_tracker_of_ones_own_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_tracker.py").write_text(
        "class Lines:\n"
        "    def __init__(self, path: str = 'lines.txt'):\n        self.file = open(path, 'a')\n"
        "    def begin(self, run): self.file.write(f'{run.name}\\n')\n"
        "    def record(self, round, values): self.file.write(f'{round} {values[\"loss\"]}\\n')\n"
        "    def end(self, status): self.file.write(f'{status}\\n'); self.file.close()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (history,) = run_experiment(experiment(ONE | {"track": {"kind": "my_tracker:Lines", "path": "mine.txt"}}))
    lines = [f"{record['round']} {record['loss']}" for record in history]
    assert (tmp_path / "mine.txt").read_text().splitlines() == ["DSGD, seed 0", *lines, "finished"]


# What is refused


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("tensorbord", "unknown tracker 'tensorbord' .did you mean 'tensorboard'"),
        ({"dir": "x"}, "tracker: the table has no kind; add kind"),
        ({"kind": "mlflow", "directory": "x"}, "tracker 'mlflow' has no parameter 'directory'; it takes: dir"),
        ({"kind": "mlflow", "dir": 3}, "tracker 'mlflow': dir must be a text, got 3"),
        (3, "tracker: expected a name or a table with a kind, got 3"),
        ("no_such_module:thing", "no module 'no_such_module'"),
    ],
)
def test_bad_trackers_are_found_before_anything_runs(given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        experiment(ONE | {"track": given})


@pytest.mark.parametrize(("given", "words"), [(Memory, "make an object of it: Memory()"), (3, "got 3")])
def test_what_is_no_tracker_is_refused(given: Any, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        nf.simulate("dsgd", topology="ring", workers=4, problem="quadratics", rounds=1, track=given)
    assert words in str(error.value)


def test_a_factory_must_make_a_tracker() -> None:
    with pytest.raises(ConfigError, match="made a Fraction, expected Tracker; fix the factory's return value"):
        run_experiment(experiment(ONE | {"track": "fractions:Fraction"}))


@pytest.mark.parametrize("kind", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_package_names_the_extra_before_anything_runs(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == kind else find(name))
    with pytest.raises(ConfigError, match=rf"{kind}, not installed here; pip install 'netfleet\[{kind}\]'"):
        run_experiment(experiment(ONE | {"track": kind}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_plan_for_sites_cannot_ask_for_trackers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "small.toml").write_text(experiment(ONE).to_toml())
    nodes = "".join(f'[[nodes]]\nname = "s{i}"\naddress = "127.0.0.1:{9000 + i}"\n' for i in range(4))
    (tmp_path / "nodes.toml").write_text(nodes)
    command = ["plan", str(tmp_path / "small.toml"), "--nodes", str(tmp_path / "nodes.toml"), "--out"]
    assert main([*command, str(tmp_path / "refused"), "--set", "track=tensorboard"]) == 2
    assert "[track]: a plan does not decide where a site's metrics go" in capsys.readouterr().err
    assert main([*command, str(tmp_path / "plan")]) == 0
    file = tmp_path / "plan" / "s0" / "experiment.toml"
    file.write_text('track = "no_such_module:thing"\n' + file.read_text())  # the hash is still that of the plan
    with pytest.raises(ConfigError, match=r"has \[track\]: a plan does not decide"):
        load_site(tmp_path / "plan" / "s0")


@pytest.mark.slow
def test_a_site_tracks_its_own_records_if_its_command_says_so(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    table = ONE | {"topology": {"kind": "ring"}}
    with site_processes(tmp_path, table, 3) as sites:
        sites.start("s0", options=("--track", "tensorboard"))
        sites.start("s1", "s2")
        assert set(sites.wait().values()) == {0}
        check_points(tensorboard_points(sites.folder / "s0" / "run"), History.load(sites.folder / "s0" / "run"))
        assert not list((sites.folder / "s1" / "run").glob("events.*"))


@pytest.mark.slow
def test_on_a_cluster_one_rank_tracks(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "small.toml").write_text(experiment(ONE | {"track": "tensorboard"}).to_toml())
    command = ["-m", "netfleet", "run", str(tmp_path / "small.toml"), "--engine", "distributed"]
    ends = finish(start([*command, "--out", str(tmp_path / "out")], 2))
    assert [code for code, _, _ in ends] == [0, 0], ends[0][2][-3000:]
    folder = tmp_path / "out" / "dsgd-seed0"
    assert len(list(folder.glob("events.*"))) == 1
    check_points(tensorboard_points(folder), History.load(folder))


# What each tool reads back


def tensorboard_points(folder: Path) -> Points:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    found: Points = {}
    for name in read.Tags()["scalars"]:
        for event in read.Scalars(name):
            assert name not in found.setdefault(event.step, {})
            found[event.step][name] = event.value
    return found


def tensorboard_session(folder: Path) -> Any:
    """Parameters and status, as the HParams page gets them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    content = EventAccumulator(str(folder)).Reload().PluginTagToContent("hparams")
    return {tag: HParamsPluginData.FromString(data) for tag, data in content.items()}


def mlflow_runs(folder: Path) -> list[tuple[Any, Points]]:
    """The runs of the experiment "small" with their points."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=folder.as_uri())
    known = client.get_experiment_by_name("small")
    return [(run, mlflow_points(client, run)) for run in client.search_runs([known.experiment_id])]


def mlflow_points(client: Any, run: Any) -> Points:
    found: Points = {}
    for name in run.data.metrics:
        for metric in client.get_metric_history(run.info.run_id, name):
            assert name not in found.setdefault(metric.step, {})
            found[metric.step][name] = metric.value
    return found


def wandb_records(folder: Path) -> list[tuple[Any, Points, int]]:
    """What W&B's own reader finds in each offline run: the run, its points, and its exit code."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record as Line
    from wandb.sdk.internal.datastore import DataStore

    wandb.teardown()  # as at the end of a process: its service has written all
    found = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        run, points, code = None, Points(), -1
        store = DataStore()
        store.open_for_scan(str(path))
        while (data := store.scan_data()) is not None:
            line = Line.FromString(data)
            run = line.run if line.HasField("run") else run
            code = line.exit.exit_code if line.HasField("exit") else code
            if line.HasField("history"):
                items = {
                    "".join(item.nested_key) or item.key: json.loads(item.value_json) for item in line.history.item
                }
                assert items["_step"] not in points
                points[items["_step"]] = {name: value for name, value in items.items() if name[0] != "_"}
        store.close()
        found.append((run, points, code))
    return found


def check_points(points: Points, history: History) -> None:
    """All values of the history, in single precision."""
    wanted = dict(expected(history))
    assert points.keys() == wanted.keys()
    for t, values in wanted.items():
        assert points[t].keys() == values.keys()
        assert all(math.isclose(points[t][name], value, rel_tol=1e-6) for name, value in values.items())


def grown(table: Mapping[str, Any], out: Path) -> list[History]:
    """Runs that were interrupted, resumed and lengthened."""
    with pytest.raises(Interrupted):
        run_experiment(experiment(table), out, display=CtrlC())
    run_experiment(experiment(table), out, resume=True)
    return run_experiment(experiment({**table, "rounds": 9}), out, resume=True)


def test_tensorboard_reads_back_what_was_tracked(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    for history in grown(TABLE | {"track": "tensorboard"}, tmp_path):
        assert history.folder is not None
        check_points(tensorboard_points(history.folder), history)
        session = tensorboard_session(history.folder)
        started, ended = (session[f"_hparams_/session_{end}_info"] for end in ("start", "end"))
        assert started.session_start_info.hparams["hash"].string_value == history.hash
        assert started.session_start_info.hparams["rounds"].number_value == 9
        assert ended.session_end_info.status == 1  # success


def test_tensorboard_has_a_place_for_runs_that_are_not_saved(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    (history,) = run_experiment(experiment(ONE | {"track": {"kind": "tensorboard", "dir": str(tmp_path)}}))
    (folder,) = (tmp_path / "small").iterdir()
    assert folder.name.startswith("DSGD, seed 0, ")
    check_points(tensorboard_points(folder), history)


def test_mlflow_reads_back_what_was_tracked(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    track = {"kind": "mlflow", "dir": str(tmp_path / "mlruns")}
    histories = grown(TABLE | {"track": track}, tmp_path / "out")
    run_experiment(experiment(WILD | {"track": track}))
    found = mlflow_runs(tmp_path / "mlruns")
    (wild,) = (run for run, _ in found if run.data.params["rounds"] == "60")
    others = [(run, points) for run, points in found if run.data.params["rounds"] == "9"]
    by_name = {run.info.run_name: (run, points) for run, points in others}
    assert len(by_name) == len(others) == len(histories)
    for history in histories:
        run, points = by_name[f"{history.label}, seed {history.seed}"]
        check_points(points, history)
        assert run.data.params["hash"] == history.hash
        assert (run.info.status, run.data.tags["netfleet.status"]) == ("FINISHED", "finished")
    assert (wild.info.status, wild.data.tags["netfleet.status"]) == ("FAILED", "diverged")


def test_wandb_reads_back_what_was_tracked_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb.sdk.internal.datastore")
    histories = grown(TABLE | {"track": {"kind": "wandb", "dir": str(tmp_path)}}, tmp_path / "out")
    by_name = {run.display_name: (run, points, code) for run, points, code in wandb_records(tmp_path)}
    assert len(by_name) == len(histories)
    for history in histories:
        run, points, code = by_name[f"{history.label}, seed {history.seed}"]
        check_points(points, history)
        config = {item.key: json.loads(item.value_json) for item in run.config.update}
        assert (config["hash"], config["rounds"], run.run_group, code) == (history.hash, 9, "small", 0)
