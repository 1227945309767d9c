"""Other systems of a convention, as the actors of this one see them.

What makes a convention is not here: `Convention` is implemented in `proxies`. A system that is
in none has no neighbors.
"""

import logging
import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Protocol

from thespian.actors import ActorAddress, ActorSystemConventionUpdate

from actors.reference import ActorRef
from actors.thespian.cell import Creation

if TYPE_CHECKING:
    from actors.runtime import Runtime
    from actors.thespian.system import SystemBase

log = logging.getLogger("callboard.thespian")


class Convention(Protocol):
    """What joins this system with others; made before the system, since it has the runtime."""

    @property
    def runtime(self) -> "Runtime":
        """The runtime that the system has to run on."""

    def start(self, system: "SystemBase") -> None:
        """Begin: the system is made."""

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


Opener = Callable[[dict[str, Any], Collection[str], Collection[type]], Convention]
"""Makes the convention of a system with an 'Admin Port', of its capabilities, the modules whose
plain classes may travel, and the classes that always do."""


class Neighbors:
    """The other systems of the convention, and who is told when they come and go."""

    def __init__(self, system: "SystemBase") -> None:
        self._system = system
        self._lock = threading.Lock()
        self._known: dict[ActorRef[Any], dict[str, Any]] = {}
        self._told: list[ActorRef[Any]] = []
        self.convention: Convention | None = None
        #: The administrator of the convention's leader; None for the leader itself.
        self.leader: ActorRef[Any] | None = None

    def known(self) -> list[ActorRef[Any]]:
        """List the administrators of the other systems."""
        return list(self._known)

    def told(self) -> list[ActorRef[Any]]:
        """List the actors that asked for `ActorSystemConventionUpdate`."""
        return list(self._told)

    def notify(self, address: ActorRef[Any], enable: bool) -> None:  # noqa: FBT001
        """Tell an actor of the systems that are there, and of each that comes or goes."""
        with self._lock:
            self._told = [each for each in self._told if each != address]
            if enable:
                self._told.append(address)
                for admin, capabilities in self._known.items():
                    self._tell(address, admin, capabilities, added=True)

    def joined(self, admin: ActorRef[Any], capabilities: dict[str, Any]) -> None:
        """Note a system, or what it can do since then; actors are told of systems only."""
        with self._lock:
            is_new = admin not in self._known
            self._known[admin] = dict(capabilities)
            for address in self._told if is_new else ():
                self._tell(address, admin, capabilities, added=True)

    def left(self, admin: ActorRef[Any]) -> None:
        """Forget a system; no effect when it was not known."""
        with self._lock:
            capabilities = self._known.pop(admin, None)
            for address in self._told if capabilities is not None else ():
                self._tell(address, admin, capabilities or {}, added=False)

    def _tell(
        self,
        address: ActorRef[Any],
        admin: ActorRef[Any],
        capabilities: dict[str, Any],
        *,
        added: bool,
    ) -> None:
        update = ActorSystemConventionUpdate(admin, dict(capabilities), added)
        address.target.post(update, self._system.cell)

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


class AddressBook:
    """Administrators by address."""

    def __init__(self, system: "SystemBase") -> None:
        self._system = system

    def getAddressFromString(self, text: str) -> ActorRef[Any] | None:
        """Return the administrator of the system at `host:port`; None when it is unknown."""
        convention = self._system.neighbors.convention
        return None if convention is None else convention.admin_at(text)
