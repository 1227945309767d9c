"""The actors that keep a system in a convention.

Systems join in pairs: one dials (its `Seeker` goes on until the other answers, and again when
it was lost), both tell each other what they can do. Each also introduces the systems that it is
joined with to each other, so that every system of a convention can create actors on every
other one without asking the leader. An administrator that ends or gets out of reach takes its
system out of the convention.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from actors.actor import Actor
from actors.dispatch import handler
from actors.errors import CallboardError
from actors.exit_reason import ExitReason
from actors.reference import ActorRef
from actors.signals import Down
from proxies.address import Endpoint, endpoint_text
from proxies.convention_messages import Create, Introduce, Join, Leave

if TYPE_CHECKING:
    from proxies.convention import Convention

ADMINISTRATOR: Final = "thespian.administrator"
"""The name that a system's administrator is registered under on its node."""

RETRY: Final = 0.25
"""Seconds between two attempts to join."""

REACH: Final = 2.0
"""Seconds that one attempt may take to find the other administrator."""


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


class Administrator(Actor):
    """Knows the other systems of the convention, and creates actors for them."""

    remote_methods = frozenset()

    def __init__(self, convention: "Convention") -> None:
        self._convention = convention
        self._direct: dict[ActorRef[Any], Join] = {}
        self._watched: set[ActorRef[Any]] = set()
        self._seekers: dict[Endpoint, ActorRef[Seeker]] = {}
        self._found: dict[Endpoint, ActorRef[Any]] = {}

    # --- joining ---

    @handler
    def seek(self, order: Seek) -> None:
        """Begin to dial a system."""
        if order.endpoint not in self._seekers:
            seeker = self.spawn(Seeker, self._convention)
            self._seekers[order.endpoint] = seeker
            self.send(seeker, order)

    @handler
    def join(self, other: Join) -> Join | None:
        """Take a system in, or note what it can do."""
        if not _is_join(other):
            return None
        self._take_in(other)
        return self._convention.introduction()

    @handler
    def found(self, found: Found) -> None:
        """Take in the system that a seeker has found."""
        if _is_join(found.other):
            self._found[found.endpoint] = found.other.admin
            self._take_in(found.other)
            self._convention.note_place(found.endpoint, found.other.admin)

    def _take_in(self, other: Join) -> None:
        admin = other.admin
        if admin == self.me:
            return
        others = [join for join in self._direct.values() if join.admin != admin]
        if admin not in self._direct and others:
            self.send(admin, Introduce(others))
        self._direct[admin] = other
        self._watch(admin)
        self._convention.joined(other)
        for known in others:
            self.send(known.admin, Introduce([other]))

    @handler
    def introduce(self, introduction: Introduce) -> None:
        """Note systems that another one is joined with."""
        if type(introduction.systems) is not list:
            return
        for other in introduction.systems:
            if _is_join(other) and other.admin not in self._direct and other.admin != self.me:
                self._watch(other.admin)
                self._convention.introduced(other)

    @handler
    def changed(self, _: CapabilitiesChanged) -> None:
        """Tell all others what this system can do."""
        introduction = self._convention.introduction()
        for admin in self._direct:
            self.send(admin, introduction)

    # --- leaving ---

    def _watch(self, admin: ActorRef[Any]) -> None:
        if admin not in self._watched:
            self._watched.add(admin)
            self.monitor(admin)

    @handler
    def down(self, down: Down) -> None:
        """Forget a system that ended, or that cannot be reached."""
        self._watched.discard(down.ref)
        self._forget(down.ref)

    @handler
    def leave(self, leave: Leave) -> None:
        """Forget a system that wants it."""
        sender = self.sender
        if sender is not None and sender == leave.admin:  # nobody speaks for others
            self._forget(sender)

    @handler
    def dismiss(self, order: Dismiss) -> None:
        """Stop seeking a system, and forget it."""
        system = order.system
        if isinstance(system, ActorRef):
            admin: ActorRef[Any] | None = system
            endpoints = [where for where, ref in self._found.items() if ref == system]
        else:
            admin = self._found.get(system)
            endpoints = [system]
        for endpoint in endpoints:
            seeker = self._seekers.pop(endpoint, None)
            if seeker is not None:
                seeker.kill()
            self._found.pop(endpoint, None)
        if admin in self._direct:
            self.send(admin, Leave(self.me))
            self._forget(admin)

    def _forget(self, admin: ActorRef[Any]) -> None:
        self._direct.pop(admin, None)
        self._convention.left(admin)

    # --- creating ---

    @handler
    def create(self, order: Create) -> ActorRef[Any] | None:
        """Create an actor for another system."""
        try:
            ref = self._convention.create_here(order)
        except Exception as error:  # noqa: BLE001  # the failure of __init__ is the asker's
            self.promise().set_exception(error)
            return None
        if ref is not None and isinstance(order.parent, ActorRef):
            self._end_with(order.parent, ref)
        return ref

    def _end_with(self, parent: ActorRef[Any], ref: ActorRef[Any]) -> None:
        """Let an actor exit when its parent cannot be reached any more."""
        convention = self._convention

        def ended(down: Down) -> None:
            if down.reason == ExitReason.UNREACHABLE:
                convention.ask_to_exit(ref)

        key = ("parent of", ref)
        parent.target.monitor(key, ended)
        ref.target.monitor(("child of", parent), lambda _: parent.target.demonitor(key))


class Seeker(Actor):
    """Joins its system with one that listens at an address, again and again."""

    remote_methods = frozenset()

    def __init__(self, convention: "Convention") -> None:
        self._convention = convention

    @handler
    async def seek(self, order: Seek) -> None:
        """Dial until it is killed."""
        address = f"{endpoint_text(order.endpoint)}/{ADMINISTRATOR}"
        while True:
            try:
                admin = await self.node.aremote_actor(address, REACH)
                other = await admin.ask(self._convention.introduction(), REACH)
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
