"""Thespian programs on callboard's runtime: the base that Thespian's `ActorSystem` takes.

    ActorSystem(systemBase=SystemBase(), transientUnique=True)     handed over as an object
    ActorSystem("callboard")                                       by name, once `actors` is
    imported

Plain Thespian actors keep Thespian's rules: the runtime is attached after `__init__`, a message
whose handler raised is tried a second time with a copy and then returned as `PoisonMessage`, a
parent receives `ChildActorExited` once for each child, and only `ActorExitRequest` ends an
actor.
"""

import copy
import logging
import logging.config
import sys
import threading
import time
import traceback
import types
from collections import deque
from datetime import timedelta
from typing import Any, Final, Literal

from thespian import actors as thespian_actors
from thespian.actors import (
    ActorAddress,
    ActorExitRequest,
    ChildActorExited,
    DeadEnvelope,
    InvalidActorSourceHash,
    InvalidActorSpecification,
    NoCompatibleSystemForActor,
    PoisonMessage,
    ThespianGeneration,
)
from thespian.system import isInternalActorSystemMessage
from thespian.system.utilis import actualActorClass, withPossibleInitArgs

from actors.actor import ThespianContext
from actors.answers import Sender
from actors.cell import Cell
from actors.exit_reason import ExitReason
from actors.reference import ActorRef
from actors.runtime import Runtime
from actors.signals import Call, Down, LinkExit, Stop

log = logging.getLogger("callboard.thespian")

ATTEMPTS: Final = 2
"""How often a plain Thespian actor is given a message before it is poison."""


