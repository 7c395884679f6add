"""Real peers: one message beside bare gRPC and a bare TLS socket, a round beside other systems, and a killed node."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import fleets
from benchmarks.environments import Unavailable, environment
from benchmarks.fleets import ADAPTERS, Fleet, System, adapted, fleet, ours, pace
from benchmarks.kills import Aftermath, kill_one
from benchmarks.links import exchanges
from benchmarks.measure import Report, Spread, ratio

#: Float32 numbers in a message: 40 MB.
D = 10_000_000
#: Seconds to look at a system once a killed node is back, and our patience where it has an end.
BACK, PATIENCE = 15.0, 3.0
#: Other systems: adapter, its verbs, and the seconds to look while a node is away (beyond the system's time-out).
RIVALS = {
    "p2pfl": ("p2pfl_fedavg.py", ("node",), 80.0),
    "NVFlare": ("nvflare_dgd.py", ("prepare", "server", "node", "go"), 40.0),
}
PLAIN = ours("netfleet", away=10.0)
PATIENT = ours(f"netfleet, patience {PATIENCE:.0f} s", away=20.0, patience=PATIENCE, again=("--rejoin",))


def run(quick: bool) -> Report:
    """Processes of this machine over its loopback device, one thread each."""
    report = Report(
        "p2p",
        "Real peers on one machine (loopback, mutual TLS), one thread each",
        ("what", "who", "seconds, or what happened", "ours ÷ it"),
    )
    measure_exchange(report, D, 5 if quick else 25)
    rivals = find_rivals(report, make=not quick)
    measure_systems(report, [PLAIN, *rivals], 1 if quick else 2)
    measure_patience(report)
    report.notes = [
        "exchange: from one process to another. Ours is what a node does: post (a copy), pull into memory that lies "
        "ready, the checksum and the order of every frame, all numbers finite. gRPC: a stream of 1 MiB chunks of bytes "
        "into the same memory. TLS on a socket: sendall and recv_into.",
        f"round: {fleets.M} nodes, each with every other; digits, a network with {fleets.HIDDEN} hidden units, "
        f"{fleets.K} local steps with mini-batches of {fleets.BATCH}. Ours is NET-FLEET, which exchanges two vectors "
        "and makes the state durable in every round; the others exchange one and keep it in memory. The heads of "
        "src/netfleet/bench/adapters/p2p say what they run and with what settings.",
        "killed: SIGKILL to one node and all that it started, in the middle of its work; later the same command again "
        "(netfleet with a patience: and --rejoin). To go on is to do three more rounds; the seconds include the start "
        "of the process. Without a patience our nodes are meant to wait.",
        "p2pfl is “built for fault tolerance” (docs/source/introduction.md in github.com/p2pfl/p2pfl). It forgets a "
        "node after 5 s without a heartbeat, but may wait for its model first: for 60 s here, 300 by default. Nodes "
        "that come while others learn are “not fully supported” (Node.connect in p2pfl/node.py).",
        "NVFlare's executor gives the job up if a neighbour's values do not come in 10 s (“abort the job”, "
        "nvflare/app_opt/p2p/executors/sync_executor.py in github.com/NVIDIA/NVFlare); so does the walk-through in "
        "examples/advanced/distributed_optimization. Its sites talk through a server, which was not killed.",
    ]
    return report


def measure_exchange(report: Report, d: int, repeats: int) -> list[list[float]]:
    """One message of d numbers in three ways: ours, gRPC, a socket."""
    table = {
        "name": "bench",
        "rounds": fleets.ROUNDS,
        "topology": {"kind": "complete", "workers": 2},
        "problem": {"kind": "quadratics"},
        "algorithms": [{"kind": "net-fleet", "K": 1, "eta": 0.1}],
    }
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan"
        fleets.write_sites(plan, table, fleets.free_ports(2))
        times = exchanges(plan / "s0", plan / "s1", d, repeats)
    for name, taken in zip(("netfleet", "gRPC, as it comes", "TLS on a socket"), times, strict=True):
        report.add(f"exchange of {4 * d / 1e6:.3g} MB", name, Spread.of(taken), ratio(times[0], taken))
    return times


def find_rivals(report: Report, make: bool) -> list[System]:
    """The other systems that can be run here."""
    found = []
    for name, (script, verbs, away) in RIVALS.items():
        try:
            found.append(adapted(name, environment(ADAPTERS / script, make), script, verbs, away))
        except Unavailable as reason:
            report.add("round", name, f"not run: {reason}", "")
    return found


def measure_systems(report: Report, systems: list[System], turns: int) -> None:
    """Seconds per round of those systems that run, which take turns; in the last turn a node of each is killed."""
    taken: dict[str, list[float]] = {each.name: [] for each in systems}
    ends: dict[str, Aftermath] = {}
    for system, last in [(each, turn == turns - 1) for turn in range(turns) for each in systems]:
        if system.name in taken:
            try:
                with _running(system) as nodes:
                    taken[system.name] += pace(nodes, rounds=100, windows=3, seconds=2.0)
                    if last:
                        ends[system.name] = kill_one(nodes, BACK)
            except Unavailable as reason:
                del taken[system.name]
                report.add("round", system.name, f"not run: {reason}", "")
    for name, values in taken.items():
        report.add("round", name, Spread.of(values), ratio(taken[systems[0].name], values))
    for name, end in ends.items():
        report_end(report, name, end)


def measure_patience(report: Report) -> None:
    """Ours with a patience that has an end."""
    with _running(PATIENT) as nodes:
        pace(nodes, rounds=10, windows=1, seconds=2.0)
        report_end(report, PATIENT.name, kill_one(nodes, BACK))


def report_end(report: Report, name: str, end: Aftermath) -> None:
    """Two rows."""
    report.add("one node killed", name, end.away, "")
    report.add("and started again", name, end.back, "")


@contextmanager
def _running(system: System) -> Iterator[Fleet]:
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        fleet(system, Path(folder) / "work") as nodes,
    ):
        yield nodes
