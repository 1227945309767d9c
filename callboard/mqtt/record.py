"""What the router writes into its journal, as facts; `journal_codec` makes bytes of them.

Only what has to outlive the router is written: messages with QoS 1 and 2 that a lasting session
reads, retained messages, lasting sessions and what they have acknowledged, and wills. Times are
on the router's clock, numbers count messages over all the router's life.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from callboard.mqtt.message import Run
from callboard.mqtt.packet import Will
from callboard.mqtt.session import Subscription
from callboard.mqtt.window import Sent


@dataclass(frozen=True, slots=True)
class Published:
    """Messages that lasting sessions wait for.

    With it in one record, so that a crash cannot part them: the identifiers that a lasting
    publisher gave QoS 2 messages, which are not new again.
    """

    run: Run
    client_id: str = ""
    packet_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Copied:
    """A retained message is sent to a lasting session, and may be replaced meanwhile."""

    run: Run


@dataclass(frozen=True, slots=True)
class Retained:
    """A message is kept for its topic; None removes the one that was."""

    topic: bytes
    run: Run | None


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A session lasts from here on; `expires_at` is None while its client is connected.

    `stamp` says when its client was connected last, among all routers of a cluster.
    """

    client_id: str
    expiry: float
    expires_at: float | None
    stamp: int = 0


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """A session is over."""

    client_id: str


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A lasting session has a subscription, and reads from a message's number on.

    With `until` in it, the subscription has been ended and only reads what is left.
    """

    client_id: str
    subscription: Subscription
    number: int


@dataclass(frozen=True, slots=True)
class Unsubscribed:
    """A lasting session has one less.

    An empty filter stands for all that were ended before, and have read the rest by now.
    """

    client_id: str
    topic_filter: str


@dataclass(frozen=True, slots=True)
class Moved:
    """A subscription of a lasting session has read what is before a number."""

    client_id: str
    topic_filter: str
    number: int


@dataclass(frozen=True, slots=True)
class SentOut:
    """Messages went to a lasting session, with consecutive packet identifiers."""

    client_id: str
    sent: Sent
    count: int


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A lasting session acknowledged messages: `kind` is the packet's first byte."""

    client_id: str
    kind: int
    packet_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Received:
    """A lasting session sent messages with QoS 2; these identifiers are not new again."""

    client_id: str
    packet_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Released:
    """A lasting session released identifiers of its QoS 2 messages."""

    client_id: str
    packet_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Releasing:
    """In a snapshot: what a session's client has received, and not yet completed."""

    client_id: str
    packet_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Returned:
    """In a snapshot: messages of a group whose receiver's session ended."""

    topic_filter: str
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shelved:
    """In a snapshot: a part of a filter's log of which the journal has the messages.

    Attributes:
        topic_filter: of the log.
        span: how many offsets it covers.
        starts: of its runs, from its beginning.
        counts: messages of each run.
        numbers: of their first messages.
        places: of their records in the journal; these stand before the snapshot.
    """

    topic_filter: str
    span: int
    starts: Sequence[int]
    counts: Sequence[int]
    numbers: Sequence[int]
    places: Sequence[int]


@dataclass(frozen=True, slots=True)
class WillKept:
    """A client has a will; `when` it is due, None while the client is connected."""

    client_id: str
    will: Will
    when: float | None


@dataclass(frozen=True, slots=True)
class WillDropped:
    """A client has none any more: it was published, or is not wanted."""

    client_id: str


@dataclass(frozen=True, slots=True)
class Adopted:
    """A lasting session is a copy of another router's, by its offer; "" makes it our own."""

    client_id: str
    offer: str


@dataclass(frozen=True, slots=True)
class HandedOver:
    """A session went to the router that took an offer; "" when it has told that it has it.

    Attributes:
        stamp: of the session.
        records: messages that came behind the offer, as `journal_codec` encodes them.
        expires_at: when nobody will ask for them any more.
    """

    client_id: str
    offer: str
    stamp: int = 0
    records: tuple[tuple[str, Sequence[Any]], ...] = ()
    expires_at: float = 0.0


@dataclass(frozen=True, slots=True)
class SnapshotBegun:
    """What follows is all that there is; before it comes to its end, it is nothing."""

    number: int


@dataclass(frozen=True, slots=True)
class SnapshotEnded:
    """The snapshot is whole, or else (False) it was given up."""

    is_whole: bool


JournalRecord = (
    Published
    | Copied
    | Retained
    | SessionOpened
    | SessionClosed
    | Subscribed
    | Unsubscribed
    | Moved
    | SentOut
    | Acknowledged
    | Received
    | Released
    | Releasing
    | Returned
    | Shelved
    | WillKept
    | WillDropped
    | Adopted
    | HandedOver
    | SnapshotBegun
    | SnapshotEnded
)
