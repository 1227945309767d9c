"""Membership in a convention: several Thespian systems joined over BASP.

A system with the capability 'Admin Port' runs on a node that listens on that port, and joins
the systems at 'Convention Address.IPv4'. `actors` does not know nodes; it finds `Membership` by
an entry point of the package.

Systems join in pairs: the `Seeker` of one dials until the other answers, and again after a lost
link. Both exchange their capabilities. Each also introduces its other systems to the new one
and vice versa, so every system can create actors on every other one without asking the leader.
When an administrator ends or becomes unreachable, its system leaves the convention.
"""

import logging
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from callboard.convention.messages import Create, Introduce, Join, Leave
from callboard.kernel.actors import ActorRef, Down, ExitReason, handler
from callboard.kernel.codec import DEFAULT_REGISTRY, PlainRegistry
from callboard.kernel.context import NodeContext, SystemActor
from callboard.kernel.environment import (
    Creation,
    Neighbors,
    SystemBase,
    is_compatible,
    real_surroundings,
)
from callboard.kernel.errors import CallboardError, InvalidAddress, NotSpawnable, RemoteError
from callboard.kernel.reply import Future
from callboard.kernel.topology import Endpoint, endpoint_text
from callboard.node import Node
from callboard.support import after_fork

#: Registered name of a system's administrator on its node.
ADMINISTRATOR: Final = "thespian.administrator"

#: Seconds between attempts to join.
RETRY: Final = 0.25

#: Timeout of an attempt to find the other administrator, in seconds.
REACH: Final = 2.0


@dataclass(frozen=True, slots=True)
class Seek:
    """Join the system at an address."""

    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class Found:
    """A seeker has joined another system."""

    endpoint: Endpoint
    other: Join


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Leave a system, and stop to seek it."""

    system: Endpoint | ActorRef


@dataclass(frozen=True, slots=True)
class CapabilitiesChanged:
    """Send this system's new capabilities to the other systems."""


class Administrator(SystemActor):
    """Keeps the list of the convention's systems, and creates actors for them."""

    def __init__(self, membership: "Membership") -> None:
        self._membership = membership
        self._watched: set[ActorRef] = set()
        self._seekers: dict[Endpoint, ActorRef[Seeker]] = {}

    # --- joining ---

    @handler
    def seek(self, order: Seek) -> None:
        """Start dialing a system."""
        if order.endpoint not in self._seekers:
            seeker = self.spawn(Seeker, self._membership)
            self._seekers[order.endpoint] = seeker
            self.send(seeker, order)

    @handler
    def join(self, other: Join) -> Join | None:
        """Add a system, or update its capabilities."""
        if not _is_join(other):
            return None
        self._add_joined(other)
        return self._membership.introduction()

    @handler
    def found(self, result: Found) -> None:
        """Add the system that a seeker has found."""
        if _is_join(result.other):
            self._add_joined(result.other)
            self._membership.record_place(result.endpoint, result.other.admin)

    def _add_joined(self, other: Join) -> None:
        """Add a joined system, and introduce it to the other systems."""
        admin, joined = other.admin, self._membership.joined()
        if admin == self.me:
            return
        other_systems = [join for join in joined.values() if join.admin != admin]
        if admin not in joined and other_systems:
            self.send(admin, Introduce(other_systems))
        self._record(other)
        self._membership.neighbors.joined(admin, other.capabilities)
        for other_system in other_systems:
            self.send(other_system.admin, Introduce([other]))

    @handler
    def introduce(self, introduction: Introduce) -> None:
        """Add systems that another system has joined."""
        if type(introduction.systems) is not list:
            return
        joined = self._membership.joined()
        for other in introduction.systems:
            if _is_join(other) and other.admin not in joined and other.admin != self.me:
                self._record(other)

    @handler
    def changed(self, _: CapabilitiesChanged) -> None:
        """Send this system's capabilities to all other systems."""
        introduction = self._membership.introduction()
        for admin in self._membership.joined():
            self.send(admin, introduction)

    # --- leaving ---

    def _record(self, other: Join) -> None:
        """Record a system, and monitor its administrator."""
        self._membership.known[other.admin] = other
        if other.admin not in self._watched:
            self._watched.add(other.admin)
            self.monitor(other.admin)

    @handler
    def down(self, down: Down) -> None:
        """Remove a system whose administrator ended or is unreachable."""
        if self.has_sender:
            return
        self._watched.discard(down.ref)
        self._membership.left(down.ref)

    @handler
    def leave(self, leave: Leave) -> None:
        """Remove a system at its own request."""
        sender = self.sender
        if sender is not None and sender == leave.admin:  # a system can only remove itself
            self._membership.left(sender)

    @handler
    def dismiss(self, order: Dismiss) -> None:
        """Stop looking for a system, and leave it."""
        system, admins = order.system, self._membership.admins
        if isinstance(system, ActorRef):
            admin: ActorRef | None = system
            endpoints = [endpoint for endpoint, ref in admins.items() if ref == system]
        else:
            admin = admins.get(system)
            endpoints = [system]
        for endpoint in endpoints:
            seeker = self._seekers.pop(endpoint, None)
            if seeker is not None:
                seeker.kill()
        if admin in self._membership.joined():
            self.send(admin, Leave(self.me))
            self._membership.left(admin)

    # --- creating ---

    @handler
    def create(self, order: Create) -> None:
        """Create an actor for another system."""
        self.answer_apart(partial(self._membership.create_here, order))


