"""Bytes to arrays: idx (MNIST), CIFAR-10's binary batches, LIBSVM text.

All pure; `where` names the file in errors.
"""

import gzip
import math
import zlib
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from netfleet.errors import DataError

Bytes = npt.NDArray[np.uint8]

GZIP_MAGIC = b"\x1f\x8b"
IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
CIFAR_RECORD = 1 + 3 * 32 * 32
DENSE_LIMIT = 2**33  # bytes; above it a sparse file is refused rather than made dense


class Sparse(NamedTuple):
    """A LIBSVM file: the label of each row, and the entries (row, column, value); columns count from 0."""

    labels: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    columns: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    where: str


def unpack(data: bytes, where: str) -> bytes:
    """Undo gzip where the data is gzipped, whatever the file is called."""
    if not data.startswith(GZIP_MAGIC):
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{where}: damaged gzip ({error}); replace it with the original") from None


def parse_idx(data: bytes, where: str) -> npt.NDArray[Any]:
    """An idx file: two zero bytes, the type, the number of axes, each axis as big-endian uint32, the values."""
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in IDX_TYPES or data[3] == 0:
        raise DataError(
            f"{where}: not an idx file; it starts with {data[:4].hex(' ') or 'nothing'}, expected 00 00, a "
            f"type and the number of axes; replace it with the original"
        )
    kind, start = np.dtype(IDX_TYPES[data[2]]), 4 + 4 * data[3]
    if len(data) < start:
        raise DataError(f"{where}: ends after {len(data)} bytes, within the idx header; replace it with the original")
    shape = tuple(int(axis) for axis in np.frombuffer(data, ">u4", data[3], 4))
    size = start + kind.itemsize * math.prod(shape)
    if len(data) != size:
        raise DataError(
            f"{where}: {len(data)} bytes, expected {size} for the shape {shape} in its header; "
            f"replace it with the original"
        )
    values = np.frombuffer(data, kind, offset=start).reshape(shape)
    return values.astype(kind.newbyteorder("="), copy=False)


def parse_cifar(data: bytes, where: str) -> tuple[Bytes, Bytes]:
    """Labels [n] and pixels [n, 3, 32, 32] of a CIFAR-10 batch: per image its label and 3,072 bytes."""
    if not data or len(data) % CIFAR_RECORD:
        raise DataError(
            f"{where}: {len(data)} bytes, expected a multiple of {CIFAR_RECORD} (a label and 3×32×32 "
            f"pixels); replace it with the original"
        )
    records = np.frombuffer(data, np.uint8).reshape(-1, CIFAR_RECORD)
    return records[:, 0], records[:, 1:].reshape(-1, 3, 32, 32)


def parse_libsvm(data: bytes, where: str) -> Sparse:
    """LIBSVM text: `label index:value …` on each line; indices count from 1 and rise, `#` is a comment."""
    fields: list[bytes] = []
    pairs: list[int] = []  # index:value pairs of each row
    lines: list[int] = []  # line number of each row
    for number, line in enumerate(data.splitlines(), start=1):
        text = line.partition(b"#")[0]
        words = text.replace(b":", b" ").split()
        if not words:
            continue
        if len(words) != 1 + 2 * text.count(b":"):
            raise DataError(
                f"{where}, line {number}: {line[:60].decode('utf-8', 'replace')!r} is not 'label index:value …'; "
                f"correct the line, or check that this is a LIBSVM file"
            )
        fields += words
        pairs.append(len(words) // 2)
        lines.append(number)
    if not pairs:
        raise DataError(f"{where}: no rows; expected 'label index:value …' on each line; check the path")
    numbers, counts = _numbers(fields, where), np.array(pairs)
    starts = np.cumsum(1 + 2 * counts) - (1 + 2 * counts)  # where each row's label is
    rest = np.delete(numbers, starts).reshape(-1, 2)
    rows = np.repeat(np.arange(len(counts)), counts)
    _check_labels(numbers[starts], lines, where)
    _check_indices(rest[:, 0], rows, lines, where)
    return Sparse(numbers[starts].astype(np.int64), rows, rest[:, 0].astype(np.int64) - 1, rest[:, 1], where)


def dense(sparse: Sparse, features: int) -> npt.NDArray[np.float32]:
    """The entries as a matrix [rows, features]."""
    widest = width(sparse)
    if widest > features:
        raise DataError(f"{sparse.where}: has feature {widest}, expected at most {features}; set features = {widest}")
    shape = (len(sparse.labels), features)
    if 4 * math.prod(shape) > DENSE_LIMIT:
        raise DataError(
            f"{sparse.where}: {shape[0]} rows × {features} features need {4 * math.prod(shape) / 2**30:.0f} "
            f"GiB as a dense matrix, expected at most {DENSE_LIMIT >> 30}; use fewer rows or features"
        )
    matrix = np.zeros(shape, np.float32)
    matrix[sparse.rows, sparse.columns] = sparse.values
    return matrix


def width(sparse: Sparse) -> int:
    """The highest feature that occurs, counted from 1; 1 where no row has any."""
    return int(sparse.columns.max(initial=0)) + 1


def _numbers(fields: list[bytes], where: str) -> npt.NDArray[np.float64]:
    try:
        numbers = np.array(list(map(float, fields)))
    except ValueError as error:
        raise DataError(f"{where}: {error}; expected numbers only, 'label index:value …'; correct the file") from None
    if not np.isfinite(numbers).all():
        raise DataError(f"{where}: has NaN or infinity, expected finite numbers; remove or replace them")
    return numbers


def _check_labels(labels: npt.NDArray[np.float64], lines: list[int], where: str) -> None:
    broken = np.flatnonzero(labels != np.floor(labels))
    if broken.size:
        raise DataError(
            f"{where}, line {lines[broken[0]]}: label {labels[broken[0]]} is not a whole number; "
            f"give each class a whole number (regression targets are not supported)"
        )


def _check_indices(indices: npt.NDArray[np.float64], rows: npt.NDArray[np.int64], lines: list[int], where: str) -> None:
    falls = (np.diff(indices, prepend=0) <= 0) & (np.diff(rows, prepend=-1) == 0)
    broken = np.flatnonzero((indices < 1) | (indices != np.floor(indices)) | falls)
    if broken.size:
        raise DataError(
            f"{where}, line {lines[rows[broken[0]]]}: feature index {indices[broken[0]]:g}; expected whole "
            f"numbers from 1 that rise along the line; renumber the features"
        )
