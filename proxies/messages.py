"""Messages between the nodes' own actors, and the form in which an error answers an ask."""

from collections.abc import Callable
from dataclasses import field
from struct import Struct
from typing import Any, Final, TypeVar, cast, dataclass_transform

from callboard.actors import errors
from callboard.actors.errors import (
    ActorDown,
    CallboardError,
    RemoteError,
    WrongArgument,
    WrongValue,
)
from callboard.actors.exit_reason import ExitReason
from callboard.actors.reference import ActorRef, Call, Down, Query
from callboard.actors.signals import Exit, Restarted
from callboard.basp.errors import BaspError, MalformedPayload, PayloadTooHeavy
from callboard.basp.errors import DuplicateMessageType as BaspDuplicate
from callboard.basp.errors import NotSerializable as BaspNotSerializable
from callboard.basp.registry import DEFAULT_REGISTRY, NAME_LIMIT
from callboard.proxies.errors import (
    DuplicateMessageType,
    MessageTooLarge,
    MessageVersion,
    NotPermitted,
    NotSerializable,
    UnknownMessageType,
)
from callboard.support.dataclass import dataclass
from callboard.support.text import TEXT_LIMIT, error_text, safe_repr

T = TypeVar("T", bound=type)


def message(name: str, *, was: str = "", switched: bool = False) -> Callable[[T], T]:
    """Register a message type under the name that it has on the wire and in states.

    The class is a dataclass, an enum or a named tuple. Fields that a later release adds need a
    default, so that messages of earlier releases can still be read.

    To rename a type, give its former name as `was` in every program: values are read under both
    names, and sent and stored under the former one, which programs of earlier releases know.
    When all programs have that, set `switched=True`: values are sent and stored under `name`.

    Args:
        name: of the type, the same in every program.
        was: the former name of the type, if it was renamed.
        switched: whether values are sent under `name`, where there is a former one.

    Raises:
        DuplicateMessageType: another class has that name.
        NotSerializable: the class is of another kind.
        WrongArgument: the name is missing.
        WrongValue: a name is empty, too long or not printable.
    """
    given: object = name
    if not isinstance(given, str):
        called = getattr(given, "__name__", "Message")
        msg = f'@message takes a name, the same in every program: @message("shop.{called}")'
        raise WrongArgument(msg)
    former: object = was
    if not isinstance(former, str):
        msg = (
            f"@message({name[:80]!r}, was=…) takes the former name, not {safe_repr(former):.80}"
        )
        raise WrongArgument(msg)
    names = (name, was) if switched or not was else (was, name)
    for each in filter(None, (name or "\0", was)):
        if not len(each) <= NAME_LIMIT or not each.isprintable():
            msg = f"@message({each[:80]!r}): a name has 1 to {NAME_LIMIT} printable characters"
            raise WrongValue(msg)

    def register(cls: T) -> T:
        try:
            DEFAULT_REGISTRY.register(names[0], cls, filter(None, names[1:]))
        except BaspDuplicate as error:
            raise DuplicateMessageType(str(error)) from None
        except BaspNotSerializable as error:
            raise NotSerializable(str(error)) from None
        return cls

    return register


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen_message(name: str) -> Callable[[T], T]:
    """Make a class a frozen dataclass with slots, and a message type: see `message`."""
    register, frozen = message(name), cast("Any", dataclass(frozen=True, slots=True))
    return lambda cls: register(frozen(cls))


@frozen_message("callboard.Spawn")
class Spawn:
    """To the spawn server: make an actor of an offered class; answered by its ref.

    `by_class` says that `name` is that of the class and not the one that it is offered under.
    """

    name: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] | None = None
    by_class: bool = False


@frozen_message("callboard.Lookup")
class Lookup:
    """To a directory: who is registered under this name? Answered by a ref, or None."""

    name: str


@frozen_message("callboard.WatchName")
class WatchName:
    """To a directory: tell me who has a name, or is in a group, from now on until I end.

    Answered by a `HoldersChanged` message, unless `version` is that of the last one.
    """

    name: str
    is_group: bool = False
    version: int = -1


