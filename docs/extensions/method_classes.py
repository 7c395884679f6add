"""The reference of all methods: what each module says of its method, and its class."""

from __future__ import annotations

import inspect

from netfleet import algorithms, optim
from netfleet.algorithms import Algorithm


def methods() -> str:
    """Markdown: a section for each class of `netfleet.algorithms`."""
    classes = [getattr(algorithms, name) for name in algorithms.__all__]
    shown = [c for c in classes if inspect.isclass(c) and issubclass(c, Algorithm) and c is not Algorithm]
    described: set[str] = set()
    parts = []
    for method in sorted(shown, key=lambda method: method.title.lower()):
        about = "" if method.__module__ in described else f".. automodule:: {method.__module__}\n   :no-index:\n\n"
        described.add(method.__module__)
        name = f"netfleet.algorithms.{method.__name__}"
        parts.append(f"## {method.title}\n\n```{{eval-rst}}\n{about}.. autoclass:: {name}\n```\n")
    return "\n".join(parts)


def optimizers() -> str:
    """Markdown: the class of each method in `netfleet.optim`."""
    names = [name for name in optim.__all__ if hasattr(algorithms, name)]
    classes = "\n".join(f".. autoclass:: netfleet.optim.{name}" for name in sorted(names, key=str.lower))
    return f"```{{eval-rst}}\n{classes}\n```\n"
