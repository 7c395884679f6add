"""Compiles `chain.cpp`, `residual.cpp` and `noise.cpp` once per machine, when first needed.

A library is kept in the cache folder under a hash of the sources and flags.

There is nothing to install and nothing to configure. Without a compiler netfleet computes gradients with PyTorch, and
noise with numpy, and warns.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Literal

from netfleet.data.files import cache_folder

FOLDER = Path(__file__).parent
Name = Literal["chain", "residual", "noise"]
#: Tried in this order: compilers have different options for "this processor".
_TARGETS: list[list[str]] = [["-march=native"], ["-mcpu=native"], []]
_SCALARS = {"float32": "float", "float64": "double"}
_SCRATCH: dict[Name, list[type]] = {
    "chain": [ctypes.c_void_p, ctypes.c_int64],
    "residual": [ctypes.c_void_p],
    "noise": [],
}
_FLAGS = ["-O3", "-std=c++17", "-shared", "-fPIC"]
#: Without the first, the square roots of a vector are computed one after the other; the second keeps multiplications
#: and additions apart, so that every machine makes the same bits.
_OWN_FLAGS: dict[Name, list[str]] = {"noise": ["-fno-math-errno", "-ffp-contract=off"]}
_INSTEAD: dict[Name, str] = {"noise": "noise is drawn with numpy"}


class NativeWarning(UserWarning):
    """PyTorch or numpy compute instead of a native library that could not be made."""


@functools.cache
def library(name: Name, dtype: str = "float32") -> ctypes.CDLL | None:
    """A compiled library for a type of number, or None (with one warning) where it cannot be made."""
    compiler = find_compiler()
    if compiler is None:
        _warn(name, "no C++ compiler was found (install g++ or clang++, or name one in CXX)")
        return None
    folder = cache_folder() / "native"
    path = folder / f"{name}-{dtype}-{_fingerprint(compiler)}.so"
    try:
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            if sys.stderr.isatty():
                print("netfleet: compiling the native library, once on this machine …", file=sys.stderr)
            compile_to(path, compiler, name, _SCALARS[dtype])
        found = ctypes.CDLL(str(path))
        found.scratch.restype, found.scratch.argtypes = ctypes.c_int64, _SCRATCH[name]
        found.run.restype, found.run.argtypes = None, [ctypes.c_void_p, ctypes.c_void_p]
        return found
    except (OSError, subprocess.SubprocessError) as error:
        lines = str(error).splitlines() or [""]
        reason = next((line for line in lines if "error" in line.lower()), lines[0])
        _warn(name, f"{name}.cpp could not be compiled and loaded: {reason}")
        return None


def find_compiler() -> str | None:
    """The C++ compiler that CXX names, or the first usual one on the PATH."""
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and (found := shutil.which(name)):
            return found
    return None


def compile_to(path: Path, compiler: str, name: Name, scalar: str) -> None:
    """Compile beside the path and rename, so that another process never sees half a library."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        for target in _TARGETS:
            source = str(FOLDER / f"{name}.cpp")
            command = [
                compiler,
                *_FLAGS,
                *_OWN_FLAGS.get(name, []),
                *target,
                f"-DSCALAR={scalar}",
                source,
                "-o",
                str(made),
            ]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            if done.returncode == 0:
                os.replace(made, path)
                return
    raise subprocess.SubprocessError(done.stderr)


def _fingerprint(compiler: str) -> str:
    """A library is good for one state of the sources, one compiler and one kind of processor."""
    stat = os.stat(os.path.realpath(compiler))
    identity = f"{os.path.realpath(compiler)} {stat.st_size} {stat.st_mtime_ns}"
    sources = [
        path.read_text(encoding="utf-8") for suffix in ("cpp", "h") for path in sorted(FOLDER.glob(f"*.{suffix}"))
    ]
    parts = [*sources, identity, repr((_FLAGS, _OWN_FLAGS)), platform.machine(), _processor()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return "".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))


def _warn(name: Name, reason: str) -> None:
    instead = _INSTEAD.get(name, "gradients are computed by PyTorch")
    warnings.warn(f"{instead}, which is slower: {reason}", NativeWarning, stacklevel=3)
