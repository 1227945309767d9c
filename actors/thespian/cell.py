"""The cell of a plain Thespian actor: Thespian's rules for failures, exits and children.

The actor itself receives an `ActorExitRequest`. If this is recursive, its children receive one,
too, and the actor stays until it has been notified of the end of each of them. Other messages
that arrive until then are dead letters.
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
from callboard.support.calls import Keywords
from callboard.support.dataclass import dataclass
from callboard.support.text import logged, safe_repr, trace_of

_log = logging.getLogger("callboard.thespian")

#: Attempts to handle a message before it is returned as `PoisonMessage`.
ATTEMPTS: Final = 2


class FailedChild(NoActor):
    """Stands for a child that could not be created.

    `createActor` returns its address immediately, as for running children. Until the parent is
    notified, its messages to this address are returned as `PoisonMessage`. After that, the
    address behaves like that of any ended actor.
    """

    def __init__(self, runtime: Runtime, reason: str) -> None:
        self._runtime = runtime
        self._reason = reason
        self.is_known = False
        #: The address.
        self.ref = ActorRef(runtime, runtime.node_id, runtime.ended_ref().actor_id, self)

    def post(self, message: Any, sender: Sender | None) -> None:
        """Return a message to its sender, or make it a dead letter."""
        asker = sender.reference(self._runtime) if sender is not None else None
        if self.is_known or asker is None or isinstance(message, thespian.ActorSystemMessage):
            self._runtime.dead_letter(self.ref, message, sender)
        else:
            asker.target.post(
                thespian.PoisonMessage(message, f"Child Aborted: {self._reason}"), None
            )

    def monitor(self, key: object, watcher: Watcher) -> None:
        """Report immediately that the actor does not exist."""
        watcher(Down(self.ref, ExitReason.NOT_FOUND, self._reason))


@dataclass(frozen=True, slots=True)
class Creation:
    """The arguments of the creation of an actor, in the order of Thespian's own calls.

    Attributes:
        requirements: the requirements passed to the class's capability check and to `__init__`.
        global_name: the name of the actor in its system.
        source_hash: the loaded source of the class; its children use it, too.
    """

    requirements: Keywords | None = None
    global_name: str | None = None
    source_hash: str | None = None


_ORDINARY: Final = Creation()


class Watch:
    """The files that one actor watches until its next message.

    A watch lasts until the next message: a handler that wants to continue returns it again. So
    each file is removed from the poller as soon as it is ready. All files of one poll are
    reported in one message.
    """

    def __init__(self, cell: Cell, request: thespian.ThespianWatch) -> None:
        self._cell = cell
        self._filenos: set[int] = set()
        self._ready: list[int] = []
        # Only the thread that holds the runner's role may use the poller.
        cell.runner.post(self._open, list(request.filenos))

    def close(self) -> None:
        """Stop watching; files that are already ready are still reported."""
        self._cell.runner.post(self._close)

    def _open(self, filenos: list[int]) -> None:
        """Register the files with the poller. Runs on the thread with the runner's role."""
        if not self._cell.alive:
            return
        for fileno in filenos:
            try:
                self._cell.runner.selector.register(
                    fileno,
                    selectors.EVENT_READ,
                    lambda _, fileno=fileno: self._on_ready(fileno),
                )
            except (OSError, ValueError, KeyError) as error:
                _log.warning("%r cannot watch file %r: %s", self._cell, fileno, error)
            else:
                self._filenos.add(fileno)

    def _close(self) -> None:
        while self._filenos:
            self._forget(self._filenos.pop())

    def _forget(self, fileno: int) -> None:
        # The actor may have closed the file.
        with contextlib.suppress(OSError, ValueError, KeyError):
            self._cell.runner.selector.unregister(fileno)

    def _on_ready(self, fileno: int) -> None:
        """Record a ready file, and schedule the message that reports it."""
        self._filenos.discard(fileno)
        self._forget(fileno)
        if not self._ready:
            self._cell.runner.post(self._report)
        self._ready.append(fileno)

    def _report(self) -> None:
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
        #: While it exits: children of whose end it has not been notified.
        self.awaited: set[ActorRef] = set()
        #: Children on other systems.
        self.abroad: set[ActorRef] = set()
        self.wakeups: dict[object, ExpirationTimer] = {}
        self.watch_of_files: Watch | None = None

    def handle_other(self, message: Any, sender: Sender | None) -> None:
        """Handle a message of any class, because a plain actor has no `@handler` methods."""
        if isinstance(message, Urgent | Envelope | Encoded):
            # Unpacks the message, and calls this method with its content.
            super().handle_other(message, sender)
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
                # A later send may answer the ask; if the actor ends, the ask fails.
                self.owe(sender)

    def status(self) -> Any:
        """Return the status of the actor for Thespian's tools."""
        system: ActorRef = self.runtime.thespian_system().address
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
        attempt, content = 1, message
        while True:
            try:
                result = self.actor.receiveMessage(content, address or self.runtime.nobody)
            except Exception as error:  # noqa: BLE001  # Thespian retries once
                if attempt < ATTEMPTS:
                    # A copy, because the first attempt may have changed the message.
                    attempt, content = attempt + 1, _copied(message)
                    continue
                self._return_poison(message, address, error)
                return
            if result is not None or self.watch_of_files is not None:
                self._use_result(result)
            return

    def _use_result(self, result: Any) -> None:
        """Watch the files of a `ThespianWatch`, or run a coroutine; ignore other results."""
        watch, self.watch_of_files = self.watch_of_files, None
        if watch is not None:
            watch.close()
        if isinstance(result, thespian.ThespianWatch):
            self.watch_of_files = Watch(self, result)
        elif isinstance(result, types.CoroutineType):
            self.start_task(result, None)

    def _return_poison(self, message: Any, address: ActorRef | None, error: Exception) -> None:
        """Log that a message failed twice, and return it to its sender as a `PoisonMessage`."""
        details = trace_of(error)
        _log.warning("%r could not handle %s twice:\n%s", self, safe_repr(message), details)
        self.runtime.counters.failures += 1
        if address is not None and not isinstance(message, thespian.PoisonMessage):
            address.target.post(thespian.PoisonMessage(message, details), self)

    # --- the end ---

    def _exit(self, request: thespian.ActorExitRequest, sender: Sender | None) -> None:
        self.exiting = True
        address = sender.reference(self.runtime) if sender is not None else None
        try:
            self.actor.receiveMessage(request, address or self.runtime.nobody)
        except BaseException as error:  # noqa: BLE001  # even sys.exit()
            text = "%r failed in its exit request; it ends nevertheless"
            logged(_log, text, self, error=error)
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
        """End the actor, and ask its children on other systems to exit."""
        if self.watch_of_files is not None:
            self.watch_of_files.close()
        for child in self.abroad:
            child.target.demonitor(self)
            if child not in self.awaited:
                child.target.post(thespian.ActorExitRequest(), self)
        self.abroad = set()
        super().terminate(reason, detail)

    def end_child(self, child: Cell) -> None:
        """Ask a child to exit, so that its handler receives the request, as in Thespian."""
        if child.alive:
            child.post(thespian.ActorExitRequest(), self)

    # --- children ---

    def child_ended(self, child: Cell, down: Down) -> None:
        """Notify the actor, once for each child, which stays its child until then."""
        if self.alive and self.children is not None:
            self.post(thespian.ChildActorExited(child.ref), child)

    def adopt(self, child: ActorRef) -> None:
        """Become the parent of an actor on another system, and be notified of its end."""
        self.abroad.add(child)
        child.target.monitor(self, lambda down: self.tell_of_end(down.ref))

    def tell_of_end(self, child: ActorRef) -> None:
        """Receive `ChildActorExited` for an actor that is not a child in the runtime."""
        if self.alive:
            self.post(thespian.ChildActorExited(child), None)


def _copied(message: Any) -> Any:
    try:
        return copy.deepcopy(message)
    except Exception:  # noqa: BLE001  # a message that cannot be copied is retried as it is
        return message
