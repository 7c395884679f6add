"""Approved code: found and hashed without running it; what changed is refused and named."""

from __future__ import annotations

import sys
import zipfile
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

import netfleet
from netfleet.cli import main
from netfleet.errors import PolicyError
from netfleet.sites.policy.approval import read_approvals
from netfleet.sites.policy.approval_text import visible
from netfleet.sites.policy.sources import find_sources, named_modules
from netfleet.sites.policy.start import open_site
from support.site_processes import plan_sites

FACTORY = """\
import helper
from inner import deep
from package.part import thing

raise RuntimeError("this must not run")
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder from which Python imports."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def names(*modules: str) -> list[str]:
    return [source.module for source in find_sources(modules)]


def test_modules_are_named_anywhere_in_an_experiment() -> None:
    table = {
        "problem": {"data": {"kind": "own.data:load", "path": "C:\\x"}, "model": "models:Net"},
        "evaluation": {"metrics": ["auroc", "own.scores:gain"]},
        "name": "a: b",
        "rounds": 3,
    }
    assert named_modules(table) == ["models", "own.data", "own.scores"]


def test_local_modules_are_followed_and_nothing_runs(place: Path) -> None:
    write(
        place,
        factory=FACTORY,
        helper="import json, torch\nfrom . import nowhere",
        package____init__="raise RuntimeError",
        package__part="from . import sibling\nfrom .sibling import x\nimport package.other",
        package__sibling="x = 1",
        package__other="def f():\n    import late",
        package__unused="",
        inner__deep="raise RuntimeError",
        late="",
    )
    (place / "package" / "__init__.py").write_text("raise RuntimeError")
    expected = ["factory", "helper", "inner.deep", "late", "package", "package.other", "package.part"]
    assert names("factory") == [*expected, "package.sibling"]
    assert not {"factory", "package", "helper"} & set(sys.modules)


def test_parents_of_a_named_module_are_found_also_without_init_files(place: Path) -> None:
    write(place, spaced__inside__part="x = 1", packed__part="x = 1")
    (place / "packed" / "__init__.py").write_text("")
    assert names("spaced.inside.part") == ["spaced.inside.part"]
    assert names("packed.part") == ["packed", "packed.part"]


def test_installed_packages_are_not_followed() -> None:
    assert names("torch.optim.adamw") == ["torch", "torch.optim", "torch.optim.adamw"]
    assert names("netfleet.registry") == ["netfleet", "netfleet.registry"]


def test_what_cannot_be_found_is_said(place: Path) -> None:
    (missing,) = find_sources(["no_such_module.part"])
    assert (missing.module, missing.path, missing.content) == ("no_such_module", None, None)
    (place / "broken.py").write_bytes(b"\xff not python")
    assert names("broken") == ["broken"]


def test_modules_in_zip_files_have_a_content(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(place / "code.zip", "w") as file:
        file.writestr("zipped.py", "x = 1")
    monkeypatch.setattr(sys, "path", [str(place / "code.zip"), *sys.path])
    assert [source.content for source in find_sources(["zipped"])] == [b"x = 1"]


class Unreadable:
    """Finds a module whose file cannot be read."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "approved_helper":
            return None
        spec = ModuleSpec(name, None, origin="/nowhere/approved_helper.py")
        spec.has_location = True
        return spec


def test_a_module_that_can_be_imported_but_not_read_is_never_approved(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "meta_path", [Unreadable, *sys.meta_path])
    approve(folder, "--yes")
    with pytest.raises(PolicyError, match=r"approved_helper \(/nowhere/approved_helper\.py\) cannot be read"):
        open_site(folder)


def test_nothing_hides_on_the_screen() -> None:
    assert visible("a\x1b[2Kb\u202ec\té") == "a\\x1b[2Kb\\u202ec\té"


# ---- a site ----

TABLE: dict[str, Any] = {
    "rounds": 2,
    "topology": {"kind": "ring"},
    "problem": {"kind": "approved_problem:make", "d": 3},
    "algorithms": [{"kind": "net-fleet", "K": 2, "eta": 0.05}],
}
PROBLEM = """\
from approved_helper import Quadratics


def make(workers: int, d: int = 4, seed: int = 0) -> Quadratics:
    return Quadratics(workers, d=d, seed=seed)
"""


