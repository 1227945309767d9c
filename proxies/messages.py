"""Messages between the nodes' own actors, and the form of an error as an answer."""

from collections.abc import Callable
from dataclasses import field
from struct import Struct
from typing import Any, Final, TypeVar, cast, dataclass_transform

from callboard.actors import errors, refusal
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
from callboard.actors.streams.messages import (
    CloseStream,
    PullItems,
    StreamItems,
    StreamOpened,
    StreamRequest,
)
from callboard.actors.values import Answer
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
from callboard.support.calls import Arguments, Keywords
from callboard.support.dataclass import dataclass
from callboard.support.text import TEXT_LIMIT, error_text, safe_repr

T = TypeVar("T", bound=type)


def message(
    name: str, *, was: str = "", switched: bool = False, caf: str = ""
) -> Callable[[T], T]:
    """Register a message type under its name on the wire and in states.

    The class is a dataclass, an enum or a named tuple. Fields that a later release adds need a
    default, so that messages of earlier releases can still be read.

    To rename a type, give its former name as `was` in every program: values are read under both
    names, and sent and stored under the former one, which programs of earlier releases know.
    When all programs have the new declaration, set `switched=True`: from then on values are
    sent and stored under `name`.

    Args:
        name: the name of the type, the same in every program.
        was: the former name of the type, if it was renamed.
        switched: whether values are sent under `name` if there is a former one.
        caf: the name of the type in programs that use CAF, or the signature of a whole message;
            see the page on CAF.

    Raises:
        DuplicateMessageType: another class has that name.
        NotSerializable: the class is of another kind.
        WrongArgument: the name is missing.
        WrongValue: a name is empty, too long or not printable.
    """
    value: Answer = name
    if not isinstance(value, str):
        called = getattr(value, "__name__", "Message")
        msg = f'@message takes a name, the same in every program: @message("shop.{called}")'
        raise WrongArgument(msg)
    former: object = was
    if not isinstance(former, str):
        msg = (
            f"@message({name[:80]!r}, was=…) takes the former name, not {safe_repr(former):.80}"
        )
        raise WrongArgument(msg)
    names = (name, was) if switched or not was else (was, name)
    for label in filter(None, (name or "\0", was)):
        if not len(label) <= NAME_LIMIT or not label.isprintable():
            msg = f"@message({label[:80]!r}): a name has 1 to {NAME_LIMIT} printable characters"
            raise WrongValue(msg)

    def register(cls: T) -> T:
        refusal.prepare(cls)
        try:
            DEFAULT_REGISTRY.register(names[0], cls, filter(None, names[1:]))
            if caf:
                DEFAULT_REGISTRY.register_foreign("caf", caf, cls)
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
    """Ask the spawn server for an actor of an offered class; the answer is its ref.

    `by_class` means that `name` is the name of the class itself, not the name it is offered
    under.
    """

    name: str
    args: Arguments = ()
    kwargs: Keywords | None = None
    by_class: bool = False


@frozen_message("callboard.Lookup")
class Lookup:
    """Ask a directory for the actor with a name. The answer is a ref, or None."""

    name: str


@frozen_message("callboard.WatchName")
class WatchName:
    """Subscribe to a directory's holders of a name, or members of a group.

    The subscription lasts until its sender ends. The answer is a `HoldersChanged` message,
    unless `version` is current.
    """

    name: str
    is_group: bool = False
    version: int = -1


@frozen_message("callboard.HoldersChanged")
class HoldersChanged:
    """A directory's report: the holders of a name changed; with `is_all`, they are `added`."""

    version: int
    added: tuple[ActorRef, ...] = ()
    removed: tuple[ActorRef, ...] = ()
    reason: str = ""
    is_all: bool = False

    @property
    def is_sound(self) -> bool:
        """Whether all fields have their declared types, as the value is from another node."""
        return (
            type(self.version) is int
            and type(self.reason) is str
            and type(self.added) is tuple
            and type(self.removed) is tuple
            and all(isinstance(ref, ActorRef) for ref in (*self.added, *self.removed))
        )


@frozen_message("callboard.Describe")
class Describe:
    """Ask a directory for the name of its node. The answer is a text.

    With `abilities`, it is a tuple of that text and the abilities of the node; an earlier
    release ignores the field.
    """

    abilities: bool = False


