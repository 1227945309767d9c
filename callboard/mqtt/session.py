"""What the router knows of a client id: the part that can outlive a connection."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from callboard.mqtt.message import variable
from callboard.mqtt.packet import Subscription as SubscriptionPacket
from callboard.mqtt.tracker import DataRequest, Tracker
from callboard.mqtt.window import Window

if TYPE_CHECKING:
    from callboard.mqtt.connection import Connection

HISTORY = 10
"""Connects and disconnects of a client that are kept for the console."""

IDENTIFIER = 11
"""The identifier of the property *subscription identifier*."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """A filter of a session, with its options.

    Attributes:
        topic_filter: as the client wrote it, so with its share.
        qos: granted.
        since: the number of the first message that it gets.
        until: the number of the first one that it does not get, after UNSUBSCRIBE.
        identifier: the property with the client's subscription identifier, or nothing.
    """

    topic_filter: str
    qos: int
    since: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    until: int | None = None
    identifier: bytes = b""

    @classmethod
    def of_packet(
        cls, packet: SubscriptionPacket, qos: int, since: int, identifier: int
    ) -> "Subscription":
        """Return what a client asked for, with the QoS that it gets."""
        prop = bytes((IDENTIFIER,)) + variable(identifier) if identifier else b""
        return cls(
            packet.topic_filter,
            qos,
            since,
            packet.no_local,
            packet.retain_as_published,
            packet.retain_handling,
            identifier=prop,
        )

    def ended(self, until: int) -> "Subscription":
        """Return the same, ended."""
        return replace(self, until=until)


KEPT = 1_000
"""Clients without a session whose history is kept."""

History = tuple[tuple[float, str], ...]
"""What happened to a client last: (the router's clock, what)."""


class Histories:
    """What happened to clients whose sessions are over; those that came first go first."""

    def __init__(self) -> None:
        self._kept: dict[str, History] = {}

    def keep(self, client_id: str, history: History) -> None:
        """Keep the history of a session that is over."""
        kept = self._kept
        kept.pop(client_id, None)
        kept[client_id] = history
        if len(kept) > KEPT:
            del kept[next(iter(kept))]

    def take(self, client_id: str) -> History:
        """Return the history of a client that begins a session."""
        return self._kept.pop(client_id, ())


class Offer(NamedTuple):
    """A session that another router may take.

    Attributes:
        name: of this offer.
        number: the router's next message when it was made.
    """

    name: str
    number: int


class Session:
    """One client id's state.

    What most sessions never need is made when it is first asked for: a router holds thousands
    of clients that wait for messages with QoS 0.

    Attributes:
        connection: the client while it is connected.
        expiry: seconds for which the session lives without its client; 0 ends it at once.
        subscriptions: by the filter as the client wrote it.
        requests: their data requests, by filter; that of a shared one is its group's.
        has_overlaps: whether several filters might match one topic.
        has_shared: whether one of them is shared.
        leaving: subscriptions that were ended while messages of theirs were unread.
        tracker: requests with something to read.
        window_size: messages with QoS 1 and 2 that the client may have unacknowledged.
        window_or_none: the window, if it was asked for.
        received_or_none: the same of `received`.
        history: what happened last: (wall clock, what).
        expires_at: when it ends; while the client is away.
        is_durable: whether it survives the router.
        stamp: when its client was connected last, among all routers of a cluster.
        offer: what another router was offered last, while nothing came in between.
    """

    __slots__ = (
        "client_id",
        "connection",
        "expires_at",
        "expiry",
        "has_overlaps",
        "has_shared",
        "history",
        "is_durable",
        "leaving",
        "offer",
        "received_or_none",
        "requests",
        "stamp",
        "subscriptions",
        "tracker",
        "window_or_none",
        "window_size",
    )

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.connection: Connection | None = None
        self.expiry = 0.0
        self.expires_at: float | None = None
        self.is_durable = False
        self.has_overlaps = False
        self.has_shared = False
        self.subscriptions: dict[str, Subscription] = {}
        self.requests: dict[str, DataRequest] = {}
        self.leaving: tuple[Subscription, ...] = ()
        self.tracker = Tracker()
        self.window_size = 0
        self.window_or_none: Window | None = None
        self.received_or_none: set[int] | None = None
        self.history: History = ()
        self.stamp = 0
        self.offer: Offer | None = None

    @property
    def window(self) -> Window:
        """Messages with QoS 1 and 2 on their way to the client."""
        window = self.window_or_none
        if window is None:
            window = self.window_or_none = Window(self.window_size)
        return window

    @property
    def received(self) -> set[int]:
        """Packet identifiers of QoS 2 messages of the client that it has not released."""
        received = self.received_or_none
        if received is None:
            received = self.received_or_none = set()
        return received

    def open_window(self, size: int) -> None:
        """Let the client have so many messages unacknowledged from here on."""
        self.window_size = size
        if self.window_or_none is not None:
            self.window_or_none.size = size
