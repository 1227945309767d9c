"""Faults in lives of entities, aimed at owners that commit or are replaced."""

from collections.abc import Iterable
from typing import Final

from callboard import Node
from callboard.simulation import (
    Cluster,
    crash,
    cut,
    database_cut,
    database_down,
    delay,
    doubling,
    fail_over,
    isolate,
    kill,
    loss,
    lost_answers,
    narrow,
    one_way,
    partition,
    pause,
    slow_database,
    swarm,
)
from callboard.simulation.databases.model_database import ModelDatabase
from callboard.simulation.faults import FaultKind, clock_rate
from callboard.simulation.runner import runner_of

SPAN: Final = 8.0
"""Virtual seconds of clients and faults: some four times what a takeover needs."""


def _stall(databases: Iterable[ModelDatabase], part: float) -> None:
    """Make a part of the statements of commits stall."""
    for database in databases:
        database.stalls = part


#: Nodes that are islands just now.
_ALONE: Final[set[Node]] = set()


def _leave_alone(cluster: Cluster, node: Node) -> None:
    """Cut a machine off from others, and later from databases, too."""
    _ALONE.add(node)
    isolate.begin(cluster, (node,), 0.0)
    cluster.clock.plan(VOTED_OUT_AFTER, _cut_database, cluster, node)


def _cut_database(cluster: Cluster, node: Node) -> None:
    """Cut an island off from the database, so that it does not notice its replacement."""
    if isinstance(node, Node) and node in _ALONE and cluster.is_running(node):
        for database in cluster.databases():
            database.cut(runner_of(node))


def _strand(cluster: Cluster, node: Node) -> None:
    """Cut a machine off from others and from databases."""
    _leave_alone(cluster, node)
    _cut_database(cluster, node)


def _reunite(cluster: Cluster, node: Node) -> None:
    """Heal it again."""
    _ALONE.discard(node)
    isolate.end(cluster, (node,))
    if isinstance(node, Node):
        for database in cluster.databases():
            database.mend(runner_of(node))


VOTED_OUT_AFTER: Final = 2.95
"""Seconds after which the others soon miss a node that is silent."""

SOON: Final = 0.005
"""Seconds between looks whether a commit has stalled."""

#: A `part` of the statements of commits stall, with the locks that they hold.
stalls: Final = FaultKind(
    *("stalls", 0, lambda c, part: _stall(c.databases(), part)),
    lambda c: _stall(c.databases(), 0.0),
    *("part", 0.1, 0.9),
    often=3.0,
)
#: Nothing passes between a machine and all others: they vote it out. By then it does not reach
#: databases either, and does not hear of that. Half a second later others write to new owners.
island: Final = FaultKind("island", 1, _leave_alone, _reunite, often=3.0).lasting(3.9, 5.0)


#: Nothing reaches a machine or leaves it: its lease ends before others may kill it, and they
#: write to new owners while its clients still read.
stranded: Final = FaultKind("stranded", 1, _strand, _reunite, often=3.0).lasting(2.3, 5.0)


def _overtake(cluster: Cluster) -> None:
    """Make commits stall, and kill the first node with a stalled one."""
    databases = cluster.databases()
    _stall(databases, 1.0)
    runners = [each for database in databases for each in database.stalling()]
    running = [each for each in cluster.machines() if cluster.is_running(each)]
    struck = [each for each in running if isinstance(each, Node) and runner_of(each) in runners]
    if struck and len(running) > 1:
        _stall(databases, 0.0)
        cluster.kill(struck[0])
    elif any(database.stalls for database in databases):
        cluster.clock.plan(SOON, _overtake_still, cluster)


def _overtake_still(cluster: Cluster) -> None:
    """Check again, unless the fault is over."""
    if any(database.stalls for database in cluster.databases()):
        _overtake(cluster)


def _recover(cluster: Cluster) -> None:
    """Restart nodes that do not run, and let commits continue."""
    _stall(cluster.databases(), 0.0)
    for node in cluster.machines():
        if not cluster.is_running(node):
            cluster.restart(node)


#: Commits stall, and the node with the first one is killed: others own its slots before the
#: server has carried it out.
overtaken: Final = FaultKind("overtaken", 0, _overtake, _recover, often=3.0).lasting(0.7, 2.5)

_ALL_KINDS: Final = (
    *(partition, one_way, isolate.lasting(0.05, 5.0), cut, pause, kill, crash, doubling),
    *(delay.between(0.0001, 0.4), narrow.between(50_000, 200_000), loss),
    *(database_cut, database_down, slow_database.between(0.002, 0.1), lost_answers, fail_over),
    *(clock_rate.between(0.95, 1.05), stalls),
)

FAULTS = swarm(*_ALL_KINDS, island, overtaken, span=SPAN)

LEASE_FAULTS = swarm(*_ALL_KINDS, stranded, overtaken, span=SPAN)
"""Faults for owners that are replaced when their leases have ended."""

CALM_FAULTS = swarm(
    *(delay.between(0.0001, 0.1), narrow.between(50_000, 200_000), loss.between(0.01, 0.1)),
    *(slow_database.between(0.002, 0.01), lost_answers.between(0.02, 0.3), stalls),
    span=SPAN,
)
"""Faults by which no node is lost, nor taken for lost."""
