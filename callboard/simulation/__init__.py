"""Clusters for tests: simulated ones with virtual time, and real processes."""

from callboard.simulation.cluster import Cluster
from callboard.simulation.processes import NodeProcess, Processes

__all__ = ["Cluster", "NodeProcess", "Processes"]
