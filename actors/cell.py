"""A cell: one actor's mailbox, its place in the run queue, and its turn.

A message comes in through `post`, on any thread: it is appended to the mailbox, and the cell
goes to the run queue unless it is there. The runner calls `run`, which takes messages and calls
handlers until the mailbox is empty or the cell has had its share. Two flags keep that right:

- `scheduled` is True from the moment the cell is put into the run queue until a run found
  nothing left.
- `running` is True while a thread is inside `run`. A thread that finds it set leaves the cell
  to the one that runs it. So handlers of one actor never overlap, however threads come and go.

The rest of a cell stands below: how it ends (`actors.life`), how it answers (`actors.answers`),
who watches it (`actors.monitors`).
"""

import contextvars
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, Literal

from actors.answers import Sender
from actors.current import current_cell
from actors.dispatch import DispatchTable
from actors.envelope import Envelope, traced
from actors.errors import NoSuchMethod, RemoteError
from actors.exit_reason import ExitReason
from actors.future import OVER
from actors.interleaving import Interleaving
from actors.loop import current_task_cleared
from actors.mailbox import BoundedMailbox
from actors.methods import callable_methods
from actors.signals import Call, Exit, LinkExit, Resume, Stop, Urgent
from actors.task import HandlerTask

if TYPE_CHECKING:
    from actors.runtime import Runtime

MESSAGES_A_TURN: Final = 128
"""Messages that one actor handles before the next one gets its turn."""


