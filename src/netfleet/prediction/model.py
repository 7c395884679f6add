"""`load_model`: from a file to a model that predicts. What a file names is built from netfleet's own registry only."""

import csv
import os
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from netfleet.data.tensors import Tensors, count_rows, mapped, take, to_dtype
from netfleet.errors import CheckpointError, ConfigError
from netfleet.gradients.replica import outputs_of
from netfleet.prediction.inputs import Given, model_inputs
from netfleet.prediction.model_file import ModelFile, read_model
from netfleet.prediction.model_info import ModelInfo
from netfleet.problems.models import MODELS

Array = npt.NDArray[Any]
_CHUNK = 512  # rows of a forward pass


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a model says of some rows: the `values` `[rows]` (names of classes, or numbers) and, where the model tells
    classes apart, the `probabilities` `[rows, classes]` in the order of `classes`.
    """

    values: Array
    classes: tuple[str, ...] = ()
    probabilities: Array | None = None
    name: str = "prediction"

    def write_csv(self, file: TextIO) -> None:
        """A line of titles, then a line for each row."""
        several = [f"{self.name}_{i}" for i in range(self.values.shape[1])] if self.values.ndim > 1 else [self.name]
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*several, *(f"probability of {name}" for name in self.classes)])
        chances = [()] * len(self.values) if self.probabilities is None else self.probabilities.tolist()
        for said, row in zip(self.values.tolist(), chances, strict=True):
            numbers = said if isinstance(said, list) else [said]
            writer.writerow([_shown(value) for value in (*numbers, *row)])


def _shown(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


class TrainedModel:
    """A model from a file. `info` says where it comes from and what its inputs and outputs are."""

    def __init__(self, info: ModelInfo, module: nn.Module) -> None:
        self.info, self.module = info, module

    def __repr__(self) -> str:
        origin = self.info.origin
        kind = "" if self.info.model is None else f"{self.info.model['kind']}, "
        return f"<TrainedModel: {kind}{origin.kind} model of {origin.site}, round {origin.round}>"

    def predict(self, data: Given) -> Prediction:
        """What the model says of the rows of a CSV file, a data frame or an array.

        Columns are those of the training, with raw values: they are read and scaled as they were there. An array has
        the columns of `info.columns`, or rows as the model takes them if it has none. Wrong columns and values raise
        DataError with the row and the column.
        """
        x, dtype = model_inputs(self.info, data), getattr(torch, self.info.dtype)
        if self.info.built_in:  # as in the training: netfleet's own models take counts and pixels as floats
            x = x.to(dtype)
        return as_prediction(self.info, forward(self.module, x, dtype))


def load_model(path: str | os.PathLike[str], *, trust_code: bool = False) -> TrainedModel:
    """The model in a file that `netfleet node` wrote.

        model = netfleet.load_model("hospital-a/model.safetensors")
        model.predict("patients.csv").probabilities

    Nothing in the file is run. A model whose architecture or columns are code of somebody's own names that code
    ("package.module:factory"), which is imported only with `trust_code=True`.
    """
    found = read_model(Path(path))
    if found.info.model is None:
        advice = "its tensors can be had with safetensors.torch.load_file, for the module that the program trained"
        raise ConfigError(f"{path} does not know its architecture, only the program that trained it does; {advice}")
    if found.info.code and not trust_code:
        named = ", ".join(found.info.code)
        advice = "look at that code, and if you trust it add trust_code=True (netfleet predict --trust-code)"
        raise ConfigError(f"{path} needs code that is not netfleet's: {named}; {advice}")
    return TrainedModel(found.info, _module(found, str(path)))


def _module(found: ModelFile, where: str) -> nn.Module:
    """The module with the file's tensors; netfleet's own is built without memory, so no file can ask for much of it."""
    info, dtype = found.info, getattr(torch, found.info.dtype, None)
    if not isinstance(dtype, torch.dtype) or info.model is None:
        raise CheckpointError(f"{where} has the type {info.dtype!r}, which is none of torch's; get the file again")
    try:
        with torch.device("meta") if info.built_in else nullcontext():
            module = MODELS.build(info.model, inputs=info.inputs, classes=info.width, outputs=info.width)
        module = module.to(dtype)
        with_tensors(module, found.tensors)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        reason = str(error).splitlines()[-1].strip()
        raise CheckpointError(f"{where}: tensors and description do not fit ({reason}); get the file again") from None
    return module.eval()


def with_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give a module these tensors, which must have its names, shapes and types."""
    for name, own in module.state_dict().items():
        if name in tensors and (tensors[name].shape, tensors[name].dtype) != (own.shape, own.dtype):
            came, expected = ((list(t.shape), t.dtype) for t in (tensors[name], own))
            raise ValueError(f"{name} is {came}, expected {expected}")
    module.load_state_dict(tensors, strict=True, assign=True)


@torch.no_grad()
def forward(module: nn.Module, x: Tensors, dtype: torch.dtype) -> Tensor:
    """What a module makes of some rows, chunk by chunk."""
    chunks = torch.split(torch.arange(count_rows(x)), _CHUNK)
    parts = (mapped(lambda t: to_dtype(t, dtype), take(x, rows)) for rows in chunks)
    return torch.cat([outputs_of(module, part) for part in parts])


def as_prediction(info: ModelInfo, outputs: Tensor) -> Prediction:
    """What outputs mean: the most likely class with all probabilities, or numbers."""
    outputs = outputs.double()
    if info.outputs == "labels" and len(info.classes) == 2:  # one logit, that of the second class
        chance = torch.sigmoid(outputs.reshape(len(outputs)))
        return _classified(info, torch.stack([1 - chance, chance], dim=1).numpy())
    if info.outputs == "classes" and outputs.dim() == 2:
        return _classified(info, outputs.softmax(-1).numpy())
    if info.outputs == "labels":
        return Prediction(torch.sigmoid(outputs).numpy(), name="probability")
    numbers = outputs.squeeze(-1) if outputs.dim() == 2 and outputs.shape[1] == 1 else outputs
    return Prediction(numbers.numpy(), name="log-risk" if info.outputs == "risk" else "prediction")


def _classified(info: ModelInfo, probabilities: Array) -> Prediction:
    names = np.array(info.classes)
    return Prediction(names[probabilities.argmax(1)], info.classes, probabilities)
