"""Metadata of a message: a trace context, a deadline, a priority.

Most messages have none, and cost nothing more. An `Envelope` waits in a mailbox like any
message; the cell unpacks it.

The trace context consists of a W3C `traceparent` and `tracestate`. A handler of a message with
a trace context sends all its messages with the same one, across any number of actors and nodes.
The tracing library that set it creates the spans.
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import cache
from typing import Any, Final, Literal, NamedTuple, Protocol

from callboard.actors.values import Message
from callboard.support.calls import Action
from callboard.support.dataclass import dataclass

Priority = Literal["normal", "high"]

#: Compiles a pattern at its first use.
_compiled: Final = cache(re.compile)

_TRACEPARENT: Final = (
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[\x21-\x7e]*)?"
)

#: Limit in characters; version 00 has 55, and later versions may be longer.
LONGEST_TRACEPARENT: Final = 128

# W3C trace context, section 3.3: up to 32 members `key=value`, separated by commas.
_TRACESTATE: Final = (
    r"[\t ]*[a-z0-9][a-z0-9_*/@-]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,256}[\t ]*"
)
_MOST_MEMBERS: Final = 32

#: Limit in characters; the least that W3C trace context (section 3.3.1.5) allows.
LONGEST_TRACESTATE: Final = 512


class TraceContext(NamedTuple):
    """A W3C trace context: `traceparent`, and its `tracestate` or ""."""

    parent: str
    state: str = ""


@dataclass(slots=True)  # not frozen: that would double the time to create one
class Envelope:
    """A message with its metadata; treated as immutable.

    Attributes:
        deadline: time at which an ask expires, on the clock of the node's runner.
        key: idempotency key of an ask that may be repeated; its answer is cached.
        chain: actors with a `chain_name` that wait for the answer of an ask, directly or
            indirectly.
    """

    message: Message
    trace: TraceContext | None = None
    deadline: float | None = None
    is_urgent: bool = False
    key: bytes | None = None
    chain: tuple[str, ...] = ()


@dataclass(slots=True)
class Encoded:
    """An encoded message, decoded in its actor's turn because its class runs user code.

    Attributes:
        decode: returns the message; may take long, or raise.
        refused: called with the exception of `decode`.
        size: bytes of its payload.
    """

    decode: Callable[[], Any]
    refused: Callable[[BaseException], object]
    size: int


class SpanMaker(Protocol):
    """Creates spans of asks and handlers."""

    def ask(self, ref: Any, message: Message, /) -> "Begun | None":
        """Start the span of an ask; return None for an ask of the runtime itself."""

    def around(self, function: Callable[..., Any], /, *, awaits: bool) -> Callable[..., Any]:
        """Return a function that calls a handler or method in a span."""


class Begun(NamedTuple):
    """The span of an ask: the trace context of its message, and a function that ends it."""

    trace: TraceContext | None
    end: Callable[[Any], object]


_CHAIN: Final[ContextVar[tuple[str, ...]]] = ContextVar("callboard_chain", default=())


@dataclass(slots=True)
class Instrumentation:
    """Process-wide instrumentation of messages.

    `used` becomes True with the first trace context, the first ask with a timeout, or the
    first actor with an outbox. Until then the fast path of sending skips all of this.

    It is not a flag per node, because a handler may send through a ref of another node in the
    same process, as programs with several nodes and tests do. Such a ref leads to the flag of
    its own node. If that is False, the send would bypass the outbox of the handler's actor and
    leave before its events are committed, and an ask would ignore the inherited deadline.

    Attributes:
        trace: trace context of the running code.
        current: returns the trace context for messages that the running code sends.
        may_be_traced: returns a true value if the running code may belong to a trace.
        spans: creates spans of asks and handlers; None if tracing is off.
    """

    trace: ContextVar[TraceContext | None]
    current: Callable[[], TraceContext | None]
    may_be_traced: Action
    used: bool = False
    #: Whether actors with outboxes may exist; otherwise a send does not check for one.
    has_outboxes: bool = False
    spans: SpanMaker | None = None
    #: The actors with a `chain_name` that wait for the running code.
    chain: ContextVar[tuple[str, ...]] = _CHAIN

    def make_spans(
        self, spans: SpanMaker | None, current: Callable[[], TraceContext | None] | None = None
    ) -> None:
        """Create spans for actors that are spawned from now on; None stops this."""
        self.current = current or self.trace.get
        self.may_be_traced = self.trace.get if spans is None else lambda: True
        self.used, self.spans = True, spans

    def use_outboxes(self) -> None:
        """Make all later sends check the outbox of the running actor."""
        self.used = self.has_outboxes = True

    def begin_ask(self, ref: Any, message: Message) -> Begun | None:
        """Start the span of an ask, if tracing is on."""
        return None if self.spans is None else self.spans.ask(ref, message)


_TRACE: Final[ContextVar[TraceContext | None]] = ContextVar("callboard_trace", default=None)

INSTRUMENTATION: Final = Instrumentation(_TRACE, _TRACE.get, _TRACE.get)


def is_traceparent(text: object) -> bool:
    """Return whether a value is a W3C trace context (`version-trace-span-flags`)."""
    return (
        isinstance(text, str)
        and len(text) <= LONGEST_TRACEPARENT
        and _compiled(_TRACEPARENT).fullmatch(text) is not None
    )


def is_tracestate(text: object) -> bool:
    """Return whether a value is a W3C trace state (`key=value,…`)."""
    if not isinstance(text, str) or len(text) > LONGEST_TRACESTATE:
        return False
    members = [member for member in text.split(",") if member.strip()]
    return len(members) <= _MOST_MEMBERS and all(map(_compiled(_TRACESTATE).fullmatch, members))


def trace_id() -> str:
    """Return the trace id of the running code, 32 hex digits; "" without a trace."""
    trace = INSTRUMENTATION.trace.get()
    return "" if trace is None else trace.parent.split("-")[1]


def traced_as(message: Message) -> contextlib.AbstractContextManager[None]:
    """Return a context manager that sets the trace context of a message, if it has one."""
    trace = message.trace if type(message) is Envelope else None
    return contextlib.nullcontext() if trace is None else traced(*trace)


@contextlib.contextmanager
def accompanied(envelope: Envelope) -> Iterator[None]:
    """Run a block with the trace and the chain of an envelope."""
    token = INSTRUMENTATION.chain.set(envelope.chain)
    try:
        with traced_as(envelope):
            yield
    finally:
        INSTRUMENTATION.chain.reset(token)


def traceparent() -> str | None:
    """Return the `traceparent` of the enclosing block, or of the message being handled."""
    trace = INSTRUMENTATION.current()
    return None if trace is None else trace.parent


def tracestate() -> str:
    """Return the `tracestate` of `traceparent()`; "" without one."""
    trace = INSTRUMENTATION.current()
    return "" if trace is None else trace.state


@contextlib.contextmanager
def traced(parent: str | None, state: str = "") -> Iterator[None]:
    """Send the messages of a block with a trace context.

    Args:
        parent: a W3C `traceparent`; None sends the messages without a trace context.
        state: the `tracestate` of the parent.

    Raises:
        ValueError: a part of the trace context does not have the form that W3C prescribes.
    """
    if parent is not None and not is_traceparent(parent):
        msg = f"{parent!r} is not a W3C traceparent, such as 00-<32 hex>-<16 hex>-01"
        raise ValueError(msg)
    if not is_tracestate(state):
        msg = f"{state!r:.80} is not a W3C tracestate, such as vendor=value,other=value"
        raise ValueError(msg)
    INSTRUMENTATION.used = True
    token = INSTRUMENTATION.trace.set(None if parent is None else TraceContext(parent, state))
    try:
        yield
    finally:
        INSTRUMENTATION.trace.reset(token)
