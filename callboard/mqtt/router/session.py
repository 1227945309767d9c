"""A client's session, its subscriptions, and its connection if there is one.

A `DataRequest` reads one filter's log. It is either in the tracker of its session, when there
is something to read, or among the waiters of the log, when it has read everything.

States of a connection (`ConnectionStatus`, in its session):

| from | cause | to |
|---|---|---|
| Busy (its session existed before) | Init | Ready |
| Busy (its link was full) | Ready: the link is empty | Ready |
| Caughtup | a publish (FreshData), a subscription (NewFilter) | Ready |
| InflightFull | a publish or a subscription: messages with QoS 0 may follow | Ready |
| Caughtup, InflightFull | an acknowledgement, something to acknowledge | Ready |
| Ready | consumed: all read | Caughtup |
| Ready | consumed: link full | Busy |
| Ready | consumed: window full | InflightFull |
| Ready | consumed: the next message must be read from the journal | Fetching |
| Fetching | the message was read; an acknowledgement, something to acknowledge | Ready |

A connection with a new session starts as Caughtup: there is nothing to read yet. A connection
is in the ready queue exactly while it is Ready. Only `Delivery` changes a status, and
`Sessions` for a new connection.
"""

from collections.abc import Iterator
from dataclasses import field
from enum import Enum
from typing import NamedTuple, Protocol

from callboard.mqtt.router.datalog import DataLog
from callboard.mqtt.router.limits import Limits
from callboard.mqtt.router.link import Access, Notification, RouterLink
from callboard.mqtt.router.message import MessageRun
from callboard.mqtt.router.window import Window
from callboard.mqtt.wire.codec import encode
from callboard.mqtt.wire.errors import ProtocolViolation
from callboard.mqtt.wire.field import write_variable
from callboard.mqtt.wire.packet import V4, V5, Packet, Subscription
from callboard.mqtt.wire.properties import NO_PROPERTIES
from callboard.mqtt.wire.reason_code import ReasonCode
from callboard.mqtt.wire.topic import weight_of_way
from callboard.support.dataclass import dataclass

#: Topics of one client whose access decision is cached, and the bytes of the longest of them.
MOST_ANSWERS = 1_000
LONGEST_ANSWERED = 256

#: Bytes of topics with aliases on a connection, in each direction.
ALIAS_BYTES = 256 * 1024

#: Bytes of memory of a session, and of a subscription, without their texts. A subscription
#: includes its request and the log of its filter.
SESSION_BYTES = 1_500
SUBSCRIPTION_BYTES = 1_200

#: Bytes of memory for the identifier of a received QoS 2 message.
RECEIVED_BYTES = 64

#: Connects and disconnects of a client in its history, for the console.
HISTORY = 10

#: The identifier of the property *subscription identifier*.
IDENTIFIER = 11