@frozen_message("callboard.HoldersChanged")
class HoldersChanged:
    """From a directory: who has a name there; with `is_all`, nobody but the added ones."""

    version: int
    added: tuple[ActorRef[Any], ...] = ()
    removed: tuple[ActorRef[Any], ...] = ()
    reason: str = ""
    is_all: bool = False

    @property
    def is_sound(self) -> bool:
        """False when a field has a type of its own: it came from another node."""
        return (
            type(self.version) is int
            and type(self.reason) is str
            and type(self.added) is tuple
            and type(self.removed) is tuple
            and all(isinstance(ref, ActorRef) for ref in (*self.added, *self.removed))
        )


@frozen_message("callboard.Describe")
class Describe:
    """To a directory: what is your node called? Answered by a text.

    With `abilities`, by a tuple of that text and the abilities of the node, of which an
    earlier release knows nothing.
    """

    abilities: bool = False


#: What nodes of this release can do that those of earlier ones cannot: keep answers by key,
#: give up the work of an asker that has gone, wait for credit, and take what others doubt.
ABILITIES: Final = ("keys", "cancel", "credit", "doubts")

#: What a node says to neighbors alone that may send to all of it: it takes what carries many
#: messages. Gates look into each message of a leaf, and see none of those that are carried.
CARRIERS: Final = "carriers"


#: Seconds that a drain lasts at most by default.
DRAIN_TIMEOUT: Final = 30.0


@frozen_message("callboard.Drained")
class Drained:
    """A drain is over; what it returns, and an event.

    Attributes:
        finished: messages handled from its beginning to its end.
        left: messages in mailboxes, handlers under way, and asks without an answer at its
            deadline. They end with the node: their askers get an error, the rest are dead
            letters.
        seconds: how long it took.
        unsent: bytes that no other node had taken at the deadline.

    What the node's workers report is added; one that reports nothing counts as one `left`.
    """

    finished: int
    left: int
    seconds: float
    unsent: int = 0

    @property
    def is_clean(self) -> bool:
        """True when nothing was cut short."""
        return not self.left and not self.unsent


#: How the error of an ask ends that a draining node refuses.
TAKES_NO_MORE: Final = "is draining and takes no more asks; ask another node"


@frozen_message("callboard.DrainNode")
class DrainNode(Query[Drained]):
    """To an inspector: drain the node and close it."""

    timeout: float = DRAIN_TIMEOUT


@frozen_message("callboard.Stop")
class StopActor:
    """To the node itself: end an actor; `kill` does not wait for its mailbox."""

    number: int
    kill: bool = False


@frozen_message("callboard.Link")
class LinkActors:
    """To the node itself: link its actor `number` to `other`; with `undo`, unlink."""

    number: int
    other: ActorRef[Any]
    undo: bool = False


@frozen_message("callboard.CancelAsk")
class CancelAsk:
    """To the node itself: nobody waits for the answer to an ask of its sender's any more."""

    number: int
    message_id: int


@frozen_message("callboard.AskCredit")
class AskCredit:
    """To the node itself: all messages to its actor `number` up to `position` went before this.

    And more may wait for credit.
    """

    number: int
    position: int

    @property
    def is_sound(self) -> bool:
        """False when the position is none that a node comes to: it is from another one."""
        return type(self.position) is int and 0 <= self.position < 1 << 62


#: Bytes of an answer or a message that is carried with others, and of all that are.
CARRIED_LIMIT: Final = 4_096
CARRIER_LIMIT: Final = 32_768

#: Bytes that no node lets come together: the last message may reach beyond the limit.
CARRIER_BOUND: Final = 2 * CARRIER_LIMIT

ANSWER_HEAD: Final = Struct(">II")


def check_carrier(size: int) -> None:
    """Refuse what carries more than any node lets come together: each part takes memory.

    Raises:
        MalformedPayload: it does.
    """
    if size > CARRIER_BOUND:
        msg = f"{size:,} B are carried together; the limit is {CARRIER_BOUND:,} B"
        raise MalformedPayload(msg)


