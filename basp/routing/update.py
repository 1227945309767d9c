"""The payload of a routing update: path vectors, and statements about lost destinations.

A CBOR array ``[announced, withdrawn, cuts, statements, names]``. Missing items count as empty;
more items belong to a later release and are ignored:

========== ==========================================================================
announced  ``[[path, stamps], …]``: ``path`` has the nodes from the sender (first) to the
           destination (last), ``stamps`` the sequence number of each of them
withdrawn  ``[destination, …]``: the sender no longer has a path to the destination
cuts       ``[[node, neighbor, stamp], …]``: ``node`` has no link to ``neighbor`` since
           its ``stamp``, so paths with that link and an older stamp are dead
statements ``[[node, stamp, neighbors, seeking, missing, beyond], …]``: query and reply
           of the diffusing computation, see :mod:`callboard.basp.routing.diffusion`
names      ``[name, …]``: names of the destinations of ``announced``, in the same order,
           for people; a text is empty if the name is unknown, the array if all are
========== ==========================================================================

A node increases its sequence number with each change of its links and with each statement.
So the newer one of two vectors with the same path, or of two statements of one node, is known
in any order of arrival. A stamp far ahead of the last known one is refused. If a node
receives a statement in its own name that it did not make, it makes a true one with a newer
stamp.
"""

from collections.abc import Collection, Generator, Sequence
from typing import Any, Final, NamedTuple, NoReturn, cast

from callboard.basp.errors import MalformedPayload
from callboard.basp.node_id import NO_NODE, NODE_ID_SIZE, NodeId, node_id_text
from callboard.cbor.plain import is_natural, read_plain, read_plain_in_pieces, write_plain
from callboard.support.dataclass import dataclass

#: Nodes on a path, including the first and the last. Real clusters have shorter paths, and
#: forwarding on longer ones would be slow.
PATH_LIMIT: Final = 16
#: Entries in one update; a cluster of that size needs another protocol.
UPDATE_LIMIT: Final = 65_536
#: Larger updates are read in parts.
LARGE_UPDATE: Final = 65_536

# Paths, withdrawals and cuts in one part.
_PART: Final = 512
# Statements in one part.
_PART_STATEMENTS: Final = 16

#: Characters of a name in an update; the name of a node with a longer one is requested from it.
NAME_LIMIT: Final = 256

#: Limit of the step from the latest known stamp of a node to its next one. A larger step is not
#: from this node: it makes one step for each change.
STAMP_LEAP: Final = 1 << 32

_NOTHING_ELSE: Final = b"\x80\x80\x80"


@dataclass(frozen=True, slots=True)
class PathVector:
    """A path to ``path[-1]``, which starts at the neighbor that announced it."""

    path: tuple[NodeId, ...]
    stamps: tuple[int, ...]


class Cut(NamedTuple):
    """``node`` has had no link to ``neighbor`` since its sequence number ``stamp``."""

    node: NodeId
    neighbor: NodeId
    stamp: int


@dataclass(frozen=True, slots=True)
class Statement:
    """The destinations that one node lacks, and its neighbors; the newest statement is valid.

    Attributes:
        node: the node that makes the statement.
        stamp: the sequence number of the statement.
        neighbors: all its neighbors at this time.
        seeking: destinations whose last path it lost, and for which it is active.
        missing: other destinations without a path that other nodes seek.
        beyond: destinations whose path is too long to be announced.
    """

    node: NodeId
    stamp: int
    neighbors: frozenset[NodeId] = frozenset()
    seeking: frozenset[NodeId] = frozenset()
    missing: frozenset[NodeId] = frozenset()
    beyond: frozenset[NodeId] = frozenset()

    def lacks(self, destination: NodeId) -> bool:
        """Return whether the node has no path to ``destination``."""
        return destination in self.seeking or destination in self.missing

    @property
    def size(self) -> int:
        """Number of node ids in the encoded statement."""
        return 1 + sum(map(len, _sets(self)))


class Update(NamedTuple):
    """A decoded routing update; ``names`` has the names of the announced destinations."""

    announced: list[PathVector]
    withdrawn: list[NodeId]
    cuts: list[Cut]
    statements: list[Statement]
    names: list[str]


def write_vector(path: tuple[NodeId, ...], stamps: tuple[int, ...]) -> bytes:
    """Encode one path vector, for :func:`join_update`."""
    return write_plain((path, stamps))


def write_name(name: str) -> bytes:
    """Encode the name of a vector's destination, for :func:`join_update`."""
    return write_plain(name if len(name) <= NAME_LIMIT else "")


def write_rest(
    withdrawn: Collection[NodeId], cuts: Collection[Cut], statements: Collection[Statement]
) -> bytes:
    """Encode the items between vectors and names, for :func:`join_update`."""
    if not (withdrawn or cuts or statements):
        return _NOTHING_ELSE
    items = [
        # Sorted, so that equal statements have equal bytes.
        [statement.node, statement.stamp, *map(sorted, _sets(statement))]
        for statement in statements
    ]
    return b"".join(map(write_plain, (list(withdrawn), list(map(tuple, cuts)), items)))


def join_update(vectors: Sequence[bytes], rest: bytes, names: Sequence[bytes]) -> bytes:
    """Join encoded items to a payload; an item for many neighbors is encoded only once."""
    heads = _array_head(len(vectors)), _array_head(len(names))
    return b"".join((_array_head(5), heads[0], *vectors, rest, heads[1], *names))


def _array_head(count: int) -> bytes:
    """Return the head of a CBOR array, RFC 8949 section 3."""
    if count < 24:
        return bytes((0x80 | count,))
    return b"\x9a" + count.to_bytes(4, "big")


