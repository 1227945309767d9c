"""A unit of work: the replies and messages that wait for its events, and its commit.

A unit of work is the work of a handler between two awaits. The handler's answer and its
messages to other actors may show the state, so they wait until the events in that state are
durable; see `callboard.entity.cell`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal, Protocol

from callboard.entity.errors import EntityUnavailable
from callboard.entity.event_json import IMMUTABLE
from callboard.entity.state.interface import EntitySnapshot, NewEvent, RowChanges
from callboard.kernel import errors
from callboard.kernel.activation import Home
from callboard.kernel.actors import ActorRef, ExitReason
from callboard.kernel.errors import MessageTooLarge
from callboard.kernel.reply import Asker, Reply, Sender
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


#: Sends an emission.
Release = Callable[[], object]

#: Reports that an emission may not leave.
Refuse = Callable[[BaseException], object]


class Emission:
    """An answer or a message of a handler that waits until it may be sent."""

    __slots__ = ("fail_at_once", "release")

    def __init__(self, release: Release, fail_at_once: Refuse) -> None:
        """Create an emission from the calls that send or refuse it."""
        self.release, self.fail_at_once = release, fail_at_once


class EntityBatch:
    """One commit of an entity, with the emissions that wait for it."""

    __slots__ = ("emissions", "events", "number", "rows", "snapshot")

    def __init__(
        self, number: int, events: list[NewEvent], emissions: "list[Emission | DeferredReply]"
    ) -> None:
        #: Position among the batches of one activation: 1, 2, 3 …
        self.number = number
        self.events = events
        self.snapshot: EntitySnapshot | None = None
        #: Changes of reminders and jobs; None if there are none.
        self.rows: RowChanges | None = None
        self.emissions = emissions

    def fail(self, error: BaseException) -> None:
        """Fail the emissions."""
        for emission in self.emissions:
            emission.fail_at_once(error)


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
    def ref(self) -> ActorRef:
        """The ref of the entity."""

    def close_unit(self) -> None:
        """End the unit of work: commit its events, now or after the commit in flight."""

    def finish_unit(self, answer: "DeferredReply | None", /) -> None:
        """End the unit of work of a handler; its answer leaves when it may."""

    def emit_answer(self, send: Release, fail: Refuse, /) -> None:
        """Send an answer when the state it shows is durable and the slot is still owned."""

    def failed(self, error: BaseException, sender: Sender | None, /) -> None:
        """Handle an exception of a handler: discard its unit of work, and read the state."""


class InternalCall(Protocol):
    """A call of a handler that the node makes itself: a reminder, or the `activated` hook."""

    def finish(self, cell: Any, /) -> None:
        """Add to the unit of work of the handler, which has returned."""

    def failed(self, error: BaseException, /) -> bool:
        """Handle the failure of the handler or of its commit; return True."""


class DeferredReply(Reply):
    """The reply to a message for an entity, held back until the shown state is durable.

    Attributes:
        inner: the sender of the message; None without one.
        call: if the node itself made the call, so that there is no sender: that call; else
            None.
        batch: the first batch with events of this message's handler; 0 for none.
    """

    __slots__ = ("_answer", "_sends", "batch", "call", "cell", "expects", "inner")

    #: A slot, as reading an attribute of the class takes five times as long.
    expects: Literal[True]
    #: The first answer, and the call that sends it if it was encoded at that moment.
    _answer: Any
    _sends: Callable[[], object] | None

    def __init__(
        self, cell: "UnitCell", inner: Sender | None, call: InternalCall | None = None
    ) -> None:
        self.cell = cell
        self.inner = inner
        self.call = call
        self._answer = _NONE
        self.batch = 0
        self.expects = True

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
        """End the unit of work, and send the answer when the state that it shows is durable."""
        inner, cell = self.inner, self.cell
        if inner is None or not inner.expects:
            if self.call is not None:
                self.call.finish(cell)
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

    def _preserve(self, inner: Asker, value: Any) -> None:
        """Encode or copy an answer now, because the handler may change the object later.

        Raises:
            NotSerializable: the answer cannot be sent.
        """
        if not isinstance(value, ActorRef):
            try:
                self._sends = inner.encoded(value)
            except MessageTooLarge:
                pass  # reported to the caller when the answer is sent
            else:
                if self._sends is not None:
                    return
        self._answer = self.cell.host.form.copy(value)

    def release(self) -> None:
        """Send the answer."""
        inner = self.inner
        if self._sends is not None:
            self._sends()
        elif inner is not None and inner.expects:
            inner.set_result(self._answer)

    def set_exception(self, error: BaseException) -> bool:
        """Send an error when the state that it may show is durable."""
        report, cell = self._report, self.cell
        if report is None:
            return True
        if cell.type_is_kept and cell.reason is None:
            cell.emit_answer(partial(report, error), self.fail_at_once)
            return True
        if cell.reason is not None and isinstance(error, errors.ActorDown):
            error = self._stopped()
        return report(error)

    @property
    def _report(self) -> Callable[[BaseException], bool] | None:
        """The function that receives an error; None if the message has no asker."""
        inner = self.inner
        if inner is not None and inner.expects:
            return inner.set_exception
        return None if self.call is None else self.call.failed

    def _stopped(self) -> BaseException:
        """Return the error of an ask whose activation ended while its handler awaited."""
        cell = self.cell
        text = f"{cell.ref} was stopped while it handled this ({cell.detail or cell.reason})"
        if cell.type_is_kept and not self.batch:
            return EntityUnavailable(f"{text}{NOT_STORED}")
        return OutcomeUnknown(f"{text}: a part of it may have happened")

    def fail_at_once(self, error: BaseException) -> None:
        """Fail the ask, because its answer may not be sent."""
        report = self._report
        if report is None:
            return
        if 0 < self.batch <= self.cell.durable and isinstance(error, EntityUnavailable):
            text = error_text(error).removesuffix(NOT_STORED)
            error = OutcomeUnknown(f"{text}; a part of what its handler persisted is stored")
        report(error)

    def mark_handled(self) -> None:
        """Mark the message as handled."""
        if self.inner is not None and self.inner.expects:
            self.inner.mark_handled()

    def reference(self, runtime: Home) -> ActorRef | None:
        """Return the ref that a handler sees as `self.sender`."""
        inner = self.inner
        if inner is not None and inner.expects and self.wants_reply:
            return runtime.reply_ref(self)
        return None if inner is None else inner.reference(runtime)


def unavailable(error: BaseException) -> BaseException:
    """Return the error for a caller when the state could not be read or written."""
    if type(error).__name__ in _REPORTED_AS_THEY_ARE:
        return error
    return EntityUnavailable(f"{error_text(error)}{NOT_STORED}")
