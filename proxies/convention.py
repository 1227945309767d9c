"""Conventions: several Thespian systems, joined over BASP.

A system whose capabilities name an 'Admin Port' stands on a node that listens there, and joins
with the systems at 'Convention Address.IPv4'. `actors` knows nothing of nodes: this module
enters itself as what opens a system to others, when `proxies` is imported.
"""

import logging
import os
import threading
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from actors.errors import CallboardError, InvalidAddress, NotSpawnable, RemoteError
from actors.reference import ActorRef
from actors.runtime import Runtime
from proxies.administrator import (
    ADMINISTRATOR,
    Administrator,
    CapabilitiesChanged,
    Dismiss,
    Seek,
)
from proxies.convention_address import LOCAL, convention_endpoints, endpoint_of
from proxies.convention_messages import Create, Join
from proxies.node import Node
from proxies.plain_messages import imported_class, listing

if TYPE_CHECKING:
    from actors.future import Future
    from actors.thespian.cell import Creation
    from actors.thespian.system import SystemBase
    from proxies.address import Endpoint

log = logging.getLogger("callboard.thespian")

CREATE_TIMEOUT: Final = 10.0
"""Seconds that another system may take to create an actor."""

SECRET_VARIABLE: Final = "CALLBOARD_SECRET"  # noqa: S105  # the name of it, not one
"""The environment variable with the shared secret of a convention."""


class SystemNode(Node):
    """The node below a system: it carries plain classes of listed modules."""

    def __init__(self, messages: Collection[str], surely: Collection[type]) -> None:
        super().__init__("thespian", secret=os.environ.get(SECRET_VARIABLE) or None)
        self._broker.outgoing.use_registry(listing(messages, surely))

    def can_travel(self, value: object) -> bool:
        """Return True for what can be sent to other systems."""
        try:
            self._broker.outgoing.encode(value)
        except (CallboardError, ValueError):
            return False
        return True


