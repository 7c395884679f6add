"""Audits an experiment: runs its methods, attacks their messages, with and without privacy.

>>> from netfleet.privacy.audit import AuditOptions
>>> AuditOptions(rounds=3).shadows
16
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from netfleet import randomness
from netfleet.algorithms.build import algorithm_label
from netfleet.compute.threads import one_intra_op_thread
from netfleet.engines.job import Job
from netfleet.errors import ConfigError, DivergedError
from netfleet.privacy.audit import membership
from netfleet.privacy.audit.attacks import Attacker, Outcome, Scene, attack, make_scene
from netfleet.privacy.audit.findings import findings_of, membership_findings
from netfleet.privacy.audit.recording import coefficients, record
from netfleet.privacy.audit.results import Audit, Finding, Picture
from netfleet.privacy.audit.shadows import Shadows, on_parts, scores, train_shadows
from netfleet.privacy.audit.views import WORDS, View, read_gradients, views_of
from netfleet.problems.module import ModuleProblem
from netfleet.runs.build import Setting, build_job, build_setting
from netfleet.runs.config import Experiment, Table
from netfleet.runs.progress import Display, Quiet


@dataclass(frozen=True)
class AuditOptions:
    """How much is tried."""

    rounds: int = 3  # whose messages are attacked
    victims: int = 8  # workers that are attacked, at most
    shadows: int = 16  # trainings for membership inference; 0 leaves it out
    training: int = 30  # rounds of each of them
    inverted: int = 2  # victims whose inputs are looked for by optimisation
    steps: int = 300  # of that search

    def __post_init__(self) -> None:
        least = {"rounds": 1, "victims": 1, "training": 1, "steps": 1}
        for name, value in asdict(self).items():
            if not isinstance(value, int) or value < least.get(name, 0):
                raise ConfigError(
                    f"{name} of an audit must be a whole number from {least.get(name, 0)} on, got {value!r}"
                )
        if self.shadows and (self.shadows < 4 or self.shadows % 2):
            raise ConfigError(
                f"shadows must be an even number from 4 on, or 0 for no membership test, got {self.shadows}"
            )


def audit(
    experiment: Experiment,
    options: AuditOptions | None = None,
    *,
    methods: Sequence[Table] = (),
    victim: int | None = None,
    display: Display | None = None,
) -> Audit:
    """Attack the messages of an experiment's methods, or of other methods in their place.

    `victim` is the only worker to attack, at whose site this may run: if its data holds the site's own rows only, the
    other workers get a half of them. Nothing is sent anywhere.
    """
    options, seed = options or AuditOptions(), experiment.seeds[0]
    given = replace(experiment, algorithms=tuple(methods) or experiment.algorithms, seeds=(seed,))
    hashes = {run.label: run.hash for run in given.runs()}  # raises if two methods have one name
    with one_intra_op_thread():
        setting = _checked(build_setting(given, seed), victim)
        runs = _Runs(given, setting, options, _victims(setting, options, victim), display or Quiet())
        return runs.all(hashes)


def _checked(setting: Setting, victim: int | None) -> Setting:
    problem = setting.problem
    if not isinstance(problem, ModuleProblem):
        raise ConfigError(
            f"an audit attacks training rows, and {type(problem).__name__} has none that netfleet knows of; audit an "
            f"experiment that trains a model on data"
        )
    if problem.m < 2:
        raise ConfigError("an audit needs neighbours, and there is one worker; use two or more")
    if problem.data.site is None:
        return setting
    if victim is None:
        raise ConfigError("the data is one site's own; audit that site's folder, so that it is the victim")
    return replace(setting, problem=_among_own_rows(problem, victim))


def _among_own_rows(problem: ModuleProblem, victim: int) -> ModuleProblem:
    """A site that has only its own rows: it keeps a half of them, and stand-ins for the others share the rest."""
    rows = randomness.generator("audit", problem.seed).permutation(problem.data.rows)
    rest = np.array_split(rows[len(rows) // 2 :], problem.m - 1)
    parts = [*rest[:victim], rows[: len(rows) // 2], *rest[victim:]]
    if min(map(len, parts)) == 0:
        raise ConfigError(f"{problem.data.rows} rows are too few to audit {problem.m} sites; it takes two for each")
    return on_parts(problem, [np.sort(part) for part in parts])


def _victims(setting: Setting, options: AuditOptions, victim: int | None) -> list[int]:
    if victim is not None:
        return [victim]
    m = setting.problem.m
    return sorted({round(place) for place in np.linspace(0, m - 1, min(options.victims, m))})


class _Attacked(NamedTuple):
    """The outcomes of one run, by view."""

    outcomes: dict[str, list[Outcome]]
    views: dict[str, list[View]]


class _Runs:
    """All runs of an audit: each method without privacy and, if the experiment has it, with it."""

    def __init__(
        self, experiment: Experiment, setting: Setting, options: AuditOptions, victims: list[int], display: Display
    ) -> None:
        self.experiment, self.setting, self.options, self.victims = experiment, setting, options, victims
        self.display = display
        assert isinstance(setting.problem, ModuleProblem)
        self.scene: Scene = make_scene(setting.problem)
        self.findings: list[Finding] = []
        self.pictures: list[Picture] = []
        self.notes: list[str] = []
        self.seen: dict[str, str] = {}

    def all(self, hashes: Mapping[str, str]) -> Audit:
        for table in self.experiment.algorithms:
            for private in (False, True) if self.experiment.privacy else (False,):
                self._try(table, private)
        if not self.findings:
            raise ConfigError(f"no method could be audited: {'; '.join(self.notes)}")
        if self.experiment.privacy is None:
            words = "The experiment is not private. Add [privacy] with clip and noise or epsilon, and audit it again."
            self.notes.append(words)
        privacy = self.experiment.privacy
        about = None if privacy is None else asdict(privacy)
        settings = asdict(self.options)
        made = (self.experiment.name, self.experiment.hash, hashes, settings, about, self.seen)
        return Audit(*made, tuple(self.findings), tuple(self.notes), tuple(self.pictures))

    def _try(self, table: Table, private: bool) -> None:
        """Audit a method; one of several that does not fit, cannot be private or diverges is left out with a note."""
        label, privacy = algorithm_label(table), self.experiment.privacy if private else None
        settings = replace(self.experiment, privacy=privacy)
        try:
            self._audit(build_job(table, self.experiment.seeds[0], settings, self.setting), label, private)
        except (ConfigError, DivergedError) as error:
            if len(self.experiment.algorithms) == 1:
                raise
            self.notes.append(f"{label}{', private,' if private else ''} was left out: {error}")

    def _audit(self, job: Job, label: str, private: bool) -> None:
        training = min(self.options.training, self.experiment.rounds) if self.options.shadows else 0
        self.display.begin(f"{label}{', private' if private else ''}", 0, len(self.victims) + training)
        attacked = self._attack(job, label, private)
        for name, outcomes in attacked.outcomes.items():
            self.findings += findings_of(outcomes, self.scene, name, label, private)
        if training and not self.setting.problem.task.joint:  # type: ignore[attr-defined]
            self._infer(job, label, private, attacked, training)
        self.display.end()

    def _attack(self, job: Job, label: str, private: bool) -> _Attacked:
        recording = record(job, min(self.options.rounds, self.experiment.rounds))
        found, attacked = coefficients(recording, job.problem.seed), _Attacked({}, {})
        if found is None:
            self.notes.append(f"{label}: messages are no plain sums of gradients; changes of messages are attacked")
        for place, victim in enumerate(self.victims):
            for view in views_of(recording, self.setting.topology, victim):
                self.seen.setdefault(view.name, WORDS[view.name])
                outcome = attack(self.scene, read_gradients(recording, found, view), self._attacker(place, view))
                attacked.outcomes.setdefault(view.name, []).append(outcome)
                attacked.views.setdefault(view.name, []).append(view)
                self._picture(outcome, view, label, private)
            self.display.round(place + 1)
        return attacked

    def _attacker(self, place: int, view: View) -> Attacker:
        parts = self.scene.problem.parts
        own = np.concatenate([parts[i] for i in view.members if i != view.victim])
        return Attacker(view.victim, torch.from_numpy(own), self.options.steps if place < self.options.inverted else 0)

    def _picture(self, outcome: Outcome, view: View, label: str, private: bool) -> None:
        if outcome.originals is None or not self.scene.pictured:
            return
        optimised = None if outcome.inverted is None else outcome.inverted.images
        name = self.scene.problem.worker_name(view.victim)
        shown = (outcome.originals, outcome.quotients, optimised)
        self.pictures.append(Picture(label, private, view.name, name, *shown))

    def _infer(self, job: Job, label: str, private: bool, attacked: _Attacked, training: int) -> None:
        privacy = self.experiment.privacy if private else None
        done = len(self.victims)
        shadows = train_shadows(job, privacy, self.options.shadows, training, lambda t: self.display.round(done + t))
        for name, views in attacked.views.items():
            found = self._advantage(shadows, views)
            delta = privacy.delta if privacy else 0.0
            self.findings += membership_findings(found, shadows.epsilon, delta, len(views), name, label, private)

    def _advantage(self, shadows: Shadows, views: list[View]) -> membership.Advantage:
        ratios, members = [], []
        for view in views:
            rows = torch.from_numpy(self.scene.problem.parts[view.victim])
            values = scores(self.scene.problem, shadows.models[:, view.source], rows).numpy()
            ratios.append(membership.log_ratios(values, shadows.members[view.victim]))
            members.append(shadows.members[view.victim])
        return membership.advantage(ratios, members, self.scene.problem.seed)