@frozen_message("callboard.CarriedAnswers")
class CarriedAnswers:
    """Answers of one turn to asks of one node, each with the id of its ask.

    Attributes:
        heads: for each answer the id of its ask and how many bytes it has, four bytes each.
        bodies: the answers, one behind the other, each as the payload that it would have alone.
    """

    heads: bytes
    bodies: bytes

    def each(self) -> list[tuple[int, bytes]]:
        """Return the answers, each with the id of its ask.

        Raises:
            MalformedPayload: the columns do not fit together, an answer is too large, or all
                of them are.
        """
        heads, bodies = self.heads, self.bodies
        if (
            type(heads) is not bytes
            or type(bodies) is not bytes
            or len(heads) % ANSWER_HEAD.size
        ):
            msg = "what carries answers has columns of another form"
            raise MalformedPayload(msg)
        check_carrier(len(heads) + len(bodies))
        found, at = [], 0
        for message_id, size in ANSWER_HEAD.iter_unpack(heads):
            found.append((message_id, bodies[at : at + size]))
            at += size
            if size > CARRIED_LIMIT:
                msg = f"an answer of {size:,} B is carried; the limit is {CARRIED_LIMIT:,} B"
                raise MalformedPayload(msg)
        if at != len(bodies):
            msg = f"{len(found):,} answers of {at:,} B are carried in {len(bodies):,} B"
            raise MalformedPayload(msg)
        return found


@frozen_message("callboard.Doubtful")
class UnverifiedFrame:
    """To the node itself: a dispatch for it that its sender does not know to be true."""

    frame: bytes


@frozen_message("callboard.Failure")
class Failure:
    """An error as the answer to an ask.

    To a node itself: it will not be told when an actor ends; `detail` is the actor's ref.
    """

    kind: str
    text: str = ""
    detail: str = ""
    trace: str = ""


_KINDS: dict[str, type[CallboardError]] = {
    kind.__name__: kind
    for kind in (
        errors.NodeUnreachable,
        errors.AskTimeout,
        errors.MailboxFull,
        errors.UnexpectedMessage,
        errors.NoSuchMethod,
        errors.NotSpawnable,
        errors.NotRegistered,
        errors.NodeClosed,
        errors.WouldDeadlock,
        NotSerializable,
        MessageTooLarge,
        MessageVersion,
        NotPermitted,
        UnknownMessageType,
    )
}


def errors_travel(*kinds: type[CallboardError]) -> None:
    """Let errors of a room above, made of a text alone, reach askers as what they are."""
    _KINDS.update((kind.__name__, kind) for kind in kinds)


def failure_of(error: BaseException) -> Failure:
    """Turn an error into its form for the wire."""
    if isinstance(error, RemoteError):
        return Failure(
            "RemoteError", _clean(error.text), _clean(error.type_name), _clean(error.traceback)
        )
    if isinstance(error, ActorDown):
        detail = _clean(error.detail)
        return Failure("ActorDown", _clean(error_text(error)), str(error.reason), detail)
    kind = type(error).__name__
    if isinstance(error, PayloadTooHeavy):
        kind = MessageTooLarge.__name__
    if kind in _KINDS or isinstance(error, BaspError):
        return Failure(kind, _clean(error_text(error)))
    return Failure("RemoteError", _clean(error_text(error)), type(error).__qualname__)


def _clean(text: str) -> str:
    """Cut a text, and replace what UTF-8 cannot express: an error must always get through."""
    return text[:TEXT_LIMIT].encode(errors="replace").decode()


def error_of(failure: Failure) -> CallboardError:
    """Turn an error from the wire into the exception that the asker gets."""
    fields = (failure.kind, failure.text, failure.detail, failure.trace)
    if not all(type(field) is str for field in fields):
        return RemoteError("Failure", "the other node answered with an error of another form")
    if failure.kind == "ActorDown":
        return ActorDown(failure.text, failure.detail, failure.trace)
    kind = _KINDS.get(failure.kind)
    if kind is not None:
        return kind(failure.text)
    return RemoteError(failure.detail or failure.kind, failure.text, failure.trace)


message("callboard.Call")(Call)
message("callboard.Down")(Down)
message("callboard.Exit")(Exit)
message("callboard.Restarted")(Restarted)
message("callboard.ExitReason")(ExitReason)