class Convention:
    """What joins one system with others."""

    def __init__(
        self,
        capabilities: dict[str, Any],
        messages: Collection[str],
        surely: Collection[type],
    ) -> None:
        """Open the system's port.

        Raises:
            InvalidAddress: 'Convention Address.IPv4' has no known form.
            PublicAddress: 'Admin Address' is public and there is no secret.
            OSError: the port is taken.
        """
        leaders = convention_endpoints(capabilities.get("Convention Address.IPv4"))
        self._node = SystemNode(messages, surely)
        try:
            host = str(capabilities.get("Admin Address") or LOCAL)
            port = self._node.listen(host, int(capabilities["Admin Port"]))
        except BaseException:
            self._node.close()
            raise
        capabilities["Admin Port"] = port
        self._own: Endpoint = (LOCAL if _is_anywhere(host) else host, port)
        self._leaders = [endpoint for endpoint in leaders if endpoint != self._own]
        self._known: dict[ActorRef[Any], Join] = {}
        self._admins: dict[Endpoint, ActorRef[Any]] = {}

    @property
    def runtime(self) -> Runtime:
        """The runtime that the system has to run on."""
        return self._node.runtime

    def start(self, system: "SystemBase") -> None:
        """Let others join, and join with the leaders."""
        self._system = system
        self._admin = self._node.spawn(Administrator, self)
        self._node.register(ADMINISTRATOR, self._admin)
        for endpoint in self._leaders:
            self._admin.tell(Seek(endpoint))

    # --- who is there: called by the administrator ---

    def introduction(self) -> Join:
        """Return what this system says about itself; what cannot travel is left out."""
        capabilities = {
            name: value
            for name, value in dict(self._system.capabilities).items()
            if self._node.can_travel((name, value))
        }
        return Join(self._admin, capabilities)

    def joined(self, other: Join) -> None:
        """Note a system that this one is joined with."""
        self._known[other.admin] = other
        self._system.neighbors.joined(other.admin, other.capabilities)

    def introduced(self, other: Join) -> None:
        """Note a system that another one is joined with."""
        self._known[other.admin] = other

    def left(self, admin: ActorRef[Any]) -> None:
        """Forget a system."""
        self._known.pop(admin, None)
        self._system.neighbors.left(admin)
        if self._system.neighbors.leader == admin:
            self._system.neighbors.leader = None

    def note_place(self, endpoint: "Endpoint", admin: ActorRef[Any]) -> None:
        """Note who is where, and who leads: whom the system was told to join."""
        self._admins[endpoint] = admin
        if endpoint in self._leaders:
            self._system.neighbors.leader = admin

    # --- creating ---

    def create(
        self, actor_class: type, creation: "Creation", parent: ActorRef[Any] | None
    ) -> ActorRef[Any] | None:
        """Create an actor on a system that its class accepts; None when there is none.

        Blocks for an answer, also in a handler: other actors go on meanwhile.

        Raises:
            NotSpawnable: the only systems that could do it refused.
            RemoteError: its `__init__` raised there.
        """
        order = Create(
            f"{actor_class.__module__}.{actor_class.__qualname__}",
            creation.requirements,
            creation.source_hash,
            creation.global_name,
            parent or self._admin,
        )
        refused: NotSpawnable | None = None
        for other in list(self._known.values()):
            if not self._system.creator.accepts(actor_class, other.capabilities, creation):
                continue
            try:
                ref = _awaited(other.admin.ask(order, CREATE_TIMEOUT))
            except NotSpawnable as error:
                refused = error
            except RemoteError:
                raise
            except (CallboardError, TimeoutError) as error:
                log.warning("%s cannot create %s: %s", other.admin, actor_class, error)
            else:
                if isinstance(ref, ActorRef):
                    return ref
        if refused is not None:
            raise refused
        return None

    def create_here(self, order: Create) -> ActorRef[Any] | None:
        """Create an actor for another system.

        Raises:
            NotSpawnable: it is to come from a source, or its class is not to be had here.
        """
        system = self._system
        why = ""
        found = None
        if order.source_hash is not None:
            why = "loaded sources are for the system that loaded them"
        else:
            module, _, name = str(order.actor_class).rpartition(".")
            found = imported_class(module, name)
            if found is None:
                why = f"no module imported here has it; import {module or 'it'} first"
            elif not system.creator.is_offered(found):
                why = "it is no actor class of a program"
        if found is None or why:
            self.runtime.counters.refused_spawns += 1
            msg = f"{order.actor_class} is not created for another system: {why}"
            raise NotSpawnable(msg)
        return system.creator.create_for_others(found, order.requirements, order.global_name)

    def ask_to_exit(self, ref: ActorRef[Any]) -> None:
        """Let an actor of this system exit."""
        self._system.ask_to_exit(ref)

    def ref_to(self, ref: ActorRef[Any]) -> ActorRef[Any]:
        """Return this system's ref of an actor of another system in the same process."""
        return self._node.ref(str(ref))

    def admin_at(self, address: str) -> ActorRef[Any] | None:
        """Return the administrator of the system at `host:port`, if it is known."""
        endpoint = endpoint_of(address)
        if endpoint == self._own:
            return self._system.address
        return self._admins.get(endpoint)

    # --- orders from the system's actors ---

    def invite(self, address: str, _: dict[str, Any]) -> None:
        """Join with the system at `host:port`; it says itself what it can do."""
        try:
            self._admin.tell(Seek(endpoint_of(address)))
        except InvalidAddress as error:
            log.warning("a remote system is not registered: %s", error)

    def dismiss(self, address: Any) -> None:
        """Drop the system at an address, or that of an administrator."""
        if isinstance(address, ActorRef):
            self._admin.tell(Dismiss(address))
            return
        try:
            self._admin.tell(Dismiss(endpoint_of(str(address))))
        except InvalidAddress as error:
            log.warning("a remote system is not deregistered: %s", error)

    def capabilities_changed(self) -> None:
        """Let the others know what this system can do."""
        self._admin.tell(CapabilitiesChanged())

    def close(self) -> None:
        """Leave, and close the node."""
        self._node.close()


def _is_anywhere(host: str) -> bool:
    return host in {"localhost", "0.0.0.0", "::"}  # noqa: S104  # compared, not bound


def _awaited(future: "Future[Any]") -> Any:
    """Wait on any thread: a handler that blocks holds up its own actor only."""
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    done.wait(CREATE_TIMEOUT + 1.0)
    return future.result(0.0)