class Seeker(SystemActor):
    """Joins the system at an address, again after each loss."""

    def __init__(self, membership: "Membership") -> None:
        self._membership = membership

    @handler
    async def seek(self, order: Seek) -> None:
        """Dial until it is killed."""
        address = f"{endpoint_text(order.endpoint)}/{ADMINISTRATOR}"
        while True:
            try:
                admin = await self.node.aremote_actor(address, REACH)
                other = await admin.ask(self._membership.introduction(), REACH)
            except (CallboardError, TimeoutError, OSError):
                await self.sleep(RETRY)
                continue
            if type(other) is Join and self.parent is not None:
                self.send(self.parent, Found(order.endpoint, other))
                await self.node.monitor(admin)
            await self.sleep(RETRY)


def _is_join(other: Any) -> bool:
    """Check a message from another node, whose fields may have any type."""
    if type(other) is not Join:
        return False
    fields: tuple[Any, Any] = other.admin, other.capabilities
    return isinstance(fields[0], ActorRef) and type(fields[1]) is dict


_log = logging.getLogger("callboard.thespian")

#: Timeout of another system for the creation of an actor, in seconds.
CREATE_TIMEOUT: Final = 10.0

#: Environment variable with the shared secret of a convention.
SECRET_VARIABLE: Final = "CALLBOARD_SECRET"  # noqa: S105  # the name of it, not one


class SystemNode(Node):
    """The node of a system; it can send plain classes of listed modules."""

    def __init__(self, messages: Collection[str], surely: Collection[type]) -> None:
        super().__init__(
            "thespian",
            secret=os.environ.get(SECRET_VARIABLE) or None,
            surroundings=replace(real_surroundings(), registry=listing(messages, surely)),
        )

    def can_travel(self, value: object) -> bool:
        """Return whether a value can be sent to other systems."""
        try:
            self.encode(value)
        except (CallboardError, ValueError):
            return False
        return True


