"""What all workers must have in common, and what a saved state belongs to."""

import re
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from netfleet.algorithms import Algorithm
from netfleet.errors import ConfigError
from netfleet.optim.connection import Connection
from netfleet.optim.kept import Kept
from netfleet.optim.parameters import FlatParameters, digest

_OWN_STATE = (
    "every rank loads its own state into the same model, method and graph; optimizer.save(folder) and load(folder) do "
    "that, also for another number of ranks"
)


def facts_of(
    flat: FlatParameters, frozen: Iterable[Tensor], buffers: Iterable[Tensor], method: Algorithm
) -> dict[str, str]:
    """What all workers must have in common from the beginning to the end."""
    return {
        "parameters": repr((flat.d, flat.dtype, [tuple(shape) for shape in flat.shapes])),
        "buffers": repr([(tuple(b.shape), b.dtype) for b in buffers]),
        "frozen parameters": digest(frozen),
        "method": re.sub(r" at 0x[0-9a-f]+", "", repr(method.with_eta(1.0))),
    }


class Comparison:
    """Compares this worker with the others: workers that average different things would hang, or fail far from it."""

    def __init__(self, connection: Connection, facts: Mapping[str, str], kept: Kept) -> None:
        self._connection, self.facts, self._kept = connection, facts, kept

    def origin(self) -> dict[str, str]:
        """What a state of this worker belongs to."""
        own = {name: self.facts[name] for name in ("method", "frozen parameters")}
        return own | dict(self._connection.place())

    def compare(self, t: int, rates: Sequence[float], saved: Mapping[str, str] | None = None) -> None:
        """Compare all facts before round t; `saved` is what a loaded state belongs to."""
        mismatch = _mismatch(saved or {}, self.origin())
        facts = {
            "learning rate": repr(rates),
            "loaded state": mismatch or "its own",
            **self.facts,
            "frozen parameters of the kept model": digest(self._kept.frozen()),
        }
        self._connection.compare(t, facts)
        if mismatch:
            raise ConfigError(f"the loaded state does not belong here: {mismatch}; {_OWN_STATE}")


def _mismatch(saved: Mapping[str, str], own: Mapping[str, str]) -> str:
    """In what a loaded state differs from where it is loaded."""
    other = [name for name, text in saved.items() if own.get(name) != text]
    return f"its {other[0]} is {saved[other[0]]}, here it is {own.get(other[0])}" if other else ""
