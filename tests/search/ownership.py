"""Slots of a type on three nodes, each with the very machine that its driver runs.

Events, in any order: nodes become members; requests reach the register and the state, and
answers come back; a request or its answer is lost; a node is killed, holds another for dead, or
loses its lease and gets another term; a slot is moved by hand; looks. Messages of one node keep
their order, and are as late as possible compared with those of other nodes: so a node that is
paused is one whose answers are late, while others vote it out or kill its lease.

At most one node at a time serves a slot with the fence, so commits and reads of two owners
never interleave; epochs in the register never fall; and when everything has come to rest, each
slot is served by a member that lives, if there is one.

Nodes, tables and fences are numbered as they are first seen, and the step of a node in one of
its states is computed once: most states of the cluster are old states of its nodes, together in
another way. So a state is a few numbers, and a step some look-ups.
"""

import copy
from collections.abc import Hashable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from callboard.entity.machine.ownership_machine import OwnershipMachine, StopSlots
from callboard.entity.machine.table import Table
from callboard.entity.state.interface import Fence
from tests.callboard.entity.machine.ownership_cluster import MachineNode, OwnershipCluster
from tests.search.explorer import Model

T = TypeVar("T")

NODES, SLOTS = 3, 2

WRITERS: Final = "abcdef"[:NODES]

ROUNDS: Final = 12
"""Looks of each node until everything has come to rest."""


class OwnershipBudget(NamedTuple):
    """Limits for the number of each event."""

    members: int = 2
    #: Nodes that are members from the start, with everything at rest.
    settled: int = 0
    kills: int = 0
    suspicions: int = 0
    losses: int = 0
    terms: int = 0
    looks: int = 0
    moves: int = 0


class OwnershipState(NamedTuple):
    """The register, the fences and the nodes by number, and the remaining events."""

    table: int
    fences: int
    nodes: tuple[int, ...]
    left: OwnershipBudget


class Numbers(Generic[T]):
    """Numbers of things that are equal by their keys, in the order in which they were seen."""

    def __init__(self) -> None:
        self.things: list[T] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, key: Hashable, thing: T) -> int:
        """Return the number of a thing."""
        found = self._numbers.setdefault(key, len(self.things))
        if found == len(self.things):
            self.things.append(thing)
        return found


class Played(NamedTuple):
    """The result of an event at a node."""

    node: int
    #: The tables that it tells to the other members, in order.
    told: tuple[int, ...]
    table: int
    fences: int


class OneNode(OwnershipCluster):
    """A cluster in which one node does something; takes down what it tells others."""

    def __init__(self, table: Table, fences: tuple[Fence, ...], nodes: dict[str, MachineNode]):
        self.slots, self.table, self.nodes = SLOTS, table, nodes
        self.fences = dict(enumerate(fences))
        self.tables: list[Table] = []

    def tell(self, by: str, table: Table) -> None:
        """Take a table down."""
        self.tables.append(table)


