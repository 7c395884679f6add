"""policy.toml: strict, and exactly one in force."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomli_w

from netfleet.errors import ConfigError, PolicyError
from netfleet.sites.policy.in_force import NO_POLICY, VARIABLE, find_policy
from netfleet.sites.policy.settings import Policy, parse_fingerprint, parse_policy, read_policy

DIGITS = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"trainng": {}}, r"unknown table or key 'trainng' \(did you mean 'training'\?\)"),
        ({"training": {"batch": 3}}, "unknown key 'batch' in .training.*known: .*least_batch"),
        ({"training": 3}, "training must be a table"),
        ({"training": {"least_batch": "many"}}, "least_batch.* must be a whole number"),
        ({"training": {"least_batch": -1}}, "least_batch must be a whole number, 0 or more, got -1"),
        ({"training": {"methods": ["netfleet"]}}, r"'netfleet', which is no method \(did you mean 'net-fleet'"),
        ({"training": {"compression": "no"}}, "compression.* must be true or false"),
        ({"privacy": {"epsilon": 0}}, "epsilon must be a number above 0"),
        ({"privacy": {"delta": 1}}, "delta must be a number between 0 and 1"),
        ({"neighbours": {"least": -2}}, "least must be"),
        ({"neighbours": {"names": ["a b"]}}, "'a b' is not valid for a site"),
        ({"neighbours": {"fingerprints": {"a": ["xy"]}}}, "'xy' is no SHA-256 fingerprint"),
        ({"neighbours": {"fingerprints": {"a": []}}}, "fingerprints of a must be a text or a list of texts"),
        ({"data": {"least_rows": -1}}, "least_rows must be"),
        ({"show": {"everything": True}}, "unknown key 'everything'"),
    ],
)
def test_what_is_wrong_in_a_policy_is_refused(table: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_policy(table)
    path = tmp_path / "policy.toml"
    path.write_text(tomli_w.dumps(table))
    with pytest.raises(PolicyError, match="does not start"):
        read_policy(path)


def test_an_empty_policy_allows_everything() -> None:
    assert parse_policy({}) == Policy()


def test_fingerprints_are_read_as_openssl_writes_them() -> None:
    pairs = ":".join(DIGITS[i : i + 2] for i in range(0, 64, 2)).upper()
    assert parse_fingerprint(f"sha256 Fingerprint={pairs}") == parse_fingerprint(DIGITS) == DIGITS
    policy = parse_policy({"neighbours": {"fingerprints": {"a": pairs, "b": [DIGITS, pairs]}}})
    assert policy.neighbours.certificates("a") == policy.neighbours.certificates("b") == {DIGITS}
    assert policy.neighbours.certificates("c") is None


# ---- which one is in force ----


def write(path: Path, text: str = "[code]\napproved = true\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_folders_own_policy_is_found(tmp_path: Path) -> None:
    assert find_policy(tmp_path, None, {}) is NO_POLICY
    path = write(tmp_path / "policy.toml")
    for environ in ({}, {VARIABLE: "required"}, {VARIABLE: str(path)}):
        found = find_policy(tmp_path, None, environ)
        assert found.path == path
        assert found.policy.code.approved
        assert len(found.digest) == 64


def test_a_policy_outside_of_the_folder(tmp_path: Path) -> None:
    path, folder = write(tmp_path / "etc" / "own.toml"), tmp_path / "site"
    folder.mkdir()
    for given, environ in ((path, {}), (None, {VARIABLE: str(path)}), (path, {VARIABLE: "required"})):
        assert find_policy(folder, given, environ).path == path


def test_a_missing_policy_is_refused_where_the_site_needs_one(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"NETFLEET_POLICY=required, but .*policy\.toml is missing; make it with"):
        find_policy(tmp_path, None, {VARIABLE: "required"})
    with pytest.raises(PolicyError, match="NETFLEET_POLICY=yes: there is no such file"):
        find_policy(tmp_path, None, {VARIABLE: "yes"})
    with pytest.raises(PolicyError, match=r"--policy .*none: there is no such file"):
        find_policy(tmp_path, tmp_path / "none", {})


def test_a_broken_policy_is_refused_and_never_taken_for_none(tmp_path: Path) -> None:
    path = write(tmp_path / "policy.toml", "[training\n")
    with pytest.raises(PolicyError, match="not valid TOML"):
        find_policy(tmp_path, None, {})
    path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(PolicyError, match="cannot read"):
        find_policy(tmp_path, None, {})


def test_two_policies_are_refused(tmp_path: Path) -> None:
    """A plan that brings a policy cannot replace the site's own."""
    own, other = write(tmp_path / "etc" / "own.toml"), write(tmp_path / "site" / "policy.toml", "")
    with pytest.raises(PolicyError, match="there are two policies"):
        find_policy(other.parent, None, {VARIABLE: str(own)})
    with pytest.raises(PolicyError, match=r"--policy is .* but NETFLEET_POLICY is"):
        find_policy(tmp_path, other, {VARIABLE: str(own)})
