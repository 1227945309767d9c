"""A batch of lives, for a process of its own: what spawned processes import."""

import logging
from pathlib import Path
from typing import Any, Final, NamedTuple

from callboard.simulation.trace import Dump
from tests.simulation.channel_life import ChannelLife
from tests.simulation.credit_life import CreditLife
from tests.simulation.leaf_life import LeafLife
from tests.simulation.life import Life
from tests.simulation.mqtt_cluster_life import MqttClusterLife
from tests.simulation.mqtt_life import MqttLife
from tests.simulation.mqtt_partition_life import MqttPartitionLife
from tests.simulation.store_life import StoreLife
from tests.simulation.topic_life import TopicLife
from tests.simulation.traitor_life import TraitorLife

ROOT = Path(__file__).parents[2]

BUILD = ROOT / "build"
"""Where the events of lives that broke a rule are left."""


LIVES: Final[dict[str, Any]] = {
    "nodes": Life,
    "traitors": TraitorLife,
    "leaves": LeafLife,
    "credit": CreditLife,
    "topics": TopicLife,
    "channels": ChannelLife,
    "stores": StoreLife,
    "mqtt": MqttLife,
    "mqtt-cluster": MqttClusterLife,
    "mqtt-partition": MqttPartitionLife,
}
"""What can be lived: classes with `run`, and a cluster or `seconds` and `lines`."""


class Batch(NamedTuple):
    """Seeds of one kind of life, from `begin` to before `end`."""

    kind: str
    begin: int
    end: int


def live(batch: Batch) -> tuple[Batch, list[str], float]:
    """Live a batch of seeds; returns it, what failed, and virtual seconds."""
    logging.getLogger("callboard").propagate = False
    failures, seconds = [], 0.0
    for seed in range(batch.begin, batch.end):
        life = LIVES[batch.kind](seed)
        try:
            life.run()
        except Exception as error:  # noqa: BLE001  # any crash is a finding
            dump_of(life).write(folder_of(batch.kind))
            option = "" if batch.kind == "nodes" else f"--life {batch.kind} "
            failures.append(
                f"seed {seed}: {type(error).__name__}: {error}\n"
                f"  replay: python -m tests.simulation {option}--seeds {seed}"
            )
        seconds += life.cluster.now if hasattr(life, "cluster") else life.seconds
    return batch, failures, seconds


def folder_of(kind: str) -> Path:
    """Return where the events of failed lives of a kind are left: kinds share seeds."""
    return BUILD if kind == "nodes" else BUILD / kind


def dump_of(life: Any) -> Dump:
    """Return the events of a life."""
    told = life.cluster.trace if hasattr(life, "cluster") else life
    return Dump(life.seed, "tests.simulation", told.lines())
