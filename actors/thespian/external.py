"""Calls from outside of actors: `tell`, `ask`, `listen`, and the queue behind them."""

import threading
import time
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from thespian.actors import ActorAddress
from thespian.system import isInternalActorSystemMessage

from actors.answers import Sender
from actors.reference import ActorRef
from actors.thespian.endpoint import open_endpoint

if TYPE_CHECKING:
    from actors.runtime import Runtime
    from actors.thespian.system import SystemBase


class External:
    """A place outside the system that sends and receives; it has an address like an actor."""

    def __init__(self, runtime: "Runtime") -> None:
        self._received: deque[Any] = deque()
        self._arrived = threading.Condition()
        self.cell = open_endpoint(runtime, self._receive)
        self.asking = Asking(self)

    def _receive(self, message: Any, _: Sender | None) -> None:
        self.put(message)

    def put(self, message: Any) -> None:
        """Keep a message for whoever asks or listens next."""
        with self._arrived:
            self._received.append(message)
            self._arrived.notify()

    def listen(self, timeout: float | None) -> Any:
        """Return the next message that is not internal to Thespian; None when time is over."""
        end = None if timeout is None else time.monotonic() + timeout
        with self._arrived:
            while True:
                while self._received:
                    message = self._received.popleft()
                    if not _is_internal(message):
                        return message
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._arrived.wait(left)


class Asking:
    """The sender of an `ask`: what a `@handler` returns answers it as an ordinary message."""

    expects: Final[Literal[True]] = True  # noqa: PYI064  # the type tells it from a cell
    done_: Final = True  # nothing is owed to it when an actor ends
    deadline: Final = None

    __slots__ = ("_external",)

    def __init__(self, external: External) -> None:
        self._external = external

    def set_result(self, value: Any) -> bool:
        """Receive what a handler returned; None is what those return that answer nothing."""
        if value is not None:
            self._external.put(value)
        return True

    def set_exception(self, error: BaseException) -> bool:
        """Thespian's `ask` learns nothing of errors: it runs out of time."""
        return True

    def owed(self) -> None:
        """Answers come as ordinary messages."""

    def reference(self, _: "Runtime") -> ActorRef[Any]:
        """Return the address that actors see as the sender."""
        return self._external.cell.ref


class ExternalContext:
    """The calls that code outside of actors makes, with a queue of its own (`private()`)."""

    def __init__(self, system: "SystemBase") -> None:
        self._system = system
        self._external = External(system.runtime)

    def tell(self, address: ActorAddress, message: Any) -> None:
        """Send without waiting; what a handler returns goes nowhere."""
        target = self._system.ref_of(address)
        if target is not None:
            target.target.post(message, self._external.cell)

    def ask(
        self, address: ActorAddress, message: Any, timeout: timedelta | float | None
    ) -> Any:
        """Send, then return the next message that comes here; None when time is over."""
        target = self._system.ref_of(address)
        if target is not None:
            external = self._external
            # An asker of another node is answered once; Thespian's actors may answer often.
            sender = external.asking if target.is_local else external.cell
            target.target.post(message, sender)
        return self.listen(timeout)

    def listen(self, timeout: timedelta | float | None) -> Any:
        """Return the next message that anybody sends here; None when time is over."""
        return self._external.listen(_seconds(timeout))

    def newPrimaryActor(
        self,
        actor_class: type | str,
        requirements: dict[str, Any] | None = None,
        global_name: str | None = None,
        source_hash: str | None = None,
    ) -> ActorRef[Any]:
        """Create an actor without a parent; raises what its creation raises."""
        return self._system.creator.create(
            actor_class, requirements, global_name, source_hash, None
        )

    def exit_context(self) -> None:
        """Leave a `private()` block; what still arrives is a dead letter."""
        self._external.cell.close()


def _is_internal(message: Any) -> bool:
    try:
        return bool(isInternalActorSystemMessage(message))
    except AttributeError:  # what came from another system may lack attributes
        return True


def _seconds(timeout: timedelta | float | None) -> float | None:
    return timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
