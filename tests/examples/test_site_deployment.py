"""Sites as containers, on Kubernetes and under systemd. No engine runs here: the files are read, their commands run."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from netfleet.cli import main, make_parser
from netfleet.runs.config import read_toml
from netfleet.sites.planning.folders import read_site
from netfleet.sites.planning.nodes_file import load_nodes
from support.hospitals import EXAMPLE, NAMES, copy_example, make_up_patients
from support.images import ROOT, context, instructions
from support.site_processes import SiteProcesses, plan_sites, site_processes
from support.site_settings import QUADRATICS

SITES = ROOT / "examples" / "sites"
RULES = (ROOT / ".dockerignore").read_text(encoding="utf-8")
IMAGE = SITES / "Dockerfile"
UNIT = SITES / "netfleet-node@.service"
PORT = 7400


def last(name: str) -> str:
    """The words of the last instruction of a name, which is the one that counts."""
    return [words for each, words in instructions(IMAGE) if each == name][-1]


# ---- the build context ----


def wheel_files() -> set[str]:
    """What setuptools packs, from the checkout's root."""
    source, table = ROOT / "src" / "netfleet", read_toml(ROOT / "pyproject.toml")
    data = table["tool"]["setuptools"]["package-data"]["netfleet"]
    names = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    packed = {name for name in names if name.endswith(".py") or any(fnmatch(name, each) for each in data)}
    return {f"src/netfleet/{name}" for name in packed}


PLANTED = [
    *("node.key", "ca.key", "plan/hospital-a/node.key", "examples/sites/plan/ca/ca.key", "src/node.key"),
    *("src/netfleet/node.key", "src/netfleet/runs/node.key", "src/netfleet/data/files/node.key"),
    *("src/netfleet/plan/hospital-a/site.toml", "src/netfleet/plan/hospital-a/node.pem", "src/netfleet/site.toml"),
    *("patients/hospital-a.csv", "src/netfleet/patients.csv", "src/netfleet/data/files/patients.csv", "data/x.parquet"),
    *(
        "plan/hospital-a/run/checkpoint-1.safetensors",
        "src/model.safetensors",
        ".git/config",
        ".venv/bin/python",
        ".env",
    ),
    *("src/netfleet/sites/__pycache__/x.pyc", "src/README.md/node.key", "README.md.key", "xREADME.md"),
]


def test_keys_plans_and_data_cannot_get_into_an_image() -> None:
    top = {"pyproject.toml", "setup.py", "constraints.txt", "README.md", "LICENSE", "NOTICE"}
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "src").rglob("*") if path.is_file()}
    assert context(RULES, {*top, *files, *PLANTED}) == {*top, *wheel_files()}
    assert len(wheel_files()) > 300
    assert context("", PLANTED) == set(PLANTED)


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        ("*", set()),
        ("*.md\n!README.md", {"README.md", "a/b.md", "a/c/d.key"}),
        ("# all\n\n*/*.md", {"README.md", "x.md", "a/c/d.key"}),
        ("**/*.md", {"a/c/d.key"}),
        ("a\n!a/c", {"README.md", "x.md", "a/c/d.key"}),
        ("/a/c/\n?.md", {"README.md", "a/b.md"}),
    ],
)
def test_rules_are_read_as_docker_does(rules: str, kept: set[str]) -> None:
    """Examples like those in Docker's documentation."""
    assert context(rules, ["README.md", "x.md", "a/b.md", "a/c/d.key"]) == kept


@pytest.mark.parametrize("path", [IMAGE, ROOT / "examples" / "cluster" / "Dockerfile"], ids=["site", "cluster"])
def test_images_copy_what_their_context_has(path: Path) -> None:
    copied = [words.split()[:-1] for name, words in instructions(path) if name == "COPY" and "--from" not in words]
    there = context(RULES, [*wheel_files(), *(source for sources in copied for source in sources)])
    for source in (source for sources in copied for source in sources):
        assert any(name == source or name.startswith(f"{source}/") for name in there), source
    assert not [words for name, words in instructions(path) if name == "ADD"]


# ---- the image ----


