"""Any method as a `torch.optim.Optimizer`, for a training loop of your own."""

import inspect
import re
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import networkx as nx
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import ParamsT
from torch.utils.hooks import RemovableHandle

from netfleet.algorithms import Algorithm
from netfleet.algorithms.base import AnyState
from netfleet.algorithms.build import make_algorithm
from netfleet.algorithms.local import LocalSpec, make_local, with_local
from netfleet.algorithms.outer import with_outer
from netfleet.engines.job import LoopState, Snapshot
from netfleet.errors import ConfigError
from netfleet.exit_codes import ExitsOnRefusal
from netfleet.gradients.paths import Sample
from netfleet.optim import saving
from netfleet.optim.connection import Connection
from netfleet.optim.groups import rates_of, with_decay
from netfleet.optim.handover import Ended
from netfleet.optim.join import joined
from netfleet.optim.kept import Kept, OwnSettings, Stateful
from netfleet.optim.loop_problem import GradientAt, LoopProblem, Rates
from netfleet.optim.parameters import FlatParameters, digest
from netfleet.optim.ranks import Ranks
from netfleet.registry import Spec
from netfleet.topology.topology import Topology

Closure = Callable[..., Any]
_STATE = "netfleet"  # the key of all that is not a parameter's own


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
        self._complete, self.round, self._shows_average, self._replaced = False, 0, False, False
        super().__init__(params, {"lr": given.step_size(0), **options})
        self._complete = True
        self._connection: Connection = joined() or Ranks(group, topology, seed)
        adopted = self._connection.adopt(given)
        self._rates = Rates(adopted.step_size(0), adopted.step_size(0))
        self._method = adopted.with_eta(self._rates)
        everything = [p for group in self.param_groups for p in group["params"]]
        self._requires_grad = [p.requires_grad for p in everything]
        _replace_others(self, everything)
        self._flat = FlatParameters([p for p in everything if p.requires_grad])
        if self._local is None:
            self._flat.note_used()
        self._kept, self._buffers, self._seed = Kept(self._flat.parameters), list(buffers), seed
        self._facts = _facts(self._flat, [p for p in everything if not p.requires_grad], self._buffers, adopted)
        self._compare()
        self._flat.show(self._connection.common_start(self._flat.x))
        self._kept.add("optimizer", OwnSettings(self, self._rates))
        self._last_loss: object = None
        self._hook: RemovableHandle | None = None
        # The hook before a forward pass fires once only, also for a compiled module.
        warnings.filterwarnings("ignore", message=r"Using `torch.compile\(module\)` when there are global hooks")
        self._prepare(0)

    def _prepare(self, t: int) -> None:
        """Prepare a training that begins in round t with the parameters and the state as they are then."""
        connection = self._connection
        self._problem = LoopProblem(self._flat, self._buffers, connection.worker, connection.workers, self._seed)
        self._problem.kept = weakref.ref(self._kept)
        weakref.finalize(self, self._problem.handover.close)
        self.round, self.finished = t, False
        self._wanted: Sample | None = None  # the mini-batch whose gradient the training waits for
        self._watch(True)

    def _close(self) -> None:
        self._problem.handover.close()
        self._watch(False)

    def _watch(self, forward: bool) -> None:
        """Whether a round begins when a module that holds the parameters is called in training."""
        if self._hook is not None:
            self._hook.remove()
        self._hook = _before_forward(self) if forward else None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
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
    def round_ended(self) -> bool:
        """Whether no round is under way: the moment to save."""
        return self._wanted is None

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """One local step with the gradients in `.grad`; with a closure one round, which returns the first loss."""
        if closure is not None:
            return self._whole_round(closure)
        if getattr(self._method, "participation", 1.0) < 1:
            raise ConfigError(
                f"{self._method.title} with participation below 1 has rounds in which a worker takes no step; give "
                f"step a closure"
            )
        if self.finished:
            self._after_the_end()
            return None
        self._check_own()
        if self._wanted is None:
            self._check_unchanged()
            raise ConfigError(
                "these gradients were computed before the round began, because the loop calls no module in training "
                "mode that holds the parameters; call optimizer.begin_round() before the loss is computed, or draw "
                "the batches from netfleet.optim.Batches(loader, optimizer)"
            )
        self._go_on(self._gradients)
        return None

    def _after_the_end(self) -> None:
        """The first step after the end is that of an iteration in which the end was noticed."""
        if self._stepped_after_the_end:
            raise ConfigError(f"all {self.round} rounds are done; end the loop when optimizer.finished is True")
        self._stepped_after_the_end = True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients; those of trained parameters become zeros, since they share one vector."""
        super().zero_grad(set_to_none)
        self._flat.clear_gradients()

    def _whole_round(self, closure: Closure) -> Any:
        named, goal, losses = _takes_an_argument(closure), self.round + 1, list[object]()
        self._problem.repeats = named
        while self.round < goal and not self.finished:
            if self._wanted is None:
                self._begin()
                continue
            with torch.enable_grad():
                losses.append(closure(self._wanted) if named else closure())
            self._go_on(self._gradients)
        self._last_loss = losses[0] if losses else self._last_loss
        return self._last_loss

    @torch.no_grad()
    def begin_round(self) -> None:
        """Exchange with the neighbours and begin the next round, if none is under way.

        This happens by itself when a module that holds the parameters is called in training.
        """
        while self._wanted is None and not self.finished:
            self._begin()

    def _begin(self) -> None:
        """Let the training go on until it wants a gradient; a round in which this worker is away ends before that."""
        self._check_own()
        self._check_unchanged()
        self._flat.collect()
        rate, self._problem.groups = rates_of(self.param_groups, self._method, self._local)
        t, saved = self.round, self.state.pop(_STATE, None)  # type: ignore[call-overload]
        if not self._problem.handover.started:
            self._start(saved or {})
        self._rates.begin(t, rate)
        del saved
        self._go_on(self._kept.state)
        if self._wanted is None and self.round == t and not self.finished:  # the state that the training begins with
            self.state.pop(_STATE)  # type: ignore[call-overload]
            self._go_on(self._kept.state)

    def _start(self, saved: Mapping[str, Any]) -> None:
        """Start the training, from a saved state if that has more than a round's number."""
        self._compare(_mismatch(saved.get("of", {}), self._origin()))
        connection, problem, method, t = self._connection, self._problem, self._method, self.round
        start, names = None, method.State._fields[1:]
        if saved:
            self._rates.resume(t, saved["eta"])
            fields = [self._flat.x[None], *(saved[name] for name in names)]
            first = [Snapshot(t, cast(AnyState, method.State._make(fields)), problem.read_buffers())]
            start = lambda *_: first.pop()  # noqa: E731
        problem.handover.start(lambda: connection.train(problem, method, start, t), problem.device)

    def _compare(self, mismatch: str = "") -> None:
        """Workers that average different things would hang, or fail far from the cause."""
        rates = [float(group["lr"]) for group in self.param_groups]
        facts = {
            "round": str(self.round),
            "learning rate": repr(rates),
            "loaded state": mismatch or "its own",
            **self._facts,
            "frozen parameters of the kept model": digest(self._kept.frozen()),
        }
        self._connection.compare(facts)
        if mismatch:
            raise ConfigError(f"the loaded state does not belong here: {mismatch}; {_OWN_STATE}")

    def _origin(self) -> dict[str, str]:
        """What a state belongs to."""
        own = {name: self._facts[name] for name in ("method", "frozen parameters")}
        return own | dict(self._connection.place())

    def _go_on(self, answer: Callable[[], Tensor | LoopState]) -> None:
        """Give the training what it waits for, and take up what it wants next.

        The answer is made here and not kept: with its memory the next gradients can be offered.
        """
        made = [answer()]
        self._wanted = None
        self._watch(False)
        question = self._problem.handover.go(made.pop())
        if isinstance(question, GradientAt):
            self._flat.show(question.x)
            self._flat.offer_gradients()
            self._wanted = question.sample
            return
        self.finished = isinstance(question, Ended)
        snapshot: Snapshot = question.result if isinstance(question, Ended) else question.snapshot
        self._flat.show(snapshot.state.x[0])
        self._problem.write_buffers(snapshot.buffers)
        self.round = snapshot.t
        fields = dict(zip(snapshot.state._fields, snapshot.state, strict=True))
        self._keep_state(fields)
        if not self.finished and snapshot.loop is not None:  # a site resumes
            self._kept.restore(snapshot.loop)
        if not self.finished and self.round == self._connection.rounds:  # nothing follows: save, and end
            self.state.pop(_STATE)  # type: ignore[call-overload]
            self._go_on(self._kept.state)
        else:
            self._watch(not self.finished)

    def _keep_state(self, fields: Mapping[str, Tensor]) -> None:
        about = {"t": self.round, "eta": self._rates.now, "of": self._origin()}
        self.state[_STATE] = {**about, **fields}  # type: ignore[index]

    def _gradients(self) -> Tensor:
        self._flat.collect()
        groups = self.param_groups if self._local is None else []  # a local optimizer decays by itself
        decays = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
        return self._flat.take_gradients([decays.get(id(p), 0.0) for p in self._flat.parameters])

    def _check_unchanged(self) -> None:
        if [p.requires_grad for group in self.param_groups for p in group["params"]] != self._requires_grad:
            raise ConfigError(
                "a parameter's requires_grad has changed since the optimizer was made, and all workers average one "
                "vector; make a new optimizer after freezing or unfreezing"
            )

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
        self._flat.collect()
        own, statistics = self._flat.x, self._problem.read_buffers()
        self._flat.show(self._connection.average(own))
        if statistics is not None:
            self._problem.write_buffers(self._connection.average(statistics[0])[None])
        self._shows_average = True
        try:
            yield
        finally:
            self._shows_average = False
            self._flat.show(own)
            self._problem.write_buffers(statistics)

    # ---- what is saved ----

    def keep(self, **things: Stateful) -> None:
        """Save these things' states with the optimizer's: the model (its buffers), a scheduler, batches, …

        What was loaded before is given to them at once.
        """
        for name, thing in things.items():
            self._kept.add(name, thing)

    def __getstate__(self) -> dict[str, Any]:
        raise ConfigError(
            "an optimizer with its training cannot be copied or pickled; save its state_dict(), and load that into a "
            "new one"
        )

    def state_dict(self) -> dict[str, Any]:
        self._check_ended()
        return super().state_dict()

    def _check_ended(self) -> None:
        if self._problem.handover.broken:
            raise ConfigError(
                "the training has ended with an error, and its last state is gone; make a new optimizer, and load a "
                "saved state"
            )
        if self._wanted is not None:
            raise ConfigError(
                f"a round is under way (step {self._wanted.k} of round {self.round}), and its state cannot be saved; "
                f"save when optimizer.round_ended is True, which it is after every {getattr(self._method, 'K', 1)} "
                f"steps"
            )

    def save(self, folder: str | Path) -> None:
        """Write the state of all ranks, and what they keep, as one set of files; all ranks call it."""
        self._check_ended()
        saved = self.state.get(_STATE)  # type: ignore[call-overload]
        if saved is None:
            raise ConfigError("nothing was trained yet, so there is nothing to save; save after a round")
        self._ranks.compare({"round": str(self.round)})
        state = cast(AnyState, self._method.State._make(saved[name] for name in self._method.State._fields))
        snapshot = Snapshot(self.round, state, self._problem.read_buffers(), loop=self._kept.state())
        saving.save(self._ranks, self._problem, Path(folder), snapshot, self._facts)

    def load(self, folder: str | Path) -> None:
        """Continue from what `save` wrote; all ranks call it.

        On another number of ranks all begin with the average model and new corrections, in the round that was reached.
        """
        loaded = saving.load(self._ranks, self._problem, self._method, Path(folder), self._facts)
        self._flat.show(loaded.x[0])
        self._problem.write_buffers(loaded.buffers)
        self._kept.restore(loaded.loop, whole=loaded.fields is not None)
        self.state.pop(_STATE, None)  # type: ignore[call-overload]
        if loaded.fields is not None:
            self.round = loaded.t
            self._keep_state(loaded.fields)
        self._close()
        self._prepare(loaded.t)

    @property
    def _ranks(self) -> Ranks:
        if not isinstance(self._connection, Ranks):
            raise ConfigError("a site saves by itself after every round, in its own folder; leave save and load out")
        return self._connection

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        saved: dict[str, Any] = state_dict["state"].get(_STATE, {})
        names, d = self._method.State._fields, self._flat.d
        if saved and (saved.keys() - {"t", "eta", "of"} != set(names) or saved["x"].shape != (1, d)):
            found = {name: tuple(v.shape) for name, v in saved.items() if isinstance(v, Tensor)}
            raise ConfigError(
                f"the loaded state has {found}, but {self._method.title} with {d} parameters keeps "
                f"{', '.join(names)}; load the state of the same method and model"
            )
        super().load_state_dict(state_dict)
        own: dict[str, Any] = {
            name: v.to(self._flat.device, copy=True) if isinstance(v, Tensor) else v for name, v in saved.items()
        }
        if own:
            self._flat.show(own["x"][0])
            self.state[_STATE] = own  # type: ignore[index]
        self._close()
        self._prepare(own.get("t", 0))


