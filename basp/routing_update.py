"""The payload of a routing update: path vectors with vector timestamps.

A CBOR array ``[announced, withdrawn]``:

========= ===========================================================================
announced ``[[path, stamps], …]``: ``path`` is the nodes from the sender (first) to the
          destination (last), ``stamps`` the sequence number of each of them, as many
withdrawn ``[destination, …]``: the sender has no path there any more
========= ===========================================================================

A node raises its own sequence number with each change of its links, so of two
vectors with the same path the later one is known, also when it came first.
"""

from dataclasses import dataclass
from typing import Final, NoReturn

from basp.errors import MalformedPayload
from basp.node_id import NODE_ID_SIZE, NodeId, node_id_text
from basp.plain_cbor import is_natural, read_plain, write_plain

__all__ = ["PATH_LIMIT", "UPDATE_LIMIT", "PathVector", "read_update", "write_update"]

#: Nodes on a path, the first and last included. Longer paths would cost more in
#: forwarding than any cluster of people's making needs.
PATH_LIMIT: Final = 16
#: Destinations in one update; a cluster of that size needs another protocol.
UPDATE_LIMIT: Final = 65_536


@dataclass(frozen=True, slots=True)
class PathVector:
    """A way to ``path[-1]``, beginning with the node that told it."""

    path: tuple[NodeId, ...]
    stamps: tuple[int, ...]


def write_update(announced: list[PathVector], withdrawn: list[NodeId]) -> bytes:
    """Write the payload of a routing update."""
    vectors = [[list(vector.path), list(vector.stamps)] for vector in announced]
    return write_plain([vectors, withdrawn])


def read_update(peer: NodeId, payload: bytes) -> tuple[list[PathVector], list[NodeId]]:
    """Read what ``peer`` announced and withdrew.

    Raises:
        MalformedPayload: the payload has another shape, or a path that does not begin with
            the peer, is too long, or visits a node twice.
    """
    content = read_plain(payload)
    if type(content) is not list or len(content) != 2:
        _refuse(peer, "it must be [announced, withdrawn]")
    announced, withdrawn = content
    if type(announced) is not list or type(withdrawn) is not list:
        _refuse(peer, "announced and withdrawn must be arrays")
    if len(announced) + len(withdrawn) > UPDATE_LIMIT:
        _refuse(peer, f"{len(announced) + len(withdrawn):,} entries exceed {UPDATE_LIMIT:,}")
    for destination in withdrawn:
        if not _is_node(destination):
            _refuse(peer, "withdrawn must hold node ids")
    return [_read_vector(peer, item) for item in announced], withdrawn


def _read_vector(peer: NodeId, item: object) -> PathVector:
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
    return PathVector(tuple(path), tuple(stamps))


def _is_node(value: object) -> bool:
    return type(value) is bytes and len(value) == NODE_ID_SIZE


def _refuse(peer: NodeId, problem: str) -> NoReturn:
    msg = f"routing update of node {node_id_text(peer)}: {problem}"
    raise MalformedPayload(msg)
