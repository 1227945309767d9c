"""Who waits for the outcome of a message, and how a cell answers.

An ask's sender is an `Asker`: it gets what the handler returns, what it sends to `self.sender`,
or an error. A handler that answers later takes a promise, and the cell remembers the asker, so
that it fails if the actor ends before.
"""

from typing import TYPE_CHECKING, Any, Literal, Protocol, Union

from actors.errors import AskTimeout, UnexpectedMessage
from actors.monitors import Monitored
from actors.signals import ChildDown, Down

if TYPE_CHECKING:
    from actors.cell import Cell
    from actors.reference import ActorRef
    from actors.runtime import Runtime

Sender = Union["Cell", "Asker"]
"""Where a message came from; None stands for an anonymous one."""


class Asker(Protocol):
    """Whoever waits for a message's outcome: an ask's future, or a remote asker's double."""

    @property
    def expects(self) -> Literal[True]:
        """Tells an asker from a cell that only told."""

    @property
    def deadline(self) -> float | None:
        """When its time is over, on the runner's clock; `OVER` once it is, None if never."""

    def set_result(self, value: Any, /) -> bool:
        """Take the answer; False when there was one."""

    def set_exception(self, error: BaseException, /) -> bool:
        """Take the error instead of an answer; False when there was one."""

    def owed(self) -> None:
        """Take note that the message was handled; the answer may come later."""

    def reference(self, runtime: "Runtime", /) -> "ActorRef[Any] | None":
        """Return what `self.sender` is while the message is handled."""


class Answering(Monitored):
    """The part of a cell that answers asks."""

    __slots__ = ("_promises", "promised", "sender")

    #: Of the message that is handled.
    sender: Sender | None
    #: The asker whose answer the running handler has taken upon itself.
    promised: Sender | None
    _promises: list[Asker] | None

    def answer(self, sender: Asker, value: Any) -> None:
        """Pass a handler's result on, unless the handler took a promise to answer later."""
        if sender is self.promised:
            self.promised = None
        elif not sender.set_result(value):
            self.note_late(value)

    def note_late(self, value: Any) -> None:
        """Count an answer that nobody takes: a second one, or one after the ask's time."""
        if value is not None:  # what a handler returns that has sent its answer
            self.runtime.counters.late_answers += 1

    def unexpected(self, message: Any, sender: Sender | None) -> None:
        """Tell the asker, or count it: nothing here handles such a message."""
        name = type(self.actor).__name__
        text = f"{name} has no handler for {type(message).__qualname__}; add one with @handler"
        if sender is not None and sender.expects:
            sender.set_exception(UnexpectedMessage(text))
        if not isinstance(message, Down | ChildDown):
            self.runtime.note_unexpected(self, message)

    def promise(self) -> Asker | None:
        """Keep the current message unanswered when its handler returns; return its asker."""
        sender = self.sender
        if sender is None or not sender.expects or _only_counts(sender):
            return None
        self.promised = sender
        self.owe(sender)
        return sender

    def drop_expired(self, message: Any, sender: Asker) -> None:
        """Leave a message unhandled because the time of its ask was over before its turn."""
        sender.set_exception(AskTimeout(f"its time was over before {self.ref} came to it"))
        self.runtime.note_expired(self, message)

    def time_left(self) -> float | None:
        """Return the seconds that are left for the current message; None without a limit."""
        sender = self.sender
        if sender is None or not sender.expects or sender.deadline is None:
            return None
        return max(0.0, sender.deadline - self.runtime.runner.now())

    @property
    def owed_answers(self) -> int:
        """Askers that a handler left without an answer, and that still wait."""
        return sum(not _wants_no_answer(asker) for asker in self._promises or ())

    def owe(self, sender: Asker) -> None:
        """Remember an asker that is not answered yet, so that it fails if the actor ends."""
        sender.owed()
        if _wants_no_answer(sender):
            return
        if self._promises is None:
            self._promises = []
        elif len(self._promises) >= 64:
            self._promises = [asker for asker in self._promises if not _wants_no_answer(asker)]
        self._promises.append(sender)


def _wants_no_answer(sender: Asker) -> bool:
    """Return True for an ask that is over, and for whoever is owed nothing."""
    return bool(getattr(sender, "done_", False))


def _only_counts(sender: Asker) -> bool:
    """Return True for tells from elsewhere: they are counted, and nobody waits."""
    return bool(getattr(sender, "only_counts", False))
