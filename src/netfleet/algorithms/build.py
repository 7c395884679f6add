"""The factory of all algorithms: a name or a table becomes a method, with what the table puts around it."""

from collections.abc import Mapping
from typing import Any

from netfleet.algorithms.base import ALGORITHMS, Algorithm
from netfleet.algorithms.compression.codecs import CODECS, Codec
from netfleet.algorithms.compression.compressed import Compressed
from netfleet.algorithms.local import Local, make_local, with_local
from netfleet.algorithms.local.optimizers import local_table
from netfleet.algorithms.outer import OUTER, Nesterov, Outer, with_outer
from netfleet.algorithms.schedules import as_schedule, as_table, resolve
from netfleet.registry import Registry, Spec, check_type, parameters, path_of, split

#: Tables in an algorithm's table that say what is put around the method, in this order.
WRAPPERS = ("local", "outer", "compress")


def make_algorithm(spec: Spec) -> Algorithm:
    """The algorithm of a specification, with what its `local`, `outer` and `compress` tables put around the method."""
    kind, params = split(spec, "algorithm")
    around = _around(params)
    method = ALGORITHMS.build({"kind": kind, **params})
    if "local" in around:
        method = with_local(method, around["local"])
    if "outer" in around:
        method = with_outer(method, around["outer"])
    if "compress" in around:
        codec, settings = _divided(around["compress"])
        method = Compressed(method=method, codec=CODECS.build(codec), **settings)
    return method


def resolve_algorithm(spec: Spec) -> dict[str, Any]:
    """A specification with every default written out."""
    kind, params = split(spec, "algorithm")
    around = _around(params)
    resolved = {key: resolve(value) for key, value in ALGORITHMS.resolve({"kind": kind, **params}).items()}
    if "local" in around:
        resolved["local"] = local_table(make_local(around["local"]))
    if "outer" in around:
        resolved["outer"] = OUTER.resolve(around["outer"])
    if "compress" in around:
        codec, settings = _divided(around["compress"])
        resolved["compress"] = CODECS.resolve(codec) | settings
    return resolved


def _around(params: dict[str, Any]) -> dict[str, Any]:
    """What is put around the method, taken out of its parameters."""
    return {name: params.pop(name) for name in WRAPPERS if params.get(name) is not None}


def algorithm_table(method: Algorithm) -> dict[str, Any]:
    """The specification of a method, every parameter written out: what `make_algorithm` takes.

    Where a parameter cannot be written (a step size that is a function), it is the parameter itself.
    """
    if isinstance(method, Compressed):
        settings = {"gamma": method.gamma, "memory": method.memory}
        return algorithm_table(method.method) | {"compress": _table(method.codec, CODECS) | settings}
    if isinstance(method, Outer):
        return algorithm_table(method.method) | {"outer": _table(method.outer, OUTER)}
    if isinstance(method, Local):
        return algorithm_table(method.method) | {"local": local_table(method.local)}
    return _table(method, ALGORITHMS) | {"eta": as_table(as_schedule(method.eta))}


def _table(made: Algorithm | Codec | Nesterov, registry: Registry[Any]) -> dict[str, Any]:
    values = {name: getattr(made, name) for name in parameters(type(made))}
    return {"kind": registry.name_of(type(made)) or path_of(type(made)), **values}


def algorithm_label(table: Mapping[str, Any]) -> str:
    """What an algorithm's table, resolved or not, is called: its label, or else its method's title and what is around.

    A method of another name has that name behind its title.
    """
    if label := table.get("label"):
        return str(label)
    kind, params = split({key: value for key, value in table.items() if key != "label"}, "algorithm")
    title = getattr(ALGORITHMS[kind], "title", None) or kind
    if kind in ALGORITHMS.aliases:
        return f"{title} ({kind})"
    around = _around(params)
    local = [make_local(around["local"]).name] if "local" in around else []
    outer = [f"outer {split(around['outer'], 'outer')[0]}"] if "outer" in around else []
    codec = [split(around["compress"], "compress")[0]] if "compress" in around else []
    return ", ".join([str(title), *local, *outer, *codec])


def _divided(compress: object) -> tuple[dict[str, object], dict[str, Any]]:
    """A `compress` table as the codec's part and the wrapper's, whose defaults are written out."""
    kind, params = split(compress, "compress")
    settings = {}
    for name in ("gamma", "memory"):
        hint = parameters(Compressed)[name]
        settings[name] = params.pop(name, hint.default)
        check_type(settings[name], hint.annotation, f"compress: {name}")
    return {"kind": kind, **params}, settings
