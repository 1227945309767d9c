"""The system base: Thespian's `ActorSystem` on callboard's runtime.

`ActorSystem("callboard")` finds the base by name: Thespian imports `thespian.system.NAME` and
calls its `ActorSystemBase(system, logDefs=…)`.
"""

import contextlib
import logging
import queue
import sys
import threading
import time
import types
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any, Final, Literal, Protocol

from thespian import actors as thespian
from thespian.system import isInternalActorSystemMessage
from thespian.system.messages.status import Thespian_ActorStatus, Thespian_SystemStatus
from thespian.system.timing import ExpirationTimer
from thespian.system.utilis import withPossibleInitArgs

from callboard.actors.asking.reply import Reply
from callboard.actors.cell import Cell
from callboard.actors.dispatch import NO_HANDLERS
from callboard.actors.envelope import Envelope
from callboard.actors.errors import CallboardError, MailboxFull, WrongArgument
from callboard.actors.exit_reason import ExitReason
from callboard.actors.reference import ActorRef, ReplyRef, Sender
from callboard.actors.runtime import Runtime
from callboard.actors.thespian.cell import Creation, PlainCell
from callboard.actors.thespian.creator import Creator, is_compatible
from callboard.actors.thespian.neighbors import ConventionWays, Neighbors
from callboard.actors.thespian.sources import Sources
from callboard.arguments import seconds
from callboard.support.calls import Arguments, Keywords
from callboard.support.slots import OPENERS

_log = logging.getLogger("callboard.thespian")

#: The module that Thespian imports to find the base.
MODULE: Final = "thespian.system.callboard"

#: The address of every system in Thespian.
_SYSTEM_ADDRESS: Final = "/ActorSys"

#: Thespian's own messages that other systems may send.
TRAVELING: Final = (
    thespian.ActorExitRequest,
    ExpirationTimer,
    thespian.PoisonMessage,
    Thespian_ActorStatus,
    thespian.Thespian_StatusReq,
    Thespian_SystemStatus,
)

Receiver = Callable[[Any, Sender | None], object]


class ThespianContext:
    """The runtime of one actor as Thespian's methods see it, in `actor._myRef`."""

    __slots__ = ("_cell",)

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    @property
    def _system(self) -> "SystemBase":
        return self._cell.runtime.thespian_system()  # type: ignore[no-any-return]

    @property
    def address(self) -> ActorRef:
        """The actor's own address."""
        return self._cell.ref

    @property
    def globalName(self) -> str | None:
        """The global name of the actor, or None."""
        return self._system.creator.name_of(self._cell)

    def createActor(self, actor_class: type | str, *wishes: Any) -> ActorRef:
        """Create a child; a failure is reported by `ChildActorExited`, not by an exception."""
        return self._system.creator.create(actor_class, Creation(*wishes), self._cell)

    def actor_send(self, address: thespian.ActorAddress, message: Any) -> None:
        """Send a message with this actor as its sender."""
        target = self._system.ref_of(address)
        if target is None:
            raise thespian.InvalidActorAddress(
                address, "not the address of an actor of this system"
            )
        target.target.post(message, self._cell)

    def wakeupAfter(self, period: timedelta | float, payload: Any = None) -> None:
        """Deliver a `WakeupMessage` after a period, unless the actor ends first."""
        if isinstance(period, timedelta):
            delay = period
        else:
            delay = timedelta(seconds=seconds(period, "wakeupAfter"))
        cell, key = self._cell, object()
        # Only plain actors report them in their status.
        wakeups = cell.wakeups if isinstance(cell, PlainCell) else {}
        wakeups[key] = ExpirationTimer(delay)

        def wake() -> None:
            wakeups.pop(key, None)
            if cell.alive:
                with contextlib.suppress(MailboxFull):  # the mailbox has counted it
                    cell.post(thespian.WakeupMessage(delay, payload), cell)

        cell.runner.call_later(delay.total_seconds(), wake)

    def __getattr__(self, name: str) -> Any:
        """Return another attribute from the system."""
        return getattr(self._system, name)


