"""Figures of a node, as values."""

from dataclasses import field

from callboard.support.dataclass import dataclass
from callboard.support.histogram import Histogram


@dataclass(frozen=True, slots=True)
class ReachableNode:
    """A node in reach: through which neighbor, over how many links."""

    node_id: bytes
    name: str
    hops: int
    via: bytes


@dataclass(frozen=True, slots=True)
class LinkInfo:
    """A link to a neighbor, with what went over it since it was established.

    Attributes:
        pauses: how often reading was put off because it brought more than `Limits` allow, or
            than a receiver of topics can take.
        is_tool: whether the neighbor only looks and asks, as commands do.
        release: of the neighbor; `0.1` where it tells none.
        build: of the neighbor, where it tells one.
        guard: what keeps others from speaking on the link in the neighbor's name: `seal`,
            `tls`, `unsealed` (a secret was proven, but a relay gets through) or `none`.
    """

    peer: bytes
    peer_name: str
    address: str
    frames_sent: int
    frames_received: int
    bytes_sent: int
    bytes_received: int
    bytes_waiting: int
    pauses: int = 0
    is_tool: bool = False
    release: str = "0.1"
    build: str = ""
    guard: str = "none"


@dataclass(frozen=True, slots=True)
class AccountInfo:
    """Actor messages sent to one node: sent = confirmed + lost + in_flight, always.

    Attributes:
        confirmed: handled there, or counted there as dead letters.
        dead_letters: those of the confirmed whose receiver had ended.
        lost: lost or unconfirmed when the node, or the last path to it, was lost.
        waiting: not sent yet: they wait at this node for a path, or for room in a mailbox.
        name: of the node, where it is known.
    """

    sent: int
    confirmed: int
    dead_letters: int
    lost: int
    in_flight: int
    waiting: int = 0
    name: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ForwardedAsk:
    """An ask that this node forwarded for others; `at` is `time.monotonic_ns()`."""

    source: bytes
    destination: bytes
    message_id: int
    is_response: bool
    at: int


@dataclass(frozen=True, slots=True)
class NodeStats:
    """A node's counters since it started, in messages unless they say otherwise.

    Attributes:
        pauses: how often reading a link was put off because it brought more than it may.
        refused_frames: those of nodes that no path leads to over the link that brought them.
        not_permitted: what peers asked for in vain, for lack of rights.
        dropped_fields: fields of messages that no class here knows: their senders are newer.
        refused_spawns: orders of other nodes to spawn what is not offered to them.
        overflows: dropped or refused by full mailboxes.
        expired: asks whose time was over before their turn.
        slow_handlers: handlers that held their thread for more than a second.
        handler_seconds: time in handlers by class of the actors; sampled, so it is right
            in the long run. Detached actors are not sampled: their threads are theirs.
        restarts: children that supervisors started again.
        exhausted: supervisors that gave up.
        handed_over: sends from inside other calls of this node, as finalizers and signal
            handlers make them, which were carried out when those had left.
        ask_seconds: what asks of this node took, of samples; as it is at any time.
        waiting_seconds: how long messages waited in mailboxes, of samples.
        mailbox_messages: waiting in all mailboxes at this moment.
        mailbox_depth_max: waiting in the deepest one.
    """

    name: str
    node_id: bytes
    actors: int
    spawned: int
    handled: int
    dead_letters: int
    unexpected: int
    failures: int
    forwarded: int
    undeliverable: int
    waiting_asks: int
    proxies: int
    ends: dict[str, int]
    refused_connections: int = 0
    dropped_fields: int = 0
    pauses: int = 0
    refused_spawns: int = 0
    overflows: int = 0
    expired: int = 0
    slow_handlers: int = 0
    handler_seconds: dict[str, float] = field(default_factory=dict)
    mailbox_messages: int = 0
    mailbox_depth_max: int = 0
    refused_frames: int = 0
    not_permitted: int = 0
    restarts: int = 0
    exhausted: int = 0
    handed_over: int = 0
    ask_seconds: Histogram = field(default_factory=Histogram, compare=False, repr=False)
    waiting_seconds: Histogram = field(default_factory=Histogram, compare=False, repr=False)
