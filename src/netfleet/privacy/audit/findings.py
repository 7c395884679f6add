"""From the outcomes of attacks to numbers with their words."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from netfleet.privacy.audit.attacks import LARGEST, Outcome, Scene
from netfleet.privacy.audit.labels import score_labels
from netfleet.privacy.audit.membership import Advantage, bound
from netfleet.privacy.audit.optimisation import RECOVERED
from netfleet.privacy.audit.results import Finding, pooled, share_interval

Pair = tuple[float, float] | None


def findings_of(outcomes: Sequence[Outcome], scene: Scene, view: str, method: str, private: bool) -> list[Finding]:
    """What all attacks on gradients found from one view, over its victims."""
    found: list[Finding] = []

    def add(attack: str, name: str, value: float | None, words: str, interval: Pair = None, count: int = 0) -> None:
        found.append(Finding(attack, name, view, method, private, count or len(outcomes), value, interval, words))

    exact, clearest = (float(np.mean([getattr(o, name) for o in outcomes])) for name in ("exact", "clearest"))
    add("gradients", "exact", exact, "share of the victim's gradients that can be computed exactly")
    add("gradients", "clearest", clearest, "how much of the best known gradient, or mean of a round's, is determined")
    guesses = [o.labels for o in outcomes if o.labels is not None]
    if guesses:
        score = score_labels(guesses)
        add("labels", "advantage", score.advantage, "share of labels found less share of labels said in error")
        add("labels", "recall", score.recall, "share of the labels in a batch that are found")
        add("labels", "precision", score.precision, "share of the labels said that are in the batch")
    else:
        why = "nothing of the victim was seen" if scene.labelled else "there are no labels behind a linear last layer"
        add("labels", "advantage", 0.0 if scene.labelled else None, why)
    if scene.first is None:
        add("algebra", "batch", None, "the first layer is not linear with a bias, so nothing can be divided")
    else:
        for name, words in _ALGEBRA.items():
            value, interval = pooled([getattr(o, name) for o in outcomes])
            add("algebra", name, value or 0.0, words, interval)
    _add_inverted(outcomes, scene, add)
    return found


_ALGEBRA = {
    "batch": "share of the inputs of the best known gradient that division recovers exactly",
    "rows": "share of all inputs behind the victim's messages that division recovers exactly",
}


def _add_inverted(outcomes: Sequence[Outcome], scene: Scene, add: "_Add") -> None:
    tried = [o.inverted for o in outcomes if o.inverted is not None]
    if not tried:
        why = "nothing of the victim was seen" if scene.labelled else "optimisation needs labels and one input tensor"
        add("optimisation", "psnr", None, why)
        return
    psnr, guess = (np.concatenate([getattr(one, name) for one in tried]) for name in ("psnr", "guess"))
    hits = int((psnr >= RECOVERED).sum())
    words = f"of up to {LARGEST} inputs of a batch"
    add("optimisation", "psnr", float(psnr.mean()), f"mean PSNR in dB {words}", count=len(tried))
    add(
        "optimisation",
        "guess",
        float(guess.mean()),
        "the same for the mean of the attacker's own rows",
        count=len(tried),
    )
    interval = share_interval(hits, len(psnr))
    said = f"share {words} with a PSNR of {RECOVERED:g} dB or more"
    add("optimisation", "recovered", hits / len(psnr), said, interval, len(tried))


def membership_findings(
    found: Advantage, epsilon: float | None, delta: float, victims: int, view: str, method: str, private: bool
) -> list[Finding]:
    """The test's result and, for a private training, what (ε, δ) allows."""
    words = f"share of members found less share of others taken for members, of {found.rows} rows"

    def make(name: str, value: float, interval: Pair, words: str) -> Finding:
        return Finding("membership", name, view, method, private, victims, value, interval, words)

    made = [
        make("advantage", found.value, (found.low, found.high), words),
        make("at one percent", found.at_one_percent, None, "members found with 1 % of the others taken for members"),
    ]
    if epsilon is not None:
        said = f"the most that any test can reach at ε = {epsilon:.3g}, δ = {delta:g}, of the shadows' training"
        made.append(make("bound", bound(epsilon, delta), None, said))
    return made


class _Add(Protocol):
    """The type of `add` above."""

    def __call__(
        self, attack: str, name: str, value: float | None, words: str, interval: Pair = None, count: int = 0
    ) -> None: ...
