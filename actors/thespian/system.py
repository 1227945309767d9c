"""The system base: what Thespian's `ActorSystem` calls, on callboard's runtime.

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
from callboard.actors.seconds import seconds
from callboard.actors.thespian.cell import Creation, PlainCell
from callboard.actors.thespian.creator import Creator, is_compatible
from callboard.actors.thespian.neighbors import ConventionWays, Neighbors
from callboard.actors.thespian.sources import Sources
from callboard.support.slots import OPENERS

log = logging.getLogger("callboard.thespian")

#: The module by which Thespian finds the base.
MODULE: Final = "thespian.system.callboard"

#: The address that Thespian itself gives to every system.
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
    """The runtime of one actor, for Thespian's own methods: what `actor._myRef` offers."""

    __slots__ = ("_cell",)

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    @property
    def _system(self) -> "SystemBase":
        return self._cell.runtime.thespian_system()  # type: ignore[no-any-return]

    @property
    def address(self) -> ActorRef[Any]:
        """The actor's own address."""
        return self._cell.ref

    @property
    def globalName(self) -> str | None:
        """The actor's global name, or None."""
        return self._system.creator.name_of(self._cell)

    def createActor(self, actor_class: type | str, *wishes: Any) -> ActorRef[Any]:
        """Create a child; a failure arrives as `ChildActorExited`, never as an exception."""
        return self._system.creator.create(actor_class, Creation(*wishes), self._cell)

    def actor_send(self, address: thespian.ActorAddress, message: Any) -> None:
        """Send with this actor as sender."""
        target = self._system.ref_of(address)
        if target is None:
            raise thespian.InvalidActorAddress(
                address, "not the address of an actor of this system"
            )
        target.target.post(message, self._cell)

    def wakeupAfter(self, period: timedelta | float, payload: Any = None) -> None:
        """Deliver a `WakeupMessage` after a period; it dies with the actor."""
        if isinstance(period, timedelta):
            delay = period
        else:
            delay = timedelta(seconds=seconds(period, "wakeupAfter"))
        cell, key = self._cell, object()
        # Only plain actors report theirs.
        wakeups = cell.wakeups if isinstance(cell, PlainCell) else {}
        wakeups[key] = ExpirationTimer(delay)

        def wake() -> None:
            wakeups.pop(key, None)
            if cell.alive:
                with contextlib.suppress(MailboxFull):  # it is counted
                    cell.post(thespian.WakeupMessage(delay, payload), cell)

        cell.runner.call_later(delay.total_seconds(), wake)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the system's, under the same name."""
        return getattr(self._system, name)