class PlainActors:
    """Creates actors of Thespian's classes for the runtime."""

    cell_class: Final = PlainCell

    def __init__(self, capabilities: Keywords) -> None:
        self._capabilities = capabilities

    def attach(self, actor_class: type, cell: Cell, args: Arguments, kwargs: Keywords) -> Any:
        """Create the actor of a cell; `args` may be a `Creation`."""
        if not issubclass(actor_class, thespian.Actor):
            msg = (
                f"{actor_class.__qualname__} is not an actor class; derive it from "
                "callboard.Actor"
            )
            raise WrongArgument(msg)
        assert isinstance(cell, PlainCell)
        if args and isinstance(args[0], Creation):
            cell.creation, args = args[0], ()
        if args or kwargs:
            actor = actor_class(*args, **kwargs)
        else:
            actor = withPossibleInitArgs(
                capabilities=self._capabilities, requirements=cell.creation.requirements
            ).create(actor_class)
        if hasattr(actor_class, "_post_init_pending"):
            # Thespian keeps this list on the class, but instances in one process must not share
            # it.
            actor._post_init_pending = []
        actor._myRef = ThespianContext(cell)
        return actor


class Endpoint(Cell):
    """An address for messages of actors on any node.

    The function is called on the thread of the sender, or on the runner's for a remote sender.
    It must not block.
    """

    __slots__ = ("_receive",)

    def __init__(self, runtime: Runtime, number: int, receive: Receiver) -> None:
        super().__init__(runtime, runtime.runner, number, NO_HANDLERS, None, runtime.now())
        self._receive = receive
        self.running, self.is_open = False, True

    def post(self, message: Any, sender: Sender | None = None) -> None:
        """Pass a message to the function; after the end it is a dead letter."""
        if isinstance(message, Envelope):
            message = message.message
        if self.alive:
            self._receive(message, sender)
        else:
            self.runtime.dead_letter(self.ref, message, sender)

    def post_urgent(self, message: Any, sender: Sender | None = None) -> None:
        """Pass a message to the function, without a queue that it could overtake."""
        self.post(message, sender)

    def close(self) -> None:
        """End the endpoint; on the calling thread, because no handler of it can be running."""
        if self.alive:
            self.abort(ExitReason.NORMAL, "closed")


def open_endpoint(runtime: Runtime, receive: Receiver) -> Endpoint:
    """Open an address of this node whose messages are passed to `receive(message, sender)`."""
    return runtime.place(lambda number: Endpoint(runtime, number, receive))


class External(Reply):
    """A sender and receiver outside of actors, with an address like an actor.

    It is the sender of an `ask`, so that the result of a `@handler` arrives as a message.
    """

    expects: Final[Literal[True]] = True  # noqa: PYI064  # the type distinguishes it from a cell
    is_done: Final = True  # actors do not track it as an unanswered asker
    deadline: Final = None

    def __init__(self, runtime: Runtime) -> None:
        #: Messages that no `ask` or `listen` has returned.
        self.received: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.cell = open_endpoint(runtime, lambda message, _: self.put(message))

    def put(self, message: Any) -> None:
        """Store a message for the next `ask` or `listen`, unless it is internal to Thespian."""
        if not _is_internal(message):
            self.received.put(message)

    # --- as the sender of an ask ---

    def set_result(self, value: Any) -> bool:
        """Store the result of a handler; None does not answer in Thespian."""
        if value is not None:
            self.put(value)
        return True

    def set_exception(self, error: BaseException) -> bool:
        """Ignore an error: an `ask` of Thespian times out instead."""
        return True

    def mark_handled(self) -> None:
        """Do nothing, as answers arrive as ordinary messages."""

    def reference(self, _: object) -> ActorRef:
        """Return the address that is the sender for actors."""
        return self.cell.ref


class ExternalContext:
    """The calls of code outside of actors, with its own queue (`private()`)."""

    def __init__(self, system: "SystemBase") -> None:
        self._system = system
        self._external = External(system.runtime)

    def tell(self, address: thespian.ActorAddress, message: Any) -> None:
        """Send without waiting; the result of a handler is dropped."""
        target = self._system.ref_of(address)
        if target is not None:
            target.target.post(message, self._external.cell)

    def ask(
        self, address: thespian.ActorAddress, message: Any, timeout: timedelta | float | None
    ) -> Any:
        """Send, then return the next received message; None after the timeout."""
        target = self._system.ref_of(address)
        if target is not None:
            external = self._external
            # A remote ask has one answer, but actors of Thespian may answer several times.
            target.target.post(message, external if target.is_local else external.cell)
        return self.listen(timeout)

    def listen(self, timeout: timedelta | float | None) -> Any:
        """Return the next received message; None after the timeout."""
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        try:
            return self._external.received.get(
                timeout=None if seconds is None else max(seconds, 0.0)
            )
        except queue.Empty:
            return None

    def newPrimaryActor(self, actor_class: type | str, *wishes: Any) -> ActorRef:
        """Create an actor without a parent; a failure is raised."""
        return self._system.creator.create(actor_class, Creation(*wishes), None)

    def exit_context(self) -> None:
        """Leave a `private()` block; later messages are dead letters."""
        self._external.cell.close()


