"""The cell of a plain Thespian actor: Thespian's rules for failing, exiting and children.

An `ActorExitRequest` goes to the actor first. A recursive one goes on to its children, and the
actor stays until each of them has ended and the actor has been told so; what else arrives
meanwhile is a dead letter.
"""

import contextlib
import copy
import logging
import selectors
import types
from typing import Any, Final

from thespian import actors as thespian
from thespian.system.messages.status import Thespian_ActorStatus
from thespian.system.timing import ExpirationTimer

from callboard.actors.cell import Cell
from callboard.actors.envelope import Encoded, Envelope
from callboard.actors.exit_reason import ExitReason
from callboard.actors.reference import ActorRef, Call, Down, NoActor, Sender, Watcher
from callboard.actors.runtime import Runtime
from callboard.actors.signals import LinkExit, Stop, Urgent
from callboard.support.dataclass import dataclass
from callboard.support.text import logged, safe_repr, trace_of

log = logging.getLogger("callboard.thespian")

#: How often a plain Thespian actor is given a message before it is poison.
ATTEMPTS: Final = 2


class FailedChild(NoActor):
    """Stands where a child would be that could not be created.

    `createActor` returns its address at once, as it does for children that live. What its
    parent sends before it has been told comes back as `PoisonMessage`; after that it is an
    address like that of any actor that ended.
    """

    def __init__(self, runtime: Runtime, why: str) -> None:
        self._runtime = runtime
        self._why = why
        self.is_known = False
        #: The address.
        self.ref = ActorRef[Any](runtime, runtime.node_id, runtime.ended_ref().actor_id, self)

    def post(self, message: Any, sender: Sender | None) -> None:
        """Return a message to its sender, or make it a dead letter."""
        asker = sender.reference(self._runtime) if sender is not None else None
        if self.is_known or asker is None or isinstance(message, thespian.ActorSystemMessage):
            self._runtime.dead_letter(self.ref, message, sender)
        else:
            asker.target.post(
                thespian.PoisonMessage(message, f"Child Aborted: {self._why}"), None
            )

    def monitor(self, key: object, watcher: Watcher) -> None:
        """Tell at once that there is no such actor."""
        watcher(Down(self.ref, ExitReason.NOT_FOUND, self._why))


@dataclass(frozen=True, slots=True)
class Creation:
    """What was asked for when an actor was created.

    Attributes:
        requirements: for the class's capability check and for `__init__`.
        global_name: the name it holds in its system.
        source_hash: the loaded source that the class comes from; its children do, too.

    The order is that of Thespian's own calls.
    """

    requirements: dict[str, Any] | None = None
    global_name: str | None = None
    source_hash: str | None = None


_ORDINARY: Final = Creation()


class Watch:
    """The files that one actor watches until its next message.

    A watch holds for one message: a handler that wants to go on returns it again. So each file
    is taken from the poller as soon as it is ready, and the files that one poll found go out
    as one message.
    """

    def __init__(self, cell: Cell, wanted: thespian.ThespianWatch) -> None:
        self._cell = cell
        self._filenos: set[int] = set()
        self._ready: list[int] = []
        # Only the thread that holds the runner's role touches the poller.
        cell.runner.post(self._open, list(wanted.filenos))

    def close(self) -> None:
        """Watch no longer; what was ready already is still told."""
        self._cell.runner.post(self._close)

    def _open(self, filenos: list[int]) -> None:
        if not self._cell.alive:
            return
        for fileno in filenos:
            try:
                self._cell.runner.selector.register(
                    fileno, selectors.EVENT_READ, lambda _, fileno=fileno: self._found(fileno)
                )
            except (OSError, ValueError, KeyError) as error:
                log.warning("%r cannot watch file %r: %s", self._cell, fileno, error)
            else:
                self._filenos.add(fileno)

    def _close(self) -> None:
        while self._filenos:
            self._forget(self._filenos.pop())

    def _forget(self, fileno: int) -> None:
        # The actor may have closed it meanwhile.
        with contextlib.suppress(OSError, ValueError, KeyError):
            self._cell.runner.selector.unregister(fileno)

    def _found(self, fileno: int) -> None:
        self._filenos.discard(fileno)
        self._forget(fileno)
        if not self._ready:
            self._cell.runner.post(self._tell)
        self._ready.append(fileno)

    def _tell(self) -> None:
        ready, self._ready = self._ready, []
        if self._cell.alive:
            self._cell.post(thespian.WatchMessage(ready), self._cell)


