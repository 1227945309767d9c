"""What nodes tell each other about entities."""

from typing import Any, ClassVar

from callboard.entity.errors import EntityUnavailable
from callboard.kernel.activation import Carried, read_asks
from callboard.kernel.actors import ActorRef, errors_travel, frozen_message, message
from callboard.lease.errors import (
    DatabaseReplaced,
    OutcomeUnknown,
    StateCorrupt,
    StateReplaced,
    StateVersion,
    ValueRefused,
    WrongState,
)
from callboard.support.dataclass import dataclass

errors_travel(
    EntityUnavailable,
    OutcomeUnknown,
    StateCorrupt,
    StateVersion,
    ValueRefused,
    WrongState,
    DatabaseReplaced,
    StateReplaced,
)


@message("callboard.EntityMessage")
@dataclass(slots=True)  # not frozen, for one is made for each message: see `Envelope`
class EntityMessage:
    """To the owner of a key: a message for it. Answered, or refused with `NotOwner`.

    What was told and not asked is answered with None as soon as it waits for the entity.
    """

    type_name: str
    key: str
    message: Any
    is_asked: bool = True
    sender: ActorRef[Any] | None = None
    is_urgent: bool = False
    #: How often its sender was refused messages of the slot before.
    attempt: int = 0


@frozen_message("callboard.EntityMessages")
class EntityMessages:
    """To the owner of keys: the messages of one turn for entities of a type, in their order.

    Each is answered by itself, as an `EntityMessage` is, by `CarriedAnswers` where several are.
    What carries them is answered only if it is refused as a whole.

    Attributes:
        type_name: of the entities.
        heads: for each message 21 bytes: the id of the ask (4); 1 if it was asked, and 2 more
            if it is urgent (1); the attempt (4); the number of the actor that told it, or 0
            (4); the milliseconds that are left for it, or 2^32 - 1 (4); the bytes of its key
            (2), and those of the message (2).
        keys: in UTF-8, one behind the other.
        bodies: the messages, one behind the other.
    """

    type_name: str
    heads: bytes
    keys: bytes
    bodies: bytes

    def each(self) -> list[Carried]:
        """Return the messages.

        Raises:
            MalformedPayload: the columns do not fit together, they are too large, a key is no
                text, or a message has no id.
        """
        return read_asks(self.heads, self.keys, self.bodies)


@frozen_message("callboard.EntityTable")
class EntityTable:
    """The table of a type: who owns which slots, as its register has it."""

    type_name: str
    version: int
    text: str

    @property
    def is_sound(self) -> bool:
        """False when a field cannot be meant: it came from another node."""
        return (
            type(self.type_name) is str
            and type(self.version) is int
            and 0 < self.version < 2**62
            and type(self.text) is str
        )


@frozen_message("callboard.NotOwner")
class NotOwner:
    """The answer of a node that does not own a key: nothing was handled.

    With the table that it knows, if it hosts the type.
    """

    #: An ask that comes again may find the owner here.
    nothing_happened: ClassVar[bool] = True

    table: EntityTable | None = None


@frozen_message("callboard.AskEntityTable")
class AskEntityTable:
    """To the entities of a node: what is the table of a type? None if it hosts none."""

    type_name: str


@frozen_message("callboard.FollowJournal")
class FollowJournal:
    """To the entities of a node: tell when the journal of a type grows, for some seconds.

    Answered with the table, or None if it hosts none.
    """

    type_name: str


@frozen_message("callboard.JournalGrew")
class JournalGrew:
    """To a node that follows a journal: there are events up to a position."""

    type_name: str
    position: int


@frozen_message("callboard.AskVote")
class AskVote:
    """To another member: is the node of a member out of your reach? True or False."""

    type_name: str
    writer: str


@frozen_message("callboard.EntityMarker")
class EntityMarker:
    """To a former owner, behind the messages that were sent to it.

    Answered when all that was sent before is with the owner; one that comes behind a refused
    message, at once.
    """

    type_name: str
    slot: int
    is_refused: bool = False


@frozen_message("callboard.MoveSlots")
class MoveSlots:
    """To a member: let slots move to the host with this id in hex.

    With "" they go to whom they would be without such moves. Answered when that is under way.
    """

    type_name: str
    slots: list[int]
    node: str


@frozen_message("callboard.StopEntity")
class StopEntity:
    """To an owner: put an entity away."""

    type_name: str
    key: str
