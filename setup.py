"""Compiles the native libraries into a wheel, for each level of this kind of processor; pyproject.toml has all else.

Without a compiler the wheel has none: netfleet then compiles where it runs, or computes with PyTorch.
"""

import platform
import runpy
from pathlib import Path
from types import SimpleNamespace

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

NATIVE = Path("netfleet", "gradients", "native")
compiler = SimpleNamespace(**runpy.run_path(str(Path(__file__).parent / "src" / NATIVE / "compiler.py")))
#: Whether a wheel made here has libraries.
COMPILES = compiler.find_compiler() is not None and platform.machine() in compiler.LEVELS


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


setup(distclass=PlatformDistribution, cmdclass={"build_py": BuildPy, "bdist_wheel": PlatformWheel})
