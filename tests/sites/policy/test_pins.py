"""Pinned certificates: whom a site knows, whom it meets for the first time, and who was renewed."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from netfleet.cli import main
from netfleet.errors import CertificateError, ConfigError, PolicyError
from netfleet.sites.network.outbox import Outbox
from netfleet.sites.planning import certificates as tls
from netfleet.sites.planning.certificates import certificate_pem, fingerprint, read_certificate
from netfleet.sites.planning.folders import Neighbour, all_neighbours, all_sites, load_site
from netfleet.sites.policy.peers import KnownPeers
from netfleet.sites.policy.start import open_site
from netfleet.sites.runtime.membership import Membership
from support.site_peers import S1, Log, World, in_force, revoke

# ---- pins ----


def test_a_plan_pins_the_neighbours(world: World) -> None:
    assert sorted(path.name for path in (world.folder("s1") / "pins").iterdir()) == ["s0.pem", "s2.pem"]
    log = Log()
    peers, identity = world.peers("s0", log), world.identity("s1")
    peers.check(identity.certificate, S1)
    assert peers.roots("s1") == identity.certificate
    assert log.events == log.refusals == []


def test_another_certificate_with_the_right_name_is_refused(world: World) -> None:
    peers, other = world.peers("s0", Log()), world.impostor("s1")
    shown = fingerprint(tls.x509.load_pem_x509_certificate(other.certificate))
    with pytest.raises(CertificateError, match=rf"its certificate {shown} is not pinned here; .*netfleet pin"):
        peers.check(other.certificate, S1)
    assert other.certificate not in peers.roots("s1")


def test_a_neighbour_without_a_pin_is_pinned_at_its_first_request(world: World) -> None:
    shutil.rmtree(world.folder("s0") / "pins")
    log = Log()
    peers, identity = world.peers("s0", log), world.identity("s1")
    assert peers.roots("s1") == identity.ca
    peers.check(identity.certificate, S1)
    ((what, fields),) = log.events
    shown = fingerprint(read_certificate(world.folder("s1") / "node.pem"))
    assert (what, fields) == ("pinned", {"neighbour": "s1", "fingerprint": shown})
    again = world.peers("s0", log)  # it is on disk
    assert again.roots("s1") == identity.certificate
    with pytest.raises(CertificateError, match="is not pinned here"):
        again.check(world.impostor("s1").certificate, S1)


def test_an_admitted_neighbour_shows_the_certificate_that_was_admitted(world: World) -> None:
    shutil.rmtree(world.folder("s0") / "pins")
    shown = fingerprint(read_certificate(world.folder("s1") / "node.pem"))
    admitted = Neighbour("s1", 1, "127.0.0.1:1", 0.5, shown)
    peers = world.peers("s0", Log())
    with pytest.raises(CertificateError, match="is not the one that was admitted"):
        peers.check(world.impostor("s1").certificate, admitted)
    peers.check(world.identity("s1").certificate, admitted)


def test_whoever_has_the_key_may_renew_the_certificate(world: World) -> None:
    log = Log()
    peers, first = world.peers("s0", log), world.identity("s1")
    renewed = world.impostor("s1", first.key)
    peers.check(renewed.certificate, S1)
    assert [what for what, _ in log.events] == ["renewed"]
    assert peers.roots("s1") == first.certificate + renewed.certificate
    peers.check(first.certificate, S1)


def test_the_operator_is_not_pinned(world: World) -> None:
    world.peers("s0", Log()).check(world.impostor("s1").certificate, None)


@pytest.mark.parametrize("pem", [b"", b"nothing"])
def test_a_request_without_a_certificate_is_refused(world: World, pem: bytes) -> None:
    with pytest.raises(CertificateError, match="shows no certificate"):
        world.peers("s0", Log()).check(pem, None)


def test_pins_that_cannot_be_used_are_refused_at_the_start(world: World) -> None:
    path = world.folder("s0") / "pins" / "s1.pem"
    good = path.read_bytes()
    path.write_bytes(world.identity("s2").certificate)
    with pytest.raises(ConfigError, match=r"s1\.pem has a certificate of s2, expected s1"):
        world.peers("s0", Log())
    path.write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="is not a PEM file of certificates"):
        world.peers("s0", Log())
    path.write_bytes(good)
    (world.folder("s0") / "ca.pem").write_bytes(tls.certificate_pem(tls.new_authority().certificate))
    with pytest.raises(ConfigError, match=r"is not signed by the authority .* take pins/ from the new plan too"):
        open_site(world.folder("s0"))


def test_pins_that_are_damaged_later_let_nobody_in(world: World) -> None:
    peers, identity = world.peers("s0", Log()), world.identity("s1")
    peers.check(identity.certificate, S1)
    (world.folder("s0") / "pins" / "s1.pem").write_bytes(b"nothing")
    with pytest.raises(CertificateError, match="is not a PEM file"):
        peers.check(identity.certificate, S1)
    with pytest.raises(CertificateError, match="is not a PEM file"):
        peers.roots("s1")


def test_the_policys_fingerprints(world: World) -> None:
    shown = fingerprint(read_certificate(world.folder("s1") / "node.pem"))
    good, bad = (in_force(neighbours={"fingerprints": {"s1": text}}) for text in (shown, "ab" * 32))
    world.peers("s0", Log(), good).check(world.identity("s1").certificate, S1)
    assert world.peers("s0", Log(), good).roots("s1") == world.identity("s1").certificate
    with pytest.raises(CertificateError, match=r"rule neighbours\.fingerprints"):
        world.peers("s0", Log(), bad).check(world.identity("s1").certificate, S1)
    with pytest.raises(CertificateError, match="no certificate that this site may accept"):
        world.peers("s0", Log(), bad).roots("s1")
    policy = world.folder("s0") / "policy.toml"
    policy.write_text(f'[neighbours.fingerprints]\ns1 = "{shown}"\n')
    open_site(world.folder("s0"))
    policy.write_text(f'[neighbours.fingerprints]\ns1 = "{"ab" * 32}"\n')
    with pytest.raises(PolicyError, match=rf"neighbours\.fingerprints: the plan has s1 with the certificate {shown}"):
        open_site(world.folder("s0"))
    shutil.rmtree(world.folder("s0") / "pins")
    with pytest.raises(PolicyError, match="s1 without a pin"):
        open_site(world.folder("s0"))


# ---- netfleet pin ----


def test_a_renewed_certificate_is_pinned_by_command_while_the_site_runs(world: World, capsys: Any) -> None:
    peers, renewed, path = world.peers("s0", Log()), world.impostor("s1"), world.plan / "renewed.pem"
    path.write_bytes(renewed.certificate)
    with pytest.raises(CertificateError, match="is not pinned"):
        peers.check(renewed.certificate, S1)
    assert main(["pin", str(world.folder("s0")), str(path)]) == 0
    assert capsys.readouterr().out.count("s1  ") == 2
    peers.check(renewed.certificate, S1)
    peers.check(world.identity("s1").certificate, S1)
    assert main(["pin", str(world.folder("s0")), str(path), "--replace"]) == 0
    with pytest.raises(CertificateError, match="is not pinned"):
        peers.check(world.identity("s1").certificate, S1)


@pytest.mark.parametrize(
    ("who", "words"), [("s2", "a certificate of s2, expected one of s1"), ("other", "is not signed by the authority")]
)
def test_a_certificate_that_is_no_neighbours_is_not_pinned(world: World, who: str, words: str, capsys: Any) -> None:
    path = world.plan / "some.pem"
    if who == "other":
        made = tls.new_key()
        path.write_bytes(
            tls.certificate_pem(tls.issue(tls.new_authority(), "s1", "127.0.0.1", made.public_key(), days=1))
        )
    else:
        path.write_bytes(world.identity("s2").certificate)
    before = (world.folder("s0") / "pins" / "s1.pem").read_bytes()
    assert main(["pin", str(world.folder("s0")), str(path)]) == 2
    assert words in capsys.readouterr().err
    assert (world.folder("s0") / "pins" / "s1.pem").read_bytes() == before


def test_whoever_asks_for_the_status_knows_an_admitted_site_and_its_certificate(world: World, capsys: Any) -> None:
    assert revoke(world, "s1") == 0
    assert main(["admit", str(world.plan), "new", "127.0.0.1:9999", "--neighbours", "s0,s2"]) == 0
    said = capsys.readouterr().out
    shown = certificate_pem(read_certificate(world.folder("new") / "node.pem"))
    operator = world.folder("operator")
    assert [site.name for site in all_sites(operator)] == ["s0", "s1", "s2", "new"]
    assert KnownPeers(operator, world.identity("s0").ca).roots("new") == shown
    for name in ("admitted/new.toml", "certificates/new.pem"):
        assert (operator / name).is_file()
        assert name in said  # for copies of the operator's folder
    assert [each.name for each in all_neighbours(world.folder("s0"))] == ["s1", "new"]
    assert [each.name for each in all_neighbours(world.folder("s1"))] == ["s0", "s2"]
    assert (world.folder("new") / "revoked.pem").read_bytes() == (operator / "revoked.pem").read_bytes()


def test_a_site_that_is_admitted_later_is_pinned_by_both_ends(world: World, capsys: Any) -> None:
    assert main(["admit", str(world.plan), "new", "127.0.0.1:9999", "--neighbours", "s0,s2"]) == 0
    assert sorted(path.name for path in (world.folder("new") / "pins").iterdir()) == ["s0.pem", "s2.pem"]
    shown = fingerprint(read_certificate(world.folder("new") / "node.pem"))
    assert f'fingerprint = "{shown}"' in (world.folder("s0") / "neighbours.d" / "new.toml").read_text()
    site, _ = load_site(world.folder("s0"))
    contact = Membership(world.folder("s0"), site, 10, Outbox(), Log().refused).find_neighbour("new")
    assert contact is not None
    assert contact.neighbour.fingerprint == shown
