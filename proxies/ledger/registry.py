"""The nodes that hold proxies of this node's actors, and are notified when one ends. Pure.

A node that learns the address of an actor here announces its proxy. When the actor ends, each
such node gets a down message, and gets it again after each change of the path to it, until it
releases the proxy. So no node misses the end, and the number of an actor is not given to
another actor while a node still has a proxy with it. An announce for an actor that does not
exist is answered with down at once.

Announces and releases carry *sightings* (see `callboard.proxies.ledger.ref_counts`), because a
frame may overtake another one while a path changes: a release older than the latest announce is
ignored. A release of everything up to some sightings, a sweep, ends the effect of earlier lost
or late frames. Older announces that arrive soon after a sweep are not applied immediately.
Normally the node releases each of them. If it does not, the sweep was altered on its way, and
the announces are applied.

A node may hold a million proxies, so any operation on all of them is an iterator, which its
driver spreads over turns.
"""

from collections.abc import Callable, Collection, Generator, Iterator, KeysView
from dataclasses import field
from typing import Final

from callboard.actors.exit_reason import ExitReason
from callboard.proxies.link.limits import PROXIES
from callboard.support.dataclass import dataclass

#: The exit reason of an actor, and the text of its error.
Ending = tuple[ExitReason, str]

_UNKNOWN: Final[Ending] = (ExitReason.NOT_FOUND, "")  # shared, as there may be very many

#: Ended actors whose error text is kept for repeated notifications, at most 16 kB each; the
#: text of further ones is sent once.
DETAILS_LIMIT: Final = 10_000


@dataclass(eq=False, repr=False)
class HolderRegistry:
    """The nodes that hold proxies, by actor number."""

    #: Return whether an actor with a number exists.
    _is_alive: Callable[[int], bool]
    #: Sightings by node, by number.
    _holders: dict[int, dict[bytes, int]] = field(default_factory=dict)
    #: Numbers of ended actors that some node holds.
    _ended: dict[int, Ending] = field(default_factory=dict)
    _held_by: dict[bytes, set[int]] = field(default_factory=dict)
    #: The latest sightings that a node recently released as a whole.
    _swept: dict[bytes, int] = field(default_factory=dict)
    #: Sightings that arrived late after that, by number.
    _late: dict[bytes, dict[int, int]] = field(default_factory=dict)
    #: The late sightings that are being accepted.
    _settling: dict[bytes, dict[int, int]] = field(default_factory=dict)

    @property
    def numbers(self) -> KeysView[int]:
        """Numbers that some node holds proxies of; a live view."""
        return self._holders.keys()

    def count(self, node: bytes) -> int:
        """Return the number of proxies that a node holds."""
        return len(self._held_by.get(node, ()))

    def announced(
        self, node: bytes, number: int, sightings: int, limit: int = PROXIES
    ) -> Ending | None:
        """Record an announce; return the end to report to the node if the actor is dead.

        A node that already holds `limit` proxies gets an end for any other.
        """
        if sightings <= self._swept.get(node, -1):
            late = self._late[node]
            if number in late or len(late) < limit:
                late[number] = max(sightings, late.get(number, 0))
            return None
        holders = self._holders.get(number)
        if holders is None or node not in holders:
            if self.count(node) >= limit:
                text = f"the node holds {limit:,} proxies already"
                return ExitReason.UNREACHABLE, text
            if holders is None:
                holders = self._holders[number] = {}
            self._held_by.setdefault(node, set()).add(number)
        holders[node] = max(sightings, holders.get(node, 0))
        if self._is_alive(number):
            return None
        return self._ended.setdefault(number, _UNKNOWN)

    def released(self, node: bytes, number: int, sightings: int) -> None:
        """Remove a proxy, unless the node has announced it again since the release was sent."""
        holders = self._holders.get(number)
        if holders is not None and node in holders and holders[node] <= sightings:
            self._forget(node, number)
        for aside in (self._late, self._settling):
            late = aside.get(node, {})
            if late.get(number, sightings + 1) <= sightings:
                del late[number]

    def swept(self, node: bytes, sightings: int) -> bool:
        """Record that a node released everything up to some sightings; `sweep` does the work.

        Returns whether to schedule :meth:`settle` for the time when no late frame can arrive.
        """
        is_first = node not in self._late
        self._late.setdefault(node, {})
        self._swept[node] = max(sightings, self._swept.get(node, -1))
        return is_first

    def sweep(self, node: bytes, sightings: int) -> Iterator[int]:
        """Remove all proxies that a node announced up to some sightings, late ones included."""
        for number in [*self._held_by.get(node, ()), *self._late.get(node, ())]:
            self.released(node, number, sightings)
            yield number

    def settle(self, node: bytes, limit: int = PROXIES) -> Iterator[tuple[int, Ending]]:
        """Apply the late announces that the node did not release; yield the ends to report."""
        self._swept.pop(node, None)
        late = self._settling[node] = self._late.pop(node, {})
        for number in list(late):
            sighting = late.pop(number, None)  # the node may release it between two steps
            ending = None if sighting is None else self.announced(node, number, sighting, limit)
            if ending is not None:
                yield number, ending
        if not self._settling.get(node):
            self._settling.pop(node, None)

    def ended(self, number: int, reason: ExitReason, detail: str) -> Collection[bytes]:
        """Record the end of an actor; return the nodes to notify."""
        holders = self._holders.get(number)
        if holders is None:
            return ()
        is_kept = len(self._ended) < DETAILS_LIMIT
        self._ended[number] = (reason, detail if is_kept else "")
        return list(holders)

    def owed(self, node: bytes) -> Generator[tuple[int, ExitReason, str], None, None]:
        """Yield the ends to report again to a node, because the path to it has changed."""
        numbers = self._held_by.get(node)
        if not numbers or not self._ended:
            return
        fewer = min(numbers, self._ended.keys(), key=len)
        for number in list(fewer):
            if number in self._ended and self.holds(node, number):
                yield (number, *self._ended[number])

    def node_lost(self, node: bytes) -> Iterator[int]:
        """Remove all proxies of a lost node, which announces its refs again if it returns.

        It then uses new sightings, so a removal that is still running does not affect its new
        announces.
        """
        for aside in (self._swept, self._late, self._settling):
            aside.pop(node, None)
        entries = [
            (number, self._holders[number][node]) for number in self._held_by.get(node, ())
        ]
        for number, sightings in entries:
            self.released(node, number, sightings)
            yield number

    def is_held(self, number: int) -> bool:
        """Return whether some node holds a proxy: the number must not be reused."""
        return number in self._holders

    def holds(self, node: bytes, number: int) -> bool:
        """Return whether a node holds a proxy of that actor."""
        return node in self._holders.get(number, ())

    def _forget(self, node: bytes, number: int) -> None:
        """Remove a proxy of a node; remove an ended actor with its last proxy."""
        holders = self._holders[number]
        del holders[node]
        if not holders:
            del self._holders[number]
            self._ended.pop(number, None)
        numbers = self._held_by[node]
        numbers.remove(number)
        if not numbers:
            del self._held_by[node]
