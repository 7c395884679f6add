"""The factory of all algorithms: a name or a table becomes a method, compressed where the table says so."""

from collections.abc import Mapping
from typing import Any

from netfleet.algorithms.base import ALGORITHMS, Algorithm
from netfleet.algorithms.compression.codecs import CODECS, Codec
from netfleet.algorithms.compression.compressed import Compressed
from netfleet.algorithms.schedules import as_schedule, as_table, resolve
from netfleet.registry import Registry, Spec, check_type, parameters, path_of, split


def make_algorithm(spec: Spec) -> Algorithm:
    """The algorithm of a specification; its `compress` table says how its messages are compressed."""
    kind, params = split(spec, "algorithm")
    compress = params.pop("compress", None)
    method = ALGORITHMS.build({"kind": kind, **params})
    if compress is None:
        return method
    codec, settings = _divided(compress)
    return Compressed(method=method, codec=CODECS.build(codec), **settings)


def resolve_algorithm(spec: Spec) -> dict[str, Any]:
    """A specification with every default written out."""
    kind, params = split(spec, "algorithm")
    compress = params.pop("compress", None)
    resolved = {key: resolve(value) for key, value in ALGORITHMS.resolve({"kind": kind, **params}).items()}
    if compress is not None:
        codec, settings = _divided(compress)
        resolved["compress"] = CODECS.resolve(codec) | settings
    return resolved


def algorithm_table(method: Algorithm) -> dict[str, Any]:
    """The specification of a method, every parameter written out: what `make_algorithm` takes.

    Where a parameter cannot be written (a step size that is a function), it is the parameter itself.
    """
    if isinstance(method, Compressed):
        settings = {"gamma": method.gamma, "memory": method.memory}
        return algorithm_table(method.method) | {"compress": _table(method.codec, CODECS) | settings}
    return _table(method, ALGORITHMS) | {"eta": as_table(as_schedule(method.eta))}


def _table(made: Algorithm | Codec, registry: Registry[Any]) -> dict[str, Any]:
    values = {name: getattr(made, name) for name in parameters(type(made))}
    return {"kind": registry.name_of(type(made)) or path_of(type(made)), **values}


def algorithm_label(table: Mapping[str, Any]) -> str:
    """What an algorithm's table, resolved or not, is called: its label, or else its method's title and codec."""
    if label := table.get("label"):
        return str(label)
    kind, params = split({key: value for key, value in table.items() if key != "label"}, "algorithm")
    title = getattr(ALGORITHMS[kind], "title", None) or kind
    if kind in ALGORITHMS.aliases:
        return f"{title} ({kind})"
    return f"{title}, {split(params['compress'], 'compress')[0]}" if "compress" in params else str(title)


def _divided(compress: object) -> tuple[dict[str, object], dict[str, Any]]:
    """A `compress` table as the codec's part and the wrapper's, whose defaults are written out."""
    kind, params = split(compress, "compress")
    settings = {}
    for name in ("gamma", "memory"):
        hint = parameters(Compressed)[name]
        settings[name] = params.pop(name, hint.default)
        check_type(settings[name], hint.annotation, f"compress: {name}")
    return {"kind": kind, **params}, settings
