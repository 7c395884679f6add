"""What identifies the parts that Python gives as objects: tables for a run's config, so that a resume can be checked.

A method is its parameters, a topology its W, a problem its public attributes: numbers and texts as they are, arrays and
data sets by a digest, functions by their name.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from netfleet.algorithms.base import Algorithm
from netfleet.algorithms.build import algorithm_table, make_algorithm
from netfleet.errors import ConfigError
from netfleet.problems.base import Problem
from netfleet.registry import is_importable, path_of
from netfleet.runs.config import Table
from netfleet.topology.topology import Topology

#: Attributes of a problem that do not change its results, follow from others, change in training, or have own keys.
_LEFT_OUT = {"device", "gradients", "threads", "optimum", "smoothness", "variance", "active", "buffers"}
_LEFT_OUT |= {"m", "workers", "d", "seed"}
_ROUNDS = 16  # of a topology that never repeats


def problem_table(problem: Problem) -> Table:
    """What identifies a problem; it is computed from its data, and does not change with training."""
    public = {name: value for name, value in vars(problem).items() if name[0] != "_" and name not in _LEFT_OUT}
    numbers: Table = {"workers": problem.m, "d": problem.d, "seed": problem.seed}
    found = {name: plain(value) if _is_scalar(value) else describe(value) for name, value in sorted(public.items())}
    return {"kind": path_of(type(problem)), **numbers, "start": describe(problem.start()), **found}


def topology_table(topology: Topology) -> Table:
    """What identifies a topology: its matrices."""
    rounds = [topology.W(t) for t in range(topology.weight_sequence.period or _ROUNDS)]
    matrices = digest([[W.indptr, W.indices, W.data] for W in rounds])
    return {"kind": topology.name, "workers": topology.m, "weights": topology.weights, "matrix": matrices}


def method_table(method: Algorithm, rounds: int) -> tuple[Table, bool]:
    """What identifies a method, and whether `make_algorithm` makes the same method of it in another process."""
    table = algorithm_table(method)
    if callable(table["eta"]):
        steps = digest([method.step_size(t) for t in range(rounds)])
        table["eta"] = {"function": path_of(table["eta"]), "values": steps}
    identity: Table = plain(table)
    if not is_importable(type(method)):
        return identity, False
    try:
        return identity, make_algorithm(identity) == method
    except ConfigError:
        return identity, False


def plain(value: object) -> Any:
    """A value as JSON has it, objects within tables and lists described."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, np.generic):
        return value.item()
    return value if _is_scalar(value) else describe(value)


def is_plain(value: object) -> bool:
    """Whether a file can say a value as it is."""
    if isinstance(value, Mapping | list | tuple):
        return all(map(is_plain, value.values() if isinstance(value, Mapping) else value))
    return _is_scalar(value) and not isinstance(value, np.generic)


def _is_scalar(value: object) -> bool:
    return value is None or isinstance(value, str | bool | int | float | np.generic)


def describe(value: object) -> str:
    """An object in a few words: a function's name, else its type and a digest of its content."""
    if isinstance(value, torch.dtype) or hasattr(value, "__qualname__"):
        return str(value) if isinstance(value, torch.dtype) else path_of(value)
    shape = f" {list(value.shape)}" if isinstance(value, Tensor | np.ndarray) else ""
    return f"{type(value).__name__}{shape} {digest(value)}"


def digest(value: object) -> str:
    """The first digits of the SHA-256 of an object's content."""
    sha = hashlib.sha256()
    _feed(sha, value)
    return sha.hexdigest()[:16]


def _feed(sha: "hashlib._Hash", value: object) -> None:
    """Add a value to a digest: numbers, arrays, tables, lists and data classes; of another object its type alone."""
    if isinstance(value, Tensor):
        sha.update(f"{value.dtype}{list(value.shape)}".encode())
        value = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        sha.update(f"{value.dtype}{value.shape}".encode())
        sha.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    elif isinstance(value, Mapping | list | tuple | np.ndarray):
        for inner in value.items() if isinstance(value, Mapping) else value:
            _feed(sha, inner)
        sha.update(b"end")
    elif isinstance(value, functools.partial):
        _feed(sha, [value.func, value.args, value.keywords])
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field for field in dataclasses.fields(value) if field.metadata.get("identifies", True)]
        _feed(sha, [getattr(value, field.name) for field in fields])
    elif isinstance(value, nn.Module):
        _feed(sha, [repr(value), value.state_dict()])
    elif _is_scalar(value) or isinstance(value, bytes):
        sha.update(repr(value).encode() + b",")
    else:
        sha.update(path_of(value).encode())
