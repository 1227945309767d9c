"""One activation of an entity: units of work of its handlers, commits, and emissions.

A **unit of work** is the work of a handler between two awaits. Its events are committed
together. At most one batch of an entity is being committed at a time. Units of work that end
during that commit are gathered in the next batch. So the database never stores an event without
the earlier ones.

The answer of a handler and its messages to other actors are its **emissions**. They may show
the state of the entity, so they are sent only when all events in that state are durable. Until
then they wait in `EntityBatch.emissions`. Otherwise a crash could undo a state that another
actor has seen. If there are no uncommitted events, an answer still needs a proof that this node
owns the slot, because a newer owner may have changed the state. The proof is the next commit of
this entity, or a read of the slot's fence that starts after the answer was given.

If a commit fails, everything that waits for it fails with the same error, and the state is read
again. If a handler raises, its unit of work is discarded, and the state is read again after the
commits in flight. Messages wait in the mailbox until the state is read.

Every sender is wrapped in a `DeferredReply`, which expects an answer even for a tell. So the
runtime calls `set_result` or `set_exception` at the end of every handler, and these calls end
the handler's unit of work.
"""

import math
from collections.abc import Callable, Coroutine, Generator, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final
from weakref import ref as weak

from callboard.entity.entity import Entity
from callboard.entity.errors import EntityUnavailable, NotPersistable
from callboard.entity.event_json import OTHER_RELEASE
from callboard.entity.machine.activation_stage import (
    ACTIVATION,
    COMMITS,
    ActivationEvent,
    ActivationStage,
    CommitEvent,
    CommitStage,
)
from callboard.entity.machine.table import RESTORE_EPOCHS
from callboard.entity.reminders import ReminderTicket
from callboard.entity.state.interface import (
    Committed,
    EntitySnapshot,
    NewEvent,
    Recovered,
    RowChanges,
    Slot,
    StoredReminder,
)
from callboard.entity.unit_of_work import (
    NOT_STORED,
    DeferredReply,
    Emission,
    EntityBatch,
    Refuse,
    Release,
    drop,
    unavailable,
)
from callboard.kernel import errors
from callboard.kernel.activation import (
    Cell,
    Envelope,
    HandlerTask,
    Resume,
    Stop,
)
from callboard.kernel.actors import ExitReason
from callboard.kernel.context import current_cell
from callboard.kernel.events import SlowHandler
from callboard.kernel.reply import Future, Sender
from callboard.lease.errors import StateCorrupt, StateVersion
from callboard.support.calls import AnyCoroutine
from callboard.support.dataclass import dataclass
from callboard.support.text import class_name, error_text
from callboard.transitions import next_state

#: Makes a `NewEvent` in half the time of its constructor; runs for each event.
_new_event: Final[Callable[[tuple[str, int, str, int, str]], NewEvent]] = partial(
    tuple.__new__, NewEvent
)

#: Posts a message with its sender.
Post = Callable[[Any, Sender | None], object]

#: The stages that run for each message; a global is read faster than a member of its class.
_UNREAD: Final = ActivationStage.UNREAD
_ACTIVE: Final = ActivationStage.ACTIVE

#: The stages in which handlers run, so that messages may overtake others in the mailbox.
_HANDLING: Final = frozenset(
    (ActivationStage.ACTIVE, ActivationStage.BROKEN, ActivationStage.PASSIVATING)
)

#: Seconds between checks whether a blocking handler has returned.
_BLOCKED_POLL_SECONDS: Final = 0.005


@dataclass(frozen=True, slots=True)
class Passivate:
    """A message of an activation to itself, to end after the messages in the mailbox."""


class _Activation:
    """The call of the `activated` hook; if the hook fails, the activation ends."""

    __slots__ = ()

    def finish(self, cell: "EntityCell") -> None:
        """Report a singleton as started."""
        cell.host.singletons.activation_succeeded(cell.key)

    def failed(self, _: BaseException) -> bool:
        """Do nothing: `EntityCell.failed` ends the activation."""
        return True


_ACTIVATED: Final = _Activation()


