"""Revoked certificates: refused on both sides, and only by lists that the authority has signed, in their order."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from netfleet.cli import main
from netfleet.errors import CertificateError, ConfigError, StorageError
from netfleet.sites.planning import certificates as tls
from netfleet.sites.planning.certificates import Authority, fingerprint, load_identity, read_certificate
from netfleet.sites.policy.revocation import RevocationList
from netfleet.sites.policy.revocation import revoke as next_list
from support.site_peers import S1, Log, World, revoke


def test_a_revoked_certificate_is_refused_on_both_sides_without_a_restart(world: World, capsys: Any) -> None:
    log = Log()
    peers, identity = world.peers("s0", log), world.identity("s1")
    peers.check(identity.certificate, S1)
    assert revoke(world, "s1") == 0
    assert "list 1, with certificates of s1" in capsys.readouterr().out
    with pytest.raises(CertificateError, match=r"its certificate was revoked on \d{4}-.* \(its laptop was stolen\)"):
        peers.check(identity.certificate, S1)
    with pytest.raises(CertificateError, match=r"has a certificate that was revoked .* \(its laptop was stolen\)"):
        peers.roots("s1")
    assert log.events == [("revocations", {"number": 1, "names": "s1"})]
    assert peers.revocations == 1
    with pytest.raises(ConfigError, match="this site's certificate was revoked"):
        world.peers("s1", Log())
    renewed = world.impostor("s1")
    path = world.plan / "renewed.pem"
    path.write_bytes(renewed.certificate)
    assert main(["pin", str(world.folder("s0")), str(path)]) == 0
    assert "revoked on" in capsys.readouterr().out
    peers.check(renewed.certificate, S1)
    assert peers.roots("s1") == renewed.certificate


def test_the_thief_of_a_key_cannot_renew_its_certificate(world: World) -> None:
    assert revoke(world, "s1") == 0
    peers, thief = world.peers("s0", Log()), world.impostor("s1", world.identity("s1").key)
    with pytest.raises(CertificateError, match="is not pinned"):
        peers.check(thief.certificate, S1)


def test_an_unknown_certificate_of_a_revoked_name_is_not_dialled(world: World) -> None:
    assert revoke(world, "s1") == 0
    shutil.rmtree(world.folder("s0") / "pins")
    with pytest.raises(CertificateError, match="no certificate that this site may accept"):
        world.peers("s0", Log()).roots("s1")


def test_the_operators_certificate_can_be_revoked_too(world: World) -> None:
    operator = load_identity(world.folder("operator"), "operator")
    peers = world.peers("s0", Log())
    peers.check(operator.certificate, None)
    assert revoke(world, "operator") == 0
    with pytest.raises(CertificateError, match="was revoked"):
        peers.check(operator.certificate, None)


def test_lists_grow_and_keep_what_was_revoked(world: World, capsys: Any) -> None:
    renewed, path = world.impostor("s1"), world.plan / "renewed.pem"
    path.write_bytes(renewed.certificate)
    assert revoke(world, "s2") == revoke(world, "s1", "--certificate", str(path)) == 0
    assert "list 2, with certificates of s1, s2" in capsys.readouterr().out
    peers = world.peers("s0", Log())
    for certificate in (world.identity("s1").certificate, renewed.certificate, world.identity("s2").certificate):
        with pytest.raises(CertificateError, match="was revoked"):
            peers.check(certificate, None)


def lists(world: World) -> list[bytes]:
    """Lists 1 and 2 of the plan's authority."""
    found = []
    for name in ("s1", "s2"):
        assert revoke(world, name) == 0
        found.append((world.folder("operator") / "revoked.pem").read_bytes())
    for name in ("s0", "s1", "s2"):
        (world.folder(name) / "revoked.pem").unlink()
    return found


def forged(world: World) -> bytes:
    """Signed by another authority of the same name."""
    other = tls.new_authority(tls.common_names(world.authority.certificate.subject)[0])
    return _list_of(world, other)


def foreign(world: World) -> bytes:
    return _list_of(world, tls.new_authority("another one"))


def _list_of(world: World, authority: Authority) -> bytes:
    before = RevocationList(number=7)
    certificate = read_certificate(world.folder("s1") / "node.pem")
    return next_list(authority, before, [certificate], "no reason", datetime.now(UTC)).pem


def damaged(world: World) -> bytes:
    text = lists(world)[1].decode().splitlines()
    text[2] = text[2][:-2] + ("AA" if text[2][-2:] != "AA" else "BB")
    return "\n".join(text).encode()


BAD: dict[str, tuple[Callable[[World], bytes], str]] = {
    "a bad signature": (forged, "does not have this authority's signature"),
    "another authority": (foreign, "is a list of another authority, CN=another one"),
    "damage": (damaged, "signature|is not a list that netfleet revoke has written"),
    "another list with the same number": (lambda world: lists(world)[1], "is another list with number 2"),
    "nonsense": (lambda world: b"nothing", "is not a list that netfleet revoke has written"),
    "an older number": (lambda world: lists(world)[0], "has number 1, and 2 was here already"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_list_is_refused_and_the_last_good_one_stays_in_force(world: World, case: str) -> None:
    make, words = BAD[case]
    second = lists(world)[1]
    (world.folder("operator") / "revoked.pem").unlink()  # `make` may revoke too
    bad, path, log = make(world), world.folder("s0") / "revoked.pem", Log()
    path.write_bytes(second)
    peers = world.peers("s0", log)
    path.write_bytes(bad)
    with pytest.raises(CertificateError, match="was revoked"):
        peers.check(world.identity("s2").certificate, None)
    ((who, why),) = log.refusals
    assert who == "revoked.pem"
    assert re.search(words, why), why
    assert "list 2 stays in force" in why
    with pytest.raises(ConfigError, match=words):
        world.peers("s0", Log())


def test_a_list_of_which_no_copy_can_be_kept_is_taken_as_soon_as_it_can(world: World) -> None:
    log, shown = Log(), world.identity("s1").certificate
    peers, authority = world.peers("s0", log), read_certificate(world.folder("s0") / "ca.pem")
    in_the_way = world.folder("s0") / f".revoked.seen-{fingerprint(authority)[:8]}.pem.tmp"
    in_the_way.mkdir()
    assert revoke(world, "s1") == 0
    for _ in range(2):  # the old list is not in force again
        with pytest.raises(StorageError, match="cannot write"):
            peers.check(shown, S1)
    in_the_way.rmdir()
    with pytest.raises(CertificateError, match="was revoked"):
        peers.check(shown, S1)


def test_a_list_that_disappears_stays_in_force(world: World) -> None:
    assert revoke(world, "s1") == 0
    log = Log()
    peers = world.peers("s0", log)
    (world.folder("s0") / "revoked.pem").unlink()
    with pytest.raises(CertificateError, match="was revoked"):
        peers.check(world.identity("s1").certificate, S1)
    assert "has number 0, and 1 was here already" in log.whys()
    with pytest.raises(ConfigError, match="is missing, but list 1 was here; put it back"):
        world.peers("s0", Log())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["s7", "--why", "x"], "has no certificate of s7"),
        (["s1", "--why", "a\nb"], "--why must be one line"),
        (["s1", "--why", " "], "--why must be one line"),
    ],
)
def test_what_cannot_be_revoked_is_said(world: World, arguments: list[str], words: str, capsys: Any) -> None:
    assert main(["revoke", str(world.plan), *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not (world.folder("operator") / "revoked.pem").exists()
