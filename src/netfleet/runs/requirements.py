"""What a method needs of the network that carries its messages."""

from collections import Counter

import torch

from netfleet.algorithms.base import Algorithm
from netfleet.algorithms.compression import Compressed
from netfleet.algorithms.proxskip import ProxSkip
from netfleet.algorithms.wrapper import Wrapper
from netfleet.engines.loop import Counted, advance, begin
from netfleet.engines.simulator import Simulator
from netfleet.errors import ConfigError
from netfleet.privacy.link_noise import links_in
from netfleet.problems.synthetic import Quadratics
from netfleet.runs.time_box import TimeBox
from netfleet.topology.faults import Faults, Unreliable
from netfleet.topology.network import Network
from netfleet.topology.topology import Topology

ROUNDS = 500  # that a trial without gradients takes at most
GROWTH = 10.0  # of the disagreement in such a trial; where it decays in the end, transients stay below this


def check_network(method: Algorithm, topology: Topology, faults: Faults | None) -> None:
    """Reject a network on which a method over a graph diverges or cannot be run."""
    varying = topology.varying or faults is not None
    if isinstance(method, Compressed) and method.memory and varying:
        cause = "compress: differences need constant weights, but these change from round to round"
        advice = "add memory = false to send the vectors themselves, or use a fixed graph without failures"
        raise ConfigError(f"{cause}; {advice}")
    if method.least_eigenvalue > -1 and not topology.weight_sequence.symmetric:
        cause = f"{topology.name!r} has one-way links in some rounds"
        advice = "use another graph, or a method that tracks gradients"
        raise ConfigError(f"{method.title} needs symmetric weights, but {cause}; {advice}")
    if method.least_eigenvalue > -1 and topology.least_eigenvalue < method.least_eigenvalue - 1e-9:
        least = topology.least_eigenvalue
        cause = f"{method.title} diverges if W has an eigenvalue below {method.least_eigenvalue:.3g}"
        raise ConfigError(f"{cause}, and the smallest here is {least:.3g}; {method.remedy(least)}")
    if method.sums_differences and varying and topology.m > 1:
        carrier = topology if faults is None else Unreliable(topology, faults)
        if overshoots(method, carrier):
            raise ConfigError(
                f"{method.title} diverges on this network, and a smaller step size makes it worse: its correction sums "
                f"differences of models, which overshoot where links fail, are late or change from round to round; use "
                f"a method that tracks gradients (net-fleet, k-gt, …), a fixed graph with fewer failures, or led with "
                f"beta = 0.1 / K"
            )


def check_link_noise(method: Algorithm, network: Network) -> None:
    """Reject what noise that cancels between neighbours does not go with."""
    why = _why_no_link_noise(method, network)
    if why is not None:
        raise ConfigError(f"privacy.link_noise: {why}")


def _why_no_link_noise(method: Algorithm, network: Network) -> str | None:
    if method.server:
        return f"{method.title} has a server and no links; use a method over a graph, such as net-fleet"
    if isinstance(method, Compressed):
        return f"{method.title} sends packed differences, which noise would fill; leave compress out"
    if isinstance(network, Unreliable):
        return "a message that is lost leaves the noise of its link at one end; leave [network] out"
    if network.varying:
        return (
            "where links change, a worker may have one neighbour in a round, which knows its noise; use a fixed graph"
        )
    ends = Counter(i for link in links_in(network.W(), range(network.m)) for i in (link.low, link.high))
    alone = [i for i in range(network.m) if ends[i] < 2]
    if alone:
        return (
            f"a worker's only neighbour knows all of its noise, and worker {alone[0]} has no second one; use a graph "
            f"in which every worker has two neighbours or more"
        )
    return None


def check_time_box(method: Algorithm, box: TimeBox, m: int, by_clock: bool = False) -> int:
    """The method's K; raises if its rounds cannot have limited time."""
    inner: Algorithm = method
    while isinstance(inner, Wrapper):
        inner = inner.method
    K = getattr(inner, "K", 1)
    why = "makes one step in a round" if K == 1 else "" if inner.uses_step else "makes its local steps itself"
    if why := "draws its number of local steps" if isinstance(inner, ProxSkip) else why:
        raise ConfigError(f"time_box: {method.title} {why}; use a method with local steps, such as net-fleet or k-gt")
    box.check(K, m, by_clock)
    return K


def overshoots(method: Algorithm, network: Network) -> bool:
    """Whether the workers' disagreement grows `GROWTH`-fold in a trial without gradients.

    Such a round is linear and its step size has no effect, so the trial is the limit of small step sizes.
    """
    problem = Quadratics(network.m, d=4, dtype=torch.float64)
    problem.A.zero_()
    method, host, f = method.with_eta(1.0), Simulator(problem, network, threads=1), Counted(problem)
    state, first = begin(host, method, f, problem.b), float((problem.b - problem.b.mean(dim=0)).norm())
    for t in range(ROUNDS):
        state = advance(host, method, f, t, [state])
        now = float((state.x - state.x.mean(dim=0)).norm()) / first
        if not 1e-2 < now < GROWTH:
            return not now < 1
    return False
