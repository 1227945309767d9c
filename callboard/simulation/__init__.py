"""Clusters for tests: simulated ones with virtual time and disks, and real processes."""

from callboard.commitlog.disk import Disk, DiskFile, RealDisk
from callboard.simulation.cluster import Cluster
from callboard.simulation.disk import DiskFaults, SimulatedDisk
from callboard.simulation.processes import NodeProcess, Processes

__all__ = [
    "Cluster",
    "Disk",
    "DiskFaults",
    "DiskFile",
    "NodeProcess",
    "Processes",
    "RealDisk",
    "SimulatedDisk",
]
