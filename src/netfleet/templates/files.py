"""The texts of the files that `netfleet init` writes. Nothing here imports torch, so the command answers at once."""

import json
import tomllib
from importlib import resources
from pathlib import Path

from netfleet.sites.policy.starter import Allowed, policy_text

EXPERIMENT, NODES, OWN_DATA, POLICY = "experiment.toml", "nodes.toml", "own_data.py", "policy.toml"


def experiment_text(path: Path) -> str:
    """An experiment with the name of its file, which its comments mention."""
    name = json.dumps(path.stem, ensure_ascii=False)
    return _template(EXPERIMENT).replace("{name}".ljust(len(name)), name).replace("{file}", path.name)


def site_texts() -> dict[str, str]:
    """What a group of sites begins with, by the names of the files."""
    texts = {name: _template(f"sites/{name}") for name in (EXPERIMENT, NODES, OWN_DATA)}
    return texts | {POLICY: _policy(texts)}


def site_names(texts: dict[str, str]) -> tuple[str, ...]:
    return tuple(node["name"] for node in tomllib.loads(texts[NODES])["nodes"])


def _policy(texts: dict[str, str]) -> str:
    """A policy that every site of the trial can have: its neighbours are among the sites, two of them on the ring."""
    experiment = tomllib.loads(texts[EXPERIMENT])
    method, batch = experiment["algorithms"][0]["kind"], experiment["problem"]["batch"]
    return policy_text(Allowed(method, site_names(texts), least=2, batch=batch))


def _template(name: str) -> str:
    return (resources.files("netfleet.templates") / name).read_text(encoding="utf-8")
