"""Parameter groups: the rate of each, and the options of the local optimizer that differ between them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from netfleet.algorithms import Algorithm
from netfleet.algorithms.local import LocalOptimizer
from netfleet.errors import ConfigError
from netfleet.problems.base import ParameterGroup

Groups = Sequence[Mapping[str, Any]]


def learning_rates(groups: Groups) -> list[float]:
    return [float(group["lr"]) for group in groups]


def parameters_of(groups: Groups) -> list[Tensor]:
    return [p for group in groups for p in group["params"]]


def rates_of(
    groups: Groups, method: Algorithm, local: LocalOptimizer | None
) -> tuple[float, tuple[ParameterGroup, ...]]:
    """η as a scheduler has set it, and the groups if they differ in more than their parameters."""
    rates = learning_rates(groups)
    _check_rates(rates, method, local)
    eta = max(rates)
    names = () if local is None else tuple(local.options)
    options = [{name: group[name] for name in names if name in group} for group in groups]
    plain = {} if local is None else dict(local.options)
    if all(rate == eta for rate in rates) and all(own == plain for own in options):
        return eta, ()
    places, found = 0, []
    for group, rate, own in zip(groups, rates, options, strict=True):
        trained = sum(p.requires_grad for p in group["params"])
        numbers = tuple(range(places, places + trained))
        places += trained
        found.append(ParameterGroup(numbers, rate / eta if eta else 1.0, own))
    return eta, tuple(found)


def _check_rates(rates: Sequence[float], method: Algorithm, local: LocalOptimizer | None) -> None:
    divides = method.divides_by_eta
    if len(set(rates)) > 1 and local is None and not method.uses_step:
        raise ConfigError(
            f"{method.title} has a momentum of its own and one learning rate, got {sorted(set(rates))}; use KGT or "
            f"NetFleet with several rates"
        )
    if divides and len(set(rates)) > 1:
        raise ConfigError(
            f"{method.title} learns from how far the models move, and needs one learning rate for all parameter "
            f"groups, got {sorted(set(rates))}; use KGT or NetFleet with several rates"
        )
    for rate in rates:
        if not rate >= 0 or (rate == 0 and divides):
            raise ConfigError(
                f"the learning rate must be {'above' if divides else 'at least'} 0 for {method.title}, got {rate:g}; "
                f"let the scheduler end above 0"
            )


def with_decay(local: LocalOptimizer, weight_decay: float | None) -> LocalOptimizer:
    """The local optimizer with this weight decay, if one is given."""
    if weight_decay is None:
        return local
    if "weight_decay" not in local.options:
        raise ConfigError(
            f"weight_decay = {weight_decay:g} was given, but {local.name} has none; leave it out, or add the decay to "
            f"the loss"
        )
    return replace(local, options={**local.options, "weight_decay": weight_decay})
