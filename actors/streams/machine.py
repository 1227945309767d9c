"""The rules of a stream, for both of its ends: credit, numbers and the end. No I/O, no clock.

The reader sends *pulls*, one at a time. A pull permits a number of items and of bytes, and is
answered once. After the answer, the source makes as many items again, and keeps them for the
next pull. So each end holds at most the items of one pull, and both ends work at the same time:

    reader                                       source
    pull 0: 64 items     ────────────────────>
                         <────────────────────   items 0 to 63
    consumes them                                makes items 64 to 127, and waits
    pull 1: 64 items     ────────────────────>
                         <────────────────────   items 64 to 127

An answer is sent as soon as it is full or the generator waits, with at least one item. An
answer without items only shows that the source is alive: a pull does not stay unanswered for
longer than `POLL_SECONDS`.

Pulls are numbered, and so are items. A pull that is not the next one, or an answer whose first
item is not the next one, ends the stream with an error: something between was lost. So a reader
has either all items up to some number, or an error after them.

The end of the source is sent in the answer to a pull, after all items.
"""

from typing import Final, Generic, NamedTuple, TypeVar

from callboard.actors.errors import StreamFailed
from callboard.actors.streams.messages import StreamItems
from callboard.actors.values import Answer

#: Bytes of items that each end of a stream may hold, unless a single item is larger.
BYTES_LIMIT: Final = 1 << 20

#: Limit of the items of one answer: a turn of the actor makes no more without a pause.
ANSWER_LIMIT: Final = 1_000

#: Seconds after which a pull is answered without items.
POLL_SECONDS: Final = 20.0


class Pull(NamedTuple):
    """The credit of one pull: its number, its items, and its bytes."""

    number: int
    items: int
    size: int


#: The class of askers, which answers are sent to.
K = TypeVar("K")


class PullAnswer(NamedTuple, Generic[K]):
    """An answer that the source sends now.

    Attributes:
        asker: the asker of the pull.
        items: the items, or None.
        error: the error that ends the stream, or None.
    """

    asker: K
    items: StreamItems | None
    error: BaseException | None


class SourceEnd(Generic[K]):
    """The end of a stream at its generator.

    States: open → over. While it is open, the driver appends items to `batch`, until it has
    `room` items or `bytes_room` bytes. It then calls `flush`, and continues when the batch
    is empty again. `flush` may be called earlier, so that items do not wait.
    """

    __slots__ = (
        "_asker",
        "_asked_at",
        "_error",
        "_next",
        "_pulls",
        "batch",
        "bytes_room",
        "idle",
        "is_over",
        "is_reported",
        "room",
        "used_at",
    )

    def __init__(self, now: float, idle: float) -> None:
        """Open the source of a stream; `idle` is the longest time without a pull."""
        self.idle = idle
        #: When the reader has pulled, or got items, for the last time.
        self.used_at = now
        #: The items that are not sent yet; always the same list.
        self.batch: list[Answer] = []
        #: The items and bytes that fill the batch; 0 before the first pull.
        self.room = self.bytes_room = 0
        #: Whether the generator has ended, and whether the reader was sent the end.
        self.is_over = self.is_reported = False
        self._error: BaseException | None = None
        #: The asker of the pending pull, or None, and when the pull arrived.
        self._asker: K | None = None
        self._asked_at = now
        #: The number of the next pull, and of the first item of the batch.
        self._pulls = self._next = 0

    def pull(self, pull: Pull, asker: K, now: float) -> list[PullAnswer[K]]:
        """Handle a pull of the reader."""
        self.used_at = self._asked_at = now
        if pull.number != self._pulls or self._asker is not None:
            text = f"pull {pull.number} arrived instead of pull {self._pulls}"
            error = StreamFailed(f"{text}; open the stream again")
            self.is_reported = True
            return [*self.end(error, now), PullAnswer(asker, None, error)]
        self._pulls += 1
        self._asker = asker
        self.room, self.bytes_room = min(pull.items, ANSWER_LIMIT), min(pull.size, BYTES_LIMIT)
        return self.flush(now)

    def flush(self, now: float) -> list[PullAnswer[K]]:
        """Answer the pending pull, if there are items or the stream is over."""
        if self._asker is None or not (self.batch or self.is_over):
            return []
        self.used_at = now
        return [self._answer()]

    def end(self, error: BaseException | None, now: float) -> list[PullAnswer[K]]:
        """End the stream: the generator has returned, or failed with an error."""
        if self.is_over:
            return []
        self.is_over, self._error = True, error
        return self.flush(now)

    def tick(self, now: float) -> list[PullAnswer[K]]:
        """Answer a pull that has waited for long, without items."""
        if self._asker is None or now - self._asked_at < POLL_SECONDS:
            return []
        return [self._answer()]

    def is_idle(self, now: float) -> bool:
        """Return whether the reader has taken nothing for the time that it may."""
        return self._asker is None and now - self.used_at >= self.idle

    def _answer(self) -> PullAnswer[K]:
        """Answer the pending pull: with items, or else with the error of the end."""
        asker, self._asker = self._asker, None
        assert asker is not None, "an answer belongs to a pull"
        items = self.batch[:]
        self.batch.clear()
        if self.is_over and (self._error is None or not items):
            self.is_reported = True
            if self._error is not None:
                return PullAnswer(asker, None, self._error)
        first = self._next
        self._next += len(items)
        return PullAnswer(asker, StreamItems(first, items, self.is_reported), None)


class ReaderEnd:
    """The end of a stream at its reader.

    States: open → over, after the last items or when it is closed. While it is open, a pull is
    sent, then its answer is received and its items are consumed, then the next pull is sent.
    """

    __slots__ = ("_buffer", "_is_pending", "_next", "_pulls", "is_closed", "is_over")

    def __init__(self, buffer: int) -> None:
        """Open the reader's end; `buffer` is the number of items that it holds at most."""
        self._buffer = buffer
        #: The number of the next pull, and of the next item.
        self._pulls = self._next = 0
        self._is_pending = False
        #: Whether no item follows, and whether this is because the reader has stopped.
        self.is_over = self.is_closed = False

    def next_pull(self) -> Pull | None:
        """Return the pull to send now; None if one is pending or the stream is over."""
        if self._is_pending or self.is_over:
            return None
        pull = Pull(self._pulls, self._buffer, BYTES_LIMIT)
        self._is_pending = True
        self._pulls += 1
        return pull

    def receive(self, answer: Answer) -> list[Answer]:
        """Handle the answer to the pending pull; return its items, maybe none.

        Raises:
            StreamFailed: items were lost, or this is not the answer to a pull.
        """
        self._is_pending = False
        if not isinstance(answer, StreamItems) or type(answer.items) is not list:
            msg = f"a {type(answer).__name__} arrived instead of items; open the stream again"
            raise StreamFailed(msg)
        items = answer.items
        problem = ""
        if answer.first != self._next:
            problem = f"item {answer.first} arrived instead of item {self._next}"
        elif len(items) > self._buffer:
            problem = f"{len(items):,} items arrived instead of at most {self._buffer:,}"
        if problem:
            text = f"{problem}; open the stream again"
            raise StreamFailed(text)
        self._next += len(items)
        self.is_over = answer.is_last is True
        return items

    def close(self) -> None:
        """End the stream before its end; no further pull is due."""
        if not self.is_over:
            self.is_over = self.is_closed = True
