"""Inputs and outputs of a core: messages, orders, effects, peer events, counters."""

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, NamedTuple, Protocol

from callboard.support.dataclass import dataclass
from callboard.topics.machine.filter_exchange import FilterChange
from callboard.topics.machine.run import PackedType
from callboard.topics.machine.status import EC, SC

#: A published message: its topic, and `topic, content` encoded.
Pair = tuple[str, bytes]

#: A delivered message: its topic and its decoded content.
Item = tuple[str, Any]


@dataclass(frozen=True, slots=True)
class CommandPairs:
    """Commands of stores for all matching endpoints.

    Successive commands are sent as one run.
    """

    pairs: Sequence[Pair]


class OwnPair(NamedTuple):
    """A message published on this node, with its origins; see `Core.publish_as`."""

    pair: Pair
    origins: frozenset[object]


@dataclass(slots=True)
class Ingested:
    """Data messages from an adapter; see `Core.ingest`."""

    pairs: Sequence[Pair]
    origin: object
    ttl: int | None = None


@dataclass(frozen=True, slots=True)
class PeerEvent:
    """A change of a peer, or an error, for status subscribers.

    The guide names the callbacks of the core actor: `peer_discovered` is
    `SC.EndpointDiscovered`, `peer_connected` `SC.PeerAdded`, `peer_disconnected` `SC.PeerLost`,
    `peer_removed` `SC.PeerRemoved`, `peer_unreachable` `SC.EndpointUnreachable`,
    `cannot_remove_peer` `EC.PeerInvalid`, and `peer_unavailable` `EC.PeerUnavailable`.

    Attributes:
        kind: code of the change or error.
        endpoint: the peer's id; None while unknown.
        address: host and port in the user's request; None for peers that dialed this node.
        text: description for people.
        is_direct: for a path that is found or lost, whether the endpoint was a peer when it was
            discovered: its peering is reported too.
        wire: protocol of the peer; "native" for an endpoint of a node.
    """

    kind: SC | EC
    endpoint: bytes | None
    address: tuple[str, int] | None = None
    text: str = ""
    is_direct: bool = False
    wire: str = "native"


class TransmitRun(NamedTuple):
    """Send a payload to the core of a node; `messages` is its number of users' messages."""

    node: bytes
    payload: bytes
    messages: int = 0


class DeliverItems(NamedTuple):
    """Deliver decoded messages to a local receiver, in this order.

    Attributes:
        receiver: the local receiver.
        items: topics and values.
        sender: the node that published them; empty for this node.
        size: bytes of the run that contained them, for limits of queues.
    """

    receiver: object
    items: list[Item]
    sender: bytes = b""
    size: int = 0


class InterestChanged(NamedTuple):
    """Report that the subscriptions followed by adapters have changed."""


class RefusedHere(NamedTuple):
    """Report that this endpoint refused a leaf a right."""

    node: bytes
    right: str
    name: str


class RefusedThere(NamedTuple):
    """Report that another endpoint refused this one, its leaf, a right."""

    node: bytes
    right: str
    name: str


class Receiver(Protocol):
    """A local receiver, such as the queue of a subscriber, or a store."""

    def take(self, items: list[Item], /) -> None:
        """Receive a run of messages in the order of their publisher; on the node's thread.

        It must be quick, and must not block or raise.
        """


class Egress(Protocol):
    """A connection that leads out of the network of nodes, to a peer without a filter.

    It gets the messages that this endpoint publishes, but none of other nodes or adapters.
    Otherwise a message that arrived through one egress would be sent through another one, and
    could circle.
    """

    def takes(self, topic: str, /) -> bool:
        """Return whether messages with this topic leave here."""

    def peer_topics(self) -> tuple[str, ...]:
        """Return the known subscriptions of the peer. Can be called from any thread."""

    def take_own(self, run: Sequence[Pair], /) -> None:
        """Receive an encoded run. It must be quick, and must not block or raise."""


class RunReceiver:
    """A local receiver that also gets the sender and size of a run."""

    def take_from(self, sender: bytes, items: list[Item], size: int) -> None:
        """Receive a run on the node's thread. It must be quick, and must not block or raise.

        Args:
            sender: the node that published it.
            items: topics and values, in the order of their publisher.
            size: bytes of the whole run, including messages for other receivers.
        """
        raise NotImplementedError


class DoorReceiver(RunReceiver):
    """The receiver of an adapter to one foreign peer, with the peer's filter.

    Messages that an adapter received from a peer are never sent back to this peer, also not by
    another adapter with the same `peer_key`.
    """

    #: Identifies the peer: its configured address, or its name.
    peer_key: str = ""

    #: Whether it gets this endpoint's own messages encoded, by `take_own`.
    takes_pairs: bool = False

    def take_own(self, run: Sequence[Pair]) -> None:
        """Receive an encoded run of this endpoint's own messages."""
        raise NotImplementedError

    def take_within(self, ttl: int, sender: bytes, items: list[Item], size: int) -> None:
        """Receive a run of another node that may still cross `ttl` links; see `take_from`."""
        self.take_from(sender, items, size)

    def is_of(self, origin: object) -> bool:
        """Return whether a origin leads to the same peer."""
        return isinstance(origin, DoorReceiver) and origin.peer_key == self.peer_key


@dataclass(frozen=True, slots=True)
class LocalPublications(RunReceiver):
    """Passes encoded messages of this endpoint to a receiver with `takes_pairs`."""

    door: DoorReceiver

    def take_from(self, sender: bytes, items: list[Item], size: int) -> None:
        """Pass the run on; its items are pairs here."""
        self.door.take_own(items)


@dataclass(frozen=True, slots=True)
class NearDoor(RunReceiver):
    """Passes a run of another node to an adapter, with the links that it may still cross."""

    door: DoorReceiver
    ttl: int

    def take_from(self, sender: bytes, items: list[Item], size: int) -> None:
        """Pass the run on."""
        self.door.take_within(self.ttl, sender, items, size)


CoreEffect = (
    TransmitRun
    | DeliverItems
    | PeerEvent
    | FilterChange
    | RefusedHere
    | RefusedThere
    | InterestChanged
)


#: An input of the core besides published data: messages, or a function that returns effects.
CoreOrder = CommandPairs | Ingested | OwnPair | Callable[[], Sequence[CoreEffect]]


@dataclass(slots=True)
class CoreCounters:
    """Numbers of messages.

    `serialized` counts messages that entered here, `deserialized` those with a local receiver.
    Neither grows with the number of nodes on the path, because node messages are forwarded
    without decoding.
    """

    data_published: int = 0
    commands_published: int = 0
    serialized: int = 0
    transmitted: int = 0
    received: int = 0
    deserialized: int = 0
    delivered: int = 0
    unwanted: int = 0
    dropped: int = 0
    malformed: int = 0
    #: Values, commands and topics in filters of leaves beyond their rights.
    refused: int = 0
    #: Messages that a foreign protocol cannot represent, once for each receiver.
    unwritten: int = 0
    #: Messages in the central merge by type: published by users here, or received from other
    #: endpoints.
    processed: dict[PackedType, int] = field(
        default_factory=lambda: dict.fromkeys(PackedType, 0)
    )
