"""What an optimizer is made of, and all its trainings share."""

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from netfleet.algorithms import Algorithm
from netfleet.errors import ConfigError
from netfleet.optim.comparison import Comparison, facts_of
from netfleet.optim.connection import Connection
from netfleet.optim.forward_hook import ForwardHook
from netfleet.optim.groups import learning_rates, parameters_of
from netfleet.optim.kept import Kept, OwnSettings
from netfleet.optim.loop_problem import LoopProblem, Rates
from netfleet.optim.parameters import FlatParameters

if TYPE_CHECKING:
    from netfleet.optim.optimizer import Decentralized


@dataclass(frozen=True)
class Parts:
    """The connection to the others, the method, the parameters, and what else does not change."""

    connection: Connection
    method: Algorithm
    rates: Rates
    flat: FlatParameters
    buffers: Sequence[Tensor]
    kept: Kept
    comparison: Comparison
    hook: ForwardHook
    everything: Sequence[Tensor]  # the parameters, also those that are frozen
    requires_grad: Sequence[bool]
    seed: int

    def check_unchanged(self) -> None:
        """Raise if a parameter was frozen or unfrozen."""
        if [p.requires_grad for p in self.everything] != self.requires_grad:
            raise ConfigError(
                "a parameter's requires_grad has changed since the optimizer was made, and all workers average one "
                "vector; make a new optimizer after freezing or unfreezing"
            )

    @contextmanager
    def averaged(self, t: int, problem: LoopProblem) -> Iterator[None]:
        """Within this the parameters and buffers are the averages over all workers, and round t does not begin."""
        self.flat.collect()
        own, statistics, watched = self.flat.x, problem.read_buffers(), self.hook.watches
        self.flat.show(self.connection.average(t, own))
        if statistics is not None:
            problem.write_buffers(self.connection.average(t, statistics[0])[None])
        self.hook.watch(False)
        try:
            yield
        finally:
            self.hook.watch(watched)
            self.flat.show(own)
            problem.write_buffers(statistics)


def make_parts(
    optimizer: "Decentralized", connection: Connection, given: Algorithm, buffers: Sequence[Tensor], seed: int
) -> Parts:
    """The parts of an optimizer, which agree with those of the other workers; all begin with the same parameters."""
    method = connection.adopt(given)
    rates = Rates(method.step_size(0), method.step_size(0))
    everything = parameters_of(optimizer.param_groups)
    flat = FlatParameters([p for p in everything if p.requires_grad])
    kept = Kept(flat.parameters)
    frozen = [p for p in everything if not p.requires_grad]
    comparison = Comparison(connection, facts_of(flat, frozen, buffers, method), kept)
    comparison.compare(0, learning_rates(optimizer.param_groups))
    flat.show(connection.common_start(flat.x))
    kept.add("optimizer", OwnSettings(optimizer, rates))
    hook = ForwardHook(optimizer.begin_round, everything)
    weakref.finalize(optimizer, hook.watch, False)
    return Parts(
        connection=connection,
        method=method.with_eta(rates),
        rates=rates,
        flat=flat,
        buffers=buffers,
        kept=kept,
        comparison=comparison,
        hook=hook,
        everything=everything,
        requires_grad=[p.requires_grad for p in everything],
        seed=seed,
    )
