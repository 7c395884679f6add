"""Checkpoints: what the library reads of what is written, on any number of hosts, whatever moment a crash comes at."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors.torch
import torch

from netfleet.algorithms.net_fleet import NetFleet
from netfleet.engines.collective import SingleHost
from netfleet.engines.loop import Snapshot
from netfleet.errors import CheckpointError
from netfleet.runs import checkpoint

CPU = torch.device("cpu")


class Part(SingleHost):
    """The collective of a host with some of the workers; `said` is what the hosts before it have said, by worker."""

    def __init__(self, said: dict[int, list[int]], keeps: bool, afterwards: Callable[[], object] = list) -> None:
        self.said, self.keeps_record, self.afterwards = said, keeps, afterwards

    def gather(self, rows: torch.Tensor, workers: Any) -> torch.Tensor:
        self.said |= dict(zip(workers, rows.tolist(), strict=True))
        self.afterwards()
        return torch.tensor([self.said[i] for i in sorted(self.said)])


def host(*workers: int, collective: SingleHost | None = None) -> Any:
    return SimpleNamespace(problem=SimpleNamespace(workers=workers), collective=collective or SingleHost())


def snapshot(x: torch.Tensor, t: int = 7, **more: Any) -> Snapshot:
    return Snapshot(t=t, state=NetFleet.State(x, x + 1, x + 2), bytes=1, **more)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_library_reads_what_is_written(tmp_path: Path, dtype: torch.dtype) -> None:
    x, g = torch.randn(2, 3, 5).to(dtype)
    network = {"age": torch.arange(6).reshape(2, 3), "up": torch.tensor([True, False]), "none": torch.zeros(3, 0)}
    taken = Snapshot(state=NetFleet.State(x.T.contiguous().T, g, g), buffers=None, network=network, t=7, bytes=1)
    checkpoint.save(tmp_path, taken, host(0, 1, 2), "abc")
    (path,) = tmp_path.glob("*.safetensors")
    found = safetensors.torch.load_file(path)
    assert set(found) == {"x", "y", "g", "network/age", "network/up", "network/none"}
    for name, values in (("x", x), ("y", g), ("g", g), *((f"network/{key}", v) for key, v in network.items())):
        assert found[name].dtype == values.dtype
        assert torch.equal(found[name], values), name
    again = checkpoint.load(tmp_path, "abc", NetFleet.State, CPU)
    assert (again.t, again.bytes) == (7, 1)
    assert torch.equal(again.state.x, x)
    assert checkpoint.reached(tmp_path) == 7


def two_hosts(folder: Path, x: torch.Tensor, t: int, run: str = "abc", afterwards: Callable[[], object] = list) -> None:
    """Workers 0, 2, 4 on one host and 1, 3 on the other; the one that keeps the record is the last to be done."""
    said: dict[int, list[int]] = {}
    for rows, keeps in (([1, 3], False), ([0, 2, 4], True)):
        collective = Part(said, keeps, afterwards if keeps else list)
        checkpoint.save(folder, snapshot(x[rows], t, buffers=x[rows, :1]), host(*rows, collective=collective), run)


@pytest.mark.parametrize("workers", [None, [0, 1, 2, 3, 4], [1, 2], [4], [0, 2, 4], [1, 3]])
def test_any_hosts_go_on_from_what_others_wrote(tmp_path: Path, workers: list[int] | None) -> None:
    x = torch.randn(5, 3)
    two_hosts(tmp_path, x, 7)
    found = checkpoint.load(tmp_path, "abc", NetFleet.State, CPU, workers)
    rows = workers or list(range(5))
    assert torch.equal(found.state.y, x[rows] + 1)
    assert torch.equal(found.buffers, x[rows, :1])  # type: ignore[arg-type]
    assert found.t == 7


class Crash(Exception):
    """The process ends here."""


@pytest.mark.parametrize(("t", "run"), [(8, "abc"), (7, "abc"), (7, "other"), (3, "abc")])
@pytest.mark.parametrize("writes", range(7))
def test_a_crash_at_any_moment_leaves_the_checkpoint_before_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int, t: int, run: str
) -> None:
    """Also where the folder holds a checkpoint of the same round, or of another run."""
    old, new = torch.randn(2, 5, 3)
    two_hosts(tmp_path, old, 7)
    left, fsync = [writes], os.fsync

    def failing(handle: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Crash
        fsync(handle)

    monkeypatch.setattr(os, "fsync", failing)
    with contextlib.suppress(Crash):
        two_hosts(tmp_path, new, t, run)
    done = writes >= 5  # two files and the manifest, each with its folder
    found = checkpoint.load(tmp_path, run if done else "abc", NetFleet.State, CPU)
    assert found.t == (t if done else 7)
    assert torch.equal(found.state.x, new if done else old)
    monkeypatch.undo()
    two_hosts(tmp_path, new, t, run)
    assert torch.equal(checkpoint.load(tmp_path, run, NetFleet.State, CPU).state.x, new)
    assert len(list(tmp_path.iterdir())) == 3  # what is no part of it is gone


def test_files_that_are_written_meanwhile_are_left_alone(tmp_path: Path) -> None:
    later = tmp_path / "checkpoint-9-cafe0000.safetensors"
    two_hosts(tmp_path, torch.randn(5, 3), 8, afterwards=lambda: later.write_bytes(b"by another host"))
    assert later.exists()


def test_what_a_crash_left_unfinished_goes_with_the_next_checkpoint(tmp_path: Path) -> None:
    (tmp_path / ".checkpoint-7-cafe0000.safetensors.tmp").write_bytes(b"half a file")
    two_hosts(tmp_path, torch.randn(5, 3), 7)
    assert len(list(tmp_path.iterdir())) == 3


def test_a_flipped_bit_anywhere_is_found_or_harmless(tmp_path: Path) -> None:
    x = torch.randn(5, 3)
    two_hosts(tmp_path, x, 7)
    before = checkpoint.load(tmp_path, "abc", NetFleet.State, CPU)
    for path in sorted(tmp_path.iterdir()):
        sound, silent = path.read_bytes(), 0
        for place in range(len(sound)):
            flipped = bytes([sound[place] ^ 1 << place % 8])
            path.write_bytes(sound[:place] + flipped + sound[place + 1 :])
            try:
                found = checkpoint.load(tmp_path, "abc", NetFleet.State, CPU)
            except CheckpointError as error:
                words = str(error)
            else:  # a bit of the words around the checksum, or white space
                silent, words = silent + 1, ""
                assert (found.t, found.bytes) == (before.t, before.bytes)
                assert all(torch.equal(a, b) for a, b in zip(found.state, before.state, strict=True))
            assert not words or str(tmp_path) in words
        assert silent < len(sound) / 5
        path.write_bytes(sound)


@pytest.mark.parametrize("name", [checkpoint.MANIFEST, "checkpoint-*.safetensors"])
def test_a_damaged_file_is_named_with_a_remedy(tmp_path: Path, name: str) -> None:
    checkpoint.save(tmp_path, snapshot(torch.randn(3, 4)), host(0, 1, 2), "abc")
    (path,) = tmp_path.glob(name)
    data = path.read_bytes()
    at = data.index(b'"t": 7') + 5 if path.suffix == ".json" else len(data) - 5
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    words = rf"{path} is damaged: its checksum .* delete {tmp_path / checkpoint.MANIFEST} to start"
    with pytest.raises(CheckpointError, match=words):
        checkpoint.load(tmp_path, "abc", NetFleet.State, CPU)


def test_a_checkpoint_of_an_earlier_version_has_no_checksum_and_is_read(tmp_path: Path) -> None:
    x = torch.randn(3, 4)
    checkpoint.save(tmp_path, snapshot(x), host(0, 1, 2), "abc")
    (path,) = tmp_path.glob("*.safetensors")
    safetensors.torch.save_file(safetensors.torch.load_file(path), path, {"run": "abc"})
    manifest = tmp_path / checkpoint.MANIFEST
    table = json.loads(manifest.read_text())
    del table["crc32"]
    manifest.write_text(json.dumps(table))
    assert torch.equal(checkpoint.load(tmp_path, "abc", NetFleet.State, CPU).state.x, x)


def test_what_is_missing_or_of_another_run_is_said(tmp_path: Path) -> None:
    two_hosts(tmp_path, torch.randn(5, 3), 7)
    with pytest.raises(CheckpointError, match="belongs to run abc"):
        checkpoint.load(tmp_path, "def", NetFleet.State, CPU)
    next(tmp_path.glob("*.safetensors")).unlink()
    with pytest.raises(CheckpointError, match="does not hold a checkpoint of this run"):
        checkpoint.load(tmp_path, "abc", NetFleet.State, CPU)
    (tmp_path / checkpoint.MANIFEST).write_text("{")
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        checkpoint.reached(tmp_path)