_OWN_STATE = (
    "every rank loads its own state into the same model, method and graph; optimizer.save(folder) and load(folder) do "
    "that, also for another number of ranks"
)


def _mismatch(saved: Mapping[str, str], own: Mapping[str, str]) -> str:
    """In what a loaded state differs from where it is loaded."""
    other = [name for name, text in saved.items() if own.get(name) != text]
    return f"its {other[0]} is {saved[other[0]]}, here it is {own.get(other[0])}" if other else ""


def _facts(
    flat: FlatParameters, frozen: Iterable[Tensor], buffers: Iterable[Tensor], method: Algorithm
) -> dict[str, str]:
    """What all workers must have in common."""
    return {
        "parameters": repr((flat.d, flat.dtype, [tuple(shape) for shape in flat.shapes])),
        "buffers": repr([(tuple(b.shape), b.dtype) for b in buffers]),
        "frozen parameters": digest(frozen),
        "method": re.sub(r" at 0x[0-9a-f]+", "", repr(method.with_eta(1.0))),
    }


#: All optimizers that train.
_TRAINING: "weakref.WeakSet[Decentralized]" = weakref.WeakSet()


def _replace_others(optimizer: Decentralized, parameters: Iterable[Tensor]) -> None:
    """End the training of earlier optimizers of these parameters, which would show their own values."""
    new = {id(p) for p in parameters}
    for other in list(_TRAINING):
        if any(id(p) in new for group in other.param_groups for p in group["params"]):
            other._close()
            other._replaced = True
            _TRAINING.discard(other)
    _TRAINING.add(optimizer)


def _takes_an_argument(closure: Closure) -> bool:
    wanted = inspect.signature(closure).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.default is p.empty and p.kind in kinds for p in wanted)


def _before_forward(optimizer: Decentralized) -> RemovableHandle:
    """Let the next round begin before a module that holds the optimizer's parameters is called in training."""
    reference, own = weakref.ref(optimizer), {id(p) for group in optimizer.param_groups for p in group["params"]}

    def trained(p: Tensor) -> bool:
        return p.requires_grad and id(p) in own  # a GAN's loop freezes one network while it trains the other

    def begin(module: nn.Module, inputs: object) -> None:
        waiting = reference()
        if waiting is None:
            handle.remove()
        elif not module.training or not torch.is_grad_enabled() or waiting._shows_average:
            return
        elif any(map(trained, module.parameters())):
            waiting.begin_round()

    begin._torchdynamo_disable = True  # type: ignore[attr-defined]  # torch.compiler.disable takes seconds to import
    handle = register_module_forward_pre_hook(begin)
    return handle
