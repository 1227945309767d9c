"""Events of a node about links and other nodes."""

from dataclasses import field

from callboard.support.dataclass import dataclass
from callboard.tls.certificates import CertificatesRefused as CertificatesRefused
from callboard.tls.certificates import CertificatesReplaced as CertificatesReplaced


@dataclass(frozen=True, slots=True)
class LinkUp:
    """A link to a neighbor is established; `node.events()` skips tools."""

    peer: bytes
    name: str
    is_tool: bool = field(default=False, repr=False)


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The link to a neighbor ended."""

    peer: bytes
    name: str
    reason: str
    is_tool: bool = field(default=False, repr=False)


@dataclass(frozen=True, slots=True)
class NodeUp:
    """A node became reachable; `hops` is the number of links to it."""

    node_id: bytes
    name: str
    hops: int
    is_tool: bool = field(default=False, repr=False)


@dataclass(frozen=True, slots=True)
class NodeDown:
    """A node is no longer reachable; `lost` messages to it are lost or unconfirmed."""

    node_id: bytes
    name: str
    reason: str
    lost: int = 0
    is_tool: bool = field(default=False, repr=False)


@dataclass(frozen=True, slots=True)
class PathMoved:
    """Messages to a node take another path; `hops` is the number of links on it."""

    node_id: bytes
    hops: int


@dataclass(frozen=True, slots=True)
class MessagesLost:
    """Messages to a node that is in reach were lost, or not confirmed, on their way."""

    node_id: bytes
    name: str
    count: int


@dataclass(frozen=True, slots=True)
class Undeliverable:
    """A frame for another node was dropped because no path leads there."""

    source: bytes
    destination: bytes


@dataclass(frozen=True, slots=True)
class FramesRefused:
    """Frames were received on a link that is not on a path from their source.

    Reported at most once a second.

    Attributes:
        node_id: the source that the latest of them names.
        peer: the neighbor that sent it.
        count: how many since the last such event.
    """

    node_id: bytes
    peer: bytes
    count: int


@dataclass(frozen=True, slots=True)
class PermissionRefused:
    """A peer requested something without the right; reported at most once a second.

    Attributes:
        identity: the proven identity of the peer.
        node_id: the peer.
        right: the right that it lacks, as in `Rights(…)`.
        name: the object of the request.
        count: number of refusals, of all peers, since the last such event. The other fields
            describe the latest refusal.
    """

    identity: str
    node_id: bytes
    right: str
    name: str
    count: int


@dataclass(frozen=True, slots=True)
class ForeignLinkUp:
    """A peer on a foreign wire was admitted, by its first connection.

    Attributes:
        wire: name of the wire, such as `websocket`.
        name: the peer's own name.
        address: the dialed address, or the source of the connection.
        endpoint: the id of its endpoint, if its wire has such ids.
    """

    wire: str
    name: str
    address: tuple[str, int]
    endpoint: bytes | None = None


@dataclass(frozen=True, slots=True)
class ForeignLinkDown:
    """The last connection with a peer on a foreign wire ended; fields as of `ForeignLinkUp`.

    Attributes:
        reason: why.
        is_wanted: whether its dial was stopped.
    """

    wire: str
    name: str
    address: tuple[str, int]
    reason: str
    is_wanted: bool = False
    endpoint: bytes | None = None


@dataclass(frozen=True, slots=True)
class ForeignDialFailed:
    """A dial on a foreign wire failed."""

    wire: str
    address: tuple[str, int]
    reason: str


@dataclass(frozen=True, slots=True)
class ConnectionsRefused:
    """A limit closed connections at once; reported at most once a second.

    Attributes:
        count: how many since the last such event.
        reason: the limit that refused the latest of them.
    """

    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class LinkRefused:
    """A node cannot be linked with this one: the secret, version or application differs.

    Reported at most once a second.

    Attributes:
        address: the other end of the connection, as `basp://HOST:PORT`.
        reason: the difference, and what to do.
    """

    address: str
    reason: str


@dataclass(frozen=True, slots=True)
class AddressesChanged:
    """The node addresses of a name or a file have changed.

    Attributes:
        source: as it was given to `join` or `connect`, such as `dns://NAME:PORT`.
        added: addresses that are dialed from now on.
        removed: addresses that are no longer dialed; an established link stays.
    """

    source: str
    added: tuple[str, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LookUpFailed:
    """The look-up of a name or a file failed; its last result stays valid.

    Reported once until it succeeds again.
    """

    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """A worker process is linked and can be spawned on."""

    name: str
    node_id: bytes
    pid: int


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """A worker process ended, and its actors with it; another one will take its place."""

    name: str
    node_id: bytes
    pid: int
    reason: str
