"""Errors of actors.

CallboardError                    root of all errors of callboard
├── ActorDown                     the actor ended before it answered
├── NodeUnreachable               the actor's node cannot be reached         (ConnectionError)
├── AskTimeout                    an ask was not answered in time            (TimeoutError)
├── ResultTimeout                 waiting timed out, but the ask continues   (TimeoutError)
├── MailboxFull                   the actor's bounded mailbox is full
├── UnexpectedMessage             the actor has no handler for the message   (TypeError)
│   └── StreamExpected            a `StreamQuery` was not sent with `stream`
├── StreamFailed                  a stream ended before its generator
├── NoSuchMethod                  the actor has no such callable method      (AttributeError)
├── RemoteError                   the handler raised; carries its traceback as text
├── WouldBlock                    a blocking call on the thread of an event loop
├── WouldDeadlock                 a wait inside a handler that could never end
├── ReservedName                  an actor class redefines a name of the framework
├── InvalidHandler                a handler does not declare its messages, or two handlers
│                                 declare the same                         (TypeError)
├── NotAwaited                    a handler returned what it should have awaited (TypeError)
├── WrongArgument                 an argument has the wrong type           (TypeError)
├── WrongValue                    an argument has an invalid value         (ValueError)
├── NotSpawnable                  the target node does not offer that class
├── NotRegistered                 the name is not registered               (LookupError)
├── NodeClosed                    the node was closed
├── InvalidAddress                not the address of an actor or node       (ValueError)
└── InvalidSeconds                a time that is not a number of seconds    (ValueError)
"""

from callboard.arguments import InvalidSeconds as InvalidSeconds
from callboard.arguments import WrongArgument as WrongArgument
from callboard.arguments import WrongValue as WrongValue
from callboard.base_error import CallboardError as CallboardError
from callboard.support.reentry import WouldBlock as WouldBlock
from callboard.support.reentry import WouldDeadlock as WouldDeadlock
from callboard.support.text import class_name, error_text, trace_of


class ActorDown(CallboardError):
    """The actor ended before it answered; `reason` is its exit reason."""

    def __init__(self, message: str, reason: str = "not_found", detail: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.detail = detail


class NodeUnreachable(CallboardError, ConnectionError):
    """The node is not reachable on any path, or did not answer at its address."""


class AskTimeout(CallboardError, TimeoutError):
    """An ask was not answered within its timeout."""


class ResultTimeout(CallboardError, TimeoutError):
    """`.result(timeout)` timed out. The ask continues: wait again, or cancel it."""


class MailboxFull(CallboardError):
    """The actor's mailbox is full, and its policy refuses or drops further messages."""


class UnexpectedMessage(CallboardError, TypeError):
    """The actor has no handler for a message of this type."""


class StreamExpected(UnexpectedMessage):
    """A `StreamQuery` was sent with `ask` or `tell`; read its answers with `ref.stream`."""


class StreamFailed(CallboardError):
    """A stream ended early: items were lost, or its reader was idle, or closed it."""


class NoSuchMethod(CallboardError, AttributeError):
    """The actor does not have a method of that name that may be called from outside."""


class RemoteError(CallboardError):
    """The handler raised an exception.

    Attributes:
        type_name: qualified name of the exception's class on the actor's side.
        text: text of the exception.
        traceback: formatted traceback from the actor's side.
    """

    def __init__(self, type_name: str, text: str, traceback: str = "") -> None:
        super().__init__(f"{type_name}: {text}" if text else type_name)
        self.type_name = type_name
        self.text = text
        self.traceback = traceback


def remote_error(error: BaseException) -> RemoteError:
    """Convert an exception of user code to the error for the asker."""
    return RemoteError(class_name(error), error_text(error), trace_of(error))


class ReservedName(CallboardError, TypeError):
    """An actor class defines a name that the framework needs; rename it."""


class InvalidHandler(CallboardError, TypeError):
    """A function marked with `@handler` does not declare its message types."""


class NotAwaited(CallboardError, TypeError):
    """A handler returned a future or coroutine instead of awaiting it."""


class NotSpawnable(CallboardError):
    """The target node does not offer a class under that name."""


class NotRegistered(CallboardError, LookupError):
    """The name is not registered on any reachable node."""


class NodeClosed(CallboardError, RuntimeError):
    """The node was closed; create another one."""


class InvalidAddress(CallboardError, ValueError):
    """The text is not the address of an actor or node."""
