"""All attacks on the gradients of one victim, from one view."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from netfleet.gradients.replica import outputs_of
from netfleet.privacy.audit import algebra, optimisation
from netfleet.privacy.audit.labels import LabelGuess, count_labels, read_labels
from netfleet.privacy.audit.layers import LinearLayer, first_layer, last_layer
from netfleet.privacy.audit.views import Readings
from netfleet.problems.module import ModuleProblem

#: Inputs that are looked for by optimisation, at most.
LARGEST = 8


@dataclass(frozen=True)
class Scene:
    """What all attacks on an experiment share: the model, the data and its range."""

    problem: ModuleProblem
    inputs: Tensor | None  # [rows, …]; None: the inputs are not one tensor of numbers
    first: LinearLayer | None
    last: LinearLayer | None
    low: float = 0.0
    high: float = 1.0

    @property
    def span(self) -> float:
        return max(self.high - self.low, 1e-12)

    @property
    def labelled(self) -> bool:
        return self.problem.task.outputs == "classes" and self.last is not None

    @property
    def pictured(self) -> bool:
        """Whether inputs can be shown as pictures."""
        shape = self.problem.data.inputs
        return self.inputs is not None and len(shape) == 3 and shape[0] in (1, 3)


def make_scene(problem: ModuleProblem) -> Scene:
    """What is known of a problem."""
    inputs = problem.data.train_x
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        return Scene(problem, None, None, None)
    classes = problem.task.width(problem.data) if problem.task.outputs == "classes" else 0
    layers = first_layer(problem.model, problem.data.inputs), last_layer(problem.model, classes)
    return Scene(problem, inputs.double(), *layers, float(inputs.min()), float(inputs.max()))


class Inverted(NamedTuple):
    """What optimisation made of a gradient."""

    psnr: list[float]
    guess: list[float]  # the same for the mean of the attacker's own rows
    originals: Tensor
    images: Tensor


class Outcome(NamedTuple):
    """What one view shows of one victim; counts are (found, of)."""

    exact: float
    clearest: float
    labels: LabelGuess | None
    batch: tuple[int, int]  # inputs of the clearest reading that division recovers
    rows: tuple[int, int]  # of all inputs behind the messages
    originals: Tensor | None = None
    quotients: Tensor | None = None  # the closest to the originals
    inverted: Inverted | None = None


class Attacker(NamedTuple):
    """Who attacks: its own rows of the data, and the steps of its search by optimisation (0: none)."""

    victim: int
    own: Tensor
    steps: int


def attack(scene: Scene, readings: Readings, attacker: Attacker) -> Outcome:
    """Labels, division and, if asked for, optimisation."""
    if not readings.found:
        return Outcome(readings.exact, 0.0, None, (0, 0), (0, 0))
    readings = _without_penalty(scene, readings, attacker.victim)
    clearest = readings.found[0]
    outcome = Outcome(readings.exact, clearest.share, _labels(scene, readings, attacker), (0, 0), (0, 0))
    if scene.first is not None and scene.inputs is not None:
        every = torch.unique(torch.cat([reading.rows for reading in readings.found]))
        hits = torch.zeros(len(scene.inputs), dtype=torch.bool)
        for reading in readings.found:
            hits[reading.rows] |= algebra.recovered(
                _quotients(scene, reading.gradient), scene.inputs[reading.rows], scene.span
            )
        best = algebra.recovered(_quotients(scene, clearest.gradient), scene.inputs[clearest.rows], scene.span)
        outcome = outcome._replace(batch=(int(best.sum()), len(best)), rows=(int(hits.sum()), len(every)))
    return _with_pictures(scene, readings, outcome, attacker)


def _without_penalty(scene: Scene, readings: Readings, victim: int) -> Readings:
    """Gradients without that of the penalty, l2 · x, which an attacker knows about as well as x."""
    problem = scene.problem
    if problem.l2 == 0:
        return readings
    weight = 1.0 if problem.shares is None else problem.m * float(problem.shares[victim])
    penalty = problem.l2 * weight * problem.start().double().cpu()
    return readings._replace(found=[each._replace(gradient=each.gradient - penalty) for each in readings.found])


def _quotients(scene: Scene, gradient: Tensor) -> Tensor:
    assert scene.first is not None
    return algebra.quotients(gradient, scene.first)


def _labels(scene: Scene, readings: Readings, attacker: Attacker) -> LabelGuess | None:
    clearest, targets = readings.found[0], scene.problem.data.train_y
    if not scene.labelled or not isinstance(targets, Tensor) or len(clearest.rows) == 0:
        return None
    assert scene.last is not None
    true = torch.zeros(scene.last.outputs, dtype=torch.bool)
    true[targets[clearest.rows].long()] = True
    if clearest.steps > 1 or scene.problem.batch == 0:
        return LabelGuess(read_labels(clearest.gradient, scene.last), true)
    absent = _probabilities(scene, attacker.own)
    return LabelGuess(read_labels(clearest.gradient, scene.last, absent, scene.problem.batch), true)


def _probabilities(scene: Scene, rows: Tensor) -> Tensor:
    """What the initial model says of the labels of some rows, on average."""
    problem = scene.problem
    assert scene.inputs is not None
    with torch.no_grad():
        outputs = outputs_of(problem.module(problem.start()), scene.inputs[rows].to(problem.device, problem.dtype))
    return outputs.softmax(dim=1).mean(dim=0).double().cpu()


def _with_pictures(scene: Scene, readings: Readings, outcome: Outcome, attacker: Attacker) -> Outcome:
    rows = readings.found[0].rows
    if attacker.steps == 0 or scene.inputs is None or len(rows) == 0:
        return outcome
    inverted = _invert(scene, readings, attacker) if scene.labelled else None
    shown = scene.inputs[rows[:LARGEST]] if inverted is None else inverted.originals
    closest = None
    if scene.first is not None:
        closest = algebra.distances(_quotients(scene, readings.found[0].gradient), shown, scene.span)[1]
    return outcome._replace(originals=shown, quotients=closest, inverted=inverted)


def _invert(scene: Scene, readings: Readings, attacker: Attacker) -> Inverted:
    problem, clearest = scene.problem, readings.found[0]
    assert scene.last is not None
    assert scene.inputs is not None
    size = min(LARGEST, (problem.batch or len(clearest.rows)) * clearest.steps)
    gradient = clearest.gradient.to(problem.device, problem.dtype)
    labels = count_labels(gradient, scene.last, size).to(problem.device)
    shape, bounds = tuple(scene.inputs.shape[1:]), (scene.low, scene.high)
    target = optimisation.Target(problem.module(problem.start()), problem.task.loss, gradient, labels, shape, *bounds)
    images = optimisation.invert(target, attacker.steps, problem.seed, attacker.victim).double().cpu()
    originals = scene.inputs[clearest.rows]
    matched = optimisation.match(images, originals, scene.span)
    taken = originals[matched.places]
    mean = scene.inputs[attacker.own].mean(dim=0).expand_as(taken)
    blind = 10 * torch.log10(scene.span**2 / (mean - taken).square().flatten(1).mean(dim=1).clamp(min=1e-30))
    return Inverted(matched.psnr.tolist(), blind.tolist(), taken, matched.guesses)