#: Abilities of this release that earlier ones lack: keep answers by key, cancel the work of a
#: given-up ask, wait for credit, and accept copies of unverified dispatches.
ABILITIES: Final = ("keys", "cancel", "credit", "doubts")

#: Ability that a node states only to a neighbor that may send to all of it: it accepts batches.
#: The gate of a leaf checks each message, and cannot see into a batch.
CARRIERS: Final = "carriers"


#: Default limit of a drain in seconds.
DRAIN_TIMEOUT: Final = 30.0


@frozen_message("callboard.Drained")
class Drained:
    """The result of a drain; also an event.

    Attributes:
        finished: messages handled from its beginning to its end.
        left: messages in mailboxes, unfinished handlers, and unanswered asks at its deadline.
            They end with the node: their askers get an error, the rest are dead letters.
        seconds: its duration.
        unsent: bytes that were not sent to other nodes at the deadline.

    The reports of the node's workers are added; a worker without a report counts as one `left`.
    """

    finished: int
    left: int
    seconds: float
    unsent: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether nothing was cut short."""
        return not self.left and not self.unsent


#: End of the error text with which a draining node refuses an ask.
TAKES_NO_MORE: Final = "is draining and takes no more asks; ask another node"


class NodeDraining(errors.NodeClosed):
    """The refusal of an ask by a draining node: nothing happened, so another node may be asked.

    On the wire it is a `NodeClosed`, which older nodes know; its text tells it apart.
    """


@frozen_message("callboard.DrainNode")
class DrainNode(Query[Drained]):
    """Have an inspector drain its node and close it."""

    timeout: float = DRAIN_TIMEOUT


@frozen_message("callboard.BackUp")
class BackUpNode(Query[Keywords]):
    """Have an inspector back up the files of its process.

    Attributes:
        folder: the unfinished folder, on the node's machine.
        token: the content of a file that the asker wrote there, as proof that it may write to
            the folder.
    """

    folder: str
    token: str


@frozen_message("callboard.Stop")
class StopActor:
    """Have a node end an actor; `kill` does not wait for its mailbox."""

    number: int
    kill: bool = False


@frozen_message("callboard.Link")
class LinkActors:
    """Make a node link its actor `number` to `other`, or unlink the two if `undo` is set."""

    number: int
    other: ActorRef
    undo: bool = False


@frozen_message("callboard.CancelAsk")
class CancelAsk:
    """Cancel the work of an ask that the sender's node has given up."""

    number: int
    message_id: int


@frozen_message("callboard.AskCredit")
class AskCredit:
    """Report the position of a sender, after all messages to actor `number` up to it.

    More messages may wait for credit.
    """

    number: int
    position: int

    @property
    def is_sound(self) -> bool:
        """Whether the position is a possible one, as it is from another node."""
        return type(self.position) is int and 0 <= self.position < 1 << 62


#: Bytes of one answer or message in a batch, and of the whole batch.
CARRIED_LIMIT: Final = 4_096
CARRIER_LIMIT: Final = 32_768

#: Bytes that no node batches: the last message may exceed the limit.
CARRIER_BOUND: Final = 2 * CARRIER_LIMIT

ANSWER_HEAD: Final = Struct(">II")


def check_columns(head_size: int, heads: bytes, *columns: bytes) -> None:
    """Refuse a batch that is malformed, or that is larger than any node sends.

    Raises:
        MalformedPayload: the batch is malformed or too large.
    """
    if {type(heads), *map(type, columns)} != {bytes} or len(heads) % head_size:
        msg = "the columns of a batch have a wrong type or length"
        raise MalformedPayload(msg)
    size = len(heads) + sum(map(len, columns))
    if size > CARRIER_BOUND:
        msg = f"a batch has {size:,} B; the limit is {CARRIER_BOUND:,} B"
        raise MalformedPayload(msg)


