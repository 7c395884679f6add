"""Sources: formats from small files, locating, downloading from a local server, and the real data where it is."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import struct
import tarfile
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from netfleet.data import SOURCES, Dataset, load_dataset
from netfleet.data.catalog import A9A, CIFAR10, MNIST, QMNIST_WRITERS, Archive, Collection, File
from netfleet.data.download import atomic, download
from netfleet.data.files import cache_folder, locate, missing, read
from netfleet.data.formats import dense, parse_cifar, parse_idx, parse_libsvm, unpack
from netfleet.data.sources import load_a9a, load_cifar, load_images, moments, split_rows
from netfleet.errors import ConfigError, DataError, StorageError

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def idx(array: np.ndarray) -> bytes:
    code = CODES[array.dtype.str[1:]]
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def publish(folder: Path, name: str, contents: dict[str, tuple[tuple[int, ...], bytes]]) -> Collection:
    """Write files to a folder and describe them as a published collection."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, (_, data) in contents.items():
        (folder / file).write_bytes(data)
    files = tuple(File(file, shape, md5(data)) for file, (shape, data) in contents.items())
    return Collection(name, name, "http://127.0.0.1:9/", files, near=(".", name))


def toy_arrays(seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    images, labels = random.integers(0, 256, (12, 3, 4), np.uint8), np.arange(12, dtype=np.uint8) % 10
    return [images, labels, images[:5], labels[:5]]


def publish_images(folder: Path, name: str = "toy", seed: int = 0) -> Collection:
    packed = {
        f"{file}.gz": (array.shape, gzip.compress(idx(array), mtime=0))
        for file, array in zip(NAMES, toy_arrays(seed), strict=True)
    }
    return publish(folder, name, packed)


def publish_writers(folder: Path, labels: np.ndarray) -> Collection:
    extended = np.zeros((len(labels), 8), np.int32)
    extended[:, 0], extended[:, 2] = labels, 100 + np.arange(len(labels)) // 2
    data = gzip.compress(idx(extended), mtime=0)
    toy = publish(folder, "writers", {"writers-idx2-int.gz": (extended.shape, data)})
    return toy._replace(near=(".", "writers", "../writers"))


def unpublish(folder: Path) -> None:
    """Unpack every file of a folder, as some people keep them."""
    for packed in folder.glob("*.gz"):
        packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
        packed.unlink()


# Dataset


def toy(**changes: Any) -> Dataset:
    x, y = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
    return Dataset(**{"name": "toy", "train_x": x, "train_y": y, "test_x": x, "test_y": y, "classes": 2, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_x": torch.zeros(4, 2).double()}, r"training row are float64 \[2\] but of a test row float32"),
        ({"train_x": [[0.0, 1.0]] * 4}, "train_x must be a tensor, or a tuple or dict of tensors, got list"),
        ({"train_x": {}}, "train_x has no tensor"),
        ({"train_x": (torch.zeros(4, 2), torch.zeros(3, 2))}, "train_x has 3 rows but train_x has 4"),
        ({"test_x": torch.zeros(0, 2)}, "test_x is empty"),
        ({"train_y": torch.zeros(4)}, "train_y must be int64 labels, got float32"),
        ({"train_y": torch.zeros(3).long()}, "train_y has 3 rows but train_x has 4"),
        ({"classes": 1}, "labels from 0 to 1, expected 0 to 0"),
        ({"test_y": torch.tensor([0, -1, 0, 0])}, "labels from -1 to 0, expected 0 to 1"),
        ({"test_x": torch.zeros(4, 3)}, "of a test row"),
        ({"groups": torch.zeros(5).long()}, "groups has shape"),
        ({"train_x": torch.full((4, 2), float("nan"))}, "train_x has a value that is not finite"),
        ({"test_x": torch.full((4, 2), float("inf"))}, "test_x has a value that is not finite"),
    ],
)
def test_dataset_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        toy(**changes)


# Formats


@settings(deadline=None)  # speed is not what is tested
@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.sampled_from(sorted(CODES)))
def test_idx_is_read_as_written(shape: list[int], kind: str) -> None:
    array = np.arange(np.prod(shape)).reshape(shape).astype(kind)
    back = parse_idx(idx(array), "f")
    assert back.dtype == array.dtype
    assert np.array_equal(back, array)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "f: not an idx file; it starts with nothing"),
        (b"\0\0\x08", "f: not an idx file"),
        (b"<html>", "f: not an idx file; it starts with 3c 68 74 6d"),
        (b"\0\0\x07\x01" + bytes(4), "f: not an idx file"),
        (b"\0\0\x08\x03" + bytes(4), "f: ends after 8 bytes, within the idx header"),
        (idx(np.zeros((2, 3), "u1"))[:-1], r"f: 17 bytes, expected 18 for the shape \(2, 3\)"),
        (idx(np.zeros((2, 3), "u1")) + b"x", r"f: 19 bytes, expected 18"),
        (b"\0\0\x08\x04" + b"\xff" * 16, "expected .* for the shape"),
    ],
)
def test_idx_refuses(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_idx(data, "f")


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_give_a_value_or_a_data_error(data: bytes) -> None:
    for parse in (parse_idx, parse_cifar, parse_libsvm, unpack):
        try:
            found = parse(data, "f")  # type: ignore[operator]
        except DataError as error:
            found = str(error)
        assert found.startswith("f") if isinstance(found, str) else found is not None


@settings(deadline=None)
@given(st.integers(0, 60), st.binary(min_size=1, max_size=40))
def test_damaged_gzip_is_a_data_error(cut: int, noise: bytes) -> None:
    packed = gzip.compress(bytes(range(256)), mtime=0)
    for damaged in (packed[: 2 + cut], packed[:12] + noise):
        with pytest.raises(DataError, match=r"f: damaged gzip .* replace it"):
            unpack(damaged, "f")


def test_unpack_leaves_plain_data_alone() -> None:
    assert unpack(b"plain", "f") == b"plain"
    assert unpack(gzip.compress(b"packed"), "f") == b"packed"


def cifar_batch(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, bytes]:
    random = np.random.default_rng(seed)
    labels, pixels = (
        random.integers(0, 10, (rows, 1), np.uint8),
        random.integers(0, 256, (rows, 3, 32, 32), np.uint8),
    )
    return labels[:, 0], pixels, np.hstack([labels, pixels.reshape(rows, -1)]).tobytes()


def test_cifar_batch() -> None:
    labels, pixels, data = cifar_batch(3)
    back = parse_cifar(data, "f")
    assert np.array_equal(back[0], labels)
    assert np.array_equal(back[1], pixels)
    for broken in (data[:-1], b""):
        with pytest.raises(DataError, match=r"f: .* bytes, expected a multiple of 3073"):
            parse_cifar(broken, "f")


def test_libsvm_text() -> None:
    sparse = parse_libsvm(b"# header\n+1 1:0.5 3:-2\n\n-1\n+1 2:1e-1 # note\r\n", "f")
    assert sparse.labels.tolist() == [1, -1, 1]
    assert np.array_equal(dense(sparse, 4), np.float32([[0.5, 0, -2, 0], [0, 0, 0, 0], [0, 0.1, 0, 0]]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f: no rows"),
        ("1 1:2\n1 2", "f, line 2: '1 2' is not 'label index:value …'"),
        ("1 1:2:3", "f, line 1"),
        ("1 a:2", "f: could not convert string to float"),
        ("1 qid:1 1:2", "f: could not convert"),
        ("1 1:nan", "f: has NaN or infinity"),
        ("\n0.5 1:1", "f, line 2: label 0.5 is not a whole number"),
        ("1 1:1\n1 0:1", "f, line 2: feature index 0; expected whole numbers from 1"),
        ("1 1.5:1", "f, line 1: feature index 1.5"),
        ("1 3:1 2:1", "f, line 1: feature index 2; .* rise"),
        ("1 3:1 3:1", "f, line 1: feature index 3; .* rise"),
    ],
)
def test_libsvm_refuses(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_libsvm(text.encode(), "f")


def test_libsvm_is_not_made_dense_beyond_reason() -> None:
    with pytest.raises(DataError, match="GiB as a dense matrix"):
        dense(parse_libsvm(b"1 1:1\n", "f"), 2**33)
    with pytest.raises(DataError, match="f: has feature 7, expected at most 3; set features = 7"):
        dense(parse_libsvm(b"1 7:1\n", "f"), 3)


# Locating


def test_a_path_is_the_folder_or_its_parent(tmp_path: Path) -> None:
    collection = publish_images(tmp_path / "toy")
    expected = {file.name: tmp_path / "toy" / file.name for file in collection.files}
    assert locate(collection, str(tmp_path / "toy"), {}) == expected
    assert locate(collection, str(tmp_path), {}) == expected


def test_a_path_without_the_files_is_an_error_and_no_fallback(tmp_path: Path) -> None:
    collection = publish_images(tmp_path / "good" / "toy")
    publish_images(tmp_path / "part")
    for name in NAMES[1:3]:
        (tmp_path / "part" / f"{name}.gz").unlink()
    with pytest.raises(DataError, match=rf"part' has no {NAMES[1]}.gz, {NAMES[2]}.gz \(with or without .gz\)"):
        locate(collection, str(tmp_path / "part"), {"NETFLEET_DATA": str(tmp_path / "good")})
    with pytest.raises(DataError, match=r"nowhere' is not a folder; give the folder that has train-images"):
        locate(collection, str(tmp_path / "nowhere"), {})


def test_the_order_is_shared_folder_then_cache(tmp_path: Path) -> None:
    collection = publish_images(tmp_path / "cache" / "netfleet" / "toy")
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert {p.parent for p in locate(collection, None, environ).values()} == {tmp_path / "cache/netfleet/toy"}
    publish_images(tmp_path / "shared" / "toy")
    environ["NETFLEET_DATA"] = str(tmp_path / "shared")
    assert {p.parent for p in locate(collection, None, environ).values()} == {tmp_path / "shared/toy"}
    environ["NETFLEET_DATA"] = str(tmp_path / "typo")
    with pytest.raises(DataError, match=r"NETFLEET_DATA = .*typo' is not a folder"):
        locate(collection, None, environ)


def test_files_directly_in_the_shared_folder_are_told_apart_by_md5(tmp_path: Path) -> None:
    """MNIST and Fashion-MNIST have the same file names."""
    first = publish_images(tmp_path / "shared", "first", seed=1)
    second = publish_images(tmp_path / "cache/netfleet/second", "second", seed=2)
    environ = {"NETFLEET_DATA": str(tmp_path / "shared"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert {p.parent for p in locate(first, None, environ).values()} == {tmp_path / "shared"}
    assert {p.parent for p in locate(second, None, environ).values()} == {tmp_path / "cache/netfleet/second"}


def test_the_cache_folder_has_a_default() -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/netfleet")
    assert cache_folder({"XDG_CACHE_HOME": ""}) == Path.home() / ".cache/netfleet"


def test_a_user_without_a_home_has_a_cache_folder_that_is_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*_: object) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nobody)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    folder = cache_folder({})
    assert folder.parent == tmp_path
    assert folder == cache_folder({})
    folder.chmod(0o755)
    with pytest.raises(StorageError, match="set XDG_CACHE_HOME"):
        cache_folder({})
    folder.rmdir()
    folder.symlink_to("/tmp")
    with pytest.raises(StorageError, match="is not safe to use"):
        cache_folder({})


def test_a_wrong_md5_names_the_file_and_both_sums(tmp_path: Path) -> None:
    collection = publish_images(tmp_path)
    path = tmp_path / collection.files[1].name
    path.write_bytes(b"damaged")
    message = rf"{path.name}: damaged.*{md5(b'damaged')}, expected {collection.files[1].md5}; delete it and run"
    with pytest.raises(DataError, match=message):
        load_images(collection, str(tmp_path), "unit")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone: cannot be read .No such file"):
        read(File("gone", ()), tmp_path / "gone")


# Downloading


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder; a path under /short/ promises ten bytes more than it sends."""

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if not self.path.startswith("/short/"):
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Length", "15")
        self.end_headers()
        self.wfile.write(b"five.")
        return None


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], str]]:
    """Serve a folder on this machine and give its address."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    running: list[tuple[ThreadingHTTPServer, threading.Thread]] = []

    def start(folder: Path) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        running.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}/"

    yield start
    for server, thread in running:
        server.shutdown()
        thread.join()
        server.server_close()


def test_what_is_missing_is_downloaded_once(tmp_path: Path, serve: Callable[[Path], str]) -> None:
    mirror, environ = tmp_path / "mirror", {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    collection = publish_images(mirror)
    collection = collection._replace(url=serve(mirror))
    found = locate(collection, None, environ)
    assert all(found[file.name].read_bytes() == (mirror / file.name).read_bytes() for file in collection.files)
    assert {p.name for p in (tmp_path / "cache/netfleet/toy").iterdir()} == {f.name for f in collection.files}
    offline = collection._replace(url="http://127.0.0.1:9/")
    assert locate(offline, None, environ) == found


def test_a_file_may_be_published_under_another_name(tmp_path: Path, serve: Callable[[Path], str]) -> None:
    mirror, environ = tmp_path / "mirror", {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    collection = publish(mirror, "toy", {"input.txt": ((), b"A:\nhello\n")})
    file = collection.files[0]._replace(name="toy.txt", address="input.txt")
    found = locate(collection._replace(url=serve(mirror), files=(file,)), None, environ)
    assert found == {"toy.txt": tmp_path / "cache/netfleet/toy/toy.txt"}
    assert read(file, found["toy.txt"]) == b"A:\nhello\n"


def test_only_the_missing_files_are_downloaded(tmp_path: Path, serve: Callable[[Path], str]) -> None:
    mirror, cache = tmp_path / "mirror", tmp_path / "cache/netfleet/toy"
    collection = publish_images(mirror)
    publish_images(cache)
    (cache / f"{NAMES[3]}.gz").unlink()
    for name in NAMES[:3]:
        (mirror / f"{name}.gz").unlink()
    locate(collection._replace(url=serve(mirror)), None, {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert not missing(collection, cache)


@pytest.mark.parametrize(("url", "reason"), [("http://127.0.0.1:9/", "refused"), (None, "404")])
def test_a_failed_download_says_what_to_do(
    tmp_path: Path, serve: Callable[[Path], str], url: str | None, reason: str
) -> None:
    collection = publish_images(tmp_path / "elsewhere")
    (tmp_path / "empty").mkdir()
    collection = collection._replace(url=url or serve(tmp_path / "empty"))
    words = rf"toy: {NAMES[0]}.gz.*{reason}.*set path .*NETFLEET_DATA.*copy them to"
    with pytest.raises(DataError, match=words) as failed:
        locate(collection, None, {"XDG_CACHE_HOME": str(tmp_path)})
    assert "urllib" not in "".join(traceback.format_exception(failed.value))
    assert list((tmp_path / "netfleet/toy").iterdir()) == []


def test_a_wrong_download_never_gets_its_name(tmp_path: Path, serve: Callable[[Path], str]) -> None:
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "a").write_bytes(b"other")
    (tmp_path / "out").mkdir()
    url = serve(tmp_path / "mirror")
    with pytest.raises(DataError, match=f"/a: came with MD5 {md5(b'other')}, expected 00; run again later"):
        download(url + "a", tmp_path / "out" / "a", "00")
    with pytest.raises(ConnectionError, match="broke off after 5 of 15 bytes"):
        download(url + "short/a", tmp_path / "out" / "a")
    assert list((tmp_path / "out").iterdir()) == []
    download(url + "a", tmp_path / "out" / "a")
    assert (tmp_path / "out" / "a").read_bytes() == b"other"


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"old")

    def interrupted() -> None:
        with atomic(target) as out:
            out.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def pack(path: Path, members: dict[str, bytes], links: dict[str, str] | None = None) -> Archive:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return Archive(path.name, md5(path.read_bytes()))


def toy_cifar(rows: int = 3) -> tuple[Collection, dict[str, bytes]]:
    batches = {f"b{i}.bin": cifar_batch(rows, seed=i)[2] for i in range(3)}
    files = tuple(File(name, (rows, 3, 32, 32), md5(data)) for name, data in batches.items())
    return Collection("toy", "inside", "", files, near=(".", "inside")), batches


def test_an_archive_gives_only_the_expected_members(tmp_path: Path, serve: Callable[[Path], str]) -> None:
    collection, batches = toy_cifar()
    (tmp_path / "mirror").mkdir()
    members = {f"inside/{name}": data for name, data in batches.items()}
    archive = pack(tmp_path / "mirror/toy.tar.gz", {**members, "../evil": b"x", "inside/readme": b"x"})
    collection = collection._replace(url=serve(tmp_path / "mirror"), archive=archive)
    found = locate(collection, None, {"XDG_CACHE_HOME": str(tmp_path)})
    assert {name: path.read_bytes() for name, path in found.items()} == batches
    assert {path.name for path in (tmp_path / "netfleet/inside").iterdir()} == set(batches)
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("member", "b1.bin has MD5 .* expected"),
        ("absent", "b1.bin' not found"),
        ("link", "b1.bin is not a plain file"),
        ("cut", "cannot be unpacked"),
        ("not a tar", "cannot be unpacked"),
    ],
)
def test_a_damaged_archive(tmp_path: Path, serve: Callable[[Path], str], damage: str, message: str) -> None:
    collection, batches = toy_cifar()
    (tmp_path / "mirror").mkdir()
    members = {f"inside/{name}": data for name, data in batches.items()}
    links = {}
    if damage == "member":
        members["inside/b1.bin"] = b"other"
    if damage in ("absent", "link"):
        del members["inside/b1.bin"]
    if damage == "link":
        links = {"inside/b1.bin": "/etc/hostname"}
    path = tmp_path / "mirror/toy.tar.gz"
    archive = pack(path, members, links)
    if damage in ("cut", "not a tar"):
        path.write_bytes(path.read_bytes()[:9000] if damage == "cut" else b"<html>")
        archive = Archive(path.name, md5(path.read_bytes()))
    collection = collection._replace(url=serve(tmp_path / "mirror"), archive=archive)
    with pytest.raises(DataError, match=message):
        locate(collection, None, {"XDG_CACHE_HOME": str(tmp_path)})
    assert not [p for p in (tmp_path / "netfleet/inside").iterdir() if p.suffix != ".bin"]


# Sources


def test_every_source_is_known() -> None:
    assert set(SOURCES) == {"digits", "mnist", "fashion-mnist", "cifar10", "libsvm", "a9a", "csv", "plays"}


def test_digits_come_with_the_package() -> None:
    digits = load_dataset("digits")
    assert digits.train_x.shape == (1437, 1, 8, 8)
    assert digits.test_x.shape == (360, 1, 8, 8)
    assert (digits.train_x.min(), digits.train_x.max()) == (0, 1)
    train, test = (torch.bincount(y, minlength=10) for y in (digits.train_y, digits.test_y))
    assert ((test - (train + test) / 5).abs() < 1).all()


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=80).map(np.array))
def test_the_split_keeps_a_fifth_of_each_label(labels: np.ndarray) -> None:
    train, test = split_rows(labels)
    assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(len(labels)))
    for label in np.unique(labels):
        assert abs((labels[test] == label).sum() - (labels == label).sum() / 5) < 1


