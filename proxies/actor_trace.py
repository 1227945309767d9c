"""Traces of actors: lists of the messages that an actor handles while a viewer requests them.

While an actor is traced, its cell looks up handlers in a table that records the class of each
message. Other cells keep their usual tables. So a trace does not slow down other actors, and
the traced actor is as fast as before when the trace has ended.
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

#: Latest messages kept for one actor; longest duration of a trace in seconds.
KEPT: Final = 500
LONGEST: Final = 60.0

#: Actors that are traced at the same time.
MOST: Final = 16


@frozen_message("callboard.TracedMessage")
class TracedMessage:
    """A message that a traced actor handled: number, age in seconds, type and sender."""

    number: int
    age: float
    message: str
    sender: str = ""


@frozen_message("callboard.ActorTracePage")
class ActorTracePage:
    """The messages recorded by a trace.

    Attributes:
        messages: the messages after the requested number, at most 500.
        last: the number to request next.
        left: seconds until the trace ends; 0 once it is over.
    """

    messages: list[TracedMessage]
    last: int = 0
    left: float = 0.0


@frozen_message("callboard.TraceActor")
class TraceActor(Query[ActorTracePage]):
    """Ask an inspector for the messages that an actor handles.

    Attributes:
        which: the text of its ref, its number or its name.
        after: the number of the latest known message.
        seconds: duration of the trace from now on; 0 only reads, less than 0 ends it.
    """

    which: str
    after: int = 0
    seconds: float = 0.0


class _TracingTable(DispatchTable):
    """A table of handlers that reports each message class that is looked up."""

    def __init__(self, table: DispatchTable, record: Callable[[type], None]) -> None:
        self.table, self.record = table, record
        self.declared, self.opened = table.declared, table.opened
        self.streams = table.streams

    def __getitem__(self, message_type: type) -> HandlerEntry | None:
        if message_type is not Envelope:  # its message is looked up next
            self.record(message_type)
        return self.table[message_type]


@dataclass(eq=False, repr=False)
class _Trace:
    """One traced actor."""

    cell: Cell
    table: _TracingTable
    until: float
    messages: deque[tuple[int, float, str, str]]
    count: int = 0


@dataclass(eq=False, repr=False)
class ActorTraces:
    """The traces of one node. Call it on the node's thread."""

    _runtime: Runtime
    #: Returns the sender of a message as text.
    _origin: Callable[[Any], str]

    def __post_init__(self) -> None:
        """Start without traces."""
        self._traces: dict[int, _Trace] = {}

    def update(self, cell: Cell, order: TraceActor) -> ActorTracePage:
        """Start, extend or end the trace of an actor; return its messages."""
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
        rows = [
            TracedMessage(number, now - timestamp, message, sender)
            for number, timestamp, message, sender in list(trace.messages)
            if number > order.after
        ]
        return ActorTracePage(rows, trace.count, max(0.0, trace.until - now))

    def _begin(self, cell: Cell) -> _Trace | None:
        """Start a trace; if there are too many traces, end the one that would expire first."""
        if len(self._traces) >= MOST and cell.number not in self._traces:
            oldest = min(self._traces.values(), key=lambda trace_of_actor: trace_of_actor.until)
            self._end(oldest)
            self._traces.pop(oldest.cell.number, None)
        now = self._runtime.now

        def record(message_type: type) -> None:
            trace.count += 1
            row = trace.count, now(), message_type.__qualname__, self._origin(cell.sender)
            trace.messages.append(row)

        trace = _Trace(cell, _TracingTable(cell.table, record), 0.0, deque(maxlen=KEPT))
        cell.table = trace.table
        self._traces[cell.number] = trace
        self._runtime.call_later(LONGEST, self._end_expired)
        return trace

    def _end_expired(self) -> None:
        """End expired traces; their messages stay available for another minute."""
        now = self._runtime.now()
        for number, trace in list(self._traces.items()):
            if trace.until <= now:
                self._end(trace)
                if trace.until <= now - LONGEST or trace.cell.reason is not None:
                    del self._traces[number]
        if self._traces:
            self._runtime.call_later(LONGEST / 6, self._end_expired)

    def _end(self, trace: _Trace) -> None:
        """Restore the actor's own table, unless its table was replaced since."""
        trace.until = min(trace.until, self._runtime.now())
        if trace.cell.table is trace.table:
            trace.cell.table = trace.table.table
