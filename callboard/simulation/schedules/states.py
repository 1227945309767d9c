"""Fingerprints of the states of a run, so that a search continues from each state only once.

Actors cannot be compared, so a state is identified by its history: for each actor, its steps
and the messages it got in them, each message identified by the step that sent it; then all
waiting messages and packets, in their order. Runs that differ only in the order of independent
steps reach equal states. Steps of actors that share more than messages are not independent (see
`callboard.simulation.schedules.sharing`); the order of such steps is part of the fingerprint.
"""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from callboard.kernel.activation import Cell
from callboard.simulation.schedules.sharing import Sharing


class StateFingerprint(NamedTuple):
    """The visible state of a run at one moment.

    Attributes:
        now: virtual seconds.
        cells: the actors of running nodes.
        timers: timers of actors, in the order of their times.
        packets: packets in flight, with the name of their connection.
        seen: positions recorded by the test's histories.
        handled: number of messages handled by callboard's own actors.
    """

    now: float
    cells: Sequence[Cell]
    timers: Sequence[tuple[float, object]]
    packets: Sequence[Hashable]
    seen: Hashable
    handled: int


class Fingerprint:
    """Follows a run and computes fingerprints of its states."""

    def __init__(self) -> None:
        self._chains: dict[object, int] = {}
        self._sharing = Sharing()
        #: Hash of the steps of actors that share state, and of the network, in their order.
        self._shared = self._test = 0
        #: By id, each message, timer and ready task with the hash of the step that created it.
        self._tags: dict[int, tuple[object, int]] = {}
        self._got: Hashable = None
        self._handled = 0

    def test_goes_on(self, situation: StateFingerprint) -> None:
        """Record that the test ran between two waits."""
        self._test += 1
        self._handled = situation.handled
        self._tag(situation, hash(("test", self._test)))

    def step_begins(self, about: object) -> None:
        """Record the input of an actor in the next step."""
        if not isinstance(about, Cell):
            self._got = str(about)
        elif about.task is not None and about.task.ready:
            self._got = self._name(about.task)
        else:
            woken = about.rare.woken if about.rare is not None else ()
            self._got = tuple(map(self._name, [*about.waiting[:1], *list(woken)[:1]]))

    def record_step(self, about: object, situation: StateFingerprint) -> None:
        """Record a step: of an actor, of the network, of time, or of a fault."""
        last = hash((self._chains.get(about, 0), self._got, situation.now))
        is_shared = situation.handled != self._handled  # stores and topics are shared state
        self._handled = situation.handled
        if is_shared or not isinstance(about, Cell) or about in self._sharing.actors:
            self._shared = last = hash((self._shared, last))
        if isinstance(about, Cell):
            self._chains[about] = last
            self._sharing.forget(about)
        self._tag(situation, last)

    def _tag(self, situation: StateFingerprint, step: int) -> None:
        """Tag new actors, messages, timers and tasks with the step that created them."""
        number = 0
        for cell in situation.cells:
            if cell not in self._chains:
                number += 1
                self._chains[cell] = hash((step, number))
            self._sharing.inspect(cell)
        for thing in _things(situation):
            if id(thing) not in self._tags:
                number += 1
                self._tags[id(thing)] = (thing, hash((step, number)))

    def _name(self, thing: object) -> int:
        """Return the tag of a message, timer or task; 0 without one."""
        return self._tags[id(thing)][1] if id(thing) in self._tags else 0

    def state(self, situation: StateFingerprint, *parts: Hashable) -> int:
        """Return the fingerprint of a state, before its next step is chosen."""
        names = self._name
        cells = sorted(
            (
                self._chains.get(cell, 0),
                *map(names, cell.waiting),
                names(cell.task),
                *(map(names, (*cell.rare.woken, *cell.rare.urgent)) if cell.rare else ()),
            )
            for cell in situation.cells
        )
        timers = tuple((when, names(timer)) for when, timer in situation.timers)
        rest = (self._shared, self._test, situation.seen, *parts)
        return hash((situation.now, tuple(cells), timers, tuple(situation.packets), rest))


def _things(situation: StateFingerprint) -> Iterator[Any]:
    """Yield the waiting messages, ready tasks and timers."""
    for cell in situation.cells:
        yield from cell.waiting
        if cell.task is not None and cell.task.ready:
            yield cell.task
        if cell.rare is not None:
            yield from cell.rare.woken
            yield from cell.rare.urgent
    for _, timer in situation.timers:
        yield timer