@frozen_message("callboard.CarriedAnswers")
class CarriedAnswers:
    """Answers of one turn to asks of one node, each with the id of its ask.

    Attributes:
        heads: for each answer the id of its ask and its number of bytes, four bytes each.
        bodies: the answers one after the other, each as the payload that it would have alone.
    """

    heads: bytes
    bodies: bytes

    def each(self) -> list[tuple[int, bytes]]:
        """Split the batch into answers, each with the id of its ask.

        Raises:
            MalformedPayload: the columns do not match, or an answer or the batch is too large.
        """
        heads, bodies = self.heads, self.bodies
        check_columns(ANSWER_HEAD.size, heads, bodies)
        answers, offset = [], 0
        for message_id, size in ANSWER_HEAD.iter_unpack(heads):
            answers.append((message_id, bodies[offset : offset + size]))
            offset += size
            if size > CARRIED_LIMIT:
                msg = f"an answer in a batch has {size:,} B; the limit is {CARRIED_LIMIT:,} B"
                raise MalformedPayload(msg)
        if offset != len(bodies):
            msg = f"{len(answers):,} answers of {offset:,} B do not fill {len(bodies):,} B"
            raise MalformedPayload(msg)
        return answers


@frozen_message("callboard.Doubtful")
class UnverifiedFrame:
    """Send the destination a copy of a dispatch that could not be verified on its path."""

    frame: bytes


@frozen_message("callboard.Failure")
class Failure:
    """An error as the answer to an ask.

    Sent to a node itself, it refuses a monitor; `detail` is the actor's ref.
    """

    kind: str
    text: str = ""
    detail: str = ""
    trace: str = ""
    #: A refusal, serialized; earlier releases leave it out and read the rest.
    refusal: bytes = b""


_KINDS: dict[str, type[CallboardError]] = {
    kind.__name__: kind
    for kind in (
        errors.NodeUnreachable,
        errors.AskTimeout,
        errors.MailboxFull,
        errors.UnexpectedMessage,
        errors.StreamExpected,
        errors.StreamFailed,
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
    """Register errors of a package above, made of a text alone, as types of answers."""
    _KINDS.update((kind.__name__, kind) for kind in kinds)


def failure_of(error: BaseException, content: bytes = b"") -> Failure:
    """Convert an error to its form on the wire.

    `content` is the serialized value of a refusal, if the error is one.
    """
    if content:
        text = _clean(error_text(error))
        return Failure("RemoteError", text, type(error).__qualname__, "", content)
    if isinstance(error, RemoteError):
        return Failure(
            "RemoteError", _clean(error.text), _clean(error.type_name), _clean(error.traceback)
        )
    if isinstance(error, ActorDown):
        detail = _clean(error.detail)
        return Failure("ActorDown", _clean(error_text(error)), str(error.reason), detail)
    kind = type(error).__name__
    if isinstance(error, NodeDraining):
        kind = errors.NodeClosed.__name__
    if isinstance(error, PayloadTooHeavy):
        kind = MessageTooLarge.__name__
    if kind in _KINDS or isinstance(error, BaspError):
        return Failure(kind, _clean(error_text(error)))
    return Failure("RemoteError", _clean(error_text(error)), type(error).__qualname__)


def _clean(text: str) -> str:
    """Shorten a text, and replace characters without UTF-8, so that an error always arrives."""
    return text[:TEXT_LIMIT].encode(errors="replace").decode()


def error_of(failure: Failure) -> CallboardError:
    """Convert an error from the wire to the exception for the asker."""
    fields = (failure.kind, failure.text, failure.detail, failure.trace)
    if not all(type(field) is str for field in fields):
        return RemoteError("Failure", "the other node answered with a malformed error")
    if failure.kind == "ActorDown":
        return ActorDown(failure.text, failure.detail, failure.trace)
    kind = _KINDS.get(failure.kind)
    if kind is errors.NodeClosed and failure.text.endswith(TAKES_NO_MORE):
        kind = NodeDraining
    if kind is not None:
        return kind(failure.text)
    return RemoteError(failure.detail or failure.kind, failure.text, failure.trace)


message("callboard.Call")(Call)
message("callboard.Down")(Down)
message("callboard.Exit")(Exit)
message("callboard.Restarted")(Restarted)
message("callboard.ExitReason")(ExitReason)
message("callboard.StreamRequest")(StreamRequest)
message("callboard.StreamOpened")(StreamOpened)
message("callboard.PullItems")(PullItems)
message("callboard.StreamItems")(StreamItems)
message("callboard.CloseStream")(CloseStream)