class Membership:
    """The connection of one system with the others.

    Attributes:
        known: the systems of the convention, by administrator.
        admins: the administrators found, by the dialed address.
    """

    def __init__(
        self,
        capabilities: dict[str, Any],
        messages: Collection[str],
        surely: Collection[type],
    ) -> None:
        """Open the system's port.

        Raises:
            InvalidAddress: 'Convention Address.IPv4' has an unknown form.
            PublicAddress: 'Admin Address' is public and there is no secret.
            OSError: the port is in use.
        """
        leaders = convention_endpoints(capabilities.get("Convention Address.IPv4"))
        after_fork.register(self)
        self._node = SystemNode(messages, surely)
        try:
            host = str(capabilities.get("Admin Address") or LOCAL)
            port = self._node.listen(host, int(capabilities["Admin Port"]))
        except BaseException:
            self._node.close()
            raise
        capabilities["Admin Port"] = port
        self._own: Endpoint = (LOCAL if host in _ANYWHERE else host, port)
        self._leaders = [endpoint for endpoint in leaders if endpoint != self._own]
        self.known: dict[ActorRef, Join] = {}
        self.admins: dict[Endpoint, ActorRef] = {}

    @property
    def runtime(self) -> NodeContext:
        """The runtime for the system."""
        return self._node.context

    def start(self, system: SystemBase) -> None:
        """Register the administrator, and join the leaders."""
        self._system = system
        self._admin = self._node.spawn(Administrator, self)
        self._node.register(ADMINISTRATOR, self._admin)
        for endpoint in self._leaders:
            self._admin.tell(Seek(endpoint))

    # --- systems; called by the administrator ---

    def introduction(self) -> Join:
        """Return this system's `Join`; capabilities that cannot be sent are omitted."""
        capabilities = {
            name: value
            for name, value in dict(self._system.capabilities).items()
            if self._node.can_travel((name, value))
        }
        return Join(self._admin, capabilities)

    @property
    def neighbors(self) -> Neighbors:
        """The joined systems, as this system's actors see them."""
        return self._system.neighbors

    def joined(self) -> dict[ActorRef, Join]:
        """Return the joined systems by administrator."""
        return {admin: self.known[admin] for admin in self.neighbors.known}

    def left(self, admin: ActorRef) -> None:
        """Remove a system."""
        self.known.pop(admin, None)
        self.neighbors.left(admin)
        if self.neighbors.leader == admin:
            self.neighbors.leader = None

    def record_place(self, endpoint: Endpoint, admin: ActorRef) -> None:
        """Record an administrator's address; one at a configured address is the leader."""
        self.admins[endpoint] = admin
        if endpoint in self._leaders:
            self.neighbors.leader = admin

    # --- creating ---

    def create(
        self, actor_class: type, creation: Creation, parent: ActorRef | None
    ) -> ActorRef | None:
        """Create an actor on a system that its class accepts; None if there is none.

        It blocks for the reply, even in a handler; other actors continue.

        Raises:
            NotSpawnable: the suitable systems refused.
            RemoteError: its `__init__` failed there.
        """
        name = f"{actor_class.__module__}.{actor_class.__qualname__}"
        arguments = creation.requirements, creation.source_hash, creation.global_name
        order = Create(name, *arguments, parent or self._admin)
        refusal: NotSpawnable | None = None
        for other in list(self.known.values()):
            if not is_compatible(actor_class, other.capabilities, creation.requirements):
                continue
            try:
                ref = _awaited(other.admin.ask(order, CREATE_TIMEOUT))
            except NotSpawnable as error:
                refusal = error
            except RemoteError:
                raise
            except (CallboardError, TimeoutError) as error:
                _log.warning("%s cannot create %s: %s", other.admin, actor_class, error)
            else:
                if isinstance(ref, ActorRef):
                    return ref
        if refusal is not None:
            raise refusal
        return None

    def create_here(self, order: Create) -> ActorRef | None:
        """Create an actor for another system.

        Raises:
            NotSpawnable: the class is from a loaded source, or is not available here.
        """
        system = self._system
        module, _, name = str(order.actor_class).rpartition(".")
        actor_class, reason = imported_class(module, name), ""
        if order.source_hash is not None:
            reason = "loaded sources belong to the system that loaded them"
        elif actor_class is None:
            reason = f"no imported module has it; import {module or 'it'} first"
        elif not system.creator.is_offered(actor_class):
            reason = "it is not an actor class of a program"
        if actor_class is None or reason:
            self.runtime.counters.refused_spawns += 1
            msg = f"{order.actor_class} cannot be created for another system: {reason}"
            raise NotSpawnable(msg)
        ref = system.creator.create_for_others(
            actor_class, order.requirements, order.global_name
        )
        if ref is not None and isinstance(order.parent, ActorRef):
            self._end_with(order.parent, ref)
        return ref

    def _end_with(self, parent: ActorRef, ref: ActorRef) -> None:
        """Ask an actor to exit when its parent becomes unreachable."""

        def ended(down: Down) -> None:
            if down.reason == ExitReason.UNREACHABLE:
                self._system.creator.ask_to_exit(ref)

        key = ("parent of", ref)
        parent.target.monitor(key, ended)
        ref.target.monitor(("child of", parent), lambda _: parent.target.demonitor(key))

    def ref_to(self, ref: ActorRef) -> ActorRef:
        """Return a ref for an actor of another system in the same process."""
        return self._node.ref(str(ref))

    def admin_at(self, address: str) -> ActorRef | None:
        """Return the administrator of the system at `host:port`, if known."""
        endpoint = endpoint_of(address)
        if endpoint == self._own:
            return self._system.address
        return self.admins.get(endpoint)

    # --- requests of the system's actors ---

    def invite(self, address: str, _: dict[str, Any]) -> None:
        """Join the system at `host:port`; it sends its own capabilities."""
        self._order(Seek, address, "registered")

    def dismiss(self, address: Any) -> None:
        """Leave the system at an address, or of an administrator."""
        if isinstance(address, ActorRef):
            self._admin.tell(Dismiss(address))
        else:
            self._order(Dismiss, str(address), "deregistered")

    def _order(self, order: Callable[[Endpoint], object], address: str, label: str) -> None:
        """Send the administrator a request about the system at `host:port`."""
        try:
            self._admin.tell(order(endpoint_of(address)))
        except InvalidAddress as error:
            _log.warning("a remote system cannot be %s: %s", label, error)

    def capabilities_changed(self) -> None:
        """Send this system's capabilities to the other systems."""
        self._admin.tell(CapabilitiesChanged())

    @after_fork.nothing_in_copies
    def close(self) -> None:
        """Leave the convention, and close the node."""
        self._node.close()


