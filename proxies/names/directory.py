"""The directory of a node: answers look-ups of names, and notifies watchers of changes."""

from collections.abc import Callable, Iterator
from typing import Final

from callboard import locks
from callboard.actors.dispatch import handler
from callboard.actors.reference import ActorRef, Down, checked_ref
from callboard.actors.system_actor import SystemActor
from callboard.proxies.address import check_name
from callboard.proxies.messages import ABILITIES, Describe, HoldersChanged, Lookup, WatchName
from callboard.support.dataclass import dataclass

#: Reason for the removal of names while their node drains.
DRAINING: Final = "draining"


@dataclass(frozen=True, slots=True)
class NamesChanged:
    """A change in a table of names; `version` counts the changes."""

    table: "Names"
    version: int
    name: str
    added: tuple[ActorRef, ...] = ()
    removed: tuple[ActorRef, ...] = ()
    reason: str = ""


class Names:
    """A table of registered actors; an actor is removed when it ends. Thread-safe."""

    def __init__(self) -> None:
        """Create an empty table."""
        #: Changes since the start; a watcher compares it to detect a missed change.
        self.version = 0
        #: Called with each change, in order. The lock is held, so it must only record the
        #: change.
        self.on_change: Callable[[NamesChanged], object] | None = None
        self._lock = locks.lock("names of a node", 641)
        self._holders: dict[str, dict[ActorRef, None]] = {}
        #: The names of each actor, readable without the lock.
        self._names_of: dict[ActorRef, tuple[str, ...]] = {}
        #: Whether the node drains: its own actors still find each other, other nodes do not.
        self.are_withdrawn = False

    def withdraw_all(self) -> None:
        """Hide the names from other nodes, because this one drains."""
        with self._lock:
            self.are_withdrawn = True
            for name, holders in self._holders.items():
                self._report(name, (), tuple(holders), DRAINING)

    def get(self, name: str) -> ActorRef | None:
        """Return the actor registered under a name, or None."""
        return next(iter(self.state(name)[1]), None)

    def names_of(self, ref: ActorRef) -> tuple[str, ...]:
        """Return the names that an actor has. Can be called from any thread; never blocks."""
        return self._names_of.get(ref, ())

    def state(self, name: str) -> tuple[int, tuple[ActorRef, ...]]:
        """Return the version of the table, and the holders of a name, the oldest first."""
        with self._lock:
            return self.version, tuple(self._holders.get(name, ()))

    def register(self, name: str, ref: ActorRef) -> None:
        """Register an actor; the previous holder of the name loses it.

        Raises:
            InvalidAddress: the name is not valid in an address.
        """
        check_name(name)
        checked_ref(ref, "register()")
        with self._lock:
            former = tuple(k for k in tuple(self._holders.get(name, ())) if k != ref)
            is_known = ref in self._holders.get(name, ())
            self._holders[name] = {ref: None}
            if former or not is_known:
                self._report(name, () if is_known else (ref,), former, "unregistered")
        for holder in former:
            holder.target.demonitor((self, name))
        self._watch(name, ref)

    def join(self, name: str, ref: ActorRef) -> None:
        """Add an actor to the holders of a name.

        Raises:
            InvalidAddress: the name is not valid in an address.
        """
        check_name(name)
        checked_ref(ref, "join()")
        with self._lock:
            holders = self._holders.setdefault(name, {})
            if ref in holders:
                return
            holders[ref] = None
            self._report(name, (ref,), (), "")
        self._watch(name, ref)

    def withdraw(
        self, name: str, ref: ActorRef | None = None, reason: str = "unregistered"
    ) -> bool:
        """Remove a name from `ref`, or from all actors if None; return whether one had it."""
        with self._lock:
            holders = self._holders.get(name, {})
            withdrawn = tuple(
                holder for holder in tuple(holders) if ref is None or holder == ref
            )
            if not withdrawn:
                return False
            for holder in withdrawn:
                holders.pop(holder, None)
            if not holders:
                self._holders.pop(name, None)
            self._report(name, (), withdrawn, reason)
        for holder in withdrawn:
            holder.target.demonitor((self, name))
        return True

    def items(self) -> list[tuple[str, ActorRef]]:
        """Return all names with their actors."""
        with self._lock:
            entries = list(self._holders.items())
            return [(name, ref) for name, holders in entries for ref in holders]

    def __iter__(self) -> Iterator[str]:
        with self._lock:
            return iter(list(self._holders))

    def _report(
        self,
        name: str,
        added: tuple[ActorRef, ...],
        removed: tuple[ActorRef, ...],
        reason: str,
    ) -> None:
        """Count a change and report it; the caller must hold the lock."""
        for ref in added:
            self._names_of[ref] = (*self._names_of.get(ref, ()), name)
        for ref in removed if reason != DRAINING else ():
            remaining = tuple(other for other in self._names_of.pop(ref, ()) if other != name)
            if remaining:
                self._names_of[ref] = remaining
        self.version += 1
        if self.on_change is not None:
            self.on_change(NamesChanged(self, self.version, name, added, removed, reason))

    def _watch(self, name: str, ref: ActorRef) -> None:
        """Withdraw an actor's name when the actor ends."""
        ref.target.monitor(
            (self, name), lambda down: self.withdraw(name, ref, str(down.reason))
        )


