"""What travels with a message apart from itself: a trace context, a deadline, a priority.

Nearly all messages go without; they pay nothing. An `Envelope` waits in a mailbox like any
message, and the cell opens it.

The trace context is the texts of a W3C `traceparent` and `tracestate`. A handler of a
message that has one passes it on with every message that it sends, over any number of actors
and nodes; spans are the business of the tracing library that set it.
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import cache
from typing import Any, Final, Literal, NamedTuple, Protocol

from callboard.support.dataclass import dataclass

Priority = Literal["normal", "high"]

#: Compiles a pattern when it is first used.
_compiled: Final = cache(re.compile)

_TRACEPARENT: Final = (
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[\x21-\x7e]*)?"
)

#: Characters; version 00 has 55, and later ones may be longer.
LONGEST_TRACEPARENT: Final = 128

# W3C trace context, section 3.3: up to 32 members `key=value`, separated by commas.
_TRACESTATE: Final = (
    r"[\t ]*[a-z0-9][a-z0-9_*/@-]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,256}[\t ]*"
)
_MOST_MEMBERS: Final = 32

#: Characters; W3C trace context (section 3.3.1.5) wants at least as many to be passed on.
LONGEST_TRACESTATE: Final = 512


class TraceContext(NamedTuple):
    """A W3C trace context: `traceparent`, and the `tracestate` that goes with it, or ""."""

    parent: str
    state: str = ""


@dataclass(slots=True)  # not frozen: that would take twice the time to make one
class Envelope:
    """A message and what travels with it; nothing changes it.

    Attributes:
        deadline: when an ask's time is over, on the clock of the node's runner.
        key: names an ask that may come again; its answer is kept for that.
        chain: the actors with a name in chains that wait for the answer of an ask, directly or
            by others.
    """

    message: Any
    trace: TraceContext | None = None
    deadline: float | None = None
    is_urgent: bool = False
    key: bytes | None = None
    chain: tuple[str, ...] = ()


@dataclass(slots=True)
class Encoded:
    """A message that is decoded in the turn of its actor: its class has code of a user.

    Attributes:
        decode: returns the message; that may take long, or raise.
        refused: called with what it raised.
        size: bytes of its payload.
    """

    decode: Callable[[], Any]
    refused: Callable[[BaseException], object]
    size: int


class SpanMaker(Protocol):
    """Makes spans of asks and handlers."""

    def ask(self, ref: Any, message: object, /) -> "Begun | None":
        """Begin the span of an ask; None for one of the runtime's own."""

    def around(self, function: Callable[..., Any], /, *, awaits: bool) -> Callable[..., Any]:
        """Return a function that calls a handler or method in a span."""


class Begun(NamedTuple):
    """The span of an ask: the context that its message travels with, and how it ends."""

    trace: TraceContext | None
    end: Callable[[Any], object]


_CHAIN: Final[ContextVar[tuple[str, ...]]] = ContextVar("callboard_chain", default=())


@dataclass(slots=True)
class Company:
    """Whether any message of this process went in company: until then no code looks for it.

    `used` becomes True with the first trace context, the first ask that was given a time, and
    the first actor that has an outbox.

    Attributes:
        trace: the context that the running code belongs to.
        current: returns the context that goes with what the running code tells.
        looks: returns whether the running code has anything to do with a trace.
        spans: makes spans of asks and handlers; None unless a program wants them.
    """

    trace: ContextVar[TraceContext | None]
    current: Callable[[], TraceContext | None]
    looks: Callable[[], object]
    used: bool = False
    spans: SpanMaker | None = None
    #: The actors with a `chain_name` that wait for the running code.
    chain: ContextVar[tuple[str, ...]] = _CHAIN

    def make_spans(
        self, spans: SpanMaker | None, current: Callable[[], TraceContext | None] | None = None
    ) -> None:
        """Make spans from now on, of what is spawned from now on; or none again."""
        self.current = current or self.trace.get
        self.looks = self.trace.get if spans is None else lambda: True
        self.used, self.spans = True, spans

    def begin_ask(self, ref: Any, message: object) -> Begun | None:
        """Begin the span of an ask, if there are spans."""
        return None if self.spans is None else self.spans.ask(ref, message)


_TRACE: Final[ContextVar[TraceContext | None]] = ContextVar("callboard_trace", default=None)

COMPANY: Final = Company(_TRACE, _TRACE.get, _TRACE.get)


def is_traceparent(text: object) -> bool:
    """Return whether it is a W3C trace context (`version-trace-span-flags`)."""
    return (
        isinstance(text, str)
        and len(text) <= LONGEST_TRACEPARENT
        and _compiled(_TRACEPARENT).fullmatch(text) is not None
    )


def is_tracestate(text: object) -> bool:
    """Return whether something is the text of a W3C trace state (`key=value,…`)."""
    if not isinstance(text, str) or len(text) > LONGEST_TRACESTATE:
        return False
    members = [member for member in text.split(",") if member.strip()]
    return len(members) <= _MOST_MEMBERS and all(map(_compiled(_TRACESTATE).fullmatch, members))


def trace_id() -> str:
    """Return the id of the trace that the running code belongs to, 32 hex digits; else ""."""
    trace = COMPANY.trace.get()
    return "" if trace is None else trace.parent.split("-")[1]


def traced_as(message: object) -> contextlib.AbstractContextManager[None]:
    """Return a block that belongs to the trace of a message, if it came with one."""
    trace = message.trace if type(message) is Envelope else None
    return contextlib.nullcontext() if trace is None else traced(*trace)


@contextlib.contextmanager
def accompanied(envelope: Envelope) -> Iterator[None]:
    """Handle what came in an envelope: its trace and its chain hold for a block."""
    token = COMPANY.chain.set(envelope.chain)
    try:
        with traced_as(envelope):
            yield
    finally:
        COMPANY.chain.reset(token)


def traceparent() -> str | None:
    """Return the `traceparent` of the message that is handled, or of the block around."""
    trace = COMPANY.current()
    return None if trace is None else trace.parent


def tracestate() -> str:
    """Return the `tracestate` that goes with `traceparent()`; "" without one."""
    trace = COMPANY.current()
    return "" if trace is None else trace.state


@contextlib.contextmanager
def traced(parent: str | None, state: str = "") -> Iterator[None]:
    """Send the messages of a block with a trace context; None sends them without.

    Args:
        parent: the text of a W3C `traceparent`.
        state: of the `tracestate` that goes with it.

    Raises:
        ValueError: one of them is not of the form that W3C prescribes.
    """
    if parent is not None and not is_traceparent(parent):
        msg = f"{parent!r} is no W3C traceparent, such as 00-<32 hex>-<16 hex>-01"
        raise ValueError(msg)
    if not is_tracestate(state):
        msg = f"{state!r:.80} is no W3C tracestate, such as vendor=value,other=value"
        raise ValueError(msg)
    COMPANY.used = True
    token = COMPANY.trace.set(None if parent is None else TraceContext(parent, state))
    try:
        yield
    finally:
        COMPANY.trace.reset(token)
