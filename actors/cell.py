"""A cell: one actor's mailbox, its place in the run queue, and its life.

A message comes in through `post`, on any thread: it is appended to the mailbox, and the cell
goes to the run queue unless it is there. The runner calls `run`, which takes messages and calls
handlers until the mailbox is empty or the cell has had its share. Two flags keep that right:

- `scheduled` is True from the moment the cell is put into the run queue until a run found
  nothing left.
- `running` is True while a thread is inside `run`. A thread that finds it set leaves the cell
  to the one that runs it. So handlers of one actor never overlap, however threads come and go.

When the actor ends, whatever is in the mailbox or comes later goes to the dead letters: asks
fail at once with `ActorDown`, tells are counted.
"""

import threading
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Union

from actors.current import current_cell
from actors.dispatch import DispatchTable
from actors.errors import ActorDown, NoSuchMethod, RemoteError, UnexpectedMessage
from actors.exit_reason import ExitReason
from actors.methods import callable_methods
from actors.signals import Call, ChildDown, Down, Exit, LinkExit, Stop
from actors.task import HandlerTask

if TYPE_CHECKING:
    from actors.reference import ActorRef
    from actors.runtime import Runtime

MESSAGES_A_TURN: Final = 128
"""Messages that one actor handles before the next one gets its turn."""

Sender = Union["Cell", "Asker"]
"""Where a message came from; None stands for an anonymous one."""

#: Guards the tables of watchers while actors end; held for a few operations.
_LIFE = threading.Lock()

Watcher = Callable[[Down], object]


class Asker(Protocol):
    """Whoever waits for a message's outcome: an ask's future, or a remote asker's double."""

    @property
    def expects(self) -> Literal[True]:
        """Tells an asker from a cell that only told."""

    def set_result(self, value: Any, /) -> bool:
        """Take the answer; False when there was one."""

    def set_exception(self, error: BaseException, /) -> bool:
        """Take the error instead of an answer; False when there was one."""

    def owed(self) -> None:
        """Take note that the message was handled; the answer may come later."""

    def reference(self, runtime: "Runtime", /) -> "ActorRef[Any] | None":
        """Return what `self.sender` is while the message is handled."""