class PlainCell(Cell):
    """The cell of a plain Thespian actor."""

    __slots__ = ("exiting",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.exiting = False

    def handle_other(self, message: Any, sender: Sender | None) -> None:
        """Every message of a plain actor comes here: it has no `@handler`."""
        if isinstance(message, Call | Stop | LinkExit):
            super().handle_other(message, sender)
        elif isinstance(message, ActorExitRequest):
            self._exit(message, sender)
        else:
            self._receive(message, sender)
            if sender is not None and sender.expects and not getattr(sender, "done_", False):
                self.owe(sender)  # it answers with a send, if it does before it ends

    def _receive(self, message: Any, sender: Sender | None) -> None:
        address = sender.reference(self.runtime) if sender is not None else None
        attempt, given = 1, message
        while True:
            try:
                result = self.actor.receiveMessage(given, address or self.runtime.nobody)
            except Exception:  # noqa: BLE001  # Thespian's rule: once more, then it is poison
                if attempt < ATTEMPTS:
                    # Only a second attempt needs a copy that the first has not touched.
                    attempt, given = attempt + 1, _copied(message)
                    continue
                self._return_poison(message, address)
                return
            if isinstance(result, types.CoroutineType):
                self.start_task(result, None)
            if sender is not None and sender.expects:
                self.owe(sender)
            return

    def _return_poison(self, message: Any, address: ActorRef[Any] | None) -> None:
        details = traceback.format_exc()
        log.warning("%r could not handle %r twice:\n%s", self, message, details)
        self.runtime.counters.failures += 1
        if address is not None and not isinstance(message, PoisonMessage):
            address.target.post(PoisonMessage(message, details), self)

    def _exit(self, request: ActorExitRequest, sender: Sender | None) -> None:
        self.exiting = True
        address = sender.reference(self.runtime) if sender is not None else None
        try:
            self.actor.receiveMessage(request, address or self.runtime.nobody)
        except Exception:
            log.exception("%r failed in its exit request; it ends all the same", self)
        if not request.isRecursive:
            self.children = None
        self.end = self.end or (ExitReason.NORMAL, "")

    def end_child(self, child: Cell) -> None:
        """Ask a child to exit, as Thespian does, so that its handler sees the request."""
        child.post(ActorExitRequest(), self)

    def child_ended(self, child: Cell, down: Down) -> None:
        """Tell the parent, once for each child."""
        if self.children is not None:
            self.children.pop(child, None)
        if self.alive:
            self.post(ChildActorExited(child.ref), child)


class PlainActors:
    """How the runtime makes actors of classes that are Thespian's and not callboard's."""

    cell_class: Final = PlainCell

    def __init__(self, capabilities: dict[str, Any]) -> None:
        self._capabilities = capabilities

    def attach(
        self, actor_class: type, cell: Cell, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Make the actor of a cell: `__init__` runs first, then the runtime is attached."""
        if not issubclass(actor_class, thespian_actors.Actor):
            msg = (
                f"{actor_class.__qualname__} is no actor class; derive it from callboard.Actor"
            )
            raise TypeError(msg)
        if args or kwargs:
            actor = actor_class(*args, **kwargs)
        else:
            actor = withPossibleInitArgs(
                capabilities=self._capabilities, requirements=None
            ).create(actor_class)
        if hasattr(actor_class, "_post_init_pending"):
            # Thespian keeps this list on the class; in one process the instances must not share
            # it.
            actor._post_init_pending = []
        actor._myRef = ThespianContext(cell)
        return actor


class External:
    """A place outside the system that sends and receives: behind `ask`, `tell` and `listen`."""

    #: A `@handler` that returns something answers Thespian's `ask` with an ordinary message.
    expects: Final[Literal[True]] = True  # noqa: PYI064  # the type tells it from a cell
    done_: Final = True  # nothing is owed to it when an actor ends

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._received: deque[Any] = deque()
        self._arrived = threading.Condition()
        self.address = runtime.reply_ref(self)

    def set_result(self, value: Any) -> bool:
        """Receive a message; None is what handlers return that answer nothing."""
        if value is not None:
            with self._arrived:
                self._received.append(value)
                self._arrived.notify()
        return True

    def set_exception(self, error: BaseException) -> bool:
        """Thespian's `ask` learns nothing of errors: it runs out of time."""
        return True

    def owed(self) -> None:
        """Answers come as ordinary messages."""

    def reference(self, _: Runtime) -> ActorRef[Any]:
        """Return the address that actors see as the sender."""
        return self.address

    def listen(self, timeout: float | None) -> Any:
        """Return the next message that is not internal to Thespian; None when time is over."""
        end = None if timeout is None else time.monotonic() + timeout
        with self._arrived:
            while True:
                while self._received:
                    message = self._received.popleft()
                    if not isInternalActorSystemMessage(message):
                        return message
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._arrived.wait(left)


class ExternalContext:
    """The calls that code outside of actors makes, with a queue of its own (`private()`)."""

    def __init__(self, system: "SystemBase") -> None:
        self._system = system
        self._external = External(system.runtime)

    def tell(self, address: ActorAddress, message: Any) -> None:
        """Send without waiting."""
        if isinstance(address, ActorRef):
            address.target.post(message, self._external)

    def ask(
        self, address: ActorAddress, message: Any, timeout: timedelta | float | None
    ) -> Any:
        """Send, then return the next message that comes here; None when time is over."""
        self.tell(address, message)
        return self.listen(timeout)

    def listen(self, timeout: timedelta | float | None) -> Any:
        """Return the next message that anybody sends here; None when time is over."""
        return self._external.listen(_seconds(timeout))

    def newPrimaryActor(  # noqa: N802  # Thespian's name
        self,
        actor_class: type | str,
        requirements: dict[str, Any] | None = None,
        global_name: str | None = None,
        source_hash: str | None = None,
    ) -> ActorRef[Any]:
        """Create an actor without a parent; raises what its creation raises."""
        return self._system.create(actor_class, requirements, global_name, source_hash, None)

    def exit_context(self) -> None:
        """Leave a `private()` block; what still arrives is dropped with the queue."""


class SystemBase(ExternalContext):
    """A Thespian system base that runs actors in this process, on callboard's runtime."""

    def __init__(
        self,
        capabilities: dict[str, Any] | None = None,
        logDefs: Any = False,  # noqa: FBT002, N803  # Thespian's name and type
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
        self._names: dict[str, ActorRef[Any]] = {}
        self._dead_letters: ActorRef[Any] | None = None
        if isinstance(logDefs, dict):
            logging.config.dictConfig(logDefs)
        super().__init__(self)

    def external_clone(self) -> ExternalContext:
        """Return a context with its own address and queue, for another thread."""
        return ExternalContext(self)

    def create(
        self,
        actor_class: type | str,
        requirements: dict[str, Any] | None,
        global_name: str | None,
        source_hash: str | None,
        parent: Cell | None,
    ) -> ActorRef[Any]:
        """Create an actor, for a parent or for the outside."""
        if global_name and (held := self._holder_of(global_name)) is not None:
            return held
        if isinstance(parent, PlainCell) and parent.exiting:
            return self.runtime.nobody  # a parent that restarts children would never end
        try:
            found = self._find_class(actor_class, requirements, source_hash)
            ref: ActorRef[Any] = self.runtime.spawn(found, parent=parent)
        except Exception as error:
            if parent is None:
                raise
            log.warning("creating %s failed: %s", actor_class, error)
            failed = self.runtime.ended_ref()
            parent.post(ChildActorExited(failed), None)
            return failed
        if global_name:
            self._names[global_name] = ref
        return ref

    def _find_class(
        self,
        actor_class: type | str,
        requirements: dict[str, Any] | None,
        source_hash: str | None,
    ) -> type:
        if source_hash:
            raise InvalidActorSourceHash(source_hash)
        try:
            found = actualActorClass(actor_class)
        except AttributeError as error:
            raise InvalidActorSpecification(actor_class, str(error)) from error
        check = getattr(found, "actorSystemCapabilityCheck", None)
        if check is not None and not self._is_compatible(check, requirements):
            raise NoCompatibleSystemForActor(actor_class, "no compatible system")
        return found  # type: ignore[no-any-return]

    def _is_compatible(self, check: Any, requirements: dict[str, Any] | None) -> bool:
        try:
            return bool(check(self.capabilities, requirements or {}))
        except Exception:
            log.exception("a capability check raised; the actor counts as incompatible")
            return False

    def _holder_of(self, name: str) -> ActorRef[Any] | None:
        ref = self._names.get(name)
        if ref is not None and ref.actor_id in self.runtime.cells:
            return ref
        return None

    def name_of(self, cell: Cell) -> str | None:
        """Return the global name that an actor was created under."""
        return next((name for name, ref in self._names.items() if ref.target is cell), None)

    def handle_dead_letters(self, address: ActorRef[Any], enable: bool) -> None:  # noqa: FBT001
        """Register the one handler of dead letters: the last one wins."""
        if enable:
            self._dead_letters = address
        elif self._dead_letters == address:
            self._dead_letters = None

    def _dead_letter(self, ref: ActorRef[Any], message: Any, sender: Sender | None) -> None:
        handler = self._dead_letters
        if handler is None or isinstance(message, DeadEnvelope | ChildActorExited):
            return
        if handler.actor_id in self.runtime.cells:
            handler.target.post(DeadEnvelope(ref, message), sender)

    def update_capability(self, name: str, value: Any) -> None:
        """Set a capability; None removes it. Actors that need what is gone have to exit."""
        if value is None:
            self.capabilities.pop(name, None)
        else:
            self.capabilities[name] = value
        for cell in list(self.runtime.cells.values()):
            check = getattr(type(cell.actor), "actorSystemCapabilityCheck", None)
            if check is not None and not self._is_compatible(check, None):
                cell.post(ActorExitRequest(), None)

    def updateCapability(self, capabilityName: str, capabilityValue: Any = None) -> None:  # noqa: N802, N803
        """Thespian's name for `update_capability`."""
        self.update_capability(capabilityName, capabilityValue)

    def request_shutdown(self) -> None:
        """Shut down from inside an actor: not on its own thread, which has to end first."""
        threading.Thread(target=self.shutdown, name="callboard-shutdown", daemon=True).start()

    def shutdown(self) -> None:
        """End all actors and stop the runtime's thread."""
        for cell in list(self.runtime.cells.values()):
            if cell.parent is None or not cell.parent.alive:
                cell.post(ActorExitRequest(), None)
                cell.stop()
        self.runtime.await_ends()  # handlers see the request; only who is stuck is killed
        self.runtime.end_actors()
        self.runtime.close()


def _copied(message: Any) -> Any:
    try:
        return copy.deepcopy(message)
    except Exception:  # noqa: BLE001  # what cannot be copied is tried again as it is
        return message


def _seconds(timeout: timedelta | float | None) -> float | None:
    return timeout.total_seconds() if isinstance(timeout, timedelta) else timeout


def _usual_capabilities() -> dict[str, Any]:
    return {
        "Python Version": tuple(sys.version_info),
        "Thespian Generation": ThespianGeneration,
        "Thespian Version": str(int(time.time() * 1000)),  # noqa: TID251  # a stamp of the start
        "Thespian ActorSystem Name": "callboard",
        "Thespian ActorSystem Version": 1,
        "Thespian Watch Supported": False,
        "AllowRemoteActorSources": "No",
    }


def _register_by_name() -> None:
    """Let `ActorSystem("callboard")` find the base: Thespian imports `thespian.system.NAME`."""

    def make_base(system: Any, logDefs: Any = None) -> SystemBase:  # noqa: N803
        return SystemBase(system.capabilities, logDefs or False)

    module = types.ModuleType("thespian.system.callboard", "callboard's system base, by name")
    module.ActorSystemBase = make_base  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module


_register_by_name()
