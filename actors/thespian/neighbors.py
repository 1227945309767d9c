"""Other systems of a convention, from the point of view of this system's actors.

Convention itself is a package of a higher layer. A system without one has no neighbors.
"""

import logging
from dataclasses import field
from typing import Protocol

from thespian.actors import ActorAddress, ActorSystemConventionUpdate

from callboard import locks
from callboard.actors.reference import ActorRef, Teller
from callboard.actors.runtime import Runtime
from callboard.actors.thespian.cell import Creation
from callboard.support.calls import Keywords
from callboard.support.dataclass import dataclass

_log = logging.getLogger("callboard.thespian")


class ConventionWays(Protocol):
    """The interface of a convention for the system that belongs to it."""

    def create(
        self, actor_class: type, creation: Creation, parent: ActorRef | None
    ) -> ActorRef | None:
        """Create an actor on a system that its class accepts; return None if there is none."""

    def ref_to(self, ref: ActorRef) -> ActorRef:
        """Return this system's ref of an actor of another system in the same process."""

    def admin_at(self, address: str) -> ActorRef | None:
        """Return the administrator of the system at `host:port`, or None if it is unknown."""

    def invite(self, address: str, capabilities: Keywords) -> None:
        """Join the system at `host:port`."""

    def dismiss(self, address: str | ActorAddress) -> None:
        """Drop the system at an address."""

    def capabilities_changed(self) -> None:
        """Send the capabilities of this system to the others."""

    def close(self) -> None:
        """Leave the convention, and close the links to the others."""


@dataclass(eq=False, repr=False)
class Neighbors:
    """The other systems of the convention, and the actors that observe them."""

    #: The runtime of this system.
    runtime: Runtime
    #: The sender of messages from the system itself.
    system: Teller
    #: The administrator of each other system, and its capabilities.
    known: dict[ActorRef, Keywords] = field(default_factory=dict)
    #: The actors that receive `ActorSystemConventionUpdate`.
    observers: list[ActorRef] = field(default_factory=list)
    convention: ConventionWays | None = None
    #: The administrator of the convention's leader; None for the leader itself.
    leader: ActorRef | None = None
    _lock: locks.Lock = field(
        default_factory=lambda: locks.lock("systems of a convention", 625)
    )

    def getAddressFromString(self, text: str) -> ActorRef | None:
        """Return the administrator of the system at `host:port`, or None if it is unknown."""
        return None if self.convention is None else self.convention.admin_at(text)

    def notify(self, address: ActorRef, enable: bool) -> None:  # noqa: FBT001
        """Send an actor the known systems now, and each one that joins or leaves later."""
        with self._lock:
            self.observers = [other for other in self.observers if other != address]
            if enable:
                self.observers.append(address)
                for admin, capabilities in self.known.items():
                    self._send_update(address, admin, capabilities, added=True)

    def joined(self, admin: ActorRef, capabilities: Keywords) -> None:
        """Record a system or its new capabilities; notify observers if the system is new."""
        with self._lock:
            is_new = admin not in self.known
            self.known[admin] = dict(capabilities)
            for address in self.observers if is_new else ():
                self._send_update(address, admin, capabilities, added=True)

    def left(self, admin: ActorRef) -> None:
        """Remove a system; no effect if it is unknown."""
        with self._lock:
            capabilities = self.known.pop(admin, None)
            for address in self.observers if capabilities is not None else ():
                self._send_update(address, admin, capabilities or {}, added=False)

    def _send_update(
        self, address: ActorRef, admin: ActorRef, can: Keywords, *, added: bool
    ) -> None:
        address.target.post(ActorSystemConventionUpdate(admin, dict(can), added), self.system)

    def invite(self, address: str, capabilities: Keywords) -> None:
        """Join a system that does not join this one."""
        if self.convention is None:
            _log.warning("%s is not invited: this system has no 'Admin Port'", address)
        else:
            self.convention.invite(address, capabilities)

    def dismiss(self, address: str | ActorAddress) -> None:
        """Remove the system at an address."""
        if self.convention is not None:
            self.convention.dismiss(address)
