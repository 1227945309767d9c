"""Clusters for tests: simulated ones with virtual time and disks, and real processes."""

from typing import NoReturn

from callboard.commitlog.disk import Disk, DiskFile, RealDisk
from callboard.simulation.cluster import Cluster
from callboard.simulation.cluster_test import NotDeterministic, cluster_test
from callboard.simulation.current_run import (
    AlwaysBroken,
    NeverHappened,
    always,
    reachable,
    sometimes,
)
from callboard.simulation.databases.model_database import ModelDatabase
from callboard.simulation.deliveries import (
    ExactlyOnce,
    MessageDoubled,
    MessageLost,
    NothingLost,
    OutOfOrder,
    at_most_once,
    in_order,
)
from callboard.simulation.disk import DiskFaults, SimulatedDisk
from callboard.simulation.faults import (
    Fault,
    FaultKind,
    bad_fsync,
    clock_rate,
    clock_step,
    crash,
    cut,
    database_cut,
    database_down,
    delay,
    doubling,
    fail_over,
    full_disk,
    isolate,
    jitter,
    kill,
    loss,
    lost_answers,
    narrow,
    one_way,
    partition,
    pause,
    slow_database,
    slow_disk,
    split,
)
from callboard.simulation.history import History, HistoryViolation, Operation
from callboard.simulation.linearizable import NotDecided, NotLinearizable, linearizable
from callboard.simulation.models import (
    ANY,
    NEVER,
    Counter,
    Elements,
    Lock,
    Model,
    OneOf,
    Queue,
    Register,
)
from callboard.simulation.mqtt.client import MqttClient, MqttOptions
from callboard.simulation.not_simulated import NotSimulated
from callboard.simulation.processes import NodeProcess, Processes
from callboard.simulation.runner import TimeStandsStill
from callboard.simulation.runs.swarm import Swarm, swarm
from callboard.simulation.schedules.schedule_test import explore, schedule_test
from callboard.simulation.schedules.search import Explored, NoSuchStep
from callboard.simulation.schedules.steps import Deadlock

__all__ = [
    "ANY",
    "AlwaysBroken",
    "Cluster",
    "Counter",
    "Deadlock",
    "Disk",
    "DiskFaults",
    "DiskFile",
    "Elements",
    "ExactlyOnce",
    "Explored",
    "Fault",
    "FaultKind",
    "History",
    "HistoryViolation",
    "Lock",
    "MessageDoubled",
    "MessageLost",
    "Model",
    "MqttClient",
    "MqttOptions",
    "NEVER",
    "NeverHappened",
    "NoSuchStep",
    "NodeProcess",
    "NotDecided",
    "NotDeterministic",
    "NotLinearizable",
    "NotSimulated",
    "NothingLost",
    "OneOf",
    "Operation",
    "OutOfOrder",
    "Processes",
    "Queue",
    "RealDisk",
    "Register",
    "ModelDatabase",
    "SimulatedDisk",
    "Swarm",
    "TimeStandsStill",
    "always",
    "at_most_once",
    "bad_fsync",
    "clock_rate",
    "clock_step",
    "cluster_test",
    "crash",
    "cut",
    "database_cut",
    "database_down",
    "delay",
    "doubling",
    "explore",
    "fail_over",
    "full_disk",
    "in_order",
    "isolate",
    "jitter",
    "kill",
    "linearizable",
    "loss",
    "lost_answers",
    "narrow",
    "one_way",
    "partition",
    "pause",
    "reachable",
    "slow_database",
    "slow_disk",
    "split",
    "schedule_test",
    "sometimes",
    "swarm",
]


def __getattr__(name: str) -> NoReturn:
    """Refuse the names of simulated hosts, which release 0.2 no longer has."""
    if name in ("HostEnded", "SimulatedHost"):
        message = (
            f"callboard.simulation.{name}: release 0.2 simulates nodes only, and no hosts that "
            "run plain asyncio programs"
        )
        raise ImportError(message)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
