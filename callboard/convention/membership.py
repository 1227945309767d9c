"""Membership in a convention: several Thespian systems, joined over BASP.

A system whose capabilities name an 'Admin Port' stands on a node that listens there, and joins
with the systems at 'Convention Address.IPv4'. `actors` knows nothing of nodes: it finds
`Membership` by an entry point of the package, as what opens a system to others.

Systems join in pairs: one dials (its `Seeker` goes on until the other answers, and again when
it was lost), both tell each other what they can do. Each also introduces the systems that it is
joined with to each other, so that every system of a convention can create actors on every
other one without asking the leader. An administrator that ends or gets out of reach takes its
system out of the convention.
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

#: The name that a system's administrator is registered under on its node.
ADMINISTRATOR: Final = "thespian.administrator"

#: Seconds between two attempts to join.
RETRY: Final = 0.25

#: Seconds that one attempt may take to find the other administrator.
REACH: Final = 2.0


@dataclass(frozen=True, slots=True)
class Seek:
    """Join with the system that listens there."""

    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class Found:
    """A seeker has joined its system with another."""

    endpoint: Endpoint
    other: Join


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Have nothing to do with a system any more."""

    system: Endpoint | ActorRef[Any]


@dataclass(frozen=True, slots=True)
class CapabilitiesChanged:
    """Tell the others what this system can do."""


class Administrator(SystemActor):
    """Knows the other systems of the convention, and creates actors for them."""

    def __init__(self, membership: "Membership") -> None:
        self._membership = membership
        self._watched: set[ActorRef[Any]] = set()
        self._seekers: dict[Endpoint, ActorRef[Seeker]] = {}

    # --- joining ---

    @handler
    def seek(self, order: Seek) -> None:
        """Begin to dial a system."""
        if order.endpoint not in self._seekers:
            seeker = self.spawn(Seeker, self._membership)
            self._seekers[order.endpoint] = seeker
            self.send(seeker, order)

    @handler
    def join(self, other: Join) -> Join | None:
        """Take a system in, or note what it can do."""
        if not _is_join(other):
            return None
        self._take_in(other)
        return self._membership.introduction()

    @handler
    def found(self, found: Found) -> None:
        """Take in the system that a seeker has found."""
        if _is_join(found.other):
            self._take_in(found.other)
            self._membership.note_place(found.endpoint, found.other.admin)

    def _take_in(self, other: Join) -> None:
        """Note a system that this one is joined with, and introduce it to the others."""
        admin, joined = other.admin, self._membership.joined()
        if admin == self.me:
            return
        others = [join for join in joined.values() if join.admin != admin]
        if admin not in joined and others:
            self.send(admin, Introduce(others))
        self._note(other)
        self._membership.neighbors.joined(admin, other.capabilities)
        for known in others:
            self.send(known.admin, Introduce([other]))

    @handler
    def introduce(self, introduction: Introduce) -> None:
        """Note systems that another one is joined with."""
        if type(introduction.systems) is not list:
            return
        joined = self._membership.joined()
        for other in introduction.systems:
            if _is_join(other) and other.admin not in joined and other.admin != self.me:
                self._note(other)

    @handler
    def changed(self, _: CapabilitiesChanged) -> None:
        """Tell all others what this system can do."""
        introduction = self._membership.introduction()
        for admin in self._membership.joined():
            self.send(admin, introduction)

    # --- leaving ---

    def _note(self, other: Join) -> None:
        """Note a system, and hear of the end of its administrator, once."""
        self._membership.known[other.admin] = other
        if other.admin not in self._watched:
            self._watched.add(other.admin)
            self.monitor(other.admin)

    @handler
    def down(self, down: Down) -> None:
        """Forget a system that ended, or that cannot be reached."""
        if self.is_told:
            return
        self._watched.discard(down.ref)
        self._membership.left(down.ref)

    @handler
    def leave(self, leave: Leave) -> None:
        """Forget a system that wants it."""
        sender = self.sender
        if sender is not None and sender == leave.admin:  # nobody speaks for others
            self._membership.left(sender)

    @handler
    def dismiss(self, order: Dismiss) -> None:
        """Stop seeking a system, and forget it."""
        system, admins = order.system, self._membership.admins
        if isinstance(system, ActorRef):
            admin: ActorRef[Any] | None = system
            endpoints = [where for where, ref in admins.items() if ref == system]
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
    """Joins its system with one that listens at an address, again and again."""

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
    """Check what came from another node: fields may have any type there."""
    if type(other) is not Join:
        return False
    fields: tuple[Any, Any] = other.admin, other.capabilities
    return isinstance(fields[0], ActorRef) and type(fields[1]) is dict


