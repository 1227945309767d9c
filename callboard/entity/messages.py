"""Messages between nodes about entities."""

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
@dataclass(slots=True)  # not frozen, as frozen ones take longer to make: see `Envelope`
class EntityMessage:
    """To the owner of a key: a message for its entity. Answered, or refused with `NotOwner`.

    A message sent with `tell` is answered with None as soon as it is in the mailbox.
    """

    type_name: str
    key: str
    message: Any
    is_asked: bool = True
    sender: ActorRef | None = None
    is_urgent: bool = False
    #: Number of earlier attempts of this sender that were refused for the slot.
    attempt: int = 0


@frozen_message("callboard.EntityMessages")
class EntityMessages:
    """To the owner of keys: a batch of one turn for entities of a type, in order.

    Each message is answered like an `EntityMessage`. Several answers are sent in one
    `CarriedAnswers`. The batch itself is answered only if it is refused as a whole.

    Attributes:
        type_name: the type name of the entities.
        heads: for each message 21 bytes: the id of the ask (4); 1 for an ask, plus 2 if it is
            urgent (1); the attempt (4); the number of the actor that sent it with `tell`, or 0
            (4); the milliseconds until its deadline, or 2^32 - 1 (4); the bytes of its key (2),
            and of the message (2).
        keys: the keys in UTF-8, without separators.
        bodies: the messages, without separators.
    """

    type_name: str
    heads: bytes
    keys: bytes
    bodies: bytes

    def each(self) -> list[Carried]:
        """Return the messages.

        Raises:
            MalformedPayload: the columns do not match, they are too large, a key is not a
                text, or a message lacks an id.
        """
        return read_asks(self.heads, self.keys, self.bodies)


@frozen_message("callboard.EntityTable")
class EntityTable:
    """The table of a type: which node owns which slots, as stored in its register."""

    type_name: str
    version: int
    text: str

    @property
    def is_sound(self) -> bool:
        """Whether the fields have valid types; they come from another node."""
        return (
            type(self.type_name) is str
            and type(self.version) is int
            and 0 < self.version < 2**62
            and type(self.text) is str
        )


@frozen_message("callboard.NotOwner")
class NotOwner:
    """The answer of a node that does not own a key and has handled nothing.

    It contains the newest table that the node knows, if the node hosts the type.
    """

    #: A repeated ask may find the owner here.
    nothing_happened: ClassVar[bool] = True

    table: EntityTable | None = None


@frozen_message("callboard.AskEntityTable")
class AskEntityTable:
    """A request to a node for the table of a type. The answer is None if it has no host."""

    type_name: str


@frozen_message("callboard.FollowJournal")
class FollowJournal:
    """A request to a node to report the growth of a type's journal for some seconds.

    Answered with the table, or with None if the node does not host the type.
    """

    type_name: str


@frozen_message("callboard.JournalGrew")
class JournalGrew:
    """To a node that follows a journal: events up to a position are stored."""

    type_name: str
    position: int


@frozen_message("callboard.AskVote")
class AskVote:
    """To another member: vote whether the node of a member is unreachable."""

    type_name: str
    writer: str


@frozen_message("callboard.EntityMarker")
class EntityMarker:
    """A marker: the last message to a former owner of a slot.

    The former owner answers when it has accepted or forwarded all earlier messages, or at once
    if it has refused one of them.
    """

    type_name: str
    slot: int
    is_refused: bool = False


@frozen_message("callboard.MoveSlots")
class MoveSlots:
    """To a member: move slots to the host with this node id in hex.

    If the id is "", they move to the owners that hashing assigns. The member answers when the
    move has started.
    """

    type_name: str
    slots: list[int]
    node: str


@frozen_message("callboard.StopEntity")
class StopEntity:
    """To an owner: passivate an entity."""

    type_name: str
    key: str
