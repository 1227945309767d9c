"""Traces of actors: which messages one of them takes, for as long as somebody looks.

While an actor is traced, its cell looks handlers up in a table that notes the class of each
message; all others keep theirs. So a trace costs nothing to any other actor, and nothing to its
own one once it is over.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from callboard.actors.cell import Cell
from callboard.actors.dispatch import DispatchTable, HandlerEntry
from callboard.actors.envelope import Envelope
from callboard.actors.reference import Query
from callboard.actors.runtime import Runtime
from callboard.proxies.messages import frozen_message
from callboard.support.dataclass import dataclass

#: Messages of one actor that are kept, the latest; seconds that a trace lasts at most.
KEPT: Final = 500
LONGEST: Final = 60.0

#: Actors that are traced at a time.
MOST: Final = 16


@frozen_message("callboard.TracedMessage")
class TracedMessage:
    """A message that a traced actor took: its number, age in seconds, type, and its sender."""

    number: int
    age: float
    message: str
    sender: str = ""


@frozen_message("callboard.ActorTracePage")
class ActorTracePage:
    """What a trace has taken note of.

    Attributes:
        messages: behind the number that was asked for, at most 500.
        last: the number to go on behind.
        left: seconds that the trace goes on; 0 once it is over.
    """

    messages: list[TracedMessage]
    last: int = 0
    left: float = 0.0


@frozen_message("callboard.TraceActor")
class TraceActor(Query[ActorTracePage]):
    """To an inspector: which messages does an actor take?

    Attributes:
        which: the text of its ref, its number or its name.
        after: the number of the latest message that is known already.
        seconds: for which the trace goes on from now; 0 only looks, less than 0 ends it.
    """

    which: str
    after: int = 0
    seconds: float = 0.0


class _NotingTable(DispatchTable):
    """A table of handlers that tells each message class that is looked up."""

    def __init__(self, table: DispatchTable, note: Callable[[type], None]) -> None:
        self.table, self.note = table, note
        self.declared, self.opened = table.declared, table.opened

    def __getitem__(self, message_type: type) -> HandlerEntry | None:
        if message_type is not Envelope:  # what is in it is looked up next
            self.note(message_type)
        return self.table[message_type]


@dataclass(eq=False, repr=False)
class _Trace:
    """One traced actor."""

    cell: Cell
    table: _NotingTable
    until: float
    messages: deque[tuple[int, float, str, str]]
    count: int = 0


@dataclass(eq=False, repr=False)
class ActorTraces:
    """The traces of one node. To be used on its thread."""

    _runtime: Runtime
    #: Says who sent a message.
    _origin: Callable[[Any], str]

    def __post_init__(self) -> None:
        """Begin without any."""
        self._traces: dict[int, _Trace] = {}

    def look(self, cell: Cell, order: TraceActor) -> ActorTracePage:
        """Begin, go on with or end the trace of an actor; returns what it has."""
        now = self._runtime.now()
        trace = self._traces.get(cell.number)
        if order.seconds > 0.0 and (trace is None or cell.table is not trace.table):
            trace = self._begin(cell)
        if trace is None:
            return ActorTracePage([])
        if order.seconds > 0.0:
            trace.until = now + min(order.seconds, LONGEST)
        elif order.seconds < 0.0:
            self._end(trace)
        told = [
            TracedMessage(number, now - at, message, sender)
            for number, at, message, sender in list(trace.messages)
            if number > order.after
        ]
        return ActorTracePage(told, trace.count, max(0.0, trace.until - now))

    def _begin(self, cell: Cell) -> _Trace | None:
        """Begin a trace; too many end the one that is over first."""
        if len(self._traces) >= MOST and cell.number not in self._traces:
            oldest = min(self._traces.values(), key=lambda each: each.until)
            self._end(oldest)
            self._traces.pop(oldest.cell.number, None)
        now = self._runtime.now

        def note(message_type: type) -> None:
            trace.count += 1
            row = trace.count, now(), message_type.__qualname__, self._origin(cell.sender)
            trace.messages.append(row)

        trace = _Trace(cell, _NotingTable(cell.table, note), 0.0, deque(maxlen=KEPT))
        cell.table = trace.table
        self._traces[cell.number] = trace
        self._runtime.call_later(LONGEST, self._look_around)
        return trace

    def _look_around(self) -> None:
        """End traces whose time is over; what they have is kept a minute longer."""
        now = self._runtime.now()
        for number, trace in list(self._traces.items()):
            if trace.until <= now:
                self._end(trace)
                if trace.until <= now - LONGEST or trace.cell.reason is not None:
                    del self._traces[number]
        if self._traces:
            self._runtime.call_later(LONGEST / 6, self._look_around)

    def _end(self, trace: _Trace) -> None:
        """Give the actor its own table back, unless it took another one meanwhile."""
        trace.until = min(trace.until, self._runtime.now())
        if trace.cell.table is trace.table:
            trace.cell.table = trace.table.table
