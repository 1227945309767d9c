"""The cell: the runtime's part of one actor, with its mailbox, turns, answers and end.

Any thread calls `post`, which appends a message to the mailbox and puts the cell into the run
queue, unless it is there. The runner calls `run`, which passes messages to handlers until the
mailbox is empty or the quantum of the turn is used up. Two flags control this:

- `scheduled` is True from the moment the cell enters the run queue until a run has found no
  more work.
- `running` is True while a thread is inside `run`. A second thread that finds `running` set
  does not run the cell. So handlers of one actor never overlap, on whichever threads they run.

The sender of an ask is an `Asker`. It receives the result of the handler, or what the handler
sends to `self.sender`, or an error. A handler that answers later creates a promise; the cell
then remembers the asker, and fails the ask if the actor ends before the answer.

Few actors use other handlers, a stash, urgent messages or concurrent handlers. These features
cost the other actors one flag, `attention`, which ends the loop over messages after the current
one. The cell then checks outside of the loop why the flag was set. The state of these features
is in a `RareState`.

Several coroutine handlers marked `concurrent` can run at once. A message for one starts a task,
and the actor handles the next message as soon as the task awaits. When the awaited result has
arrived, the task is queued in `RareState.woken`, and a `Resume` at the front of the mailbox
runs its next step. So steps of tasks are part of the turn like messages, and do not overlap.
While an unmarked coroutine handler awaits, no task runs a step. When the limit of tasks is
reached, the next message that would start one stays at the front of the mailbox and blocks all
messages but urgent ones, until a task has finished. A `Stop` waits until all have finished.

An actor ends because it was killed, failed, was stopped, or its parent ended. All messages in
its mailbox, and later ones, become dead letters: asks fail immediately with `ActorDown`, other
messages are counted. The states of its life are in `callboard.actors.life`.
"""

import asyncio
import contextvars
import inspect
import math
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from types import CoroutineType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol
from weakref import ref

from callboard import locks
from callboard.actors import errors
from callboard.actors.asking.overdue import (
    POLL_PROMISES,
    POLL_SECONDS,
    due_of,
    has_given_up,
)
from callboard.actors.asking.reply import MessageSender
from callboard.actors.asking.reply_cache import CachedReply, ReplyCache
from callboard.actors.dispatch import (
    DispatchTable,
    HandlerEntry,
    callable_methods,
    is_handler,
    why_not_callable,
)
from callboard.actors.envelope import INSTRUMENTATION, Encoded, Envelope, accompanied, traced_as
from callboard.actors.events import Expired, Unexpected
from callboard.actors.exit_reason import ExitReason
from callboard.actors.future import EXPIRED, Asked, Future, Pause
from callboard.actors.life import LifeEvent, LifeState, check_transition
from callboard.actors.mailbox import BoundedMailbox, Item, Mailbox, MailboxHost, SendTurn
from callboard.actors.reference import (
    ActorRef,
    Asker,
    Awaited,
    Call,
    Down,
    Running,
    Sender,
    StreamQuery,
    Watcher,
    current_cell,
)
from callboard.actors.refusal import Refusal
from callboard.actors.runner.loop import current_task_cleared
from callboard.actors.runner.runner import Runnable, Runner
from callboard.actors.runner.timers import Timer
from callboard.actors.signals import (
    STREAM_SIGNALS,
    ChildDown,
    Exit,
    LinkExit,
    Resume,
    Stop,
    Urgent,
)
from callboard.actors.streams.messages import StreamRequest
from callboard.actors.supervision.succession import Succession
from callboard.actors.task import ConcurrentTask, HandlerTask
from callboard.actors.values import Answer, Message
from callboard.actors.waits.shutdown import SHUTDOWN_TIMEOUT
from callboard.support.calls import AnyCoroutine, Arguments, Callback, Keywords
from callboard.support.dataclass import dataclass
from callboard.support.text import class_name, error_text

if TYPE_CHECKING:
    from callboard.actors.streams.source import ActorStreams

#: Messages that one actor handles in a turn before the next actor gets one.
TURN_QUANTUM: Final = 128

_TURN_QUANTUM = tuple(range(1, TURN_QUANTUM + 1))

#: Limit of messages in a stash; one that reaches it is probably never unstashed.
STASH_LIMIT: Final = 10_000

#: Limit of waiting messages that are searched for one whose remote asker has given up.
CANCEL_SCAN_LIMIT: Final = 1_000

#: Limit of actors that wait for each other in a chain; a longer one counts as a deadlock.
LONGEST_CHAIN: Final = 100

#: Number of unanswered askers from which on they are checked for answered ones.
PROMISES_CHECKED: Final = 64

#: Guards the tables of watchers while actors end; held for a few operations.
MONITORS_LOCK: Final = locks.lock("lives of actors", 770)

#: The first mailbox, and the first rarely used state, of cells that are about to get them.
_FIRST_MAILBOXES: Final[dict["Cell", deque[Item]]] = {}
_FIRST_RARE_STATES: Final[dict["Cell", "RareState"]] = {}

_URGENT: Final = Urgent()
_RESUME: Final = Resume()


@contextmanager
def short_turns(messages: int) -> Iterator[None]:
    """Limit the messages per turn of every actor during a block.

    A test that tries all orders of turns uses this, because it treats a turn as one step.
    """
    global _TURN_QUANTUM  # not an attribute, because the hot loop reads it
    full, _TURN_QUANTUM = _TURN_QUANTUM, _TURN_QUANTUM[:messages]
    try:
        yield
    finally:
        _TURN_QUANTUM = full


#: The argument of `become`: a class with handlers, functions by message type, or an object.
Handlers = type | Mapping[type, Callable[[Any], Any]] | object


#: Types of results that show a missing `await`.
_UNAWAITED: Final = frozenset({CoroutineType, Future, Pause})


class ActorHost(MailboxHost, Protocol):
    """The interface of the runtime for cells and actors."""

    #: The successors of actors that supervisors restart.
    succession: Succession

    #: Starts children of supervisors on other nodes: (class, args, kwargs, node); None without
    #: other nodes.
    spawn_elsewhere: Callable[..., Future[ActorRef]] | None

    #: The runner of the node.
    runner: Runner

    @property
    def nobody(self) -> ActorRef:
        """The ref of no actor: the sender of an anonymous message for Thespian's handlers."""

    #: Whether the end of the node has begun.
    is_closed: bool

    def is_runner_thread(self) -> bool:
        """Return whether this is a thread that runs the node's handlers and callbacks."""

    def post(self, callback: Callback, /, *args: Any) -> None:
        """Make the node's thread call `callback(*args)` soon. Can be called from any thread."""

    def warn_once(self, key: Hashable, text: str) -> None:
        """Log a mistake of the program, only the first time that it is reported for a key."""

    #: The running errands.
    errands: set[Any]

    #: Cached replies to asks that may be repeated.
    kept: ReplyCache

    def schedule(self, runnable: Runnable, /) -> None:
        """Schedule a turn of a runnable, like one of an actor.

        Can be called from any thread.
        """

    def start_actor(
        self,
        actor_class: type[Any],
        args: Arguments = (),
        kwargs: Keywords | None = None,
        *,
        parent: "Cell | None" = None,
    ) -> ActorRef:
        """Create an actor and return its ref."""

    def table_of(self, handlers: Handlers, /) -> DispatchTable:
        """Return the dispatch table of a class, of functions, or of an object."""

    def forget(self, cell: "Cell", down: Down, /) -> None:
        """Remove an ended actor from the tables."""

    def dead_letter(self, ref: ActorRef, message: Message, sender: Sender | None, /) -> None:
        """Count a message that no handler will receive."""

    def log_failure(self, cell: "Cell", text: str, error: BaseException, /) -> None:
        """Count and log an exception that ends an actor."""

    def thespian_system(self) -> Any:
        """Return the Thespian system of the runtime, created on first use."""


