"""Checkpoints: one safetensors file with the state of all workers, written whole or not at all."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import safetensors
import torch
from torch import Tensor

from netfleet.engines.loop import Snapshot
from netfleet.errors import CheckpointError

_BUFFERS = "buffers"
_NETWORK = "network/"
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_COUNTERS = ("t", "bytes", "samples", "seconds")


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file so that a crash at any moment leaves the old one or the new one, durable when this returns."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def save(path: Path, snapshot: Snapshot, run_hash: str) -> None:
    """Write a snapshot of all workers, with the hash of the run that it belongs to."""
    tensors = dict(zip(snapshot.state._fields, snapshot.state, strict=True))
    if snapshot.buffers is not None:
        tensors[_BUFFERS] = snapshot.buffers
    tensors |= {f"{_NETWORK}{name}": values for name, values in snapshot.network.items()}
    counters = {name: getattr(snapshot, name) for name in _COUNTERS}
    metadata = {"run": run_hash, "counters": json.dumps(counters)}
    write_atomically(path, lambda file: _write(file, tensors, metadata))


def _write(file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """The safetensors format, one tensor after the other: the library's own writer needs the state three times more.

    Tensors may share memory (y = g after the first gradient); each is written in full.
    """
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, values in tensors.items():
        begin, end = end, end + values.numel() * values.element_size()
        header[name] = {"dtype": _DTYPES[values.dtype], "shape": list(values.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for values in tensors.values():
        flat = values.detach().cpu().contiguous().flatten()
        file.write(flat.view(torch.uint8).numpy().data)


def reached(path: Path) -> int:
    """The round of the snapshot in a file."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return int(json.loads((file.metadata() or {})["counters"])["t"])
    except (OSError, safetensors.SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path} is not a checkpoint ({error}); delete it to start from the beginning") from None


def load(path: Path, run_hash: str, state_type: Any, device: torch.device) -> Snapshot:
    """Read a snapshot back; it must belong to the run with this hash."""
    try:
        with safetensors.safe_open(path, framework="pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        counters = json.loads(metadata["counters"])
        found = metadata["run"]
        snapshot = Snapshot(
            state=state_type(*(tensors[name] for name in state_type._fields)),
            buffers=tensors.get(_BUFFERS),
            network={name.removeprefix(_NETWORK): v for name, v in tensors.items() if name.startswith(_NETWORK)},
            **{name: counters[name] for name in _COUNTERS},
        )
    except (OSError, safetensors.SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"{path} is not a checkpoint of this run ({error}); delete it to start the run from the beginning"
        ) from None
    if found != run_hash:
        raise CheckpointError(
            f"{path} belongs to run {found[:12]}, but the experiment asked for is {run_hash[:12]}; resume with the "
            f"experiment it was made with, or choose another --out"
        )
    return snapshot
