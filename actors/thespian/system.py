"""The system base: what Thespian's `ActorSystem` calls, on callboard's runtime."""

import logging
import logging.config
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from thespian.actors import (
    ActorAddress,
    ActorExitRequest,
    ChildActorExited,
    DeadEnvelope,
    NoCompatibleSystemForActor,
    Thespian_StatusReq,
    ThespianGeneration,
)

from actors.answers import Sender
from actors.cell import Cell
from actors.reference import ActorRef
from actors.runtime import Runtime
from actors.thespian.cell import Creation, PlainCell
from actors.thespian.creation import PlainActors, find_class, is_compatible
from actors.thespian.endpoint import Endpoint, open_endpoint
from actors.thespian.external import ExternalContext
from actors.thespian.failed import FailedChild
from actors.thespian.names import GlobalNames
from actors.thespian.neighbors import Neighbors
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
    ) -> None:
        """Make a base; nothing starts before the first actor.

        Args:
            capabilities: the system's capabilities; the usual ones are added.
            logDefs: a `logging.config` dictionary; False leaves logging alone.
            runtime: run on an existing runtime (that of a `Node`) instead of an own one.
        """
        self.capabilities = capabilities if capabilities is not None else {}
        for name, value in _usual_capabilities().items():
            self.capabilities.setdefault(name, value)
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
        self._abroad: set[ActorRef[Any]] = set()
        if isinstance(logDefs, dict):
            logging.config.dictConfig(logDefs)
        super().__init__(self)

    @property
    def address(self) -> ActorRef[Any]:
        """The address of the system itself."""
        return self.cell.ref

    def ref_of(self, address: ActorAddress) -> ActorRef[Any] | None:
        """Return the ref behind an address; None when it is none of ours."""
        if isinstance(address, ActorRef):
            return address
        is_system = getattr(address, "addressDetails", None) == _SYSTEM_ADDRESS
        return self.address if is_system else None

    def external_clone(self) -> ExternalContext:
        """Return a context with its own address and queue, for another thread."""
        return ExternalContext(self)

    def _receive(self, message: Any, sender: Sender | None) -> None:
        """Take what is sent to the system itself."""
        if isinstance(message, Thespian_StatusReq):
            asker = sender.reference(self.runtime) if sender is not None else None
            if asker is not None:
                asker.target.post(system_status(self), self.cell)
        elif not self.sources.decided(message):
            log.debug("the system ignores %r", message)

    # --- creating ---

    def create(
        self,
        actor_class: type | str,
        requirements: dict[str, Any] | None,
        global_name: str | None,
        source_hash: str | None,
        parent: Cell | None,
    ) -> ActorRef[Any]:
        """Create an actor, for a parent or for the outside.

        With a parent a failure is no exception: the address is that of nobody, and the parent
        is told `ChildActorExited`.
        """
        if isinstance(parent, PlainCell):
            if parent.exiting:
                return self.runtime.nobody  # a parent that restarts children would never end
            source_hash = source_hash or parent.creation.source_hash
        creation = Creation(requirements, source_hash, global_name)
        try:
            if global_name:
                return self._create_named(actor_class, creation, global_name, parent)
            return self._create(actor_class, creation, parent)
        except Exception as error:
            if parent is None:
                raise
            log.warning("creating %s failed: %s", actor_class, error)
            failed = FailedChild(self.runtime, str(error)).ref
            parent.post(ChildActorExited(failed), None)
            return failed

    def _create_named(
        self, actor_class: type | str, creation: Creation, name: str, parent: Cell | None
    ) -> ActorRef[Any]:
        """Create the holder of a name: no child, but who created it is told of its end."""
        with self.names.lock:
            held = self.names.holder_of(name)
            if held is not None:
                return held
            ref = self._create(actor_class, creation, None)
            self.names.hold(name, ref)
        if isinstance(parent, PlainCell):
            ref.target.monitor(parent, lambda down: parent.tell_of_end(down.ref))
        return ref

    def _create(
        self, actor_class: type | str, creation: Creation, parent: Cell | None
    ) -> ActorRef[Any]:
        load = None
        if creation.source_hash and isinstance(actor_class, str):
            load = partial(self.sources.load_class, creation.source_hash)
        found = find_class(actor_class, load)
        if is_compatible(found, self.capabilities, creation.requirements):
            args = () if hasattr(found, "attach") else (creation,)
            return self.runtime.spawn(found, args, parent=parent)
        return self._create_abroad(found, creation, parent)

    def _create_abroad(
        self, actor_class: type, creation: Creation, parent: Cell | None
    ) -> ActorRef[Any]:
        ref = None
        if self.neighbors.convention is not None:
            specification = f"{actor_class.__module__}.{actor_class.__qualname__}"
            ref = self.neighbors.convention.create(specification, creation)
        if ref is None:
            raise NoCompatibleSystemForActor(actor_class, "No compatible ActorSystem")
        if isinstance(parent, PlainCell):
            parent.adopt(ref)
        elif parent is None:
            self._abroad.add(ref)
            ref.target.monitor(self, lambda down: self._abroad.discard(down.ref))
        return ref

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
        for ref in list(self._abroad):
            ref.target.post(ActorExitRequest(), None)
        self.runtime.await_ends()  # handlers see the request; only who is stuck is killed
        self.sources.close()
        if self.neighbors.convention is not None:
            self.neighbors.convention.close()
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