class Directory(SystemActor):
    """Answers which actors hold a name, and notifies watchers of changes."""

    def __init__(self, names: Names, groups: Names, node_name: str) -> None:
        self._names = names
        self._groups = groups
        self._node_name = node_name
        #: The watchers of each name, with the table version that each one has received.
        self._watchers: dict[tuple[Names, str], dict[ActorRef, int]] = {}
        for table in (names, groups):
            table.on_change = self._notify_watchers

    def _notify_watchers(self, change: NamesChanged) -> None:
        """Send a change to this actor if the name has watchers."""
        if (change.table, change.name) in self._watchers:
            self.post_self(change)

    @handler
    def lookup(self, question: Lookup) -> ActorRef | None:
        """Return the actor of that name, or None."""
        return None if self._names.are_withdrawn else self._names.get(str(question.name))

    @handler
    def watch(self, question: WatchName) -> None:
        """Send the sender the current holders of a name, then each change."""
        watcher = self.sender
        if watcher is None:
            return
        table, name = self._groups if question.is_group is True else self._names, question.name
        # Add the watcher before the table is read, so that no change is missed in between.
        watchers = self._watchers.setdefault((table, str(name)), {})
        if watcher not in watchers:
            self.monitor(watcher)
        elif watchers[watcher] == question.version:
            return
        version, refs = table.state(str(name))
        if self._is_hidden(table, watcher):
            refs = ()
        watchers[watcher] = version
        watcher.tell(HoldersChanged(version, added=refs, is_all=True))

    @handler
    def changed(self, change: NamesChanged) -> None:
        """Send a change to the watchers of its name."""
        watchers = self._watchers.get((change.table, change.name), {})
        for watcher, version in watchers.items():
            if change.version <= version:
                continue  # the first answer to this watcher included the change
            watchers[watcher] = change.version
            added, removed = change.added, change.removed
            if self._is_hidden(change.table, watcher):
                added = ()
            elif change.reason == DRAINING:
                removed = ()
            watcher.tell(HoldersChanged(change.version, added, removed, change.reason))

    @handler
    def watcher_ended(self, down: Down) -> None:
        """Remove a watcher that ended or is out of reach."""
        if self.has_sender:
            return
        for key, watchers in list(self._watchers.items()):
            watchers.pop(down.ref, None)
            if not watchers:
                del self._watchers[key]

    @staticmethod
    def _is_hidden(table: Names, watcher: ActorRef) -> bool:
        """Return whether a draining node hides its names from a watcher of another node."""
        return table.are_withdrawn and not watcher.is_local

    @handler
    def describe(self, request: Describe) -> str | tuple[str, ...]:
        """Return the node's name, and its abilities if requested."""
        return (self._node_name, *ABILITIES) if request.abilities else self._node_name
