"""What the bytes of a message are, in words for people who do not know the methods."""

import re
from pathlib import Path

from netfleet.algorithms import ALGORITHMS, Algorithm
from netfleet.errors import NetfleetError
from netfleet.runs.config import read_toml

_VECTOR = re.compile(r"\w+\[(?P<numbers>\d+)\] in (?P<bytes>\d+)")
_MODEL = re.compile(r"model \w+\[(?P<numbers>\d+)\]")
_FED = {"y": "the tracked gradient y", "c": "the correction c"}


def read_method(folder: Path) -> type[Algorithm] | None:
    """The method of a site's folder; None where it is not known. Code that the experiment names is not imported."""
    path = folder / "experiment.toml"
    if not path.is_file():
        return None
    try:
        (table,) = read_toml(path)["algorithms"]
    except (NetfleetError, KeyError, TypeError, ValueError):
        return None
    if not isinstance(table, dict) or table.get("kind") not in list(ALGORITHMS) or table.get("outer") is not None:
        return None  # of the user's own, or with other vectors than the method's
    made = ALGORITHMS[str(table["kind"])]
    return made if isinstance(made, type) and issubclass(made, Algorithm) else None


def describe(content: str, method: type[Algorithm] | None) -> str:
    """A message's description in plain words."""
    if content == "facts":
        return "names, shapes and digests of the parameters of the training loop"
    if content == "key":
        return "a public key, by which both ends of a link agree on their noise"
    if (model := _MODEL.fullmatch(content)) is not None:
        return f"the model: {int(model['numbers']):,} numbers"
    vectors = [(int(found["numbers"]), int(found["bytes"])) for found in _VECTOR.finditer(content)]
    if not vectors:
        return content
    return "; ".join(_vector(i, *vector, vectors[0][0], method) for i, vector in enumerate(vectors))


def _vector(i: int, numbers: int, size: int, length: int, method: type[Algorithm] | None) -> str:
    what = "a vector of the method"
    if i > 0 and numbers != length:
        what = "statistics of BatchNorm layers"
    elif method is not None and method.conserves is not None and method.conserves.argument == i > 0:
        what = _FED.get(method.conserves.field, what)
    elif method is not None and i == 0 and (method.exchanges_models or method.conserves is not None):
        what = "the model x"
    packed = f", compressed to {size:,} bytes" if size < 2 * numbers else ""
    return f"{what} ({numbers:,} numbers{packed})"
