"""The remote actors that one node holds refs to, and who here waits for their end. Pure.

A node that gets hold of a ref announces it to the actor's host, and releases it when nobody
here has a ref any more. Paths move: a release may arrive behind a later announce of the same
ref, or not at all. So each announce carries the number of refs that this node has got hold
of so far, its *sightings*; a release carries that of the announce which it takes back, and a
host ignores one that is older than the latest announce.

When the path to a host changed, everything held there is announced again, with fresh
sightings, and then released as a whole up to the sightings before: whatever went wrong with
earlier announces and releases is over with that.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from callboard.actors.exit_reason import ExitReason

Watcher = Callable[[Any], object]


class RefCount:
    """What one node knows of one remote actor.

    Attributes:
        sightings: what its announce and its release carry.
        down: why the actor ended, once that is known; not set when its node is only out of
            reach.
        watchers: who is to be told, by key.
        unwatched: why this node will not be told when the actor ends; empty when it will.
    """

    __slots__ = ("down", "sightings", "unwatched", "watchers")

    def __init__(self, sightings: int) -> None:
        """Begin with an actor that is taken to live, and that nobody watches."""
        self.sightings = sightings
        self.down: tuple[ExitReason, str] | None = None
        self.watchers: dict[object, Watcher] = {}
        self.unwatched = ""

    @property
    def is_watched(self) -> bool:
        """Whether a monitor on this node waits for the actor's end."""
        return bool(self.watchers)

    def watch(self, key: object, watcher: Watcher) -> tuple[ExitReason, str] | None:
        """Add a watcher; returns what to tell it at once if the actor is known to be dead."""
        if self.down is not None:
            return ExitReason.NOT_FOUND, f"it had ended ({self.down[0]})"
        if self.unwatched:
            return ExitReason.UNREACHABLE, self.unwatched
        self.watchers[key] = watcher
        return None

    def ended(self, reason: ExitReason, detail: str) -> list[Watcher]:
        """The actor ended; returns who is to be told, nobody when it was known."""
        if self.down is not None:
            return []
        self.down = (reason, detail)
        return self.unreachable()

    def unreachable(self) -> list[Watcher]:
        """The node is out of reach; returns who is to be told."""
        told, self.watchers = self.watchers, {}
        return list(told.values())


H = TypeVar("H", bound=RefCount)


class RemoteRefs(Generic[H]):
    """All remote actors of one node, by host and number."""

    __slots__ = ("_held", "_make", "sightings")

    def __init__(self, make: Callable[[bytes, int, int], H]) -> None:
        """Begin with none.

        Args:
            make: makes a holding of a host, an actor number and its sightings.
        """
        self._make = make
        self._held: dict[bytes, dict[int, H]] = {}
        #: How many refs this node got hold of, those that it released included.
        self.sightings = 0

    def __len__(self) -> int:
        """Count the actors."""
        return sum(len(held) for held in self._held.values())

    def get(self, host: bytes, number: int) -> H | None:
        """Return what is held of an actor."""
        held = self._held.get(host)
        return None if held is None else held.get(number)

    def of(self, host: bytes) -> list[H]:
        """Return all that is held of a node's actors."""
        return list(self._held.get(host, {}).values())

    def renewed(self, host: bytes) -> tuple[list[H], int]:
        """Begin again with a host whose path changed.

        Returns what to announce to it, and up to which sightings to release everything then.
        """
        before = self.sightings
        held = self.of(host)
        for self.sightings, holding in enumerate(held, before + 1):
            holding.sightings = self.sightings
            holding.unwatched = ""
        return held, before

    def all(self) -> list[H]:
        """Return everything that is held."""
        return [holding for held in list(self._held.values()) for holding in held.values()]

    def learned(self, host: bytes, number: int) -> H:
        """Take hold of an actor that is not held; announce what is returned."""
        held = self._held.setdefault(host, {})
        assert number not in held, "held already"
        self.sightings += 1
        holding = held[number] = self._make(host, number, self.sightings)
        return holding

    def dropped(self, host: bytes, number: int) -> int:
        """Let go of an actor that nobody watches; returns the sightings to release it with."""
        held = self._held[host]
        holding = held.pop(number)
        assert not holding.watchers, "dropped while it is watched"
        if not held:
            del self._held[host]
        return holding.sightings