def _sets(statement: Statement) -> tuple[frozenset[NodeId], ...]:
    """Return the four sets of a statement in wire order."""
    return statement.neighbors, statement.seeking, statement.missing, statement.beyond


def read_update(peer: NodeId, payload: bytes) -> Update:
    """Decode an update of ``peer``.

    Raises:
        MalformedPayload: the payload has another shape, or a path that does not begin with
            the peer, is too long, or visits a node twice.
    """
    lists: list[list[Any]] = [[], [], [], [], []]
    for update in read_parts(peer, payload):
        for part, more in zip(lists, cast("tuple[list[Any], ...]", update or ()), strict=False):
            part += more
    return Update(*lists)


def read_parts(peer: NodeId, payload: bytes) -> Generator[Update | None, None, None]:
    """Yield an update in parts, in order; None while a large update is being decoded.

    Raises:
        RemoteProtocolError: as for :func:`read_update`, when the malformed part is reached.
    """
    if len(payload) <= LARGE_UPDATE:
        yield _read_entries(peer, _lists_of(peer, read_plain(payload)))
        return
    content = yield from read_plain_in_pieces(payload)
    *entries, statements, names = _lists_of(peer, content)
    for start in range(0, max(map(len, entries)), _PART):
        part = slice(start, start + _PART)
        announced, withdrawn, cuts = (items[part] for items in entries)
        yield _read_entries(peer, [announced, withdrawn, cuts, [], names[part]])
    for start in range(0, len(statements), _PART_STATEMENTS):
        part = slice(start, start + _PART_STATEMENTS)
        yield _read_entries(peer, [[], [], [], statements[part], []])


def _lists_of(peer: NodeId, content: Any) -> list[list[Any]]:
    """Check the outer form of an update; return its five lists."""
    if type(content) is not list or len(content) < 2:
        _refuse(peer, "it must be [announced, withdrawn, cuts, statements, names]")
    parts = [*content[:5], [], [], []][:5]
    if not all(type(part) is list for part in parts):
        _refuse(peer, "announced, withdrawn, cuts, statements and names must be arrays")
    *entries, names = parts
    count = sum(map(len, entries))
    if count > UPDATE_LIMIT:
        _refuse(peer, f"{count:,} entries exceed {UPDATE_LIMIT:,}")
    if names and len(names) != len(entries[0]):
        _refuse(peer, f"{len(names):,} names for {len(entries[0]):,} vectors; must be equal")
    return parts


def _read_entries(peer: NodeId, lists: list[list[Any]]) -> Update:
    """Decode the entries of an update."""
    announced, withdrawn, cuts, statements, names = lists
    if not all(map(_is_node, withdrawn)):
        _refuse(peer, "withdrawn must hold node ids")
    if not all(map(_is_name, names)):
        _refuse(peer, f"names must be texts of at most {NAME_LIMIT} characters")
    return Update(
        [_read_vector(peer, item) for item in announced],
        withdrawn,
        [_read_cut(peer, item) for item in cuts],
        [_read_statement(peer, item) for item in statements],
        names or [""] * len(announced),
    )


def _read_vector(peer: NodeId, item: object) -> PathVector:
    """Decode ``[path, stamps]``."""
    if type(item) is not list or len(item) != 2:
        _refuse(peer, "a vector must be [path, stamps]")
    path, stamps = item
    if type(path) is not list or type(stamps) is not list or len(path) != len(stamps):
        _refuse(peer, "path and stamps must be arrays of the same length")
    if not 1 <= len(path) <= PATH_LIMIT:
        _refuse(peer, f"path has {len(path)} nodes, 1-{PATH_LIMIT} are allowed")
    if not all(map(_is_node, path)) or not all(map(is_natural, stamps)):
        _refuse(peer, "a path must hold node ids, stamps must be 64-bit numbers")
    if path[0] != peer or len(set(path)) != len(path):
        _refuse(peer, "a path must begin with the sender and visit no node twice")
    path[0] = peer  # all paths share one object, because there may be many thousands
    return PathVector(tuple(path), tuple(stamps))


def _read_cut(peer: NodeId, item: Any) -> Cut:
    """Decode ``[node, neighbor, stamp]``."""
    if type(item) is not list or len(item) != 3:
        _refuse(peer, "a cut must be [node, neighbor, stamp]")
    node, neighbor, stamp = item
    if not _is_node(node) or not _is_node(neighbor) or not is_natural(stamp):
        _refuse(peer, "a cut must hold two node ids and a 64-bit number")
    return Cut(node, neighbor, stamp)


def _read_statement(peer: NodeId, item: Any) -> Statement:
    """Decode the statement of one node."""
    if type(item) is not list or len(item) != 6:
        _refuse(peer, "a statement must be [node, stamp] and four arrays")
    node, stamp, *lists = item
    if not _is_node(node) or not is_natural(stamp):
        _refuse(peer, "a statement must begin with a node id and a 64-bit number")
    for ids in lists:
        if type(ids) is not list or len(ids) > UPDATE_LIMIT or not all(map(_is_node, ids)):
            _refuse(peer, "the arrays of a statement must hold node ids")
    return Statement(node, stamp, *map(frozenset, lists))


def _is_node(value: object) -> bool:
    """Return whether a value is the id of a node.

    `NO_NODE` is not: a frame to it would break the next link, which refuses it.
    """
    return type(value) is bytes and len(value) == NODE_ID_SIZE and value != NO_NODE


def _is_name(value: object) -> bool:
    """Return whether a value is a name of allowed length."""
    return type(value) is str and len(value) <= NAME_LIMIT


def _refuse(peer: NodeId, problem: str) -> NoReturn:
    """Refuse an update from a neighbor."""
    msg = f"routing update of node {node_id_text(peer)}: {problem}"
    raise MalformedPayload(msg)
