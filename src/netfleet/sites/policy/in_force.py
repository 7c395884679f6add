"""Which policy is in force at a site.

Exactly one is: that of `--policy` or of the environment variable NETFLEET_POLICY, or else `policy.toml` in the site's
folder. NETFLEET_POLICY=required says that a site without a policy does not start, which no plan can undo. A path there
does the same, and keeps the policy away from the folder, which came from the operator.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from netfleet.errors import PolicyError
from netfleet.sites.policy.settings import Policy, read_policy

VARIABLE, REQUIRED = "NETFLEET_POLICY", "required"
POLICY_FILE = "policy.toml"


class PolicyInForce(NamedTuple):
    """A policy, its file (None: the site has none) and the file's SHA-256."""

    policy: Policy = Policy()
    path: Path | None = None
    digest: str = ""

    @property
    def name(self) -> str:
        """The beginning of the digest, by which logs and status name a policy."""
        return self.digest[:12]


#: Of a site without a policy.
NO_POLICY = PolicyInForce()


def find_policy(folder: Path, given: Path | None = None, environ: Mapping[str, str] | None = None) -> PolicyInForce:
    """The policy in force; raises if there are two, or if one is missing that somebody asks for."""
    path = policy_path(folder, given, os.environ if environ is None else environ)
    return NO_POLICY if path is None else PolicyInForce(*_read(path))


def _read(path: Path) -> tuple[Policy, Path, str]:
    policy, digest = read_policy(path)
    return policy, path, digest


def new_policy_path(folder: Path, given: Path | None) -> Path:
    """Where a site's policy belongs."""
    return given or _named(os.environ) or folder / POLICY_FILE


def _named(environ: Mapping[str, str]) -> Path | None:
    """The path that the environment names, if it does."""
    said = environ.get(VARIABLE, "")
    return None if said in ("", REQUIRED) else Path(said).expanduser()


def policy_path(folder: Path, given: Path | None, environ: Mapping[str, str]) -> Path | None:
    """The file of the policy in force; None if the site has none and says nowhere that it needs one."""
    own, said, named = folder / POLICY_FILE, environ.get(VARIABLE, ""), _named(environ)
    if given is not None and named is not None and given.resolve() != named.resolve():
        raise PolicyError(f"--policy is {given}, but {VARIABLE} is {said}; leave one of them out")
    elsewhere = given if given is not None else named
    if elsewhere is not None and not elsewhere.is_file():
        asked = f"--policy {given}" if given is not None else f"{VARIABLE}={said}"
        advice = f"make it with netfleet policy init, or set {VARIABLE} to {REQUIRED} or to the path of a policy"
        raise PolicyError(f"{asked}: there is no such file, and this site needs a policy; {advice}")
    if elsewhere is not None and os.path.lexists(own) and own.resolve() != elsewhere.resolve():
        raise PolicyError(f"there are two policies, {elsewhere} and {own}; remove one, so that it is clear which holds")
    if elsewhere is not None or os.path.lexists(own):
        return elsewhere or own
    if said == REQUIRED:
        advice = f"make it with netfleet policy init {folder}, and read it"
        raise PolicyError(f"{VARIABLE}={REQUIRED}, but {own} is missing; {advice}")
    return None
