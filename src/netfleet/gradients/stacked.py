"""The path for accelerators and for linear models of unusual kind: all workers in one `vmap`."""

import torch
from torch import Tensor

from netfleet.compute.threads import ThreadPool, one_intra_op_thread
from netfleet.data.tensors import Tensors, only
from netfleet.gradients.looped import Looped
from netfleet.gradients.paths import PathInputs, Sample
from netfleet.gradients.replica import Layout


class Stacked(Looped):
    """Gradients of all workers at once; sums and scores as `Looped`."""

    name = "stacked"

    def __init__(self, inputs: PathInputs, pool: ThreadPool) -> None:
        super().__init__(inputs, pool)
        model, loss = inputs.model, inputs.loss
        names = [name for name, p in model.named_parameters() if p.requires_grad]
        layout = Layout([p for p in model.parameters() if p.requires_grad])

        def objective(x: Tensor, inputs: Tensor, targets: Tensors) -> Tensor:
            parameters = dict(zip(names, layout.views(x), strict=True))
            return loss(torch.func.functional_call(model, parameters, (inputs,)), targets).mean()

        self._gradients = torch.func.vmap(torch.func.grad(objective))

    def gradients(self, x: Tensor, sample: Sample, buffers: Tensor | None) -> Tensor:
        assert sample.rows is not None
        rows = sample.rows.to(self.device, non_blocking=True)
        with one_intra_op_thread():
            out: Tensor = self._gradients(x, only(self._train.inputs(rows)), self._train.targets(rows))
        return out