#: Recent events of a client: (the router's clock, text).
History = tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True)
class SessionSubscription(Subscription):
    """A filter of a session, with its options.

    Attributes:
        topic_filter: as the client wrote it, including its share.
        qos: granted.
        since: the number of the first message that it gets.
        until: after UNSUBSCRIBE, the number of the first message that it does not get.
        identifier: the property with the client's subscription identifier, or empty.
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
        """Return the subscription that a packet requests, with the granted QoS."""
        prop = bytes((IDENTIFIER,)) + write_variable(identifier) if identifier else b""
        flags = packet.no_local, packet.retain_as_published, packet.retain_handling
        return cls(packet.topic_filter, qos, *flags, since, None, prop)


class SessionAccount(Protocol):
    """The sum of the bytes of all sessions, without messages."""

    held: int


class ConnectionStatus(Enum):
    """The state of a connection: READY is in the ready queue; the others are not."""

    READY = "ConnectionReady"
    BUSY = "ConnectionBusy"
    CAUGHT_UP = "ConnectionCaughtup"
    INFLIGHT_FULL = "InflightFull"
    FETCHING = "Fetching"


#: Statuses in which messages with QoS 0 can be sent at once.
_OPEN = (ConnectionStatus.CAUGHT_UP, ConnectionStatus.INFLIGHT_FULL)

_PAUSED = (
    ConnectionStatus.CAUGHT_UP,
    ConnectionStatus.INFLIGHT_FULL,
    ConnectionStatus.FETCHING,
)


class Cause(Enum):
    """An event that may make a connection ready.

    Attributes:
        wakes: the statuses that it turns into ready.
        gives_room: whether the session can accept messages of idle groups after it.
    """

    INIT = "Init", (ConnectionStatus.BUSY,), True
    READY = "Ready", (ConnectionStatus.BUSY,), True
    NEW_FILTER = "NewFilter", _OPEN, False
    FRESH_DATA = "FreshData", _OPEN, False
    INCOMING_ACK = "IncomingAck", _PAUSED, True
    ACKS = "Acks", _PAUSED, False
    FETCHED = "Fetched", (ConnectionStatus.FETCHING,), True

    def __init__(
        self,
        _name: str,
        wakes: tuple[ConnectionStatus, ...],
        gives_room: bool,  # noqa: FBT001
    ) -> None:
        self.wakes = wakes
        self.gives_room = gives_room


@dataclass(slots=True, eq=False)
class PassedWindow:
    """Messages with QoS 0 that were sent while a full window stopped those before them.

    Attributes:
        end: the offset up to which all of them were sent.
        count: the number of those that the request has not reached yet.
    """

    end: int
    count: int = 0


@dataclass(slots=True, eq=False, repr=False)
class DataRequest:
    """A cursor into a filter's log.

    Attributes:
        log: the log that it reads.
        offset: the offset of the next message to read.
        subscription: its options; for a shared request, the options of the member that has it.
        session: the reader; None while a shared request is with no member.
        is_shared: whether it is the one request of a shared subscription's group.
        is_retained: whether it reads retained messages, from a private log.
        stop: the offset at which it ends, for retained messages and after UNSUBSCRIBE.
        passed: messages that were sent past a full window, until the request reaches them.
    """

    log: "DataLog[DataRequest]"
    subscription: SessionSubscription
    session: "Session | None"
    is_shared: bool = False
    is_retained: bool = False
    stop: int | None = None
    passed: PassedWindow | None = None
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


#: The log of a filter, and the requests that wait at its end.
FilterLog = DataLog[DataRequest]


class Offer(NamedTuple):
    """A session that another router may take over.

    Attributes:
        name: the name of this offer.
        number: the number of the router's next message when it made the offer.
    """

    name: str
    number: int


@dataclass(slots=True, eq=False, repr=False)
class Session:
    """The state of one client id.

    Attributes that few sessions need are made on first use: a router holds thousands of clients
    that only wait for messages with QoS 0.

    Attributes:
        connection: the client while it is connected.
        expiry: seconds that the session remains without its client; 0 ends it at once.
        subscriptions: the subscriptions by the filter as the client wrote it.
        requests: their data requests, by filter; a shared one belongs to its group.
        has_overlaps: whether several filters might match one topic.
        has_shared: whether a subscription is shared.
        leaving: subscriptions that were ended before all their messages were read.
        tracker: requests with something to read, in turn.
        status: whether its connection is in the ready queue, or why not.
        window_size: how many messages with QoS 1 and 2 may be unacknowledged.
        window_or_none: the window, if it was used.
        received_or_none: `received`, if it was used.
        history: recent events of the client: (clock, text).
        expires_at: when the session ends, if its client does not connect until then.
        is_durable: whether it survives a restart of the router.
        stamp: orders the connects of the client among all routers of a cluster.
        user: the owner; other users cannot open the session. Empty for clients without a name.
            None, where no client is authenticated or an older release wrote the session, lets
            the first user open it.
        offer: the last offer to another router, if nothing has changed since.
        weight: estimated bytes of memory, without messages.
        own: the part of `weight` that is not for subscriptions: names, the will.
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
    #: A list, because it is short: smaller than a deque and as fast.
    tracker: list[DataRequest] = field(init=False, default_factory=list)
    status: ConnectionStatus = ConnectionStatus.BUSY
    window_size: int = 0
    window_or_none: Window | None = None
    received_or_none: set[int] | None = None
    history: History = ()
    stamp: int = 0
    user: str | None = None
    offer: Offer | None = None
    weight: int = 0
    own: int = 0

    def charge(self, account: SessionAccount, weight: int) -> None:
        """Add bytes to the weight of this session and to the sum of all sessions."""
        self.weight += weight
        account.held += weight

    def set_own(self, account: SessionAccount, weight: int) -> None:
        """Replace the weight of the client's CONNECT: names and will."""
        more = weight - self.own
        self.weight += more
        account.held += more
        self.own = weight

    @property
    def unread(self) -> Iterator[MessageRun]:
        """Messages that only this session may still need.

        Unacknowledged, or retained and unread.
        """
        if self.window_or_none is not None:
            yield from (sent.run for _, sent in self.window_or_none.unacknowledged)
        for request in self.tracker:
            if request.is_retained:
                yield from (run for run, _ in request.log.behind(request.offset))

    @property
    def window(self) -> Window:
        """The messages with QoS 1 and 2 in flight to the client."""
        window = self.window_or_none
        if window is None:
            window = self.window_or_none = Window(self.window_size)
        return window

    @property
    def received(self) -> set[int]:
        """Identifiers of the client's QoS 2 messages that it has not released."""
        received = self.received_or_none
        if received is None:
            received = self.received_or_none = set()
        return received

    @property
    def all_requests(self) -> list[DataRequest]:
        """All data requests: of its subscriptions, and of ended ones in its tracker."""
        return [*self.requests.values(), *self.tracker]

    def put_first(self, request: DataRequest) -> None:
        """Track a request that will end, ahead of those that continue.

        Its messages are older.
        """
        index = sum(other.stop is not None for other in self.tracker)
        self.tracker.insert(index, request)

    def open_window(self, size: int) -> None:
        """Set how many messages the client may leave unacknowledged."""
        self.window_size = size
        if self.window_or_none is not None:
            self.window_or_none.size = size

    def record_event(self, now: float, text: str) -> None:
        """Add an event to the client's history, for the console."""
        self.history = (*self.history[-HISTORY + 1 :], (now, text))


