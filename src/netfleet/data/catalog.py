"""The published collections: file names, shapes, MD5 sums and public mirrors."""

from typing import NamedTuple


class File(NamedTuple):
    """One published file; `md5` is of the file as published, `shape` of the array in it.

    `address` is where it is published, relative to the collection's, unless under its name.
    """

    name: str
    shape: tuple[int, ...]
    md5: str | None = None
    address: str | None = None


class Archive(NamedTuple):
    """A gzipped tar that holds every file of a collection, all in the collection's `folder`."""

    name: str
    md5: str


class Collection(NamedTuple):
    """Files that belong together.

    `folder` is their folder under NETFLEET_DATA and in the cache; `near` are the folders, relative to a path that
    the user gives, in which they may be; `url` plus a file's (or the archive's) name is its address.
    """

    name: str
    folder: str
    url: str
    files: tuple[File, ...]
    near: tuple[str, ...]
    archive: Archive | None = None


def _images(name: str, url: str, sums: tuple[str, str, str, str]) -> Collection:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    shapes = ((60_000, 28, 28), (60_000,), (10_000, 28, 28), (10_000,))
    files = (File(f"{n}-ubyte.gz", s, m) for n, s, m in zip(names, shapes, sums, strict=True))
    return Collection(name, name, url, tuple(files), near=(".", name))


MNIST = _images(
    "mnist",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
)

FASHION_MNIST = _images(
    "fashion-mnist",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    (
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
)

# Only the training rows have groups, so the writers of the test images are not needed.
QMNIST_WRITERS = Collection(
    "qmnist-writers",
    "qmnist-writers",
    "https://raw.githubusercontent.com/facebookresearch/qmnist/master/",
    (File("qmnist-train-labels-idx2-int.gz", (60_000, 8), "0058f8dd561b90ffdd0f734c6a30e5e4"),),
    near=(".", "qmnist-writers", "../qmnist-writers"),
)

CIFAR10 = Collection(
    "cifar10",
    "cifar-10-batches-bin",
    "https://www.cs.toronto.edu/~kriz/",
    (
        File("data_batch_1.bin", (10_000, 3, 32, 32), "5dd7e06a14cb22eb9f671a540d1b7c25"),
        File("data_batch_2.bin", (10_000, 3, 32, 32), "5ea93a67294ea407fff1d09f752e9692"),
        File("data_batch_3.bin", (10_000, 3, 32, 32), "942cd6a4bcdd0dd3c604fbe906cb4421"),
        File("data_batch_4.bin", (10_000, 3, 32, 32), "ae636b3ba5c66a11e91e8cb52e771fcb"),
        File("data_batch_5.bin", (10_000, 3, 32, 32), "53f37980c15c3d472c316c40844f3f0d"),
        File("test_batch.bin", (10_000, 3, 32, 32), "803d5f7f4d78ea53de84dbe85f74fb6d"),
    ),
    near=(".", "cifar-10-batches-bin"),
    archive=Archive("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
)

# LIBSVM publishes no checksums; the number of rows is the check.
A9A = Collection(
    "a9a",
    "a9a",
    "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/",
    (File("a9a", (32_561, 123)), File("a9a.t", (16_281, 123))),
    near=(".", "a9a"),
)

# The file is called input.txt where it is published.
TINYSHAKESPEARE = Collection(
    "tinyshakespeare",
    "tinyshakespeare",
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/",
    (File("tinyshakespeare.txt", (), "6fb458f1232090904fb40fe944165e91", "input.txt"),),
    near=(".", "tinyshakespeare"),
)

# In the package itself; see NOTICE for where they come from.
DIGITS_IMAGES = File("digits-images-idx3-ubyte.gz", (1_797, 8, 8), "e9635ac21c82c135ce6636a44653462c")
DIGITS_LABELS = File("digits-labels-idx1-ubyte.gz", (1_797,), "a0dcc9b010bbbfbe546ee8af81eb2ce6")