_log = logging.getLogger("callboard.thespian")

#: Seconds that another system may take to create an actor.
CREATE_TIMEOUT: Final = 10.0

#: The environment variable with the shared secret of a convention.
SECRET_VARIABLE: Final = "CALLBOARD_SECRET"  # noqa: S105  # the name of it, not one


class SystemNode(Node):
    """The node below a system: it carries plain classes of listed modules."""

    def __init__(self, messages: Collection[str], surely: Collection[type]) -> None:
        super().__init__(
            "thespian",
            secret=os.environ.get(SECRET_VARIABLE) or None,
            surroundings=replace(real_surroundings(), registry=listing(messages, surely)),
        )

    def can_travel(self, value: object) -> bool:
        """Return True for what can be sent to other systems."""
        try:
            self.encode(value)
        except (CallboardError, ValueError):
            return False
        return True


class Membership:
    """What joins one system with others.

    Attributes:
        known: the systems of the convention, by administrator.
        admins: the administrators that were found, by the address that was dialed.
    """

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
        self.known: dict[ActorRef[Any], Join] = {}
        self.admins: dict[Endpoint, ActorRef[Any]] = {}

    @property
    def runtime(self) -> NodeContext:
        """The runtime that the system has to run on."""
        return self._node.context

    def start(self, system: SystemBase) -> None:
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

    @property
    def neighbors(self) -> Neighbors:
        """The systems that this one is joined with, as its actors see them."""
        return self._system.neighbors

    def joined(self) -> dict[ActorRef[Any], Join]:
        """Return the systems that this one is joined with, by administrator."""
        return {admin: self.known[admin] for admin in self.neighbors.known}

    def left(self, admin: ActorRef[Any]) -> None:
        """Forget a system."""
        self.known.pop(admin, None)
        self.neighbors.left(admin)
        if self.neighbors.leader == admin:
            self.neighbors.leader = None

    def note_place(self, endpoint: Endpoint, admin: ActorRef[Any]) -> None:
        """Note where an administrator is; one that this system was told to join leads."""
        self.admins[endpoint] = admin
        if endpoint in self._leaders:
            self.neighbors.leader = admin

    # --- creating ---

    def create(
        self, actor_class: type, creation: Creation, parent: ActorRef[Any] | None
    ) -> ActorRef[Any] | None:
        """Create an actor on a system that its class accepts; None when there is none.

        Blocks for an answer, also in a handler: other actors go on meanwhile.

        Raises:
            NotSpawnable: the only systems that could do it refused.
            RemoteError: its `__init__` raised there.
        """
        name = f"{actor_class.__module__}.{actor_class.__qualname__}"
        wishes = creation.requirements, creation.source_hash, creation.global_name
        order = Create(name, *wishes, parent or self._admin)
        refused: NotSpawnable | None = None
        for other in list(self.known.values()):
            if not is_compatible(actor_class, other.capabilities, creation.requirements):
                continue
            try:
                ref = _awaited(other.admin.ask(order, CREATE_TIMEOUT))
            except NotSpawnable as error:
                refused = error
            except RemoteError:
                raise
            except (CallboardError, TimeoutError) as error:
                _log.warning("%s cannot create %s: %s", other.admin, actor_class, error)
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
        module, _, name = str(order.actor_class).rpartition(".")
        found, why = imported_class(module, name), ""
        if order.source_hash is not None:
            why = "loaded sources are for the system that loaded them"
        elif found is None:
            why = f"no module imported here has it; import {module or 'it'} first"
        elif not system.creator.is_offered(found):
            why = "it is no actor class of a program"
        if found is None or why:
            self.runtime.counters.refused_spawns += 1
            msg = f"{order.actor_class} is not created for another system: {why}"
            raise NotSpawnable(msg)
        ref = system.creator.create_for_others(found, order.requirements, order.global_name)
        if ref is not None and isinstance(order.parent, ActorRef):
            self._end_with(order.parent, ref)
        return ref

    def _end_with(self, parent: ActorRef[Any], ref: ActorRef[Any]) -> None:
        """Let an actor exit when its parent cannot be reached any more."""

        def ended(down: Down) -> None:
            if down.reason == ExitReason.UNREACHABLE:
                self._system.creator.ask_to_exit(ref)

        key = ("parent of", ref)
        parent.target.monitor(key, ended)
        ref.target.monitor(("child of", parent), lambda _: parent.target.demonitor(key))

    def ref_to(self, ref: ActorRef[Any]) -> ActorRef[Any]:
        """Return this system's ref of an actor of another system in the same process."""
        return self._node.ref(str(ref))

    def admin_at(self, address: str) -> ActorRef[Any] | None:
        """Return the administrator of the system at `host:port`, if it is known."""
        endpoint = endpoint_of(address)
        if endpoint == self._own:
            return self._system.address
        return self.admins.get(endpoint)

    # --- orders from the system's actors ---

    def invite(self, address: str, _: dict[str, Any]) -> None:
        """Join with the system at `host:port`; it says itself what it can do."""
        self._order(Seek, address, "registered")

    def dismiss(self, address: Any) -> None:
        """Drop the system at an address, or that of an administrator."""
        if isinstance(address, ActorRef):
            self._admin.tell(Dismiss(address))
        else:
            self._order(Dismiss, str(address), "deregistered")

    def _order(self, order: Callable[[Endpoint], object], address: str, done: str) -> None:
        """Give the administrator an order about the system at `host:port`."""
        try:
            self._admin.tell(order(endpoint_of(address)))
        except InvalidAddress as error:
            _log.warning("a remote system is not %s: %s", done, error)

    def capabilities_changed(self) -> None:
        """Let the others know what this system can do."""
        self._admin.tell(CapabilitiesChanged())

    @after_fork.nothing_in_copies
    def close(self) -> None:
        """Leave, and close the node."""
        self._node.close()


