"""What each process of tests/optim/test_ranks.py runs: loops of users on four ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from netfleet import NetfleetError, optim
from netfleet.algorithms import ALGORITHMS
from netfleet.engines.distributed import ProcessGroup, RowExchange
from netfleet.engines.ranks import joined
from support.loops import batches, error, network, train

RANKS, STEPS = 4, 40  # enough for methods with a random number of steps in a round
METHODS = tuple(kind for kind in ALGORITHMS if kind not in ("svrg", "spider", "dfedsam"))
#: What this rank has sent, as bytes.
sent: list[torch.Tensor] = []


def said(act: Callable[[], object]) -> str:
    """The refusal of a call, with its kind."""
    try:
        act()
    except NetfleetError as refused:
        return f"{type(refused).__name__}: {refused}"
    return ""


def frozen_model(frozen: float, seed: int = 0) -> nn.Module:
    model = network(seed)
    nn.init.constant_(model[0].weight.requires_grad_(False), frozen)
    return model


def starts_together(rank: int, out: Path) -> Any:
    """The parameters right after the constructor, of models that differ."""
    model = network(seed=rank)
    optim.NetFleet(model.parameters(), K=2)
    return [p.detach().clone() for p in model.parameters()]


def different_frozen_weights(rank: int, out: Path) -> Any:
    """Those that the optimizer is given, and those of a model that it only keeps."""
    model = frozen_model(1.0 + (rank == 2))
    given = said(lambda: optim.NetFleet(model.parameters(), K=2))
    optimizer = optim.NetFleet([p for p in model.parameters() if p.requires_grad], K=2)
    optimizer.keep(model=model)
    return given, said(lambda: train(model, optimizer))


def bytes_of_adapters(rank: int, out: Path) -> Any:
    """The bytes that a round sends to each neighbour, and the numbers that are trained."""
    model = frozen_model(1.0)
    optimizer = optim.LDSGD(model.parameters(), lr=0.1, K=2)
    sent.clear()
    train(model, optimizer, count=2)
    return sum(v.numel() for v in sent), sum(p.numel() for p in model.parameters() if p.requires_grad)


def not_finite(kind: str, rank: int) -> tuple[str, bool]:
    """What each rank says to a gradient of rank 1 that is not finite, and whether it left that rank."""
    table = {"kind": kind, "eta": 0.1, **({"K": 2} if hasattr(ALGORITHMS[kind], "K") else {})}
    model = network()
    optimizer = optim.Decentralized(model.parameters(), table)
    sent.clear()

    def loop() -> None:
        for number, batch in enumerate(batches(STEPS)):
            error(model, batch).backward()
            if rank == 1 and number == 3:
                model[0].weight.grad[0, 0] = float("nan")  # type: ignore[union-attr, index]
            optimizer.step()
            optimizer.zero_grad()

    return said(loop), all(bool(torch.isfinite(v.view(torch.float64)).all()) for v in sent)


def not_finite_gradients(rank: int, out: Path) -> Any:
    return {kind: not_finite(kind, rank) for kind in METHODS}


def trained(make: Callable[[Any], Any], count: int = 5) -> tuple[nn.Module, Any]:
    model = network()
    optimizer = make(model.parameters())
    train(model, optimizer, count=count)
    return model, optimizer


def net_fleet(parameters: Any, K: int = 2, topology: str = "ring", lr: float = 0.1) -> Any:
    return optim.NetFleet(parameters, lr=lr, K=K, topology=topology)


def different_loads(rank: int, out: Path) -> Any:
    """What each rank says when states are loaded that do not belong together."""
    states = [trained(net_fleet, count)[1].state_dict() for count in (5, 7)]
    shared = [None] * RANKS
    dist.all_gather_object(shared, states[0])

    def load(state: Any, make: Callable[[Any], Any]) -> str:
        model = network()
        optimizer = make(model.parameters())
        return said(lambda: (optimizer.load_state_dict(state), train(model, optimizer, count=2)))

    half = dist.new_group([0, 1])
    return {
        "the same": load(states[0], net_fleet),
        "round": load(states[int(rank == 3)], net_fleet),
        "K": load(states[0], lambda p: net_fleet(p, K=3)),
        "method": load(states[0], lambda p: optim.GTSGD(p, lr=0.1)),
        "graph": load(states[0], lambda p: net_fleet(p, topology="complete")),
        "rank 0's": load(shared[0], net_fleet),
        "number of ranks": load(states[0], lambda p: optim.NetFleet(p, lr=0.1, K=2, group=half)) if rank < 2 else "",
    }


def different_points(rank: int, out: Path) -> Any:
    """What each rank says when rank 2 makes more steps than the others do before they all do something."""

    def ends(act: Callable[[Any], object]) -> str:
        model = network()
        optimizer = net_fleet(model.parameters())
        return said(lambda: (train(model, optimizer, count=7 if rank == 2 else 5), act(optimizer)))

    def average(optimizer: Any) -> None:
        with optimizer.averaged():
            pass

    return {
        "averaged()": ends(average),
        "save()": ends(lambda optimizer: optimizer.save(out / "never")),
        "load()": ends(lambda optimizer: optimizer.load(out / "never")),
        "start": ends(lambda optimizer: net_fleet(network().parameters())),
    }


def different_rates(rank: int, out: Path) -> Any:
    """What each rank says when one steps its scheduler more often, or changes the rate of one group."""

    def ends(groups: Callable[[nn.Module], Any], change: Callable[[Any, Any], object]) -> str:
        model = network()
        optimizer = net_fleet(groups(model))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        return said(lambda: train(model, optimizer, lambda: change(optimizer, scheduler)))

    def twice(optimizer: Any, scheduler: Any) -> None:
        for _ in range(1 + (rank == 3)):
            scheduler.step()

    def one_group(optimizer: Any, scheduler: Any) -> None:
        optimizer.param_groups[1]["lr"] = 0.05 + 0.01 * (rank == 3)

    return {
        "twice": ends(lambda model: model.parameters(), twice),
        "one group": ends(lambda model: [{"params": model[i].parameters()} for i in (0, 2)], one_group),
        "the same": ends(lambda model: model.parameters(), lambda _, scheduler: scheduler.step()),
    }


def loop_with_all(group: Any = None, folder: Path | None = None) -> tuple[nn.Module, Any, Any, Any]:
    model = network()
    optimizer = optim.LED(model.parameters(), lr=0.1, K=2, group=group)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.7)
    loader = torch.utils.data.DataLoader(range(10), batch_size=2, shuffle=True)
    drawn = optim.Batches(loader, optimizer)
    optimizer.keep(scheduler=scheduler, model=model)
    if folder is not None:
        optimizer.load(folder)
    return model, optimizer, scheduler, drawn


def run_on(loop: tuple[nn.Module, Any, Any, Any], steps: int) -> list[torch.Tensor]:
    model, optimizer, scheduler, drawn = loop
    for _ in range(steps):
        numbers = next(drawn).double()
        model(torch.stack([numbers, numbers + dist.get_rank(), -numbers], dim=1) / 10).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return [p.detach().clone() for p in model.parameters()]


def saved_and_loaded(rank: int, out: Path) -> Any:
    """The models of a run and of one that was saved and loaded; then on half the ranks."""
    torch.manual_seed(rank)
    whole = loop_with_all()
    run_on(whole, 6)
    whole[1].save(out / "saved")
    expected = run_on(whole, 6)
    torch.manual_seed(rank + 100)
    resumed = run_on(loop_with_all(folder=out / "saved"), 6)
    half, fewer = dist.new_group([0, 1]), None
    if rank < 2:
        smaller = loop_with_all(half, out / "saved")
        fewer = (
            smaller[1].round,
            smaller[1].param_groups[0]["lr"],
            [p.detach().clone() for p in smaller[0].parameters()],
        )
        run_on(smaller, 4)
        assert smaller[1].round == fewer[0] + 2
    return expected, resumed, fewer


def damaged_folders(rank: int, out: Path) -> Any:
    """What each rank says to folders that it cannot load."""
    optimizer = trained(net_fleet)[1]
    optimizer.save(out / "damaged")
    other = trained(lambda p: optim.KGT(p, lr=0.1, K=2), 4)[1]
    found = {
        "nothing there": said(lambda: optimizer.load(out / "nothing")),
        "foreign": said(lambda: other.load(out / "damaged")),
    }
    dist.barrier()
    if rank == 0:
        for path in (out / "damaged").glob("*.safetensors"):
            path.write_bytes(path.read_bytes()[:-8] + b"damaged!")
    dist.barrier()
    found["damaged"] = said(lambda: optimizer.load(out / "damaged"))
    return found


CASES: tuple[Callable[[int, Path], Any], ...] = (
    starts_together,
    different_frozen_weights,
    bytes_of_adapters,
    not_finite_gradients,
    different_loads,
    different_points,
    different_rates,
    saved_and_loaded,
    damaged_folders,
)


def watch_messages() -> None:
    """Remember the bytes of every message that this rank sends, and what it adds to sums."""
    exchange, total = RowExchange.__call__, ProcessGroup.total

    def watched(self: RowExchange, tag: Any, need: Any, stack: Any, content: Any = None) -> None:
        routes = [route.sends for route in self.routes(max(tag.t, 0), need) if route.sends.count]
        sent.extend(sends.take(stack, None).clone().view(torch.uint8) for sends in routes)
        exchange(self, tag, need, stack, content)

    def added(self: ProcessGroup, rows: torch.Tensor) -> torch.Tensor:
        if rows.is_floating_point():
            sent.append(rows.clone().view(torch.uint8))
        return total(self, rows)

    RowExchange.__call__, ProcessGroup.total = watched, added  # type: ignore[method-assign]


def main(out: Path) -> None:
    with joined():
        watch_messages()
        for case in CASES:
            torch.save(case(dist.get_rank(), out), out / f"{case.__name__}-{dist.get_rank()}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