class Owners(Model[OwnershipState]):
    """Nodes that join at any moment, with some trouble."""

    def __init__(
        self, budget: OwnershipBudget, machine: type[OwnershipMachine] = OwnershipMachine
    ) -> None:
        self._budget, self._machine = budget, machine
        self._tables: Numbers[Table] = Numbers()
        self._fences: Numbers[tuple[Fence, ...]] = Numbers()
        self._nodes: Numbers[MachineNode] = Numbers()
        self._played: dict[Hashable, Played] = {}
        self._informed: dict[tuple[int, int], int] = {}
        self._able: dict[tuple[int, int], int] = {}

    def __repr__(self) -> str:
        return repr(self._budget)

    def start(self) -> OwnershipState:
        self.__init__(self._budget, self._machine)  # type: ignore[misc] # the cached values
        cluster = OwnershipCluster(NODES, SLOTS)
        for node in cluster.nodes.values():
            node.machine.__class__ = self._machine
        for writer in WRITERS[: self._budget.settled]:
            cluster.join(writer)
        cluster.settle()
        fences = tuple(cluster.fences.values())
        return OwnershipState(
            self._tables.number(cluster.table, cluster.table),
            self._fences.number(fences, fences),
            tuple(self._number(node) for node in cluster.nodes.values()),
            self._budget,
        )

    def steps(self, state: OwnershipState) -> Iterator[tuple[Any, OwnershipState]]:
        left = state.left
        for place, writer in enumerate(WRITERS):
            node = self._nodes.things[state.nodes[place]]
            if node.is_dead:
                continue
            if node.answers:
                yield self._after(state, left, "answer", place)
            if node.requests:
                yield self._after(state, left, "arrive", place, "done")
                less = left._replace(losses=left.losses - 1)
                hows = ("lost",) if isinstance(node.requests[0], StopSlots) else _LOST
                for how in hows if left.losses else ():
                    yield self._after(state, less, "arrive", place, how)
            if not node.machine.aim:
                if left.members:
                    less = left._replace(members=left.members - 1)
                    yield self._after(state, less, "join", place)
                continue
            yield from self._troubles(state, place, writer, node.machine)

    def _troubles(
        self, state: OwnershipState, place: int, writer: str, machine: OwnershipMachine
    ) -> Iterator[tuple[Any, OwnershipState]]:
        """Return the other possible events of a member."""
        left = state.left
        if left.kills and writer != "a":
            yield self._after(state, left._replace(kills=left.kills - 1), "kill", place)
        if left.looks:
            yield self._after(state, left._replace(looks=left.looks - 1), "look", place, True)
        if left.terms and machine.has_term:
            yield self._after(state, left._replace(terms=left.terms - 1), "end", place)
        if not machine.has_term:
            yield self._after(state, left, "begin", place)
        if left.suspicions:
            less = left._replace(suspicions=left.suspicions - 1)
            for other in sorted(machine.table.members):
                if other != writer:
                    yield self._after(state, less, "suspect", place, other)
        if left.moves:
            less = left._replace(moves=left.moves - 1)
            for other in sorted(machine.table.members):
                yield self._after(state, less, "move", place, other)

    def _after(
        self,
        state: OwnershipState,
        left: OwnershipBudget,
        what: str,
        place: int,
        how: Any = "",
    ) -> tuple[Any, OwnershipState]:
        after = self._play(state, what, place, how)
        return (what, WRITERS[place], how), OwnershipState(*after, left)

    def _play(
        self, state: OwnershipState, what: str, place: int, how: Any
    ) -> tuple[int, int, tuple[int, ...]]:
        """Apply an event to a node; return the register, the fences and the nodes."""
        table, fences, nodes, _ = state
        number = nodes[place]
        key: Hashable = (number, what, how)
        if what == "arrive":
            dead = tuple(self._nodes.things[each].is_dead for each in nodes)
            key = (number, how, table, fences, dead)
        played = self._played.get(key)
        if played is None:
            played = self._played[key] = self._really_play(state, what, place, how)
        if what == "arrive":
            table, fences = played.table, played.fences
        changed = list(nodes)
        changed[place] = played.node
        for told in played.told:
            for other in range(NODES):
                if other != place:
                    changed[other] = self._inform(changed[other], told)
        return table, fences, tuple(changed)

    def _really_play(self, state: OwnershipState, what: str, place: int, how: Any) -> Played:
        """Pass an input to the machine of a node for the first time."""
        before = self._tables.things[state.table]
        nodes = {
            writer: self._nodes.things[number]
            for writer, number in zip(WRITERS, state.nodes, strict=True)
        }
        writer = WRITERS[place]
        nodes[writer] = node = fork(nodes[writer])
        cluster = OneNode(before, self._fences.things[state.fences], nodes)
        cluster.play(what, writer, how)
        pairs = zip(before.slots, cluster.table.slots, strict=True)
        assert all(old.epoch <= new.epoch for old, new in pairs), "an epoch fell"
        fences = tuple(cluster.fences.values())
        return Played(
            self._number(node),
            tuple(self._tables.number(table, table) for table in cluster.tables),
            self._tables.number(cluster.table, cluster.table),
            self._fences.number(fences, fences),
        )

    def _inform(self, number: int, told: int) -> int:
        """Return a node after it received a table, if it is a running member."""
        found = self._informed.get((number, told))
        if found is None:
            node, table = self._nodes.things[number], self._tables.things[told]
            writer = node.machine.writer
            twin = fork(node)
            cluster = OwnershipCluster(0, SLOTS)
            cluster.nodes = {writer: twin}
            cluster.tell("", table)
            found = self._informed[number, told] = self._number(twin)
        return found

    def _number(self, node: MachineNode) -> int:
        """Return the number of a node, which is looked at when it is new."""
        key = (
            node.machine.key(),
            tuple(sorted(node.epochs.items())),
            frozenset(node.stopped),
            tuple(map(_key, node.requests)),
            tuple(map(_key, node.answers)),
            node.is_dead,
        )
        return self._nodes.number(key, node)

    def check(self, state: OwnershipState) -> bool:
        self._check(state)
        nodes = [self._nodes.things[number] for number in state.nodes]
        if any(node.requests or node.answers for node in nodes if not node.is_dead):
            return False
        self._check_rest(state)
        return True

    def _check(self, state: OwnershipState) -> None:
        """Assert that no two nodes serve a slot with its fence."""
        able = 0
        for number in state.nodes:
            slots = self._able.get((number, state.fences))
            if slots is None:
                slots = self._able_of(number, state.fences)
            assert not able & slots, "two nodes serve a slot"
            able |= slots

    def _able_of(self, number: int, fences: int) -> int:
        """Return the slots that a node serves with their fences, as bits."""
        node = self._nodes.things[number]
        cluster = OneNode(Table(), self._fences.things[fences], {node.machine.writer: node})
        cluster.check()
        slots = sum(
            1 << slot
            for slot, epoch in node.epochs.items()
            if cluster.fences[slot] == (epoch, node.machine.writer)
        )
        self._able[number, fences] = slots
        return slots

    def _check_rest(self, state: OwnershipState) -> None:
        """Assert that each slot has an owner that lives, once everything has come to rest."""
        things = self._nodes.things
        for place in range(NODES):
            node = things[state.nodes[place]]
            if not (node.is_dead or node.machine.has_term):
                state = self._then(state, "begin", place)
        for _ in range(ROUNDS):
            before = state
            for place in range(NODES):
                state = self._settled(state, place)
                if not things[state.nodes[place]].is_dead:
                    state = self._then(state, "look", place, True)
            if state == before:
                break
        nodes = [things[number] for number in state.nodes]
        if not any(node.machine.aim and not node.is_dead for node in nodes):
            return
        for slot, owner in enumerate(self._tables.things[state.table].slots):
            served = [
                node.machine.writer
                for node in nodes
                if not node.is_dead and slot in node.epochs
            ]
            assert served == [owner.writer], f"slot {slot} of {owner} is served by {served}"

    def _settled(self, state: OwnershipState, place: int) -> OwnershipState:
        """Return the state after all messages to and from a node have arrived."""
        while True:
            node = self._nodes.things[state.nodes[place]]
            if node.is_dead or not (node.requests or node.answers):
                return state
            if node.answers:
                state = self._then(state, "answer", place)
            else:
                state = self._then(state, "arrive", place, "done")
            self._check(state)

    def _then(
        self, state: OwnershipState, what: str, place: int, how: Any = ""
    ) -> OwnershipState:
        """Return the state after an event."""
        return OwnershipState(*self._play(state, what, place, how), state.left)


_LOST = ("lost", "unknown")


def fork(node: MachineNode) -> MachineNode:
    """Return a node in the same state, which goes its own way."""
    twin = copy.copy(node)
    twin.machine = node.machine.copy()
    twin.epochs, twin.stopped = dict(node.epochs), set(node.stopped)
    twin.requests, twin.answers = list(node.requests), list(node.answers)
    twin.told = []
    return twin


def _key(value: Any) -> Hashable:
    """Return a hashable form that is equal for equal values."""
    if isinstance(value, dict):
        return tuple(sorted(value.items()))
    if isinstance(value, Table):
        return value
    if is_dataclass(value):
        names = [each.name for each in fields(value)]
        return (type(value).__name__, *(_key(getattr(value, name)) for name in names))
    return value  # type: ignore[no-any-return]