def test_the_image_has_no_secret_and_needs_no_rights() -> None:
    assert last("USER") == "1000:1000"
    assert {(name, words) for name, words in instructions(IMAGE) if name == "ARG"} == {
        ("ARG", "PIP_INDEX_URL"),
        ("ARG", "PIP_EXTRA_INDEX_URL"),
    }
    final = instructions(IMAGE)[[name for name, _ in instructions(IMAGE)].index("FROM", 1) :]
    assert [words for name, words in final if name == "COPY"] == ["--from=build /opt/netfleet /opt/netfleet"]
    (install,) = [shlex.split(words) for name, words in instructions(IMAGE) if "pip install" in words]
    assert "g++" in shlex.split(next(words for name, words in instructions(IMAGE) if name == "RUN"))
    assert install[install.index("--constraint") + 1] == "/src/constraints.txt"
    extras = re.fullmatch(r"/src\[(.*)\]", install[-1])
    assert extras is not None
    assert (
        {"sites"}
        <= set(extras[1].split(","))
        <= set(read_toml(ROOT / "pyproject.toml")["project"]["optional-dependencies"])
    )


def test_the_image_keeps_state_in_a_volume_and_shows_its_port(objects: dict[str, Any]) -> None:
    assert (last("VOLUME"), last("WORKDIR"), last("STOPSIGNAL")) == ("/site", "/site", "SIGTERM")
    assert (
        {int(last("EXPOSE"))}
        == {int(node.address.rpartition(":")[2]) for node in load_nodes(SITES / "compose-nodes.toml").nodes}
        == {PORT}
    )
    assert ports(objects)["peers"] == PORT


def image_command() -> list[str]:
    return [*ast.literal_eval(last("ENTRYPOINT")), *ast.literal_eval(last("CMD"))]


def health_command() -> list[str]:
    (words,) = re.findall(r" CMD (\[.*\])$", last("HEALTHCHECK"))
    return list(ast.literal_eval(words))


# ---- containers ----


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((SITES / "compose.yaml").read_text())["services"]
    return found


def test_each_container_sees_its_own_folder_and_its_own_data(services: dict[str, Any]) -> None:
    nodes = load_nodes(SITES / "compose-nodes.toml")
    assert [(name, name) for name in services] == [(node.name, node.address.rpartition(":")[0]) for node in nodes.nodes]
    assert len(services) == 4
    path = read_toml(EXAMPLE / "hospitals.toml")["problem"]["data"]["path"]
    for name, service in services.items():
        own, where = path.replace("{site}", name), "${NETFLEET_DATA:-../hospitals}"
        assert service["volumes"] == [f"../hospitals/plan/{name}:/site", f"{where}/{own}:/data/{own}:ro"]
    assert "NETFLEET_DATA=/data" in last("ENV")


def test_containers_are_confined_stop_gently_and_do_not_restart_for_ever(services: dict[str, Any]) -> None:
    for service in services.values():
        assert service["read_only"]
        assert service["tmpfs"] == ["/tmp"]
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        assert {"mem_limit", "cpus", "pids_limit"} <= service.keys()
        assert re.fullmatch(r"on-failure:\d", service["restart"])  # exit code 2 too: a few times
        assert int(service["stop_grace_period"].removesuffix("s")) >= 30
        assert "ports" not in service  # neighbours only, on the network of these containers
        assert service["build"] == {"context": "../..", "dockerfile": "examples/sites/Dockerfile"}


def test_the_plan_of_the_containers_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(copy_example(tmp_path / "hospitals"))
    make_up_patients(monkeypatch)
    sums = "problem.data.statistics=statistics.json"
    words = ["hospitals.toml", "--nodes", str(SITES / "compose-nodes.toml"), "--set", sums, "--out", "plan"]
    assert main(["plan", *words]) == 0
    assert all(read_site(Path("plan") / name).rejoin for name in NAMES)


# ---- Kubernetes ----


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    found = list(yaml.safe_load_all((SITES / "kubernetes.yaml").read_text()))
    assert len({each["kind"] for each in found}) == len(found)
    return {each["kind"]: each["spec"] for each in found}


@pytest.fixture(scope="module")
def pod(objects: dict[str, Any]) -> Any:
    return objects["StatefulSet"]["template"]["spec"]


def ports(objects: dict[str, Any]) -> dict[str, int]:
    (container,) = objects["StatefulSet"]["template"]["spec"]["containers"]
    return {each["name"]: each["containerPort"] for each in container["ports"]}


