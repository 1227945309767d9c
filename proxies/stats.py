"""Figures of a node, as values."""

from dataclasses import field

from callboard.support.dataclass import dataclass
from callboard.support.histogram import Histogram


@dataclass(frozen=True, slots=True)
class ReachableNode:
    """A node in reach: the neighbor that leads to it, and the number of links."""

    node_id: bytes
    name: str
    hops: int
    via: bytes


@dataclass(frozen=True, slots=True)
class LinkInfo:
    """A link to a neighbor, with its traffic since it was established.

    Attributes:
        pauses: how often reading was paused because the link exceeded `Limits`, or the capacity
            of a receiver of topics.
        is_tool: whether the neighbor only inspects and asks, as commands do.
        release: the release of the neighbor; `0.1` if it states none.
        build: the build of the neighbor, if it states one.
        guard: what prevents other machines from sending on the link as the neighbor: `seal`,
            `tls`, `unsealed` (a secret was proven, but a relay is not detected) or `none`.
        round_trip: seconds from a question to the neighbor until its answer, when figures of
            links were last requested; 0 if it was not measured.
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
    round_trip: float = 0.0


@dataclass(frozen=True, slots=True)
class AccountInfo:
    """Actor messages sent to one node: sent = confirmed + lost + in_flight, always.

    Attributes:
        confirmed: handled there, or counted there as dead letters.
        dead_letters: confirmed messages whose receiver had ended.
        lost: lost or unconfirmed when the node, or the last path to it, was lost.
        waiting: not sent yet: they wait at this node for a path, or for room in a mailbox.
        name: the name of the node, if known.
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
    """An ask that this node forwarded to another one; `at` is `time.monotonic_ns()`."""

    source: bytes
    destination: bytes
    message_id: int
    is_response: bool
    at: int


@dataclass(frozen=True, slots=True)
class NodeStats:
    """A node's counters since its start, in messages unless stated otherwise.

    Attributes:
        pauses: how often reading a link was paused because of its limits.
        refused_frames: frames received on a link without a path from their source.
        not_permitted: requests of peers that were refused for lack of rights.
        dropped_fields: fields of messages that the class on this node does not have, because
            the sender has a newer release.
        refused_spawns: requests of other nodes to spawn classes that are not offered.
        overflows: messages that full mailboxes dropped or refused.
        expired: asks that timed out in a mailbox.
        slow_handlers: handlers that held their thread for more than a second.
        handler_seconds: time in handlers by class of the actors; sampled, so it is right on
            average. Detached actors are not sampled, as each has its own thread.
        restarts: children that supervisors restarted.
        exhausted: supervisors that gave up.
        handed_over: sends inside other calls of this node, as in finalizers and signal
            handlers, which were carried out after those calls.
        ask_seconds: duration of asks of this node, sampled; a live view.
        waiting_seconds: time of messages in mailboxes, sampled.
        mailbox_messages: messages in all mailboxes at this moment.
        mailbox_depth_max: messages in the deepest one.
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
