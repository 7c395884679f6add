"""Finds the source files that an experiment would run, without running any of them.

Python's own finders are asked where a module is; a package is not imported to look inside it. From a local file the
import statements are followed to other local files. What installed packages import is not followed.
"""

import ast
import importlib.util
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import NamedTuple

import netfleet

_FACTORY = re.compile(r"(?P<module>[^\W\d]\w*(\.[^\W\d]\w*)*):[^\W\d]\w*")

_INSTALLED = {"site-packages", "dist-packages"}  # where pip and systems put packages


class Source(NamedTuple):
    """A module and its file; no path: Python finds none, or it is built in; no content: it cannot be read."""

    module: str
    path: Path | None
    content: bytes | None


def named_modules(value: object) -> list[str]:
    """The module of every "package.module:factory" in a table, sorted; other texts that look like one count too."""
    return sorted({found["module"] for text in _texts(value) if (found := _FACTORY.fullmatch(text))})


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def find_sources(modules: Iterable[str]) -> list[Source]:
    """The files of these modules, of the packages above them, and of the local modules that they import, by name."""
    found: dict[str, Source] = {}
    waiting = [(module, True) for module in modules]
    while waiting:
        module, named = waiting.pop()
        for source in _chain(module):
            local = source.path is not None and _is_local(source.path)
            if source.module in found or not (named or local):
                continue
            found[source.module] = source
            if local:
                waiting += [(each, False) for each in _imports(source)]
    return [found[name] for name in sorted(found)]


def _chain(module: str) -> Iterator[Source]:
    """A module after the packages above it; an incomplete chain ends with what is missing."""
    parts, places = module.split("."), None
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        spec = _find(name, places)
        if spec is None:
            yield Source(name, None, None)
            return
        places = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
        if spec.has_location or places is None:  # a package without __init__.py runs nothing
            yield _read(name, spec)
        if places is None:
            return  # what follows in the name is an attribute, or is missing


def _find(name: str, places: Sequence[str] | None) -> ModuleSpec | None:
    """What `import` would find, asked of the same finders; only they run."""
    for finder in sys.meta_path:
        try:
            if (spec := finder.find_spec(name, places)) is not None:
                return spec
        except KeyError:  # a package without __init__.py inside one that is not imported
            folders = [str(Path(place) / name.rpartition(".")[2]) for place in places or ()]
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [folder for folder in folders if Path(folder).is_dir()]
            return spec
    return None


def _read(name: str, spec: ModuleSpec) -> Source:
    if not spec.has_location or spec.origin is None:  # built into Python
        return Source(name, None, None)
    try:
        content = spec.loader.get_data(spec.origin)  # type: ignore[union-attr]  # also from a zip file
        return Source(name, Path(spec.origin), content)
    except (OSError, AttributeError):
        return Source(name, Path(spec.origin), None)


def _is_local(path: Path) -> bool:
    """Whether a file is neither Python's own, nor of an installed package, nor netfleet's."""
    place, own = path.resolve(), str(Path(str(netfleet.__file__)).parent)
    folders = [Path(folder).resolve() for folder in (*map(sysconfig.get_path, ("stdlib", "platstdlib")), own)]
    return not (_INSTALLED & set(place.parts) or any(place.is_relative_to(folder) for folder in folders))


def _imports(source: Source) -> Iterator[str]:
    """The modules that a file's import statements name; a name that is imported from a package may be one too."""
    try:
        tree = ast.parse(source.content or b"")
    except (SyntaxError, ValueError):  # a compiled module, or no Python at all
        return
    inside = source.path is not None and source.path.stem == "__init__"
    package = source.module if inside else source.module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            if base:
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")


def _absolute(node: ast.ImportFrom, package: str) -> str:
    try:
        return importlib.util.resolve_name("." * node.level + (node.module or ""), package)
    except ImportError:  # a relative import beyond the outermost package, which fails when it is run
        return ""
