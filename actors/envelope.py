"""What travels with a message apart from itself: a trace context, a deadline, a priority.

Nearly all messages go without; they pay nothing. An `Envelope` waits in a mailbox like any
message, and the cell opens it.

The trace context is the text of a W3C `traceparent`. Whoever handles a message that has one
passes it on with every message that the handler sends, over any number of actors and nodes;
spans are the business of the tracing library that set it.
"""

import contextlib
import re
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Literal

Priority = Literal["normal", "high"]

_TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[\x21-\x7e]*)?"
)

LONGEST_TRACEPARENT: Final = 128
"""Characters; version 00 has 55, and later ones may be longer."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message and what travels with it.

    Attributes:
        deadline: when an ask's time is over, on the clock of the node's runner.
    """

    message: Any
    trace: str | None = None
    deadline: float | None = None
    is_urgent: bool = False


class Company:
    """Whether any message of this process went in company: until then nobody looks for it.

    `used` becomes True with the first trace context, and the first ask that was given a time.
    """

    __slots__ = ("trace", "used")

    def __init__(self) -> None:
        self.used = False
        self.trace: ContextVar[str | None] = ContextVar("callboard_traceparent", default=None)


COMPANY: Final = Company()


def is_traceparent(text: object) -> bool:
    """Say whether something is the text of a W3C trace context (`version-trace-span-flags`)."""
    return (
        isinstance(text, str)
        and len(text) <= LONGEST_TRACEPARENT
        and _TRACEPARENT.fullmatch(text) is not None
    )


def traceparent() -> str | None:
    """Return the trace context of the message that is handled, or of the block around."""
    return COMPANY.trace.get()


@contextlib.contextmanager
def traced(text: str | None) -> Iterator[None]:
    """Send the messages of a block with a trace context; None sends them without.

    Raises:
        ValueError: it is not the text of a W3C `traceparent`.
    """
    if text is not None and not is_traceparent(text):
        msg = f"{text!r} is no W3C traceparent, such as 00-<32 hex>-<16 hex>-01"
        raise ValueError(msg)
    COMPANY.used = True
    token = COMPANY.trace.set(text)
    try:
        yield
    finally:
        COMPANY.trace.reset(token)
