"""The table that keeps each pair of nodes at one link, however many connections they make.

For each peer one link at most holds the pair: it may establish or is established. All
others of that peer are parked behind it, in the order they came. When the holder ends, the
next one becomes the holder at once, so that no gap lets a stranger in between.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from basp.node_id import NodeId

if TYPE_CHECKING:
    from basp.link import Link

__all__ = ["PARKED_LIMIT", "LinkPairs"]

#: Connections of one pair that may wait; a node that dials more often has gone mad, and those
#: that wait already keep the pair connected. More are dropped as redundant.
PARKED_LIMIT: Final = 32


@dataclass(slots=True)
class _Pair:
    holder: "Link"
    parked: "list[Link]" = field(default_factory=list)


class LinkPairs:
    """Links of one node by peer. Owned by the node's driver, used by its links only."""

    __slots__ = ("_pairs",)

    def __init__(self) -> None:
        """Make an empty table."""
        self._pairs: dict[NodeId, _Pair] = {}

    def __len__(self) -> int:
        """Count the peers that have a link or a handshake."""
        return len(self._pairs)

    def holder(self, peer: NodeId) -> "Link | None":
        """Return the link that holds the pair, established or not yet."""
        pair = self._pairs.get(peer)
        return None if pair is None else pair.holder

    def parked(self, peer: NodeId) -> "tuple[Link, ...]":
        """Return the links that wait for the holder's end."""
        pair = self._pairs.get(peer)
        return () if pair is None else tuple(pair.parked)

    def acquire(self, peer: NodeId, link: "Link") -> bool:
        """Make ``link`` the holder of the pair if there is no other; tell whether it is."""
        pair = self._pairs.setdefault(peer, _Pair(link))
        return pair.holder is link

    def park(self, peer: NodeId, link: "Link") -> bool:
        """Queue ``link`` behind the holder; False when the queue is full."""
        parked = self._pairs[peer].parked
        if link not in parked:
            if len(parked) >= PARKED_LIMIT:
                return False
            parked.append(link)
        return True

    def release(self, peer: NodeId, link: "Link") -> "Link | None":
        """Forget ``link``; return the parked one that holds the pair instead of it, if any."""
        pair = self._pairs.get(peer)
        if pair is None:
            return None
        if pair.holder is not link:
            if link in pair.parked:
                pair.parked.remove(link)
            return None
        if not pair.parked:
            del self._pairs[peer]
            return None
        pair.holder = pair.parked.pop(0)
        return pair.holder