def test_only_one_pod_of_a_site_ever_runs(objects: dict[str, Any], pod: Any) -> None:
    assert objects["StatefulSet"]["replicas"] == 1
    (claim,) = objects["StatefulSet"]["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    assert pod["terminationGracePeriodSeconds"] >= 30
    assert "--rejoin" not in pod["containers"][0]["args"]


def test_all_objects_are_of_the_same_pods(objects: dict[str, Any]) -> None:
    labels = objects["StatefulSet"]["template"]["metadata"]["labels"]
    assert objects["StatefulSet"]["selector"]["matchLabels"] == labels == objects["Service"]["selector"]
    assert objects["NetworkPolicy"]["podSelector"]["matchLabels"] == labels
    assert objects["Service"]["externalTrafficPolicy"] == "Local"  # else the policy sees the node's address
    assert [each["targetPort"] for each in objects["Service"]["ports"]] == ["peers"]


def test_only_neighbours_reach_a_site_and_it_reaches_only_them(objects: dict[str, Any]) -> None:
    policy = objects["NetworkPolicy"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    (peers, prometheus), (out, names) = policy["ingress"], policy["egress"]
    assert [each["port"] for each in peers["ports"]] == [PORT]
    assert [each["port"] for each in prometheus["ports"]] == [ports(objects)["metrics"]]
    assert {each["port"] for each in names["ports"]} == {53}
    for rule in (peers["from"], out["to"]):
        assert [each["ipBlock"]["cidr"].rpartition("/")[2] for each in rule] == ["32"] * len(rule)
        assert len(rule) > 0
    assert peers["from"] == out["to"]


def test_the_pod_has_no_rights_and_no_token(pod: Any) -> None:
    assert pod["securityContext"]["runAsNonRoot"]
    assert f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" == last("USER")
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for container in (*pod["initContainers"], *pod["containers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"].keys() == {"cpu", "memory"}
        assert container["resources"]["requests"]["memory"] == container["resources"]["limits"]["memory"]


def test_a_site_finds_its_whole_folder(tmp_path: Path, objects: dict[str, Any], pod: Any) -> None:
    """Each file of a planned site is mounted, from an object that the commands at the top of the file make."""
    plan_sites(tmp_path, QUADRATICS, 4)
    planned = {path.name for path in (tmp_path / "plan" / "s0").iterdir()}
    head = (SITES / "kubernetes.yaml").read_text().split("apiVersion")[0]
    commands = re.findall(r"kubectl create (secret generic|configmap) (\S+) (--.*)$", head, re.MULTILINE)
    made = {name: re.findall(r"--from-file=(\S+)", words) for _, name, words in commands}
    assert made["hospital-a-key"] == ["node.key", "node.pem"]
    assert [kind for kind, name, _ in commands if "node.key" in made[name]] == ["secret generic"]
    volumes = {each["name"]: each for each in pod["volumes"]}
    mounts = pod["containers"][0]["volumeMounts"]
    for mount in (each for each in mounts if "subPath" in each):
        source = volumes[mount["name"]]
        name = source["secret"]["secretName"] if "secret" in source else source["configMap"]["name"]
        assert mount["mountPath"] == f"/site/{mount['subPath']}"
        assert mount["subPath"] in made[name]
        assert mount["readOnly"]
    assert {mount["subPath"] for mount in mounts if "subPath" in mount} | {"pins"} == planned
    assert volumes["key"]["secret"]["defaultMode"] & 0o007 == 0
    writable = {mount["mountPath"] for mount in mounts if not mount.get("readOnly")}
    assert writable == {"/site", "/tmp"}
    environment = {each["name"]: each["value"] for each in pod["containers"][0]["env"]}
    assert environment == {"NETFLEET_DATA": "/data", "NETFLEET_POLICY": "/policy/policy.toml"}
    assert {"/data", "/policy"} <= {mount["mountPath"] for mount in mounts if mount.get("readOnly")}


def test_the_pods_first_container_adds_pins_and_changes_none(tmp_path: Path, pod: Any) -> None:
    (container,) = pod["initContainers"]
    for folder in ("pins", "site"):
        (tmp_path / folder).mkdir()
    for name in ("b", "d"):
        (tmp_path / "pins" / f"{name}.pem").write_text(f"planned {name}")
    script = re.sub(r"(?<![\w.}])/(site|pins)\b", rf"{tmp_path}/\1", container["args"][0])
    command = [*container["command"], script]
    subprocess.run(command, check=True, timeout=60)
    (tmp_path / "site" / "pins" / "b.pem").write_text("renewed b")
    (tmp_path / "pins" / "e.pem").write_text("planned e")
    subprocess.run(command, check=True, timeout=60)
    found = {path.stem: path.read_text() for path in (tmp_path / "site" / "pins").iterdir()}
    assert found == {"b": "renewed b", "d": "planned d", "e": "planned e"}


# ---- the systemd unit ----


def unit() -> dict[str, list[str]]:
    lines = [line for line in UNIT.read_text().splitlines() if "=" in line and not line.startswith("#")]
    found: dict[str, list[str]] = {}
    for line in lines:
        key, _, value = line.partition("=")
        found.setdefault(key, []).append(value)
    return found


def unit_command() -> list[str]:
    (line,) = unit()["ExecStart"]
    return shlex.split(line.replace("%S", "/var/lib").replace("%i", "hospital-a"))


def test_the_unit_restarts_after_a_crash_and_not_where_somebody_must_act() -> None:
    """docs/sites.md: exit code 0 done or stopped, 1 diverged or unexpected, 2 somebody has to fix it."""
    table = unit()
    assert table["Restart"] == ["on-failure"]
    assert table["RestartPreventExitStatus"] == ["2"]
    assert table["StartLimitIntervalSec"] == ["1h"]
    (pause,), (burst,) = table["RestartSec"], table["StartLimitBurst"]
    assert int(pause) * int(burst) < 3600 / 2  # else the limit would never be met
    assert "--rejoin" not in unit_command()
    assert (table["KillSignal"], int(table["TimeoutStopSec"][0]) >= 30) == (["SIGTERM"], True)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_takes_the_unit_and_finds_it_confined(tmp_path: Path) -> None:
    path = tmp_path / "netfleet-node@hospital-a.service"
    path.write_text(UNIT.read_text().replace(unit_command()[0], sys.executable))  # it must be there
    for words in (["verify"], ["security", "--offline=true", "--threshold=20"]):
        done = subprocess.run(["systemd-analyze", *words, str(path)], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout


# ---- all of them ----


def commands(objects: dict[str, Any], services: dict[str, Any]) -> Iterator[list[str]]:
    entry = ast.literal_eval(last("ENTRYPOINT"))
    yield image_command()
    yield unit_command()
    yield from ([*entry, *service["command"]] for service in services.values())
    yield from ([*entry, *each["args"]] for each in objects["StatefulSet"]["template"]["spec"]["containers"])


def test_all_ask_for_a_command_that_there_is(objects: dict[str, Any], services: dict[str, Any], pod: Any) -> None:
    for program, *words in commands(objects, services):
        options = make_parser().parse_args(words)
        assert Path(program).name == "netfleet"
        assert options.folder in (Path("/var/lib/netfleet/hospital-a"), Path("/site"))
        assert (options.log, options.rejoin) == ("json", False)
    (container,) = pod["containers"]
    assert container["livenessProbe"]["exec"] == container["startupProbe"]["exec"] == {"command": health_command()}
    assert make_parser().parse_args(health_command()[1:]).folder == Path("/site")


@pytest.mark.parametrize("folder", ["sites", "cluster"])
def test_no_registry_is_written_down(folder: str) -> None:
    for path in (ROOT / "examples" / folder).iterdir():
        text = "" if path.is_dir() else re.sub("^apiVersion: .*$", "", path.read_text(), flags=re.MULTILINE)
        assert not re.search(r"https?://|\.(io|com|org)/", text), path


def test_a_container_is_healthy_while_its_neighbour_is_not_there(tmp_path: Path, capsys: Any) -> None:
    """What the image runs, here with its folder in place of /site: it waits, is healthy, and stops at SIGTERM."""
    with site_processes(tmp_path, QUADRATICS, 4) as sites:
        assert health(sites) == 1
        sites.start("s0", options=tuple(image_command()[3:]))
        sites.until(lambda: health(sites) == 0)
        assert re.search(r"s0: (training|waiting), round 0 of 90\n$", capsys.readouterr().out)
        assert [sites.stop("s0"), health(sites)] == [0, 1]


def health(sites: SiteProcesses) -> int:
    _, *words = health_command()
    return main([word.replace("/site", os.fspath(sites.folder / "s0")) for word in words])
