"""Data sources by name: what `data = "mnist"` in an experiment file stands for."""

from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from netfleet.data import catalog
from netfleet.data.catalog import Collection, File
from netfleet.data.dataset import Dataset
from netfleet.data.files import check_md5, locate, read
from netfleet.data.formats import Bytes, Sparse, dense, parse_cifar, parse_idx, parse_libsvm, unpack, width
from netfleet.errors import DataError
from netfleet.registry import Registry

SOURCES: Registry[Dataset] = Registry("data source", returns=Dataset)
Scale = Literal["unit", "standard"]
Rows = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Labelled = tuple[Bytes, Bytes]  # images and their labels
TEST_EVERY = 5  # where a source has no test set of its own, every fifth row is kept for testing
LABEL_COLUMN, WRITER_COLUMN = 0, 2  # of QMNIST's extended labels


@SOURCES.register("digits")
def digits() -> Dataset:
    """The 1,797 handwritten digits that come with the package: [N, 1, 8, 8] in [0, 1], 1,437 of them to train."""
    images, labels = _packaged(catalog.DIGITS_IMAGES), _packaged(catalog.DIGITS_LABELS)
    train, test = split_rows(labels)
    x, y = torch.from_numpy(images[:, None].astype(np.float32) / 16), _long(labels)
    return Dataset("digits", x[train], y[train], x[test], y[test], classes=10)


@SOURCES.register("mnist")
def mnist(path: str | None = None, scale: Scale = "unit", writers: bool = False) -> Dataset:
    """MNIST, [N, 1, 28, 28]; with `writers`, the groups are the people who wrote the digits (from QMNIST)."""
    return load_images(catalog.MNIST, path, scale, catalog.QMNIST_WRITERS if writers else None)


@SOURCES.register("fashion-mnist")
def fashion_mnist(path: str | None = None, scale: Scale = "unit") -> Dataset:
    """Fashion-MNIST, [N, 1, 28, 28]."""
    return load_images(catalog.FASHION_MNIST, path, scale)


@SOURCES.register("cifar10")
def cifar10(path: str | None = None, scale: Scale = "standard") -> Dataset:
    """CIFAR-10 from the original binary batches, [N, 3, 32, 32]."""
    return load_cifar(catalog.CIFAR10, path, scale)


@SOURCES.register("a9a")
def a9a(path: str | None = None) -> Dataset:
    """LIBSVM's a9a: 123 binary features of a person and whether the income is above 50,000 dollars."""
    return load_a9a(catalog.A9A, path)


@SOURCES.register("libsvm")
def libsvm(path: str, test_path: str | None = None, features: int | None = None) -> Dataset:
    """Any classification file in LIBSVM's format (gzipped or not) as dense rows [N, features].

    The test rows come from `test_path`, else from `path` + ".t", else every fifth row of each label is one.
    Labels become 0, 1, … in rising order; `features` is by default the highest index that occurs.
    """
    train = _read_libsvm(Path(path).expanduser())
    default = Path(path + ".t").expanduser()
    if test_path is None and not default.is_file():
        x = torch.from_numpy(dense(train, width(train) if features is None else features))
        classes, labels = np.unique(train.labels, return_inverse=True)
        (kept, held), y = split_rows(labels), _long(labels)
        return Dataset(Path(path).name, x[kept], y[kept], x[held], y[held], len(classes))
    test = _read_libsvm(default if test_path is None else Path(test_path).expanduser())
    widest = max(width(train), width(test))
    return _pair(Path(path).name, train, test, widest if features is None else features)


def load_images(collection: Collection, path: str | None, scale: Scale, writers: Collection | None = None) -> Dataset:
    """A collection in MNIST's layout: training images and labels, test images and labels, all idx."""
    train, train_y, test, test_y = _read_idx(collection, path)
    groups = None if writers is None else _writers(writers, path, train_y)
    return _images(collection.name, (train[:, None], train_y), (test[:, None], test_y), scale, groups)


def load_cifar(collection: Collection, path: str | None, scale: Scale) -> Dataset:
    """A collection in CIFAR-10's layout: training batches and, as the last file, the test batch."""
    found = locate(collection, path)
    *batches, test = (_read_batch(file, found[file.name]) for file in collection.files)
    pixels, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return _images(collection.name, (pixels, labels), test, scale)


def load_a9a(collection: Collection, path: str | None) -> Dataset:
    """A collection of a LIBSVM training file and a test file."""
    found = locate(collection, path)
    train, test = (_read_libsvm(found[file.name]) for file in collection.files)
    for part, file in zip((train, test), collection.files, strict=True):
        _check_shape((len(part.labels), file.shape[1]), file, found[file.name])
    return _pair(collection.name, train, test, collection.files[0].shape[1])


