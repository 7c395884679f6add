"""Checkpoints: a safetensors file for every host's workers, and one manifest that names the files of a checkpoint.

The manifest is written last and replaces its predecessor atomically, and no file of the checkpoint before is
overwritten, so a crash at any moment leaves a whole checkpoint. Any number of hosts can resume from it: each reads the
rows of its own workers.

Manifest and files have a CRC-32 each, which is verified before a run resumes; those of earlier versions have none.
"""

import hashlib
import itertools
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import safetensors
import torch
from torch import Tensor

from netfleet.algorithms.base import State
from netfleet.engines.host import Host
from netfleet.engines.job import LoopState, Snapshot
from netfleet.errors import CheckpointError
from netfleet.files import write_atomically

MANIFEST = "checkpoint.json"
_BUFFERS, _NETWORK, _LOOP = "buffers", "network/", "loop/"
_DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_DTYPES |= {torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL"}
_DTYPES |= {torch.int16: "I16", torch.int8: "I8", torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16"}
#: The files of tensors, and those that a crash has left unfinished.
_FILES = ("checkpoint-*.safetensors", ".checkpoint-*.safetensors.tmp")
_OF_HOST = (_NETWORK, _LOOP)
_COUNTERS = ("t", "bytes", "samples", "seconds")
#: A file with a checksum begins with its header's length, this, and the CRC-32 of the file with _BLANK in its place.
_BEFORE_CHECKSUM, _BLANK = b'{"__metadata__": {"crc32": "', b"00000000"
_CHECKSUM_AT, _CHUNK = 8 + len(_BEFORE_CHECKSUM), 1 << 20


def save(folder: Path, snapshot: Snapshot, host: Host, run_hash: str) -> None:
    """Write a snapshot to disk, together with the other hosts; the hash names the run that it belongs to."""
    workers, t = list(host.problem.workers), snapshot.t
    # Another host may be writing a later checkpoint when this one is done, so only what is there now will go.
    before = [path for pattern in _FILES for path in folder.glob(pattern)]
    number = next(n for n in itertools.count() if not (folder / _shard(t, workers, n)).exists())
    write_tensors(folder / _shard(t, workers, number), _tensors(snapshot), _about(snapshot, run_hash))
    sent, used = host.collective.total(torch.tensor([[snapshot.bytes, snapshot.samples]])).tolist()
    rows = torch.tensor([[i, workers[0], number] for i in workers])
    hosted = host.collective.gather(rows, workers).tolist()  # all have written by now
    if host.collective.keeps_record:
        groups = sorted({(first, n) for _, first, n in hosted})
        members = [[i for i, head, _ in hosted if head == first] for first, _ in groups]
        shards = {_shard(t, group, n): group for group, (_, n) in zip(members, groups, strict=True)}
        counters = {"t": t, "bytes": sent, "samples": used, "seconds": snapshot.seconds}
        _write_manifest(folder, run_hash, counters, shards)
        for path in before:
            if path.name not in shards:
                path.unlink(missing_ok=True)


def _tensors(snapshot: Snapshot) -> dict[str, Tensor]:
    tensors = dict(zip(snapshot.state._fields, snapshot.state, strict=True))
    if snapshot.buffers is not None:
        tensors[_BUFFERS] = snapshot.buffers
    tensors |= {f"{_NETWORK}{name}": values for name, values in snapshot.network.items()}
    if snapshot.loop is not None:
        tensors |= {f"{_LOOP}{name}": values for name, values in snapshot.loop.tensors.items()}
    return tensors


def _about(snapshot: Snapshot, run_hash: str) -> dict[str, str]:
    return {"run": run_hash} | ({} if snapshot.loop is None else {"loop": snapshot.loop.text})


def _manifest_checksum(run: str, counters: Mapping[str, float], shards: Mapping[str, Sequence[int]]) -> str:
    return f"{zlib.crc32(json.dumps([run, counters, shards]).encode()):08x}"


def _shard(t: int, workers: Sequence[int], number: int) -> str:
    """A file name for this round and these workers alone, so that no file of another checkpoint is overwritten.

    `number` is not 0 where the folder holds a file of this round and these workers: of another run, or saved before.
    """
    words = f"{json.dumps(list(workers))}{number or ''}"
    return f"checkpoint-{t}-{hashlib.sha256(words.encode()).hexdigest()[:8]}.safetensors"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file with a checksum, whole or not at all."""
    write_atomically(path, lambda file: _write(file, tensors, metadata))


def _write(file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write the safetensors format, one tensor after the other: the library's writer needs the state's memory thrice.

    Tensors may share memory (y = g after the first gradient); each is written in full.
    """
    header, end = dict[str, Any]({"__metadata__": {"crc32": _BLANK.decode(), **metadata}}), 0
    for name, values in tensors.items():
        if values.dtype not in _DTYPES:
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
            raise CheckpointError(f"{name!r} has the type {values.dtype}, which is not saved; use one of {known}")
        begin, end = end, end + values.numel() * values.element_size()
        header[name] = {"dtype": _DTYPES[values.dtype], "shape": list(values.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    start = struct.pack("<Q", len(text)) + text
    file.write(start)
    checksum = zlib.crc32(start)
    for values in tensors.values():
        data = values.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
        file.write(data)
        checksum = zlib.crc32(data, checksum)
    file.seek(_CHECKSUM_AT)
    file.write(f"{checksum:08x}".encode())


def verify(path: Path, advice: str | None = None) -> None:
    """Raise if a file of tensors is not as it was written; one of an earlier version has no checksum."""
    with open(path, "rb") as file:
        start, expected = file.read(_CHECKSUM_AT), file.read(len(_BLANK))
        if not start.endswith(_BEFORE_CHECKSUM):
            return
        checksum = zlib.crc32(start + _BLANK)
        while chunk := file.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
    if f"{checksum:08x}".encode() != expected:
        raise _damaged(path, advice)


def _damaged(path: Path, advice: str | None = None) -> CheckpointError:
    advice = advice or f"restore it from a copy, or delete {path.parent / MANIFEST} to start the run from the beginning"
    return CheckpointError(f"{path} is damaged: its checksum is not the one that it was written with; {advice}")


def exists(folder: Path) -> bool:
    return (folder / MANIFEST).exists()


def reached(folder: Path) -> int:
    return int(_read_manifest(folder)[1]["t"])


def files(folder: Path) -> list[Path]:
    """The files of a checkpoint; its manifest is the last of them."""
    return [*(folder / name for name in _read_manifest(folder)[2]), folder / MANIFEST]


def belongs_to(folder: Path) -> tuple[str, list[int]]:
    """The hash of the run that a checkpoint belongs to, and its workers."""
    run, _, shards = _read_manifest(folder)
    return run, sorted(i for group in shards.values() for i in group)


def assign(folder: Path, run_hash: str) -> None:
    """Give a checkpoint to another run: to the same with more rounds."""
    _, counters, shards = _read_manifest(folder)
    _write_manifest(folder, run_hash, counters, shards)


def _write_manifest(folder: Path, run: str, counters: Mapping[str, float], shards: Mapping[str, Sequence[int]]) -> None:
    content = {"run": run, "counters": counters, "shards": shards, "crc32": _manifest_checksum(run, counters, shards)}
    write_atomically(folder / MANIFEST, lambda file: file.write(json.dumps(content, indent=1).encode()))


def _read_manifest(folder: Path) -> tuple[str, dict[str, int], dict[str, list[int]]]:
    """The hash of the run that a checkpoint belongs to, its counters, and the workers of each of its files."""
    path = folder / MANIFEST
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        parts = found["run"], {name: found["counters"][name] for name in _COUNTERS}, found["shards"]
        expected = found.get("crc32")
    except (OSError, KeyError, TypeError, ValueError) as error:
        cure = "delete it to start from the beginning; if it is a site's, start that one with --rejoin"
        raise CheckpointError(f"{path} is not a checkpoint ({error}); {cure}") from None
    if expected not in (None, _manifest_checksum(*parts)):
        raise _damaged(path)
    return parts


def load(
    folder: Path,
    run_hash: str,
    state_type: type[NamedTuple],
    device: torch.device,
    workers: Sequence[int] | None = None,
) -> Snapshot:
    """Read the rows of some workers (None: all), with the counters of all; it must be of the run with this hash."""
    run, counters, shards = _read_manifest(folder)
    if run != run_hash:
        cause = f"{folder} belongs to run {run[:12]}, but the experiment is run {run_hash[:12]}"
        advice = "resume with the experiment that the checkpoint was made with, or choose another folder"
        raise CheckpointError(f"{cause}; {advice}")
    try:
        read, text = _read(folder, shards, workers)
        found = {name: v if name.startswith(_LOOP) else v.to(device) for name, v in read.items()}
        state = cast(State, state_type._make(found[name] for name in state_type._fields))
        network, tensors = (
            {name.removeprefix(prefix): v for name, v in found.items() if name.startswith(prefix)}
            for prefix in (_NETWORK, _LOOP)
        )
        loop = None if text is None else LoopState(tensors, text)
        return Snapshot(state=state, buffers=found.get(_BUFFERS), network=network, loop=loop, **counters)
    except (OSError, safetensors.SafetensorError, KeyError, ValueError) as error:
        advice = f"delete {folder / MANIFEST} to start the run from the beginning"
        raise CheckpointError(f"{folder} does not hold a checkpoint of this run ({error}); {advice}") from None


def _read(
    folder: Path, shards: Mapping[str, Sequence[int]], workers: Sequence[int] | None
) -> tuple[dict[str, Tensor], str | None]:
    """The wanted rows of every tensor, in the order in which they are wanted; and the text of a loop from outside.

    What is not a row for each worker belongs to a host, and is that of the first host of these workers.
    """
    wanted = sorted(i for group in shards.values() for i in group) if workers is None else list(workers)
    parts, order, texts = dict[str, list[Tensor]](), list[int](), list[str | None]()
    for shard, group in shards.items():
        rows = [row for row, i in enumerate(group) if i in set(wanted)]
        if not rows:
            continue
        order += [group[row] for row in rows]
        verify(folder / shard)
        with safetensors.safe_open(folder / shard, framework="pt") as file:
            texts.append((file.metadata() or {}).get("loop"))
            for name in file.keys():  # noqa: SIM118 (not a dict)
                whole = len(rows) == len(group) or name.startswith(_OF_HOST)
                stored = file.get_slice(name)
                values = file.get_tensor(name) if whole else torch.cat([stored[row : row + 1] for row in rows])
                parts.setdefault(name, []).append(values)
    index = torch.tensor([order.index(i) for i in wanted])
    found = {
        name: some[0] if name.startswith(_OF_HOST) or (len(some) == 1 and order == wanted) else torch.cat(some)[index]
        for name, some in parts.items()
    }
    return found, texts[0] if texts else None
