"""The native libraries: those of the wheel, or else compiled once per machine, when first needed.

What is compiled here is kept in the cache folder under a hash of the sources and flags. There is nothing to install and
nothing to configure. Without libraries and compiler netfleet computes gradients with PyTorch, and noise with numpy, and
warns.
"""

import ctypes
import functools
import hashlib
import os
import platform
import subprocess
import sys
import warnings
from pathlib import Path

import torch

from netfleet.data.files import cache_folder
from netfleet.gradients.native.compiler import (
    COMPILED,
    FLAGS,
    FOLDER,
    LEVELS,
    OWN_FLAGS,
    CompileError,
    Level,
    Name,
    compile_to,
    file_name,
    find_compiler,
)

_SCRATCH: dict[Name, list[type]] = {
    "chain": [ctypes.c_void_p, ctypes.c_int64],
    "residual": [ctypes.c_void_p],
    "noise": [],
}
_INSTEAD: dict[Name, str] = {"noise": "noise is drawn with numpy"}
#: PyTorch's words for what a processor can do, from less to more.
_CAPABILITIES = ("DEFAULT", "AVX2", "AVX512")


class NativeWarning(UserWarning):
    """PyTorch or numpy compute instead of a native library that could not be made."""


@functools.cache
def library(name: Name, dtype: str = "float32") -> ctypes.CDLL | None:
    """A native library for a type of number, or None (with one warning) where it cannot be made."""
    try:
        path = shipped(name, dtype) or _compiled_here(name, dtype)
        return None if path is None else load(path, name)
    except (OSError, subprocess.SubprocessError, CompileError) as error:
        _warn(name, f"{name}.cpp could not be compiled and loaded: {(str(error).splitlines() or [''])[0]}")
        return None


def shipped(name: Name, dtype: str) -> Path | None:
    """The library of the wheel that is the best for this processor; a checkout has none."""
    paths = (FOLDER / COMPILED / file_name(name, dtype, level) for level in levels())
    return next((path for path in paths if path.exists()), None)


def levels() -> list[Level]:
    """The levels of this processor, the best first."""
    capability = torch.backends.cpu.get_cpu_capability()
    most = _CAPABILITIES.index(capability) if capability in _CAPABILITIES else 0
    return [level for level in LEVELS.get(platform.machine(), ()) if level.capability in _CAPABILITIES[: most + 1]]


def load(path: Path, name: Name) -> ctypes.CDLL:
    found = ctypes.CDLL(str(path))
    found.scratch.restype, found.scratch.argtypes = ctypes.c_int64, _SCRATCH[name]
    found.run.restype, found.run.argtypes = None, [ctypes.c_void_p, ctypes.c_void_p]
    return found


def _compiled_here(name: Name, dtype: str) -> Path | None:
    compiler = find_compiler()
    if compiler is None:
        _warn(name, "no C++ compiler was found (install g++ or clang++, or name one in CXX)")
        return None
    folder = cache_folder() / "native"
    path = folder / f"{name}-{dtype}-{_fingerprint(compiler)}.so"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        if sys.stderr.isatty():
            print("netfleet: compiling the native library, once on this machine …", file=sys.stderr)
        compile_to(path, compiler, name, dtype)
    return path


def _fingerprint(compiler: str) -> str:
    """A library is good for one state of the sources, one compiler and one kind of processor."""
    stat = os.stat(os.path.realpath(compiler))
    identity = f"{os.path.realpath(compiler)} {stat.st_size} {stat.st_mtime_ns}"
    sources = [
        path.read_text(encoding="utf-8") for suffix in ("cpp", "h") for path in sorted(FOLDER.glob(f"*.{suffix}"))
    ]
    parts = [*sources, identity, repr((FLAGS, OWN_FLAGS)), platform.machine(), _processor()]
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
