"""For a training loop of your own: each method as a `torch.optim.Optimizer` over a process group, one worker per rank.

    dist.init_process_group("gloo")                                     # torchrun sets all it needs
    optimizer = netfleet.optim.NetFleet(model.parameters(), lr=0.05, K=10, topology="ring")
    for _ in range(rounds):

        def closure():                                                  # one mini-batch of this rank's own data
            optimizer.zero_grad()
            loss = loss_function(model(x := next(batches)), …)
            loss.backward()                                             # clip gradients here, if at all
            return loss

        optimizer.step(closure)                                         # one round: K mini-batches, one exchange

As with LBFGS, `step` calls the closure several times and returns what the first call returned. A closure that takes an
argument is given the name of the mini-batch, `(t, k, …)`, which methods that use one twice (DFedSAM) need. All ranks
begin with rank 0's parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import networkx as nx
import torch
import torch.distributed as dist
from torch import Tensor

from netfleet.algorithms import ALGORITHMS, Algorithm
from netfleet.compression import Compressed, make_algorithm
from netfleet.engines.block import Block
from netfleet.engines.distributed import Ranks, Wire
from netfleet.engines.loop import Counted, advance, begin
from netfleet.engines.placement import Placement
from netfleet.errors import ConfigError
from netfleet.network import network_for
from netfleet.problems.base import Problem, Sample, Scores
from netfleet.topology import Topology, make_topology

_STATE = "netfleet"  # the key of all that is not a parameter's own


class Decentralized(torch.optim.Optimizer):
    """A method over the ranks of a process group; `lr` is its η, one for all parameter groups."""

    def __init__(
        self,
        params: Iterable[Any],
        method: Algorithm | str | Mapping[str, Any] = "net-fleet",
        *,
        topology: Topology | nx.Graph | str | Mapping[str, Any] = "ring",
        weight_decay: float = 0.0,
        buffers: Iterable[Tensor] = (),
        group: dist.ProcessGroup | None = None,
        seed: int = 0,
    ) -> None:
        self._method = method if isinstance(method, Algorithm) else make_algorithm(method)
        super().__init__(params, {"lr": self._method.step_size(0), "weight_decay": weight_decay})
        ranks = Ranks(group)
        graph = topology if isinstance(topology, Topology) else make_topology(topology, workers=ranks.size, seed=seed)
        if graph.m != ranks.size:
            raise ConfigError(
                f"the topology has {graph.m} workers, the process group {ranks.size} ranks; make them agree"
            )
        self._local = _Local(self._parameters(), list(buffers), ranks, seed)
        network = network_for(self._method, graph, seed)
        wire = Wire(ranks, network, Placement(tuple((rank,) for rank in range(ranks.size))))
        self._host = Block(self._local, network, wire, ranks)
        self._ranks = ranks
        self._local.load(ranks.from_first(self._local.x))

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self, closure: Callable[..., Any] | None = None) -> Any:
        """One round: K mini-batches and one exchange (and before the first round the gradient that it starts from)."""
        if closure is None:
            raise ConfigError(
                f"{type(self).__name__} takes several gradients a step; give step a closure, as for LBFGS"
            )
        method, local = self._current(), self._local
        local.begin(closure, [group["weight_decay"] for group in self.param_groups for _ in group["params"]])
        f = Counted(local)
        x, kept = local.x[None], self.state.get(_STATE)  # type: ignore[call-overload]
        if kept is None:
            state, t = begin(self._host, method, f, x), 0
        else:
            t = kept["t"]
            state = method.State(x, *(kept[name] for name in method.State._fields[1:]))  # type: ignore[attr-defined]
        state = advance(self._host, method, f, t, state)
        local.load(state.x[0])
        self.state[_STATE] = {"t": t + 1, **dict(zip(state._fields[1:], state[1:], strict=True))}  # type: ignore[index]
        return local.first_loss

    def _current(self) -> Algorithm:
        """The method with the learning rate of now, which a scheduler may have changed."""
        rates = {float(group["lr"]) for group in self.param_groups}
        if len(rates) > 1:
            raise ConfigError(
                f"all parameter groups need one learning rate, since neighbours average the result, got {sorted(rates)}"
            )
        return _with_rate(self._method, rates.pop())

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Within this the parameters are the average over all ranks, which must all enter; then each its own again."""
        own = self._local.x.clone()
        self._local.load(self._ranks.total(own[None]) / self._ranks.size)
        try:
            yield
        finally:
            self._local.load(own)


def _with_rate(method: Algorithm, rate: float) -> Algorithm:
    if isinstance(method, Compressed):
        return replace(method, method=_with_rate(method.method, rate))
    return method if method.step_size(0) == rate else replace(method, eta=rate)


