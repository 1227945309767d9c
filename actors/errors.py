"""What can go wrong with actors, as one small tree.

CallboardError                    everything a user of callboard has to catch
├── ActorDown                     the actor asked ended before it answered
├── NodeUnreachable               no path is left to the actor's node        (ConnectionError)
├── AskTimeout                    an ask ran out of the time it was given    (TimeoutError)
├── ResultTimeout                 waiting ran out, the ask itself goes on    (TimeoutError)
├── MailboxFull                   the actor's mailbox has bounds and is full
├── UnexpectedMessage             the actor has no handler for the message   (TypeError)
├── NoSuchMethod                  the actor has no such callable method      (AttributeError)
├── RemoteError                   the handler raised; carries its traceback as text
├── WouldBlock                    a blocking call on the thread of an event loop
├── WouldDeadlock                 a wait inside a handler that could never end
├── ReservedName                  an actor class redefines a name of the framework
├── InvalidHandler                a handler does not say what messages it takes, or two take
│                                 the same                                 (TypeError)
├── NotAwaited                    a handler returned what it should have awaited (TypeError)
├── WrongArgument                 an argument of another kind than the call takes (TypeError)
├── WrongValue                    an argument whose value cannot be meant  (ValueError)
├── NotSpawnable                  the target node does not offer that class
├── NotRegistered                 no actor has that name                    (LookupError)
├── NodeClosed                    the node was closed already
├── InvalidAddress                not the address of an actor or node       (ValueError)
└── InvalidSeconds                a time that is not a number of seconds    (ValueError)
"""

from callboard.base_error import CallboardError as CallboardError
from callboard.support.reentry import WouldDeadlock as WouldDeadlock
from callboard.support.text import class_name, said, shown, trace_of


class ActorDown(CallboardError):
    """The actor ended before it answered; `reason` is its exit reason."""

    def __init__(self, message: str, reason: str = "not_found", detail: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.detail = detail


class NodeUnreachable(CallboardError, ConnectionError):
    """No path is left to the node, or nobody answered at its address."""


class AskTimeout(CallboardError, TimeoutError):
    """An ask was not answered within the seconds that it was given."""


class ResultTimeout(CallboardError, TimeoutError):
    """`.result(timeout)` ran out. The ask goes on: wait again, or cancel it."""


class MailboxFull(CallboardError):
    """The actor's mailbox is full, and its policy refuses or drops what does not fit."""


class UnexpectedMessage(CallboardError, TypeError):
    """The actor has no handler for a message of this type."""


class NoSuchMethod(CallboardError, AttributeError):
    """The actor has no public method of that name that may be called from outside."""


class RemoteError(CallboardError):
    """The handler raised an exception.

    Attributes:
        type_name: qualified name of the exception's class where it was raised.
        text: the exception's own text.
        traceback: the formatted traceback of the actor's side.
    """

    def __init__(self, type_name: str, text: str, traceback: str = "") -> None:
        super().__init__(f"{type_name}: {text}" if text else type_name)
        self.type_name = type_name
        self.text = text
        self.traceback = traceback


def remote_error(error: BaseException) -> RemoteError:
    """Return an exception of user code as the error that an asker gets."""
    return RemoteError(class_name(error), said(error), trace_of(error))


class WouldBlock(CallboardError, RuntimeError):
    """A blocking call on the thread of a running event loop; use its awaitable twin."""


class ReservedName(CallboardError, TypeError):
    """An actor class defines a name that the framework needs; rename it."""


class InvalidHandler(CallboardError, TypeError):
    """A function marked with `@handler` does not say which messages it takes."""


class NotAwaited(CallboardError, TypeError):
    """A handler returned a future or coroutine instead of what comes of it."""


class WrongArgument(CallboardError, TypeError):
    """An argument is of another kind than the call takes; the text says what to pass."""


def wrong_argument(needed: str, given: object) -> WrongArgument:
    """Return the error of an argument of another kind; `needed` says what to pass."""
    return WrongArgument(f"{needed}, not {shown(given):.100}")


def require(is_so: object, needed: str, given: object) -> None:
    """Refuse an argument that is not as it has to be.

    Args:
        is_so: whether it is.
        needed: says what to pass.
        given: the argument.

    Raises:
        WrongArgument: it is not.
    """
    if not is_so:
        raise wrong_argument(needed, given)


class WrongValue(CallboardError, ValueError):
    """An argument has a value that cannot be meant; the text says which can."""


class NotSpawnable(CallboardError):
    """The target node does not offer a class under that name."""


class NotRegistered(CallboardError, LookupError):
    """No actor in reach is registered under that name."""


class NodeClosed(CallboardError, RuntimeError):
    """The node was closed; make another one."""


class InvalidAddress(CallboardError, ValueError):
    """The text is not the address of an actor or node."""


class InvalidSeconds(CallboardError, ValueError):
    """A timeout, delay or period is not a number of seconds."""