class PlainCell(Cell):
    """The cell of a plain Thespian actor."""

    __slots__ = ("abroad", "awaited", "creation", "exiting", "wakeups", "watch_of_files")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.creation = _ORDINARY
        self.exiting = False
        #: While it exits: children whose end it has not been told.
        self.awaited: set[ActorRef[Any]] = set()
        #: Children on other systems.
        self.abroad: set[ActorRef[Any]] = set()
        self.wakeups: dict[object, ExpirationTimer] = {}
        self.watch_of_files: Watch | None = None

    def handle_other(self, message: Any, sender: Sender | None) -> None:
        """Every message of a plain actor comes here: it has no `@handler`."""
        if isinstance(message, Urgent | Envelope | Encoded):
            super().handle_other(message, sender)  # it comes here again as itself
        elif isinstance(message, thespian.ChildActorExited):
            self._child_exited(message, sender)
        elif self.exiting:
            if not isinstance(message, Call | Stop | LinkExit | thespian.ActorExitRequest):
                self.runtime.dead_letter(self.ref, message, sender)
        elif isinstance(message, Call | Stop | LinkExit):
            super().handle_other(message, sender)
        elif isinstance(message, thespian.ActorExitRequest):
            self._exit(message, sender)
        elif isinstance(message, thespian.Thespian_StatusReq):
            if sender is not None and (asker := sender.reference(self.runtime)) is not None:
                asker.target.post(self.status(), self)
        else:
            self._receive(message, sender)
            if sender is not None and sender.expects and not sender.is_done:
                self.owe(sender)  # it answers with a send, if it does before it ends

    def status(self) -> Any:
        """Return what Thespian's tools show of the actor."""
        system: ActorRef[Any] = self.runtime.thespian_system().address
        parent = self.parent.ref if self.parent is not None else system
        status = Thespian_ActorStatus(
            self.ref,
            type(self.actor).__name__,
            system,
            parent,
            sourceHash=self.creation.source_hash,
            exiting=True if self.exiting else None,
        )
        for child in self.children or ():
            if child.alive:
                status.addChild(child.ref)
        for abroad in self.abroad:
            status.addChild(abroad)
        status.addWakeups([(self.ref, timer) for timer in list(self.wakeups.values())])
        status.addReceived(self.handled)
        status.addKeyVal("mailbox", self.depth)
        return status

    # --- messages ---

    def _receive(self, message: Any, sender: Sender | None) -> None:
        address = sender.reference(self.runtime) if sender is not None else None
        attempt, given = 1, message
        while True:
            try:
                result = self.actor.receiveMessage(given, address or self.runtime.nobody)
            except Exception as error:  # noqa: BLE001  # Thespian's rule: once more, then poison
                if attempt < ATTEMPTS:
                    # Only a second attempt needs a copy that the first has not touched.
                    attempt, given = attempt + 1, _copied(message)
                    continue
                self._return_poison(message, address, error)
                return
            if result is not None or self.watch_of_files is not None:
                self._take_result(result)
            return

    def _take_result(self, result: Any) -> None:
        """Return values mean nothing, save files to watch and a coroutine to run."""
        watch, self.watch_of_files = self.watch_of_files, None
        if watch is not None:
            watch.close()
        if isinstance(result, thespian.ThespianWatch):
            self.watch_of_files = Watch(self, result)
        elif isinstance(result, types.CoroutineType):
            self.start_task(result, None)

    def _return_poison(
        self, message: Any, address: ActorRef[Any] | None, error: Exception
    ) -> None:
        details = trace_of(error)
        log.warning("%r could not handle %s twice:\n%s", self, safe_repr(message), details)
        self.runtime.counters.failures += 1
        if address is not None and not isinstance(message, thespian.PoisonMessage):
            address.target.post(thespian.PoisonMessage(message, details), self)

    # --- the end ---

    def _exit(self, request: thespian.ActorExitRequest, sender: Sender | None) -> None:
        self.exiting = True
        address = sender.reference(self.runtime) if sender is not None else None
        try:
            self.actor.receiveMessage(request, address or self.runtime.nobody)
        except BaseException as error:  # noqa: BLE001  # also with sys.exit()
            text = "%r failed in its exit request; it ends all the same"
            logged(log, text, self, error=error)
        if request.isRecursive:
            self.awaited = {child.ref for child in self.children or ()} | self.abroad
            for child in self.awaited:
                child.target.post(thespian.ActorExitRequest(), self)
        else:
            self.children, self.abroad = None, set()
        self._leave_when_alone()

    def _child_exited(self, message: thespian.ChildActorExited, sender: Sender | None) -> None:
        child = message.childAddress
        self.awaited.discard(child)
        if isinstance(child, ActorRef):
            self.abroad.discard(child)
            if isinstance(child.target, FailedChild):
                child.target.is_known = True
            elif self.children is not None and isinstance(child.target, Cell):
                self.children.pop(child.target, None)
        try:
            self._receive(message, sender)
        finally:
            if self.exiting:
                self._leave_when_alone()

    def _leave_when_alone(self) -> None:
        if not self.awaited:
            self.end = self.end or (ExitReason.NORMAL, "")

    def terminate(self, reason: ExitReason, detail: str) -> None:
        """End; children on other systems are asked to exit, as those here are."""
        if self.watch_of_files is not None:
            self.watch_of_files.close()
        for child in self.abroad:
            child.target.demonitor(self)
            if child not in self.awaited:
                child.target.post(thespian.ActorExitRequest(), self)
        self.abroad = set()
        super().terminate(reason, detail)

    def end_child(self, child: Cell) -> None:
        """Ask a child to exit, as Thespian does, so that its handler sees the request."""
        if child.alive:
            child.post(thespian.ActorExitRequest(), self)

    # --- children ---

    def child_ended(self, child: Cell, down: Down) -> None:
        """Tell the parent, once for each child; it is its child until it was told."""
        if self.alive and self.children is not None:
            self.post(thespian.ChildActorExited(child.ref), child)

    def adopt(self, child: ActorRef[Any]) -> None:
        """Be told, as its parent, of the end of an actor that another system runs."""
        self.abroad.add(child)
        child.target.monitor(self, lambda down: self.tell_of_end(down.ref))

    def tell_of_end(self, child: ActorRef[Any]) -> None:
        """Receive `ChildActorExited` for one that is not a child for the runtime."""
        if self.alive:
            self.post(thespian.ChildActorExited(child), None)


def _copied(message: Any) -> Any:
    try:
        return copy.deepcopy(message)
    except Exception:  # noqa: BLE001  # what cannot be copied is tried again as it is
        return message