@pytest.mark.parametrize("packed", [True, False])
def test_images_from_small_idx_files(tmp_path: Path, packed: bool) -> None:
    collection = publish_images(tmp_path)
    if not packed:
        unpublish(tmp_path)
    images, labels, test, _ = toy_arrays()
    unit = load_images(collection, str(tmp_path), "unit")
    assert torch.equal(unit.train_x, torch.from_numpy(images[:, None].astype(np.float32) / 255))
    assert torch.equal(unit.train_y, torch.from_numpy(labels.astype(np.int64)))
    assert unit.test_x.shape == (len(test), 1, 3, 4)
    assert unit.groups is None


def test_standard_scaling_uses_the_training_moments(tmp_path: Path) -> None:
    images, _, test, _ = (array.astype(np.float64) for array in toy_arrays())
    standard = load_images(publish_images(tmp_path), str(tmp_path), "standard")
    expected = (test - images.mean()) / images.std()
    assert np.allclose(standard.test_x[:, 0], expected, atol=1e-5)
    assert torch.isclose(standard.train_x.std(correction=0), torch.tensor(1.0), atol=1e-5)


def test_moments_are_those_of_each_channel() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (7, 3, 5, 4), np.uint8)
    mean, deviation = moments(pixels)
    assert np.allclose(mean, pixels.mean((0, 2, 3)))
    assert np.allclose(deviation, pixels.std((0, 2, 3)))
    assert moments(np.full((2, 1, 3, 3), 7, np.uint8))[1] == 0


