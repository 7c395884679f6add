"""What a repository needs beside its code: the workflow, hooks, issue forms, and the check before a release."""

from __future__ import annotations

import runpy
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import netfleet
from netfleet.gradients.native import build
from netfleet.gradients.native.compiler import NAMES, SCALARS, file_name

ROOT = Path(__file__).parents[1]


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_the_workflow_is_the_projects_own_check_on_every_python_that_is_supported() -> None:
    job = read(".github/workflows/ci.yml")["jobs"]["test"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={job['strategy']['matrix']['python'][0]}"
    assert [step["run"] for step in job["steps"] if "run" in step] == ["bash .ci/run"]
    assert (ROOT / ".ci" / "run").is_file()


def test_the_hook_is_a_target_of_the_makefile() -> None:
    (hook,) = read(".pre-commit-config.yaml")["repos"][0]["hooks"]
    make, target = hook["entry"].split()
    assert make == "make"
    assert f"\n{target}:" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("name", ["bug", "method"])
def test_issue_forms_have_what_they_need(name: str) -> None:
    form = read(f".github/ISSUE_TEMPLATE/{name}.yml")
    assert form.keys() >= {"name", "description", "body"}
    assert {part["type"] for part in form["body"]} <= {"textarea", "input", "markdown", "dropdown", "checkboxes"}
    assert all(part["attributes"]["label"] for part in form["body"])
    assert any(part.get("validations", {}).get("required") for part in form["body"])


# ---- the check before a release ----


@pytest.fixture(scope="module")
def release() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(ROOT / ".ci" / "check_release.py")))


def test_a_changelog_without_a_date_and_another_version_are_named(release: SimpleNamespace, tmp_path: Path) -> None:
    page, version = tmp_path / "CHANGELOG.md", netfleet.__version__
    for heading in (f"## {version} (unreleased)", "## 99.0.0 (2026-01-01)", "text"):
        page.write_text(f"# Changelog\n\n{heading}\n")
        with pytest.raises(release.NotYet, match=r"CHANGELOG\.md begins with"):
            release.changelog(tmp_path)
    page.write_text(f"# Changelog\n\n## {version} (2026-01-01)\n")
    release.changelog(tmp_path)
    (tmp_path / "CITATION.cff").write_text("version: 99.0.0\n")
    with pytest.raises(release.NotYet, match=r"CITATION\.cff has version 99.0.0"):
        release.citation(tmp_path)
    release.citation()


def wheel(folder: Path, description: str, *missing: str) -> Path:
    names = {file_name(name, scalar, level) for name in NAMES for scalar in SCALARS for level in build.levels()}
    path = folder / f"netfleet-{netfleet.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        for name in names - set(missing):
            file.writestr(f"netfleet/{name}", "")
        file.writestr("netfleet.dist-info/METADATA", description)
    return path


@pytest.mark.skipif(not build.levels(), reason="no native libraries on this kind of processor")
def test_a_wheel_without_its_libraries_or_with_dead_links_is_named(release: SimpleNamespace, tmp_path: Path) -> None:
    release.check_wheel(wheel(tmp_path, "[docs](https://example.org/docs)"))
    with pytest.raises(release.NotYet, match=r"links to docs/sites\.md"):
        release.check_wheel(wheel(tmp_path, "[docs](docs/sites.md)"))
    with pytest.raises(release.NotYet, match="lacks native libraries"):
        release.check_wheel(wheel(tmp_path, "", file_name(NAMES[0], next(iter(SCALARS)), build.levels()[0])))


@pytest.mark.parametrize("repository", ["", "https://example.org/netfleet"])
def test_the_description_has_no_link_to_a_file_beside_it(repository: str, tmp_path: Path) -> None:
    code = "import setuptools.build_meta as meta, sys; meta.prepare_metadata_for_build_wheel(sys.argv[1])"
    environment = {"PATH": "", "CXX": "", "NETFLEET_REPOSITORY": repository}
    subprocess.run([sys.executable, "-c", code, tmp_path], cwd=ROOT, env=environment, check=True, capture_output=True)
    (path,) = tmp_path.glob("*.dist-info/METADATA")
    text = path.read_text(encoding="utf-8")
    assert "](docs/" not in text
    assert "](reproduce/" not in text
    place = f"{repository}/blob/v{netfleet.__version__}"
    assert (f"[docs/python.md]({place}/docs/python.md)" in text) == bool(repository)
    assert (f"({repository}/raw/v{netfleet.__version__}/reproduce/figures/fig1b.png)" in text) == bool(repository)
    assert "https://doi.org/" in text