def _is_in_handler() -> bool:
    """Return whether the running code is a handler, not an asyncio task that one started."""
    loop = asyncio._get_running_loop()
    task: object = None if loop is None else asyncio.current_task(loop)
    return task.__class__ is HandlerTask


@dataclass(slots=True, eq=False)
class RareState:
    """The rarely used state of a cell, created on first use."""

    #: The actor whose full mailbox this one waits for.
    blocked_by: Awaited | None = None
    #: Called before others are notified of the end.
    on_end: Callable[[ExitReason, str], object] | None = None
    reminders: "set[Reminder]" = field(default_factory=set)
    #: Stashed messages, in the order of their arrival.
    stash: list[Item] = field(default_factory=list)
    #: True between `stash()` and the end of the handler that called it.
    stashing: bool = False
    #: Running concurrent handlers, and the ones that can resume.
    tasks: dict[ConcurrentTask, None] = field(default_factory=dict)
    woken: deque[ConcurrentTask] = field(default_factory=deque)
    #: Tasks of streams, and the streams.
    stream_tasks: dict[ConcurrentTask, None] = field(default_factory=dict)
    streams: "ActorStreams | None" = None
    #: Whether the hook `on_stop` was called, and its coroutine while it awaits.
    has_stopped: bool = False
    stop_task: HandlerTask | None = None
    #: Whether the first message has to wait for a concurrent handler to finish.
    is_held: bool = False
    #: High-priority messages; each has an `Urgent` mark at the front of the mailbox.
    urgent: deque[Item] = field(default_factory=deque)
    #: Items taken out of the mailbox that were marks, or were put back.
    unhandled: int = 0


@dataclass(slots=True, eq=False)
class Monitor:
    """An actor's monitor of another one; `cancel()` ends it without a `Down`."""

    _cell: "Cell"
    ref: ActorRef

    def cancel(self) -> None:
        """End the monitor; no effect after the `Down` was sent."""
        self._cell.unwatch(self)
        self.ref.target.demonitor(self)

    def fire(self, down: Down) -> None:
        """Deliver the `Down`."""
        self._cell.unwatch(self)
        self._cell.post(down, None)


