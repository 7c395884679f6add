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
begin with rank 0's parameters, unless a state was loaded. A rank that does not take part in a round returns its last
loss.
"""

import hashlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import networkx as nx
import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import ParamsT

from netfleet.algorithms import ALGORITHMS, Algorithm
from netfleet.algorithms.base import AnyState
from netfleet.algorithms.build import make_algorithm
from netfleet.engines.distributed import ProcessGroup, RowExchange
from netfleet.engines.host import PartialHost
from netfleet.engines.loop import Counted, advance, begin
from netfleet.engines.placement import Placement
from netfleet.errors import ConfigError
from netfleet.gradients.paths import Sample
from netfleet.problems.base import Problem, Scores
from netfleet.registry import Spec
from netfleet.runs.build import network_for
from netfleet.topology.topology import Topology, make_topology

Closure = Callable[..., Any]
_STATE = "netfleet"  # the key of all that is not a parameter's own


class Decentralized(torch.optim.Optimizer):
    """A method over the ranks of a process group; `lr` is its η, one for all parameter groups."""

    def __init__(
        self,
        params: ParamsT,
        method: Algorithm | Spec = "net-fleet",
        *,
        topology: Topology | nx.Graph | Spec = "ring",
        weight_decay: float = 0.0,
        buffers: Iterable[Tensor] = (),
        group: dist.ProcessGroup | None = None,
        seed: int = 0,
    ) -> None:
        self._method = method if isinstance(method, Algorithm) else make_algorithm(method)
        self._complete = False
        super().__init__(params, {"lr": self._method.step_size(0), "weight_decay": weight_decay})
        self._complete = True
        ranks = ProcessGroup(group)
        graph = topology if isinstance(topology, Topology) else make_topology(topology, workers=ranks.size, seed=seed)
        if graph.m != ranks.size:
            raise ConfigError(f"the topology has {graph.m} workers, the group {ranks.size} ranks; make them agree")
        trained = [p for group in self.param_groups for p in group["params"] if p.requires_grad]  # not the frozen
        self._local = _Local(trained, list(buffers), ranks, seed)
        network = network_for(self._method, graph, seed)
        wire = RowExchange(ranks, network, Placement(tuple((rank,) for rank in range(ranks.size))))
        self._host = PartialHost(self._local, network, wire, ranks)
        self._ranks = ranks
        self._last_loss: object = None
        _check_agreement(ranks, self._local, self._method, graph)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self._complete:
            raise ConfigError(
                "parameters cannot be added later, since all ranks average one vector; give all groups to the "
                "constructor, and make a new optimizer for others"
            )
        super().add_param_group(param_group)
        for group in self.param_groups:
            if group["weight_decay"] < 0:
                raise ConfigError(f"weight_decay must be 0 or more, got {group['weight_decay']!r}")

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """One round: K mini-batches and one exchange (and before the first round the gradient that it starts from)."""
        if closure is None:
            raise ConfigError(f"{type(self).__name__} takes several gradients a step; give step a closure, as LBFGS")
        local, rate = self._local, self._rate()
        decays = {id(p): group["weight_decay"] for group in self.param_groups for p in group["params"]}
        local.begin(closure, [decays[id(p)] for p in local.parameters])
        f = Counted(local)
        kept = self.state.get(_STATE)  # type: ignore[call-overload]
        if kept is None:
            local.load(self._ranks.from_first(local.x))
            method, t = self._method_at(0, rate, rate), 0
            state = begin(self._host, method, f, local.x[None])
        else:
            method, t = self._method_at(kept["t"], rate, kept.get("eta", rate)), kept["t"]
            state = self._restored(method, kept)
        state = advance(self._host, method, f, t, state)
        local.load(state.x[0])
        local.write_buffers(local.buffers)
        fields = dict(zip(state._fields[1:], tuple(state)[1:], strict=True))
        self.state[_STATE] = {"t": t + 1, "eta": rate, **fields}  # type: ignore[index]
        self._last_loss = self._last_loss if local.first_loss is None else local.first_loss
        return self._last_loss

    def _restored(self, method: Algorithm, kept: Mapping[str, Any]) -> AnyState:
        """The state with the parameters as they are now; a loaded one must be of this method and these parameters."""
        names, d = method.State._fields[1:], self._local.d
        if kept.keys() - {"t", "eta"} != set(names) or any(kept[name].shape[-1] % d for name in names):
            found = {name: tuple(v.shape) for name, v in kept.items() if isinstance(v, Tensor)}
            raise ConfigError(
                f"the loaded state has {found}, but {method.title} with {d} parameters keeps "
                f"{', '.join(names) or 'nothing'}; load the state of the same method and model"
            )
        return cast(AnyState, method.State._make([self._local.x[None], *(kept[name] for name in names)]))

    def _rate(self) -> float:
        """The learning rate of now, which a scheduler may have changed."""
        rates = {float(group["lr"]) for group in self.param_groups}
        if len(rates) > 1:
            raise ConfigError(f"all parameter groups need one learning rate for all ranks, got {sorted(rates)}")
        (rate,), divides = rates, self._method.divides_by_eta
        if not rate >= 0 or (rate == 0 and divides):
            raise ConfigError(
                f"the learning rate must be {'above' if divides else 'at least'} 0 for {self._method.title}, got "
                f"{rate:g}; let the scheduler end above 0"
            )
        return rate

    def _method_at(self, t: int, rate: float, before: float) -> Algorithm:
        """The method for round t, with the learning rates of this round and of the one before."""
        if rate == before == self._method.step_size(0):
            return self._method
        return self._method.with_eta(lambda s: before if s < t else rate)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Within this the parameters (and `buffers`) are the averages over all ranks, which must all enter."""
        local, ranks = self._local, self._ranks
        own, statistics = local.x.clone(), local.read_buffers()
        local.load(ranks.total(own[None]) / ranks.size)
        if statistics is not None:
            local.write_buffers(ranks.total(statistics)[None] / ranks.size)
        try:
            yield
        finally:
            local.load(own)
            local.write_buffers(statistics)


