"""The page of an audit: one HTML file that contains everything, to be mailed or archived."""

import base64
import io
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import netfleet
from netfleet.files import write_atomically
from netfleet.privacy.audit.algebra import TOLERANCE
from netfleet.privacy.audit.optimisation import RECOVERED
from netfleet.privacy.audit.results import PAGE_FILE, Audit, Picture
from netfleet.privacy.audit.table import COLUMNS, VIEWERS, percent, rows
from netfleet.report import page
from netfleet.runs.config import Experiment

#: Pixels of a picture's shorter side, at least.
_SIDE = 56


class Strip(NamedTuple):
    """Pictures side by side, as data URLs."""

    words: str
    images: list[str]


class Shown(NamedTuple):
    """A victim's originals and what was made of its messages."""

    title: str
    strips: list[Strip]


def write_page(audit: Audit, experiment: Experiment, folder: Path) -> Path:
    """Write `audit.html` into a folder."""
    text = render(audit, experiment)
    write_atomically(folder / PAGE_FILE, lambda file: file.write(text.encode()))
    return folder / PAGE_FILE


def render(audit: Audit, experiment: Experiment) -> str:
    """The text of the page."""
    return page.render(
        "audit.html",
        title=f"Audit of {audit.name}",
        verdict=verdict(audit),
        facts=_facts(audit, experiment),
        views=[(VIEWERS[view], words, rows(audit, view)) for view, words in audit.views.items()],
        columns=COLUMNS,
        shown=[_shown(picture) for picture in audit.pictures],
        notes=audit.notes,
        bounds=[f for f in audit.findings if f.name == "bound" and f.view == next(iter(audit.views))],
        tolerance=f"{100 * TOLERANCE:g} %",
        recovered=f"{RECOVERED:g} dB",
        hash=audit.hash,
        config_text=experiment.to_toml(),
        version=netfleet.__version__,
    )


def verdict(audit: Audit) -> str:
    """One sentence: what the worst method shows to a neighbour, and what privacy leaves of it."""
    view = next(iter(audit.views))
    worst = audit.ranking(view)[0]
    words = f"From {worst}'s messages {VIEWERS[view]} {_found(audit, view, worst, False)}"
    if audit.find("algebra", "batch", view, worst, True) is not None:
        words += f"; with the experiment's privacy it {_found(audit, view, worst, True)}"
    return f"{words}."


def _found(audit: Audit, view: str, method: str, private: bool) -> str:
    """What the attacks that apply have found; of the others nothing is known, which is not 0 %."""
    labels = "guesses its labels {} % better than chance" if private else "reads off {} % of its labels"
    said = {
        ("algebra", "batch"): "recovers {} % of a batch's inputs exactly",
        ("labels", "advantage" if private else "recall"): labels,
        ("membership", "advantage"): "tells members from other rows {} % better than chance",
    }
    values = {words: audit.value(*name, view, method, private) for name, words in said.items()}
    found = [words.format(percent(value)) for words, value in values.items() if value is not None]
    return " and ".join([", ".join(found[:-1]), *found[-1:]] if len(found) > 1 else found) or "was not attacked"


def _facts(audit: Audit, experiment: Experiment) -> list[tuple[str, str]]:
    problem, privacy = experiment.problem, audit.privacy
    facts: dict[str, str] = {}
    for key in ("data", "model", "batch"):
        if key in problem:
            facts[key] = problem[key]["kind"] if isinstance(problem[key], dict) else str(problem[key])
    facts |= {"graph": f"{experiment.topology['kind']}, {experiment.topology.get('workers', '?')} workers"}
    given = {} if privacy is None else {key: value for key, value in privacy.items() if value is not None}
    facts["privacy"] = ", ".join(f"{key} = {value:g}" for key, value in given.items()) or "none"
    settings = audit.settings
    facts["messages attacked"] = f"those of {settings['rounds']} rounds"
    facts["membership test"] = (
        f"{settings['shadows']} trainings of {settings['training']} rounds" if settings["shadows"] else "left out"
    )
    return list(facts.items())


def _shown(picture: Picture) -> Shown:
    private = ", private" if picture.private else ""
    title = f"{picture.method}{private}: {picture.victim}, seen by {VIEWERS[picture.view]}"
    low, high = float(picture.originals.min()), float(picture.originals.max())
    given = {"originals": picture.originals, "by division": picture.algebra, "by optimisation": picture.optimised}
    strips = [Strip(words, _images(values, low, high)) for words, values in given.items() if values is not None]
    return Shown(title, strips)


def _images(values: Tensor, low: float, high: float) -> list[str]:
    scaled = ((values - low) / max(high - low, 1e-12)).nan_to_num(0.0).clamp(0, 1)
    return [_url(image) for image in (255 * scaled).round().to(torch.uint8)]


def _url(image: Tensor) -> str:
    """An image `[channels, height, width]` as a data URL, large enough to look at."""
    pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
    drawn = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    scale = max(1, -(-_SIDE // min(drawn.size)))
    buffer = io.BytesIO()
    drawn.resize((drawn.width * scale, drawn.height * scale), Image.Resampling.NEAREST).save(
        buffer, "png", optimize=True
    )
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
