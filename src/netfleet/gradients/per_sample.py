"""Gradients of single samples by PyTorch, and whether a model has them at all."""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from netfleet.data.tensors import Tensors, leaves, mapped, take
from netfleet.gradients.replica import Loss, Replica, generator_states, have_moved, kept_generator, outputs_of

#: Bytes that the gradients of the samples of one `vmap` have at most, and how many samples it takes at most.
_MOST_BYTES, _MOST_SAMPLES = 1 << 25, 64
PerSample = Callable[[Replica, Tensor, Tensors, Tensors], list[Tensor]]


def by_vmap(replica: Replica, x: Tensor, inputs: Tensors, targets: Tensors) -> list[Tensor]:
    """∇ℓⱼ(x) of every sample j of a batch, for each parameter `[batch, …]`."""
    model, names = replica.model, replica.names

    def objective(views: list[Tensor], inputs: Tensors, targets: Tensors) -> Tensor:
        parameters = dict(zip(names, views, strict=True))
        return replica.loss(outputs_of(model, mapped(_alone, inputs), parameters), mapped(_alone, targets)).sum()

    found = torch.func.vmap(torch.func.grad(objective), in_dims=(None, 0, 0), randomness="different")
    made: list[Tensor] = found(replica.layout.views(x), inputs, targets)
    return made


def one_by_one(replica: Replica, x: Tensor, inputs: Tensors, targets: Tensors) -> list[Tensor]:
    """The same for a batch of one sample, by autograd."""
    replica.load(x)
    return [gradient[None] for gradient in replica.gradient(inputs, targets)[1]]


def choose(replica: Replica, inputs: Tensors, targets: Tensors) -> tuple[PerSample, int]:
    """How the model's samples are differentiated, and how many at a time; `inputs` are some for a trial.

    `vmap` cannot follow every forward pass, and has no rule of its own for every operation. What it cannot do goes
    sample by sample.
    """
    x = torch.cat([parameter.detach().reshape(-1) for parameter in replica.parameters])
    try:
        with kept_generator(x.device), plain_attention(), warnings.catch_warnings():
            warnings.filterwarnings("error", message="There is a performance drop")
            by_vmap(replica, x, inputs, targets)
    except Exception:  # whatever a forward pass does
        return one_by_one, 1
    return by_vmap, max(min(_MOST_BYTES // (x.numel() * x.element_size()), _MOST_SAMPLES), 1)


def plain_attention() -> AbstractContextManager[None]:
    """Attention by matrix products: `vmap` has no rule for the faster ways. It holds for all threads."""
    context: AbstractContextManager[None] = sdpa_kernel(SDPBackend.MATH)
    return context


def add_clipped(gradients: list[Tensor], clip: float, out: list[Tensor]) -> None:
    """Add Σⱼ min(1, clip / ‖gⱼ‖) gⱼ to `out`, of gradients `[batch, …]` of each parameter.

    A gradient of norm 0 stays as it is. One that is not finite makes the sum NaN, because clipping would hide it.
    """
    rows = [gradient.reshape(len(gradient), -1) for gradient in gradients]
    norms = torch.stack([torch.linalg.vector_norm(part, dim=1) for part in rows]).norm(dim=0)
    factors = torch.where(norms.isfinite(), (clip / norms).clamp(max=1), torch.nan)
    for part, view in zip(rows, out, strict=True):
        view += (factors @ part).view(view.shape)  # not into it: the BLAS library's order depends on its address


def mixes_samples(model: nn.Module, moving: frozenset[str] = frozenset()) -> str | None:
    """The name of the first module that computes with several samples together, if there is one.

    That is BatchNorm of any kind, and what has running statistics; `moving` names those buffers (`Probe.moving`).
    """
    owners = {name.rpartition(".")[0] for name in moving}
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) or name in owners:
            return name or type(module).__name__
    return None


def depends_on_others(model: nn.Module, loss: Loss, inputs: Tensors, targets: Tensors) -> bool:
    """Whether the gradient of a sample changes with the other samples of its batch, which must have at least two.

    This finds layers that mix samples in a way of their own, and losses that do. Each of the first two samples is
    tried in the batch, in a batch of copies of itself, and alone. A model with dropout is not tried alone: it
    draws its random numbers for the whole batch.
    """
    replica, (first, *_) = Replica(model, loss, frozenset()), leaves(inputs)
    device, count, generator = first.device, len(first), torch.Generator().manual_seed(0)
    replica.model.train()
    for parameter in replica.parameters:  # away from a start at zero, where a layer may be without effect
        parameter.data += 0.01 * torch.randn(parameter.shape, generator=generator).to(parameter)

    def gradient(rows: list[int], at: int) -> tuple[Tensor, bool]:
        chosen = torch.tensor(rows, device=device)
        with kept_generator(device):
            torch.manual_seed(0)
            before = generator_states(device)
            losses = loss(outputs_of(replica.model, take(inputs, chosen)), take(targets, chosen))
            random = have_moved(before, device)
            made = torch.autograd.grad(losses[at], replica.parameters, materialize_grads=True)
        return torch.cat([part.reshape(-1) for part in made]), random

    for j in range(2):
        expected, random = gradient(list(range(count)), j)
        others = [gradient([j] * count, j)[0]] + ([] if random else [gradient([j], 0)[0]])
        bound = torch.finfo(expected.dtype).eps ** 0.5 * (1e-6 + expected.norm())
        if not all((other - expected).norm() <= bound for other in others):
            return True
    return False


def _alone(tensor: Tensor) -> Tensor:
    return tensor[None]
