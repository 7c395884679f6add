"""What a site of NVFlare runs: see nvflare_dgd.py."""

import os
from pathlib import Path
from typing import Any

import torch
import work as works
from nvflare.apis.dxo import from_shareable
from nvflare.apis.event_type import EventType
from nvflare.app_opt.p2p.executors.sync_executor import SyncAlgorithmExecutor


class Gossip(SyncAlgorithmExecutor):  # type: ignore[misc]
    """Exchange, average with the neighbours, and make K steps."""

    def run_algorithm(self, fl_ctx: Any, shareable: Any, abort_signal: Any) -> None:
        folder, i = Path(os.environ["NETFLEET_WORK"]), self.id - 1
        work = works.load(folder)
        torch.set_num_threads(1)
        model = works.network(work)
        for t in range(from_shareable(shareable).data["iterations"]):
            if abort_signal.triggered:
                return
            with torch.no_grad():
                self._exchange_values(fl_ctx, value=model.parameters(), iteration=t)
                received = self.neighbors_values.pop(t)
                for k, parameter in enumerate(model.parameters()):
                    parameter.mul_(self._weight)
                    for neighbour in self.neighbors:
                        parameter.add_(received[neighbour.id][k], alpha=neighbour.weight)
            works.local_steps(work, i, model)
            works.done(i, t + 1, folder)

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.END_RUN:
            works.ended(self.id - 1, Path(os.environ["NETFLEET_WORK"]))

    def _to_message(self, x: Any) -> Any:
        return [parameter.detach().numpy() for parameter in x]

    def _from_message(self, x: Any) -> Any:
        return [torch.from_numpy(values) for values in x]
