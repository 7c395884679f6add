"""Which models a site may see: its own, those given to it, and on one machine those of the plan's other sites."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from netfleet.errors import CheckpointError
from netfleet.prediction.model_file import ModelFile, read_model
from netfleet.sites.planning.folders import (
    ALONE_BEST_FILE,
    ALONE_FILE,
    BEST_FILE,
    GIVEN_FOLDER,
    MODEL_FILE,
    Site,
    read_site,
)
from netfleet.sites.policy.in_force import find_policy
from netfleet.sites.policy.settings import ShowRules

_OWN = {"joint": MODEL_FILE, "joint, best": BEST_FILE, "alone": ALONE_FILE, "alone, best": ALONE_BEST_FILE}


class Candidate(NamedTuple):
    """A model's file by the name that the table gives it, or why it is left out."""

    name: str
    model: ModelFile | None
    why: str = ""


def own_models(folder: Path, site: Site) -> Iterator[Candidate]:
    """What the site itself has trained."""
    for name, file in _OWN.items():
        if (folder / file).exists():
            yield _read(name, folder / file, site)


def given_models(folder: Path, site: Site) -> Iterator[Candidate]:
    """What people have put into the site's folder `models`."""
    for path in sorted((folder / GIVEN_FOLDER).glob("*.safetensors")):
        yield _read(path.stem, path, site)


def models_beside(folders: Sequence[Path], site: Site) -> Iterator[Candidate]:
    """The models of other sites whose folders are on this machine, where their own policies give them."""
    for folder in folders:
        other, show = read_site(folder).name, find_policy(folder).policy.show
        for kind, file in (("joint", MODEL_FILE), ("alone", ALONE_FILE)):
            if other != site.name and (folder / file).exists():
                name, why = f"{kind} of {other}", _refusal(show, kind)
                yield Candidate(name, None, f"{other}'s policy: {why}") if why else _read(name, folder / file, site)


def _refusal(show: ShowRules, kind: str) -> str:
    if kind == "joint":
        return "" if show.model_to_others else "show.model_to_others is false"
    return "" if show.alone_model_to_others else "show.alone_model_to_others is false"


def _read(name: str, path: Path, site: Site) -> Candidate:
    try:
        found = read_model(path)
    except CheckpointError as error:
        return Candidate(name, None, str(error))
    origin = found.info.origin
    if origin.run != site.run:
        return Candidate(name, None, f"{path.name} is of run {origin.run[:12]}, and this site of run {site.run[:12]}")
    if origin.stays and origin.site != site.name:
        return Candidate(name, None, f"it is outside of what the plan's privacy covers and stays at {origin.site}")
    return Candidate(name, found)
