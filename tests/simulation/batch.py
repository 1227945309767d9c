"""A batch of lives for a separate process; the module that spawned processes import."""

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from callboard.simulation.trace import Dump
from tests.simulation.channel_life import live_channels
from tests.simulation.credit_life import live_credit
from tests.simulation.door_life import live_doors
from tests.simulation.entity_life import live_entities, live_leases, live_moves
from tests.simulation.leaf_life import live_with_a_leaf
from tests.simulation.life import live_nodes
from tests.simulation.mqtt_cluster_life import live_mqtt_cluster
from tests.simulation.mqtt_life import live_mqtt
from tests.simulation.mqtt_partition_life import live_mqtt_partition
from tests.simulation.peering_life import live_peerings
from tests.simulation.store_life import live_stores
from tests.simulation.topic_life import live_topics
from tests.simulation.traitor_life import live_with_a_traitor

ROOT = Path(__file__).parents[2]

BUILD = ROOT / "build"
"""Where the events of lives that broke a rule are left."""


LIVES: Final[dict[str, Any]] = {
    "nodes": live_nodes,
    "traitors": live_with_a_traitor,
    "leaves": live_with_a_leaf,
    "credit": live_credit,
    "topics": live_topics,
    "doors": live_doors,
    "channels": live_channels,
    "stores": live_stores,
    "peerings": live_peerings,
    "entities": live_entities,
    "moves": live_moves,
    "leases": live_leases,
    "mqtt": live_mqtt,
    "mqtt-cluster": live_mqtt_cluster,
    "mqtt-partition": live_mqtt_partition,
}
"""What can be lived: cluster tests."""


class Batch(NamedTuple):
    """Seeds of one kind of life, from `begin` to before `end`."""

    kind: str
    begin: int
    end: int


class Lived(NamedTuple):
    """A life that is over: its virtual seconds, its events, and what rule it broke."""

    seconds: float
    dump: Dump
    error: Exception | None
    #: A test of a few lines that fails as well, where the kit can shrink the life's faults.
    program: str = ""


def live_one(kind: str, seed: int, *, shrinks: bool = True) -> Lived:
    """Live one seed."""
    told = LIVES[kind]
    run = told.test.only(seed, {}, shrinks=shrinks)
    program = "" if run.error is None else run.program(told.scenario)
    dump = Dump(seed, "tests.simulation", run.cluster.trace.lines())
    return Lived(run.cluster.now, dump, run.error, program)


def live(batch: Batch) -> tuple[Batch, list[str], float]:
    """Run a batch of seeds; return the batch, the failures, and virtual seconds.

    A life that ends the kit instead of failing is reported as well, and the others are run.
    """
    failures, seconds = [], 0.0
    with unlogged():
        for seed in range(batch.begin, batch.end):
            try:
                lived = live_one(batch.kind, seed)
            except Exception as error:  # noqa: BLE001 - the seed has to be known
                failures.append(_told(batch.kind, seed, error, traceback.format_exc()))
                continue
            seconds += lived.seconds
            if lived.error is not None:
                lived.dump.write(folder_of(batch.kind))
                failures.append(_told(batch.kind, seed, lived.error, lived.program))
    return batch, failures, seconds


@contextmanager
def unlogged() -> Iterator[None]:
    """Silence the log in a block: handlers of lives raise on purpose."""
    logger = logging.getLogger("callboard")
    propagates, nothing = logger.propagate, logging.NullHandler()
    logger.propagate = False
    logger.addHandler(nothing)  # without any handler, Python writes to stderr
    try:
        yield
    finally:
        logger.removeHandler(nothing)
        logger.propagate = propagates


def _told(kind: str, seed: int, error: Exception, more: str) -> str:
    """Return the report of a failure: its seed, the command to replay it, and details."""
    option = "" if kind == "nodes" else f"--life {kind} "
    return (
        f"seed {seed}: {type(error).__name__}: {error}\n"
        f"  replay: python -m tests.simulation {option}--seeds {seed}"
    ) + (f"\n{more}" if more else "")


def folder_of(kind: str) -> Path:
    """Return where the events of failed lives of a kind are left: kinds share seeds."""
    return BUILD if kind == "nodes" else BUILD / kind
