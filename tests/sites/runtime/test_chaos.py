"""Sites that are killed at any moment, again and again: nothing is lost, not a bit and not a line.

Their gradients are private and their links have noise, so this shows too that a repeated round draws the same rows and
the same noise.
"""

from __future__ import annotations

import functools
import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from netfleet.privacy.receipts.lines import Differs, Repaired, Sent
from support.receipts import check_records, checked, entries
from support.site_memory import give_simulated_secrets, undisturbed_sites
from support.site_processes import ACCIDENTS, SiteProcesses, arm, site_processes
from support.site_settings import DIGITS

pytestmark = pytest.mark.slow

KILLS, ACCIDENTAL = 42, 20
CHAOS: dict[str, Any] = {
    **DIGITS,
    "rounds": 60,
    "topology": {"kind": "ring", "workers": 4},
    "evaluation": {"every": 2},
    "engine": {"dtype": "float32"},
    "privacy": {"clip": 1.0, "noise": 0.5, "link_noise": 0.02},
}


def restart(sites: SiteProcesses, name: str, dice: random.Random, accidents: list[str]) -> None:
    """Start a site again; as long as there are accidents left, it may run into one."""
    before = None
    if accidents and dice.random() < 0.5:
        before = functools.partial(arm, accidents.pop(), dice.randint(1, 6))
    sites.start(name, before=before)


def kill_at_random(sites: SiteProcesses, dice: random.Random) -> tuple[int, int]:
    """Kill sites at random moments of random rounds until all are done; how often, and how often while they wrote."""
    targets = sorted(dice.randint(1, CHAOS["rounds"] - 3) for _ in range(KILLS))
    accidents = [ACCIDENTS[i % len(ACCIDENTS)] for i in range(ACCIDENTAL)]
    killed = struck = 0
    while any(process.exitcode != 0 for process in sites.running.values()):
        for name, process in list(sites.running.items()):
            if process.exitcode == -9:
                struck += 1
                restart(sites, name, dice, accidents)
            assert process.exitcode in (None, 0, -9), sites.tail(name)
        victim = dice.choice(sites.names)
        if targets and sites.round(victim) >= targets[0] and sites.running[victim].exitcode is None:
            time.sleep(dice.uniform(0, 0.05))
            sites.kill(victim)
            targets.pop(0)
            killed += 1
            restart(sites, victim, dice, accidents)
        time.sleep(0.01)
    assert not targets
    return killed, struck


def test_sites_killed_fifty_times_end_as_if_nothing_had_happened(tmp_path: Path) -> None:
    undisturbed = undisturbed_sites(tmp_path / "undisturbed", CHAOS, 4)
    with site_processes(tmp_path / "chaos", CHAOS, 4) as chaos:
        give_simulated_secrets(chaos.plan, tmp_path / "chaos")
        chaos.start()
        killed, struck = kill_at_random(chaos, random.Random(8))
        assert killed + struck >= 50
        assert struck >= 8
        for name in undisturbed.names:
            assert chaos.history(name) == undisturbed.history(name)
            for kind in (SiteProcesses.model, SiteProcesses.state):
                found, expected = kind(chaos, name), kind(undisturbed, name)
                assert found.keys() == expected.keys()
                assert all(torch.equal(found[key], expected[key]) for key in found)
        check_records(chaos.folders())
        for mine, other in zip(chaos.folders(), undisturbed.folders(), strict=True):
            assert digests(mine) == digests(other)  # so every replay sent what was sent before
            assert entries(mine, Differs) == []
        repaired = [each for folder in chaos.folders() for each in entries(folder, Repaired)]
        assert repaired
        for folder in chaos.folders():
            for neighbour in checked(folder).summary.neighbours.values():
                assert neighbour.sent["message"].unconfirmed == 0


def digests(folder: Path) -> list[tuple[int, int, str]]:
    return [(sent.round, sent.exchange, sent.digest) for sent in entries(folder, Sent)]
