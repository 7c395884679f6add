"""Membership inference on real trainings: what is learned by heart is found, what is not learned is not."""

from __future__ import annotations

import numpy as np
import torch

from netfleet.algorithms.build import make_algorithm
from netfleet.data import Dataset
from netfleet.engines.job import Job
from netfleet.privacy.audit.membership import Advantage, advantage, bound, log_ratios
from netfleet.privacy.audit.shadows import Copies, Shadows, scores, train_shadows
from netfleet.privacy.build import make_private
from netfleet.privacy.queries import queries_after
from netfleet.privacy.settings import Privacy
from netfleet.problems.models import mlp
from netfleet.problems.module import ModuleProblem
from netfleet.topology.topology import make_topology

WORKERS, ROWS, SHADOWS, ROUNDS = 3, 16, 8, 30
DELTA = 1e-3


def random_labels() -> ModuleProblem:
    """Labels that can only be learned by heart."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(WORKERS * ROWS, 12, generator=draw), torch.randint(3, (WORKERS * ROWS,), generator=draw)
    torch.manual_seed(0)
    parts = np.array_split(np.arange(WORKERS * ROWS), WORKERS)
    return ModuleProblem(mlp((12,), 3, [64]), Dataset("noise", x, y, x[:4], y[:4], classes=3), parts, batch=4)


def test_targets_are_scored_as_the_loss_takes_them() -> None:
    """Labels of a data set are whole numbers; the loss of yes or no wants them as numbers with a fraction."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(8, 3, generator=draw), torch.arange(8) % 2
    problem = ModuleProblem(torch.nn.Linear(3, 1), Dataset("toy", x, y, x, y), [np.arange(8)], loss="bce", batch=4)
    (losses,) = -scores(problem, problem.start()[None], torch.arange(8))
    chance = problem.module(problem.start())(x)[:, 0].sigmoid().detach()
    assert torch.allclose(losses.float(), -torch.where(y == 1, chance, 1 - chance).log(), atol=1e-5)


def trained(eta: float, privacy: Privacy | None = None) -> tuple[Shadows, Advantage]:
    problem, method = random_labels(), make_algorithm({"kind": "ld-sgd", "K": 5, "eta": eta})
    if privacy is not None:
        problem = make_private(problem, privacy, queries_after(method, ROUNDS))
    job = Job(problem, make_topology("ring", workers=WORKERS), method, ROUNDS)
    found = train_shadows(job, privacy, SHADOWS, ROUNDS, lambda t: None)
    ratios = [
        log_ratios(scores(problem, found.models[:, i], torch.from_numpy(problem.parts[i])).numpy(), found.members[i])
        for i in range(WORKERS)
    ]
    return found, advantage(ratios, found.members)


def test_rows_that_a_model_has_learned_by_heart_are_found() -> None:
    shadows, found = trained(eta=0.3)
    assert found.low > 0.3
    assert shadows.epsilon is None


def test_nothing_is_found_in_models_that_have_not_learned() -> None:
    _, found = trained(eta=1e-9)
    assert found.low < 0 < found.high


def test_privacy_keeps_the_test_below_its_bound() -> None:
    shadows, found = trained(0.3, Privacy(clip=1.0, noise=4.0, delta=DELTA))
    assert shadows.epsilon is not None
    assert found.low < bound(shadows.epsilon, DELTA) < 1
    assert found.high < 0.3  # what is found without privacy is above


def test_each_copy_of_a_pair_has_the_rows_that_the_other_has_not() -> None:
    shadows, _ = trained(eta=1e-9)
    for members in shadows.members:
        assert members.shape == (SHADOWS, ROWS)
        assert (members[0::2] ^ members[1::2]).all()
        assert members.any(axis=1).all()


def test_copies_do_not_talk_to_each_other() -> None:
    ring = make_topology("ring", workers=4)
    copies = Copies(ring, 3)
    whole = copies.W(0).toarray()
    assert copies.m == 12
    assert copies.messages() == 3 * ring.messages()
    assert np.array_equal(whole[4:8, 4:8], ring.W().toarray())
    assert not whole[:4, 4:].any()
