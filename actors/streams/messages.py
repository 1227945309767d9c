"""The messages between the reader of a stream and the actor whose generator makes the items.

The reader asks with `StreamRequest`, and is answered with a `StreamOpened`. It then sends asks,
the *pulls*, each answered by `StreamItems`. Pulls and items are numbered; see
`callboard.actors.streams.machine`.
"""

from typing import Protocol

from callboard.actors.future import Future
from callboard.actors.values import Answer, Message
from callboard.support.dataclass import dataclass


class StreamOwner(Protocol):
    """The ref of the actor, as readers use it."""

    def ask(self, message: Message, /) -> "Future":
        """Send a message and return the future of its answer."""

    def tell(self, message: Message, /) -> None:
        """Send a message without waiting."""


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """Open a stream; answered with `StreamOpened`.

    Attributes:
        query: the `StreamQuery`, which selects the handler.
        idle: seconds without a pull after which the generator is closed.
    """

    query: Message
    idle: float


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """The answer to `StreamRequest`: the ref of the actor, and its number of the stream."""

    source: StreamOwner
    stream: int


@dataclass(frozen=True, slots=True)
class PullItems:
    """Ask for the next items of a stream; answered with `StreamItems` or the stream's error.

    Attributes:
        stream: the number of the stream.
        pull: the number of this pull, from 0.
        count: limit of items in the answer.
        size: bytes at which the answer takes no further item.
    """

    stream: int
    pull: int
    count: int
    size: int


@dataclass(frozen=True, slots=True)
class StreamItems:
    """The answer to a pull.

    Attributes:
        first: the number of the first item, from 0; without items, of the next one.
        items: the items, in order.
        is_last: whether the generator has returned.
    """

    first: int
    items: list[Answer]
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class CloseStream:
    """Close the generator of a stream whose reader has stopped."""

    stream: int


@dataclass(frozen=True, slots=True)
class CheckStreams:
    """Message of an actor to itself: check for readers that have stopped or are lost."""
