"""Any method as a `torch.optim.Optimizer`, for a training loop of your own."""

import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import networkx as nx
import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import ParamsT

from netfleet.algorithms import Algorithm
from netfleet.algorithms.build import make_algorithm
from netfleet.algorithms.local import LocalSpec, make_local, with_local
from netfleet.algorithms.outer import with_outer
from netfleet.errors import ConfigError
from netfleet.exit_codes import ExitsOnRefusal
from netfleet.optim import saving
from netfleet.optim.groups import learning_rates, parameters_of, rates_of, with_decay
from netfleet.optim.join import joined
from netfleet.optim.kept import Stateful
from netfleet.optim.method_state import MethodState, loaded
from netfleet.optim.parts import make_parts
from netfleet.optim.ranks import Ranks
from netfleet.optim.training import Training
from netfleet.registry import Spec
from netfleet.topology.topology import Topology

Closure = Callable[..., Any]


class Decentralized(ExitsOnRefusal, torch.optim.Optimizer):
    """A method over the ranks of a process group, or over the sites of a plan; `lr` is its η.

    Each `step()` hands in the gradients in `.grad`, releases them, and is one local step; after K of them the round
    ends, and the next one begins with an exchange, by itself, before the next forward pass in training. `step(closure)`
    is a whole round. All workers begin with the first one's parameters, unless a state is loaded.
    """

    _stepped_after_the_end: bool = False

    def __init__(
        self,
        params: ParamsT,
        method: Algorithm | Spec = "net-fleet",
        *,
        topology: Topology | nx.Graph | Spec = "ring",
        local: LocalSpec | None = None,
        outer: Spec | None = None,
        weight_decay: float | None = None,
        buffers: Iterable[Tensor] = (),
        group: dist.ProcessGroup | None = None,
        seed: int = 0,
    ) -> None:
        given = method if isinstance(method, Algorithm) else make_algorithm(method)
        self._local = None if local is None else with_decay(make_local(local), weight_decay)
        given = given if self._local is None else with_local(given, self._local)
        given = given if outer is None else with_outer(given, outer)
        options = {"weight_decay": weight_decay or 0.0} if self._local is None else dict(self._local.options)
        self._complete, self._shows_average, self._replaced, self._last_loss = False, False, False, None
        super().__init__(params, {"lr": given.step_size(0), **options})
        self._complete = True
        connection = joined() or Ranks(group, topology, seed)
        _replace_others(self)
        self._parts = make_parts(self, connection, given, list(buffers), seed)
        if self._local is None:
            self._parts.flat.note_used()
        self._training = Training(self._parts, MethodState(self.state), 0)
        _TRAINING.add(self)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """For the constructor only: a group that comes later is refused, since all workers average one vector."""
        if self._complete:
            raise ConfigError(
                "parameters cannot be added later, since all workers average one vector; give all groups to the "
                "constructor, and make a new optimizer for others"
            )
        super().add_param_group(param_group)
        for group in self.param_groups:
            if group.get("weight_decay", 0) < 0:
                raise ConfigError(f"weight_decay must be 0 or more, got {group['weight_decay']!r}")

    # ---- the loop ----

    @property
    def round(self) -> int:
        """How many rounds have ended."""
        return self._training.round

    @property
    def finished(self) -> bool:
        """Whether all rounds of a plan are done."""
        return self._training.finished

    @property
    def round_ended(self) -> bool:
        """Whether no round is under way: the moment to save."""
        return self._training.wanted is None

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """One local step with the gradients in `.grad`; with a closure one round, which returns the first loss."""
        if closure is not None:
            return self._whole_round(closure)
        method = self._parts.method
        if getattr(method, "participation", 1.0) < 1:
            raise ConfigError(
                f"{method.title} with participation below 1 has rounds in which a worker takes no step; give step a "
                f"closure"
            )
        if self.finished:
            self._after_the_end()
            return None
        self._check_own()
        if self.round_ended:
            self._parts.check_unchanged()
            raise ConfigError(
                "these gradients were computed before the round began, because the loop calls no module in training "
                "mode that holds the parameters; call optimizer.begin_round() before the loss is computed, or draw "
                "the batches from netfleet.optim.Batches(loader, optimizer)"
            )
        self._training.go_on(self._gradients)
        return None

    def _after_the_end(self) -> None:
        """The first step after the end is that of an iteration in which the end was noticed."""
        if self._stepped_after_the_end:
            raise ConfigError(f"all {self.round} rounds are done; end the loop when optimizer.finished is True")
        self._stepped_after_the_end = True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients; those of trained parameters become zeros, since they share one vector."""
        super().zero_grad(set_to_none)
        self._parts.flat.clear_gradients()

    def _whole_round(self, closure: Closure) -> Any:
        named, goal, losses = _takes_an_argument(closure), self.round + 1, list[Any]()
        self._training.problem.let_repeat(named)
        while self.round < goal and not self.finished:
            if (sample := self._training.wanted) is None:
                self._begin()
                continue
            with torch.enable_grad():
                losses.append(closure(sample) if named else closure())
            self._training.go_on(self._gradients)
        self._last_loss = losses[0] if losses else self._last_loss
        return self._last_loss

    @torch.no_grad()
    def begin_round(self) -> None:
        """Exchange with the neighbours and begin the next round, if none is under way.

        This happens by itself when a module that holds the parameters is called in training.
        """
        while self.round_ended and not self.finished:
            self._begin()

    def _begin(self) -> None:
        self._check_own()
        self._parts.check_unchanged()
        self._parts.flat.collect()
        rate, groups = rates_of(self.param_groups, self._parts.method, self._local)
        if not self._training.started:
            self._parts.comparison.compare(self.round, learning_rates(self.param_groups), MethodState(self.state).of())
        self._training.begin(rate, groups)

    def _gradients(self) -> Tensor:
        flat = self._parts.flat
        flat.collect()
        groups = self.param_groups if self._local is None else []  # a local optimizer decays by itself
        decays = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
        return flat.take_gradients([decays.get(id(p), 0.0) for p in flat.parameters])

    def _check_own(self) -> None:
        if self._replaced:
            raise ConfigError(
                "another optimizer was made for these parameters, and a parameter is in one vector only; use that one, "
                "or give each optimizer parameters of its own"
            )
        if self._shows_average:
            raise ConfigError(
                "the parameters are the average of all ranks now; train after optimizer.averaged() has ended"
            )

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Within this the parameters (and `buffers`) are the averages over all ranks, which must all enter."""
        self._check_own()
        with self._parts.averaged(self.round, self._training.problem):
            self._shows_average = True
            try:
                yield
            finally:
                self._shows_average = False

    # ---- what is saved ----

    def keep(self, **things: Stateful) -> None:
        """Save these things' states with the optimizer's: the model (its buffers), a scheduler, batches, …

        What was loaded before is given to them at once.
        """
        for name, thing in things.items():
            self._parts.kept.add(name, thing)

    def __getstate__(self) -> dict[str, Any]:
        raise ConfigError(
            "an optimizer with its training cannot be copied or pickled; save its state_dict(), and load that into a "
            "new one"
        )

    def state_dict(self) -> dict[str, Any]:
        """The state of this worker, between two rounds: groups, and what the method keeps for each parameter."""
        self._training.check_ended()
        return super().state_dict()

    def save(self, folder: str | Path) -> None:
        """Write the state of all ranks, and what they keep, as one set of files; all ranks call it."""
        self._training.check_ended()
        saving.save(self._ranks, self._training, self._parts.method, Path(folder), self._parts.comparison.facts)

    def load(self, folder: str | Path) -> None:
        """Continue from what `save` wrote; all ranks call it.

        On another number of ranks all begin with the average model and new corrections, in the round that was reached.
        """
        parts, problem, state = self._parts, self._training.problem, MethodState(self.state)
        found = saving.load(self._ranks, self._training, parts.method, Path(folder), parts.comparison.facts)
        parts.flat.show(found.x[0])
        problem.write_buffers(found.buffers)
        parts.kept.restore(found.loop, whole=found.fields is not None)
        state.take()
        if found.fields is not None:
            state.keep(found.t, parts.rates.now, parts.comparison.origin(), found.fields)
        self._train_anew(found.t)

    @property
    def _ranks(self) -> Ranks:
        if not isinstance(self._parts.connection, Ranks):
            raise ConfigError("a site saves by itself after every round, in its own folder; leave save and load out")
        return self._parts.connection

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a worker's `state_dict()`, its model included; all workers load theirs of the same round."""
        own = loaded(state_dict, self._parts.method, self._parts.flat)
        super().load_state_dict(state_dict)
        if own:
            self._parts.flat.show(own["x"][0])
            MethodState(self.state).put(own)
        self._train_anew(own.get("t", 0))

    def _train_anew(self, t: int) -> None:
        self._training.close()
        self._training = Training(self._parts, MethodState(self.state), t)

    def _give_up(self) -> None:
        """Another optimizer has these parameters from now on."""
        self._training.close()
        self._replaced = True


#: All optimizers that train.
_TRAINING: "weakref.WeakSet[Decentralized]" = weakref.WeakSet()


def _replace_others(optimizer: Decentralized) -> None:
    """End the training of earlier optimizers of these parameters, which would show their own values."""
    new = set(map(id, parameters_of(optimizer.param_groups)))
    for other in list(_TRAINING):
        if not new.isdisjoint(map(id, parameters_of(other.param_groups))):
            other._give_up()
            _TRAINING.discard(other)


def _takes_an_argument(closure: Closure) -> bool:
    wanted = inspect.signature(closure).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.default is p.empty and p.kind in kinds for p in wanted)
