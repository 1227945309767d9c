"""Which nodes hold proxies of our actors, and who is to be told of an end. Pure.

A node that learns the address of one of our actors announces its proxy here; when the actor
ends, every announced node gets one down message. An announce for an actor that is not there is
answered with down at once, so whoever watches a dead actor learns it. A release takes the entry
back.

Announce and release of one node come in order, and a node announces again when it learns an
address that it had released; so a ref that is under way while its proxy is released only
leads to one more announce.
"""

from collections import Counter
from collections.abc import Callable, Collection


class HolderRegistry:
    """The nodes that hold proxies, by actor number."""

    __slots__ = ("_counts", "_holders", "_is_alive")

    def __init__(self, is_alive: Callable[[int], bool]) -> None:
        """Make an empty registry.

        Args:
            is_alive: tells whether there is an actor with a number.
        """
        self._is_alive = is_alive
        #: A dict in place of a set: those told of an end are told in one order.
        self._holders: dict[int, dict[bytes, None]] = {}
        self._counts: Counter[bytes] = Counter()

    def count(self, node: bytes) -> int:
        """Return how many proxies a node holds."""
        return self._counts[node]

    def announced(self, node: bytes, number: int) -> bool:
        """Take an announce; False when the actor is dead and the node has to be told so."""
        if not self._is_alive(number):
            return False
        holders = self._holders.setdefault(number, {})
        if node not in holders:
            holders[node] = None
            self._counts[node] += 1
        return True

    def released(self, node: bytes, number: int) -> None:
        """Forget that a node holds a proxy."""
        holders = self._holders.get(number)
        if holders is not None and node in holders:
            del holders[node]
            self._uncount(node)
            if not holders:
                del self._holders[number]

    def ended(self, number: int) -> Collection[bytes]:
        """Return the nodes to tell that an actor ended; each is told once."""
        holders = self._holders.pop(number, ())
        for node in holders:
            self._uncount(node)
        return holders

    def _uncount(self, node: bytes) -> None:
        self._counts[node] -= 1
        if not self._counts[node]:
            del self._counts[node]

    def node_lost(self, node: bytes) -> None:
        """Forget a node: it announces again what it still holds if it comes back."""
        for number in [number for number, holders in self._holders.items() if node in holders]:
            self.released(node, number)

    def is_held(self, number: int) -> bool:
        """Return True while some node holds a proxy: the number must not be used again."""
        return number in self._holders
