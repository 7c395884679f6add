# /// script
# requires-python = "==3.11.*"
# dependencies = ["torch==2.13.0", "numpy==2.4.6", "nvflare==2.9.0"]
# ///
"""Gossip on NVFlare's peer-to-peer controller and synchronous executor, in a proof-of-concept deployment.

`nvflare poc` provisions a server and the sites; each is a process of its own, they talk with mutual TLS, and what one
site sends to another goes through the server. NVFlare's own executor for distributed gradient descent makes one step
between two exchanges; `Gossip` makes the K steps of the work and exchanges with the same code.

Settings: time-outs are NVFlare's own. Its list of classes that a job may use, which sites enforce, does not have those
of its peer-to-peer module; they are added to it.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import work as works

#: In the process of a site, the folder of the work comes from the environment.
FOLDER = Path(os.environ.setdefault("NETFLEET_WORK", str(works.FOLDER)))
KITS = FOLDER / "poc" / "example_project" / "prod_00"
ADMIN = "admin@nvidia.com"
CLASSES = (
    "nvflare.app_opt.p2p.controllers.dist_opt_controller.DistOptController",
    "nvflare.app_opt.p2p.types.Config",
    "nvflare_gossip.Gossip",
)


def prepare() -> None:
    """Make the folders and certificates of server and sites, and the job."""
    work = works.load(FOLDER)
    (FOLDER / "home").mkdir()
    environment = {**os.environ, "HOME": str(FOLDER / "home"), "NVFLARE_POC_WORKSPACE": str(FOLDER / "poc")}
    command = [str(Path(sys.executable).with_name("nvflare")), "poc", "prepare", "-n", str(work.m)]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    for kit in (KITS / "server", *(KITS / _site(i) for i in range(work.m))):
        resources = json.loads((kit / "local" / "resources.json.default").read_text())
        resources["class_allow_list"] += CLASSES
        (kit / "local" / "resources.json").write_text(json.dumps(resources))
    _job(work)


def _job(work: works.Work) -> None:
    from nvflare.app_opt.p2p.controllers import DistOptController
    from nvflare.app_opt.p2p.types import Config, Neighbor, Network, Node
    from nvflare.job_config.api import FedJob
    from nvflare_gossip import Gossip

    sites = range(work.m)
    nodes = [Node(_site(i), [Neighbor(_site(j), 1 / work.m) for j in sites if j != i]) for i in sites]
    job = FedJob(name="gossip", min_clients=work.m)
    job.to_server(DistOptController(config=Config(Network(nodes), extra={"iterations": work.rounds})))
    for i in sites:
        job.to(Gossip(), _site(i), tasks=["config", "run_algorithm"])
    job.export_job(str(FOLDER / "jobs"))


def _site(i: int) -> str:
    return f"site-{i + 1}"


def server() -> None:
    _start("server")


def node(i: int) -> None:
    """Be a site; its job is a process that this one starts."""
    _start(_site(i))


def _start(name: str) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(Path(__file__).parent), "HOME": str(FOLDER / "home")}
    script = str(KITS / name / "startup" / "sub_start.sh")
    os.execve("/bin/bash", ["bash", script, "--once"], environment)


def go() -> None:
    """Submit the job as soon as all sites are there."""
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    work = works.load(FOLDER)
    session = new_secure_session(ADMIN, str(KITS / ADMIN), timeout=60)
    while len(session.get_system_info().client_info) < work.m:
        time.sleep(0.2)
    session.submit_job(str(FOLDER / "jobs" / "gossip"))
    session.close()


if __name__ == "__main__":
    works.run({"prepare": prepare, "server": server, "node": node, "go": go})
