"""The C++ compiler, the libraries, and what they are compiled for; `setup.py` uses this file alone, without netfleet.

A wheel has each library for some levels of a processor, the best of which is loaded. What is compiled on the machine
where it runs is for that processor only.
"""

import itertools
import os
import platform
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

FOLDER = Path(__file__).parent
#: Where a wheel has its libraries.
COMPILED = "compiled"
Name = Literal["chain", "residual", "noise"]
NAMES: tuple[Name, ...] = ("chain", "residual", "noise")
SCALARS = {"float32": "float", "float64": "double"}
FLAGS = ["-O3", "-std=c++17", "-shared", "-fPIC"]
#: Without the first, the square roots of a vector are computed one after the other; the second keeps multiplications
#: and additions apart, so that every machine makes the same bits.
OWN_FLAGS: dict[Name, list[str]] = {"noise": ["-fno-math-errno", "-ffp-contract=off"]}
#: Tried in this order: compilers have different options for "this processor".
NATIVE: tuple[list[str], ...] = (["-march=native"], ["-mcpu=native"], [])


class Level(NamedTuple):
    """What a processor can do at least; `capability` is PyTorch's word for it."""

    name: str
    flags: list[str]
    capability: str = "DEFAULT"


_NEON = Level("neon", [])  # part of every 64-bit ARM
_X86 = (
    Level("avx512", ["-march=x86-64-v4"], "AVX512"),
    Level("avx2", ["-march=x86-64-v3"], "AVX2"),
    Level("sse2", ["-march=x86-64"]),
)
#: For which processors a wheel has libraries, by the machine's name, the best level first.
LEVELS: dict[str, tuple[Level, ...]] = {"x86_64": _X86, "aarch64": (_NEON,), "arm64": (_NEON,)}


class CompileError(Exception):
    """The compiler refuses, for the reason in its words."""


def find_compiler() -> str | None:
    """The C++ compiler that CXX names, or the first usual one on the PATH."""
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and (found := shutil.which(name)):
            return found
    return None


def compile_to(path: Path, compiler: str, name: Name, dtype: str, targets: tuple[list[str], ...] = NATIVE) -> None:
    """Compile for the first target that the compiler knows, beside the path, and rename: no process ever sees half a
    library.
    """
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        for target in targets:
            flags = [*FLAGS, *OWN_FLAGS.get(name, []), *target, f"-DSCALAR={SCALARS[dtype]}"]
            command = [compiler, *flags, str(FOLDER / f"{name}.cpp"), "-o", str(made)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            if done.returncode == 0:
                os.replace(made, path)
                return
    lines = done.stderr.splitlines() or [""]
    raise CompileError(next((line for line in lines if "error" in line.lower()), lines[0]))


def compile_levels(folder: Path, compiler: str) -> list[Path]:
    """All libraries for all levels of this kind of processor, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    levels = LEVELS.get(platform.machine(), ())

    def compiled(level: Level, name: Name, dtype: str) -> Path:
        path = folder / file_name(name, dtype, level)
        compile_to(path, compiler, name, dtype, (level.flags,))
        return path

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compiled, *zip(*itertools.product(levels, NAMES, SCALARS), strict=True)))


def file_name(name: Name, dtype: str, level: Level) -> str:
    return f"{name}-{dtype}-{level.name}.so"
