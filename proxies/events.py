"""What a node tells about links and other nodes, as it happens."""

from dataclasses import field

from callboard.support.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class LinkUp:
    """A link to a neighbor is established; `node.events()` tells nothing of tools."""

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
    """A node came into reach; `hops` is the number of links to it."""

    node_id: bytes
    name: str
    hops: int
    is_tool: bool = field(default=False, repr=False)


@dataclass(frozen=True, slots=True)
class NodeDown:
    """No path leads to a node any more; `lost` messages to it are lost or unconfirmed."""

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
    """Frames came over a link of no path to the node that they name; told once a second.

    Attributes:
        node_id: the node that the latest of them named as its source.
        peer: the neighbor that brought it.
        count: how many since the last such event.
    """

    node_id: bytes
    peer: bytes
    count: int


@dataclass(frozen=True, slots=True)
class PermissionRefused:
    """A peer requested something without the right; reported at most once a second.

    Attributes:
        identity: what the peer has proven to be.
        node_id: the peer.
        right: the right that it lacks, as in `Rights(…)`.
        name: what it wanted it for.
        count: refusals since the last such event, of all peers; this is the latest.
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
        wire: what the wire is called, as `websocket`.
        name: what the peer calls itself.
        address: what was dialed, or where the connection came from.
        endpoint: the id of its endpoint, where its wire has such.
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
        is_wanted: whether nobody dials it any more.
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
    """Event: a limit closed connections at once; told at most once a second.

    Attributes:
        count: how many since the last such event.
        reason: which limit the latest of them met.
    """

    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class LinkRefused:
    """A node may not be linked with this one: secret, version or application differ.

    Told at most once a second.

    Attributes:
        address: the other end of the connection, as `basp://HOST:PORT`.
        reason: what differs, and what to do.
    """

    address: str
    reason: str


@dataclass(frozen=True, slots=True)
class AddressesChanged:
    """Event: a name or a file has other addresses of nodes than before.

    Attributes:
        source: as it was given to `join` or `connect`, such as `dns://NAME:PORT`.
        added: addresses that are dialed from now on.
        removed: addresses that are dialed no more; a link that stands stays.
    """

    source: str
    added: tuple[str, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LookUpFailed:
    """Event: a name or a file does not say where nodes are; what it said last holds.

    Told once until it works again.
    """

    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class CertificatesReplaced:
    """Files of certificates, keys or revocation lists have changed, and were read again.

    New connections use them; those that stand keep the certificates that they began with.
    """

    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CertificatesRefused:
    """A file of certificates, keys or revocation lists is of no use; the last good ones hold.

    Told once until they change, also of a revocation list that has run out.
    """

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
