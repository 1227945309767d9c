"""What tells the states of a run apart, so that a search goes on from each only once.

Actors cannot be compared, so a state is told by what led to it: of each actor the steps that it
took and what it got in them, each of these named by the step that sent it; then what waits and
is under way, in its order. Runs that differ only in the order of steps that do not concern each
other come to the same state again. Steps concern each other also where actors share more than
messages, see `callboard.simulation.schedules.sharing`: the order of such steps is kept.
"""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from callboard.kernel.activation import Cell
from callboard.simulation.schedules.sharing import Sharing


class Situation(NamedTuple):
    """What there is at a moment.

    Attributes:
        now: virtual seconds.
        cells: the actors of nodes that run.
        timers: those of actors, the first one first.
        packets: what is under way, by the name of its way.
        seen: what the test's histories have recorded.
        handled: messages that callboard's own actors have handled.
    """

    now: float
    cells: Sequence[Cell]
    timers: Sequence[tuple[float, object]]
    packets: Sequence[Hashable]
    seen: Hashable
    handled: int


class Fingerprint:
    """Follows a run, and tells its states."""

    def __init__(self) -> None:
        self._chains: dict[object, int] = {}
        self._sharing = Sharing()
        #: The steps of actors that share something, and of the network, in their order.
        self._shared = self._test = 0
        #: By which step a message, a timer or a task that can go on came to be.
        self._tags: dict[int, tuple[object, int]] = {}
        self._got: Hashable = None
        self._handled = 0

    def test_goes_on(self, situation: Situation) -> None:
        """Take note that the test did something between two waits."""
        self._test += 1
        self._handled = situation.handled
        self._tag(situation, hash(("test", self._test)))

    def step_begins(self, about: object) -> None:
        """Take note of what an actor gets in the step that comes."""
        if not isinstance(about, Cell):
            self._got = str(about)
        elif about.task is not None and about.task.ready:
            self._got = self._name(about.task)
        else:
            woken = about.aside.woken if about.aside is not None else ()
            self._got = tuple(map(self._name, [*about.waiting[:1], *list(woken)[:1]]))

    def step_taken(self, about: object, situation: Situation) -> None:
        """Take note of a step: of an actor, or else of the network, of time, of a fault."""
        last = hash((self._chains.get(about, 0), self._got, situation.now))
        did_more = situation.handled != self._handled  # a store or a topic is shared as well
        self._handled = situation.handled
        if did_more or not isinstance(about, Cell) or about in self._sharing.actors:
            self._shared = last = hash((self._shared, last))
        if isinstance(about, Cell):
            self._chains[about] = last
            self._sharing.forget(about)
        self._tag(situation, last)

    def _tag(self, situation: Situation, step: int) -> None:
        """Name what is new by the step that made it."""
        number = 0
        for cell in situation.cells:
            if cell not in self._chains:
                number += 1
                self._chains[cell] = hash((step, number))
            self._sharing.look(cell)
        for thing in _things(situation):
            if id(thing) not in self._tags:
                number += 1
                self._tags[id(thing)] = (thing, hash((step, number)))

    def _name(self, thing: object) -> int:
        """Return the name of something."""
        return self._tags[id(thing)][1] if id(thing) in self._tags else 0

    def state(self, situation: Situation, *others: Hashable) -> int:
        """Return what tells the state of a run, before a step of it is chosen."""
        names = self._name
        cells = sorted(
            (
                self._chains.get(cell, 0),
                *map(names, cell.waiting),
                names(cell.task),
                *(map(names, (*cell.aside.woken, *cell.aside.urgent)) if cell.aside else ()),
            )
            for cell in situation.cells
        )
        timers = tuple((when, names(timer)) for when, timer in situation.timers)
        rest = (self._shared, self._test, situation.seen, *others)
        return hash((situation.now, tuple(cells), timers, tuple(situation.packets), rest))


def _things(situation: Situation) -> Iterator[Any]:
    """Yield what waits: messages, tasks that can go on, timers."""
    for cell in situation.cells:
        yield from cell.waiting
        if cell.task is not None and cell.task.ready:
            yield cell.task
        if cell.aside is not None:
            yield from cell.aside.woken
            yield from cell.aside.urgent
    for _, timer in situation.timers:
        yield timer
