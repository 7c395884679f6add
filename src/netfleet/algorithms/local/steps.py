"""The local steps of one round: a torch optimizer whose parameters are rows of x and whose state is in the State.

A field of the State has a row for each worker and, for each piece of a row of x, the numbers that torch keeps for it
under one key. Classes that treat every number by itself get one tensor for all workers whose scalars (the number of
steps) are alike, others a tensor for each parameter of each worker, in its shape.
"""

import math
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from netfleet.algorithms.local.optimizers import LocalOptimizer
from netfleet.errors import ConfigError
from netfleet.problems.base import Piece, Problem, pieces


class Slot(NamedTuple):
    """Where a field has what torch keeps under one key for one piece, and what it is there."""

    piece: int
    key: int  # which of the optimizer's keys
    columns: slice
    shape: torch.Size  # of one worker's part
    dtype: torch.dtype
    scalar: bool
    on_cpu: bool  # torch keeps the numbers of steps there, wherever the parameters are
    number: type | None  # int or float if it is no tensor


class Layout(NamedTuple):
    """The pieces of a row of x, and the slots of what is kept for them."""

    pieces: list[Piece]
    slots: list[Slot]

    def empty(self, keys: int, x: Tensor) -> list[Tensor]:
        """The fields before the first step; they take no memory."""
        fields = []
        for key in range(keys):
            own = [slot for slot in self.slots if slot.key == key]
            width, dtype = sum(math.prod(slot.shape) for slot in own), own[0].dtype if own else x.dtype
            fields.append(torch.zeros(1, 1, dtype=dtype, device=x.device).expand(len(x), width))
        return fields


def layout_of(local: LocalOptimizer, f: Problem) -> Layout:
    """How the state of this optimizer lies in the fields; it does not depend on the rates of groups."""
    parts = pieces(f.shapes, f.groups, merged=local.elementwise)
    kinds = tuple((group.parameters, *sorted((k, bool(v)) for k, v in group.options.items())) for group in f.groups)
    name = (f.shapes, kinds, f.dtype, f.device)
    if name not in local.layouts:
        local.layouts[name] = _slots(local, parts, f)
    return Layout(parts, local.layouts[name])


def _slots(local: LocalOptimizer, parts: list[Piece], f: Problem) -> list[Slot]:
    try:
        kept = _dry(local, parts, f.dtype, torch.device("meta"))
    except Exception:  # a class that looks at values: it needs some
        try:
            kept = _dry(local, parts, f.dtype, f.device)
        except Exception as error:
            reason, shapes = " ".join(str(error).split()), {tuple(part.shape) for part in parts}
            raise ConfigError(
                f"local: {local.name} cannot train parameters of the shapes {sorted(shapes)}: {reason}; use another "
                f"local optimizer"
            ) from None
    slots, ends = [], dict.fromkeys(local.found.keys, 0)
    for piece, table in enumerate(kept):
        for key, value in table.items():
            if value is None:
                continue
            if key not in ends:
                raise ConfigError(f"local: {local.name} keeps {key!r} for some shapes only, which is not supported")
            given = torch.as_tensor(value, dtype=None if isinstance(value, Tensor) else torch.float64)
            shape = given.shape[1:] if local.elementwise and given.ndim else given.shape
            end = ends[key] + math.prod(shape)
            number = None if isinstance(value, Tensor) else type(value)
            place, columns = local.found.keys.index(key), slice(ends[key], end)
            slots.append(
                Slot(piece, place, columns, shape, given.dtype, given.ndim == 0, given.device.type == "cpu", number)
            )
            ends[key] = end
    return slots


def _dry(
    local: LocalOptimizer, parts: list[Piece], dtype: torch.dtype, device: torch.device
) -> list[dict[str, Tensor | float | None]]:
    """What torch keeps for each piece of one worker after a step."""
    lead = (1,) if local.elementwise else ()
    tensors = [nn.Parameter(torch.zeros((*lead, *part.shape), dtype=dtype, device=device)) for part in parts]
    optimizer = local.torch(tensors, [part.group for part in parts])
    for p in tensors:
        p.grad = torch.zeros_like(p)
    with torch.no_grad():
        optimizer.step()
    return [optimizer.state[p] for p in tensors]


class LocalSteps:
    """The local steps of one round, from the fields `count` and those of the optimizer's keys."""

    def __init__(self, local: LocalOptimizer, f: Problem, count: Tensor, fields: Sequence[Tensor]) -> None:
        self.local, self.layout = local, layout_of(local, f)
        self.count, self.fields, self._owned = count, list(fields), f.owns_state
        self._active = None if bool(f.active.all()) else f.active.expand(len(count), 1)[:, 0].nonzero()[:, 0]
        self._batches: list[_Batch] | None = None

    def step(self, x: Tensor, direction: Tensor, eta: float) -> None:
        """Move the models x `[rows, d]` of the workers that take part, in place."""
        if self._batches is None:
            self._batches = self._begin()
        for batch in self._batches:
            batch.step(x, direction, eta)

    def finish(self) -> list[Tensor]:
        """The count and the fields after the round."""
        for batch in self._batches or ():
            batch.store()
        return [self.count, *self.fields]

    def _begin(self) -> list["_Batch"]:
        if not self._owned:
            self.count = self.count.clone()
        if bool(self.count.any()):
            # What was never written has no memory of its own, and what others may still read is not written to.
            self.fields = [v if self._owned and 0 not in v.stride() else v.clone() for v in self.fields]
        return [_Batch(self, rows) for rows in self._alike()]

    def _alike(self) -> list[slice | Tensor]:
        """The rows that one torch optimizer can move."""
        rows = torch.arange(len(self.count)) if self._active is None else self._active.cpu()
        if not self.local.elementwise or len(rows) == 1:
            return [slice(i, i + 1) for i in rows.tolist()]
        scalars = [self.fields[slot.key][:, slot.columns] for slot in self.layout.slots if slot.scalar]
        marks = torch.cat([mark.double() for mark in (self.count, *scalars)], dim=1).cpu()[rows]
        kinds, which = torch.unique(marks, dim=0, return_inverse=True)
        if len(kinds) == 1 and self._active is None:
            return [slice(0, len(self.count))]
        return [rows[which == kind].to(self.count.device) for kind in range(len(kinds))]


