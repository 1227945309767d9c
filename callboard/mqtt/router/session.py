"""A client's session, its subscriptions, and its connection while there is one.

A `DataRequest` reads one filter's log. It lives either in the tracker of its session, when
there is something to read, or among the waiters of the log, when it has read everything.

States of a connection (`Status`, in its session):

| from | cause | to |
|---|---|---|
| Busy (its session was there) | Init | Ready |
| Busy (its link was full) | Ready: the link is empty | Ready |
| Caughtup | a publish (FreshData), a subscription (NewFilter) | Ready |
| Caughtup, InflightFull | an acknowledgement, something to acknowledge | Ready |
| Ready | consumed: all read | Caughtup |
| Ready | consumed: link full | Busy |
| Ready | consumed: window full | InflightFull |
| Ready | consumed: what is next is in the journal alone | Fetching |
| Fetching | it was fetched; an acknowledgement, something to acknowledge | Ready |

A connection whose session begins with it is Caughtup: there is nothing that it could read. A
connection is in the ready queue exactly while it is Ready. Only `Delivery` changes a status,
and `Sessions` for a connection that begins.
"""

from collections.abc import Iterator
from dataclasses import field
from enum import Enum
from typing import NamedTuple, Protocol

from callboard.mqtt.router.datalog import DataLog
from callboard.mqtt.router.limits import Limits
from callboard.mqtt.router.link import Access, Link, Notification
from callboard.mqtt.router.message import Run
from callboard.mqtt.router.window import Window
from callboard.mqtt.wire.codec import encode
from callboard.mqtt.wire.errors import ProtocolViolation
from callboard.mqtt.wire.field import write_variable
from callboard.mqtt.wire.packet import V4, V5, Packet, Subscription
from callboard.mqtt.wire.properties import NO_PROPERTIES
from callboard.mqtt.wire.reason_code import ReasonCode
from callboard.mqtt.wire.topic import weight_of_way
from callboard.support.dataclass import dataclass

#: Topics of one client for which an answer is kept, and the bytes of the longest of them.
MOST_ANSWERS = 1_000
LONGEST_ANSWERED = 256

#: Bytes of the topics that have aliases on a connection, in each direction.
ALIAS_BYTES = 256 * 1024

#: What a session, and a subscription of it, take in memory beside their texts; a subscription
#: with its request and the log of its filter.
SESSION_BYTES = 1_500
SUBSCRIPTION_BYTES = 1_200

#: What an identifier of a QoS 2 message takes that was received.
RECEIVED_BYTES = 64

#: Connects and disconnects of a client that are kept for the console.
HISTORY = 10

#: The identifier of the property *subscription identifier*.
IDENTIFIER = 11

#: What happened to a client last: (the router's clock, what).
History = tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True)
class SessionSubscription(Subscription):
    """A filter of a session, with the options that it asked for.

    Attributes:
        topic_filter: as the client wrote it, so with its share.
        qos: granted.
        since: the number of the first message that it gets.
        until: the number of the first one that it does not get, after UNSUBSCRIBE.
        identifier: the property with the client's subscription identifier, or nothing.
    """

    since: int = 0
    until: int | None = None
    identifier: bytes = b""

    @property
    def weight(self) -> int:
        """Bytes in memory, estimated."""
        return SUBSCRIPTION_BYTES + weight_of_way(self.topic_filter)

    @classmethod
    def of_packet(
        cls, packet: Subscription, qos: int, since: int, identifier: int
    ) -> "SessionSubscription":
        """Return what a client asked for, with the QoS that it gets."""
        prop = bytes((IDENTIFIER,)) + write_variable(identifier) if identifier else b""
        flags = packet.no_local, packet.retain_as_published, packet.retain_handling
        return cls(packet.topic_filter, qos, *flags, since, None, prop)


class Account(Protocol):
    """The bytes that sessions take beside messages."""

    held: int


