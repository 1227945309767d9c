"""An actor's runtime under the names of Thespian's contract: what `actor._myRef` offers."""

import contextlib
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from thespian.actors import ActorAddress, InvalidActorAddress, WakeupMessage
from thespian.system.timing import ExpirationTimer

from callboard.actors.cell import Cell
from callboard.actors.errors import MailboxFull
from callboard.actors.reference import ActorRef
from callboard.actors.thespian.cell import Creation, PlainCell
from callboard.actors.thespian.creator import Creator
from callboard.actors.thespian.names import GlobalNames
from callboard.actors.thespian.neighbors import Neighbors
from callboard.actors.thespian.sources import Sources


class ThespianSystem(Protocol):
    """What an actor's context uses of the system."""

    names: GlobalNames
    neighbors: Neighbors
    sources: Sources
    creator: Creator

    def ref_of(self, address: ActorAddress, /) -> ActorRef[Any] | None:
        """Return the ref behind an address; None when it is none of ours."""

    def handle_dead_letters(self, address: ActorRef[Any], /, *, enable: bool) -> None:
        """Register the one handler of dead letters."""

    def updateCapability(self, name: str, value: Any, /) -> None:
        """Set a capability; None removes it."""

    def request_shutdown(self) -> None:
        """Shut down from inside an actor."""


class ThespianContext:
    """The runtime of one actor, for Thespian's own methods."""

    __slots__ = ("_cell",)

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    @property
    def _system(self) -> ThespianSystem:
        return self._cell.runtime.thespian_system()  # type: ignore[no-any-return]

    @property
    def address(self) -> ActorRef[Any]:
        """The actor's own address."""
        return self._cell.ref

    @property
    def globalName(self) -> str | None:
        """The actor's global name, or None."""
        return self._system.names.name_of(self._cell)

    def createActor(
        self,
        actor_class: type | str,
        requirements: dict[str, Any] | None = None,
        global_name: str | None = None,
        source_hash: str | None = None,
    ) -> ActorRef[Any]:
        """Create a child; a failure arrives as `ChildActorExited`, never as an exception."""
        creation = Creation(requirements, source_hash, global_name)
        return self._system.creator.create(actor_class, creation, self._cell)

    def actor_send(self, address: ActorAddress, message: Any) -> None:
        """Send with this actor as sender."""
        target = self._system.ref_of(address)
        if target is None:
            raise InvalidActorAddress(address, "not the address of an actor of this system")
        target.target.post(message, self._cell)

    def wakeupAfter(self, period: timedelta | float, payload: Any = None) -> None:
        """Deliver a `WakeupMessage` after a period; it dies with the actor."""
        delay = period if isinstance(period, timedelta) else timedelta(seconds=period)
        cell, key = self._cell, object()
        # Only plain actors report theirs.
        wakeups = cell.wakeups if isinstance(cell, PlainCell) else {}
        wakeups[key] = ExpirationTimer(delay)

        def wake() -> None:
            wakeups.pop(key, None)
            if cell.alive:
                with contextlib.suppress(MailboxFull):  # it is counted
                    cell.post(WakeupMessage(delay, payload), cell)

        cell.runner.call_later(delay.total_seconds(), wake)

    def handleDeadLetters(self, address: ActorRef[Any], enable: bool = True) -> None:  # noqa: FBT001, FBT002
        """Be told of messages to actors that ended, as `DeadEnvelope`."""
        self._system.handle_dead_letters(address, enable=enable)

    def registerSourceAuthority(self, address: ActorRef[Any]) -> None:
        """Decide which sources may be loaded; the last one that registers does."""
        self._system.sources.authority = address

    def notifyOnSourceAvailability(self, address: ActorRef[Any], enable: bool = True) -> None:  # noqa: FBT001, FBT002
        """Be told of sources that are loaded and unloaded, also of those that are."""
        self._system.sources.notify(address, enable)

    def loadActorSource(self, source: str | Path | BinaryIO) -> str:
        """Ask the source authority to accept a source; returns its hash."""
        return self._system.sources.load(source)

    def unloadActorSource(self, source_hash: str) -> None:
        """Create no more actors of a source."""
        self._system.sources.unload(source_hash)

    def updateCapability(self, name: str, value: Any = None) -> None:
        """Set a capability of the system; None removes it."""
        self._system.updateCapability(name, value)

    def actorSystemShutdown(self) -> None:
        """Shut the whole system down."""
        self._system.request_shutdown()

    def notifyOnSystemRegistrationChanges(self, address: ActorRef[Any], enable: bool) -> None:  # noqa: FBT001
        """Be told of systems that join and leave the convention, also of those in it."""
        self._system.neighbors.notify(address, enable)

    def preRegisterRemoteSystem(self, address: str, capabilities: dict[str, Any]) -> None:
        """Invite the system at `host:port` into the convention."""
        self._system.neighbors.invite(address, capabilities)

    def deRegisterRemoteSystem(self, address: str | ActorAddress) -> None:
        """Drop a system, by its address or that of its administrator."""
        self._system.neighbors.dismiss(address)