class Reminder:
    """A delayed or repeated message, which ends with its actor.

    A repeated message is due at multiples of its period after its start. If a busy node misses
    several of these times, one message is sent for all of them.
    """

    __slots__ = ("_cell", "_due", "_message", "_period", "_timer", "active")

    def __init__(
        self, cell: "Cell", seconds: float, message: Message, period: float | None = None
    ) -> None:
        self._cell = cell
        self._message = message
        self._period = period
        self._due = cell.runner.now() + seconds
        #: Whether there will be another message.
        self.active = True
        cell.open_rare().reminders.add(self)
        self._timer: Timer = cell.runner.call_at(self._due, self._fire)

    def cancel(self) -> None:
        """Revoke the message; no effect after it was sent for the last time."""
        if self.active:
            self.active = False
            self._timer.cancel()
            self._cell.open_rare().reminders.discard(self)

    def _fire(self) -> None:
        """Send the message, and set the timer of the next one."""
        if not self.active:
            return
        cell, message, period = self._cell, self._message, self._period
        if period is None:
            self.active = False
            cell.open_rare().reminders.discard(self)
        else:
            now = cell.runner.now()
            missed = max(0.0, (now - self._due) // period)
            self._due += (missed + 1.0) * period
            self._timer = cell.runner.call_at(self._due, self._fire)
        try:
            cell.post(message, cell)
        except errors.MailboxFull:
            pass  # the mailbox has counted it


@dataclass(slots=True, weakref_slot=True, eq=False)
class Cell(MessageSender):
    """The runtime's part of one actor."""

    #: None: as the sender of a message, a cell sets no deadline.
    deadline: ClassVar[None] = None
    #: Empty: the actor is not part of the chain of waiting asks.
    chain_name: ClassVar[str] = ""
    #: None: messages of its handlers are sent immediately.
    outbox: ClassVar[Any] = None

    runtime: ActorHost
    runner: Runner
    number: int
    table: DispatchTable
    parent: "Cell | None"
    #: Time of its creation on the runner's clock.
    born: float
    actor: Any = None
    #: Items taken out of the mailbox in earlier turns, and in the current turn. The second
    #: number stays small, so that counting a message creates no integer object.
    _taken: int = 0
    _in_turn: int = 0
    trap_exit: bool = False
    scheduled: bool = False
    running: bool = True  # until the actor is created: nothing runs during its `__init__`
    #: Whether the actor was created, so that it has turns.
    is_open: bool = False
    task: HandlerTask | None = None
    #: The sender of the current message.
    sender: Sender | None = None
    #: The asker of the current message if its answer was promised.
    promised: Sender | None = None
    _end: tuple[ExitReason, str] | None = None
    #: The reason of the end; None while the actor is active.
    reason: ExitReason | None = None
    detail: str = ""
    #: Rarely used state.
    rare: RareState | None = None
    #: Whether the cell has to check for an end, other handlers and so on before a message.
    attention: bool = False
    # Most actors have none of these, so each is created on first use.
    children: "dict[Cell, None] | None" = None
    _mailbox: deque[Item] | None = None
    _promises: "_Promises | None" = None
    _watchers: dict[object, Watcher] | None = None
    #: The linked actors, each with the key of its monitor.
    _links: dict[ActorRef, object] | None = None
    _monitors: dict[Monitor, None] | None = None
    #: The ref, after it was created.
    known_ref: ActorRef | None = None
    #: The context of its turns; None until its first turn.
    _context: contextvars.Context | None = None
    #: False: as the sender of a message, a cell wants no outcome. A slot, because reading an
    #: attribute of the class takes five times as long.
    expects: Literal[False] = False

    @property
    def sender_node(self) -> bytes:
        """The id of the node that the current message came from; empty for this one."""
        return b"" if self.sender is None else self.sender.node

    @property
    def ref(self) -> ActorRef:
        """The ref of this actor, created on first use."""
        ref = self.known_ref
        if ref is None:
            runtime = self.runtime
            ref = self.known_ref = ActorRef(runtime, runtime.node_id, self.number, self)
        return ref

    @property
    def alive(self) -> bool:
        """Whether the actor has not ended."""
        return self.reason is None

    def reference(self, _: object) -> ActorRef:
        """Return the ref, for `self.sender` of the receiver."""
        return self.ref

    def __repr__(self) -> str:
        return f"<{type(self.actor).__name__} {self.number}>"

    @property
    def depth(self) -> int:
        """Number of messages in the mailbox."""
        return len(self._mailbox or ())

    @property
    def waiting(self) -> tuple[Item, ...]:
        """The messages in the mailbox with their senders, the next one first."""
        return tuple(self._mailbox or ())

    @property
    def taken(self) -> int:
        """Number of items taken out of the mailbox, which is the position of the latest one."""
        return self._taken + self._in_turn

    @property
    def handled(self) -> int:
        """Number of messages that handlers were called for, including the current one."""
        taken = self._taken + self._in_turn
        return taken if self.rare is None else taken - self.rare.unhandled

    @property
    def keeps_order(self) -> bool:
        """Whether the oldest message is always handled next; False if a policy drops it."""
        box = self._mailbox
        return not isinstance(box, BoundedMailbox) or box.bounds.on_full != "drop_oldest"

    @property
    def waited_for(self) -> BoundedMailbox | None:
        """The mailbox if it has bounds and senders wait for room in it, otherwise None."""
        box = self._mailbox
        waits = isinstance(box, BoundedMailbox) and box.bounds.on_full == "wait"
        return box if waits else None  # type: ignore[return-value]

    @property
    def unfinished(self) -> int:
        """Number of messages that wait, are being handled, or are not answered yet."""
        rare = self.rare
        put_aside = 0
        if rare is not None:
            put_aside = len(rare.tasks) + len(rare.stash) + len(rare.stream_tasks)
        is_busy = self.running or self.task is not None
        return self.depth + self.owed_answers + put_aside + is_busy

    @property
    def bounds(self) -> Mailbox | None:
        """The bounds of the mailbox; None without bounds."""
        return self._mailbox.bounds if isinstance(self._mailbox, BoundedMailbox) else None

    @property
    def watcher_count(self) -> int:
        """Number of monitors and links that others have on this actor."""
        return len(self._watchers or ())

    @property
    def watched(self) -> list[ActorRef]:
        """The actors that this one monitors."""
        return [monitor.ref for monitor in list(self._monitors or ())]

    @property
    def linked(self) -> list[ActorRef]:
        """The actors that this one is linked with."""
        return list(self._links or ())

    @property
    def activity(self) -> str:
        """The state of the actor: `blocked`, `awaiting`, `running`, `ready` or `idle`."""
        if self.rare is not None and self.rare.blocked_by is not None:
            return "blocked"
        if self.task is not None:
            return "awaiting"
        if self.running:
            return "running"
        if self.rare is not None and (self.rare.tasks or self.rare.stream_tasks):
            return "awaiting"
        return "ready" if self.depth else "idle"

    # --- mail ---

    def post(self, message: Message, sender: Sender | None = None) -> None:
        """Append a message to the mailbox. Can be called from any thread; never blocks."""
        mailbox = self._mailbox
        if mailbox is None:
            mailbox = self.open_mailbox()
        # Append before reading the flag: a run that ends in between clears the flag first and
        # then finds the message. In the other order neither would schedule the cell.
        mailbox.append((message, sender))
        if not self.scheduled:
            self.scheduled = True
            runner = self.runner
            runner.ready.append(self)
            if runner.sleeping:
                runner.wake()

    def offer(self, message: Message) -> Future[None] | None:
        """Append a message without a sender if the mailbox has room.

        Can be called from any thread.

        If the mailbox is full, the message is not appended, and the result is a future that is
        done when there is room.
        """
        mailbox = self._mailbox
        if not isinstance(mailbox, BoundedMailbox):
            self.post(message)
            return None
        room = mailbox.offer((message, None))
        if room is None:
            self.schedule()
        return room

    def post_run(self, messages: Iterable[Message]) -> None:
        """Append messages without a sender, in order, to a mailbox without bounds."""
        self.open_mailbox().extend([(message, None) for message in messages])
        self.schedule()

    def post_urgent(self, message: Message, sender: Sender | None = None) -> None:
        """Append a message before all normal messages, and after earlier urgent ones."""
        mailbox = self.open_mailbox()
        if not isinstance(mailbox, BoundedMailbox) or mailbox.admit(message, sender):
            self._push_urgent((message, sender))

    def _push_urgent(self, item: Item) -> None:
        """Queue an urgent message, and put its mark at the front of the mailbox."""
        self.open_rare().urgent.append(item)
        self.open_mailbox().appendleft((_URGENT, None))
        self.schedule()

    async def apost(
        self, message: Message, sender: Sender | None = None, *, is_urgent: bool = False
    ) -> None:
        """Append a message; while the mailbox is full, the sending coroutine waits.

        Raises:
            WouldDeadlock: this actor waits for the sending handler.
        """
        mailbox = self.waited_for
        if mailbox is None:
            (self.post_urgent if is_urgent else self.post)(message, sender)
            return
        box, source = mailbox, current_cell.get()

        def offer(turn: SendTurn) -> bool:
            if not box.take_turn((message, sender), turn, is_urgent=is_urgent):
                if source is not None and _is_in_handler() and self.waits_for(source):
                    msg = (
                        f"the mailbox of {self.ref} is full, and its handler waits for "
                        f"{source.ref}: neither could continue; use tell() in one of them"
                    )
                    raise errors.WouldDeadlock(msg)
                return False
            if is_urgent:
                self._push_urgent((message, sender))
            else:
                self.schedule()
            return True

        await SendTurn(None if source is self else self.ref).send(offer)

    def open(self, *, trap_exit: bool) -> None:
        """Enable turns, after the actor was created."""
        if self.is_open:  # legal in every other state, and a look-up would slow down spawns
            check_transition(self.life, LifeEvent.OPENED, self)
        self.is_open = True
        self.trap_exit = trap_exit
        self.running = False
        if self._mailbox or self._end is not None:
            self.scheduled = True  # may be set already: a turn during `__init__` had no effect
            self.runner.schedule(self)

    def schedule(self) -> None:
        """Put the cell into the run queue, unless it is there."""
        if not self.scheduled:
            self.scheduled = True
            self.runner.schedule(self)

    def leave(self) -> None:
        """Drop all messages in a forked process, because the parent handles them.

        If a thread of the parent process was running the cell during the fork, `scheduled`
        would stay set in the child process, and messages to the cell would wait forever instead
        of being refused. If a handler of this cell forked, the turn of the cell continues in
        the child process when the handler returns.
        """
        self.scheduled = False
        if self._mailbox is not None:
            self._mailbox.clear()

    def open_mailbox(self) -> deque[Item]:
        """Return the mailbox, created on first use."""
        if self._mailbox is None:
            # Two first messages may arrive at once, even in a nested call of this function.
            # `setdefault` is atomic, so that all of them get the same mailbox.
            first = _FIRST_MAILBOXES.setdefault(self, deque())
            if self._mailbox is None:
                self._mailbox = first
            _FIRST_MAILBOXES.pop(self, None)
        return self._mailbox

    def put_first(self, message: Message) -> None:
        """Put a message without a sender before all others; in a turn of the actor."""
        self.open_mailbox().appendleft((message, None))

    def take_mail(self) -> list[Item]:
        """Remove and return all messages, with urgent ones in the places of their marks."""
        mailbox, mail = self._mailbox, []
        while mailbox:
            item = mailbox.popleft()
            if type(item[0]) is Urgent and self.rare is not None and self.rare.urgent:
                item = self.rare.urgent.popleft()
            mail.append(item)
        return mail

    @property
    def is_quiet(self) -> bool:
        """Whether the actor is without mail, work, timers, children and unanswered asks."""
        rare = self.rare
        if self.children or self.owed_answers:
            return False
        if rare and (rare.reminders or rare.stash or rare.stream_tasks):
            return False
        return not (self.depth or self.running or self.scheduled or self.task)

    def bound_mailbox(self, bounds: Mailbox) -> None:
        """Set bounds for the mailbox; messages that wait in it stay accepted."""
        bounded = BoundedMailbox(self, bounds)
        with MONITORS_LOCK:
            bounded.extendleft(reversed(self._mailbox or ()))
            self._mailbox = bounded

    def open_rare(self) -> RareState:
        """Return the rarely used state, created on first use."""
        if self.rare is None:
            first = _FIRST_RARE_STATES.setdefault(self, RareState())  # as in `open_mailbox`
            if self.rare is None:
                self.rare = first
            _FIRST_RARE_STATES.pop(self, None)
        return self.rare

    # --- the turn ---

    def run(self) -> None:
        """Handle messages up to the quantum; called by the runner."""
        if self.running:
            return
        self.running = True
        task = self.task
        if self.attention:
            if self.reason is None:
                (self._context or self._open_context()).run(self._turn)
        elif task is None:
            context = self._context or self._open_context()
            context.run(self._handle_messages)
            if self._end is not None:
                context.run(self._turn)
        # If the task awaits again, this turn runs no other code in the actor's context.
        elif task.ready and not self._resume(task):
            (self._context or self._open_context()).run(self._turn)
        if self.reason is not None:
            self.drain()
        # In this order, and before the check for work. If `scheduled` were False first, a post
        # could put the cell into the queue again, and another thread, as the role may move,
        # would find `running` set and drop that turn: the message would wait forever. A post
        # between these lines and the check is either seen by the check, or schedules the cell.
        self.running = self.scheduled = False
        task = self.task
        if self.attention:
            has_work = self._has_work()
        else:
            has_work = bool(self._mailbox) if task is None else task.ready
        if has_work:
            self.schedule()

    def _open_context(self) -> contextvars.Context:
        """Create the actor's own context, so that its context variables are private.

        Entering a context is cheaper than setting `current_cell` in each turn.
        """
        context = self._context = contextvars.Context()
        context.run(current_cell.set, self)
        return context

    def answer_by_reading(self, envelope: Envelope, sender: Asker) -> bool:
        """Answer an ask with a read-only handler while another handler awaits.

        Returns False if the message has no such handler. An exception of the handler has no
        effect on the actor.
        """
        message, actor = envelope.message, self.actor
        entry = self.table[message.__class__]
        if entry is None or not entry.is_read_only or entry.is_coroutine or actor is None:
            return False

        def answer() -> None:
            self.sender = sender
            try:
                with accompanied(envelope):
                    self.answer(sender, entry.function(actor, message))
            except Refusal as refusal:
                self.refused(refusal, sender)
            except Exception as error:  # noqa: BLE001 - must not end the awaiting handler
                self.runtime.log_failure(
                    self, f"{class_name(error)}: {error_text(error)}", error
                )
                sender.set_exception(errors.remote_error(error))
            finally:
                self.sender = None

        self.running = True
        try:
            (self._context or self._open_context()).run(answer)
        finally:
            self.running = False
        return True

    def _turn(self) -> None:
        """Run one turn in the actor's context: resume its task, handle messages, end."""
        may_continue = not self.attention or self._may_continue()
        if may_continue and (self.task is None or self._is_over(self.task)):
            self._handle_messages()
        self.sender = None
        # The actor may have ended in this turn already: an entity whose state cannot be read
        # ends during its activation, and a kill may arrive in the same turn.
        if self._end is not None and self.reason is None and not self.is_stopping():
            self.terminate(*self._end)
            self._context = None

    def is_stopping(self) -> bool:
        """Run the hook `on_stop` once, before the end; return whether it still awaits."""
        hook = getattr(type(self.actor), "on_stop", None)
        if hook is None or self._end is None or is_handler(hook):
            return False
        rare = self.open_rare()
        if not rare.has_stopped:
            rare.has_stopped = True
            now = self.runner.now()
            askers = [(asker, now) for asker in self._cancel_tasks()]
            if askers:  # `terminate` fails them
                promises = self._promises = self._promises or _Promises()
                promises.extend(askers)
            self._guard("in its on_stop", self._begin_stop, hook, self._end[0])
        elif rare.stop_task is not None and rare.stop_task.ready:
            self._guard("in its on_stop", self._step_stop, rare.stop_task)
        return rare.stop_task is not None

    def _begin_stop(self, hook: Callback, reason: ExitReason) -> None:
        """Call the hook `on_stop`; a coroutine gets the time of the node's shutdown."""
        result = hook(self.actor, reason)
        if isinstance(result, Coroutine):
            self._step_stop(HandlerTask(self, result.send, None))
            if self.open_rare().stop_task is not None:
                self.runner.call_later(SHUTDOWN_TIMEOUT, self._cut_stop)

    def _step_stop(self, task: HandlerTask) -> None:
        """Run the hook `on_stop` to its next await."""
        rare = self.open_rare()
        rare.stop_task = None  # also if it raises
        if task.step():
            rare.stop_task = task

    def _cut_stop(self) -> None:
        """Cancel a hook `on_stop` that has awaited for too long."""
        task = None if self.rare is None else self.rare.stop_task
        if task is not None and self.reason is None:
            text = f"on_stop of {self.ref} awaited for {SHUTDOWN_TIMEOUT:g} s and was cancelled"
            self.runtime.warn_once((type(self.actor), "on_stop"), text)
            self.open_rare().stop_task = None
            self._guard("in its on_stop", task.abandon)
            self.schedule()

    def _may_continue(self) -> bool:
        """Check the reason for `attention`; return whether messages may be handled."""
        # Reset before the checks. Other threads set first the reason and then the flag, so
        # either the checks find the reason, or the flag is set again for the next turn.
        self.attention = False
        if self._end is None and not self.is_paused:
            if self.rare is not None:
                self.rare.is_held = False
            return True
        self.attention = True
        return False

    def _has_work(self) -> bool:
        """Return whether another turn is needed now."""
        if self.reason is not None:
            return bool(self._mailbox)
        if self._end is not None:
            stop_task = None if self.rare is None else self.rare.stop_task
            return stop_task is None or stop_task.ready
        if self.attention and self.is_paused:
            return False
        if self.task is not None:
            return self.task.ready
        return bool(self._mailbox)

    # One branch for each kind of handler: a call would cost as much as its work.
    def _handle_messages(self, quantum: Sequence[int] = ()) -> None:  # noqa: C901
        """Handle the messages of a turn.

        This is the hot loop: it uses local names, and does one look-up and one call per
        message.

        Args:
            quantum: numbers for the messages of this turn that are left; empty for a full turn.
        """
        mailbox = self._mailbox
        if not mailbox:
            return
        current_task_cleared(self.runner.loop, None)
        pop, table, actor = mailbox.popleft, self.table, self.actor
        message: Message = None
        try:
            for number in quantum or _TURN_QUANTUM:
                if not mailbox or self.attention:
                    break
                message, sender = pop()
                self._in_turn = number
                self.sender = sender
                entry = table[message.__class__]
                if entry is None:
                    self.handle_other(message, sender)
                elif entry.is_coroutine:
                    if entry.is_concurrent:
                        self.start_concurrent(entry.function(actor, message), sender, message)
                    else:
                        self.start_task(entry.function(actor, message), sender, message)
                else:
                    if sender is None or not sender.expects:
                        entry.function(actor, message)
                    elif sender.deadline is EXPIRED:
                        self.drop_expired(message, sender)
                    else:
                        result = entry.function(actor, message)
                        if result.__class__ is not entry.returned:
                            self._check_result(result, entry)
                        if sender is self.promised:
                            self.promised = None
                        elif not sender.set_result(result):
                            self.record_late(result)
                    continue
                if self.task is not None:
                    break
            if self.attention and self._in_turn:
                self.keep_stashed(message, self.sender)
        except Refusal as refusal:  # the actor continues with the next message
            rest = range(1, len(quantum or _TURN_QUANTUM) - self._in_turn + 1)
            self.failed(refusal, self.sender)
            if self.attention:
                self.keep_stashed(message, self.sender)
        except BaseException as error:  # noqa: BLE001  # sys.exit() ends the actor, not the node
            with traced_as(message):
                self.failed(error, self.sender)
            return
        else:
            return
        finally:
            self._taken += self._in_turn  # not atomic, but only this thread changes them
            self._in_turn = 0
            self.sender = None  # code between turns does not belong to a message
        if rest and not self.attention and self.task is None:
            self._handle_messages(rest)

    def dispatch(self, message: Message, sender: Sender | None) -> None:
        """Handle one message that is not an item of the mailbox."""
        self.sender = sender
        entry = self.table[message.__class__]
        if entry is None:
            self.handle_other(message, sender)
        elif entry.is_concurrent:
            self.start_concurrent(entry.function(self.actor, message), sender, message)
        elif entry.is_coroutine:
            self.start_task(entry.function(self.actor, message), sender, message)
        elif sender is None or not sender.expects:
            entry.function(self.actor, message)
        elif sender.deadline is EXPIRED:
            self.drop_expired(message, sender)
        else:
            self.answer(sender, entry.function(self.actor, message))
        if self.attention:
            self.keep_stashed(message, sender)

    def start_task(
        self, coroutine: AnyCoroutine, sender: Sender | None, message: Message = None
    ) -> None:
        """Run a coroutine handler to its first await, or to its end if there is none."""
        if sender is not None and sender.expects and sender.deadline is EXPIRED:
            coroutine.close()
            self.drop_expired(message, sender)
            return
        task = HandlerTask(self, coroutine.send, sender, message)
        if task.step():
            self.task = task
            if sender is not None and sender.deadline is EXPIRED:  # expired during this step
                self.stop_working(task)

    def _resume(self, task: HandlerTask) -> bool:
        """Run a step of the coroutine handler; return whether it awaits and needs no check.

        The context of the task is a copy of the actor's.
        """
        self.sender = task.sender
        try:
            if task.step():
                self.sender = None
                return not self.attention
        except BaseException as error:  # noqa: BLE001  # as in `_handle_messages`
            self.task = None
            task.context.run(self.failed, error, task.sender)
            return False
        self.task = None
        if self.attention:
            self.keep_stashed(task.message, task.sender)
        return False

    def _is_over(self, task: HandlerTask) -> bool:
        """Resume the coroutine handler if it can; return whether messages are next."""
        if task.ready and self._end is None:
            self._resume(task)
        return self.task is None and self._end is None

    # --- messages without a `@handler` ---

    def handle_other(  # noqa: C901
        self, message: Message, sender: Sender | None
    ) -> None:
        """Handle a message without a `@handler`: a call, a signal, Thespian's styles."""
        if message.__class__ is Envelope:
            self._open(message, sender)
        elif isinstance(message, Encoded):
            self._decode(message, sender)
        elif isinstance(message, Call):
            self._call(message, sender)
        elif isinstance(message, Resume | Urgent):  # the mark of a task or message
            self.open_rare().unhandled += 1
            self._handle_marked()
        elif isinstance(message, Stop):
            if self._finish_down_to(0, message, None):
                self.end = self.end or (ExitReason.NORMAL, "")
        elif isinstance(message, LinkExit):
            self._linked_actor_ended(message)
        elif message.__class__ in STREAM_SIGNALS or message.__class__ is StreamRequest:
            self._open_streams().handle(message, sender)
        elif not self.actor.handle_thespian_style(message):
            self.unexpected(message, sender)
        elif sender is not None and sender.expects:
            if sender is self.promised:
                self.promised = None
            else:
                self.owe(sender)

    def _decode(self, encoded: Encoded, sender: Sender | None) -> None:
        """Decode a message in this turn, and handle it."""
        try:
            message = encoded.decode()
        except BaseException as error:  # noqa: BLE001  # fails only this message
            encoded.refused(error)
            return
        self.dispatch(message, sender)

    def _open(self, envelope: Envelope, sender: Sender | None) -> None:
        """Handle a message with the metadata of its envelope."""
        deadline = envelope.deadline
        if deadline is not None and deadline <= self.runner.now():
            if sender is not None and sender.expects:
                with traced_as(envelope):
                    self.drop_expired(envelope.message, sender)
            return
        key = envelope.key
        if key is None or sender is None or not sender.expects:
            pass
        elif sender.deadline is not EXPIRED:
            sender = self.runtime.kept.admit(self.number, key, sender, deadline)
            if sender is None:
                return
        if envelope.trace is None and not envelope.chain:
            self.dispatch(envelope.message, sender)
        else:
            with accompanied(envelope):
                self.dispatch(envelope.message, sender)

    def _call(self, call: Call, sender: Sender | None) -> None:
        """Call a public method of the actor, and answer with its result."""
        actor = self.actor
        actor_class: type = type(actor)
        # A call from another node may have fields of any type.
        if type(call.method) is not str or call.method not in callable_methods(actor_class):
            if sender is not None and sender.expects:
                sender.set_exception(
                    errors.NoSuchMethod(why_not_callable(actor_class, call.method))
                )
            return
        plain = method = getattr(actor, call.method)
        if INSTRUMENTATION.spans is not None:
            awaits = inspect.iscoroutinefunction(method)
            method = INSTRUMENTATION.spans.around(method, awaits=awaits)
        try:
            result = method(*call.args, **(call.kwargs or {}))
        except TypeError as error:
            if (
                sender is None
                or not sender.expects
                or not _is_refused_call(error, method is not plain)
            ):
                raise
            sender.set_exception(errors.RemoteError("TypeError", error_text(error)))
            return
        if isinstance(result, Coroutine):
            self.start_task(result, sender)
        elif sender is not None and sender.expects:
            self.answer(sender, result)

    def _linked_actor_ended(self, signal: LinkExit) -> None:
        """Notify the actor that a linked actor ended, or end this actor as well."""
        if self._links is None or self._links.pop(signal.ref, None) is None:
            return  # unlinked while the signal waited in the mailbox
        if self.trap_exit:
            mailbox = self._mailbox
            assert mailbox is not None
            mailbox.appendleft((Exit(signal.ref, signal.reason, signal.detail), None))
        elif signal.reason is not ExitReason.NORMAL:
            self.end = self.end or (signal.reason, signal.detail or f"linked to {signal.ref}")

    # --- concurrent handlers ---

    def resume(self, task: ConcurrentTask) -> None:
        """Schedule the next step of a concurrent handler."""
        self.open_rare().woken.append(task)
        self.open_mailbox().appendleft((_RESUME, None))
        self.schedule()

    def start_concurrent(
        self,
        coroutine: AnyCoroutine,
        sender: Sender | None,
        message: Message,
    ) -> None:
        """Run a concurrent handler to its first await, or put its message back."""
        limit: int = self.actor.concurrent_limit
        if not self._finish_down_to(limit - 1, message, sender):
            coroutine.close()
            return
        if sender is not None and sender.expects and sender.deadline is EXPIRED:
            coroutine.close()
            self.drop_expired(message, sender)
            return
        task = ConcurrentTask(self, coroutine.send, sender, message)
        task.is_promised = False
        self.open_rare().tasks[task] = None
        self._step(task)

    # --- streams ---

    def _open_streams(self) -> "ActorStreams":
        """Return the streams of this actor, created on first use."""
        rare = self.open_rare()
        if rare.streams is None:
            from callboard.actors.streams.source import ActorStreams  # most nodes have none

            rare.streams = ActorStreams(self)
        return rare.streams

    def start_stream(self, task: ConcurrentTask) -> None:
        """Run a task of a stream to its first await, outside of the limit of tasks."""
        self.open_rare().stream_tasks[task] = None
        self._step(task)

    def resume_now(self, task: ConcurrentTask) -> None:
        """Run a task of a stream to its next await, in the turn of the current message."""
        self._step(task)

    def stream_function(self, query: Message) -> Callback | None:
        """Return the handler of a stream query; None if there is none."""
        return self.table.stream_handler(query.__class__)

    def stream_steps(self, coroutine: AnyCoroutine) -> AnyCoroutine:
        """Return a coroutine whose steps run the steps of a stream."""
        return coroutine

    def fail_streams(self, error: BaseException) -> None:
        """End all streams with an error, and close their generators."""
        if self.rare is not None and self.rare.streams is not None:
            self.rare.streams.fail(error)

    def post_signal(self, signal: Message) -> None:
        """Append a message of the runtime to the mailbox. Can be called from any thread."""
        Cell.post(self, signal, None)

    # --- tasks ---

    def _handle_marked(self) -> None:
        """Run a step of the first woken task, and handle the first urgent message."""
        rare = self.open_rare()
        if rare.woken:
            self._step(rare.woken.popleft())
        if rare.urgent:
            rare.unhandled -= 1  # count the urgent message instead of its mark
            self.dispatch(*rare.urgent.popleft())

    def _finish_down_to(self, limit: int, message: Message, sender: Sender | None) -> bool:
        """Return whether at most `limit` tasks run; otherwise put the message back.

        First runs the tasks that can resume.
        """
        rare = self.rare
        if rare is None or len(rare.tasks) <= limit:
            return True
        mailbox = self.open_mailbox()
        # Before the steps: if one fails, the message becomes a dead letter.
        mailbox.appendleft((message, sender))
        rare.unhandled += 1
        # Marks of woken tasks may be in the mailbox after the message that was put back. So
        # this loop reads the queues of tasks and urgent messages, not the mailbox.
        while len(rare.tasks) > limit and (rare.woken or rare.urgent):
            self._handle_marked()
        if len(rare.tasks) > limit:
            rare.is_held = self.attention = True
        return False

    def _step(self, task: ConcurrentTask) -> None:
        """Run a concurrent handler to its next await."""
        rare = self.open_rare()
        tasks = rare.tasks if task in rare.tasks else rare.stream_tasks
        if task not in tasks:
            return
        self.sender = task.sender
        if task.is_promised:
            self.promised = task.sender
        is_running = False
        try:
            is_running = task.step()
        finally:
            if not is_running:
                del tasks[task]
        if self.promised is not None and self.promised is task.sender:
            task.is_promised, self.promised = True, None
        if self.attention:
            self.keep_stashed(task.message, task.sender)

    # --- answers ---

    def answer(self, sender: Asker, value: Answer) -> None:
        """Send the result of a handler, unless the handler has promised an answer."""
        if value.__class__ in _UNAWAITED:
            self._check_result(value)
        if sender is self.promised:
            self.promised = None
        elif not sender.set_result(value):
            self.record_late(value)

    def _check_result(self, value: Any, entry: HandlerEntry | None = None) -> None:
        """Refuse a result that should have been awaited; otherwise remember its type.

        Raises:
            NotAwaited: the handler returned a future or a coroutine.
        """
        if entry is not None and value.__class__ not in _UNAWAITED:
            entry.returned = value.__class__
            return
        kind = "a future" if isinstance(value, Future) else "a coroutine"
        if kind == "a coroutine":
            value.close()
        name = type(self.actor).__name__
        msg = (
            f"a handler of {name} returned {kind} instead of its result; "
            "write `async def` and `return await …`"
        )
        raise errors.NotAwaited(msg)

    def warn_unawaited_pause(self) -> None:
        """Warn about a pause that was not awaited."""
        if self.alive:
            name = type(self.actor).__name__
            text = f"{name} called self.sleep() without an await; write `await self.sleep(…)`"
            self.runtime.warn_once((type(self.actor), Pause), text)

    def record_late(self, value: Answer) -> None:
        """Count an answer that the asker does not accept: a second or a late one."""
        if value is not None:  # None is the result of a handler that has sent its answer
            self.runtime.counters.late_answers += 1

    def unexpected(self, message: Message, sender: Sender | None) -> None:
        """Fail the ask of a message without a handler, or count and report the message."""
        name = type(self.actor).__name__
        text = f"{name} has no handler for {class_name(message)}; add one with @handler"
        kind: type[errors.UnexpectedMessage] = errors.UnexpectedMessage
        if isinstance(message, StreamQuery) and self.stream_function(message) is not None:
            kind = errors.StreamExpected
            label = class_name(message)
            text = f"{label} is a StreamQuery; read its answers with ref.stream({label}(…))"
        if isinstance(message, type):
            text = f"{name} was sent the class {message.__name__}; send {message.__name__}(…)"
        elif isinstance(message, Future | CoroutineType):
            article = f"a {type(message).__name__.lower()}"
            text = f"{name} was sent {article}; await it and send its result"
        if sender is not None and sender.expects:
            sender.set_exception(kind(text))
        if type(message) is Down:  # the actor monitors the ended one
            self.runtime.warn_once((type(self.actor), Down), text)
        elif not isinstance(message, ChildDown):
            self.runtime.counters.unexpected += 1
            self.runtime.report(Unexpected(self.ref, message))
            if sender is None or not sender.expects or not sender.wants_reply:
                self.runtime.warn_once((type(self.actor), type(message)), text)

    def promise(self) -> Asker | None:
        """Keep the current ask open when its handler returns, and return its asker.

        Returns None if the current message is not an ask that wants a reply.
        """
        sender = self.sender
        if sender is None or not sender.expects or not sender.wants_reply:
            return None
        self.promised = sender
        self.owe(sender)
        return sender

    def drop_expired(self, message: Message, sender: Asker) -> None:
        """Drop a message whose ask has expired in the mailbox."""
        sender.set_exception(errors.AskTimeout(f"it expired before {self.ref} handled it"))
        self.runtime.counters.expired += 1
        self.runtime.report(Expired(self.ref, message))

    def keeps_answers(self) -> bool:
        """Return True: a repeated ask is answered from the reply cache."""
        return True

    def error_of_unsent(self, _: Asker) -> None:
        """Return None, as a message to an actor of this node is always sent."""

    def give_up(self, asker: object) -> None:
        """Cancel a coroutine handler whose asker has given up. Can be called from any thread.

        Args:
            asker: the future of the ask, or the `origin` of a remote asker.
        """
        rare = self.rare
        if type(asker) is tuple or self.task is not None or (rare and rare.tasks):
            self.runner.post(self._give_up, asker)

    def _give_up(self, asker: object) -> None:
        """Cancel the handler that works for an asker that has given up, or drop its message."""

        def is_it(sender: Sender | None) -> bool:
            return sender is not None and sender.origin == asker

        tasks = [] if self.task is None else [self.task]
        for task in [*tasks, *(self.rare.tasks if self.rare is not None else ())]:
            reply = task.sender
            if is_it(reply) or (isinstance(reply, CachedReply) and reply.is_asked_by(is_it)):
                self.stop_working(task)
                return
        if type(asker) is tuple:
            waiting = list(self._mailbox or ()) if self.depth <= CANCEL_SCAN_LIMIT else ()
            for sender in (self.sender, *(sender for _, sender in waiting)):
                if sender is not None and sender.expects and is_it(sender):
                    sender.deadline = EXPIRED  # type: ignore[misc]

    def stop_working(self, task: HandlerTask) -> None:
        """Cancel a handler whose asker has given up, unless it is not cancellable."""
        entry = self.table[type(task.message)]
        if entry is None or entry.is_cancellable:
            task.give_up()

    @property
    def owed_answers(self) -> int:
        """Number of askers that are not answered yet."""
        return sum(not asker.is_done for asker, _ in self._promises or ())

    def owe(self, sender: Asker) -> None:
        """Remember an unanswered asker, so that its ask fails if the actor ends."""
        sender.mark_handled()
        if sender.is_done:
            return
        promises = self._promises
        if promises is None:
            promises = self._promises = _Promises()
        elif len(promises) >= promises.check_at:
            promises[:] = [entry for entry in promises if not entry[0].is_done]
            promises.check_at = max(PROMISES_CHECKED, 2 * len(promises))
        due = due_of(sender, self.runner.now())
        promises.append((sender, due))
        if due < math.inf and not promises.is_timed:
            promises.is_timed = True
            self._schedule_forget(promises)

    def _schedule_forget(self, promises: "_Promises") -> None:
        """Schedule the next check for promises to forget, without keeping the cell alive."""
        seconds = POLL_SECONDS * max(1.0, len(promises) / POLL_PROMISES)
        self.runner.call_later(seconds, _forget_overdue, ref(self), promises)

    def forget_overdue(self, promises: "_Promises") -> None:
        """Remove the promises whose askers have given up. Runs on the node's thread."""
        if self._promises is not promises:
            return
        now, is_reachable = self.runner.now(), self.runtime.remote.is_reachable
        count = len(promises)  # the thread of a detached actor may append more at the same time
        pending = [
            entry
            for entry in promises[:count]
            if not (entry[0].is_done or has_given_up(*entry, now, is_reachable))
        ]
        promises[:count] = pending
        promises.is_timed = any(due < math.inf for _, due in promises)
        if promises.is_timed:
            self._schedule_forget(promises)

    # --- behavior ---

    def become(self, handlers: Handlers) -> None:
        """Handle messages with other handlers, starting with the next message."""
        self.table = self.runtime.table_of(handlers)
        self.attention = True

    def stash(self) -> None:
        """Set the current message aside; `keep_stashed` stores it when the handler returns."""
        rare = self.open_rare()
        if len(rare.stash) >= STASH_LIMIT:
            msg = (
                f"{self.ref} has {STASH_LIMIT:,} messages in its stash, the limit; call "
                "unstash_all() before you stash more"
            )
            raise errors.MailboxFull(msg)
        rare.stashing = self.attention = True
        sender = self.sender
        if sender is not None and sender.expects:
            self.promised = sender  # so that the result of the handler is not the answer

    def keep_stashed(self, message: Message, sender: Sender | None) -> None:
        """Move the current message into the stash if its handler has called `stash`."""
        rare = self.rare
        if rare is not None and rare.stashing:
            rare.stashing = False
            rare.unhandled += 1
            rare.stash.append((message, sender))

    def unstash_all(self) -> None:
        """Put the stashed messages at the front of the mailbox, in the order of arrival."""
        rare = self.rare
        if rare is not None and rare.stash:
            stashed, rare.stash = rare.stash, []
            self.open_mailbox().extendleft(reversed(stashed))

    # --- waiting for room in other mailboxes ---

    def block_on(self, target: Awaited) -> bool:
        """Suspend this actor until `unblock`; return False if `target` waits for this actor."""
        rare = self.open_rare()
        with MONITORS_LOCK:
            if rare.blocked_by is not None or target.waits_for(self):
                return False
            rare.blocked_by = target
        self.attention = True
        return True

    def unblock(self) -> None:
        """Resume this actor."""
        if self.rare is not None and self.rare.blocked_by is not None:
            self.rare.blocked_by = None
            self.schedule()

    @property
    def is_paused(self) -> bool:
        """Whether the actor may handle no message, because it waits for room or for a task."""
        rare = self.rare
        if rare is None:
            return False
        if rare.blocked_by is not None:
            return True
        return rare.is_held and not rare.woken and not rare.urgent

    def waits_for(self, other: Running) -> bool:
        """Return whether this actor is `other`, or waits for it directly or through others."""
        cell: Any = self
        for _ in range(LONGEST_CHAIN):
            if cell is other:
                return True
            if cell.rare is not None and cell.rare.blocked_by is not None:
                cell = cell.rare.blocked_by
            elif cell.task is not None and cell.task.waiting_for.__class__ is Future:
                address = cell.task.waiting_for.asked
                cell = address.target if isinstance(address, Asked) else None
            else:
                return False
            if not isinstance(cell, Cell):
                return False
        return True

    # --- waits of a detached actor ---

    def may_block_here(self) -> bool:
        """Return whether this is the actor's own thread, which it may block."""
        return self.runner.may_block and self.runner.is_runner_thread()

    def refuse_wait(self, awaited: object) -> bool:
        """Raise an error if a wait on this thread could never end.

        Returns whether the thread may block.

        Raises:
            WouldDeadlock: the caller would wait for an actor that this thread has to run.
        """
        if not self.runner.is_runner_thread():
            return False
        if self.runner.may_block and awaited is not self.ref:
            return True
        msg = (
            f".result() in a handler of {self.ref} would hold up the actor that the answer "
            "has to reach; make the handler `async def` and await the future"
        )
        raise errors.WouldDeadlock(msg)

    # --- watched by others ---

    def monitor(self, key: Hashable, watcher: Watcher) -> None:
        """Call `watcher(Down(…))` once when the actor ends.

        If the actor has ended already, the call is immediate, with the reason `not_found`.
        """
        with MONITORS_LOCK:
            if self.reason is None:
                if self._watchers is None:
                    watchers: dict[object, Watcher] = {}
                    if self._watchers is None:  # a nested call may have created it
                        self._watchers = watchers
                self._watchers[key] = watcher
                return
        watcher(Down(self.ref, ExitReason.NOT_FOUND, f"it had ended ({self.reason})"))

    def demonitor(self, key: Hashable) -> None:
        """Remove a watcher; no effect if it was called or is unknown."""
        with MONITORS_LOCK:
            if self._watchers is not None:
                self._watchers.pop(key, None)

    # --- watching others ---

    def watch(self, other: ActorRef) -> Monitor:
        """Receive a `Down` message when `other` ends."""
        monitor = Monitor(self, other)
        if self._monitors is None:
            self._monitors = {}
        self._monitors[monitor] = None
        other.target.monitor(monitor, monitor.fire)
        return monitor

    def unwatch(self, monitor: Monitor) -> None:
        """Remove a monitor that fired or was cancelled."""
        if self._monitors is not None:
            self._monitors.pop(monitor, None)

    def link(self, other: ActorRef) -> None:
        """Receive a `LinkExit` when `other` ends.

        The caller has to call `link` of the other actor as well.
        """
        if self._links is None:
            self._links = {}
        if other in self._links:
            return
        key = self._links[other] = ("link", self)
        other.target.monitor(
            key,
            lambda down: self.post(LinkExit(other, ExitReason(down.reason), down.detail), None),
        )

    def unlink(self, other: ActorRef) -> None:
        """Undo `link`."""
        key = (self._links or {}).pop(other, None)
        if key is not None:
            other.target.demonitor(key)

    # --- the end ---

    @property
    def life(self) -> LifeState:
        """The state of the actor's life."""
        if self.reason is not None:
            return LifeState.ENDED
        if self._end is None:
            return LifeState.LIVE if self.is_open else LifeState.STARTING
        return LifeState.ENDING if self.is_open else LifeState.DOOMED

    @property
    def end(self) -> tuple[ExitReason, str] | None:
        """The reason to end when the handler returns; None to continue."""
        return self._end

    @end.setter
    def end(self, reason: tuple[ExitReason, str] | None) -> None:
        self._end = reason
        self.attention = True

    def stop(self) -> None:
        """End the actor normally, after the messages that are in its mailbox."""
        self.post(Stop(), None)

    def kill(self, reason: ExitReason = ExitReason.KILLED, detail: str = "") -> None:
        """End the actor before its next message, and cancel a handler that awaits."""
        if self.end is None:
            self.end = (reason, detail)
        self.schedule()

    def failed(self, error: BaseException, sender: Sender | None) -> None:
        """End the actor because its handler raised, and fail the ask of the message.

        A refusal is sent as the answer, and does not end the actor.
        """
        if issubclass(type(error), Refusal):
            self.refused(error, sender)
            return
        is_exit = issubclass(type(error), SystemExit)  # reads no attribute of the error
        reason = ExitReason.NORMAL if is_exit else ExitReason.ERROR
        text = f"{class_name(error)}: {error_text(error)}"
        # Set the end first, so that the actor ends even if the code below raises.
        self.end = self.end or (reason, text if reason is ExitReason.ERROR else "")
        if sender is not None and sender.expects:
            sender.set_exception(errors.remote_error(error))
        if reason is ExitReason.ERROR:
            self.runtime.log_failure(self, text, error)

    def refused(self, refusal: BaseException, sender: Sender | None) -> None:
        """Answer a message with the refusal that its handler raised."""
        if sender is not None and sender.expects:
            if sender is self.promised:
                self.promised = None
            # Without the frames of the handler, which would keep its variables alive.
            sender.set_exception(refusal.with_traceback(None))

    def terminate(self, reason: ExitReason, detail: str) -> None:
        """End the actor: fail its unanswered asks, end its children, notify its watchers."""
        if self.reason is not None:  # legal in every other state
            check_transition(self.life, LifeEvent.TERMINATED, self)
        self.attention = True  # later messages become dead letters
        if self.rare is not None and self.rare.on_end is not None:
            self._guard("in its on_end", self.rare.on_end, reason, detail)
        cancelled = self._cancel_tasks()
        # The lock makes this atomic for `monitor`, which either adds a watcher in time to be
        # called below, or finds the reason. Without the lock, `monitor` could add a watcher
        # after the table was read, and that watcher would never be called.
        with MONITORS_LOCK:
            self.reason, self.detail = reason, detail
            watchers, self._watchers = self._watchers, None
        down = Down(self.ref, reason, detail)
        self.runtime.forget(self, down)
        if askers := [*cancelled, *(asker for asker, _ in self._promises or ())]:
            text = f"{self.ref} ended ({reason}) before it answered"
            error = errors.ActorDown(text, reason, detail)
            for asker in askers:
                asker.set_exception(error)
        self._promises = self.promised = self.sender = None
        children, self.children = self.children, None
        for child in children or ():
            self.end_child(child)
        for other, key in (self._links or {}).items():
            other.target.demonitor(key)
        self._links = None
        self._clear()
        if self.parent is not None:  # before the watchers, because one may ask the supervisor
            self.parent.child_ended(self, down)
        for watcher in (watchers or {}).values():
            self._guard("in a callback for its end", watcher, down)
        self.actor = None

    def _guard(self, context: str, callback: Callback, *args: Any) -> None:
        """Call a function; log its exception, which must not prevent the end."""
        try:
            callback(*args)
        except BaseException as error:  # noqa: BLE001  # the actor has to end
            self.runtime.log_failure(self, f"{context}: {error_text(error)}", error)

    def _cancel_tasks(self) -> list[Asker]:
        """Cancel all running handlers; return their unanswered askers."""
        tasks = [] if self.task is None else [self.task]
        self.task = None
        if self.rare is not None:
            tasks += [*self.rare.tasks, *self.rare.stream_tasks]
            self.rare.tasks, self.rare.stream_tasks = {}, {}
        for task in tasks:
            self._guard("while it was cancelled", task.abandon)
        return [
            task.sender for task in tasks if task.sender is not None and task.sender.expects
        ]

    def _clear(self) -> None:
        """Cancel monitors and reminders, and move stashed messages to the mailbox."""
        for monitor in list(self._monitors or ()):
            monitor.cancel()
        self._monitors = None
        rare = self.rare
        if rare is None:
            return
        for reminder in list(rare.reminders):
            reminder.cancel()
        rare.blocked_by = rare.on_end = None
        if rare.streams is not None:
            rare.streams.drop()
        stashed, rare.stash = rare.stash, []
        if self._mailbox is not None:
            self._mailbox.extendleft(reversed(stashed))

    def abort(self, reason: ExitReason, detail: str) -> None:
        """End an actor whose `__init__` raised. Runs on the thread that spawned the actor."""
        self.terminate(reason, detail)
        self.running = False
        if self._mailbox:
            self.scheduled = True
            self.runner.schedule(self)

    def end_child(self, child: "Cell") -> None:
        """End a child, because this actor has ended."""
        child.kill(ExitReason.SHUTDOWN)

    def child_ended(self, child: "Cell", down: Down) -> None:
        """Remove a child that ended, and notify an actor that handles `ChildDown`."""
        if self.children is not None:
            self.children.pop(child, None)
        if self.reason is None and ChildDown in self.table.declared:
            self.post(ChildDown(down.ref, down.reason, down.detail), None)

    def drain(self) -> None:
        """Make all messages in the mailbox of an ended actor dead letters."""
        mailbox = self._mailbox
        while mailbox:
            message, sender = mailbox.popleft()
            kind = type(message)  # not `__class__`, which may raise
            if kind in (Stop, LinkExit, Resume):
                continue
            if kind is Urgent:
                if self.rare is None or not self.rare.urgent:
                    continue
                message, sender = self.rare.urgent.popleft()
            if sender is not None and sender.expects:
                text = f"{self.ref} ended ({self.reason})"
                if self.runtime.is_closed:
                    text += f", as {self.runtime.name} is closed; create another node"
                sender.set_exception(errors.ActorDown(text, self.reason or "", self.detail))
            self._guard(
                "among its dead letters", self.runtime.dead_letter, self.ref, message, sender
            )


def _is_refused_call(error: TypeError, frames: int) -> bool:
    """Return whether the arguments did not match the signature, so that no code has run.

    Args:
        error: the exception.
        frames: number of calls between this module and the method.
    """
    trace = error.__traceback__
    for _ in range(frames):
        trace = trace and trace.tb_next
    return trace is not None and trace.tb_next is None


def _forget_overdue(cell: "ref[Cell]", promises: "_Promises") -> None:
    """Remove the overdue promises of an actor, if the actor still exists."""
    living = cell()
    if living is not None:
        living.forget_overdue(promises)


class _Promises(list[tuple[Asker, float]]):
    """Askers that are not answered yet, each with the time when it has given up.

    Askers that were answered or have given up are removed from time to time.
    """

    __slots__ = ("is_timed", "check_at")

    def __init__(self) -> None:
        super().__init__()
        #: Number of askers at which they are checked for answered ones: twice the number
        #: left by the last check, so that the cost per asker is constant.
        self.check_at = PROMISES_CHECKED
        #: Whether a check for askers of other nodes is scheduled.
        self.is_timed = False
