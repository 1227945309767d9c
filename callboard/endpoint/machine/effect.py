"""What goes in and out of a core: messages, orders, effects, peer events, counters."""

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, NamedTuple, Protocol

from callboard.endpoint.machine.filter_exchange import FilterChange
from callboard.endpoint.machine.run import PackedType
from callboard.endpoint.machine.status import EC, SC
from callboard.support.dataclass import dataclass

#: A message that entered: its topic, and `topic, content` encoded.
Pair = tuple[str, bytes]

#: A message that leaves: its topic and its decoded content.
Item = tuple[str, Any]


@dataclass(frozen=True, slots=True)
class CommandPairs:
    """Commands of stores, for all endpoints that want their topic; runs of them are joined."""

    pairs: Sequence[Pair]


@dataclass(slots=True)
class Ingested:
    """Data messages that a door brought; see `Core.ingest`."""

    pairs: Sequence[Pair]
    bringer: object
    ttl: int | None = None


@dataclass(frozen=True, slots=True)
class PeerEvent:
    """Something about a peer that status subscribers are told.

    The callbacks of the core actor, by their names in the guide: `peer_discovered` is
    `SC.EndpointDiscovered`, `peer_connected` `SC.PeerAdded`, `peer_disconnected` `SC.PeerLost`,
    `peer_removed` `SC.PeerRemoved`, `peer_unreachable` `SC.EndpointUnreachable`,
    `cannot_remove_peer` `EC.PeerInvalid`, and `peer_unavailable` `EC.PeerUnavailable`.

    Attributes:
        kind: what has changed, or what went wrong.
        endpoint: the peer's id; None while it is not known.
        address: host and port that the user gave; None for peers that came by themselves.
        text: for people.
        is_direct: whether a path that is found or lost is told by a peering too: that of an
            endpoint that was a peer when it was discovered.
        wire: what the peer speaks; "native" is an endpoint of a node.
    """

    kind: SC | EC
    endpoint: bytes | None
    address: tuple[str, int] | None = None
    text: str = ""
    is_direct: bool = False
    wire: str = "native"


class TransmitRun(NamedTuple):
    """Send a payload to the core of a node; it holds so many `messages` of users."""

    node: bytes
    payload: bytes
    messages: int = 0


class DeliverItems(NamedTuple):
    """Hand decoded messages to a local receiver, in this order.

    Attributes:
        receiver: who takes them.
        items: topics and values.
        sender: the node that published them; empty for this one.
        size: bytes of the run that they came in, to bound what waits.
    """

    receiver: object
    items: list[Item]
    sender: bytes = b""
    size: int = 0


class WishesChanged(NamedTuple):
    """What doors bring in may be wanted by more or by fewer than before."""


class RefusedHere(NamedTuple):
    """A leaf was refused something, by its rights."""

    node: bytes
    right: str
    name: str


class RefusedThere(NamedTuple):
    """This endpoint was refused something by another one, whose leaf it is."""

    node: bytes
    right: str
    name: str


class Receiver(Protocol):
    """A local receiver: the queue of a subscriber, an actor's adapter, a store."""

    def take(self, items: list[Item], /) -> None:
        """Take a run of messages in the order of their publishers; on the node's thread.

        Must be quick and must not block or raise.
        """


class Egress(Protocol):
    """A way out of the network of nodes, whose other end need not tell what it wants.

    It gets what this endpoint publishes, and nothing of other nodes or doors: so nothing that
    came in by one way goes out by another.
    """

    def takes(self, topic: str, /) -> bool:
        """Return whether a message with a topic goes out."""

    def peer_topics(self) -> tuple[str, ...]:
        """Return what the other end is known to want; from any thread."""

    def take_own(self, run: Sequence[Pair], /) -> None:
        """Take a run, encoded, in its order; must be quick and must not block or raise."""


class RunReceiver:
    """A local subscriber that is told who sent a run, and its size."""

    def take_from(self, sender: bytes, items: list[Item], size: int) -> None:
        """Take a run; on the node's thread, so it must be quick and must not block or raise.

        Args:
            sender: the node that published it.
            items: topics and values, in the order of their publisher.
            size: bytes of the run, of which others may have taken a part.
        """
        raise NotImplementedError


class DoorReceiver(RunReceiver):
    """The receiver of a door to one foreign peer, with the peer's filter.

    What one door of a peer brought in never goes out by another one to the same peer.
    """

    #: What tells the peer from others: its address as it was configured, or its name.
    peer_key: str = ""

    #: Whether it takes what this endpoint publishes by `take_own`, encoded.
    takes_pairs: bool = False

    def take_own(self, run: Sequence[Pair]) -> None:
        """Take a run of this endpoint's own messages as they were encoded."""
        raise NotImplementedError

    def take_within(self, ttl: int, sender: bytes, items: list[Item], size: int) -> None:
        """Take a run of others that may still cross so many links; as `take_from`."""
        self.take_from(sender, items, size)

    def is_of(self, bringer: object) -> bool:
        """Return whether a bringer leads to the same peer."""
        return isinstance(bringer, DoorReceiver) and bringer.peer_key == self.peer_key


@dataclass(frozen=True, slots=True)
class LocalPublications(RunReceiver):
    """A door that takes what this endpoint itself publishes, encoded."""

    door: DoorReceiver

    def take_from(self, sender: bytes, items: list[Item], size: int) -> None:
        """Hand the pairs on that stand for items here."""
        self.door.take_own(items)


@dataclass(frozen=True, slots=True)
class NearDoor(RunReceiver):
    """A door that takes a run of others, which may cross so many links."""

    door: DoorReceiver
    ttl: int

    def take_from(self, sender: bytes, items: list[Item], size: int) -> None:
        """Hand them on."""
        self.door.take_within(self.ttl, sender, items, size)


CoreEffect = (
    TransmitRun
    | DeliverItems
    | PeerEvent
    | FilterChange
    | RefusedHere
    | RefusedThere
    | WishesChanged
)


#: What waits for the core among the data that was published: commands, or a call of it.
CoreOrder = CommandPairs | Ingested | Callable[[], Sequence[CoreEffect]]


@dataclass(slots=True)
class CoreCounters:
    """What flowed through, in messages.

    `serialized` counts entries, `deserialized` the messages that a local output wanted: that
    neither grows with the number of nodes on the way is the point of node messages.
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
    #: Values, commands and topics of filters that rights of leaves did not include.
    refused: int = 0
    #: Messages that a foreign wire has no form for, once for each receiver.
    unwritten: int = 0
    #: Messages that went through the central merge, by type: those of users from here, and
    #: everything that came from other endpoints.
    processed: dict[PackedType, int] = field(
        default_factory=lambda: dict.fromkeys(PackedType, 0)
    )
