"""Which nodes hold proxies of our actors, and who is to be told of an end. Pure.

A node that learns the address of one of our actors announces its proxy here; when the actor
ends, every announced node is told by a down message, and again when the path to it changes,
until it releases the proxy. So a down is never missed, and the number of an actor is not
given to another one while some node takes it for the first. An announce for an actor that is
not there is answered with down at once.

Announces and releases carry *sightings* (see `callboard.proxies.ledger.ref_counts`), since
one may overtake another while a path changes: the entry stays when a release is older than the
latest announce. A release of everything up to some sightings, a sweep, ends what was lost or
came late before. What still comes late soon after it is put aside; if the node takes nothing of
that back, then the sweep was altered on its way, and the announces hold.

A node may hold a million proxies: what concerns all of them is an iterator, for its driver to
go through in turns.
"""

from collections.abc import Callable, Collection, Generator, Iterator, KeysView
from dataclasses import field
from typing import Final

from callboard.actors.exit_reason import ExitReason
from callboard.proxies.link.limits import PROXIES
from callboard.support.dataclass import dataclass

#: Why an actor ended, and the text of the error.
Ending = tuple[ExitReason, str]

_UNKNOWN: Final[Ending] = (ExitReason.NOT_FOUND, "")  # one for all: there may be very many

#: Ended actors with holders whose error text is kept for being told again, 16 kB each at most;
#: those of further ones are told once.
DETAILS_LIMIT: Final = 10_000


@dataclass(eq=False, repr=False)
class HolderRegistry:
    """The nodes that hold proxies, by actor number."""

    #: Tells whether there is an actor with a number.
    _is_alive: Callable[[int], bool]
    #: Sightings by node, by number.
    _holders: dict[int, dict[bytes, int]] = field(default_factory=dict)
    #: Numbers of ended actors that some node holds.
    _ended: dict[int, Ending] = field(default_factory=dict)
    _held_by: dict[bytes, set[int]] = field(default_factory=dict)
    #: Sightings up to which a node released everything, a while ago at most.
    _swept: dict[bytes, int] = field(default_factory=dict)
    #: Sightings that came late after that, by number.
    _late: dict[bytes, dict[int, int]] = field(default_factory=dict)
    #: What of that is being believed.
    _settling: dict[bytes, dict[int, int]] = field(default_factory=dict)

    @property
    def numbers(self) -> KeysView[int]:
        """The numbers that some node holds proxies of; a view, as they are at any time."""
        return self._holders.keys()

    def count(self, node: bytes) -> int:
        """Return how many proxies a node holds."""
        return len(self._held_by.get(node, ()))

    def announced(
        self, node: bytes, number: int, sightings: int, limit: int = PROXIES
    ) -> Ending | None:
        """Take an announce; returns what to tell the node if the actor is not there.

        So it is told, too, when it holds `limit` other proxies already.
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
        """Forget that a node holds a proxy, unless it announced it again since."""
        holders = self._holders.get(number)
        if holders is not None and node in holders and holders[node] <= sightings:
            self._forget(node, number)
        for aside in (self._late, self._settling):
            late = aside.get(node, {})
            if late.get(number, sightings + 1) <= sightings:
                del late[number]

    def swept(self, node: bytes, sightings: int) -> bool:
        """Take note that a node released all up to some sightings; :meth:`sweep` does that.

        Returns whether to call :meth:`settle` when nothing comes late any more.
        """
        is_first = node not in self._late
        self._late.setdefault(node, {})
        self._swept[node] = max(sightings, self._swept.get(node, -1))
        return is_first

    def sweep(self, node: bytes, sightings: int) -> Iterator[int]:
        """Forget all that a node announced up to some sightings, and what came of it late."""
        for number in [*self._held_by.get(node, ()), *self._late.get(node, ())]:
            self.released(node, number, sightings)
            yield number

    def settle(self, node: bytes, limit: int = PROXIES) -> Iterator[tuple[int, Ending]]:
        """Believe what came late and was not taken back; gives what to tell the node."""
        self._swept.pop(node, None)
        late = self._settling[node] = self._late.pop(node, {})
        for number in list(late):
            seen = late.pop(number, None)  # it may be taken back meanwhile
            ending = None if seen is None else self.announced(node, number, seen, limit)
            if ending is not None:
                yield number, ending
        if not self._settling.get(node):
            self._settling.pop(node, None)

    def ended(self, number: int, reason: ExitReason, detail: str) -> Collection[bytes]:
        """An actor ended; returns the nodes to tell."""
        holders = self._holders.get(number)
        if holders is None:
            return ()
        is_kept = len(self._ended) < DETAILS_LIMIT
        self._ended[number] = (reason, detail if is_kept else "")
        return list(holders)

    def owed(self, node: bytes) -> Generator[tuple[int, ExitReason, str], None, None]:
        """Give what to tell a node again because the path to it changed."""
        held = self._held_by.get(node)
        if not held or not self._ended:
            return
        fewer = min(held, self._ended.keys(), key=len)
        for number in list(fewer):
            if number in self._ended and self.holds(node, number):
                yield (number, *self._ended[number])

    def node_lost(self, node: bytes) -> Iterator[int]:
        """Forget a node: it announces again what it still holds if it comes back.

        With fresh sightings then, so that what it holds again is not forgotten.
        """
        for aside in (self._swept, self._late, self._settling):
            aside.pop(node, None)
        held = [(number, self._holders[number][node]) for number in self._held_by.get(node, ())]
        for number, sightings in held:
            self.released(node, number, sightings)
            yield number

    def is_held(self, number: int) -> bool:
        """Return True while some node holds a proxy: the number must not be used again."""
        return number in self._holders

    def holds(self, node: bytes, number: int) -> bool:
        """Return True while a node holds a proxy of that actor."""
        return node in self._holders.get(number, ())

    def _forget(self, node: bytes, number: int) -> None:
        """Forget that a node holds a proxy, and an ended actor with its last holder."""
        holders = self._holders[number]
        del holders[node]
        if not holders:
            del self._holders[number]
            self._ended.pop(number, None)
        held = self._held_by[node]
        held.remove(number)
        if not held:
            del self._held_by[node]