class HeldPackets:
    """Whole packets of a held client, in their order; see `brake`."""

    __slots__ = ("chunks", "size")

    def __init__(self, chunks: list[bytes]) -> None:
        self.chunks = chunks
        self.size = sum(map(len, chunks))


@dataclass(slots=True, eq=False, repr=False)
class Connection:
    """A connected client.

    Attributes:
        link: the channel of its packets.
        session: the state that survives the connection.
        acks: acknowledgements to send, always before messages.
        out: the packets to send at the end of this turn.
        unsent: messages given to the link since it was last known to be empty.
        unsent_bytes: the bytes of these messages.
        aliases_in: topics by the alias that the client defined.
        aliases_out: aliases by topic, defined by the router.
        alias_bytes_in: bytes of the topics in `aliases_in`.
        alias_bytes_out: bytes of the topics in `aliases_out`.
        largest: the largest packet that the client accepts, in bytes; None is unlimited.
        limits: the limits when it connected; its CONNACK named some of them.
        packets_in: packets from the client since it connected.
        dropped: messages that were too large for the client.
        most_qos: the highest QoS that it may use.
        held: packets queued while the client is held back by slow readers; else None.
    """

    link: RouterLink
    session: Session
    limits: Limits
    client_id: str = field(init=False)
    is_v5: bool = field(init=False)
    access: Access | None = field(init=False)
    keep_alive: int = field(init=False)
    alias_maximum: int = field(init=False)
    most_qos: int = field(init=False)
    largest: int | None = field(init=False)
    acks: list[bytes] = field(init=False, default_factory=list)
    out: list[Notification] = field(init=False, default_factory=list)
    unsent: int = 0
    unsent_bytes: int = 0
    aliases_in: dict[int, bytes] | None = None
    aliases_out: dict[bytes, bytes] | None = None
    alias_bytes_in: int = 0
    alias_bytes_out: int = 0
    #: Cached decisions of `access`, by topic: for publishing, and for receiving.
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
        most_qos = min(self.limits.maximum_qos, self.link.maximum_qos)
        self.most_qos = 2 if self.link.is_local else most_qos
        self.largest = properties.maximum_packet_size

    @property
    def is_limited(self) -> bool:
        """Whether there may be messages that this client does not get."""
        return self.largest is not None or self.access is not None

    def accepts(self, run: MessageRun, added: int) -> bool:
        """Return whether this client gets messages whose packets grow by some bytes."""
        if self.largest is not None and run.size + added > self.largest:
            return False
        return self.access is None or self.may_receive(run.topic)

    def may_publish(self, topic: bytes, *, is_reserved: bool) -> bool:
        """Return whether this client may publish on a valid topic.

        If `is_reserved`, only links within the process may; see `TopicRoute`.
        """
        if is_reserved and not self.link.is_local:
            return False
        return self.access is None or self._is_allowed(topic, 0)

    def may_receive(self, topic: bytes) -> bool:
        """Return whether this client may receive messages of a topic."""
        return self.access is None or self._is_allowed(topic, 1)

    def _is_allowed(self, topic: bytes, index: int) -> bool:
        """Return the access decision for a topic, from the cache if possible."""
        assert self.access is not None
        if self.allowed is None:
            self.allowed = ({}, {})
        answers = self.allowed[index]
        answer = answers.get(topic)
        if answer is None:
            if len(answers) >= MOST_ANSWERS:
                answers.clear()
            ask = self.access.may_receive if index else self.access.may_publish
            answer = ask(topic.decode())
            if len(topic) <= LONGEST_ANSWERED:
                answers[topic] = answer
        return answer

    def resolve(self, topic: bytes, alias: int) -> bytes:
        """Return the topic of an alias; define the alias if a topic is given.

        Raises:
            ProtocolViolation: the alias is too large, or not defined.
        """
        most = self.limits.topic_alias_maximum
        if alias > most:
            message = f"the alias {alias} is above the limit of {most}"
            raise ProtocolViolation(message, ReasonCode.TOPIC_ALIAS_INVALID)
        aliases = self.aliases_in
        if aliases is None:
            aliases = self.aliases_in = {}
        if topic:
            self.alias_bytes_in += len(topic) - len(aliases.get(alias, b""))
            aliases[alias] = topic
            if self.alias_bytes_in > ALIAS_BYTES:
                message = f"the topics of aliases take more than {ALIAS_BYTES} bytes"
                raise ProtocolViolation(message, ReasonCode.QUOTA_EXCEEDED)
        elif alias not in aliases:
            message = f"the alias {alias} is not defined on this connection"
            raise ProtocolViolation(message)
        return aliases[alias]

    def let_go(self) -> list[bytes]:
        """Release a held client; return its queued packets."""
        packets, self.held = self.held, None
        return [] if packets is None else packets.chunks

    def acknowledge(self, packet: Packet) -> None:
        """Queue an acknowledgement for the client."""
        self.acks.append(encode(packet, V5 if self.is_v5 else V4))

    def forget_answers(self) -> None:
        """Clear cached access decisions: the rules have changed."""
        self.access = topic_rules(self.link)
        self.allowed = None

    def receive(self, ids: tuple[int, ...]) -> list[int]:
        """Add identifiers of QoS 2 messages; return the indexes of the new ones.

        Raises:
            ProtocolViolation: more messages are unreleased than the client may have.
        """
        received = self.session.received
        fresh = [i for i, packet_id in enumerate(ids) if packet_id not in received]
        if len(set(ids)) < len(ids):
            fresh = list({ids[i]: i for i in reversed(fresh)}.values())[::-1]
        most = self.limits.receive_maximum
        if self.is_v5 and len(received) + len(fresh) > most:
            message = f"more than {most} QoS 2 messages are unreleased; the receive maximum"
            raise ProtocolViolation(message, ReasonCode.RECEIVE_MAXIMUM_EXCEEDED)
        received.update([ids[i] for i in fresh])
        return fresh


def topic_rules(link: RouterLink) -> Access | None:
    """Return the access rules of a link; None if all topics are open to the client."""
    access = link.access
    return None if getattr(access, "is_open", False) else access