def _check_agreement(ranks: ProcessGroup, local: "_Local", method: Algorithm, graph: Topology) -> None:
    """Ranks that average different things would hang, or fail far from the cause."""
    parts = {
        "number of parameters": str((local.d, local.dtype)),
        "method": re.sub(r" at 0x[0-9a-f]+", "", repr(method)),
        "topology": repr(graph.W().toarray().tolist() if not graph.varying else graph.name),
    }
    for what, text in parts.items():
        code = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
        if len(set(ranks.gather(torch.tensor([code]), [ranks.rank]).tolist())) > 1:
            raise ConfigError(
                f"the ranks do not have the same {what} (rank {ranks.rank}: {text[:200]}); build the same model, "
                f"method and graph on all of them, a random graph with one seed"
            )


class _Local(Problem):
    """The objective of this rank as an algorithm sees it: gradients are what the closure leaves in `.grad`."""

    def __init__(self, parameters: list[Tensor], buffers: list[Tensor], ranks: ProcessGroup, seed: int) -> None:
        kinds = {(p.dtype, p.device) for p in parameters}
        if len(kinds) != 1:
            raise ConfigError(f"all parameters must have one type and device, got {sorted(map(str, kinds))}")
        self.parameters, self._moving = parameters, [b for b in buffers if b.is_floating_point()]
        ((self.dtype, self.device),) = kinds
        if self.dtype not in (torch.float32, torch.float64):
            raise ConfigError(
                f"parameters must be float32 or float64 to be averaged, got {self.dtype}; train with autocast, which "
                f"keeps them in float32"
            )
        self.m, self.workers, self.seed = ranks.size, (ranks.rank,), seed
        self.d = sum(p.numel() for p in parameters)
        self.mixes_buffers = bool(self._moving)
        self.buffers = self.read_buffers()

    @property
    def x(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.parameters])

    def load(self, x: Tensor) -> None:
        """Write one vector into the parameters."""
        for p, part in zip(self.parameters, torch.split(x, [p.numel() for p in self.parameters]), strict=True):
            p.detach().copy_(part.view_as(p))

    def begin(self, closure: Closure, decay: list[float]) -> None:
        self._closure, self._decay = closure, decay
        wanted = inspect.signature(closure).parameters.values()
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._named = any(p.default is p.empty and p.kind in kinds for p in wanted)
        self._used: set[tuple[int, int]] = set()
        self.first_loss: object = None
        self.buffers = self.read_buffers()

    def read_buffers(self) -> Tensor | None:
        """The module's buffers in one vector, `[1, …]`."""
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
        self.write_buffers(self.buffers)
        with torch.enable_grad():
            loss = self._closure(sample) if self._named else self._closure()
        self.first_loss = loss if self.first_loss is None else self.first_loss
        self.buffers = self.read_buffers()
        return torch.cat([_gradient(p, decay) for p, decay in zip(self.parameters, self._decay, strict=True)])[None]

    def write_buffers(self, values: Tensor | None) -> None:
        """Write one vector, `[1, …]`, into the module's buffers."""
        if values is not None:
            for b, part in zip(self._moving, torch.split(values[0], [b.numel() for b in self._moving]), strict=True):
                b.copy_(part.view_as(b))

    def full_grad(self, x: Tensor) -> Tensor:
        raise ConfigError("this method passes over all of a worker's data, which a closure cannot; use netfleet run")

    def start(self) -> Tensor:
        return self.x

    def at(self, workers: Sequence[int]) -> Problem:
        return self

    def objective(self, x: Tensor) -> tuple[Tensor, Tensor]:
        raise ConfigError("a closure has no exact objective")

    def evaluate(self, x: Tensor, **options: object) -> Scores:
        raise ConfigError("a closure has no held-out data")


def _gradient(p: Tensor, decay: float) -> Tensor:
    if p.grad is None:  # unused: neither trained nor decayed, as elsewhere in torch.optim
        return torch.zeros_like(p).flatten()
    g = p.grad.to_dense() if p.grad.is_sparse else p.grad
    return (g.add(p, alpha=decay) if decay else g).flatten()


def __getattr__(name: str) -> type[Decentralized]:
    """`netfleet.optim.NetFleet`, `.KGT`, …: a class for each registered method, by its own class's name."""
    if name in _classes():
        return _front(_classes()[name])
    raise AttributeError(f"netfleet.optim has no {name!r}; there are Decentralized and {', '.join(__dir__())}")


def __dir__() -> list[str]:
    return sorted(_classes())


def _classes() -> dict[str, type[Algorithm]]:
    return {known.__name__: cast(type[Algorithm], known) for known in map(ALGORITHMS.__getitem__, ALGORITHMS)}


def _front(known: type[Algorithm]) -> type[Decentralized]:
    outer = inspect.signature(Decentralized.__init__).parameters

    def init(self: Decentralized, params: ParamsT, lr: float = 0.01, **options: Any) -> None:
        own = {name: options.pop(name) for name in list(options) if name not in outer}
        Decentralized.__init__(self, params, known(eta=float(lr), **own), **options)

    return type(known.__name__, (Decentralized,), {"__init__": init, "__doc__": known.__doc__})
