"""Graphs, their consensus matrices W, what varies in time, and networks that fail."""

from netfleet.topology import fastest as fastest  # registers these weights
from netfleet.topology.topology import Topology, make_topology

__all__ = ["Topology", "make_topology"]
