"""What the router writes into its journal, as facts; `journal_codec` makes bytes of them.

Only what has to outlive the router is written: messages with QoS 1 and 2 that a lasting session
reads, retained messages, lasting sessions and what they have acknowledged.
"""

from dataclasses import dataclass

from callboard.mqtt.message import Run
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
class Retained:
    """A message is kept for its topic; None removes the one that was."""

    topic: bytes
    run: Run | None


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A session lasts from here on, or its client left: `expires_at` on the router's clock."""

    client_id: str
    expiry: float
    expires_at: float | None


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """A session is over."""

    client_id: str


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A lasting session has a subscription; the offset is the first message it reads."""

    client_id: str
    subscription: Subscription
    number: int


@dataclass(frozen=True, slots=True)
class Unsubscribed:
    """A lasting session has one less."""

    client_id: str
    topic_filter: str


@dataclass(frozen=True, slots=True)
class SentOut:
    """Messages went to a lasting session, with consecutive packet identifiers."""

    client_id: str
    sent: Sent
    count: int


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A lasting session acknowledged messages: `kind` is the packet type, PUBACK and so on."""

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


JournalRecord = (
    Published
    | Retained
    | SessionOpened
    | SessionClosed
    | Subscribed
    | Unsubscribed
    | SentOut
    | Acknowledged
    | Received
    | Released
)
