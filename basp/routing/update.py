"""The payload of a routing update: path vectors, and what helps to know what is lost.

A CBOR array ``[announced, withdrawn, cuts, statements, names]``; items that follow are of a
later release and ignored, items that are absent count as empty:

========== ==========================================================================
announced  ``[[path, stamps], …]``: ``path`` is the nodes from the sender (first) to the
           destination (last), ``stamps`` the sequence number of each of them, as many
withdrawn  ``[destination, …]``: the sender has no path there any more
cuts       ``[[node, neighbor, stamp], …]``: ``node`` has no link to ``neighbor`` since
           its ``stamp``, so paths with that link and an older stamp are dead
statements ``[[node, stamp, neighbors, seeking, missing, beyond], …]``: query and reply
           of the diffusing computation, see :mod:`callboard.basp.routing.diffusion`
names      ``[name, …]``: what the destinations of ``announced`` call themselves, in its
           order, for people; empty where it is not known, or none at all
========== ==========================================================================

A node raises its own sequence number with each change of its links and each statement,
so of two vectors with the same path, and of two statements of one node, the later one is
known, also when it came first. A stamp that is far ahead of the one known is refused. A node
that reads in its own name what it did not state takes a newer stamp than that, and says what
is true.
"""

from collections.abc import Collection, Generator, Sequence
from typing import Any, Final, NamedTuple, NoReturn, cast

from callboard.basp.cbor.plain import (
    is_natural,
    read_plain,
    read_plain_in_pieces,
    write_plain,
)
from callboard.basp.errors import MalformedPayload
from callboard.basp.node_id import NO_NODE, NODE_ID_SIZE, NodeId, node_id_text
from callboard.support.dataclass import dataclass

#: Nodes on a path, the first and last included. Longer paths would cost more in
#: forwarding than any cluster of people's making needs.
PATH_LIMIT: Final = 16
#: Destinations in one update; a cluster of that size needs another protocol.
UPDATE_LIMIT: Final = 65_536
#: Bytes of an update that is read in parts.
LARGE_UPDATE: Final = 65_536

# Paths, withdrawals and cuts in such a part, and statements.
_PART: Final = 512
_PART_STATEMENTS: Final = 16

#: Characters of a name in an update; a node with a longer one has to be asked for it.
NAME_LIMIT: Final = 256

#: What is ahead of a node's own stamp, or the latest known one, by more is not that node's.
STAMP_LEAP: Final = 1 << 32

_NOTHING_ELSE: Final = b"\x80\x80\x80"


@dataclass(frozen=True, slots=True)
class PathVector:
    """A way to ``path[-1]``, beginning with the node that told it."""

    path: tuple[NodeId, ...]
    stamps: tuple[int, ...]


class Cut(NamedTuple):
    """``node`` has had no link to ``neighbor`` since its sequence number ``stamp``."""

    node: NodeId
    neighbor: NodeId
    stamp: int


@dataclass(frozen=True, slots=True)
class Statement:
    """What one node lacks, and which nodes to ask next; the one with the highest stamp holds.

    Attributes:
        node: who states it.
        stamp: its sequence number.
        neighbors: all its neighbors then.
        seeking: destinations it lost its last path to and is active for.
        missing: others it has no path to either, because other nodes seek them.
        beyond: such that its path is too long to be told on.
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
        """Node ids that it takes to write it."""
        return 1 + sum(map(len, _sets(self)))


class Update(NamedTuple):
    """A routing update that was read; ``names`` are those of the destinations announced."""

    announced: list[PathVector]
    withdrawn: list[NodeId]
    cuts: list[Cut]
    statements: list[Statement]
    names: list[str]


def write_vector(path: tuple[NodeId, ...], stamps: tuple[int, ...]) -> bytes:
    """Write one path vector, for :func:`join_update`."""
    return write_plain((path, stamps))


def write_name(name: str) -> bytes:
    """Write the name of a vector's destination, for :func:`join_update`."""
    return write_plain(name if len(name) <= NAME_LIMIT else "")


def write_rest(
    withdrawn: Collection[NodeId], cuts: Collection[Cut], statements: Collection[Statement]
) -> bytes:
    """Write what stands between vectors and names, for :func:`join_update`."""
    if not (withdrawn or cuts or statements):
        return _NOTHING_ELSE
    said = [
        [each.node, each.stamp, *map(sorted, _sets(each))]  # the same bytes each time
        for each in statements
    ]
    return b"".join(map(write_plain, (list(withdrawn), list(map(tuple, cuts)), said)))


