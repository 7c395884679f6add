"""The files for SLURM, Kubernetes and containers fit together, and their commands run here."""

from __future__ import annotations

import ast
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.distributed.run import get_args_parser

from netfleet import History
from netfleet.cli import make_parser
from netfleet.engines.ranks import TIMEOUT
from netfleet.runs import checkpoint
from support import images
from support.torchrun import EXPERIMENT, free_port, shorten, training, until

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "examples" / "cluster"
FOREVER = EXPERIMENT.replace("rounds = 60", "rounds = 1000000").replace(
    "checkpoint_every = 10", "checkpoint_every = 1000000"
)


# ---- SLURM ----

#: What the script calls; each notes that it was called, and `srun` its process, which `scancel` signals.
STAND_INS = {
    "scontrol": 'echo "scontrol $*" >> "$NOTES"; if [ "$1" = show ]; then echo 127.0.0.1; echo other; fi',
    "scancel": 'echo "scancel $*" >> "$NOTES"; kill -TERM "$(cat "$NOTES.srun")"',
    "srun": 'echo "srun $NETFLEET_DATA" >> "$NOTES"; echo $$ > "$NOTES.srun"; shift 2; exec "$@"',
    "module": 'echo "module $*" >> "$NOTES"',
}


def slurm(folder: Path, ranks: int) -> subprocess.Popen[str]:
    """The script as SLURM runs it on a node of so many cores, with stand-ins for SLURM's commands."""
    (folder / "bin").mkdir(exist_ok=True)
    for name, text in STAND_INS.items():
        (folder / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / "bin" / name).chmod(0o755)
    # as those of modules and conda do, it reads a variable that is not set
    (folder / "activate").write_text(f'module load gcc\nPATH="{Path(sys.executable).parent}:$PATH$NOT_SET"\n')
    job = {"SLURM_JOB_NODELIST": "here", "SLURM_NNODES": "1", "SLURM_CPUS_PER_TASK": str(ranks)}
    job |= {"SLURM_JOB_ID": str(free_port()), "NETFLEET_ACTIVATE": str(folder / "activate")}
    job |= {"NOTES": str(folder / "notes"), "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    command = ["bash", str(CLUSTER / "netfleet.slurm"), str(folder / "cluster.toml"), str(folder / "out")]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env={**os.environ, **job}, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.slow
def test_a_slurm_job_saves_before_its_limit_is_queued_again_and_resumes(tmp_path: Path) -> None:
    file, folder = tmp_path / "cluster.toml", tmp_path / "out" / "net-fleet-seed0"
    file.write_text(FOREVER)
    job = slurm(tmp_path, ranks=2)
    until(lambda: training(folder), lambda: job.poll() is None)
    job.send_signal(signal.SIGUSR1)  # as SLURM does two minutes before the limit
    _, said = job.communicate(timeout=300)
    assert job.returncode != 0
    assert "stopped by a signal after round" in said, said
    notes = (tmp_path / "notes").read_text().splitlines()
    assert [line.split()[:2] for line in notes if not line.startswith("srun")] == [
        ["module", "load"], ["scontrol", "show"], ["scancel", "--signal=TERM"], ["scontrol", "requeue"],
    ]  # fmt: skip
    reached = checkpoint.reached(folder)
    shorten(file, f"rounds={reached + 20}", folder)
    file.write_text(FOREVER.replace("rounds = 1000000", f"rounds = {reached + 20}"))
    again = slurm(tmp_path, ranks=1)
    _, said = again.communicate(timeout=300)
    assert again.returncode == 0, said
    assert History.load(folder)["round"][-1] == reached + 20
    assert (tmp_path / "notes").read_text().count("requeue") == 1


def test_the_time_for_saving_fits_into_the_time_before_the_limit() -> None:
    text = (CLUSTER / "netfleet.slurm").read_text()
    (before,), (saving,) = (re.findall(pattern, text) for pattern in (r"USR1@(\d+)", r"SHUTDOWN_TIMEOUT=(\d+)"))
    assert int(saving) < int(before)
    assert "set -euo pipefail" in text


def test_the_slurm_script_looks_for_a_port_that_nobody_listens_on() -> None:
    (loop,) = re.findall(r"^while .*done$", (CLUSTER / "netfleet.slurm").read_text(), flags=re.MULTILINE)
    with listening() as taken:
        script = f"first=127.0.0.1; port={taken}; {loop}; echo $port"
        found = subprocess.run(["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, check=True)
    assert int(found.stdout) > taken


@contextmanager
def listening() -> Iterator[int]:
    """A port of this machine that somebody listens on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield int(server.getsockname()[1])


# ---- Kubernetes ----


@pytest.fixture(scope="module")
def objects() -> dict[tuple[str, str], Any]:
    """The manifest's objects by kind and name."""
    found = list(yaml.safe_load_all((CLUSTER / "kubernetes.yaml").read_text()))
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


@pytest.fixture(scope="module")
def job(objects: dict[tuple[str, str], Any]) -> Any:
    return objects["Job", "netfleet"]["spec"]


def parsed(words: list[str]) -> tuple[Any, Any]:
    """The options of torchrun and of netfleet in torchrun's arguments."""
    options = get_args_parser().parse_args(words)
    assert options.module
    assert options.training_script == "netfleet"
    return options, make_parser().parse_args(options.training_script_args)


def test_the_manifests_command_is_one_that_torchrun_and_netfleet_take(job: Any) -> None:
    (container,) = job["template"]["spec"]["containers"]
    assert container["command"] == ["torchrun"]
    torchrun, ours = parsed(container["args"])
    assert int(torchrun.nnodes) == job["completions"] == job["parallelism"]
    assert torchrun.nproc_per_node == container["resources"]["requests"]["cpu"]
    assert (ours.engine, ours.resume) == ("distributed", True)


def test_the_pods_find_the_first_one_by_its_name(objects: dict[tuple[str, str], Any], job: Any) -> None:
    pod = job["template"]["spec"]
    ((_, name), service), *more = [item for item in objects.items() if item[0][0] == "Service"]
    assert not more
    (wait,), (container,) = pod["initContainers"], pod["containers"]
    host, port = parsed(container["args"])[0].rdzv_endpoint.split(":")
    assert host == f"{service['spec']['selector']['job-name']}-0.{name}"
    assert (pod["subdomain"], job["completionMode"]) == (name, "Indexed")
    assert service["spec"]["ports"][0]["port"] == container["ports"][0]["containerPort"] == int(port)
    assert host in wait["args"][0]
    script = wait["args"][0].replace(host, "localhost")
    subprocess.run([*wait["command"], script], check=True, capture_output=True, timeout=60)


def test_every_volume_is_mounted_and_every_path_is_on_one(objects: dict[tuple[str, str], Any], job: Any) -> None:
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert mounts.keys() == {volume["name"] for volume in pod["volumes"]}
    claims = {volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"] if "configMap" not in volume}
    assert claims == {name for kind, name in objects if kind == "PersistentVolumeClaim"}
    environment, (_, ours) = environment_of(container), parsed(container["args"])
    paths = {"experiment": ours.file, "data": environment["NETFLEET_DATA"], "results": str(ours.out)}
    for name, path in paths.items():
        assert Path(path).is_relative_to(mounts[name]["mountPath"])
        assert mounts[name].get("readOnly", False) == (name != "results")


def environment_of(container: Any) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["env"]}


def test_a_pod_that_must_go_has_time_to_save(job: Any) -> None:
    pod = job["template"]["spec"]
    environment = environment_of(pod["containers"][0])
    assert int(environment["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) < pod["terminationGracePeriodSeconds"]
    assert 0 < float(environment[TIMEOUT]) < job["activeDeadlineSeconds"]
    assert pod["restartPolicy"] == "Never"  # podFailurePolicy needs it
    assert job["backoffLimit"] >= job["completions"]


@pytest.mark.slow
def test_two_pods_save_when_one_is_evicted(tmp_path: Path, job: Any) -> None:
    (container,) = job["template"]["spec"]["containers"]
    folder, file = tmp_path / "results" / "run" / "net-fleet-seed0", tmp_path / "experiment" / "experiment.toml"
    file.parent.mkdir()
    file.write_text(FOREVER)
    first, second = pods(tmp_path, container)
    until(lambda: training(folder), lambda: first.poll() is None)
    second.send_signal(signal.SIGTERM)
    said = "".join(pod.communicate(timeout=300)[1] for pod in (first, second))
    (reached,) = re.findall(r"stopped by a signal after round (\d+)", said)[:1]  # torchrun's report may repeat it
    assert checkpoint.reached(folder) == int(reached)
    assert 0 not in (first.returncode, second.returncode)


def pods(folder: Path, container: Any) -> list[subprocess.Popen[str]]:
    """The manifest's pods with one rank each, on this machine and with folders in place of volumes."""
    port, words = free_port(), list[str]()
    for word in container["args"]:
        word = re.sub("/(experiment|results)/", rf"{folder}/\1/", word)
        words.append(re.sub(r"netfleet-0\.netfleet:\d+", f"127.0.0.1:{port}", word).replace("node=4", "node=1"))
    command, pipe = [sys.executable, "-m", "torch.distributed.run", *words], subprocess.PIPE
    environment = {**os.environ, **environment_of(container), "NETFLEET_DATA": str(folder)}
    made = []
    for place in range(2):
        which = ["--rdzv-conf", f"is_host={int(place == 0)}", "--local-addr", "127.0.0.1"]
        full = [*command[:3], *which, *command[3:]]
        made.append(subprocess.Popen(full, env=environment, stdout=pipe, stderr=pipe, text=True))
    return made


# ---- the image ----


def instructions() -> list[tuple[str, str]]:
    return images.instructions(CLUSTER / "Dockerfile")


def test_the_image_copies_what_there_is_and_installs_the_tested_versions() -> None:
    copied = [words.split() for name, words in instructions() if name == "COPY"]
    for *sources, target in copied:
        assert target.startswith("/src")
        assert all((ROOT / source).exists() for source in sources)
    (install,) = [words for name, words in instructions() if name == "RUN" and words.startswith("pip install")]
    words = shlex.split(install)
    assert words[words.index("--constraint") + 1] == "/src/constraints.txt"
    assert words[-1] == "/src"
    assert re.search(r"^torch==2\.13\.0$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    assert "g++" in shlex.split(next(words for name, words in instructions() if name == "RUN"))


def test_the_image_is_that_of_the_manifest(job: Any) -> None:
    pod, table = job["template"]["spec"], {name: words for name, words in instructions() if name != "ENV"}
    (tag,) = re.findall(r"--tag (\S+)", (CLUSTER / "Dockerfile").read_text())
    assert {each["image"] for each in [*pod["containers"], *pod["initContainers"]]} == {tag}
    assert ast.literal_eval(table["ENTRYPOINT"]) == pod["containers"][0]["command"]
    assert str(pod["securityContext"]["runAsUser"]) in next(w for n, w in instructions() if "useradd" in w)
    variables = dict(word.split("=") for name, words in instructions() if name == "ENV" for word in words.split())
    assert variables["NETFLEET_DATA"] == environment_of(pod["containers"][0])["NETFLEET_DATA"]