def split_rows(labels: npt.ArrayLike) -> tuple[Rows, Rows]:
    """Training and test rows by a fixed rule: in the order of the labels, every fifth row is a test row.

    So each label has its fifth (rounded up or down) in the test set, and no random number is involved.
    """
    order = np.argsort(labels, kind="stable")
    test = np.sort(order[::TEST_EVERY])
    return np.setdiff1d(order, test, assume_unique=True).astype(np.int64), test.astype(np.int64)


def moments(pixels: Bytes) -> tuple[Floats, Floats]:
    """Mean and standard deviation of each channel of [N, C, H, W] bytes; sums of integers, so exact and lean."""
    count = pixels.size // pixels.shape[1]
    mean = pixels.sum((0, 2, 3), dtype=np.int64) / count
    square = np.einsum("nchw,nchw->c", pixels, pixels, dtype=np.int64, casting="unsafe") / count
    return mean, np.sqrt(np.maximum(square - mean**2, 0.0))


def _images(name: str, train: Labelled, test: Labelled, scale: Scale, groups: Tensor | None = None) -> Dataset:
    (pixels, y), (test_pixels, test_y) = train, test
    mean, deviation = moments(pixels) if scale == "standard" else (np.zeros(1), np.full(1, 255.0))
    deviation = np.where(deviation > 0, deviation, 1.0)  # a channel of one colour becomes zero
    x, test_x = _scaled(pixels, mean, deviation), _scaled(test_pixels, mean, deviation)
    return Dataset(name, x, _long(y), test_x, _long(test_y), classes=10, groups=groups)


def _scaled(pixels: Bytes, shift: Floats, scale: Floats) -> Tensor:  # [N, C, H, W]
    x = pixels.astype(np.float32)
    x -= shift.astype(np.float32)[:, None, None]
    x /= scale.astype(np.float32)[:, None, None]
    return torch.from_numpy(x)


def _writers(collection: Collection, path: str | None, labels: Bytes) -> Tensor:
    """The writer of every training image; QMNIST's copy of the labels proves that the rows are the same."""
    (extended,) = _read_idx(collection, path)
    if len(extended) != len(labels):
        raise DataError(
            f"{collection.name}: {len(extended)} rows for the {len(labels)} training images; expected one for "
            f"each; use the original files of both"
        )
    same = extended[:, LABEL_COLUMN] == labels
    if not same.all():
        raise DataError(
            f"{collection.name}: {int((~same).sum())} of {len(labels)} labels differ from MNIST's, the first in "
            f"row {int(np.argmin(same))}; expected the same rows; use the original files of both"
        )
    return _long(extended[:, WRITER_COLUMN])


def _pair(name: str, train: Sparse, test: Sparse, features: int) -> Dataset:
    classes, y = np.unique(np.concatenate([train.labels, test.labels]), return_inverse=True)
    x, test_x = (torch.from_numpy(dense(part, features)) for part in (train, test))
    return Dataset(name, x, _long(y[: len(x)]), test_x, _long(y[len(x) :]), len(classes))


def _read_idx(collection: Collection, path: str | None) -> list[npt.NDArray[Any]]:
    found = locate(collection, path)
    arrays = [parse_idx(read(file, found[file.name]), str(found[file.name])) for file in collection.files]
    for array, file in zip(arrays, collection.files, strict=True):
        _check_shape(array.shape, file, found[file.name])
    return arrays


def _read_batch(file: File, path: Path) -> Labelled:
    labels, pixels = parse_cifar(read(file, path), str(path))
    _check_shape(pixels.shape, file, path)
    return pixels, labels


def _read_libsvm(path: Path) -> Sparse:
    return parse_libsvm(read(File(path.name, ()), path), str(path))


def _packaged(file: File) -> npt.NDArray[Any]:
    resource = resources.files("netfleet.data").joinpath("files", file.name)
    data = resource.read_bytes()
    check_md5(data, file, resource)
    return parse_idx(unpack(data, str(resource)), str(resource))


def _check_shape(shape: tuple[int, ...], file: File, path: Path) -> None:
    if shape != file.shape:
        raise DataError(f"{path}: holds an array of shape {shape}, expected {file.shape}; replace it with the original")


def _long(values: npt.NDArray[Any]) -> Tensor:
    return torch.from_numpy(values.astype(np.int64))
