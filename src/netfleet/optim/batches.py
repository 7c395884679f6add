"""Endless mini-batches of a data loader that can resume in the middle of an epoch."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor

from netfleet.errors import ConfigError

if TYPE_CHECKING:
    from netfleet.optim.optimizer import Decentralized

Batch = TypeVar("Batch")


class Batches(Generic[Batch]):
    """The batches of a loader, epoch after epoch, for `steps` local steps in all (None: endless, or as planned).

    With `optimizer` it lets the next round begin before a batch is drawn, and is part of what the optimizer saves: a
    resumed loop continues with the batch that would have been next. For that it saves the state of the random numbers
    (torch's, and the loader's own generators) now and at the beginning of the epoch, and skips the batches that were
    used. A loader must not draw from others, such as numpy's. A sampler with `set_epoch` is told the epoch.
    """

    def __init__(
        self, loader: Iterable[Batch], optimizer: "Decentralized | None" = None, *, steps: int | None = None
    ) -> None:
        if steps is not None and steps < 1:
            raise ConfigError(f"steps, the number of batches, must be 1 or more, got {steps!r}")
        self._loader, self._optimizer, self.steps = loader, optimizer, steps
        self.drawn = self.epoch = self._position = 0
        samplers: list[Any] = [getattr(loader, name, None) for name in ("sampler", "batch_sampler")]
        own = [getattr(each, "generator", None) for each in (loader, *samplers)]
        self._generators = list({id(each): each for each in own if isinstance(each, torch.Generator)}.values())
        self._told = [each for each in samplers if hasattr(each, "set_epoch")]
        self._random = self._random_state()  # at the beginning of the epoch
        self._batches: Iterator[Batch] | None = None
        self._resumed: list[Tensor] | None = None  # random numbers to continue with
        if optimizer is not None:
            optimizer.keep(batches=self)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self.steps is not None and self.drawn >= self.steps:
            raise StopIteration
        if self._optimizer is not None:
            self._optimizer.begin_round()
            if self._optimizer.finished:
                raise StopIteration
        if self._resumed is not None:  # by a load before, or by a site that has resumed just now
            self._set_random_state(self._resumed)
            self._resumed = None
        batch = self._draw()
        self._position += 1
        self.drawn += 1
        return batch

    def _draw(self) -> Batch:
        if self._batches is None:
            self._begin_epoch()
        assert self._batches is not None
        for batch in self._batches:
            return batch
        if not self._position:
            raise ConfigError("the data loader has no batch; give it a batch_size that its data fill")
        self.epoch, self._position = self.epoch + 1, 0
        self._begin_epoch()
        return self._draw()

    def _begin_epoch(self) -> None:
        for sampler in self._told:
            sampler.set_epoch(self.epoch)
        self._random = self._random_state()
        self._batches = iter(self._loader)

    def state_dict(self) -> dict[str, Any]:
        return {
            "drawn": self.drawn,
            "epoch": self.epoch,
            "position": self._position,
            "random": self._random if self._batches is not None else None,
            "random now": self._random_state() if self._resumed is None else self._resumed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.drawn, self.epoch, self._position, self._batches = state["drawn"], state["epoch"], 0, None
        self._resumed = state["random now"]
        if state["random"] is not None:
            self._set_random_state(state["random"])
            self._begin_epoch()
        for _ in range(state["position"]):
            self._draw()
            self._position += 1

    def load_progress(self, state: dict[str, Any]) -> None:
        """Continue another worker's count, with batches of this one's own data from an epoch's beginning."""
        self.drawn, self.epoch = state["drawn"], state["epoch"]

    def _random_state(self) -> list[Tensor]:
        """Of the loader's own generators, the CPU's, and those of the GPUs."""
        own = [each.get_state() for each in self._generators]
        return [*own, torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [])]

    def _set_random_state(self, states: list[Tensor]) -> None:
        own = len(self._generators)
        for generator, state in zip(self._generators, states[:own], strict=True):
            generator.set_state(state)
        torch.set_rng_state(states[own])
        if len(states) > own + 1:
            torch.cuda.set_rng_state_all(states[own + 1 :])
