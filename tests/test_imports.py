"""Every module can be imported first: there is no cycle of imports that works in one order only.

A module's import fails on a module that has begun to load and is not done, which takes a cycle among the imports that
modules do when they are loaded. Where there is none, all orders are alike, and it is enough to import each module once.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import networkx as nx
import pytest

SOURCE = Path(__file__).parents[1] / "src"


def modules(source: Path) -> dict[str, ast.Module]:
    """The modules below a folder, by name."""
    paths = {path.relative_to(source).with_suffix(""): path for path in source.rglob("*.py")}
    names = {".".join(short.parts).removesuffix(".__init__"): path for short, path in paths.items()}
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in sorted(names.items())}


def when_loaded(body: Sequence[ast.AST]) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports that run when a module is loaded: those outside of functions and TYPE_CHECKING."""
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from when_loaded(node.orelse)
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from when_loaded(list(ast.iter_child_nodes(node)))


def loads(name: str, tree: ast.Module, known: Mapping[str, object]) -> set[str]:
    """The modules that a module needs while it is loaded. With a module its packages are loaded first, which those of
    the importing module are already.
    """
    found = set[str]()
    for node in when_loaded(tree.body):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            assert node.level == 0, f"{name}: imports are absolute"
            parts = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {part if part in known else str(node.module) for part in parts}
    above = {package for each in found for package in packages(each)} - set(packages(name)) - {name}
    return {each for each in found | above if each in known}


def packages(name: str) -> list[str]:
    """The packages that a module is in."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def cycles(trees: Mapping[str, ast.Module]) -> list[list[str]]:
    """Groups of modules that need each other while they are loaded."""
    graph = nx.DiGraph([(name, other) for name, tree in trees.items() for other in loads(name, tree, trees)])
    found = [sorted(group) for group in nx.strongly_connected_components(graph) if len(group) > 1]
    return sorted(found + [[name] for name in nx.nodes_with_selfloops(graph)])


def test_no_modules_need_each_other_while_they_are_loaded() -> None:
    trees = modules(SOURCE)
    assert len(trees) > 300
    assert cycles(trees) == []


@pytest.mark.slow
def test_every_module_can_be_imported() -> None:
    for name in modules(SOURCE):
        if name != "netfleet.__main__":
            importlib.import_module(name)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a": "import p.b", "p/__init__": "", "p/b": "from p.c import x", "p/c": "x = 1"}, []),
        ({"a": "import b", "b": "from a import x"}, [["a", "b"]]),
        ({"a": "import b", "b": "def later():\n    import a"}, []),
        ({"a": "import b", "b": "if TYPE_CHECKING:\n    import a"}, []),
        ({"b": "if TYPE_CHECKING:\n    0\nelse:\n    import c", "c": "try:\n    import b\nexcept E: 0"}, [["b", "c"]]),
        ({"p/__init__": "from p.b import x", "p/b": "x = 1", "p/c": "import p.b"}, []),
        ({"p/__init__": "from p.b import x", "p/b": "from p import y"}, [["p", "p.b"]]),
        ({"p/__init__": "from p.b import x", "p/b": "import q", "q": "import p.d", "p/d": ""}, [["p", "p.b", "q"]]),
        ({"p/__init__": "import q.c", "q/__init__": "class A:\n    import p", "q/c": ""}, [["p", "q"]]),
    ],
)  # fmt: skip
def test_cycles_are_found(tmp_path: Path, files: dict[str, str], expected: list[list[str]]) -> None:
    for name, text in files.items():
        path = (tmp_path / name).with_suffix(".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert cycles(modules(tmp_path)) == expected
