"""Compiles the native libraries into a wheel, for each level of this kind of processor, and makes the package's
description from README.md; pyproject.toml has all else.

Without a compiler the wheel has no libraries: netfleet then compiles where it runs, or computes with PyTorch.
"""

import os
import platform
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT, NATIVE = Path(__file__).parent, Path("netfleet", "gradients", "native")
compiler = SimpleNamespace(**runpy.run_path(str(ROOT / "src" / NATIVE / "compiler.py")))
#: Whether a wheel made here has libraries.
COMPILES = compiler.find_compiler() is not None and platform.machine() in compiler.LEVELS


def description(repository: str) -> str:
    """README.md for a page elsewhere: its links lead to the files of this version in a repository (an address such as
    https://example.org/netfleet), or are plain words if there is none.
    """
    (version,) = re.findall(r'^__version__ = "(.+?)"', (ROOT / "src/netfleet/__init__.py").read_text(), re.MULTILINE)

    def absolute(link: re.Match[str]) -> str:
        image, words, target = link.groups()
        if "://" in target:
            return link[0]
        if not repository:
            return "" if image else words
        return f"{image}[{words}]({repository}/{'raw' if image else 'blob'}/v{version}/{target})"

    return re.sub(r"(!?)\[([^\]]*)\]\(([^)]+)\)", absolute, (ROOT / "README.md").read_text(encoding="utf-8"))


class BuildPy(build_py):
    def run(self) -> None:
        super().run()
        if COMPILES and not self.editable_mode:
            compiler.compile_levels(Path(self.build_lib, NATIVE, compiler.COMPILED), compiler.find_compiler())


class PlatformDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return COMPILES


class PlatformWheel(bdist_wheel):
    """For any Python 3 of one platform: the libraries know nothing of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, where = super().get_tag()
        return ("py3", "none", where) if COMPILES else (python, abi, where)


setup(
    distclass=PlatformDistribution,
    cmdclass={"build_py": BuildPy, "bdist_wheel": PlatformWheel},
    long_description=description(os.environ.get("NETFLEET_REPOSITORY", "")),
    long_description_content_type="text/markdown",
)