def join_update(vectors: Sequence[bytes], rest: bytes, names: Sequence[bytes]) -> bytes:
    """Put a payload together: what goes to many neighbors is written once for all of them."""
    heads = _array_head(len(vectors)), _array_head(len(names))
    return b"".join((_array_head(5), heads[0], *vectors, rest, heads[1], *names))


def _array_head(count: int) -> bytes:
    """Return the head of a CBOR array, RFC 8949 section 3."""
    if count < 24:
        return bytes((0x80 | count,))
    return b"\x9a" + count.to_bytes(4, "big")


def _sets(said: Statement) -> tuple[frozenset[NodeId], ...]:
    """Return the four sets of a statement in wire order."""
    return said.neighbors, said.seeking, said.missing, said.beyond


def read_update(peer: NodeId, payload: bytes) -> Update:
    """Read what ``peer`` tells.

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
    """Read an update in parts, in their order; of a large one there is nothing at first.

    Raises:
        RemoteProtocolError: as :func:`read_update`, when it comes to what is wrong.
    """
    if len(payload) <= LARGE_UPDATE:
        yield _read_entries(peer, _lists_of(peer, read_plain(payload)))
        return
    content = yield from read_plain_in_pieces(payload)
    *entries, statements, names = _lists_of(peer, content)
    for at in range(0, max(map(len, entries)), _PART):
        announced, withdrawn, cuts = (part[at : at + _PART] for part in entries)
        yield _read_entries(peer, [announced, withdrawn, cuts, [], names[at : at + _PART]])
    for at in range(0, len(statements), _PART_STATEMENTS):
        said = statements[at : at + _PART_STATEMENTS]
        yield _read_entries(peer, [[], [], [], said, []])


def _lists_of(peer: NodeId, content: Any) -> list[list[Any]]:
    """Return the five lists of an update."""
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
        _refuse(peer, "names must be as many as vectors")
    return parts


def _read_entries(peer: NodeId, lists: list[list[Any]]) -> Update:
    """Read the entries of an update."""
    announced, withdrawn, cuts, statements, names = lists
    if not all(map(_is_node, withdrawn)):
        _refuse(peer, "withdrawn must hold node ids")
    if not all(map(_is_name, names)):
        _refuse(peer, f"names must be texts of {NAME_LIMIT} characters")
    return Update(
        [_read_vector(peer, item) for item in announced],
        withdrawn,
        [_read_cut(peer, item) for item in cuts],
        [_read_statement(peer, item) for item in statements],
        names or [""] * len(announced),
    )


def _read_vector(peer: NodeId, item: object) -> PathVector:
    """Read ``[path, stamps]``."""
    if type(item) is not list or len(item) != 2:
        _refuse(peer, "a vector must be [path, stamps]")
    path, stamps = item
    if type(path) is not list or type(stamps) is not list or len(path) != len(stamps):
        _refuse(peer, "path and stamps must be arrays of one length")
    if not 1 <= len(path) <= PATH_LIMIT:
        _refuse(peer, f"path has {len(path)} nodes, 1-{PATH_LIMIT} are allowed")
    if not all(map(_is_node, path)) or not all(map(is_natural, stamps)):
        _refuse(peer, "a path must hold node ids, stamps must be 64-bit numbers")
    if path[0] != peer or len(set(path)) != len(path):
        _refuse(peer, "a path must begin with the sender and visit no node twice")
    path[0] = peer  # one object for all paths: there may be very many
    return PathVector(tuple(path), tuple(stamps))


def _read_cut(peer: NodeId, item: Any) -> Cut:
    """Read ``[node, neighbor, stamp]``."""
    if type(item) is not list or len(item) != 3:
        _refuse(peer, "a cut must be [node, neighbor, stamp]")
    node, neighbor, stamp = item
    if not _is_node(node) or not _is_node(neighbor) or not is_natural(stamp):
        _refuse(peer, "a cut must hold two node ids and a 64-bit number")
    return Cut(node, neighbor, stamp)


def _read_statement(peer: NodeId, item: Any) -> Statement:
    """Read a statement of one node."""
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
    """Return whether a value is the id of a node; frames to `NO_NODE` end links."""
    return type(value) is bytes and len(value) == NODE_ID_SIZE and value != NO_NODE


def _is_name(value: object) -> bool:
    """Return whether a value is a name of allowed length."""
    return type(value) is str and len(value) <= NAME_LIMIT


def _refuse(peer: NodeId, problem: str) -> NoReturn:
    """Refuse an update of a neighbor."""
    msg = f"routing update of node {node_id_text(peer)}: {problem}"
    raise MalformedPayload(msg)
