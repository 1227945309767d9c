"""Counts of refs to remote actors on one node, and functions to call at an actor's end. Pure.

A node that obtains a ref announces it to the actor's host, and releases it when its last ref is
collected. Paths change, so a release may arrive after a later announce of the same ref, or
never. So each announce carries its *sightings*, the number of refs that this node has obtained
since its start. A release carries the sightings of the announce to withdraw, and a host ignores
a release that is older than its latest announce.

When the path to a host has changed, the node announces all refs to the host's actors again with
new sightings. Then it releases everything up to the old sightings. After that, earlier
announces and releases have no effect, even if they were lost or reordered.
"""

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from callboard.actors.exit_reason import ExitReason

Watcher = Callable[[Any], object]


class RefCount:
    """The record of this node about one remote actor.

    Attributes:
        sightings: number in its announce and its release.
        down: why the actor ended, once known; not set while its node is only out of reach.
        watchers: functions to call at its end, by key.
        unwatched: why this node will not be notified of the end; empty if it will.
    """

    __slots__ = ("down", "sightings", "unwatched", "watchers")

    def __init__(self, sightings: int) -> None:
        """Start with an actor that is assumed to be running, without watchers."""
        self.sightings = sightings
        self.down: tuple[ExitReason, str] | None = None
        self.watchers: dict[object, Watcher] = {}
        self.unwatched = ""

    @property
    def is_watched(self) -> bool:
        """Whether a monitor on this node waits for the actor's end."""
        return bool(self.watchers)

    def watch(self, key: Hashable, watcher: Watcher) -> tuple[ExitReason, str] | None:
        """Add a watcher; return the notification for it if the actor is known to be dead."""
        if self.down is not None:
            return ExitReason.NOT_FOUND, f"it had ended ({self.down[0]})"
        if self.unwatched:
            return ExitReason.UNREACHABLE, self.unwatched
        self.watchers[key] = watcher
        return None

    def ended(self, reason: ExitReason, detail: str) -> list[Watcher]:
        """Record the end of the actor; return the watchers to call, none if it was known."""
        if self.down is not None:
            return []
        self.down = (reason, detail)
        return self.unreachable()

    def unreachable(self) -> list[Watcher]:
        """Remove and return the watchers, as the node is out of reach."""
        watchers, self.watchers = self.watchers, {}
        return list(watchers.values())


H = TypeVar("H", bound=RefCount)


class RemoteRefs(Generic[H]):
    """The remote actors referenced by one node, by host and number."""

    __slots__ = ("_held", "_make", "sightings")

    def __init__(self, make: Callable[[bytes, int, int], H]) -> None:
        """Start empty.

        Args:
            make: creates the entry for a host, an actor number and its sightings.
        """
        self._make = make
        self._held: dict[bytes, dict[int, H]] = {}
        #: Number of refs obtained since the start, released ones included.
        self.sightings = 0

    def __len__(self) -> int:
        """Count the actors."""
        return sum(len(entries) for entries in self._held.values())

    def get(self, host: bytes, number: int) -> H | None:
        """Return the entry of an actor."""
        entries = self._held.get(host)
        return None if entries is None else entries.get(number)

    def of(self, host: bytes) -> list[H]:
        """Return the entries of a node's actors."""
        return list(self._held.get(host, {}).values())

    def renewed(self, host: bytes) -> tuple[list[H], int]:
        """Assign new sightings to the entries of a host whose path changed.

        Returns the entries to announce, and the last sightings to release afterwards.
        """
        former = self.sightings
        entries = self.of(host)
        for self.sightings, holding in enumerate(entries, former + 1):
            holding.sightings = self.sightings
            holding.unwatched = ""
        return entries, former

    def all(self) -> list[H]:
        """Return all entries."""
        return [
            holding for entries in list(self._held.values()) for holding in entries.values()
        ]

    def add(self, host: bytes, number: int) -> H:
        """Add an actor, and return its entry, which is to be announced."""
        entries = self._held.setdefault(host, {})
        assert number not in entries, "known already"
        self.sightings += 1
        holding = entries[number] = self._make(host, number, self.sightings)
        return holding

    def dropped(self, host: bytes, number: int) -> int:
        """Remove an actor that has no watchers; return the sightings for its release."""
        entries = self._held[host]
        holding = entries.pop(number)
        assert not holding.watchers, "dropped while it is watched"
        if not entries:
            del self._held[host]
        return holding.sightings
