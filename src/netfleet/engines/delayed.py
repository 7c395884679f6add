"""Exchanges that depend on earlier ones, in the simulator: delayed messages, and counters that repair lost ones."""

import torch
from torch import Tensor

from netfleet.topology.faults import Links, Unreliable


class DelayedMixing:
    """Mixes the vectors of all workers, `[m, d]`, over a network whose exchanges depend on earlier ones.

    `memory` holds what later exchanges need, by the name of the vector.
    """

    def __init__(self, network: Unreliable) -> None:
        self.network = network
        self.memory: dict[str, Tensor] = {}

    def mix(self, t: int, name: str, v: Tensor) -> Tensor:
        """One exchange of round t; `name` says which vector of the round v is."""
        links = self.network.links(t)
        if self.network.faults.rule == "counters":
            return self._with_counters(links, name, v)
        return self._with_delays(links, name, v)

    def _with_delays(self, links: Links, name: str, v: Tensor) -> Tensor:
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

    def _with_counters(self, links: Links, name: str, v: Tensor) -> Tensor:
        """The sums grow with the rounds while their differences do not, so both are kept in float64."""
        i, j = (torch.from_numpy(ends).to(v.device) for ends in (links.i, links.j))
        new = v.double()
        sums = self.memory.get(f"{name}/sums", torch.zeros_like(new)) + new
        gap = sums[j] - sums[i]  # [links, d]: what each link should have brought by now
        brought = self.memory.get(f"{name}/taken", torch.zeros_like(gap))
        heard, apart = (torch.from_numpy(mask)[:, None].to(v.device) for mask in (links.heard, links.apart))
        now = torch.where(heard, gap, brought)
        # what two workers would have exchanged while one was away is never made up for
        self.memory |= {f"{name}/sums": sums, f"{name}/taken": torch.where(apart, brought + new[j] - new[i], now)}
        return new.index_add(0, i, (now - brought).mul_(_column(links.w, new))).to(v.dtype)


def _column(values: object, like: Tensor) -> Tensor:
    return torch.as_tensor(values)[:, None].to(like.device, like.dtype)
