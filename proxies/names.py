"""The names of a node: which actor is registered as what."""

import threading
from collections.abc import Iterator
from typing import Any

from actors.reference import ActorRef
from actors.signals import Down
from proxies.address import check_name


class Names:
    """A table of registered actors; a name is free again when its actor ends. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._refs: dict[str, ActorRef[Any]] = {}
        #: True while the node drains: its own actors still find each other, other nodes do not.
        self.are_withdrawn = False

    def get(self, name: str) -> ActorRef[Any] | None:
        """Return the actor registered under a name, or None."""
        return self._refs.get(name)

    def register(self, name: str, ref: ActorRef[Any]) -> None:
        """Register an actor; one that had the name before loses it.

        Raises:
            InvalidAddress: the name could not stand in an address.
        """
        check_name(name)
        with self._lock:
            self._refs[name] = ref

        def ended(_: Down) -> None:
            self.withdraw(name, ref)

        ref.target.monitor(("name", name), ended)

    def withdraw(self, name: str, ref: ActorRef[Any] | None = None) -> bool:
        """Take a name back (only from `ref`, if given); False when nobody had it."""
        with self._lock:
            held = self._refs.get(name)
            if held is None or (ref is not None and held != ref):
                return False
            del self._refs[name]
        held.target.demonitor(("name", name))
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._refs))
