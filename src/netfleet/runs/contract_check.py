"""Holds the data of a problem against the experiment's contract, before round 0."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from netfleet.data.dataset import Dataset
from netfleet.data.sites import this_site
from netfleet.data.tensors import Tensors, describe
from netfleet.errors import ConfigError, DataError
from netfleet.problems.base import Problem
from netfleet.problems.module import ModuleProblem
from netfleet.runs.contract import Contract, TensorContract


class DataFacts(NamedTuple):
    """A worker's training rows, and how many classes are among them; None: there are no labels."""

    rows: int
    classes: int | None


def data_facts(problem: Problem, worker: int) -> DataFacts | None:
    """What is known of a worker's data; None: the problem has none."""
    if not isinstance(problem, ModuleProblem):
        return None
    return DataFacts(len(problem.parts[worker]), _classes(problem, worker))


def _classes(problem: ModuleProblem, worker: int) -> int | None:
    """How many classes a worker's rows have; a target of one label per row (bce) has two at most."""
    counts, y = problem.label_counts(), problem.data.train_y
    if counts is not None:
        return int((counts[worker] > 0).sum())
    if problem.task.outputs == "labels" and isinstance(y, Tensor) and y.dim() == 1:
        return len(set(y[torch.from_numpy(problem.parts[worker])].tolist()))
    return None


def check_contract(contract: Contract | None, problem: Problem, workers: Iterable[int]) -> None:
    """Raise if the data, or what one of these workers has of it, breaks the contract."""
    if contract is None:
        return
    if not isinstance(problem, ModuleProblem):
        raise ConfigError(f"[contract] is about data, and {type(problem).__name__} has none; leave [contract] out")
    check_dataset(contract, problem.data)
    for worker in workers:
        _check_amount(contract, data_facts(problem, worker), worker)


def _check_amount(contract: Contract, facts: DataFacts | None, worker: int) -> None:
    assert facts is not None
    if facts.rows < contract.least_rows:
        cause = f"has {facts.rows} training rows, the contract says least_rows = {contract.least_rows}"
        raise DataError(f"{_who(worker)} {cause}; give it more, or train without it")
    if facts.classes is not None and facts.classes < contract.least_classes:
        cause = f"has {facts.classes} classes among its rows, the contract says least_classes"
        advice = "give it rows of more, or train without it"
        raise DataError(f"{_who(worker)} {cause} = {contract.least_classes}; {advice}")


def _who(worker: int) -> str:
    return f"worker {worker}" if this_site() is None else "this site"


def check_dataset(contract: Contract, data: Dataset) -> None:
    """Raise where data breaks the contract."""
    if contract.columns is not None:
        _check_columns(contract.columns, data)
    parts = {"training": (data.train_x, data.train_y), "test": (data.test_x, data.test_y)}
    for part, (x, y) in parts.items():
        for what, tensors, agreed in (("inputs", x, contract.inputs), ("targets", y, contract.targets)):
            if agreed is not None:
                _check_tensor(agreed, tensors, f"{data.name}: {what} of the {part} rows", data.columns)


def _check_columns(agreed: tuple[str, ...], data: Dataset) -> None:
    if data.columns is None:
        raise DataError(
            f"{data.name} does not name its columns, and the contract does; load it with nf.make_dataset from a frame, "
            f"or leave contract.columns out (CSV files declare theirs in features)"
        )
    if data.columns == agreed:
        return
    if set(data.columns) == set(agreed):
        place = next(i for i, names in enumerate(zip(data.columns, agreed, strict=True)) if len(set(names)) > 1)
        words = f"column {place + 1} is {data.columns[place]!r}, the contract has {agreed[place]!r} there"
        raise DataError(f"{data.name}: the columns are in another order: {words}; put them in the contract's order")
    odd = sorted(set(data.columns) ^ set(agreed))[0]
    where = "is not in the contract" if odd in data.columns else "is missing"
    raise DataError(f"{data.name}: column {odd!r} {where}; give x the columns {', '.join(agreed)}")


def _check_tensor(agreed: TensorContract, found: Tensors, where: str, columns: tuple[str, ...] | None) -> None:
    if not isinstance(found, Tensor):
        raise DataError(f"{where} are {describe(found)}, and a contract is about one tensor; leave it out")
    kind = str(found.dtype).removeprefix("torch.")
    if agreed.dtype is not None and kind != agreed.dtype:
        raise DataError(f"{where} are {kind}, the contract says {agreed.dtype}; convert them")
    if agreed.shape is not None and tuple(found.shape[1:]) != agreed.shape:
        cause = f"have the shape {list(found.shape[1:])}, the contract says {list(agreed.shape)}"
        raise DataError(f"{where} {cause}; make them alike at all sites")
    if agreed.range is not None:
        _check_values(agreed.range, found, where, columns)


def _check_values(agreed: tuple[float, ...], found: Tensor, where: str, columns: tuple[str, ...] | None) -> None:
    low, high = agreed
    outside = ((found < low) | (found > high)).reshape(len(found), -1).numpy()
    if not outside.any():
        return
    row, entry = (int(each) for each in np.argwhere(outside)[0])
    named = columns is not None and len(columns) == outside.shape[1]
    column = f"column {columns[entry]!r}" if named and columns is not None else f"entry {entry}"
    count = int(outside.any(axis=1).sum())
    raise DataError(
        f"{where}: {column} of row {row} is not from {low:g} to {high:g}, and {count} of {len(found)} rows are like "
        f"that; correct them, or the contract"
    )