class Status(Enum):
    """Why a connection is, or is not, in the ready queue."""

    READY = "ConnectionReady"
    BUSY = "ConnectionBusy"
    CAUGHT_UP = "ConnectionCaughtup"
    INFLIGHT_FULL = "InflightFull"
    FETCHING = "Fetching"


_PAUSED = (Status.CAUGHT_UP, Status.INFLIGHT_FULL, Status.FETCHING)


class Cause(Enum):
    """Why a connection might have to be scheduled.

    Attributes:
        wakes: the statuses that it ends: the connection is ready then.
        gives_room: whether the session may take messages of groups that found nobody.
    """

    INIT = "Init", (Status.BUSY,), True
    READY = "Ready", (Status.BUSY,), True
    NEW_FILTER = "NewFilter", (Status.CAUGHT_UP,), False
    FRESH_DATA = "FreshData", (Status.CAUGHT_UP,), False
    INCOMING_ACK = "IncomingAck", _PAUSED, True
    ACKS = "Acks", _PAUSED, False
    FETCHED = "Fetched", (Status.FETCHING,), True

    def __init__(self, _name: str, wakes: tuple[Status, ...], gives_room: bool) -> None:  # noqa: FBT001
        self.wakes = wakes
        self.gives_room = gives_room


@dataclass(slots=True, eq=False, repr=False)
class DataRequest:
    """A cursor into a filter's log.

    Attributes:
        log: what it reads.
        offset: the next message to read.
        subscription: with what options; for a shared one, that of the member who has it.
        session: the reader; None while a shared request is with no member.
        is_shared: whether it is the only one of a shared subscription's group.
        is_retained: whether it reads retained messages, from a log of its own.
        stop: the offset at which it ends, for retained messages and after UNSUBSCRIBE.
    """

    log: "DataLog[DataRequest]"
    subscription: SessionSubscription
    session: "Session | None"
    is_shared: bool = False
    is_retained: bool = False
    stop: int | None = None
    offset: int = field(init=False)

    def __post_init__(self) -> None:
        self.offset = self.log.end

    def place(self, following: int) -> int:
        """Return the number of the next message to read; `following` if there is none yet."""
        if self.offset >= self.log.end:
            return following
        offset, segment, index = self.log.find(self.offset)
        shelf = segment.shelf
        number = segment.runs[index].number if shelf is None else shelf.numbers[index]
        return number + offset - segment.starts[index]


#: The log of a filter, in which requests wait.
FilterLog = DataLog[DataRequest]


class Offer(NamedTuple):
    """A session that another router may take.

    Attributes:
        name: of this offer.
        number: the router's next message when it was made.
    """

    name: str
    number: int


