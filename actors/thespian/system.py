"""The system base: what Thespian's `ActorSystem` calls, on callboard's runtime."""

import logging
import logging.config
import sys
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO

from thespian.actors import (
    ActorAddress,
    ActorExitRequest,
    ChildActorExited,
    DeadEnvelope,
    Thespian_StatusReq,
    ThespianGeneration,
)

from actors.answers import Sender
from actors.reference import ActorRef, ReplyRef
from actors.runtime import Runtime
from actors.thespian.cell import PlainCell
from actors.thespian.creation import PlainActors, is_compatible
from actors.thespian.creator import Creator
from actors.thespian.endpoint import Endpoint, open_endpoint
from actors.thespian.external import ExternalContext
from actors.thespian.names import GlobalNames
from actors.thespian.neighbors import AddressBook, Neighbors
from actors.thespian.opening import open_convention
from actors.thespian.sources import Sources
from actors.thespian.status import system_status

log = logging.getLogger("callboard.thespian")

_SYSTEM_ADDRESS = "/ActorSys"
"""The address that Thespian itself gives to every system."""


class SystemBase(ExternalContext):
    """A Thespian system base that runs actors in this process, on callboard's runtime."""

    def __init__(
        self,
        capabilities: dict[str, Any] | None = None,
        logDefs: Any = False,  # noqa: FBT002  # Thespian's type
        *,
        runtime: Runtime | None = None,
        messages: Collection[str] = (),
    ) -> None:
        """Make a base; nothing starts before the first actor.

        Args:
            capabilities: the system's capabilities; the usual ones are added.
            logDefs: a `logging.config` dictionary; False leaves logging alone.
            runtime: run on an existing runtime (that of a `Node`) instead of an own one.
            messages: names of modules whose plain classes may travel to and from the other
                systems of a convention, which have to list them, too.

        Raises:
            ActorSystemStartupFailure: the 'Admin Port' cannot be opened.
        """
        self.capabilities = capabilities if capabilities is not None else {}
        for name, value in _usual_capabilities().items():
            self.capabilities.setdefault(name, value)
        convention = None if runtime else open_convention(self.capabilities, messages)
        if convention is not None:
            runtime = convention.runtime
        self.runtime = runtime or Runtime("thespian")
        self.runtime.plain = PlainActors(self.capabilities)
        self.runtime.thespian = self
        self.runtime.on_dead_letter.append(self._dead_letter)
        self.names = GlobalNames(self.runtime)
        self.neighbors = Neighbors(self)
        self.sources = Sources(self)
        #: The administrator's address, and the sender of what comes from the system itself.
        self.cell: Endpoint = open_endpoint(self.runtime, self._receive)
        self.dead_letters: ActorRef[Any] | None = None
        self.creator = Creator(self, messages)
        if isinstance(logDefs, dict):
            logging.config.dictConfig(logDefs)
        super().__init__(self)
        if convention is not None:
            self.neighbors.convention = convention
            convention.start(self)

    @property
    def address(self) -> ActorRef[Any]:
        """The address of the system itself."""
        return self.cell.ref

    def ref_of(self, address: ActorAddress) -> ActorRef[Any] | None:
        """Return the ref behind an address; None when it is none of ours."""
        if isinstance(address, ActorRef):
            is_ours = address.home is self.runtime or isinstance(address, ReplyRef)
            if is_ours or self.neighbors.convention is None:
                return address
            # It came from another system of this process.
            return self.neighbors.convention.ref_to(address)
        is_system = getattr(address, "addressDetails", None) == _SYSTEM_ADDRESS
        return self.address if is_system else None

    @property
    def transport(self) -> AddressBook:
        """Looks administrators up by `host:port`, as the transports of Thespian's bases do."""
        return AddressBook(self)

    def external_clone(self) -> ExternalContext:
        """Return a context with its own address and queue, for another thread."""
        return ExternalContext(self)

    def _receive(self, message: Any, sender: Sender | None) -> None:
        """Take what is sent to the system itself."""
        asker = sender.reference(self.runtime) if sender is not None else None
        if isinstance(message, Thespian_StatusReq):
            if asker is not None:
                asker.target.post(system_status(self), self.cell)
        elif not self.sources.decided(message, asker):
            log.debug("the system ignores %r", message)

    def ask_to_exit(self, ref: ActorRef[Any]) -> None:
        """Send an `ActorExitRequest`."""
        ref.target.post(ActorExitRequest(), self.cell)

    # --- dead letters ---

    def handle_dead_letters(self, address: ActorRef[Any], enable: bool) -> None:  # noqa: FBT001
        """Register the one handler of dead letters: the last one wins."""
        if enable:
            self.dead_letters = address
        elif self.dead_letters == address:
            self.dead_letters = None

    def _dead_letter(self, ref: ActorRef[Any], message: Any, sender: Sender | None) -> None:
        handler = self.dead_letters
        if handler is None or isinstance(message, DeadEnvelope | ChildActorExited):
            return
        if handler.actor_id in self.runtime.cells:
            handler.target.post(DeadEnvelope(ref, message), sender)

    # --- capabilities and sources ---

    def update_capability(self, name: str, value: Any) -> None:
        """Set a capability; None removes it. Actors that need what is gone have to exit."""
        if value is None:
            self.capabilities.pop(name, None)
        else:
            self.capabilities[name] = value
        for cell in list(self.runtime.cells.values()):
            if cell.actor is None:
                continue
            requirements = cell.creation.requirements if isinstance(cell, PlainCell) else None
            if not is_compatible(type(cell.actor), self.capabilities, requirements):
                cell.post(ActorExitRequest(), self.cell)
        if self.neighbors.convention is not None:
            self.neighbors.convention.capabilities_changed()

    def updateCapability(self, capabilityName: str, capabilityValue: Any = None) -> None:
        """Thespian's name for `update_capability`."""
        self.update_capability(capabilityName, capabilityValue)

    def loadActorSource(self, fname: str | Path | BinaryIO) -> str:
        """Offer a source to the authority; returns its hash."""
        return self.sources.load(fname)

    def unloadActorSource(self, sourceHash: str) -> None:
        """Create no more actors of a source."""
        self.sources.unload(sourceHash)

    # --- the end ---

    def request_shutdown(self) -> None:
        """Shut down from inside an actor: not on its own thread, which has to end first."""
        threading.Thread(target=self.shutdown, name="callboard-shutdown", daemon=True).start()

    def shutdown(self) -> None:
        """End all actors, leave the convention, and stop the runtime's thread."""
        cells = list(self.runtime.cells.values())
        for cell in cells:
            if isinstance(cell, Endpoint):
                cell.close()
            elif cell.parent is None or not cell.parent.alive:
                cell.post(ActorExitRequest(), None)
                cell.stop()
        for ref in self.creator.abroad():
            ref.target.post(ActorExitRequest(), None)
        self.runtime.await_ends()  # handlers see the request; only who is stuck is killed
        self.sources.close()
        if self.neighbors.convention is not None:
            self.neighbors.convention.close()
        else:
            self.runtime.end_actors()
            self.runtime.close()


def _usual_capabilities() -> dict[str, Any]:
    return {
        "Python Version": tuple(sys.version_info),
        "Thespian Generation": ThespianGeneration,
        "Thespian Version": str(int(time.time() * 1000)),  # noqa: TID251  # a stamp of the start
        "Thespian ActorSystem Name": "callboard",
        "Thespian ActorSystem Version": 1,
        "Thespian Watch Supported": True,
        "AllowRemoteActorSources": "No",
    }
