"""An evicted site: no certificate of it counts any more, and only the authority can say so."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from netfleet.cli import main
from netfleet.errors import CertificateError, ConfigError
from netfleet.sites.network.outbox import Outbox
from netfleet.sites.network.wire import SiteNews
from netfleet.sites.planning.certificates import new_authority
from netfleet.sites.planning.folders import load_site
from netfleet.sites.policy.revocation import RevocationList
from netfleet.sites.policy.revocation import revoke as next_list
from netfleet.sites.runtime.membership import Membership
from support.site_peers import PATH, S1, Log, World, revoke
from support.site_processes import plan_sites


def evict(world: World, name: str, why: str = "it lies") -> int:
    return main(["evict", str(world.plan), name, "--why", why])


@pytest.mark.parametrize("revoked_before", [False, True])
def test_no_certificate_of_an_evicted_site_counts(world: World, revoked_before: bool, capsys: Any) -> None:
    log = Log()
    peers = world.peers("s0", log)
    site, _ = load_site(world.folder("s0"))
    evicted = peers.why_evicted
    members = Membership(world.folder("s0"), site, 10, Outbox(), log.refused, evicted=evicted)
    if revoked_before:
        assert revoke(world, "s1") == 0
    assert members.is_there(1, 3)
    assert evict(world, "s1") == 0
    said = capsys.readouterr().out
    assert "by which s1 is evicted" in said
    assert "Without s1 the sites are 2 groups that train apart: s0; s2" in said
    assert peers.why_evicted("s1") == members.why_evicted(1) == "it lies"
    assert not members.is_there(1, 3)
    assert members.is_out("s1")
    for certificate in (world.identity("s1").certificate, world.impostor("s1").certificate):
        with pytest.raises(CertificateError, match=r"it was evicted \(it lies\)"):
            peers.check(certificate, S1)
    with pytest.raises(CertificateError, match=r"was evicted \(it lies\)"):
        peers.roots("s1")
    with pytest.raises(ConfigError, match=r"this site's certificate was evicted on .* \(it lies\)"):
        world.peers("s1", Log())
    assert revoke(world, "s2") == 0  # a later list keeps it
    assert peers.why_evicted("s1") == "it lies"
    assert peers.why_evicted("s2") is None


@pytest.mark.parametrize("how", ["left", "evicted"])
def test_nobody_misses_a_neighbour_that_is_away(world: World, how: str) -> None:
    """s0 knows that s1 has left or was evicted; a site farther away hears from s0 that there is nothing to miss."""
    outs = {"s1"} if how == "evicted" else set[str]()
    outbox, far = Outbox(), Outbox()
    site, _ = load_site(world.folder("s0"))
    members = Membership(
        world.folder("s0"), site, 10, outbox, Log().refused, evicted=lambda name: "it lies" if name in outs else None
    )
    other, _ = load_site(world.folder("s2"))
    others = Membership(world.folder("s2"), other, 10, far, Log().refused)
    for each in (members, others):
        each.start(0)
    if how == "left":
        members.gone.add(1)
    outbox.t = far.t = 9
    others.known[0] = 9
    assert members.sites_apart() == [2]
    assert others.sites_apart() == [1]
    others.note_news(1, 0, members.news())
    assert others.sites_apart() == []


def test_news_of_an_alarm_go_over_sites_that_have_none(world: World) -> None:
    """s0 – s1 – s2: what s0 says of itself reaches s2, and nothing is concluded from what nobody has said."""
    near, far = (
        Membership(world.folder(name), load_site(world.folder(name))[0], 10, Outbox(), Log().refused)
        for name in ("s1", "s2")
    )
    for each in (near, far):
        each.start(0)
        each.note_alarm(False)
    assert far.alarm_anywhere() is None
    for t, stands in enumerate([False, True, False], 1):
        near.note_news(0, t, [SiteNews(t, stands)])
        near.note_news(2, t, [SiteNews(-1), SiteNews(-1), SiteNews(t, False)])
        near.outbox.t = t
        far.note_news(1, t, near.news())
        assert near.alarm_anywhere() is far.alarm_anywhere() is stands
    far.note_news(1, 4, [SiteNews(4), SiteNews(4, True)])
    assert far.alarm_anywhere() is True


def test_the_alarm_of_a_site_that_is_away_stands_nowhere(world: World) -> None:
    """s0 – s1 – s2: s0 is evicted while it has an alarm; s2, which is not told of it, forgets the alarm."""
    outs = set[str]()
    near, far = (
        Membership(
            world.folder(name),
            load_site(world.folder(name))[0],
            10,
            Outbox(),
            Log().refused,
            evicted=lambda name: "it lies" if name in outs else None,
        )
        for name in ("s1", "s2")
    )
    for each in (near, far):
        each.start(0)
        each.note_alarm(False)
    near.note_news(0, 1, [SiteNews(1, True)])
    far.note_news(1, 1, near.news())
    assert far.alarm_anywhere() is True
    outs.add("s0")
    near.outbox.t = 2
    far.note_news(1, 2, near.news())
    outs.clear()  # s2 has heard nothing of the eviction
    assert far.alarm_anywhere() is False


def test_another_authority_cannot_evict(world: World) -> None:
    log = Log()
    peers, stranger = world.peers("s0", log), new_authority(world.authority.certificate.subject.rfc4514_string()[3:])
    made = next_list(stranger, RevocationList(), [], "it lies", datetime.now(UTC), evict=True)
    (world.folder("s0") / "revoked.pem").write_bytes(made.pem)
    assert peers.why_evicted("s1") is None
    assert "signature" in log.whys()


def test_a_new_site_cannot_be_a_neighbour_of_an_evicted_one(world: World, capsys: Any) -> None:
    assert evict(world, "s1") == 0
    words = ["admit", str(world.plan), "s3", "127.0.0.1:7777", "--neighbours"]
    assert main([*words, "s0,s1"]) == 2
    assert "--neighbours must be some of s0, s2, each once; got s0, s1" in capsys.readouterr().err
    assert main([*words, "s0,s2"]) == 0


def test_what_cannot_be_evicted(world: World, tmp_path: Path, capsys: Any) -> None:
    assert evict(world, "nobody") == 2
    assert "nobody is no site of" in capsys.readouterr().err
    assert evict(world, "s1", "two\nlines") == 2
    compressed = {**PATH["algorithms"][0], "compress": {"kind": "quantize", "bits": 8}}
    plan_sites(tmp_path / "fixed", {**PATH, "algorithms": [compressed]}, 3)
    fixed = World(tmp_path / "fixed" / "plan", world.authority)
    assert evict(fixed, "s1") == 2
    assert "s1 cannot be evicted: " in capsys.readouterr().err
    assert not (fixed.plan / "operator" / "revoked.pem").exists()