class Cell:
    """The runtime's side of one actor."""

    __slots__ = (
        "__weakref__",
        "_links",
        "_monitors",
        "_mailbox",
        "_promises",
        "_ref",
        "_watchers",
        "actor",
        "children",
        "detail",
        "end",
        "handled",
        "number",
        "parent",
        "promised",
        "reason",
        "runner",
        "running",
        "runtime",
        "scheduled",
        "sender",
        "table",
        "task",
        "trap_exit",
    )

    #: As the sender of a message, a cell wants no outcome.
    expects: Final[Literal[False]] = False  # noqa: PYI064  # the type tells it from an asker

    def __init__(
        self, runtime: "Runtime", number: int, table: DispatchTable, parent: "Cell | None"
    ) -> None:
        self.runtime = runtime
        self.runner = runtime.runner
        self.number = number
        self.table = table
        self.parent = parent
        self.actor: Any = None
        self.handled = 0
        self.trap_exit = False
        self.scheduled = False
        self.running = True  # until the actor is made: nothing runs during its __init__
        self.task: HandlerTask | None = None
        self.sender: Sender | None = None
        self.promised: Sender | None = None
        self.end: tuple[ExitReason, str] | None = None
        self.reason: ExitReason | None = None  # set once the actor ended
        self.detail = ""
        self.children: dict[Cell, None] | None = None
        self._mailbox: deque[tuple[Any, Sender | None]] | None = None
        self._promises: list[Asker] | None = None
        self._watchers: dict[object, Watcher] | None = None
        self._links: dict[ActorRef[Any], Callable[[], None]] | None = None
        self._monitors: dict[Monitor, None] | None = None
        self._ref: ActorRef[Any] | None = None

    # --- identity ---

    @property
    def ref(self) -> "ActorRef[Any]":
        """The ref of this actor, made on first use."""
        ref = self._ref
        if ref is None:
            ref = self._ref = self.runtime.make_ref(self)
        return ref

    @property
    def alive(self) -> bool:
        """False once the actor ended."""
        return self.reason is None

    @property
    def depth(self) -> int:
        """Messages that wait in the mailbox."""
        return len(self._mailbox or ())

    def reference(self, _: "Runtime") -> "ActorRef[Any]":
        """As the sender of a message: its ref."""
        return self.ref

    def __repr__(self) -> str:
        return f"<{type(self.actor).__name__} {self.number}>"

    # --- messages in ---

    def post(self, message: Any, sender: "Sender | None") -> None:
        """Append a message to the mailbox; from any thread, never blocks."""
        mailbox = self._mailbox
        if mailbox is None:
            mailbox = self._open_mailbox()
        mailbox.append((message, sender))
        if not self.scheduled:
            self.scheduled = True
            runner = self.runner
            runner.ready.append(self)
            if runner.sleeping:
                runner.wake()

    def schedule(self) -> None:
        """Put the cell into the run queue unless it is there."""
        if not self.scheduled:
            self.scheduled = True
            self.runner.schedule(self)

    def stop(self) -> None:
        """End normally, behind all messages that are in the mailbox already."""
        self.post(Stop(), None)

    def kill(self, reason: ExitReason = ExitReason.KILLED, detail: str = "") -> None:
        """End before the next message; a handler that awaits is cancelled."""
        if self.end is None:
            self.end = (reason, detail)
        self.schedule()

    def _open_mailbox(self) -> "deque[tuple[Any, Sender | None]]":
        with _LIFE:  # two first messages may come at once
            if self._mailbox is None:
                self._mailbox = deque()
            return self._mailbox

    # --- the turn ---

    def run(self) -> None:
        """Handle what waits, up to a share; called by the runner."""
        if self.running:
            return
        self.running = True
        if self.reason is None:
            if self.task is None or self._resume():
                self._handle_messages()
            if self.end is not None:
                self._terminate(*self.end)
        if self.reason is not None:
            self._drain()
        self.running = False
        self.scheduled = False
        if self._has_work():
            self.schedule()

    def _has_work(self) -> bool:
        if self.reason is not None:
            return bool(self._mailbox)
        if self.end is not None:
            return True
        if self.task is not None:
            return self.task.ready
        return bool(self._mailbox)

    def _handle_messages(self) -> None:
        """The hot loop: local names, one dictionary look-up and one call for each message."""
        mailbox = self._mailbox
        if not mailbox:
            return
        current_cell.set(self)  # the runner clears it when it turns to the sockets
        take, table, actor = mailbox.popleft, self.table, self.actor
        sender: Sender | None = None
        handled = 0
        try:
            while mailbox and self.end is None and handled < MESSAGES_A_TURN:
                message, sender = take()
                handled += 1
                self.sender = sender
                entry = table[message.__class__]
                if entry is None:
                    self.handle_other(message, sender)
                elif entry.is_coroutine:
                    self.start_task(entry.function(actor, message), sender)
                else:
                    result = entry.function(actor, message)
                    if sender is not None and sender.expects:
                        if sender is self.promised:
                            self.promised = None
                        elif not sender.set_result(result):
                            self.note_late(result)
                    continue
                if self.task is not None:
                    break
        except BaseException as error:  # noqa: BLE001  # sys.exit() ends its actor, not the node
            self.failed(error, sender)
        finally:
            self.handled += handled

    def start_task(self, coroutine: Coroutine[Any, Any, Any], sender: "Sender | None") -> None:
        """Run a coroutine handler to its first await; it may be done by then."""
        task = HandlerTask(self, coroutine, sender)
        if task.step():
            self.task = task

    def _resume(self) -> bool:
        """Go on with the coroutine handler; True when it is done and messages come next."""
        task = self.task
        assert task is not None
        if not task.ready or self.end is not None:
            return False
        self.sender = task.sender
        try:
            if task.step():
                return False
        except BaseException as error:  # noqa: BLE001  # as in `_handle_messages`
            self.task = None
            self.failed(error, task.sender)
            return False
        self.task = None
        return True

    def answer(self, sender: "Asker", value: Any) -> None:
        """Pass a handler's result on, unless the handler took a promise to answer later."""
        if sender is self.promised:
            self.promised = None
        elif not sender.set_result(value):
            self.note_late(value)

    def note_late(self, value: Any) -> None:
        """Count an answer that nobody takes: a second one, or one after the ask's time."""
        if value is not None:  # what a handler returns that has sent its answer
            self.runtime.counters.late_answers += 1

    def handle_other(self, message: Any, sender: "Sender | None") -> None:
        """Handle what no `@handler` takes: calls, signals, Thespian's own styles."""
        if isinstance(message, Call):
            self._call(message, sender)
        elif isinstance(message, Stop):
            self.end = self.end or (ExitReason.NORMAL, "")
        elif isinstance(message, LinkExit):
            self._linked_actor_ended(message)
        elif not self.actor.handle_thespian_style(message):
            self.unexpected(message, sender)
        elif sender is not None and sender.expects:
            if sender is self.promised:
                self.promised = None
            else:
                self.owe(sender)

    def unexpected(self, message: Any, sender: "Sender | None") -> None:
        """Tell the asker, or count it: nothing here handles such a message."""
        name = type(self.actor).__name__
        text = f"{name} has no handler for {type(message).__qualname__}; add one with @handler"
        if sender is not None and sender.expects:
            sender.set_exception(UnexpectedMessage(text))
        if not isinstance(message, Down | ChildDown):
            self.runtime.note_unexpected(self, message)

    def _call(self, call: Call, sender: "Sender | None") -> None:
        actor = self.actor
        actor_class: type = type(actor)
        # What came from another node may have fields of any type.
        if type(call.method) is not str or call.method not in callable_methods(actor_class):
            if sender is not None and sender.expects:
                msg = f"{actor_class.__name__} has no callable method {call.method!r}"
                sender.set_exception(NoSuchMethod(msg))
            return
        try:
            result = getattr(actor, call.method)(*call.args, **(call.kwargs or {}))
        except TypeError as error:
            if sender is None or not sender.expects or not _is_refused_call(error):
                raise
            sender.set_exception(RemoteError("TypeError", str(error)))
            return
        if isinstance(result, Coroutine):
            self.start_task(result, sender)
        elif sender is not None and sender.expects:
            self.answer(sender, result)

    def _linked_actor_ended(self, signal: LinkExit) -> None:
        if self._links is None or self._links.pop(signal.ref, None) is None:
            return  # the link was undone while its signal waited in the mailbox
        if self.trap_exit:
            self._handle_as_message(Exit(signal.ref, signal.reason, signal.detail))
        elif signal.reason is not ExitReason.NORMAL:
            self.end = self.end or (signal.reason, signal.detail or f"linked to {signal.ref}")

    def _handle_as_message(self, message: Any) -> None:
        mailbox = self._mailbox
        assert mailbox is not None
        mailbox.appendleft((message, None))

    # --- answers that come later ---

    def promise(self) -> "Asker | None":
        """Keep the current message unanswered when its handler returns; return its asker."""
        sender = self.sender
        if sender is None or not sender.expects or _only_counts(sender):
            return None
        self.promised = sender
        self.owe(sender)
        return sender

    def owe(self, sender: "Asker") -> None:
        """Remember an asker that is not answered yet, so that it fails if the actor ends."""
        sender.owed()
        if _wants_no_answer(sender):
            return
        if self._promises is None:
            self._promises = []
        elif len(self._promises) >= 64:
            self._promises = [asker for asker in self._promises if not _wants_no_answer(asker)]
        self._promises.append(sender)

    # --- the end ---

    def failed(self, error: BaseException, sender: "Sender | None") -> None:
        """End the actor because its handler raised; an asker is told what."""
        reason = ExitReason.NORMAL if isinstance(error, SystemExit) else ExitReason.ERROR
        trace = "".join(traceback.format_exception(error))
        name, said = type(error).__qualname__, _text_of(error)
        text = f"{name}: {said}"
        if sender is not None and sender.expects:
            sender.set_exception(RemoteError(name, said, trace))
        if reason is ExitReason.ERROR:
            self.runtime.note_failure(self, text, error)
        self.end = self.end or (reason, text if reason is ExitReason.ERROR else "")

    def _terminate(self, reason: ExitReason, detail: str) -> None:
        task, self.task = self.task, None
        if task is not None:
            self._abandon(task)
        with _LIFE:
            self.reason, self.detail = reason, detail
            watchers, self._watchers = self._watchers, None
        self.runtime.forget(self)
        gone = ActorDown(f"{self.ref} ended ({reason}) before it answered", reason, detail)
        if task is not None and task.sender is not None and task.sender.expects:
            task.sender.set_exception(gone)
        for asker in self._promises or ():
            asker.set_exception(gone)
        self._promises = self.promised = self.sender = None
        children, self.children = self.children, None
        for child in children or ():
            self.end_child(child)
        for unlink in (self._links or {}).values():
            unlink()
        for monitor in list(self._monitors or ()):
            monitor.cancel()
        self._links = self._monitors = None
        down = Down(self.ref, reason, detail)
        for watcher in (watchers or {}).values():
            watcher(down)
        if self.parent is not None:
            self.parent.child_ended(self, down)
        self.actor = None

    def abort(self, reason: ExitReason, detail: str) -> None:
        """End an actor whose `__init__` raised; on the thread that called it."""
        self._terminate(reason, detail)
        self.running = False
        if self._mailbox:
            self.scheduled = True
            self.runner.schedule(self)

    def _abandon(self, task: HandlerTask) -> None:
        try:
            task.abandon()
        except BaseException as error:  # noqa: BLE001  # the actor ends all the same
            self.runtime.note_failure(self, f"while it was cancelled: {_text_of(error)}", error)

    def end_child(self, child: "Cell") -> None:
        """End a child because this actor ended."""
        child.kill(ExitReason.SHUTDOWN)

    def child_ended(self, child: "Cell", down: Down) -> None:
        """A child ended: forget it, and tell an actor that supervises."""
        if self.children is not None:
            self.children.pop(child, None)
        if self.reason is None and ChildDown in self.table.declared:
            self.post(ChildDown(down.ref, down.reason, down.detail), None)

    def _drain(self) -> None:
        """Send what waits in the mailbox of an ended actor to the dead letters."""
        mailbox = self._mailbox
        while mailbox:
            message, sender = mailbox.popleft()
            if isinstance(message, Stop | LinkExit):
                continue
            if sender is not None and sender.expects:
                sender.set_exception(
                    ActorDown(
                        f"{self.ref} ended ({self.reason})", self.reason or "", self.detail
                    )
                )
            self.runtime.dead_letter(self.ref, message, sender)

    # --- monitors and links ---

    def monitor(self, key: object, watcher: Watcher) -> None:
        """Call `watcher(Down(…))` once when the actor ends; at once, `not_found`, if it has."""
        with _LIFE:
            if self.reason is None:
                if self._watchers is None:
                    self._watchers = {}
                self._watchers[key] = watcher
                return
        watcher(Down(self.ref, ExitReason.NOT_FOUND, f"it had ended ({self.reason})"))

    def demonitor(self, key: object) -> None:
        """Forget a watcher; no effect when it was called or never known."""
        with _LIFE:
            if self._watchers is not None:
                self._watchers.pop(key, None)

    def watch(self, other: "ActorRef[Any]") -> "Monitor":
        """Let a `Down` message arrive when `other` ends."""
        monitor = Monitor(self, other)
        if self._monitors is None:
            self._monitors = {}
        self._monitors[monitor] = None
        other.target.monitor(monitor, monitor.fire)
        return monitor

    def unwatch(self, monitor: "Monitor") -> None:
        """Forget a monitor that fired or was cancelled."""
        if self._monitors is not None:
            self._monitors.pop(monitor, None)

    def link(self, other: "ActorRef[Any]") -> None:
        """Be told with a `LinkExit` when `other` ends; its side does the same for this one."""
        if self._links is None:
            self._links = {}
        if other in self._links:
            return
        key = ("link", self)
        target = other.target
        self._links[other] = lambda: target.demonitor(key)
        target.monitor(
            key,
            lambda down: self.post(LinkExit(other, ExitReason(down.reason), down.detail), None),
        )

    def unlink(self, other: "ActorRef[Any]") -> None:
        """Undo `link`."""
        forget = (self._links or {}).pop(other, None)
        if forget is not None:
            forget()


class Monitor:
    """One actor's monitor of another: `cancel()` ends it without a `Down`."""

    __slots__ = ("_cell", "ref")

    def __init__(self, cell: Cell, ref: "ActorRef[Any]") -> None:
        self._cell = cell
        self.ref = ref

    def cancel(self) -> None:
        """Take the monitor back; no effect once the `Down` is on its way."""
        self._cell.unwatch(self)
        self.ref.target.demonitor(self)

    def fire(self, down: Down) -> None:
        """Deliver the `Down`."""
        self._cell.unwatch(self)
        self._cell.post(down, None)


def _wants_no_answer(sender: "Asker") -> bool:
    """Return True for an ask that is over, and for whoever is owed nothing."""
    return bool(getattr(sender, "done_", False))


def _only_counts(sender: "Asker") -> bool:
    """Return True for tells from elsewhere: they are counted, and nobody waits."""
    return bool(getattr(sender, "only_counts", False))


def _is_refused_call(error: TypeError) -> bool:
    """Return True when the arguments did not fit, so that nothing of the method has run."""
    trace = error.__traceback__
    return trace is not None and trace.tb_next is None


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # a user's __str__ must not keep its actor from ending
        return "<its text could not be made>"