#: Hosts that stand for every address of this machine.
_ANYWHERE: Final = frozenset({"localhost", "0.0.0.0", "::"})  # noqa: S104  # compared, not bound


def _awaited(future: Future[Any]) -> Any:
    """Wait on any thread: a handler that blocks holds up its own actor only."""
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    done.wait(CREATE_TIMEOUT + 1.0)
    return future.result(0.0)


def listing(modules: Collection[str], surely: Collection[type]) -> PlainRegistry:
    """Return a registry with the declared types and the plain classes of these modules."""
    return PlainRegistry(DEFAULT_REGISTRY, modules, imported_class, surely)


def imported_class(module: str, qualified: str) -> type | None:
    """Return a class of a module that is imported already; nothing is imported for a peer."""
    found: object = sys.modules.get(module)
    for name in qualified.split("."):
        if found is None:
            return None
        found = vars(found).get(name) if hasattr(found, "__dict__") else None
    if not isinstance(found, type) or found.__module__ != module:
        return None
    return found if found.__qualname__ == qualified else None


#: The port of Thespian's own TCP base.
DEFAULT_PORT: Final = 1900

LOCAL: Final = "127.0.0.1"


def convention_endpoints(value: Any) -> list[Endpoint]:
    """Read the capability: `host:port`, `(host, port)`, or a list of such.

    Raises:
        InvalidAddress: it has another form.
    """
    return list(_read(value)) if value else []


def endpoint_of(text: str) -> Endpoint:
    """Read `host:port`; without a host it is this machine.

    Raises:
        InvalidAddress: the port is no number.
    """
    host, _, port = text.rpartition(":") if ":" in text else (text, "", "")
    try:
        return _host(host), int(port or DEFAULT_PORT)
    except ValueError:
        msg = f"{text!r} is not HOST:PORT of a system"
        raise InvalidAddress(msg) from None


def _read(value: Any) -> Iterator[Endpoint]:
    """Yield the endpoints of a value, however it is nested."""
    match value:
        case str():
            yield endpoint_of(value)
        case [str() as host, int() as port] if type(port) is int:
            yield _host(host), port
        case list() | tuple():
            for each in value:
                yield from _read(each)
        case _:
            msg = f"'Convention Address.IPv4' is {value!r}; give 'host:port', a pair or a list"
            raise InvalidAddress(msg)


def _host(name: str) -> str:
    """Return the host of a name; none stands for this machine."""
    return LOCAL if name in {"", "localhost"} else name
