"""A unit of work: the replies and messages that wait for its events, and its commit.

A unit of work is what a handler does between two awaits. Its answer and its messages to other
actors show the state, so they wait until the events of that state are durable; see
`callboard.entity.cell`.
"""

from collections.abc import Callable
from typing import Any, Final, Literal, Protocol

from callboard.entity.errors import EntityUnavailable
from callboard.entity.event_json import IMMUTABLE
from callboard.entity.state.interface import EntitySnapshot, NewEvent, RowChanges
from callboard.kernel import errors
from callboard.kernel.activation import Home
from callboard.kernel.actors import ActorRef, ExitReason
from callboard.kernel.errors import MessageTooLarge
from callboard.kernel.reply import Reply, Sender
from callboard.lease.errors import OutcomeUnknown
from callboard.support.text import error_text

#: End of an error text that promises that nothing happened.
NOT_STORED: Final = "; nothing was stored: repeat it"

#: Errors that a caller gets unchanged, as they say more than that nothing was stored.
_REPORTED_AS_THEY_ARE: Final = frozenset(
    (
        "OutcomeUnknown",
        "StateCorrupt",
        "StateVersion",
        "ValueRefused",
        "WrongState",
        "StateReplaced",
        "EntityUnavailable",
    )
)

#: Sends what a handler emitted; and fails it if it may not leave.
Emission = tuple[Callable[[], object], Callable[[BaseException], object]]


class EntityBatch:
    """One commit of an entity, with the answer and emissions that wait for it."""

    __slots__ = ("answer", "emissions", "events", "number", "rows", "snapshot")

    def __init__(
        self,
        number: int,
        events: list[NewEvent],
        emissions: "list[Emission]",
        answer: "DeferredReply | None" = None,
    ) -> None:
        #: Position among the batches of one activation: 1, 2, 3 …
        self.number = number
        self.events = events
        self.snapshot: EntitySnapshot | None = None
        #: Changes of reminders and jobs; None if there are none.
        self.rows: RowChanges | None = None
        #: The answer of the handler that persisted this; it leaves before the emissions.
        self.answer = answer
        self.emissions = emissions

    def fail(self, error: BaseException) -> None:
        """Fail the answer and the emissions."""
        if self.answer is not None:
            self.answer.fail_at_once(error)
        for _, fail in self.emissions:
            fail(error)


#: Marks a sender that was not answered yet.
_NONE: Final = object()


def drop(_: BaseException) -> None:
    """Drop a message without a sender to report to."""


class UnitCell(Protocol):
    """The cell of an activation, as its replies use it."""

    #: Whether the type has a state to store events in.
    type_is_kept: bool
    #: The number of the last durable batch.
    durable: int
    #: Why the activation has ended; None before its end.
    reason: ExitReason | None
    detail: str
    host: Any

    @property
    def ref(self) -> ActorRef[Any]:
        """The ref of the entity."""

    def close_unit(self) -> None:
        """End the unit of work: commit its events, now or after the commit in flight."""

    def finish_unit(self, answer: "DeferredReply", /) -> None:
        """End the unit of work of a handler that answered; the answer leaves when it may."""

    def emit_answer(
        self, send: Callable[[], object], fail: Callable[[BaseException], object], /
    ) -> None:
        """Send an answer when the state it shows is durable and the slot is still owned."""

    def failed(self, error: BaseException, sender: Sender | None, /) -> None:
        """Handle an exception of a handler: discard its unit of work, and read the state."""