def _is_internal(message: Any) -> bool:
    try:
        return bool(isInternalActorSystemMessage(message))
    except AttributeError:  # messages of other systems may lack attributes
        return True


class SystemConvention(ConventionWays, Protocol):
    """Joins this system with others; created before the system, which uses its runtime."""

    @property
    def runtime(self) -> Runtime:
        """The runtime for the system."""

    def start(self, system: "SystemBase", /) -> None:
        """Start, after the creation of the system."""


#: Opens the convention of a system with an 'Admin Port': (its capabilities, the modules whose
#: plain classes may travel, the classes that always may).
Opener = Callable[[Keywords, Collection[str], Collection[type]], SystemConvention]


class SystemBase(ExternalContext):
    """A Thespian system base that runs actors in this process, on callboard's runtime."""

    def __init__(
        self,
        capabilities: Keywords | None = None,
        logDefs: Any = False,  # noqa: FBT002  # Thespian's type
        *,
        runtime: Runtime | None = None,
        messages: Collection[str] = (),
    ) -> None:
        """Create a base; nothing starts before the first actor.

        Args:
            capabilities: the capabilities of the system; the usual ones are added.
            logDefs: a `logging.config` dictionary; False leaves logging unchanged.
            runtime: an existing runtime (that of a `Node`); a new one by default.
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
        #: The administrator's address, and the sender of messages from the system itself.
        self.cell: Endpoint = open_endpoint(self.runtime, self._receive)
        self.address = self.cell.ref
        self.neighbors = Neighbors(self.runtime, self.cell)
        #: Finds administrators by `host:port`, like the transports of Thespian's bases.
        self.transport = self.neighbors
        self.sources = Sources(self.cell)
        self.dead_letters: ActorRef | None = None
        self.creator = Creator(self.neighbors, self.sources, self.capabilities, messages)
        # The interface of Thespian, for actors and for code outside of them.
        self.loadActorSource, self.unloadActorSource = self.sources.load, self.sources.unload
        self.notifyOnSourceAvailability = self.sources.notify
        self.notifyOnSystemRegistrationChanges = self.neighbors.notify
        self.preRegisterRemoteSystem = self.neighbors.invite
        self.deRegisterRemoteSystem = self.neighbors.dismiss
        if isinstance(logDefs, dict):
            from logging.config import dictConfig

            dictConfig(logDefs)
        super().__init__(self)
        if convention is not None:
            self.neighbors.convention = convention
            convention.start(self)

    def ref_of(self, address: thespian.ActorAddress) -> ActorRef | None:
        """Return the ref of an address; None if it is not an address of this system."""
        if isinstance(address, ActorRef):
            is_ours = address.home is self.runtime or isinstance(address, ReplyRef)
            if is_ours or self.neighbors.convention is None:
                return address
            # It belongs to another system of this process.
            return self.neighbors.convention.ref_to(address)
        is_system = getattr(address, "addressDetails", None) == _SYSTEM_ADDRESS
        return self.address if is_system else None

    def external_clone(self) -> ExternalContext:
        """Return a context with its own address and queue, for another thread."""
        return ExternalContext(self)

    def _receive(self, message: Any, sender: Sender | None) -> None:
        """Handle a message to the system itself."""
        asker = sender.reference(self.runtime) if sender is not None else None
        if isinstance(message, thespian.Thespian_StatusReq):
            if asker is not None:
                asker.target.post(self.status(), self.cell)
        elif not self.sources.decided(message, asker):
            _log.debug("the system ignores %r", message)

    def status(self) -> Any:
        """Return the status of the system for Thespian's tools."""
        runtime = self.runtime
        neighbors = self.neighbors
        status = Thespian_SystemStatus(
            self.address, neighbors.leader, dict(self.capabilities), runtime.is_closed
        )
        for cell in list(runtime.contexts.values()):
            if cell.parent is None and cell.actor is not None:
                status.addChild(cell.ref)
        for address in list(neighbors.known):
            status.addConventioneer(address, "while linked")
        for name, address in list(self.creator.named.items()):
            status.addGlobalActor(name, address)
        status.setDeadLetterHandler(self.dead_letters)
        status.setNotifyHandlers(list(neighbors.observers))
        status.sourceAuthority = self.sources.authority
        status.loadedSources = [(source_hash, "") for source_hash in self.sources.loaded()]
        status.addReceived(runtime.handled)
        return status

    # --- dead letters ---

    def handleDeadLetters(self, address: ActorRef, enable: bool) -> None:  # noqa: FBT001
        """Set or remove the handler of dead letters; the last one set is used."""
        if enable:
            self.dead_letters = address
        elif self.dead_letters == address:
            self.dead_letters = None

    def _dead_letter(self, ref: ActorRef, message: Any, sender: Sender | None) -> None:
        handler = self.dead_letters
        if handler is None or isinstance(
            message, thespian.DeadEnvelope | thespian.ChildActorExited
        ):
            return
        if handler.actor_id in self.runtime.contexts:
            handler.target.post(thespian.DeadEnvelope(ref, message), sender)

    # --- capabilities and sources ---

    def updateCapability(self, capabilityName: str, capabilityValue: Any = None) -> None:
        """Set a capability; None removes it. Actors that the system no longer suits exit."""
        if capabilityValue is None:
            self.capabilities.pop(capabilityName, None)
        else:
            self.capabilities[capabilityName] = capabilityValue
        for cell in list(self.runtime.contexts.values()):
            if cell.actor is None:
                continue
            requirements = cell.creation.requirements if isinstance(cell, PlainCell) else None
            if not is_compatible(type(cell.actor), self.capabilities, requirements):
                cell.post(thespian.ActorExitRequest(), self.cell)
        if self.neighbors.convention is not None:
            self.neighbors.convention.capabilities_changed()

    def registerSourceAuthority(self, address: ActorRef) -> None:
        """Set the actor that decides which sources may be loaded; the last one set is used."""
        self.sources.authority = address

    # --- the end ---

    def actorSystemShutdown(self) -> None:
        """Shut down from inside an actor, on another thread, as the actor has to end first."""
        threading.Thread(target=self.shutdown, name="callboard-shutdown", daemon=True).start()

    def shutdown(self) -> None:
        """End all actors, leave the convention, and stop the runtime's thread."""
        cells = list(self.runtime.contexts.values())
        for cell in cells:
            if isinstance(cell, Endpoint):
                cell.close()
            elif cell.parent is None or not cell.parent.alive:
                cell.post(thespian.ActorExitRequest(), None)
                cell.stop()
        for ref in list(self.creator.abroad):
            ref.target.post(thespian.ActorExitRequest(), None)
        self.runtime.await_ends()  # handlers receive the request; only stuck actors are killed
        self.sources.close()
        if self.neighbors.convention is not None:
            self.neighbors.convention.close()
        else:
            self.runtime.end_actors()
            self.runtime.close()