class _Batch:
    """Rows that one torch optimizer moves: a slice, which it then changes in place, or any, which are copied."""

    def __init__(self, steps: LocalSteps, rows: slice | Tensor) -> None:
        self._steps, self._rows, self._taken = steps, rows, 0
        self._torch: Any = None
        self._tensors: list[nn.Parameter] = []

    def step(self, x: Tensor, direction: Tensor, eta: float) -> None:
        part, along = x[self._rows], direction[self._rows]
        if self._steps.local.found.alters_gradient:
            along = along.clone()
        views, moves = self._views(part), self._views(along)
        if self._torch is None:
            self._create(views)
        for p, view in zip(self._tensors, views, strict=True):
            p.data = view
        for group in self._torch.param_groups:
            group["lr"] = eta * group["rate"]
        if self._taken == 0 and self._fresh:
            for piece, move in enumerate(moves):  # the class makes its state itself; it is in the fields afterwards
                self._torch_step([piece], [move])
                self._store([piece])
                self._load([piece])
        else:
            self._torch_step(range(len(moves)), moves)
        if isinstance(self._rows, Tensor):
            x[self._rows] = part
        self._taken += 1

    def _torch_step(self, pieces: Iterable[int], moves: Iterable[Tensor]) -> None:
        """Move some pieces; torch leaves those without a gradient as they are."""
        moved = [self._tensors[piece] for piece in pieces]
        for p, move in zip(moved, moves, strict=True):
            p.grad = move
        with torch.no_grad():
            self._torch.step()
        for p in moved:
            p.grad = None

    def _views(self, part: Tensor) -> list[Tensor]:
        if self._steps.local.elementwise:
            return [part[:, piece.columns] for piece in self._steps.layout.pieces]
        return [part[0, piece.columns].view(piece.shape) for piece in self._steps.layout.pieces]

    def _create(self, views: list[Tensor]) -> None:
        self._tensors = [nn.Parameter(view) for view in views]
        groups = [piece.group for piece in self._steps.layout.pieces]
        self._torch = self._steps.local.torch(self._tensors, groups)
        self._fresh = not bool(self._steps.count[self._rows].any())
        if not self._fresh:
            self._load(range(len(views)))

    def _slots(self, pieces: Container[int]) -> Iterator[Slot]:
        return (slot for slot in self._steps.layout.slots if slot.piece in pieces)

    def _load(self, pieces: Collection[int]) -> None:
        """Let torch's state be what the fields have, in place where that is possible."""
        keys = self._steps.local.found.keys
        for piece in pieces:
            self._torch.state[self._tensors[piece]] = {}
        for slot in self._slots(pieces):
            self._torch.state[self._tensors[slot.piece]][keys[slot.key]] = self._read(slot)

    def _read(self, slot: Slot) -> Tensor | float:
        kept = self._steps.fields[slot.key][self._rows][:, slot.columns]
        if slot.number is not None:
            number: float = slot.number(kept[0, 0].item())
            return number
        if slot.scalar:
            return kept[0, 0].to("cpu" if slot.on_cpu else kept.device, copy=True)
        return kept if self._steps.local.elementwise else kept[0].view(slot.shape)

    def store(self) -> None:
        """Write what torch has not changed in place back into the fields."""
        if self._taken:
            self._store(range(len(self._tensors)))
            self._steps.count[self._rows] += self._taken
            self._torch.state.clear()  # a torch optimizer refers to itself, and would keep all this for a while
            for p in self._tensors:
                p.data = torch.empty(0)

    def _store(self, pieces: Container[int]) -> None:
        keys = self._steps.local.found.keys
        for slot in self._slots(pieces):
            value = self._torch.state[self._tensors[slot.piece]][keys[slot.key]]
            self._write(slot, value)

    def _write(self, slot: Slot, value: Tensor | float) -> None:
        fields, rows = self._steps.fields, self._rows
        if isinstance(value, Tensor) and not slot.scalar:
            flat = value if self._steps.local.elementwise else value.reshape(1, -1)
            if flat.shape == fields[slot.key].shape and 0 in fields[slot.key].stride():
                fields[slot.key] = flat  # the whole field: it is taken over as it is
                return
            if flat.data_ptr() == fields[slot.key][rows][:, slot.columns].data_ptr() and isinstance(rows, slice):
                return
        else:
            flat = torch.as_tensor(value).reshape(1, 1)
        if 0 in fields[slot.key].stride() and fields[slot.key].numel():
            fields[slot.key] = fields[slot.key].clone(memory_format=torch.contiguous_format)
        fields[slot.key][rows, slot.columns] = flat.to(fields[slot.key].device, fields[slot.key].dtype)
