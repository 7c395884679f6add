"""A C++ compiler that keeps what it has compiled, for tests that compile all libraries of a wheel again and again.

What it keeps lies in netfleet's cache folder under a hash of the command, of all sources beside the one that is
compiled, and of the compiler.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from netfleet.data.files import cache_folder

KEPT = cache_folder() / "native" / "wheel"
WRAPPER = """#!{python} -IS
import hashlib, os, pathlib, shutil, subprocess, sys

compiler, kept = {compiler!r}, pathlib.Path({kept!r})
arguments = sys.argv[1:]
place = arguments.index("-o") + 1
target, words = arguments[place], arguments[:place] + arguments[place + 1 :]
(source,) = (pathlib.Path(word) for word in words if word.endswith(".cpp"))
version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
beside = [path for path in sorted(source.parent.iterdir()) if path.suffix in (".cpp", ".h")]
texts = [path.name.encode() + path.read_bytes() for path in beside]
options = [word for word in words if word != str(source)] + [source.name]
found = kept / hashlib.sha256(b"\\0".join([repr(options).encode(), version, *texts])).hexdigest()
if not found.exists():
    done = subprocess.run([compiler, *arguments])
    if done.returncode:
        sys.exit(done.returncode)
    kept.mkdir(parents=True, exist_ok=True)
    shutil.copy(target, f"{{found}}-{{os.getpid()}}.tmp")
    os.replace(f"{{found}}-{{os.getpid()}}.tmp", found)
shutil.copy(found, target)
"""


def caching_compiler(folder: Path, compiler: str) -> Path:
    """The path of a compiler that does what this one does."""
    made = folder / "c++"
    made.write_text(WRAPPER.format(python=sys.executable, compiler=os.path.realpath(compiler), kept=str(KEPT)))
    made.chmod(0o755)
    return made