class DeferredReply(Reply):
    """The reply to a message for an entity, held back until the state it shows is durable."""

    __slots__ = ("_answer", "cell", "_sends", "batch", "inner")

    expects: Literal[True] = True
    #: The first answer, and the call that sends it if it was encoded at that moment.
    _answer: Any
    _sends: Callable[[], object] | None

    def __init__(self, cell: "UnitCell", inner: Sender | None) -> None:
        self.cell = cell
        self.inner = inner
        self._answer = _NONE
        #: The first batch with events of this message's handler; 0 for none.
        self.batch = 0

    @property
    def wants_reply(self) -> bool:
        """Whether a caller waits for the answer."""
        inner = self.inner
        return inner is not None and inner.expects and inner.wants_reply

    @property
    def is_done(self) -> bool:
        """Whether the ask has ended."""
        inner = self.inner
        return inner is None or not inner.expects or inner.is_done

    @property
    def deadline(self) -> float | None:
        """When the ask expires."""
        return None if self.inner is None else self.inner.deadline

    @deadline.setter
    def deadline(self, value: float | None) -> None:
        if self.inner is not None:
            self.inner.deadline = value  # type: ignore[misc]

    @property
    def origin(self) -> object:
        """Identifies the ask when its caller cancels it."""
        return None if self.inner is None else self.inner.origin

    @property
    def node(self) -> bytes:
        """The node of the sender; empty for this node."""
        return b"" if self.inner is None else self.inner.node

    def set_result(self, value: Any) -> bool:
        """End the unit of work; the answer leaves when the state it shows is durable."""
        inner, cell = self.inner, self.cell
        if inner is None or not inner.expects:
            cell.close_unit()
            return True
        if cell.type_is_kept and not inner.is_done:
            if self._answer is not _NONE:  # only the first answer counts
                cell.close_unit()
                return True
            self._answer, self._sends = value, None
            if value.__class__ not in IMMUTABLE:
                try:
                    self._preserve(inner, value)
                except BaseException as error:  # noqa: BLE001 - handled as raised by the handler
                    cell.failed(error, self)
                    return True
            cell.finish_unit(self)
            return True
        cell.close_unit()
        return inner.set_result(value)

    def _preserve(self, inner: Any, value: Any) -> None:
        """Encode or copy an answer now: the handler may change the object before it leaves.

        Raises:
            NotSerializable: the answer cannot be sent.
        """
        if not isinstance(value, ActorRef):
            try:
                self._sends = inner.encoded(value)
            except MessageTooLarge:
                pass  # reported to the caller when the answer leaves
            else:
                if self._sends is not None:
                    return
        self._answer = self.cell.host.form.copy(value)

    def release(self) -> None:
        """Send the answer."""
        inner: Any = self.inner
        if self._sends is not None:
            self._sends()
        elif inner is not None:
            inner.set_result(self._answer)

    def set_exception(self, error: BaseException) -> bool:
        """Send an error when the state it may show is durable."""
        inner, cell = self.inner, self.cell
        if inner is None or not inner.expects:
            return True
        if cell.type_is_kept and cell.reason is None:
            cell.emit_answer(lambda: inner.set_exception(error), self._refuse)
            return True
        if cell.reason is not None and isinstance(error, errors.ActorDown):
            error = self._stopped()
        return inner.set_exception(error)

    def _stopped(self) -> BaseException:
        """Return the error of an ask whose activation ended while its handler awaited."""
        cell = self.cell
        text = f"{cell.ref} was stopped while it handled this ({cell.detail or cell.reason})"
        if cell.type_is_kept and not self.batch:
            return EntityUnavailable(f"{text}{NOT_STORED}")
        return OutcomeUnknown(f"{text}: a part of it may have happened")

    def _refuse(self, error: BaseException) -> None:
        """Fail the ask because its answer may not leave."""
        if 0 < self.batch <= self.cell.durable and isinstance(error, EntityUnavailable):
            text = error_text(error).removesuffix(NOT_STORED)
            error = OutcomeUnknown(f"{text}; a part of what its handler persisted is stored")
        if self.inner is not None and self.inner.expects:
            self.inner.set_exception(error)

    def fail_at_once(self, error: BaseException) -> None:
        """Send an error that does not depend on the state."""
        self._refuse(error)

    def mark_handled(self) -> None:
        """Mark the message as handled."""
        if self.inner is not None and self.inner.expects:
            self.inner.mark_handled()

    def reference(self, runtime: Home) -> ActorRef[Any] | None:
        """Return the ref that a handler sees as `self.sender`."""
        inner = self.inner
        if inner is not None and inner.expects and self.wants_reply:
            return runtime.reply_ref(self)
        return None if inner is None else inner.reference(runtime)


class DeferredBatchReply(DeferredReply):
    """The reply to a message that arrived in a batch.

    It answers through the batch. The reply object of a single message is made only when it is
    needed, for example for `self.sender`.
    """

    __slots__ = ("_single", "_batch_reply", "_has_left", "_message_id", "deadline", "expects")

    #: The reply of a single message, once it was made.
    _single: Any

    wants_reply: Final = True

    deadline: float | None
    expects: Literal[True]

    def __init__(self, batch_reply: Any, message_id: int, deadline: float | None) -> None:
        """Create a reply without a cell yet; `batch_reply` sends the answers."""
        self._batch_reply, self._message_id, self.deadline = batch_reply, message_id, deadline
        self._answer, self._single = _NONE, None
        self.expects, self.batch, self._has_left = True, 0, False

    @property
    def inner(self) -> Any:  # type: ignore[override]
        """The reply of a single message, made on first use."""
        single = self._single
        if single is None:
            single = self._single = self._batch_reply.carried(self._message_id)
            single.is_done = self._has_left
        single.deadline = self.deadline
        return single

    @property
    def is_done(self) -> bool:
        """Whether the ask has ended."""
        return self._has_left or (self._single is not None and self._single.is_done)

    @property
    def node(self) -> bytes:
        """The node of the sender."""
        node: bytes = self._batch_reply.node
        return node

    def set_result(self, value: Any) -> bool:
        """End the unit of work; the answer leaves when the state it shows is durable."""
        cell = self.cell
        if (
            self._single is not None
            or self._answer is not _NONE
            or not cell.type_is_kept
            or value.__class__ not in IMMUTABLE
        ):
            return super().set_result(value)
        self._answer, self._sends = value, None
        cell.finish_unit(self)
        return True

    def release(self) -> None:
        """Send the answer."""
        if self._single is not None or self._has_left:
            super().release()
        else:
            self._has_left = True
            self._batch_reply.answer(self._message_id, self._answer)


def emission_of(emission: "Emission | DeferredReply") -> Emission:
    """Return the two calls of an emission, which may be an answer."""
    return (
        (emission.release, emission.fail_at_once)
        if isinstance(emission, DeferredReply)
        else emission
    )


def unavailable(error: BaseException) -> BaseException:
    """Return the error for a caller when the state could not be read or written."""
    if type(error).__name__ in _REPORTED_AS_THEY_ARE:
        return error
    return EntityUnavailable(f"{error_text(error)}{NOT_STORED}")