class Cell(Interleaving):
    """The runtime's side of one actor."""

    __slots__ = ("_context", "born", "trap_exit")

    #: Made for the first turn, so that an actor that only waits has none.
    _context: contextvars.Context | None
    #: When it was made, in the runner's seconds.
    born: float

    #: As the sender of a message, a cell sets no time.
    deadline: Final = None
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
        self.actor = None
        self.handled = 0
        self.trap_exit = False
        self.scheduled = False
        self.running = True  # until the actor is made: nothing runs during its __init__
        self.task = self.sender = self.promised = None
        self._end = self.reason = self.aside = None
        self.attention = False
        self.detail = ""
        self.children = self._mailbox = self._promises = None
        self._watchers = self._links = self._monitors = self._ref = None
        self._context = None
        self.born = runtime.runner.now()

    @property
    def depth(self) -> int:
        """Messages that wait in the mailbox."""
        return len(self._mailbox or ())

    @property
    def keeps_order(self) -> bool:
        """Whether what waits longest is handled next: not where a policy drops the oldest."""
        mailbox = self._mailbox
        if not isinstance(mailbox, BoundedMailbox):
            return True
        return mailbox.bounds.on_full != "drop_oldest"

    @property
    def unfinished(self) -> int:
        """Messages that wait, are being handled, or still owe an answer."""
        aside = self.aside
        put_aside = 0 if aside is None else len(aside.tasks) + len(aside.stash)
        is_busy = self.running or self.task is not None
        return self.depth + self.owed_answers + put_aside + is_busy

    # --- messages in ---

    def post(self, message: Any, sender: Sender | None) -> None:
        """Append a message to the mailbox; from any thread, never blocks."""
        mailbox = self._mailbox
        if mailbox is None:
            mailbox = self.open_mailbox()
        mailbox.append((message, sender))
        if not self.scheduled:
            self.scheduled = True
            runner = self.runner
            runner.ready.append(self)
            if runner.sleeping:
                runner.wake()

    # --- the turn ---

    def run(self) -> None:
        """Handle what waits, up to a share; called by the runner."""
        if self.running:
            return
        self.running = True
        task = self.task
        if task is not None and task.ready and not self.attention and self._goes_on(task):
            pass  # it awaits again: for this there is no need to enter the actor's context
        elif self.reason is None:
            (self._context or self._open_context()).run(self._turn)
        if self.reason is not None:
            self.drain()
        self.running = False
        self.scheduled = False
        task = self.task
        if self.attention or self.reason is not None:
            has_work = self._has_work()
        else:
            has_work = task.ready if task is not None else bool(self._mailbox)
        if has_work:
            self.schedule()

    def _open_context(self) -> contextvars.Context:
        """Make the actor's own context: what a handler sets there, no other actor sees.

        Entering it is cheaper than setting `current_cell` for each turn would be.
        """
        context = self._context = contextvars.Context()
        context.run(current_cell.set, self)
        return context

    def _turn(self) -> None:
        may_go_on = not self.attention or self._may_go_on()
        if may_go_on and (self.task is None or self._is_over(self.task)):
            self._handle_messages()
        self.sender = None  # what runs between turns belongs to no message
        if self._end is not None:
            self.terminate(*self._end)
            self._context = None

    def _may_go_on(self) -> bool:
        """Look for what asked for attention; False when no message may be handled."""
        self.attention = False  # before looking: other threads set the reason first
        if self._end is None and not self.is_paused:
            if self.aside is not None:
                self.aside.is_held = False
            return True
        self.attention = True
        return False

    def _has_work(self) -> bool:
        if self.reason is not None:
            return bool(self._mailbox)
        if self._end is not None:
            return True
        if self.attention and self.is_paused:
            return False
        if self.task is not None:
            return self.task.ready
        return bool(self._mailbox)

    # One branch for each kind of handler: a call would cost as much as what it does.
    def _handle_messages(self) -> None:  # noqa: C901
        """The hot loop: local names, one dictionary look-up and one call for each message."""
        mailbox = self._mailbox
        if not mailbox:
            return
        current_task_cleared(self.runner.loop, None)
        take, table, actor = mailbox.popleft, self.table, self.actor
        message: Any = None
        handled = 0
        try:
            while mailbox and not self.attention and handled < MESSAGES_A_TURN:
                message, sender = take()
                handled += 1
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
                    elif sender.deadline is OVER:
                        self.drop_expired(message, sender)
                    else:
                        result = entry.function(actor, message)
                        if sender is self.promised:
                            self.promised = None
                        elif not sender.set_result(result):
                            self.note_late(result)
                    continue
                if self.task is not None:
                    break
            if self.attention and handled:
                self.keep_stashed(message, self.sender)
        except BaseException as error:  # noqa: BLE001  # sys.exit() ends its actor, not the node
            self.failed(error, self.sender)
        finally:
            self.handled += handled

    def dispatch(self, message: Any, sender: Sender | None) -> None:
        """Handle one message that did not come out of the mailbox as it is."""
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
        elif sender.deadline is OVER:
            self.drop_expired(message, sender)
        else:
            self.answer(sender, entry.function(self.actor, message))
        if self.attention:
            self.keep_stashed(message, sender)

    def start_task(
        self, coroutine: Coroutine[Any, Any, Any], sender: Sender | None, message: Any = None
    ) -> None:
        """Run a coroutine handler to its first await; it may be done by then."""
        if sender is not None and sender.expects and sender.deadline is OVER:
            coroutine.close()
            self.drop_expired(message, sender)
            return
        task = HandlerTask(self, coroutine, sender, message)
        if task.step():
            self.task = task

    def _goes_on(self, task: HandlerTask) -> bool:
        """Let the coroutine handler take a step; False when it is done, or something else is.

        Its own context has what the actor's has.
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
        """Go on with the coroutine handler; True when it is done and messages come next."""
        if task.ready and self._end is None:
            self._goes_on(task)
        return self.task is None and self._end is None

    # --- what is no `@handler`'s ---

    def handle_other(self, message: Any, sender: Sender | None) -> None:
        """Handle what no `@handler` takes: calls, signals, Thespian's own styles."""
        if message.__class__ is Envelope:
            self._open(message, sender)
        elif isinstance(message, Call):
            self._call(message, sender)
        elif isinstance(message, Resume | Urgent):  # marks: each stands for one of either kind
            self.resume_one()
            self.handle_urgent()
        elif isinstance(message, Stop):
            if self.may_stop(message):
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

    def _open(self, envelope: Envelope, sender: Sender | None) -> None:
        """Handle a message with what travels with it."""
        deadline = envelope.deadline
        if deadline is not None and deadline <= self.runner.now():
            if sender is not None and sender.expects:
                self.drop_expired(envelope.message, sender)
            return
        if envelope.trace is None:
            self.dispatch(envelope.message, sender)
        else:
            with traced(*envelope.trace):
                self.dispatch(envelope.message, sender)

    def _call(self, call: Call, sender: Sender | None) -> None:
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
            mailbox = self._mailbox
            assert mailbox is not None
            mailbox.appendleft((Exit(signal.ref, signal.reason, signal.detail), None))
        elif signal.reason is not ExitReason.NORMAL:
            self.end = self.end or (signal.reason, signal.detail or f"linked to {signal.ref}")


def _is_refused_call(error: TypeError) -> bool:
    """Return True when the arguments did not fit, so that nothing of the method has run."""
    trace = error.__traceback__
    return trace is not None and trace.tb_next is None