#: Host names for all addresses of this machine.
_ANYWHERE: Final = frozenset({"localhost", "0.0.0.0", "::"})  # noqa: S104  # compared, not bound


def _awaited(future: Future[Any]) -> Any:
    """Wait on any thread: a blocking handler delays only its own actor."""
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    done.wait(CREATE_TIMEOUT + 1.0)
    return future.result(0.0)


def listing(modules: Collection[str], surely: Collection[type]) -> PlainRegistry:
    """Return a registry with the declared types and the plain classes of these modules."""
    return PlainRegistry(DEFAULT_REGISTRY, modules, imported_class, surely)


def imported_class(module: str, qualified: str) -> type | None:
    """Return a class of an imported module; a peer can never trigger an import."""
    member: object = sys.modules.get(module)
    for name in qualified.split("."):
        if member is None:
            return None
        member = vars(member).get(name) if hasattr(member, "__dict__") else None
    if not isinstance(member, type) or member.__module__ != module:
        return None
    return member if member.__qualname__ == qualified else None


#: The port of Thespian's own TCP base.
DEFAULT_PORT: Final = 1900

LOCAL: Final = "127.0.0.1"


def convention_endpoints(value: Any) -> list[Endpoint]:
    """Parse the capability: `host:port`, `(host, port)`, or a list of these.

    Raises:
        InvalidAddress: the capability has another form.
    """
    return list(_read(value)) if value else []


def endpoint_of(text: str) -> Endpoint:
    """Parse `host:port`; the default host is this machine.

    Raises:
        InvalidAddress: the port is not a number.
    """
    host, _, port = text.rpartition(":") if ":" in text else (text, "", "")
    try:
        return _host(host), int(port or DEFAULT_PORT)
    except ValueError:
        msg = f"{text!r} is not HOST:PORT of a system"
        raise InvalidAddress(msg) from None


def _read(value: Any) -> Iterator[Endpoint]:
    """Yield the endpoints in a value of any nesting."""
    match value:
        case str():
            yield endpoint_of(value)
        case [str() as host, int() as port] if type(port) is int:
            yield _host(host), port
        case list() | tuple():
            for item in value:
                yield from _read(item)
        case _:
            msg = f"'Convention Address.IPv4' is {value!r}; use 'host:port', a pair or a list"
            raise InvalidAddress(msg)


def _host(name: str) -> str:
    """Return a host name; the empty one is this machine."""
    return LOCAL if name in {"", "localhost"} else name
