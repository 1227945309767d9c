"""Clusters for tests: simulated ones with virtual time and disks, and real processes."""

from callboard.simulation.cluster import Cluster
from callboard.simulation.disk import Disk, DiskFaults, DiskFile, SimulatedDisk
from callboard.simulation.processes import NodeProcess, Processes
from callboard.simulation.real_disk import RealDisk

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
