"""What happens when one node of three is killed in the middle of its work and started again a while later."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.site_processes import M, RunningSystem, until

VICTIM = 1
#: So many more rounds show that a node goes on: more than it may have had on its way.
ON = 3


class CrashResult(NamedTuple):
    """What the nodes did while one was away, and once it was back, in words and seconds."""

    away: str
    back: str


def kill_one(nodes: RunningSystem, back: float) -> CrashResult:
    """Kill a node and watch the others; start it again and watch for `back` seconds."""
    nodes.kill(f"node-{VICTIM}")
    words = _while_away(nodes, nodes.system.away)
    nodes.start("node", str(VICTIM), *nodes.system.again)
    return CrashResult(words, _once_back(nodes, back))


def _while_away(nodes: RunningSystem, seconds: float) -> str:
    others = [i for i in range(M) if i != VICTIM]
    before = {i: nodes.reached(i) for i in others}

    def on() -> bool:
        return all(nodes.reached(i) >= before[i] + ON for i in others)

    took = until(lambda: on() or not any(map(nodes.lives, others)), seconds)
    if took is None:
        return f"the others wait: no {ON} rounds in {seconds:.0f} s"
    return f"the others go on after {took:.1f} s" if on() else f"the others' training ends after {took:.1f} s"


def _once_back(nodes: RunningSystem, seconds: float) -> str:
    before = {i: nodes.reached(i) for i in range(M)}

    def on(i: int) -> bool:
        return nodes.reached(i) >= before[i] + ON

    took = until(lambda: all(map(on, range(M))), seconds)
    if took is not None:
        return f"all go on after {took:.1f} s"
    going = [i for i in range(M) if on(i)]
    if not going:
        return f"nobody does {ON} rounds in {seconds:.0f} s"
    return "it goes on alone" if VICTIM in going else f"the others go on, without it for {seconds:.0f} s"
