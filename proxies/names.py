"""The names of a node: which actor is registered as what, and who belongs to which group."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from actors.reference import ActorRef
from actors.signals import Down
from proxies.address import check_name

DRAINING: Final = "draining"
"""Why names are gone for other nodes while their node drains."""


@dataclass(frozen=True, slots=True)
class NamesChanged:
    """A table of names changed; `version` counts its changes."""

    table: "Names"
    version: int
    name: str
    added: tuple[ActorRef[Any], ...] = ()
    removed: tuple[ActorRef[Any], ...] = ()
    reason: str = ""


class Names:
    """A table of registered actors; each leaves it when it ends. Thread-safe."""

    def __init__(self) -> None:
        """Begin empty."""
        #: Changes since the start; a watcher compares it to know whether it missed one.
        self.version = 0
        #: Told of each change, in order; with the lock held, so it only takes note.
        self.on_change: Callable[[NamesChanged], object] | None = None
        self._lock = threading.Lock()
        self._holders: dict[str, dict[ActorRef[Any], None]] = {}
        self._are_withdrawn = False

    @property
    def are_withdrawn(self) -> bool:
        """True while the node drains: its actors still find each other, other nodes do not."""
        return self._are_withdrawn

    @are_withdrawn.setter
    def are_withdrawn(self, value: bool) -> None:
        with self._lock:
            self._are_withdrawn = value
            for name, holders in self._holders.items():
                self._tell(name, (), tuple(holders), DRAINING)

    def get(self, name: str) -> ActorRef[Any] | None:
        """Return the actor registered under a name, or None."""
        return next(iter(self.holders(name)), None)

    def holders(self, name: str) -> tuple[ActorRef[Any], ...]:
        """Return all actors under a name, in the order in which they came."""
        return self.state(name)[1]

    def state(self, name: str) -> tuple[int, tuple[ActorRef[Any], ...]]:
        """Return the version of the table, and who is under a name in it."""
        with self._lock:
            return self.version, tuple(self._holders.get(name, ()))

    def register(self, name: str, ref: ActorRef[Any]) -> None:
        """Register an actor; one that had the name before loses it.

        Raises:
            InvalidAddress: the name could not stand in an address.
        """
        check_name(name)
        with self._lock:
            before = tuple(known for known in self._holders.get(name, ()) if known != ref)
            is_known = ref in self._holders.get(name, ())
            self._holders[name] = {ref: None}
            if before or not is_known:
                self._tell(name, () if is_known else (ref,), before, "unregistered")
        for held in before:
            held.target.demonitor((self, name))
        self._watch(name, ref)

    def join(self, name: str, ref: ActorRef[Any]) -> None:
        """Add an actor to those under a name.

        Raises:
            InvalidAddress: the name could not stand in an address.
        """
        check_name(name)
        with self._lock:
            holders = self._holders.setdefault(name, {})
            if ref in holders:
                return
            holders[ref] = None
            self._tell(name, (ref,), (), "")
        self._watch(name, ref)

    def withdraw(
        self, name: str, ref: ActorRef[Any] | None = None, reason: str = "unregistered"
    ) -> bool:
        """Take a name back (only from `ref`, if given); False when nobody had it."""
        with self._lock:
            holders = self._holders.get(name, {})
            taken = tuple(held for held in holders if ref is None or held == ref)
            if not taken:
                return False
            for held in taken:
                del holders[held]
            if not holders:
                del self._holders[name]
            self._tell(name, (), taken, reason)
        for held in taken:
            held.target.demonitor((self, name))
        return True

    def items(self) -> list[tuple[str, ActorRef[Any]]]:
        """Return all names with their actors."""
        with self._lock:
            held = list(self._holders.items())
            return [(name, ref) for name, holders in held for ref in holders]

    def __iter__(self) -> Iterator[str]:
        with self._lock:
            return iter(list(self._holders))

    def _tell(
        self,
        name: str,
        added: tuple[ActorRef[Any], ...],
        removed: tuple[ActorRef[Any], ...],
        reason: str,
    ) -> None:
        self.version += 1
        if self.on_change is not None:
            self.on_change(NamesChanged(self, self.version, name, added, removed, reason))

    def _watch(self, name: str, ref: ActorRef[Any]) -> None:
        def ended(down: Down) -> None:
            self.withdraw(name, ref, str(down.reason))

        ref.target.monitor((self, name), ended)