@pytest.fixture
def folder(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site of a plan with code of its own, which asks for approval."""
    monkeypatch.chdir(place)
    write(place, approved_problem=PROBLEM, approved_helper="from netfleet.problems.synthetic import Quadratics\n")
    plan_sites(place, TABLE, 3)
    made = place / "plan" / "s0"
    (made / "policy.toml").write_text("[code]\napproved = true\n")
    for name in ("approved_problem", "approved_helper"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return made


def approve(folder: Path, *options: str) -> int:
    return main(["approve", str(folder), *options])


def test_code_must_be_approved_before_it_is_imported(folder: Path, capsys: Any) -> None:
    with pytest.raises(
        PolicyError, match=r"rule code\.approved: the plan has code of run \w+ that nobody has approved"
    ):
        open_site(folder)
    assert main(["policy", "check", str(folder)]) == 2
    assert "approved_problem" not in sys.modules
    capsys.readouterr()
    assert approve(folder, "--yes") == 0
    text = capsys.readouterr().out
    assert f"neighbours s1, s2, netfleet {netfleet.__version__}" in text
    assert "  def make(workers: int" in text
    assert "approved_helper.py\n  SHA-256 " in text
    assert 'kind = "approved_problem:make"' in text
    assert "approved_problem" not in sys.modules
    assert open_site(folder).site.name == "s0"


@pytest.mark.parametrize("name", ["approved_problem", "approved_helper"])
def test_code_that_changed_is_refused_by_name_until_it_is_approved_again(folder: Path, name: str, capsys: Any) -> None:
    approve(folder, "--yes")
    path = folder.parents[1] / f"{name}.py"
    path.write_text(path.read_text() + "# more\n")
    with pytest.raises(PolicyError, match=rf"changes since .*: {name} \(.*{name}\.py\) has changed"):
        open_site(folder)
    capsys.readouterr()
    assert approve(folder, "--yes") == 0
    text = capsys.readouterr().out
    assert f"{name} (now)" in text
    assert "  +# more" in text
    assert "as approved" in text
    assert text.count("def make") <= 1  # what has not changed is not shown again
    open_site(folder)


def test_an_experiment_that_changed_is_refused(folder: Path) -> None:
    approve(folder, "--yes")
    path = folder / "experiment.toml"
    path.write_text(path.read_text() + "# a remark\n")
    with pytest.raises(PolicyError, match=r"experiment\.toml \(.*\) has changed"):
        open_site(folder)


def test_code_that_is_gone_or_imported_from_elsewhere_is_refused(folder: Path) -> None:
    approve(folder, "--yes")
    (folder / "approved_helper.py").write_text("from netfleet.problems.synthetic import Logistic as Quadratics\n")
    with pytest.raises(PolicyError, match=r"approved_helper \(.*plan/s0/approved_helper\.py\) has changed"):
        open_site(folder)
    (folder / "approved_helper.py").unlink()
    (folder.parents[1] / "approved_problem.py").unlink()
    with pytest.raises(PolicyError, match=r"approved_problem \(.*\) is gone"):
        open_site(folder)


def test_another_version_of_netfleet_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    approve(folder, "--yes")
    monkeypatch.setattr(netfleet, "__version__", "99.0")
    with pytest.raises(PolicyError, match=r"netfleet was .* and is 99\.0"):
        open_site(folder)


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1), ("", 1), (None, 1)])
def test_a_person_is_asked(folder: Path, answer: str | None, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def respond(question: str) -> str:
        assert "Approve this for s0?" in question
        if answer is None:
            raise EOFError
        return answer

    monkeypatch.setattr("builtins.input", respond)
    assert approve(folder) == code
    assert (folder / "approved.json").exists() == (code == 0)


def test_approvals_are_beside_a_policy_outside_of_the_folder(folder: Path, tmp_path: Path) -> None:
    """A plan that brings an approval approves nothing."""
    approve(folder, "--yes")
    (folder / "policy.toml").rename(tmp_path / "own.toml")
    with pytest.raises(PolicyError, match="nobody has approved"):
        open_site(folder, tmp_path / "own.toml")
    assert approve(folder, "--yes", "--policy", str(tmp_path / "own.toml")) == 0
    open_site(folder, tmp_path / "own.toml")
    assert [each.site for each in read_approvals(tmp_path / "approved.json").values()] == ["s0"]


def test_a_damaged_approval_is_refused(folder: Path) -> None:
    (folder / "approved.json").write_text('{"s0": {"files": 3}}')
    with pytest.raises(PolicyError, match=r"approved\.json cannot be read"):
        open_site(folder)
