"""What each process of tests/engines/test_distributed.py runs: every method on 1, 2 and 4 ranks of one job."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import networkx as nx
import torch
import torch.distributed as dist

from netfleet import Algorithm, ConfigError, Problem, make_topology
from netfleet.algorithms import ALGORITHMS
from netfleet.algorithms.build import make_algorithm
from netfleet.engines.distributed import ProcessGroup, run_distributed
from netfleet.engines.job import Job, Recorder
from netfleet.engines.ranks import joined
from netfleet.optim import Decentralized
from netfleet.privacy.link_noise import LinkNoise, simulated_links
from netfleet.problems.synthetic import Quadratics
from netfleet.runs.build import network_for
from netfleet.topology.faults import Faults
from support.problems import Memory, digits_problem, methods

ROUNDS = 4
#: Six workers are placed on so many ranks: all on one, three on each, and one or two.
SIZES = (1, 2, 4)
#: The rounds after which states are compared.
AT = (1, ROUNDS)
KINDS = ("erdos-renyi", "one-peer-exponential", "random-matching")
#: Methods that use a problem in different ways: mini-batches, one of them twice, all data, and with a server.
ON_DIGITS = ("net-fleet", "dfedsam", "svrg", "scaffold")


#: The case that has noise on its links.
LINK_NOISE = "link noise"


def job_of(name: str, recorder: Recorder) -> Job:
    """The job of a case."""
    problem, method, network = cases()[name]
    noise = LinkNoise(0.5, ROUNDS, simulated_links(0)) if name == LINK_NOISE else None
    return Job(problem, network, method, ROUNDS, recorder, threads=1, noise=noise)


@functools.cache
def cases() -> dict[str, tuple[Problem, Algorithm, Any]]:
    """What is compared, by name: problem, method and network."""
    noisy = Quadratics(6, d=4, sigma=0.5, seed=2, dtype=torch.float64)
    graphs = {kind: make_topology(kind, workers=6, seed=3) for kind in KINDS}
    ring = make_topology("ring", workers=6)
    digits = {model: digits_problem(6, model) for model in ("mlp", "cnn")}
    found: dict[str, tuple[Problem, Algorithm, Any]] = {}
    for param in methods():
        (method,) = param.values
        for kind in KINDS if param.id in ("net-fleet", "gt-sgd") else KINDS[:1]:
            found[f"{param.id}, {kind}"] = noisy, method, network_for(method, graphs[kind], 0)
        if param.id in ON_DIGITS:
            found[f"{param.id}, digits"] = digits["mlp"], method, network_for(method, ring, 0)
    graph = graphs["erdos-renyi"]
    net_fleet = make_algorithm({"kind": "net-fleet", "K": 3, "eta": 0.05})
    packed = make_algorithm({"kind": "net-fleet", "K": 3, "eta": 0.05, "compress": {"kind": "quantize", "bits": 8}})
    partial = make_algorithm({"kind": "scaffold", "K": 3, "eta": 0.05, "participation": 0.5})
    found["compressed"] = noisy, packed, network_for(packed, graph, 0)
    for name in ("local", "outer"):
        spec = {"kind": "k-gt", "K": 3, "eta": 0.05, name: {"local": "adamw", "outer": "nesterov"}[name]}
        found[name] = noisy, make_algorithm(spec), network_for(make_algorithm(spec), graph, 0)
    own = make_algorithm({"kind": "fedavg", "K": 3, "eta": 0.05, "participation": 0.5, "local": "adafactor"})
    found["partial, local"] = noisy, own, network_for(own, graph, 0)
    found["partial"] = noisy, partial, network_for(partial, graph, 0)
    found["lossy"] = noisy, net_fleet, network_for(net_fleet, graph, 0, Faults(loss=0.3, absent=0.2))
    found["weights"] = noisy.weighted([1, 2, 3, 4, 1, 1]), net_fleet, network_for(net_fleet, graph, 0)
    found[LINK_NOISE] = noisy, net_fleet, network_for(net_fleet, make_topology("ring", workers=6), 0)
    found["cnn, digits"] = digits["cnn"], net_fleet, network_for(net_fleet, graph, 0)
    return found


@functools.cache
def optimizers() -> dict[str, tuple[Problem, Algorithm, Any]]:
    """Methods as optimizers of a training loop, a worker on each rank."""
    noisy = Quadratics(4, d=4, sigma=0.5, seed=2, dtype=torch.float64)
    made = {param.id: param.values[0] for param in methods() if param.id not in ("svrg", "spider")}
    made["compressed"] = make_algorithm({"kind": "net-fleet", "K": 3, "eta": 0.05, "compress": {"kind": "quantize"}})
    topology = make_topology("ring", workers=4)
    return {name: (noisy, method, network_for(method, topology, 0)) for name, method in made.items()}


@functools.cache
def scheduled() -> dict[str, tuple[Problem, Algorithm, Any]]:
    """Methods under each of torch's schedulers, named after it; the method has the same step sizes as a schedule."""
    problem = Quadratics(4, d=4, seed=2, dtype=torch.float64)
    topology = make_topology("ring", workers=4)
    schedules: dict[str, dict[str, Any]] = {
        "StepLR": {"kind": "step", "start": 0.05, "every": 2, "factor": 0.3},
        "CosineAnnealingLR": {"kind": "cosine", "start": 0.05, "rounds": ROUNDS, "end": 0.01},
    }
    made: dict[str, tuple[Problem, Algorithm, Any]] = {}
    for scheduler, eta in schedules.items():
        for kind in (kind for kind in ALGORITHMS if kind not in ("svrg", "spider")):
            method = make_algorithm({"kind": kind, "eta": eta, **({"K": 3} if hasattr(ALGORITHMS[kind], "K") else {})})
            made[f"{kind}, {scheduler}"] = problem, method, network_for(method, topology, 0)
        for local in ("adamw", "nesterov"):
            method = make_algorithm({"kind": "k-gt", "eta": eta, "K": 3, "local": local})
            made[f"k-gt with {local}, {scheduler}"] = problem, method, network_for(method, topology, 0)
    return made