def open_convention(
    capabilities: Keywords, messages: Collection[str]
) -> SystemConvention | None:
    """Open the port of a system that has an 'Admin Port'.

    Raises:
        ActorSystemStartupFailure: the port cannot be opened.
    """
    if capabilities.get("Admin Port") is None:
        return None
    opener: Opener = OPENERS.load("convention")
    try:
        return opener(capabilities, messages, TRAVELING)
    except (OSError, CallboardError) as error:
        msg = f"'Admin Port' {capabilities['Admin Port']} cannot be opened: {error}"
        raise thespian.ActorSystemStartupFailure(msg) from error


def _usual_capabilities() -> Keywords:
    return {
        "Python Version": tuple(sys.version_info),
        "Thespian Generation": thespian.ThespianGeneration,
        "Thespian Version": str(int(time.time() * 1000)),  # noqa: TID251  # a stamp of the start
        "Thespian ActorSystem Name": "callboard",
        "Thespian ActorSystem Version": 1,
        "Thespian Watch Supported": True,
        "AllowRemoteActorSources": "No",
    }


def make_base(system: Any, logDefs: Any = None) -> SystemBase:
    """Create the base of an `ActorSystem`, which shares the system's capabilities."""
    base = SystemBase(system.capabilities, logDefs or False)
    system.systemAddress = base.address
    return base


def register_by_name() -> None:
    """Register the module that Thespian imports."""
    module = types.ModuleType(MODULE, "callboard's system base, by name")
    module.ActorSystemBase = make_base  # type: ignore[attr-defined]
    sys.modules[MODULE] = module