class PlainActors:
    """How the runtime makes actors of classes that are Thespian's and not callboard's."""

    cell_class: Final = PlainCell

    def __init__(self, capabilities: dict[str, Any]) -> None:
        self._capabilities = capabilities

    def attach(
        self, actor_class: type, cell: Cell, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Make the actor of a cell; a `Creation` as only argument says what was asked for."""
        if not issubclass(actor_class, thespian.Actor):
            msg = (
                f"{actor_class.__qualname__} is no actor class; derive it from callboard.Actor"
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
            # Thespian keeps this list on the class; in one process the instances must not share
            # it.
            actor._post_init_pending = []
        actor._myRef = ThespianContext(cell)
        return actor


class Endpoint(Cell):
    """An address that actors of this node and of others can send to.

    The function is called on the thread of the sender, or the runner's for a remote one, and
    must not block.
    """

    __slots__ = ("_receive",)

    def __init__(self, runtime: Runtime, number: int, receive: Receiver) -> None:
        super().__init__(runtime, runtime.runner, number, NO_HANDLERS, None, runtime.now())
        self._receive = receive
        self.running = False

    def post(self, message: Any, sender: Sender | None = None) -> None:
        """Hand a message to the function; after the end it is a dead letter."""
        if isinstance(message, Envelope):
            message = message.message
        if self.alive:
            self._receive(message, sender)
        else:
            self.runtime.dead_letter(self.ref, message, sender)

    def post_urgent(self, message: Any, sender: Sender | None = None) -> None:
        """Hand a message to the function: there is nothing that it could overtake."""
        self.post(message, sender)

    def close(self) -> None:
        """End the endpoint; on the calling thread, since no handler can be under way."""
        if self.alive:
            self.abort(ExitReason.NORMAL, "closed")


def open_endpoint(runtime: Runtime, receive: Receiver) -> Endpoint:
    """Open an address of this node; its messages go to `receive(message, sender)`."""
    return runtime.place(lambda number: Endpoint(runtime, number, receive))


class External(Reply):
    """A place outside the system that sends and receives; it has an address like an actor.

    It is the sender of an `ask`: what a `@handler` returns answers it as an ordinary message.
    """

    expects: Final[Literal[True]] = True  # noqa: PYI064  # the type tells it from a cell
    is_done: Final = True  # nothing is owed to it when an actor ends
    deadline: Final = None

    def __init__(self, runtime: Runtime) -> None:
        #: What came and no ask or listen has taken yet.
        self.received: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.cell = open_endpoint(runtime, lambda message, _: self.put(message))

    def put(self, message: Any) -> None:
        """Keep a message for the next ask or listen, unless it is internal to Thespian."""
        if not _is_internal(message):
            self.received.put(message)

    # --- as the sender of an ask ---

    def set_result(self, value: Any) -> bool:
        """Receive what a handler returned; None is what those return that answer nothing."""
        if value is not None:
            self.put(value)
        return True

    def set_exception(self, error: BaseException) -> bool:
        """Thespian's `ask` learns nothing of errors: it runs out of time."""
        return True

    def mark_handled(self) -> None:
        """Answers come as ordinary messages."""

    def reference(self, _: object) -> ActorRef[Any]:
        """Return the address that actors see as the sender."""
        return self.cell.ref


class ExternalContext:
    """The calls that code outside of actors makes, with a queue of its own (`private()`)."""

    def __init__(self, system: "SystemBase") -> None:
        self._system = system
        self._external = External(system.runtime)

    def tell(self, address: thespian.ActorAddress, message: Any) -> None:
        """Send without waiting; what a handler returns goes nowhere."""
        target = self._system.ref_of(address)
        if target is not None:
            target.target.post(message, self._external.cell)

    def ask(
        self, address: thespian.ActorAddress, message: Any, timeout: timedelta | float | None
    ) -> Any:
        """Send, then return the next message that comes here; None when time is over."""
        target = self._system.ref_of(address)
        if target is not None:
            external = self._external
            # An asker of another node is answered once; Thespian's actors may answer often.
            target.target.post(message, external if target.is_local else external.cell)
        return self.listen(timeout)

    def listen(self, timeout: timedelta | float | None) -> Any:
        """Return the next message that anybody sends here; None when time is over."""
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        try:
            return self._external.received.get(
                timeout=None if seconds is None else max(seconds, 0.0)
            )
        except queue.Empty:
            return None

    def newPrimaryActor(self, actor_class: type | str, *wishes: Any) -> ActorRef[Any]:
        """Create an actor without a parent; raises what its creation raises."""
        return self._system.creator.create(actor_class, Creation(*wishes), None)

    def exit_context(self) -> None:
        """Leave a `private()` block; what still arrives is a dead letter."""
        self._external.cell.close()


def _is_internal(message: Any) -> bool:
    try:
        return bool(isInternalActorSystemMessage(message))
    except AttributeError:  # what came from another system may lack attributes
        return True


class SystemConvention(ConventionWays, Protocol):
    """What joins this system with others; made before the system, since it has the runtime."""

    @property
    def runtime(self) -> Runtime:
        """The runtime that the system has to run on."""

    def start(self, system: "SystemBase", /) -> None:
        """Begin: the system is made."""


#: Makes the convention of a system with an 'Admin Port', of its capabilities, the modules whose
#: plain classes may travel, and the classes that always do.
Opener = Callable[[dict[str, Any], Collection[str], Collection[type]], SystemConvention]


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
        #: The administrator's address, and the sender of what comes from the system itself.
        self.cell: Endpoint = open_endpoint(self.runtime, self._receive)
        self.address = self.cell.ref
        self.neighbors = Neighbors(self.runtime, self.cell)
        #: Looks administrators up by `host:port`, as the transports of Thespian's bases do.
        self.transport = self.neighbors
        self.sources = Sources(self.cell)
        self.dead_letters: ActorRef[Any] | None = None
        self.creator = Creator(self.neighbors, self.sources, self.capabilities, messages)
        # The calls of actors and of the outside, under Thespian's names.
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

    def ref_of(self, address: thespian.ActorAddress) -> ActorRef[Any] | None:
        """Return the ref behind an address; None when it is none of ours."""
        if isinstance(address, ActorRef):
            is_ours = address.home is self.runtime or isinstance(address, ReplyRef)
            if is_ours or self.neighbors.convention is None:
                return address
            # It came from another system of this process.
            return self.neighbors.convention.ref_to(address)
        is_system = getattr(address, "addressDetails", None) == _SYSTEM_ADDRESS
        return self.address if is_system else None

    def external_clone(self) -> ExternalContext:
        """Return a context with its own address and queue, for another thread."""
        return ExternalContext(self)

    def _receive(self, message: Any, sender: Sender | None) -> None:
        """Take what is sent to the system itself."""
        asker = sender.reference(self.runtime) if sender is not None else None
        if isinstance(message, thespian.Thespian_StatusReq):
            if asker is not None:
                asker.target.post(self.status(), self.cell)
        elif not self.sources.decided(message, asker):
            log.debug("the system ignores %r", message)

    def status(self) -> Any:
        """Return what Thespian's tools show of the self."""
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
        status.setNotifyHandlers(list(neighbors.told))
        status.sourceAuthority = self.sources.authority
        status.loadedSources = [(each, "") for each in self.sources.loaded()]
        status.addReceived(runtime.handled)
        return status

    # --- dead letters ---

    def handleDeadLetters(self, address: ActorRef[Any], enable: bool) -> None:  # noqa: FBT001
        """Register the one handler of dead letters: the last one wins."""
        if enable:
            self.dead_letters = address
        elif self.dead_letters == address:
            self.dead_letters = None

    def _dead_letter(self, ref: ActorRef[Any], message: Any, sender: Sender | None) -> None:
        handler = self.dead_letters
        if handler is None or isinstance(
            message, thespian.DeadEnvelope | thespian.ChildActorExited
        ):
            return
        if handler.actor_id in self.runtime.contexts:
            handler.target.post(thespian.DeadEnvelope(ref, message), sender)

    # --- capabilities and sources ---

    def updateCapability(self, capabilityName: str, capabilityValue: Any = None) -> None:
        """Set a capability; None removes it. Actors that need what is gone have to exit."""
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

    def registerSourceAuthority(self, address: ActorRef[Any]) -> None:
        """Let an actor decide which sources may be loaded; the last one that registers does."""
        self.sources.authority = address

    # --- the end ---

    def actorSystemShutdown(self) -> None:
        """Shut down from inside an actor: not on its own thread, which has to end first."""
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
        self.runtime.await_ends()  # handlers see the request; only stuck actors are killed
        self.sources.close()
        if self.neighbors.convention is not None:
            self.neighbors.convention.close()
        else:
            self.runtime.end_actors()
            self.runtime.close()


def open_convention(
    capabilities: dict[str, Any], messages: Collection[str]
) -> SystemConvention | None:
    """Open the port of a system that has one.

    Raises:
        ActorSystemStartupFailure: it cannot be opened.
    """
    if capabilities.get("Admin Port") is None:
        return None
    opener: Opener = OPENERS.load("convention")
    try:
        return opener(capabilities, messages, TRAVELING)
    except (OSError, CallboardError) as error:
        msg = f"'Admin Port' {capabilities['Admin Port']} cannot be opened: {error}"
        raise thespian.ActorSystemStartupFailure(msg) from error


def _usual_capabilities() -> dict[str, Any]:
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
    """Make the base of an `ActorSystem`; it shares the system's capabilities."""
    base = SystemBase(system.capabilities, logDefs or False)
    system.systemAddress = base.address
    return base


def register_by_name() -> None:
    """Enter the module that Thespian imports."""
    module = types.ModuleType(MODULE, "callboard's system base, by name")
    module.ActorSystemBase = make_base  # type: ignore[attr-defined]
    sys.modules[MODULE] = module