class _Steps(Coroutine[Any, Any, Any]):
    """A coroutine handler; each of its steps is a unit of work."""

    __slots__ = ("_entity", "_coroutine", "_is_reading")

    def __init__(
        self, cell: "EntityCell", coroutine: AnyCoroutine, *, is_reading: bool
    ) -> None:
        self._entity = cell
        self._coroutine = coroutine
        self._is_reading = is_reading

    def send(self, value: Any) -> Any:
        """Run to the next await, which ends a unit of work."""
        return self._step(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        """Raise an exception in the coroutine, and run to the next await."""
        return self._step(self._coroutine.throw, *error)

    def close(self) -> None:
        """Close the coroutine."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()

    def _step(self, resume: Callable[..., Any], *args: Any) -> Any:
        cell = self._entity
        cell.is_reading = self._is_reading
        try:
            awaited = resume(*args)
        finally:
            cell.is_reading = False
        cell.close_unit()
        if type(awaited) is Future and awaited.asked == cell.known_ref:
            # The entity awaits its own answer, which is a deadlock. The check for it compares
            # refs by identity, and refs of one key may be different objects, so this sets the
            # known one.
            awaited.asked = cell.known_ref
        return awaited


def read_only(function: Callable[[Any, Any], Any], *, awaits: bool) -> Callable[..., Any]:
    """Wrap a handler so that it fails if it persists anything."""
    if awaits:
        return lambda actor, message: _Steps(
            actor.context, function(actor, message), is_reading=True
        )

    def read(actor: Entity, message: Any) -> Any:
        cell = actor.context
        cell.is_reading = True
        try:
            return function(actor, message)
        finally:
            cell.is_reading = False

    return read


class EntityCell(Cell):
    """The cell of one activation."""

    __slots__ = (
        "_broken", "_events", "_in_flight", "_next", "_outbox", "_recovered", "_saved",
        "_since", "after_commits", "host", "is_ending", "is_reading", "_batches", "_partial",
        "_reads", "_rows", "_writing", "durable", "home", "key", "last_used", "slot", "stage",
        "restores", "type", "type_is_kept", "written",
    )  # fmt: skip

    def __init__(self, host: Any, number: int, key: str, slot: int) -> None:
        runtime = host.runtime
        now = runtime.now()
        super().__init__(runtime, host.runner, number, host.table, None, now)
        self.host = host
        self.type = host.type
        #: Whether the type is hosted with a state, in which events are stored.
        self.type_is_kept = host.state is not None
        self.key, self.slot = key, slot
        #: The name of the type, and the slot.
        self.home: Slot = host.type.name, slot
        self.known_ref = host.ref(key)
        #: How often the state was restored from a backup.
        self.restores = host.epochs.get(slot, 0) // RESTORE_EPOCHS
        #: The number of the last event.
        self.written = 0
        #: Whether the running handler is read-only.
        self.is_reading = False
        #: Number of the last batch, and of the last durable batch.
        self._batches = self.durable = 0
        #: The sender of the message whose handler has persisted something in this unit of work.
        self._writing: Sender | None = None
        #: When the last message arrived.
        self.last_used = now
        #: The current unit of work: events, state of the simple form, rows.
        self._events: list[NewEvent] = []
        self._saved: EntitySnapshot | None = None
        self._rows: RowChanges | None = None
        #: Emissions of the current unit of work since its first event.
        self._outbox: list[Emission | DeferredReply] = []
        #: The error that stops commits and answers until the state is read again.
        self._broken: BaseException | None = None
        self._next: EntityBatch | None = None
        self._in_flight: EntityBatch | None = None
        #: See `callboard.entity.machine.activation_stage`.
        self.stage = ActivationStage.UNREAD
        #: The recovered page to apply next, in the stage READ.
        self._recovered: Recovered | None = None
        #: The entity with the events of the earlier pages.
        self._partial: Entity | None = None
        #: Counts the reads of the state; a page of an earlier read is ignored.
        self._reads = 0
        #: Called after the last commit of an activation that has ended.
        self.after_commits: Callable[[], object] | None = None
        #: Whether later messages go to the next activation.
        self.is_ending = False
        #: Events since the last snapshot.
        self._since = 0

    # --- mail ---

    def post(self, message: Any, sender: Sender | None = None) -> None:
        """Append a message to the mailbox. Can be called from any thread; never blocks."""
        self.last_used = self.runner.now()
        Cell.post(self, message, DeferredReply(self, sender))

    def post_urgent(self, message: Any, sender: Sender | None = None) -> None:
        """Append a message before the normal messages, and after earlier urgent ones."""
        # Not before a page of the state that was read and has to be applied first.
        if self.stage not in _HANDLING:
            self.post(message, sender)
            return
        self.last_used = self.runner.now()
        Cell.post_urgent(self, message, DeferredReply(self, sender))

    def post_reminder(self, ticket: ReminderTicket) -> None:
        """Append a due reminder to the mailbox."""
        self.last_used = self.runner.now()
        Cell.post(self, ticket, DeferredReply(self, None, ticket))

    def offer(self, message: Any) -> Future[None] | None:
        """Append a message without a sender."""
        self.post(message)
        return None

    def post_run(self, messages: Iterable[Any]) -> None:
        """Append messages without a sender."""
        for message in messages:
            self.post(message)

    @property
    def chain_name(self) -> str:  # type: ignore[override]  # differs for each entity
        """The name of this entity in the chain of an ask."""
        return f"{self.type.name}/{self.key}"

    @property
    def is_paused(self) -> bool:
        """Whether messages must wait: the state is being read."""
        if self.actor is None and self.stage is not ActivationStage.READ:
            return True
        return super().is_paused

    def handle_other(self, message: Any, sender: Sender | None) -> None:
        """Handle a message without a `@handler`, as a unit of work, too."""
        if type(message) is Passivate:
            self._passivate()
        elif isinstance(message, Stop):
            self.host.passivate(self)
        elif type(message) is _Begin:
            self._begin()
        elif type(message) is ReminderTicket:
            self._handle_reminder(message, sender)
        elif type(message) is Envelope and message.key is not None:
            self._admit(message, message.key, sender)
        else:
            super().handle_other(message, sender)
        if self.task is None:
            self.close_unit()

    def _admit(self, envelope: Envelope, key: bytes, sender: Sender | None) -> None:
        """Handle an ask with an idempotency key, whose answer is cached when it is sent."""
        inner = sender.inner if isinstance(sender, DeferredReply) else sender
        if inner is not None and inner.expects:
            inner = self.runtime.kept.admit(self.number, key, inner, envelope.deadline)
            if inner is None:
                return
        plain = Envelope(
            envelope.message, envelope.trace, envelope.deadline, chain=envelope.chain
        )
        super().handle_other(plain, DeferredReply(self, inner))

    def _handle_reminder(self, ticket: ReminderTicket, sender: Sender | None) -> None:
        """Handle a reminder, unless it was forgotten or replaced while it waited."""
        row = ticket.row
        if not ticket.is_current or self._changes_reminder(row.name):
            ticket.failed(EntityUnavailable("the reminder was forgotten or replaced"))
            return
        try:
            message = self.host.form.read(row.body)
        # The reminder waits for a program that can read it.
        except (StateCorrupt, StateVersion) as error:
            ticket.failed(error)
            return
        self.dispatch(message, sender)

    def start_task(
        self, coroutine: AnyCoroutine, sender: Sender | None, message: Any = None
    ) -> None:
        """Run a coroutine handler to its first await."""
        if not isinstance(coroutine, _Steps):
            coroutine = _Steps(self, coroutine, is_reading=False)
        super().start_task(coroutine, sender, message)

    def is_stopping(self) -> bool:
        """Return False: an entity has the hook `passivated` instead of `on_stop`."""
        return False

    def stream_steps(self, coroutine: AnyCoroutine) -> AnyCoroutine:
        """Return a coroutine that runs a stream, which may only read the state."""
        return _Steps(self, coroutine, is_reading=True)

    def promise(self) -> Any:
        """Defer the answer of the current message; its unit of work still ends here."""
        self.put_first(Resume())
        return super().promise()

    def answer_meanwhile(self, envelope: Envelope, sender: Sender) -> bool:
        """Answer an ask by a read-only handler while another handler awaits, if possible."""
        return self.answer_by_reading(envelope, DeferredReply(self, sender))

    # --- the state ---

    def _enter(self, event: ActivationEvent) -> ActivationStage:
        """Enter the stage that follows an event, and return it."""
        self.stage = stage = next_state(ACTIVATION, self.stage, event, self.known_ref)
        return stage

    def read_state(self) -> None:
        """Discard the actor, and read the stored state again. Messages wait until then."""
        self._check_commits(CommitEvent.STATE_READ)
        self._enter(ActivationEvent.READ_STARTED)
        self.fail_streams(EntityUnavailable(f"the state of {self.ref} is read again"))
        self.actor, self._recovered, self._broken = None, None, None
        self._partial = None
        self.attention = True
        self._reads += 1
        self.host.recover(self, partial(self._state_read, self._reads))

    def _state_read(self, read: int, recovered: Recovered | BaseException) -> None:
        """Queue a page of the state that was read. Runs on the node's thread."""
        if self.stage is not ActivationStage.READING or read != self._reads:
            return
        if isinstance(recovered, BaseException):
            self._recovery_failed(recovered)
            return
        self._enter(ActivationEvent.PAGE_READ)
        self._recovered = recovered
        self.put_first(_BEGIN)
        self.attention = True
        self.schedule()

    def _recovery_failed(self, error: BaseException) -> None:
        """Fail the waiting messages: the state is unreadable. The next message tries again."""
        self.runtime.warn_once(("entity", self.type.name, type(error)), f"{self.ref}: {error}")
        self._end_unrecovered(unavailable(error), error_text(error))

    def _end_unrecovered(self, failure: BaseException, detail: str) -> None:
        """Fail the waiting messages, and end the activation."""
        self.is_ending = True
        self.host.activation_ended(self)
        self.host.singletons.activation_failed(self.key)
        for _, sender in self.take_mail():
            if isinstance(sender, DeferredReply):
                sender.fail_at_once(failure)
        self.attention = True
        self.terminate(ExitReason.ERROR, detail)

    def _begin(self) -> None:
        """Apply a page of events; after the last page, start handling messages.

        Other actors run between two pages. A page is dropped when it was applied, so only one
        page is in memory, for any number of events.
        """
        recovered, self._recovered = self._recovered, None
        if recovered is None or self.stage is not ActivationStage.READ:
            return  # a page of an earlier read
        try:
            actor = self._partial or self._restore(recovered.snapshot)
            self.host.apply(self, actor, recovered.events)
        except BaseException as error:  # noqa: BLE001 - user code cannot apply the stored events
            if isinstance(error, OTHER_RELEASE):
                error = StateVersion(_unread(self, error))
            elif not isinstance(error, StateCorrupt | StateVersion):
                error = StateCorrupt(_unread(self, error))
            self._recovery_failed(error)
            return
        self._since += len(recovered.events)
        if recovered.has_more:
            self._enter(ActivationEvent.PAGE_APPLIED)
            self._partial, self.attention = actor, True
            self.host.recover_more(self, self.written, partial(self._state_read, self._reads))
            return
        self._partial = None
        self.actor = actor
        self._enter(ActivationEvent.RECOVERED)
        self.attention = True  # this turn continues with the new actor
        self.host.activated()
        if type(actor).activated is not Entity.activated:
            self.sender = DeferredReply(
                self, None, _ACTIVATED
            )  # for a hook that raises at once
            self.start_task(actor.activated(), self.sender, None)
            self._limit_hook("activated")

    def _restore(self, snapshot: EntitySnapshot | None) -> Entity:
        """Create the entity from its snapshot, before later events are applied."""
        actor: Entity = self.type.cls.attach(self, *self.host.arguments)
        self.written = 0 if snapshot is None else snapshot.number
        self._since = 0
        if snapshot is not None:
            self.host.restore(actor, snapshot)
        return actor

    def persist(self, event: object) -> None:
        """Apply an event, and add it to the unit of work, to be committed."""
        if (
            self.stage is not _ACTIVE
            or self.is_reading
            or not self.running
            or current_cell.get() is not self
        ):
            self._check_writing("persist")  # raises an error with the reason
        self._writing = self.sender
        host = self.host
        apply, kind, version = host.known_events.get(event.__class__) or host.learn(event)
        body = host.form.write_fields(kind, event)
        self.written = number = self.written + 1
        self._since += 1
        if self.type_is_kept:
            self._events.append(_new_event((self.key, number, kind.name, version, body)))
        apply(self.actor, event)

    def save(self) -> None:
        """Add the attribute `state` to the unit of work, to be committed."""
        self._check_writing("save")
        name, state = self.type.cls.__qualname__, getattr(self.actor, "state", None)
        if self.type.appliers:
            msg = f"{name} has @event methods: persist events instead of save()"
            raise NotPersistable(msg)
        if state is None:
            msg = f"{name} calls save() without self.state; set it in __init__"
            raise NotPersistable(msg)
        kind = self.host.form.kind_of(state)
        body = self.host.form.write(state)
        self.written += 1
        if self.type_is_kept:
            version = self.type.saved_version(kind.names)
            self._saved = EntitySnapshot(self.key, self.written, version, body)

    def remind(self, name: str, message: object, after: float, every: float) -> None:
        """Add a reminder to the unit of work, to be stored with it."""
        self._check_reminding("remind")
        body = self.host.form.write(message)
        due_ms = self.host.reminders.due_ms(after)
        row = StoredReminder(self.key, name, due_ms, math.ceil(every * 1000), body)
        self.open_rows().reminders[self.key, name] = row

    def forget(self, name: str) -> None:
        """Delete a reminder with the unit of work."""
        self._check_reminding("forget")
        self.open_rows().reminders[self.key, name] = None

    def finish_reminder(self, ticket: ReminderTicket) -> None:
        """Add the deletion of a handled reminder, or its next time, to the unit of work."""
        row = ticket.row
        if ticket.is_current and not self._changes_reminder(row.name):
            self.open_rows().reminders[self.key, row.name] = ticket.following()
        self.emit_answer(lambda: None, ticket.failed)

    def _changes_reminder(self, name: str) -> bool:
        """Return whether an uncommitted unit of work changes a reminder."""
        place = self.key, name
        changes = [self._rows]
        batches = (self._next, self._in_flight)
        changes += [batch.rows for batch in batches if batch is not None]
        return any(rows is not None and place in rows.reminders for rows in changes)

    def open_rows(self) -> RowChanges:
        """Return the changed rows of the unit of work, made on first use."""
        if self._rows is None:
            self._rows = RowChanges()
        return self._rows

    def add_rows(self, changes: RowChanges) -> None:
        """Add changes of rows to the unit of work."""
        if self._rows is None:
            self._rows = changes
        else:
            self._rows.include(changes)

    def _check_reminding(self, method: str) -> None:
        """Check that the current handler may change reminders.

        Raises:
            NotPersistable: the handler may not change reminders, or the type is hosted without
                state.
        """
        self._check_writing(method)
        if not self.type_is_kept:
            name = self.type.cls.__qualname__
            msg = (
                f"reminders are stored, and {name} is hosted without state: host it with "
                f"node.host({name}, state=…), or use self.after(seconds, message)"
            )
            raise NotPersistable(msg)

    def _check_writing(self, method: str) -> None:
        """Check that the current handler may persist something.

        Raises:
            NotPersistable: the handler is read-only, or no handler of this entity runs.
        """
        if self.is_reading:
            msg = (
                f"{self.ref}: a read-only handler, or the generator of a stream, called "
                f"{method}(); call it in a handler without read_only=True"
            )
            raise NotPersistable(msg)
        is_running = self.running and self.stage in _HANDLING
        if current_cell.get() is not self or not is_running:
            msg = f"{self.ref}: {method}() was called while none of its handlers was running"
            raise NotPersistable(msg)
        if self.stage is ActivationStage.PASSIVATING:
            msg = f"{self.ref} is being passivated; call {method}() in a handler"
            raise NotPersistable(msg)
        self._writing = self.sender

    # --- units of work ---

    @property
    def is_clean(self) -> bool:
        """Whether every event is durable."""
        return self._next is None and self._in_flight is None and not self._has_written

    @property
    def commits(self) -> CommitStage:
        """The stage of the entity's commits, not counting the current unit of work."""
        if self._broken is not None:
            return CommitStage.FAILED
        if self._in_flight is None:
            return CommitStage.CLEAN
        return CommitStage.COMMITTING if self._next is None else CommitStage.GATHERING

    def _check_commits(self, event: CommitEvent) -> None:
        """Check that an event is legal in the stage of the commits.

        Raises:
            IllegalTransition: it is not.
        """
        next_state(COMMITS, self.commits, event, self.known_ref)

    @property
    def _has_written(self) -> bool:
        """Whether the current unit of work has persisted anything."""
        return bool(self._events) or self._saved is not None or self._rows is not None

    def _open_batch(self) -> EntityBatch:
        """Return the next batch to commit."""
        if self._next is None:
            self._batches += 1
            self._next = EntityBatch(self._batches, [], [])
        return self._next

    def emit_answer(self, send: Release, fail: Refuse) -> None:
        """Send an answer when the state it shows is durable and the slot is still owned."""
        emission = Emission(send, fail)
        with self.host.lock:
            if self._broken is not None:
                self.runner.post(fail, self._broken)
            elif self._has_written:
                self._outbox.append(emission)
            elif self._in_flight is None and self._next is None:
                self.host.prove(self.slot, emission)
            else:
                # That commit starts later than this answer, so it also proves the ownership.
                self._open_batch().emissions.append(emission)

    def outbox(self, post: Post, message: Any, sender: Sender | None) -> bool:
        """Hold a message back until the state it shows is durable.

        Returns:
            False if the message may be sent at once.
        """
        if not self.type_is_kept:
            return False
        host = self.host
        if host.handed or host.is_inside():
            # This message must not overtake an earlier one that a nested call has deferred.
            self._emit_later(post, message, sender)
            return True
        return self._emit(post, message, sender)

    def _emit_later(self, post: Post, message: Any, sender: Sender | None) -> None:
        """Defer a message that a nested call sends inside a call of the host."""
        copied = self._copied(message)

        def emit() -> None:
            if not self._emit(post, copied, sender):
                post(copied, sender)

        def refuse(error: BaseException) -> None:
            if sender is not None and sender.expects:
                sender.set_exception(error)
            self.host.runtime.dead_letter(self.ref, copied, sender)

        self.host.hand_over.add(emit, refuse)

    def _copied(self, message: Any) -> Any:
        """Return a copy of a message, because the sender may change the original meanwhile."""
        copy = self.host.form.copy
        if type(message) is Envelope:
            return replace(message, message=copy(message.message))
        return copy(message)

    def _emit(self, post: Post, message: Any, sender: Sender | None) -> bool:
        """Hold a message back if it must wait; return whether it must."""
        if self.is_clean and self._broken is None:
            return False
        copied = self._copied(message)
        fail = sender.set_exception if sender is not None and sender.expects else drop
        with self.host.lock:
            if self._broken is not None:
                self.runner.post(fail, self._broken)
                return True
            emissions = self._outbox
            if not self._has_written:
                batch = self._in_flight if self._next is None else self._next
                if batch is None:  # the commit has ended in the meantime
                    return False
                emissions = batch.emissions
            emissions.append(Emission(partial(post, copied, sender), fail))
        return True

    def close_unit(self) -> None:
        """End the unit of work: commit its events, now or after the commit in flight."""
        if self._has_written or self._next is not None:
            self.finish_unit(None)

    def finish_unit(self, answer: DeferredReply | None) -> None:
        """End the unit of work of a handler, and send its answer as soon as this is allowed."""
        host, snapshot = self.host, None
        every = self.type.snapshot_every if self._events else 0
        is_due = every and self._since >= every
        if is_due and self._broken is None:
            # This is done without the lock, because it runs user code. Only this thread changes
            # the state.
            snapshot = host.snapshot(self)
        lock = host.lock
        # Takes half the time of a `with` block, which matters because every answer runs this.
        lock.acquire()
        try:
            if self._broken is not None:
                self._refuse_unit(answer, self._broken)
                return
            if self._events or self._saved is not None or self._rows is not None:
                if answer is not None:
                    self._outbox.append(answer)
                if is_due:
                    self._since = 0
                self._move_to_batch(snapshot or self._saved)
            elif answer is not None:
                if self._in_flight is None and self._next is None:  # the handler only read
                    host.prove(self.slot, answer)
                    return
                # That commit starts later than this answer, so it also proves the ownership.
                self._open_batch().emissions.append(answer)
            if self._in_flight is None and (batch := self._next) is not None:
                self._in_flight, self._next = batch, None
                host.commit(self, batch)
        finally:
            lock.release()

    def _move_to_batch(self, snapshot: EntitySnapshot | None) -> None:
        """Move the changes and emissions of the unit of work to the next batch.

        The caller must hold the lock.
        """
        batch, rows = self._next, self._rows
        if batch is None:
            self._batches = number = self._batches + 1
            batch = self._next = EntityBatch(number, self._events, self._outbox)
        else:
            batch.events += self._events
            batch.emissions += self._outbox
        if rows is not None and batch.rows is not None:
            batch.rows.include(rows)
        elif rows is not None:
            batch.rows = rows
        if snapshot is not None:
            batch.snapshot = snapshot
        self._events, self._outbox, self._saved, self._rows = [], [], None, None
        writing = self._writing
        if isinstance(writing, DeferredReply) and not writing.batch:
            writing.batch = batch.number

    def _refuse_unit(self, answer: DeferredReply | None, error: BaseException) -> None:
        """Discard a unit of work after a failed commit. The caller must hold the lock."""
        emissions, self._outbox = self._outbox, []
        self._events, self._saved, self._rows = [], None, None
        if answer is not None:
            emissions.append(answer)
        for emission in emissions:
            self.runner.post(emission.fail_at_once, error)

    def write_snapshot(self, events: int) -> None:
        """Write a snapshot if there are enough events since the last one.

        Runs on the runner's thread. No snapshot is written while a handler runs or awaits,
        because it may have changed only a part of the state. Nor is one written for less than a
        tenth of the class's `snapshot_every` events, so that frequent moves of a slot do not
        write one each time.
        """
        every = self.type.snapshot_every
        has_many = self.type_is_kept and every and self._since >= max(events, every // 10)
        is_between = not (self.running or self.task or self._has_written)
        if not (is_between and has_many) or self.stage is not _ACTIVE:
            return
        self._since = 0
        snapshot = self.host.snapshot(self)  # without the lock: this runs user code
        if snapshot is not None:
            with self.host.lock:
                self._open_batch().snapshot = snapshot
                if self._in_flight is None:
                    self._commit()

    def _commit(self) -> None:
        """Pass the next batch to the host to be committed. The caller must hold the lock."""
        batch, self._next = self._next, None
        assert batch is not None
        self._in_flight = batch
        self.host.commit(self, batch)

    def handle_outcome(self, outcome: Committed | BaseException) -> None:
        """Handle the outcome of the batch's transaction. Runs on the node's thread."""
        host = self.host
        # The same object for all batches of a transaction without errors.
        if outcome is not host.all_committed:
            error = host.error_of(self, outcome)
            if error is not None:
                self._not_committed(error)
                host.not_committed(self, outcome)
                return
            host.has_committed(outcome)
        batch = self._in_flight
        # An illegal event; checked only here, because a look-up would slow down commits.
        if batch is None:
            self._check_commits(CommitEvent.DURABLE)
        assert batch is not None
        counters = host.counters
        counters.commits += 1
        counters.events += len(batch.events)
        lock = host.lock
        lock.acquire()  # as in `finish_unit`
        try:
            self._in_flight, later = None, self._next
            if later is not None:
                self._commit()
        finally:
            lock.release()
        if self.after_commits is not None and self.is_clean:
            self.runner.post(self.after_commits)
        self.durable = batch.number
        if batch.rows is not None:
            host.rows_committed(batch.rows)
        for emission in batch.emissions:
            emission.release()
        if self.stage is _UNREAD and later is None:
            self._read_if_clean()

    def _not_committed(self, error: BaseException) -> None:
        """Fail the answers and emissions of a failed commit, and read the state again."""
        failure = unavailable(error)
        with self.host.lock:
            self._check_commits(CommitEvent.NOT_COMMITTED)
            batch, later = self._in_flight, self._next
            # Set this before the batches are removed: a handler that fails on another thread at
            # this moment reads the state as soon as there are no batches, and clears the error.
            self._broken = failure
            self._enter(ActivationEvent.COMMIT_FAILED)
            self._in_flight = self._next = None
            assert batch is not None
        if self.after_commits is not None and self.is_clean:
            self.runner.post(self.after_commits)
        if batch.rows is not None:  # the rows may be stored, because the outcome may be unknown
            self.host.reminders.scan()
        for failed in (batch, later):
            if failed is not None:
                failed.fail(failure)
        self._restart(failure)

    def _restart(self, error: BaseException) -> None:
        """Read the state again after a failed commit, or end. Handlers that await fail, too."""
        if self.reason is not None or self._broken is not error:
            return  # the activation has ended, or the state was read again already
        if self.running:  # a handler blocks; its later events will not be committed
            self.runner.call_later(_BLOCKED_POLL_SECONDS, self._restart, error)
            return
        task, self.task = self.task, None
        if task is not None:
            task.abandon()
            if isinstance(task.sender, DeferredReply):
                task.sender.fail_at_once(error)
        self._discard_unit(error)
        if self.stage is ActivationStage.PASSIVATING:
            self.kill(ExitReason.NORMAL, f"a commit failed while it was passivated: {error}")
            return
        self.read_state()

    def _discard_unit(self, error: BaseException) -> None:
        """Discard the events of the current unit of work, and fail its emissions."""
        self._events, self._saved, self._rows = [], None, None
        emissions, self._outbox = self._outbox, []
        for emission in emissions:
            emission.fail_at_once(error)

    @property
    def _is_unchanged(self) -> bool:
        """Whether the current unit of work has changed neither events nor rows."""
        return not (self._events or self._saved or self._rows)

    def _read_if_clean(self) -> None:
        """Read the state if no commit is in flight."""
        if self.is_clean:
            self.read_state()

    def failed(self, error: BaseException, sender: Sender | None) -> None:
        """Handle an exception of a handler: discard its unit of work, and read the state.

        If the exception is a refusal and nothing was persisted, the state need not be read.
        """
        if (
            issubclass(type(error), errors.Refusal)
            and self._is_unchanged
            and self.stage is _ACTIVE
        ):
            self._discard_unit(error)
            self.refused(error, sender)
            self.close_unit()
            return
        self._discard_unit(error)
        if self._enter(ActivationEvent.HANDLER_FAILED) is ActivationStage.PASSIVATING:
            super().failed(error, sender)
            return
        if not issubclass(type(error), (SystemExit, errors.Refusal)):
            self.runtime.log_failure(self, f"{class_name(error)}: {error_text(error)}", error)
        if isinstance(sender, DeferredReply) and sender.call is _ACTIVATED:
            # Reading the state would call the failing hook again, for ever.
            self._end_unrecovered(errors.remote_error(error), error_text(error))
            return
        if issubclass(type(error), errors.Refusal):
            self.refused(error, sender)
        elif sender is not None and sender.expects:
            sender.set_exception(errors.remote_error(error))
        if self.stage is ActivationStage.ENDED:
            return
        self.promised = None
        self.actor, self._recovered = None, None
        self.attention = True
        self.close_unit()  # emissions may wait only for the end of this unit
        self._read_if_clean()

    # --- the end ---

    @property
    def is_idle(self) -> bool:
        """Whether nothing keeps this activation: no mail, work, timer or child."""
        return self.stage is _ACTIVE and self.is_quiet and self.is_clean

    def passivate(self) -> None:
        """End after the messages in the mailbox."""
        Cell.post(self, Passivate(), None)

    def _passivate(self) -> None:
        """Run the `passivated` hook, then end."""
        self._enter(ActivationEvent.PASSIVATED)
        actor = self.actor
        if actor is not None and type(actor).passivated is not Entity.passivated:
            self.start_task(self._run_passivated(actor), DeferredReply(self, None), None)
            self._limit_hook("passivated")
        else:
            self.end = (ExitReason.NORMAL, "")

    def _limit_hook(self, name: str) -> None:
        """Cancel a hook that awaits longer than the class's `hook_timeout`."""
        task, seconds = self.task, self.type.cls.hook_timeout
        if task is not None and seconds is not None:  # otherwise the hook has returned
            self.runner.call_later(seconds, _end_hook, weak(self), task, name, seconds)

    def end_hook(self, task: HandlerTask, name: str, seconds: float) -> None:
        """Cancel a hook that takes too long, because messages for the key wait for its end."""
        if self.task is not task or self.reason is not None:
            return
        hook = f"{type(self.actor).__qualname__}.{name}"
        text = f"{hook}() of {self.ref} awaited for {seconds:g} s, its hook_timeout"
        self.runtime.warn_once(("hook", hook), f"{text}; it was cancelled")
        self.runtime.report(SlowHandler(self.ref, hook, seconds))
        if name == "passivated":
            self.kill(ExitReason.NORMAL, text)
            return
        self.task = None
        task.abandon()
        self._discard_unit(EntityUnavailable(text))
        self._end_unrecovered(unavailable(EntityUnavailable(f"{text}{NOT_STORED}")), text)

    async def _run_passivated(self, actor: Any) -> None:
        await actor.passivated()
        self.end = (ExitReason.NORMAL, "")

    def drain(self) -> None:
        """Return the messages of an ended activation to the host."""
        mail = []
        for message, sender in () if self.runtime.is_closed else self.take_mail():
            if type(message) is ReminderTicket:
                message.failed(EntityUnavailable(f"{self.ref} was passivated"))
            elif isinstance(sender, DeferredReply):
                mail.append((message, sender.inner))
        if mail:
            self.host.keep_mail(self, mail)
        super().drain()

    def terminate(self, reason: ExitReason, detail: str) -> None:
        """End this activation. Answers that wait for a commit in progress are still sent."""
        self._enter(ActivationEvent.TERMINATED)
        super().terminate(reason, detail)
        self.drain()
        self.host.activation_ended(self)


class LeasedCell(EntityCell):
    """An activation that runs only while the lease of its node is valid.

    This class is used where no fence would stop a former owner after another node has started
    the same entity: for types without state, and with `takeover="lease"`.
    """

    __slots__ = ()

    def run(self) -> None:
        """Handle messages; without a valid lease, wait until it is valid or the cell ends."""
        if self.end is None and self.reason is None and not self.host.is_leased():
            self.host.park(self)  # `scheduled` stays True, so only `unpark` schedules it again
        else:
            super().run()

    def kill(self, reason: ExitReason = ExitReason.KILLED, detail: str = "") -> None:
        """End before the next message."""
        super().kill(reason, detail)
        self.host.unpark(self)

    def answer_meanwhile(self, envelope: Envelope, sender: Sender) -> bool:
        """Answer an ask by a read-only handler while another handler awaits, if possible."""
        if self.host.is_leased():
            return super().answer_meanwhile(envelope, sender)
        self.host.refuse_unleased(sender)
        return True


def _end_hook(cell: "weak[EntityCell]", task: HandlerTask, name: str, seconds: float) -> None:
    """Cancel a hook of an activation that still exists."""
    live_cell = cell()
    if live_cell is not None:
        live_cell.end_hook(task, name, seconds)


@dataclass(frozen=True, slots=True)
class _Begin:
    """A message of an activation to itself: a page of the state was read."""


_BEGIN: Final = _Begin()


def _unread(cell: EntityCell, error: BaseException) -> str:
    """Return the error text of user code that failed during recovery."""
    return f"{cell.ref} cannot be recovered: {class_name(error)}: {error_text(error)}"