class _Local(Problem):
    """The objective of this rank as an algorithm sees it: gradients are what the closure leaves in `.grad`."""

    def __init__(self, parameters: list[Tensor], buffers: list[Tensor], ranks: Ranks, seed: int) -> None:
        kinds = {(p.dtype, p.device) for p in parameters}
        if len(kinds) != 1:
            raise ConfigError(f"all parameters must have one type and device, got {sorted(map(str, kinds))}")
        self._parameters, self._moving = parameters, [b for b in buffers if b.is_floating_point()]
        ((self.dtype, self.device),) = kinds
        self.m, self.workers, self.seed = ranks.size, (ranks.rank,), seed
        self.d = sum(p.numel() for p in parameters)
        self.mixes_buffers = bool(self._moving)
        self.buffers = self._read_buffers()

    @property
    def x(self) -> Tensor:
        """The parameters in one vector."""
        return torch.cat([p.detach().flatten() for p in self._parameters])

    def load(self, x: Tensor) -> None:
        """Write one vector into the parameters."""
        for p, part in zip(self._parameters, torch.split(x, [p.numel() for p in self._parameters]), strict=True):
            p.detach().copy_(part.view_as(p))

    def begin(self, closure: Callable[..., Any], decay: list[float]) -> None:
        """A round begins."""
        self._closure, self._decay = closure, decay
        self._named = bool(inspect.signature(closure).parameters)
        self._used: set[tuple[int, int]] = set()
        self.first_loss: Any = None
        self.buffers = self._read_buffers()

    def _read_buffers(self) -> Tensor | None:
        return torch.cat([b.flatten().to(self.dtype) for b in self._moving])[None] if self._moving else None

    def sample(self, t: int, k: int) -> Sample:
        return Sample(t, k, 1)

    def grad(self, x: Tensor, sample: Sample) -> Tensor:
        name = sample.t, sample.k
        if name in self._used and not self._named:
            raise ConfigError(
                "this method takes two gradients on one mini-batch; let the closure take an argument, the mini-batch's "
                "name, and return the loss on the same data for the same name"
            )
        self._used.add(name)
        self.load(x[0])
        if self.buffers is not None:
            self._write_buffers(self.buffers[0])
        with torch.enable_grad():
            loss = self._closure(sample) if self._named else self._closure()
        self.first_loss = loss if self.first_loss is None else self.first_loss
        self.buffers = self._read_buffers()
        return self._gradient()[None]

    def _gradient(self) -> Tensor:
        parts = []
        for p, decay in zip(self._parameters, self._decay, strict=True):
            g = torch.zeros_like(p) if p.grad is None else p.grad
            parts.append((g.add(p, alpha=decay) if decay else g).flatten())
        return torch.cat(parts)

    def _write_buffers(self, values: Tensor) -> None:
        for b, part in zip(self._moving, torch.split(values, [b.numel() for b in self._moving]), strict=True):
            b.copy_(part.view_as(b))

    def full_grad(self, x: Tensor) -> Tensor:
        raise ConfigError(
            "this method passes over all of a worker's data now and then, which a closure cannot; use netfleet run"
        )

    def start(self) -> Tensor:
        return self.x

    def at(self, workers: Any) -> Problem:
        return self

    def objective(self, x: Tensor, limit: int = 0) -> tuple[Tensor, Tensor]:
        raise ConfigError("a closure has no exact objective")

    def evaluate(self, x: Tensor, **options: Any) -> Scores:
        raise ConfigError("a closure has no held-out data")


def __getattr__(name: str) -> type[Decentralized]:
    """`netfleet.optim.NetFleet`, `.KGT`, …: a class for each registered method, by its own class's name."""
    for kind in ALGORITHMS:
        known: Any = ALGORITHMS[kind]
        if known.__name__ == name:
            return _front(known)
    raise AttributeError(f"netfleet.optim has no {name!r}; there are Decentralized and {', '.join(__dir__())}")


def __dir__() -> list[str]:
    return sorted(getattr(ALGORITHMS[kind], "__name__", kind) for kind in ALGORITHMS)


def _front(known: type[Algorithm]) -> type[Decentralized]:
    def init(self: Decentralized, params: Iterable[Any], lr: float = 0.01, **options: Any) -> None:
        given = inspect.signature(Decentralized.__init__).parameters
        own = {name: value for name, value in options.items() if name not in given}
        outer = {name: value for name, value in options.items() if name in given}
        Decentralized.__init__(self, params, known(eta=lr, **own), **outer)

    return type(known.__name__, (Decentralized,), {"__init__": init, "__doc__": known.__doc__})
