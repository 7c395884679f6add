"""Kill one node of three in the middle of its work, start it again a while later, and say what the others did."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.fleets import Fleet, M, until

VICTIM = 1
#: Rounds that count as going on: more than a node may have had on its way.
ON = 3


class Aftermath(NamedTuple):
    """In words and seconds."""

    away: str
    back: str


def kill_one(nodes: Fleet, back: float) -> Aftermath:
    """Kill a node and look; start it again and look for so many seconds."""
    nodes.kill(f"node-{VICTIM}")
    words = _while_away(nodes, nodes.system.away)
    nodes.start("node", str(VICTIM), *nodes.system.again)
    return Aftermath(words, _once_back(nodes, back))


def _while_away(nodes: Fleet, seconds: float) -> str:
    others = [i for i in range(M) if i != VICTIM]
    before = {i: nodes.reached(i) for i in others}

    def on() -> bool:
        return all(nodes.reached(i) >= before[i] + ON for i in others)

    took = until(lambda: on() or not any(map(nodes.lives, others)), seconds)
    if took is None:
        return f"the others wait: no {ON} rounds in {seconds:.0f} s"
    return f"the others go on after {took:.1f} s" if on() else f"the others' training ends after {took:.1f} s"


def _once_back(nodes: Fleet, seconds: float) -> str:
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
