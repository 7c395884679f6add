"""Real sites: one message beside bare gRPC, a round beside other systems, and a killed node."""

import tempfile
from pathlib import Path

from benchmarks import site_processes
from benchmarks.measure import ResultTable, Spread, ratio
from benchmarks.processes import Unavailable, python_of
from benchmarks.setting import Setting
from benchmarks.site_messages import exchanges
from benchmarks.site_processes import ADAPTERS, M, RunningSystem, System, running, seconds_per_round, until

D = 10_000_000  # float32 numbers in a message: 40 MB
#: Seconds to watch a system once a killed node is back, and our patience where it has an end.
BACK, PATIENCE = 15.0, 3.0
#: The node that is killed, and the rounds that show that a node goes on: more than it may have had on its way.
VICTIM, ON = 1, 3
#: Other systems: adapter, its verbs, and the seconds to watch while a node is away (beyond the system's timeout).
OTHERS = {
    "p2pfl": ("p2pfl_fedavg.py", ("node",), 80.0),
    "NVFlare": ("nvflare_dgd.py", ("prepare", "server", "node", "go"), 40.0),
}
OURS = System("netfleet", away=10.0)
PATIENT = System(f"netfleet, patience {PATIENCE:.0f} s", away=20.0, patience=PATIENCE, again=("--rejoin",))
NOTES = [
    "exchange: from one process to another. Ours is what a site does: post (a copy), pull into memory that is there "
    "already, check the checksum and the order of every frame, check that all numbers are finite. gRPC: a stream of "
    "1 MiB chunks of bytes into the same memory.",
    f"round: {site_processes.M} nodes, each connected to every other; digits, a network with {site_processes.HIDDEN} "
    f"hidden units, {site_processes.K} local steps with mini-batches of {site_processes.BATCH}. Ours is NET-FLEET, "
    "which exchanges two vectors and saves its state to disk in every round; the others exchange one and keep it in "
    "memory. The heads of benchmarks/adapters/sites say what they run and with what settings.",
    "killed: SIGKILL to one node and all that it started, in the middle of its work; later the same command again "
    "(netfleet with a patience: and --rejoin). To go on is to do three more rounds; the seconds include the start "
    "of the process. Without a patience our sites are meant to wait.",
    "p2pfl is “built for fault tolerance” (docs/source/introduction.md in github.com/p2pfl/p2pfl). It forgets a "
    "node after 5 s without a heartbeat, but may wait for its model first: for 60 s here, 300 by default. Nodes "
    "that come while others learn are “not fully supported” (Node.connect in p2pfl/node.py).",
    "NVFlare's executor aborts the job if a neighbour's values do not come in 10 s (“abort the job”, "
    "nvflare/app_opt/p2p/executors/sync_executor.py in github.com/NVIDIA/NVFlare); so does the walk-through in "
    "examples/advanced/distributed_optimization. Its sites talk through a server, which was not killed.",
]


def run(setting: Setting) -> ResultTable:
    table = ResultTable(
        "Real sites on one machine (loopback, mutual TLS), one thread each",
        "what | who | seconds, or what happened | ours ÷ it",
        notes=list(NOTES),
    )
    measure_exchange(table, setting.pick(D, D, 1000), setting.pick(25, 5, 2))
    others = find_others(table, make=setting.pick(True, False, False))
    measure_systems(table, [OURS, *others], setting)
    return table


def measure_exchange(table: ResultTable, d: int, repeats: int) -> None:
    """One message of d numbers in two ways: ours and gRPC."""
    config = {"topology": {"kind": "complete", "workers": 2}, "problem": {"kind": "quadratics"}}
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan"
        site_processes.write_sites(plan, config, site_processes.free_ports(2))
        times = exchanges(plan / "s0", plan / "s1", d, repeats)
    for name, taken in zip(("netfleet", "gRPC, as it comes"), times, strict=True):
        table.add(f"exchange of {4 * d / 1e6:.3g} MB", name, Spread.of(taken), ratio(times[0], taken))


def find_others(table: ResultTable, make: bool) -> list[System]:
    found = []
    for name, (script, verbs, away) in OTHERS.items():
        try:
            found.append(System(name, away, verbs=verbs, adapter=(python_of(ADAPTERS / script, make), script)))
        except Unavailable as reason:
            table.add("round", name, f"not run: {reason}", "")
    return found


def measure_systems(table: ResultTable, systems: list[System], setting: Setting) -> None:
    """Seconds per round of those systems that run, which take turns; in the last turn a node of each is killed.

    A last system is netfleet with a patience, of which only a node is killed.
    """
    taken: dict[str, list[float]] = {each.name: [] for each in systems}
    crashes: dict[str, tuple[str, str]] = {}
    turns, rounds, windows = setting.pick((2, 100, 3), (1, 100, 3), (1, 3, 1))
    for system, last in [(each, turn == turns - 1) for turn in range(turns) for each in systems]:
        if system.name in taken:
            try:
                with running(system) as nodes:
                    taken[system.name] += seconds_per_round(nodes, rounds, windows, seconds=2.0)
                    if last and setting.pick(True, True, False):
                        crashes[system.name] = kill_one(nodes, BACK)
            except Unavailable as reason:
                del taken[system.name]
                table.add("round", system.name, f"not run: {reason}", "")
    for name, values in taken.items():
        table.add("round", name, Spread.of(values), ratio(taken[systems[0].name], values))
    if setting.pick(True, True, False):
        with running(PATIENT) as nodes:
            seconds_per_round(nodes, rounds=10, windows=1, seconds=2.0)
            crashes[PATIENT.name] = kill_one(nodes, BACK)
    for name, (away, back) in crashes.items():
        table.add("one node killed", name, away, "")
        table.add("and started again", name, back, "")


def kill_one(nodes: RunningSystem, back: float) -> tuple[str, str]:
    """Kill a node and start it again: what the nodes did while it was away, and within `back` seconds afterwards."""
    nodes.kill(f"node-{VICTIM}")
    words = _while_away(nodes, nodes.system.away)
    nodes.start("node", str(VICTIM), *nodes.system.again)
    return words, _once_back(nodes, back)


def _while_away(nodes: RunningSystem, seconds: float) -> str:
    others = [i for i in range(M) if i != VICTIM]
    goal = {i: nodes.reached(i) + ON for i in others}

    def on() -> bool:
        return all(nodes.reached(i) >= goal[i] for i in others)

    took = until(lambda: on() or not any(map(nodes.lives, others)), seconds)
    if took is None:
        return f"the others wait: no {ON} rounds in {seconds:.0f} s"
    return f"the others go on after {took:.1f} s" if on() else f"the others' training ends after {took:.1f} s"


def _once_back(nodes: RunningSystem, seconds: float) -> str:
    goal = [nodes.reached(i) + ON for i in range(M)]
    took = until(lambda: all(nodes.reached(i) >= goal[i] for i in range(M)), seconds)
    if took is not None:
        return f"all go on after {took:.1f} s"
    going = [i for i in range(M) if nodes.reached(i) >= goal[i]]
    if not going:
        return f"nobody does {ON} rounds in {seconds:.0f} s"
    return "it goes on alone" if VICTIM in going else f"the others go on, without it for {seconds:.0f} s"
