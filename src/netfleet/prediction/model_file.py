"""A model's file: safetensors whose header has, beside the tensors, what there is to know of the model (`model_info`).

Any program that reads safetensors reads the tensors. The tensors and the description have one checksum.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import safetensors
import safetensors.torch
from torch import Tensor

from netfleet.errors import CheckpointError
from netfleet.prediction.model_info import ModelInfo, parse_info
from netfleet.runs.checkpoint import verify, write_tensors

_KEY = "netfleet"
_ADVICE = "get it again from the site that wrote it"


class ModelFile(NamedTuple):
    """What is in a file."""

    info: ModelInfo
    tensors: dict[str, Tensor]


def write_model(path: Path, info: ModelInfo, tensors: Mapping[str, Tensor]) -> None:
    """Write a model, whole or not at all."""
    origin = info.origin
    about = {"run": origin.run, "site": origin.site, "round": str(origin.round), _KEY: info.to_json()}
    write_tensors(path, tensors, about)


def read_model(path: Path) -> ModelFile:
    """The model in a file; nothing is imported or run for it."""
    info = read_info(path)
    verify(path, _ADVICE)
    return ModelFile(info, safetensors.torch.load_file(path))


def read_info(path: Path) -> ModelInfo:
    """What a file says of its model."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(_KEY)
    except (OSError, safetensors.SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{path} cannot be read as a model ({reason}); {_ADVICE}") from None
    if text is None:
        advice = "an earlier version of netfleet or another program wrote it; load it with safetensors.torch.load_file"
        raise CheckpointError(f"{path} does not describe its model; {advice}")
    return parse_info(text, str(path))
