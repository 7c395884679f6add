"""Exchanges that depend on earlier ones, in the simulator: late messages, and sums that make up for lost ones."""

from __future__ import annotations

import torch
from torch import Tensor

from netfleet.topology.faults import Links, Unreliable


class DelayedMixing:
    """What a network with a memory does to the vectors of all workers, `[m, d]`; its memory is kept by name."""

    def __init__(self, network: Unreliable) -> None:
        self.network = network
        self.memory: dict[str, Tensor] = {}

    def carry(self, t: int, name: str, v: Tensor) -> Tensor:
        """One exchange of round t; `name` says which of its kind."""
        links = self.network.links(t)
        if self.network.faults.rule == "counters":
            return self._counted(links, name, v)
        return self._late(links, name, v)

    def _late(self, links: Links, name: str, v: Tensor) -> Tensor:
        before = torch.split(self.memory[name], v.shape[1], dim=1) if name in self.memory else ()
        past = [v, *before]  # the newest first
        both = self.network.faults.rule == "drop"
        out = v.clone() if both else v * _column(links.kept, v)
        for rounds, then in enumerate(past):
            chosen = links.heard & (links.delay == rounds)
            i, j = (torch.from_numpy(ends[chosen]).to(v.device) for ends in (links.i, links.j))
            flow = then[j] - then[i] if both else then[j]
            out.index_add_(0, i, flow.mul_(_column(links.w[chosen], v)))
        self.memory[name] = torch.cat(past[: self.network.faults.delay], dim=1)
        return out

    def _counted(self, links: Links, name: str, v: Tensor) -> Tensor:
        """Sums grow with the rounds while what is read off them does not, so they are kept in float64."""
        i, j = (torch.from_numpy(ends).to(v.device) for ends in (links.i, links.j))
        new = v.double()
        sums = self.memory.get(f"{name}/sums", torch.zeros_like(new)) + new
        gap = sums[j] - sums[i]  # [links, d]: all that should have come over each link by now
        taken = self.memory.get(f"{name}/taken", torch.zeros_like(gap))
        heard, apart = (torch.from_numpy(mask)[:, None].to(v.device) for mask in (links.heard, links.apart))
        now = torch.where(heard, gap, taken)
        # while one of the two is away nothing flows between them, now or later
        self.memory |= {f"{name}/sums": sums, f"{name}/taken": torch.where(apart, taken + new[j] - new[i], now)}
        return new.index_add(0, i, (now - taken).mul_(_column(links.w, new))).to(v.dtype)


def _column(values: object, like: Tensor) -> Tensor:
    return torch.as_tensor(values)[:, None].to(like.device, like.dtype)