def scheduler_for(name: str, optimizer: Decentralized) -> Any:
    """The scheduler of a case of `scheduled`; none for the others."""
    if name.endswith("StepLR"):
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.3)
    if name.endswith("CosineAnnealingLR"):
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=ROUNDS, eta_min=0.01)
    return None


def own_loop(name: str, problem: Problem, method: Algorithm) -> list[torch.Tensor]:
    """This rank's models after each round of a plain loop; halfway all is saved and loaded into new objects."""
    f = problem.at([dist.get_rank()])
    if name in scheduled():
        method = method.with_eta(method.step_size(0))

    def build(values: torch.Tensor, saved: Any = None) -> tuple[torch.nn.Parameter, Decentralized]:
        """As programs do: the model with its parameters, its optimizer, the optimizer's state."""
        x = torch.nn.Parameter(values)
        optimizer = Decentralized([x], method, topology="ring", seed=problem.seed)
        if saved is not None:
            optimizer.load_state_dict(saved)
        return x, optimizer

    x, optimizer = build(torch.full((f.d,), float(dist.get_rank()), dtype=f.dtype))  # rank 0's, zeros, is everyone's

    def closure(sample: Any) -> torch.Tensor:
        optimizer.zero_grad()
        x.grad = f.grad(x.detach()[None], f.sample(sample.t, sample.k))[0]
        return (x.detach() ** 2).sum()

    class Loss(torch.nn.Module):
        """Such that a backward pass leaves this rank's next gradient."""

        def __init__(self) -> None:
            super().__init__()
            self.x = x

        def forward(self) -> torch.Tensor:
            return (self.x * f.grad(x.detach()[None], f.sample(*optimizer._training.wanted[:2]))[0]).sum()

    def ordinary_round() -> None:
        """A round of an ordinary loop."""
        t = optimizer.round
        while optimizer.round == t:
            Loss()().backward()
            optimizer.step()
            optimizer.zero_grad()

    models, scheduler = [], scheduler_for(name, optimizer)
    for t in range(ROUNDS):
        if name.startswith("dfedsam") or t % 2:
            optimizer.step(closure)  # both forms in turn
        else:
            ordinary_round()
        models.append(x.detach().clone())
        if scheduler is not None:
            scheduler.step()
        elif t == 1:
            x, optimizer = build(x.detach().clone(), optimizer.state_dict())
    return models


def statistics(kind: str) -> tuple[float, float]:
    """This rank's running mean after some rounds in which it only saw inputs around ten times its rank; and x̄'s."""
    norm = torch.nn.BatchNorm1d(1).double()
    inputs = torch.tensor([[-1.0], [1.0]], dtype=torch.float64) + 10 * dist.get_rank()
    local = {} if kind == "dsgd" else {"K": 1}
    optimizer = Decentralized(
        norm.parameters(), {"kind": kind, "eta": 0.01, **local}, topology="complete", buffers=norm.buffers()
    )

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = norm(inputs).square().sum()
        loss.backward()
        return loss.detach()

    for _ in range(10):
        optimizer.step(closure)
    with optimizer.averaged():
        mean = float(norm.running_mean)
    return float(norm.running_mean), mean


def disagreements() -> dict[str, str]:
    """What an optimizer says when ranks were given different things."""
    rank, said = dist.get_rank(), {}
    for name, size, lr, edges in (("size", 2 + rank, 0.1, 0), ("method", 2, 0.1 + rank, 0), ("graph", 2, 0.1, rank)):
        graph = nx.complete_graph(4) if edges else nx.cycle_graph(4)
        try:
            Decentralized([torch.nn.Parameter(torch.zeros(size))], {"kind": "dsgd", "eta": lr}, topology=graph)
        except ConfigError as error:
            said[name] = str(error)
    return said


def compute(out: Path, rank: int) -> None:
    """What the tests compare: statistics, refusals, optimizers, and every case on each number of ranks."""
    found = {kind: statistics(kind) for kind in ("dsgd", "net-fleet", "ld-sgd")}
    torch.save({"means": found, "said": disagreements()}, out / f"checks-{rank}.pt")
    loops = optimizers() | scheduled()
    models = {name: own_loop(name, problem, method) for name, (problem, method, _) in loops.items()}
    torch.save(models, out / f"optimizer-{rank}.pt")
    groups = {n: dist.new_group(list(range(n))) for n in SIZES}
    for n, group in groups.items():
        if rank >= n:
            continue
        ranks, results = ProcessGroup(group), {}
        for name in cases():
            memory = Memory(rounds=AT)
            run_distributed(job_of(name, memory), ranks=ranks)
            results[name] = [(s.t, tuple(s.state), s.bytes, s.samples) for s in memory.snapshots]
        if ranks.keeps_record:
            torch.save(results, out / f"{n}.pt")


def main(out: Path) -> None:
    with joined():
        compute(out, dist.get_rank())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