def test_unpacked_files_are_checked_by_shape(tmp_path: Path) -> None:
    collection = publish_images(tmp_path)
    unpublish(tmp_path)
    (tmp_path / NAMES[0]).write_bytes(idx(np.zeros((12, 3, 5), np.uint8)))
    with pytest.raises(DataError, match=rf"{NAMES[0]}: .* shape \(12, 3, 5\), expected \(12, 3, 4\)"):
        load_images(collection, str(tmp_path), "unit")


@pytest.mark.parametrize("place", ["images", "images/writers", "writers"])
def test_writers_are_the_groups(tmp_path: Path, place: str) -> None:
    collection = publish_images(tmp_path / "images")
    writers = publish_writers(tmp_path / place, toy_arrays()[1])
    groups = load_images(collection, str(tmp_path / "images"), "unit", writers).groups
    assert groups is not None
    assert groups.tolist() == [100 + row // 2 for row in range(12)]


def test_writers_of_other_rows_are_refused(tmp_path: Path) -> None:
    collection, labels = publish_images(tmp_path), toy_arrays()[1].copy()
    labels[[4, 7]] = 0
    writers = publish_writers(tmp_path, labels)
    with pytest.raises(DataError, match="2 of 12 labels differ from MNIST's, the first in row 4"):
        load_images(collection, str(tmp_path), "unit", writers)
    shorter = publish_writers(tmp_path, labels[:9])
    with pytest.raises(DataError, match="9 rows for the 12 training images"):
        load_images(collection, str(tmp_path), "unit", shorter)


def test_cifar_from_small_batches(tmp_path: Path) -> None:
    collection, batches = toy_cifar()
    for name, data in batches.items():
        (tmp_path / name).write_bytes(data)
    loaded = load_cifar(collection, str(tmp_path), "unit")
    expected = np.concatenate([cifar_batch(3, seed=i)[1] for i in range(2)])
    assert torch.equal(loaded.train_x, torch.from_numpy(expected.astype(np.float32) / 255))
    assert loaded.test_y.tolist() == cifar_batch(3, seed=2)[0].tolist()


def test_libsvm_with_its_test_file(tmp_path: Path) -> None:
    (tmp_path / "set").write_text("3 1:1\n-1 2:1\n")
    (tmp_path / "set.t").write_text("5 4:1\n")
    (tmp_path / "other").write_bytes(gzip.compress(b"3 1:2\n"))
    default = load_dataset({"kind": "libsvm", "path": str(tmp_path / "set")})
    assert default.train_x.shape == (2, 4)
    assert (default.train_y.tolist(), default.test_y.tolist(), default.classes) == ([1, 0], [2], 3)
    spec = {"kind": "libsvm", "path": str(tmp_path / "set"), "test_path": str(tmp_path / "other"), "features": 6}
    given_test = load_dataset(spec)
    assert given_test.test_x.tolist() == [[2, 0, 0, 0, 0, 0]]


def test_libsvm_without_a_test_file_is_split(tmp_path: Path) -> None:
    (tmp_path / "set").write_text("".join(f"{row % 2} 1:{row}\n" for row in range(20)))
    loaded = load_dataset({"kind": "libsvm", "path": str(tmp_path / "set")})
    assert (len(loaded.train_x), len(loaded.test_x)) == (16, 4)
    assert torch.equal(loaded.train_x[:, 0].long() % 2, loaded.train_y)
    with pytest.raises(DataError, match="gone: cannot be read"):
        load_dataset({"kind": "libsvm", "path": str(tmp_path / "gone")})
    with pytest.raises(DataError, match="has feature 1, expected at most 0"):
        load_dataset({"kind": "libsvm", "path": str(tmp_path / "set"), "features": 0})


def test_a9a_is_checked_by_its_rows(tmp_path: Path) -> None:
    (tmp_path / "a9a").write_text("-1 3:1\n+1 1:1\n")
    (tmp_path / "a9a.t").write_text("+1 2:1\n")
    files = (File("a9a", (2, 5)), File("a9a.t", (1, 5)))
    loaded = load_a9a(A9A._replace(files=files), str(tmp_path))
    assert loaded.train_x.shape == (2, 5)
    assert loaded.train_y.tolist() == [0, 1]
    with pytest.raises(DataError, match=r"a9a: .* shape \(2, 123\), expected \(32561, 123\)"):
        load_dataset({"kind": "a9a", "path": str(tmp_path)})


def own_dataset() -> Dataset:
    return toy(name="own")


def own_nothing() -> None:
    return None


def test_a_users_own_source() -> None:
    assert load_dataset(f"{__name__}:own_dataset").name == "own"
    with pytest.raises(ConfigError, match=r"made a NoneType, expected Dataset; fix the factory's return value"):
        load_dataset(f"{__name__}:own_nothing")
    with pytest.raises(ConfigError, match="scale must be one of 'unit', 'standard'"):
        load_dataset({"kind": "mnist", "scale": "other"})


# The real data, where NETFLEET_DATA has it


def need(*collections: Collection) -> None:
    root = os.environ.get("NETFLEET_DATA")
    for collection in collections:
        if not root or missing(collection, Path(root) / collection.folder):
            pytest.skip(f"needs {collection.folder}/ ({collection.name}) in the folder NETFLEET_DATA")


def test_real_mnist_and_its_writers() -> None:
    need(MNIST, QMNIST_WRITERS)
    mnist = load_dataset({"kind": "mnist", "writers": True})
    assert (mnist.train_x.shape, mnist.test_x.shape) == ((60_000, 1, 28, 28), (10_000, 1, 28, 28))
    assert mnist.groups is not None
    sizes = torch.unique(mnist.groups, return_counts=True)[1]
    assert (len(sizes), int(sizes.min()), int(sizes.max())) == (539, 19, 131)


def test_real_a9a() -> None:
    need(A9A)
    a9a = load_dataset("a9a")
    assert (a9a.train_x.shape, a9a.test_x.shape, a9a.classes) == ((32_561, 123), (16_281, 123), 2)
    assert set(a9a.train_x.unique().tolist()) == {0, 1}


def test_real_cifar10() -> None:
    need(CIFAR10)
    cifar = load_dataset("cifar10")
    assert (cifar.train_x.shape, cifar.test_x.shape) == ((50_000, 3, 32, 32), (10_000, 3, 32, 32))
    assert torch.bincount(cifar.train_y).tolist() == [5_000] * 10
    assert cifar.train_x.mean((0, 2, 3)).abs().max() < 1e-4