@dataclass(slots=True, eq=False, repr=False)
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
        tracker: requests with something to read, in turn.
        status: why its connection is, or is not, in the ready queue.
        window_size: messages with QoS 1 and 2 that the client may have unacknowledged.
        window_or_none: the window, if it was asked for.
        received_or_none: the same of `received`.
        history: what happened last: (wall clock, what).
        expires_at: when it ends; while the client is away.
        is_durable: whether it survives the router.
        stamp: when its client was connected last, among all routers of a cluster.
        user: whose it is: only that user gets it; empty for clients without a name. None, where
            nobody had to prove anything or an older release wrote it, is for the first.
        offer: what another router was offered last, while nothing came in between.
        weight: bytes that it takes beside messages, estimated.
        own: those that it takes without a subscription: names, the will.
    """

    client_id: str
    connection: "Connection | None" = None
    expiry: float = 0.0
    expires_at: float | None = None
    is_durable: bool = False
    has_overlaps: bool = False
    has_shared: bool = False
    subscriptions: dict[str, SessionSubscription] = field(init=False, default_factory=dict)
    requests: dict[str, DataRequest] = field(init=False, default_factory=dict)
    leaving: tuple[SessionSubscription, ...] = ()
    #: Few, so that a list is smaller and as quick as a deque.
    tracker: list[DataRequest] = field(init=False, default_factory=list)
    status: Status = Status.BUSY
    window_size: int = 0
    window_or_none: Window | None = None
    received_or_none: set[int] | None = None
    history: History = ()
    stamp: int = 0
    user: str | None = None
    offer: Offer | None = None
    weight: int = 0
    own: int = 0

    def charge(self, account: Account, weight: int) -> None:
        """Take more bytes, or fewer, of those that all sessions have."""
        self.weight += weight
        account.held += weight

    def set_own(self, account: Account, weight: int) -> None:
        """Take so many bytes for what the client says with its CONNECT, in place of others."""
        more = weight - self.own
        self.weight += more
        account.held += more
        self.own = weight

    @property
    def unread(self) -> Iterator[Run]:
        """The messages that it alone may hold: unacknowledged, or retained and not read yet."""
        if self.window_or_none is not None:
            yield from (sent.run for _, sent in self.window_or_none.unacknowledged)
        for request in self.tracker:
            if request.is_retained:
                yield from (run for run, _ in request.log.behind(request.offset))

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

    @property
    def all_requests(self) -> list[DataRequest]:
        """The data requests of its subscriptions, and what else its tracker has."""
        return [*self.requests.values(), *self.tracker]

    def put_first(self, request: DataRequest) -> None:
        """Track a request that will end before those that go on: what it reads is older."""
        behind = sum(each.stop is not None for each in self.tracker)
        self.tracker.insert(behind, request)

    def open_window(self, size: int) -> None:
        """Let the client have so many messages unacknowledged from here on."""
        self.window_size = size
        if self.window_or_none is not None:
            self.window_or_none.size = size

    def note(self, now: float, what: str) -> None:
        """Keep what happened to the client, for the console."""
        self.history = (*self.history[-HISTORY + 1 :], (now, what))


class HeldPackets:
    """Whole packets of a client that is held, in their order; see `brake`."""

    __slots__ = ("chunks", "size")

    def __init__(self, chunks: list[bytes]) -> None:
        self.chunks = chunks
        self.size = sum(map(len, chunks))


@dataclass(slots=True, eq=False, repr=False)
class Connection:
    """A connected client.

    Attributes:
        link: where its packets come from and go to.
        session: what outlives the connection.
        acks: acknowledgements to send, always before messages: the ackslog of this connection.
        out: what this turn sends.
        unsent: messages and bytes given since the link was last known to be empty.
        aliases_in: topics by the alias that the client gave them.
        aliases_out: aliases that we gave topics.
        alias_bytes_in: bytes of the topics in `aliases_in`.
        alias_bytes_out: the same of `aliases_out`.
        largest: bytes of a packet that the client takes; None is no limit.
        limits: that held when it connected, some of which it was told.
        packets_in: from the client, since it connected.
        dropped: messages that were too large for the client.
        held: what it sent while others wait for readers of it; None while it is not held.
    """

    link: Link
    session: Session
    limits: Limits
    client_id: str = field(init=False)
    is_v5: bool = field(init=False)
    access: Access | None = field(init=False)
    keep_alive: int = field(init=False)
    alias_maximum: int = field(init=False)
    largest: int | None = field(init=False)
    acks: list[bytes] = field(init=False, default_factory=list)
    out: list[Notification] = field(init=False, default_factory=list)
    unsent: int = 0
    unsent_bytes: int = 0
    aliases_in: dict[int, bytes] | None = None
    aliases_out: dict[bytes, bytes] | None = None
    alias_bytes_in: int = 0
    alias_bytes_out: int = 0
    #: What `access` answered: by topic, for publishing and for receiving.
    allowed: tuple[dict[bytes, bool], dict[bytes, bool]] | None = None
    dropped: int = 0
    packets_in: int = 0
    held: HeldPackets | None = None

    def __post_init__(self) -> None:
        connect = self.link.connect
        properties = connect.properties or NO_PROPERTIES
        self.client_id = self.session.client_id
        self.is_v5 = connect.version >= V5
        self.access = topic_rules(self.link)
        self.keep_alive = connect.keep_alive
        self.alias_maximum = properties.topic_alias_maximum or 0
        self.largest = properties.maximum_packet_size

    def may_publish(self, topic: bytes, *, is_reserved: bool) -> bool:
        """Return whether this client may publish on a valid topic.

        `is_reserved` says that only links within the process may, see `TopicRoute`.
        """
        if is_reserved and not self.link.is_local:
            return False
        return self.access is None or self._is_allowed(topic, 0)

    def may_receive(self, topic: bytes) -> bool:
        """Whether this client may get messages of a topic."""
        return self.access is None or self._is_allowed(topic, 1)

    def _is_allowed(self, topic: bytes, which: int) -> bool:
        """Return the access rules' answer for a topic, kept for the next time."""
        assert self.access is not None
        if self.allowed is None:
            self.allowed = ({}, {})
        answers = self.allowed[which]
        answer = answers.get(topic)
        if answer is None:
            if len(answers) >= MOST_ANSWERS:
                answers.clear()
            ask = self.access.may_receive if which else self.access.may_publish
            answer = ask(topic.decode())
            if len(topic) <= LONGEST_ANSWERED:
                answers[topic] = answer
        return answer

    def resolve(self, topic: bytes, alias: int) -> bytes:
        """Return the topic of an alias, or give a topic one.

        Raises:
            ProtocolViolation: the alias is too large, or stands for nothing.
        """
        most = self.limits.topic_alias_maximum
        if alias > most:
            message = f"the alias {alias} is above the limit of {most}"
            raise ProtocolViolation(message, ReasonCode.TOPIC_ALIAS_INVALID)
        known = self.aliases_in
        if known is None:
            known = self.aliases_in = {}
        if topic:
            self.alias_bytes_in += len(topic) - len(known.get(alias, b""))
            known[alias] = topic
            if self.alias_bytes_in > ALIAS_BYTES:
                message = f"the topics of aliases take more than {ALIAS_BYTES} bytes"
                raise ProtocolViolation(message, ReasonCode.QUOTA_EXCEEDED)
        elif alias not in known:
            message = f"the alias {alias} stands for no topic on this connection"
            raise ProtocolViolation(message)
        return known[alias]

    def let_go(self) -> list[bytes]:
        """Hold the client no more; return what waited of it."""
        held, self.held = self.held, None
        return [] if held is None else held.chunks

    def acknowledge(self, packet: Packet) -> None:
        """Answer a packet of the client."""
        self.acks.append(encode(packet, V5 if self.is_v5 else V4))

    def forget_answers(self) -> None:
        """Ask the link's access again."""
        self.access = topic_rules(self.link)
        self.allowed = None

    def receive(self, ids: tuple[int, ...]) -> list[int]:
        """Note identifiers of QoS 2 messages; return the places of those that were not known.

        Raises:
            ProtocolViolation: more are unreleased than the client was allowed.
        """
        received = self.session.received
        fresh = [at for at, packet_id in enumerate(ids) if packet_id not in received]
        if len(set(ids)) < len(ids):
            fresh = list({ids[at]: at for at in reversed(fresh)}.values())[::-1]
        most = self.limits.receive_maximum
        if self.is_v5 and len(received) + len(fresh) > most:
            message = (
                f"more than {most} messages with QoS 2 are not released; the receive maximum"
            )
            raise ProtocolViolation(message, ReasonCode.RECEIVE_MAXIMUM_EXCEEDED)
        received.update([ids[at] for at in fresh])
        return fresh


def topic_rules(link: Link) -> Access | None:
    """Return what to ask about topics; None if all are open to the client."""
    access = link.access
    return None if getattr(access, "is_open", False) else access
