"""Slots of a type on three nodes, each with the very machine that its driver runs.

What may happen, in any order: nodes become members; requests reach the register and the state,
and answers come back; a request or its answer is lost; a node is killed, holds another for
dead, or loses its lease and gets another term; looks. Messages of one node keep their order,
and are as late as can be against those of the others.

At most one node at a time serves a slot with the fence, so commits and reads of two owners
never interleave; epochs in the register never fall; and when everything has come to rest, each
slot is served by a member that lives, if there is one.
"""

import copy
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

from callboard.entity.machine.ownership_machine import OwnershipMachine, StopSlots
from callboard.entity.machine.table import Table
from tests.callboard.entity.machine.ownership_cluster import OwnershipCluster
from tests.search.explorer import Model

NODES, SLOTS = 3, 2


class OwnershipBudget(NamedTuple):
    """How often each thing may happen."""

    members: int = 2
    kills: int = 0
    suspicions: int = 0
    losses: int = 0
    terms: int = 0
    looks: int = 0


class OwnershipState(NamedTuple):
    """The nodes with what is under way, and what may still happen."""

    cluster: OwnershipCluster
    left: OwnershipBudget


class Owners(Model[OwnershipState]):
    """Nodes that join at any moment, with some trouble."""

    def __init__(
        self, budget: OwnershipBudget, machine: type[OwnershipMachine] = OwnershipMachine
    ) -> None:
        self._budget, self._machine = budget, machine

    def __repr__(self) -> str:
        return repr(self._budget)

    def start(self) -> OwnershipState:
        cluster = OwnershipCluster(NODES, SLOTS)
        for node in cluster.nodes.values():
            node.machine.__class__ = self._machine
        return OwnershipState(cluster, self._budget)

    def key(self, state: OwnershipState) -> Hashable:
        cluster = state.cluster
        return (
            _table_key(cluster.table),
            tuple(cluster.fences.items()),
            tuple(_node_key(node) for node in cluster.nodes.values()),
            state.left,
        )

    def steps(self, state: OwnershipState) -> Iterator[tuple[Any, OwnershipState]]:
        left = state.left
        for writer, node in state.cluster.nodes.items():
            if node.is_dead:
                continue
            if node.answers:
                yield self._after(state, left, "answer", writer)
            if node.requests:
                yield self._after(state, left, "arrive", writer, "done")
                less = left._replace(losses=left.losses - 1)
                hows = ("lost",) if isinstance(node.requests[0], StopSlots) else _LOST
                for how in hows if left.losses else ():
                    yield self._after(state, less, "arrive", writer, how)
            if not node.machine.aim:
                if left.members:
                    less = left._replace(members=left.members - 1)
                    yield self._after(state, less, "join", writer)
                continue
            yield from self._troubles(state, writer)

    def _troubles(
        self, state: OwnershipState, writer: str
    ) -> Iterator[tuple[Any, OwnershipState]]:
        """Return what else may happen to a member."""
        left, machine = state.left, state.cluster.nodes[writer].machine
        if left.kills and writer != "a":
            yield self._after(state, left._replace(kills=left.kills - 1), "kill", writer)
        if left.looks:
            yield self._after(state, left._replace(looks=left.looks - 1), "look", writer, True)
        if left.terms and machine.has_term:
            yield self._after(state, left._replace(terms=left.terms - 1), "end", writer)
        if not machine.has_term:
            yield self._after(state, left, "begin", writer)
        if left.suspicions:
            less = left._replace(suspicions=left.suspicions - 1)
            for other in sorted(machine.table.members):
                if other != writer:
                    yield self._after(state, less, "suspect", writer, other)

    def _after(
        self,
        state: OwnershipState,
        left: OwnershipBudget,
        what: str,
        writer: str,
        how: Any = "",
    ) -> tuple[Any, OwnershipState]:
        cluster = fork(state.cluster)
        before = cluster.table
        own_machine(cluster, writer)
        cluster.play(what, writer, how)
        pairs = zip(before.slots, cluster.table.slots, strict=True)
        assert all(old.epoch <= new.epoch for old, new in pairs), "an epoch fell"
        return f"{what} {writer} {how}", OwnershipState(cluster, left)

    def check(self, state: OwnershipState) -> bool:
        cluster = state.cluster
        cluster.check()
        nodes = cluster.nodes.values()
        if any(node.requests or node.answers for node in nodes if not node.is_dead):
            return False
        check_rest(fork(cluster))
        return True


_LOST = ("lost", "unknown")


def check_rest(cluster: OwnershipCluster) -> None:
    """Assert that each slot has an owner that lives, once everything has come to rest."""
    for writer, node in cluster.nodes.items():
        own_machine(cluster, writer)
        if not (node.is_dead or node.machine.has_term):
            cluster.play("begin", writer, "")
    cluster.settle()
    nodes = cluster.nodes.items()
    if not any(node.machine.aim and not node.is_dead for _, node in nodes):
        return
    for slot, owner in enumerate(cluster.table.slots):
        served = [writer for writer, node in nodes if not node.is_dead and slot in node.epochs]
        assert served == [owner.writer], f"slot {slot} of {owner} is served by {served}"


def fork(cluster: OwnershipCluster) -> OwnershipCluster:
    """Return a cluster in the same state, which goes its own way but for its machines."""
    other = copy.copy(cluster)
    other.fences = dict(cluster.fences)
    other.nodes = {}
    for writer, node in cluster.nodes.items():
        twin = other.nodes[writer] = object.__new__(type(node))
        vars(twin).update(vars(node))
        twin.epochs, twin.stopped = dict(node.epochs), set(node.stopped)
        twin.requests, twin.answers = list(node.requests), list(node.answers)
        twin.told = []
    return other


def own_machine(cluster: OwnershipCluster, writer: str) -> None:
    """Give a node a machine of its own, before it changes."""
    node = cluster.nodes[writer]
    node.machine = node.machine.copy()
    vars(node).pop("machine_key", None)


#: Keys of tables by identity, with the table: most states share theirs.
_TABLES: dict[int, tuple[Table, Hashable]] = {}
_TABLES_LIMIT = 100_000


def _table_key(table: Table) -> Hashable:
    known = _TABLES.get(id(table))
    if known is None:
        if len(_TABLES) >= _TABLES_LIMIT:
            _TABLES.clear()
        key = hash(tuple(_key(getattr(table, name)) for name in table.__slots__))
        known = _TABLES[id(table)] = table, key
    return known[1]


def _node_key(node: Any) -> Hashable:
    key = vars(node).get("machine_key")
    if key is None:
        key = node.machine_key = hash(tuple(map(_key, vars(node.machine).values())))
    return (
        key,
        tuple(node.epochs.items()),
        frozenset(node.stopped),
        tuple(map(_key, node.requests)),
        tuple(map(_key, node.answers)),
        node.is_dead,
    )


def _key(value: Any) -> Hashable:
    """Return what is equal for equal values, and can be hashed."""
    if isinstance(value, dict):
        return tuple(sorted(value.items()))
    if isinstance(value, Table):
        return _table_key(value)
    if hasattr(type(value), "__dataclass_fields__"):
        names = type(value).__dataclass_fields__
        return (type(value).__name__, *(_key(getattr(value, name)) for name in names))
    return value  # type: ignore[no-any-return]
