"""Other systems of a convention, as the actors of this one see them.

The convention itself is implemented above this room. A system that is in none has no neighbors.
"""

import logging
from dataclasses import field
from typing import Any, Protocol

from thespian.actors import ActorAddress, ActorSystemConventionUpdate

from callboard import locks
from callboard.actors.reference import ActorRef, Teller
from callboard.actors.runtime import Runtime
from callboard.actors.thespian.cell import Creation
from callboard.support.dataclass import dataclass

log = logging.getLogger("callboard.thespian")


class ConventionWays(Protocol):
    """What a system does with the convention that it is in."""

    def create(
        self, actor_class: type, creation: Creation, parent: ActorRef[Any] | None
    ) -> ActorRef[Any] | None:
        """Create an actor on a system that its class accepts; None when there is none."""

    def ref_to(self, ref: ActorRef[Any]) -> ActorRef[Any]:
        """Return this system's ref of an actor of another system in the same process."""

    def admin_at(self, address: str) -> ActorRef[Any] | None:
        """Return the administrator of the system at `host:port`, if it is known."""

    def invite(self, address: str, capabilities: dict[str, Any]) -> None:
        """Join with the system at `host:port`."""

    def dismiss(self, address: str | ActorAddress) -> None:
        """Drop the system at an address."""

    def capabilities_changed(self) -> None:
        """Let the others know what this system can do."""

    def close(self) -> None:
        """Leave, and close what leads to the others."""


@dataclass(eq=False, repr=False)
class Neighbors:
    """The other systems of the convention, and the actors told when they come and go."""

    #: The runtime of this system.
    runtime: Runtime
    #: The sender of what comes from this system itself.
    system: Teller
    #: The administrators of the other systems, and what each system can do.
    known: dict[ActorRef[Any], dict[str, Any]] = field(default_factory=dict)
    #: The actors that asked for `ActorSystemConventionUpdate`.
    told: list[ActorRef[Any]] = field(default_factory=list)
    convention: ConventionWays | None = None
    #: The administrator of the convention's leader; None for the leader itself.
    leader: ActorRef[Any] | None = None
    _lock: locks.Lock = field(
        default_factory=lambda: locks.lock("systems of a convention", 625)
    )

    def getAddressFromString(self, text: str) -> ActorRef[Any] | None:
        """Return the administrator of the system at `host:port`; None when it is unknown."""
        return None if self.convention is None else self.convention.admin_at(text)

    def notify(self, address: ActorRef[Any], enable: bool) -> None:  # noqa: FBT001
        """Tell an actor of the systems that are there, and of each that comes or goes."""
        with self._lock:
            self.told = [each for each in self.told if each != address]
            if enable:
                self.told.append(address)
                for admin, capabilities in self.known.items():
                    self._tell(address, admin, capabilities, added=True)

    def joined(self, admin: ActorRef[Any], capabilities: dict[str, Any]) -> None:
        """Note a system, or what it can do since then; actors are told of systems only."""
        with self._lock:
            is_new = admin not in self.known
            self.known[admin] = dict(capabilities)
            for address in self.told if is_new else ():
                self._tell(address, admin, capabilities, added=True)

    def left(self, admin: ActorRef[Any]) -> None:
        """Forget a system; no effect when it was not known."""
        with self._lock:
            capabilities = self.known.pop(admin, None)
            for address in self.told if capabilities is not None else ():
                self._tell(address, admin, capabilities or {}, added=False)

    def _tell(
        self, address: ActorRef[Any], admin: ActorRef[Any], can: dict[str, Any], *, added: bool
    ) -> None:
        address.target.post(ActorSystemConventionUpdate(admin, dict(can), added), self.system)

    def invite(self, address: str, capabilities: dict[str, Any]) -> None:
        """Join with a system that does not come by itself."""
        if self.convention is None:
            log.warning("%s is not invited: this system has no 'Admin Port'", address)
        else:
            self.convention.invite(address, capabilities)

    def dismiss(self, address: str | ActorAddress) -> None:
        """Drop a system."""
        if self.convention is not None:
            self.convention.dismiss(address)
