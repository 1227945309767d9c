"""One activation of an entity: stretches of its handlers, and what they emit.

A **stretch** is what a handler does between awaits. The events that it persisted are one batch;
a batch is handed to the host when nothing of this entity is being committed, and holds all that
was persisted meanwhile. So the database never has an event without those before it.

What a handler **emits** (its answer, messages to others) was true when it said so, and leaves
when the events that were persisted then are durable: it waits in `_Batch.emissions`. An answer
that nothing was persisted for still shows the state, so it waits for proof that this node has
the slot: the next commit of this entity, or else a look at the fence that began later.

If a commit fails, whatever waits for it fails with the reason, and the entity is read again. If
a handler raises, its stretch is forgotten and the entity is read again behind the commits under
way. Messages wait in the mailbox meanwhile.

Every sender is wrapped in a `DeferredReply`: to the cell it is an asker, so each handler ends
with an answer to it, and there the stretch ends.
"""

import math
from collections.abc import Callable, Coroutine, Generator, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal
from weakref import ref as weak

from callboard.entity.entity import Entity
from callboard.entity.errors import EntityUnavailable, NotPersistable
from callboard.entity.event_json import IMMUTABLE, OTHER_RELEASE
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
from callboard.kernel import errors
from callboard.kernel.activation import (
    Cell,
    Envelope,
    HandlerTask,
    Home,
    Resume,
    Stop,
)
from callboard.kernel.actors import ActorRef, ExitReason
from callboard.kernel.context import current_cell
from callboard.kernel.errors import MessageTooLarge
from callboard.kernel.events import SlowHandler
from callboard.kernel.reply import Future, Reply, Sender
from callboard.lease.errors import OutcomeUnknown, StateCorrupt, StateVersion
from callboard.support.dataclass import dataclass
from callboard.support.text import class_name, error_text

#: As `NewEvent`, in half of the time: each event is made so.
_new_event: Final[Callable[[tuple[str, int, str, int, str]], NewEvent]] = partial(
    tuple.__new__, NewEvent
)

#: Seconds until it is looked again whether a handler that blocks has returned.
_LOOK: Final = 0.005


@dataclass(frozen=True, slots=True)
class Passivate:
    """To an activation itself: end, behind what is in the mailbox."""


#: How something that was emitted goes on its way, and what becomes of it if that may not be.
Emission = tuple[Callable[[], object], Callable[[BaseException], object]]


class EntityBatch:
    """What is committed together of one entity, and what waits for that."""

    __slots__ = ("answer", "emissions", "events", "number", "rows", "snapshot")

    def __init__(
        self,
        number: int,
        events: list[NewEvent],
        emissions: "list[Emission]",
        answer: "DeferredReply | None" = None,
    ) -> None:
        #: Of the batches of one activation: 1, 2, 3 …
        self.number = number
        self.events = events
        self.snapshot: EntitySnapshot | None = None
        #: Reminders and jobs; None while there are none.
        self.rows: RowChanges | None = None
        #: The answer of the handler that persisted this, which leaves before the emissions.
        self.answer = answer
        self.emissions = emissions

    def fail(self, error: BaseException) -> None:
        """Fail what waited."""
        if self.answer is not None:
            self.answer.fail_at_once(error)
        for _, fail in self.emissions:
            fail(error)


#: Stands where no answer was given yet.
_NONE: Final = object()


def _nothing(_: BaseException) -> None:
    """A message that is not sent: nobody was told of it."""


class DeferredReply(Reply):
    """The sender of a message to an entity: what answers it waits for the state."""

    __slots__ = ("_answer", "cell", "_sends", "batch", "inner")

    expects: Literal[True] = True
    #: The first answer as it was given, and what sends it if it was encoded then.
    _answer: Any
    _sends: Callable[[], object] | None

    def __init__(self, cell: "EntityCell", inner: Sender | None) -> None:
        self.cell = cell
        self.inner = inner
        self._answer = _NONE
        #: The first batch with something that the handler persisted; 0: there is none.
        self.batch = 0

    @property
    def wants_reply(self) -> bool:
        """Whether a caller waits for the outcome."""
        inner = self.inner
        return inner is not None and inner.expects and inner.wants_reply

    @property
    def is_done(self) -> bool:
        """Whether the ask is over."""
        inner = self.inner
        return inner is None or not inner.expects or inner.is_done

    @property
    def deadline(self) -> float | None:
        """When its time is over."""
        return None if self.inner is None else self.inner.deadline

    @deadline.setter
    def deadline(self, value: float | None) -> None:
        if self.inner is not None:
            self.inner.deadline = value  # type: ignore[misc]

    @property
    def origin(self) -> object:
        """What names the ask to those that give it up."""
        return None if self.inner is None else self.inner.origin

    @property
    def node(self) -> bytes:
        """The node that asks; empty for this one."""
        return b"" if self.inner is None else self.inner.node

    def set_result(self, value: Any) -> bool:
        """End the stretch; the answer leaves when it may."""
        inner, cell = self.inner, self.cell
        if inner is None or not inner.expects:
            cell.close_stretch()
            return True
        if cell.type_is_kept and not inner.is_done:
            if self._answer is not _NONE:  # the first one counts
                cell.close_stretch()
                return True
            self._answer, self._sends = value, None
            if value.__class__ not in IMMUTABLE:
                try:
                    self._keep(inner, value)
                except BaseException as error:  # noqa: BLE001 - as if the handler had raised it
                    cell.failed(error, self)
                    return True
            cell.end_stretch(self)
            return True
        cell.close_stretch()
        return inner.set_result(value)

    def _keep(self, inner: Any, value: Any) -> None:
        """Keep an answer as it is now, whatever changes it later.

        Raises:
            NotSerializable: it holds something that cannot travel.
        """
        if not isinstance(value, ActorRef):
            try:
                self._sends = inner.encoded(value)
            except MessageTooLarge:
                pass  # which the asker is told once the state may be shown
            else:
                if self._sends is not None:
                    return
        self._answer = self.cell.host.form.copy(value)

    def leave(self) -> None:
        """Let the answer go."""
        inner: Any = self.inner
        if self._sends is not None:
            self._sends()
        elif inner is not None:
            inner.set_result(self._answer)

    def set_exception(self, error: BaseException) -> bool:
        """Let an error leave as an answer does."""
        inner, cell = self.inner, self.cell
        if inner is None or not inner.expects:
            return True
        if cell.type_is_kept and cell.reason is None:
            cell.emit_answer(lambda: inner.set_exception(error), self._refuse)
            return True
        if cell.reason is not None and isinstance(error, errors.ActorDown):
            error = self._stopped()
        return inner.set_exception(error)

    def _stopped(self) -> BaseException:
        """Return what is told of a handler whose activation ended while it awaited."""
        cell = self.cell
        text = f"{cell.ref} was stopped while it handled this ({cell.detail or cell.reason})"
        if cell.type_is_kept and not self.batch:
            return EntityUnavailable(f"{text}{_REPEAT}")
        return OutcomeUnknown(f"{text}: perhaps a part of it took place")

    def _refuse(self, error: BaseException) -> None:
        """Fail the ask: what waited for the state may not leave."""
        if 0 < self.batch <= self.cell.durable and isinstance(error, EntityUnavailable):
            why = error_text(error).removesuffix(_REPEAT)
            error = OutcomeUnknown(f"{why}; a part of what its handler persisted is stored")
        if self.inner is not None and self.inner.expects:
            self.inner.set_exception(error)

    def fail_at_once(self, error: BaseException) -> None:
        """Let an error leave that shows nothing of the state."""
        self._refuse(error)

    def mark_handled(self) -> None:
        """Take note that the message was handled."""
        if self.inner is not None and self.inner.expects:
            self.inner.mark_handled()

    def reference(self, runtime: Home) -> ActorRef[Any] | None:
        """Return what `self.sender` is."""
        inner = self.inner
        if inner is not None and inner.expects and self.wants_reply:
            return runtime.reply_ref(self)
        return None if inner is None else inner.reference(runtime)


class HeldCarried(DeferredReply):
    """The sender of a message that came with others.

    It answers without the asker that a message alone has: that is made if it is needed.
    """

    __slots__ = ("_asker", "_carrier", "_has_left", "_message_id", "deadline", "expects")

    #: The asker that a message alone has, once it was made.
    _asker: Any

    wants_reply: Final = True

    deadline: float | None
    expects: Literal[True]

    def __init__(self, carrier: Any, message_id: int, deadline: float | None) -> None:
        """Make one that no cell has yet; `carrier` makes askers, and sends answers."""
        self._carrier, self._message_id, self.deadline = carrier, message_id, deadline
        self._answer, self._asker = _NONE, None
        self.expects, self.batch, self._has_left = True, 0, False

    @property
    def inner(self) -> Any:  # type: ignore[override]
        """The asker that a message alone has."""
        asker = self._asker
        if asker is None:
            asker = self._asker = self._carrier.carried(self._message_id)
            asker.is_done = self._has_left
        asker.deadline = self.deadline
        return asker

    @property
    def is_done(self) -> bool:
        """Whether the ask is over."""
        return self._has_left or (self._asker is not None and self._asker.is_done)

    @property
    def node(self) -> bytes:
        """The node that asks."""
        node: bytes = self._carrier.node
        return node

    def set_result(self, value: Any) -> bool:
        """End the stretch; the answer leaves when it may."""
        cell = self.cell
        if (
            self._asker is not None
            or self._answer is not _NONE
            or not cell.type_is_kept
            or value.__class__ not in IMMUTABLE
        ):
            return super().set_result(value)
        self._answer, self._sends = value, None
        cell.end_stretch(self)
        return True

    def leave(self) -> None:
        """Let the answer go."""
        if self._asker is not None or self._has_left:
            super().leave()
        else:
            self._has_left = True
            self._carrier.answer(self._message_id, self._answer)


def emission_of(what: "Emission | DeferredReply") -> Emission:
    """Return how an answer goes, and how it fails."""
    return (what.leave, what.fail_at_once) if isinstance(what, DeferredReply) else what


class _HeldReminder(DeferredReply):
    """The sender of a reminder: its row goes with the stretch that ends its handler."""

    __slots__ = ()

    def set_result(self, value: Any) -> bool:
        """End the stretch, and with it the reminder."""
        cell, ticket = self.cell, self.inner
        assert type(ticket) is ReminderTicket, "that is what it was made with"
        cell.end_reminder(ticket)
        cell.emit_answer(lambda: ticket.set_result(None), ticket.set_exception)
        cell.close_stretch()
        return True


class _HeldStart(DeferredReply):
    """Stands where the sender of `activated` would: if that fails, nothing begins."""

    __slots__ = ()

    def set_result(self, value: Any) -> bool:
        """Take note that all went well."""
        self.cell.host.singletons.has_begun(self.cell.key)
        return super().set_result(value)


class _Steps(Coroutine[Any, Any, Any]):
    """A coroutine handler: each of its steps is a stretch."""

    __slots__ = ("_entity", "_coroutine", "_is_reading")

    def __init__(
        self, cell: "EntityCell", coroutine: Coroutine[Any, Any, Any], *, is_reading: bool
    ) -> None:
        self._entity = cell
        self._coroutine = coroutine
        self._is_reading = is_reading

    def send(self, value: Any) -> Any:
        """Run to the next await, where a stretch ends."""
        return self._step(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        """Run to the next await from an exception."""
        return self._step(self._coroutine.throw, *error)

    def close(self) -> None:
        """End the coroutine."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()

    def _step(self, go_on: Callable[..., Any], *args: Any) -> Any:
        cell = self._entity
        cell.is_reading = self._is_reading
        try:
            awaited = go_on(*args)
        finally:
            cell.is_reading = False
        cell.close_stretch()
        if type(awaited) is Future and awaited.asked == cell.known_ref:
            awaited.asked = cell.known_ref  # refs of a key are equal: it would await itself
        return awaited


def read_only(function: Callable[[Any, Any], Any], *, awaits: bool) -> Callable[..., Any]:
    """Return a handler that may persist nothing."""
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
    """The runtime's side of one activation."""

    __slots__ = (
        "_broken", "_events", "_has_begun", "_in_flight", "_is_leaving", "_next", "_outbox",
        "_recovered", "_saved", "_since", "after_commits", "host", "is_put_away", "is_reading",
        "_batches", "_half_made", "_reads", "_rows", "_writing", "durable", "home", "key",
        "last_used", "slot", "type", "type_is_kept", "written",
    )  # fmt: skip

    def __init__(self, host: Any, number: int, key: str, slot: int) -> None:
        runtime = host.runtime
        now = runtime.now()
        super().__init__(runtime, host.runner, number, host.table, None, now)
        self.host = host
        self.type = host.type
        #: Whether events are stored.
        self.type_is_kept = host.state is not None
        self.key, self.slot = key, slot
        #: The slot with the name of its type.
        self.home: Slot = host.type.name, slot
        self.known_ref = host.ref(key)
        #: The number of the last event that was persisted.
        self.written = 0
        #: Whether the handler that runs may persist nothing.
        self.is_reading = False
        #: Batches that were made, and the number of the last one that was committed.
        self._batches = self.durable = 0
        #: Whose handler has persisted something in the stretch that runs.
        self._writing: Sender | None = None
        #: When it was last sent something.
        self.last_used = now
        #: Events of the stretch that runs; what waits to be committed; what is being committed.
        self._events: list[NewEvent] = []
        self._saved: EntitySnapshot | None = None
        self._rows: RowChanges | None = None
        #: What the stretch that runs has emitted since it persisted something.
        self._outbox: list[Emission] = []
        #: Why nothing of the activation may be written or shown any more.
        self._broken: BaseException | None = None
        self._next: EntityBatch | None = None
        self._in_flight: EntityBatch | None = None
        #: The page of what it is made of that is applied next; None while that is read.
        self._recovered: Recovered | None = None
        #: What the pages before have made.
        self._half_made: Entity | None = None
        #: How often its state was read: a page of an earlier time is left out.
        self._reads = 0
        self._has_begun = self._is_leaving = False
        #: Called when an activation that has ended has committed all.
        self.after_commits: Callable[[], object] | None = None
        #: Whether what comes goes to the next activation.
        self.is_put_away = False
        #: Events since the last snapshot.
        self._since = 0

    # --- mail ---

    def post(self, message: Any, sender: Sender | None = None) -> None:
        """Append a message to the mailbox; from any thread, never blocks."""
        self.post_held(message, DeferredReply(self, sender))

    def post_held(self, message: Any, held: DeferredReply) -> None:
        """Append a message that has the sender which this cell's messages have."""
        self.last_used = self.runner.now()
        Cell.post(self, message, held)

    def post_urgent(self, message: Any, sender: Sender | None = None) -> None:
        """Take a message that goes before all normal ones, behind earlier urgent ones."""
        if not self._has_begun:
            self.post(message, sender)
            return
        self.last_used = self.runner.now()
        Cell.post_urgent(self, message, DeferredReply(self, sender))

    def post_reminder(self, ticket: ReminderTicket) -> None:
        """Append a reminder that is due to the mailbox."""
        self.last_used = self.runner.now()
        Cell.post(self, ticket, _HeldReminder(self, ticket))

    def offer(self, message: Any) -> Future[None] | None:
        """Take a message without a sender."""
        self.post(message)
        return None

    def post_run(self, messages: Iterable[Any]) -> None:
        """Append messages without a sender."""
        for message in messages:
            self.post(message)

    @property
    def chain_name(self) -> str:  # type: ignore[override]  # each has its own
        """What names it in the chain of an ask."""
        return f"{self.type.name}/{self.key}"

    @property
    def is_paused(self) -> bool:
        """Whether no message may be handled: the state is being read."""
        if self.actor is None and self._recovered is None:
            return True
        return super().is_paused

    def handle_other(self, message: Any, sender: Sender | None) -> None:
        """Handle what no `@handler` takes; each such message is a stretch too."""
        if type(message) is Passivate:
            self._leave()
        elif isinstance(message, Stop):
            self.host.put_away(self)
        elif type(message) is _Begin:
            self._begin()
        elif type(message) is ReminderTicket:
            self._take_reminder(message, sender)
        elif type(message) is Envelope and message.key is not None:
            self._admit(message, message.key, sender)
        else:
            super().handle_other(message, sender)
        if self.task is None:
            self.close_stretch()

    def _admit(self, envelope: Envelope, key: bytes, sender: Any) -> None:
        """Handle an ask that may come again; its answer is kept once it has left."""
        inner = sender.inner
        if inner is not None and inner.expects:
            inner = self.runtime.kept.admit(self.number, key, inner, envelope.deadline)
            if inner is None:
                return
        plain = Envelope(
            envelope.message, envelope.trace, envelope.deadline, chain=envelope.chain
        )
        super().handle_other(plain, DeferredReply(self, inner))

    def _take_reminder(self, ticket: ReminderTicket, sender: Any) -> None:
        """Handle a reminder, unless it was forgotten or set anew while it waited."""
        row = ticket.row
        if not ticket.is_current or self._changes_reminder(row.name):
            ticket.set_exception(EntityUnavailable("it was forgotten, or set anew"))
            return
        try:
            message = self.host.form.read(row.body)
        except (StateCorrupt, StateVersion) as error:  # it waits for a program that reads it
            ticket.set_exception(error)
            return
        self.dispatch(message, sender)

    def start_task(
        self, coroutine: Coroutine[Any, Any, Any], sender: Sender | None, message: Any = None
    ) -> None:
        """Run a coroutine handler to its first await."""
        if not isinstance(coroutine, _Steps):
            coroutine = _Steps(self, coroutine, is_reading=False)
        super().start_task(coroutine, sender, message)

    def promise(self) -> Any:
        """Keep the current message unanswered; the stretch still ends with the handler."""
        self.put_first(Resume())
        return super().promise()

    def answer_meanwhile(self, envelope: Envelope, sender: Sender) -> bool:
        """Answer an ask while a handler awaits, if that only reads; False if it does not."""
        return self.answer_by_reading(envelope, DeferredReply(self, sender))

    # --- the state ---

    def read_state(self) -> None:
        """Forget the activation, and read what was stored; messages wait."""
        self.actor, self._recovered, self._broken = None, None, None
        self._half_made, self._has_begun = None, False
        self.attention = True
        self._reads += 1
        self.host.recover(self, partial(self._take_state, self._reads))

    def _take_state(self, read: int, recovered: Recovered | BaseException) -> None:
        """Take a page of what was read; on the node's thread."""
        if self.reason is not None or read != self._reads:
            return
        if isinstance(recovered, BaseException):
            self._cannot_read(recovered)
            return
        self._recovered = recovered
        self.put_first(_BEGIN)
        self.attention = True
        self.schedule()

    def _cannot_read(self, error: BaseException) -> None:
        """Fail all that waits: the state cannot be read. The next message tries again."""
        self.runtime.warn_once(("entity", self.type.name, type(error)), f"{self.ref}: {error}")
        self._leave_unbegun(unavailable(error), error_text(error))

    def _leave_unbegun(self, told: BaseException, why: str) -> None:
        """Fail all that waits, and end."""
        self.is_put_away = True
        self.host.left(self)
        self.host.singletons.could_not_begin(self.key)
        for _, sender in self.take_mail():
            if isinstance(sender, DeferredReply):
                sender.fail_at_once(told)
        self.attention = True
        self.terminate(ExitReason.ERROR, why)

    def _begin(self) -> None:
        """Apply the page that was read, and begin behind the last one.

        Others have their turns between two pages, and none is kept: however many events there
        are, they take the memory of a page.
        """
        recovered, self._recovered = self._recovered, None
        if recovered is None:
            return
        try:
            actor = self._half_made or self._made_of(recovered.snapshot)
            self.host.apply(self, actor, recovered.events)
        except BaseException as error:  # noqa: BLE001 - what was stored cannot be read by the class
            if isinstance(error, OTHER_RELEASE):
                error = StateVersion(_unread(self, error))
            elif not isinstance(error, StateCorrupt | StateVersion):
                error = StateCorrupt(_unread(self, error))
            self._cannot_read(error)
            return
        self._since += len(recovered.events)
        if recovered.has_more:
            self._half_made, self.attention = actor, True
            self.host.recover_more(self, self.written, partial(self._take_state, self._reads))
            return
        self._half_made = None
        self.actor = actor
        self._has_begun = self.attention = True  # the turn goes on with the actor
        self.host.begun(self)
        if type(actor).activated is not Entity.activated:
            self.sender = _HeldStart(self, None)  # if it raises at once
            self.start_task(actor.activated(), self.sender, None)
            self._limit_hook("activated")

    def _made_of(self, snapshot: EntitySnapshot | None) -> Entity:
        """Return the entity of a snapshot, before the events behind it."""
        actor: Entity = self.type.cls.attach(self, *self.host.arguments)
        self.written = 0 if snapshot is None else snapshot.number
        self._since = 0
        if snapshot is not None:
            self.host.restore(actor, snapshot)
        return actor

    def persist(self, event: object) -> None:
        """Apply an event, and store it when the stretch ends."""
        if (
            self.is_reading
            or self._is_leaving
            or not (self.running and self._has_begun)
            or current_cell.get() is not self
        ):
            self._check_writing("persist")  # which says why not
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
        """Store `state` when the stretch ends."""
        self._check_writing("save")
        where, state = self.type.cls.__qualname__, getattr(self.actor, "state", None)
        if self.type.appliers:
            msg = f"{where} has @event methods: persist events instead of save()"
            raise NotPersistable(msg)
        if state is None:
            msg = f"{where} saves self.state, and has none; make it in __init__"
            raise NotPersistable(msg)
        kind = self.host.form.kind_of(state)
        body = self.host.form.write(state)
        self.written += 1
        if self.type_is_kept:
            version = self.type.saved_version(kind.names)
            self._saved = EntitySnapshot(self.key, self.written, version, body)

    def remind(self, name: str, message: object, after: float, every: float) -> None:
        """Store a reminder when the stretch ends."""
        self._check_reminding("remind")
        body = self.host.form.write(message)
        due_ms = self.host.reminders.due_ms(after)
        row = StoredReminder(self.key, name, due_ms, math.ceil(every * 1000), body)
        self.open_rows().reminders[self.key, name] = row

    def forget(self, name: str) -> None:
        """Delete a reminder when the stretch ends."""
        self._check_reminding("forget")
        self.open_rows().reminders[self.key, name] = None

    def end_reminder(self, ticket: ReminderTicket) -> None:
        """Let a reminder that was handled go with the stretch."""
        row = ticket.row
        if ticket.is_current and not self._changes_reminder(row.name):
            self.open_rows().reminders[self.key, row.name] = ticket.following()

    def _changes_reminder(self, name: str) -> bool:
        """Return whether a handler set or forgot a reminder, and that is not yet durable."""
        place = self.key, name
        found = [self._rows]
        found += [each.rows for each in (self._next, self._in_flight) if each is not None]
        return any(rows is not None and place in rows.reminders for rows in found)

    def open_rows(self) -> RowChanges:
        """Return the rows that the stretch changes, made on first use."""
        if self._rows is None:
            self._rows = RowChanges()
        return self._rows

    def add_rows(self, changes: RowChanges) -> None:
        """Let rows be written when the stretch ends."""
        if self._rows is None:
            self._rows = changes
        else:
            self._rows.include(changes)

    def _check_reminding(self, what: str) -> None:
        """Refuse reminders where they could not be written.

        Raises:
            NotPersistable: they could not.
        """
        self._check_writing(what)
        if not self.type_is_kept:
            name = self.type.cls.__qualname__
            msg = (
                f"reminders are stored, and {name} is hosted without state: give "
                f"node.host({name}, state=…) one, or use self.after(seconds, message)"
            )
            raise NotPersistable(msg)

    def _check_writing(self, what: str) -> None:
        """Refuse to write outside of a handler that may.

        Raises:
            NotPersistable: it does.
        """
        if self.is_reading:
            msg = f"a read-only handler of {self.ref} called {what}(); take read_only=True away"
            raise NotPersistable(msg)
        if current_cell.get() is not self or not self.running or not self._has_begun:
            msg = f"{what}() of {self.ref} is for its handlers: only while one of them runs"
            raise NotPersistable(msg)
        if self._is_leaving:
            msg = f"{self.ref} is being put away; {what}() in a handler instead"
            raise NotPersistable(msg)
        self._writing = self.sender

    # --- stretches ---

    @property
    def is_clean(self) -> bool:
        """Whether everything that was persisted is durable."""
        return self._next is None and self._in_flight is None and not self._has_written

    @property
    def _has_written(self) -> bool:
        """Whether the stretch that runs has persisted anything."""
        return bool(self._events) or self._saved is not None or self._rows is not None

    def _open_batch(self) -> EntityBatch:
        """Return what is committed next."""
        if self._next is None:
            self._batches += 1
            self._next = EntityBatch(self._batches, [], [])
        return self._next

    def emit_answer(
        self, go: Callable[[], object], fail: Callable[[BaseException], object]
    ) -> None:
        """Let an answer go when it may."""
        with self.host.lock:
            if self._broken is not None:
                self.runner.post(fail, self._broken)
            elif self._has_written:
                self._outbox.append((go, fail))
            elif not self.is_clean:
                # The commit that takes it along begins later, and so proves what it shows.
                self._open_batch().emissions.append((go, fail))
            else:
                self.host.prove(self.slot, (go, fail))

    def outbox(self, post: Callable[..., Any], message: Any, sender: Any) -> bool:
        """Let a message go when it may; returns False if that is now."""
        if not self.type_is_kept:
            return False
        host = self.host
        if host.handed or host.is_inside():  # between what is withheld and what is not
            self._emit_later(post, message, sender)
            return True
        return self._emit(post, message, sender)

    def _emit_later(self, post: Callable[..., Any], message: Any, sender: Any) -> None:
        """Hand a message over that is sent inside a call of the host, or behind such ones."""
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
        """Return a copy of a message, which its sender may change before it goes."""
        copy = self.host.form.copy
        if type(message) is Envelope:
            return replace(message, message=copy(message.message))
        return copy(message)

    def _emit(self, post: Callable[..., Any], message: Any, sender: Any) -> bool:
        """Let a message go when it may; returns False if that is now."""
        if self.is_clean and self._broken is None:
            return False
        copied = self._copied(message)
        fail = sender.set_exception if sender is not None and sender.expects else _nothing
        with self.host.lock:
            if self._broken is not None:
                self.runner.post(fail, self._broken)
                return True
            emissions = self._outbox
            if not self._has_written:
                batch = self._in_flight if self._next is None else self._next
                if batch is not None:
                    emissions = batch.emissions
            emissions.append((lambda: post(copied, sender), fail))
        return True

    def end_stretch(self, answer: DeferredReply) -> None:
        """Let an answer go when it may, and end the stretch behind it."""
        host, every = self.host, self.type.snapshot_every
        lock = host.lock
        lock.acquire()  # in half of the time that `with` takes: each answer comes here
        try:
            if (
                self._in_flight is None
                and self._next is None
                and self._saved is None
                and self._rows is None
                and self._broken is None
            ):
                events = self._events
                if not events:  # as nearly always where a handler only reads
                    host.prove(self.slot, answer)
                    return
                if not self._outbox and (self._since < every or not every):
                    # As nearly always where a handler has persisted something.
                    self._events = []
                    self._batches = number = self._batches + 1
                    self._in_flight = EntityBatch(number, events, [], answer)
                    writing = self._writing
                    if isinstance(writing, DeferredReply) and not writing.batch:
                        writing.batch = number
                    host.commit_events(self, events)
                    return
        finally:
            lock.release()
        self.emit_answer(*emission_of(answer))
        self.close_stretch()

    def close_stretch(self) -> None:
        """End a stretch: what it persisted is committed as soon as that can be."""
        if not self._has_written and self._next is None:
            return
        every = self.type.snapshot_every
        is_due = bool(self._events and every and self._since >= every)
        # Without the lock: it runs code of users, and only this thread changes the state.
        snapshot = self.host.snapshot(self) if is_due and self._broken is None else None
        with self.host.lock:
            events, saved, rows = self._events, self._saved, self._rows
            self._events, self._saved, self._rows = [], None, None
            emitted, self._outbox = self._outbox, []
            if self._broken is not None:
                for _, fail in emitted:
                    self.runner.post(fail, self._broken)
                return
            if events or saved is not None or rows is not None:
                batch = self._open_batch()
                if isinstance(self._writing, DeferredReply) and not self._writing.batch:
                    self._writing.batch = batch.number
                batch.events += events
                if rows is not None and batch.rows is not None:
                    batch.rows.include(rows)
                elif rows is not None:
                    batch.rows = rows
                batch.emissions += emitted
                batch.snapshot = saved or batch.snapshot
                if is_due:
                    self._since = 0
                    batch.snapshot = snapshot
            if self._next is not None and self._in_flight is None:
                self._commit()

    def write_snapshot(self, events: int) -> None:
        """Write a snapshot if there were so many events since the last one; on the runner.

        Not while a handler runs, or waits: the state may be half of what it will be. And not
        before a tenth of the events are there that the class has between snapshots.
        """
        every = self.type.snapshot_every
        has_many = self.type_is_kept and every and self._since >= max(events, every // 10)
        is_between = not (self.running or self.task or self._has_written) and self._has_begun
        if not (is_between and has_many) or self._broken is not None:
            return
        self._since = 0
        snapshot = self.host.snapshot(self)  # without the lock: it runs code of users
        if snapshot is not None:
            with self.host.lock:
                self._open_batch().snapshot = snapshot
                if self._in_flight is None:
                    self._commit()

    def _commit(self) -> None:
        """Hand over what waits; needs the lock."""
        batch, self._next = self._next, None
        assert batch is not None
        self._in_flight = batch
        self.host.commit(self, batch)

    def take_outcome(self, outcome: Committed | BaseException) -> None:
        """Take the outcome of a transaction that held a batch of this; on the node's thread."""
        host = self.host
        if outcome is not host.all_committed:  # which one look tells for a whole transaction
            error = host.error_of(self, outcome)
            if error is not None:
                self._not_committed(error)
                host.not_committed(self, outcome)
                return
            host.has_committed(outcome)
        batch = self._in_flight
        assert batch is not None
        counters = host.counters
        counters.commits += 1
        counters.events += len(batch.events)
        lock = host.lock
        lock.acquire()  # as in `end_stretch`
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
        if batch.answer is not None:
            batch.answer.leave()
        for go, _ in batch.emissions:
            go()
        if not self._has_begun and later is None and self.reason is None:
            self._read_if_clean()

    def _not_committed(self, error: BaseException) -> None:
        """Fail what waits for a commit that failed, and read the state again."""
        told = unavailable(error)
        with self.host.lock:
            batch, later = self._in_flight, self._next
            self._in_flight = self._next = None
            self._broken = told
            assert batch is not None
        if self.after_commits is not None and self.is_clean:
            self.runner.post(self.after_commits)
        if batch.rows is not None:  # they may be there all the same
            self.host.reminders.scan()
        for failed in (batch, later):
            if failed is not None:
                failed.fail(told)
        self._restart(told)

    def _restart(self, error: BaseException) -> None:
        """Read the state again behind a commit that failed; handlers under way fail too."""
        if self.reason is not None:
            return
        if self.running:  # a handler that blocks: what it still does is not written
            self.runner.call_later(_LOOK, self._restart, error)
            return
        task, self.task = self.task, None
        if task is not None:
            task.abandon()
            if isinstance(task.sender, DeferredReply):
                task.sender.fail_at_once(error)
        self._forget_stretch(error)
        self.read_state()

    def _forget_stretch(self, error: BaseException) -> None:
        """Forget what the stretch that runs has persisted and emitted."""
        self._events, self._saved, self._rows = [], None, None
        emitted, self._outbox = self._outbox, []
        for _, fail in emitted:
            fail(error)

    def _read_if_clean(self) -> None:
        """Read the state once nothing is being committed."""
        if self._recovered is None and self.is_clean:
            self.read_state()

    def failed(self, error: BaseException, sender: Sender | None) -> None:
        """A handler raised: forget its stretch and read the state again."""
        self._forget_stretch(error)
        if self._is_leaving:
            super().failed(error, sender)
            return
        if not isinstance(error, SystemExit):
            self.runtime.note_failure(self, f"{class_name(error)}: {error_text(error)}", error)
        if type(sender) is _HeldStart:  # to read it again at once would go on for ever
            self._leave_unbegun(errors.remote_error(error), error_text(error))
            return
        if sender is not None and sender.expects:
            sender.set_exception(errors.remote_error(error))
        self.promised = None
        self.actor, self._recovered, self._has_begun = None, None, False
        self.attention = True
        self.close_stretch()  # what waits may wait for nothing but this
        self._read_if_clean()

    # --- the end ---

    @property
    def is_idle(self) -> bool:
        """Whether nothing keeps this activation: no mail, no work, no timer, no child."""
        return self.is_quiet and self.is_clean and self._has_begun

    def leave(self) -> None:
        """Be put away, behind what is in the mailbox."""
        Cell.post(self, Passivate(), None)

    def _leave(self) -> None:
        """Let the entity say its last word, then end."""
        self._is_leaving = True
        actor = self.actor
        if actor is not None and type(actor).passivated is not Entity.passivated:
            self.start_task(self._say_goodbye(actor), DeferredReply(self, None), None)
            self._limit_hook("passivated")
        else:
            self.end = (ExitReason.NORMAL, "")

    def _limit_hook(self, name: str) -> None:
        """End a hook that awaits for longer than the class lets it."""
        task, seconds = self.task, self.type.cls.hook_timeout
        if task is not None and seconds is not None:  # else it is over
            self.runner.call_later(seconds, _end_hook, weak(self), task, name, seconds)

    def end_hook(self, task: HandlerTask, name: str, seconds: float) -> None:
        """End a hook whose time is over: it would block its key for as long as it awaits."""
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
        self._forget_stretch(EntityUnavailable(text))
        self._leave_unbegun(unavailable(EntityUnavailable(f"{text}{_REPEAT}")), text)

    async def _say_goodbye(self, actor: Any) -> None:
        await actor.passivated()
        self.end = (ExitReason.NORMAL, "")

    def drain(self) -> None:
        """Give back what waits in the mailbox of an activation that has ended."""
        mail = []
        for message, sender in () if self.runtime.is_closed else self.take_mail():
            if type(message) is ReminderTicket:
                message.set_exception(EntityUnavailable(f"{self.ref} was put away"))
            elif isinstance(sender, DeferredReply):
                mail.append((message, sender.inner))
        if mail:
            self.host.take_back(self, mail)
        super().drain()

    def terminate(self, reason: ExitReason, detail: str) -> None:
        """End this activation; what is being committed answers all the same."""
        super().terminate(reason, detail)
        self.drain()
        self.host.left(self)


class LeasedCell(EntityCell):
    """An activation that runs only while the lease of its node is valid.

    It is one that another node may not doubt: without state no fence keeps a second one silent.
    """

    __slots__ = ()

    def run(self) -> None:
        """Handle what waits; without the lease, wait until it is valid, or for the end."""
        if self.end is None and self.reason is None and not self.host.is_leased():
            self.host.park(self)  # `scheduled` stays: nothing else puts it into the run queue
        else:
            super().run()

    def kill(self, reason: ExitReason = ExitReason.KILLED, detail: str = "") -> None:
        """End before the next message."""
        super().kill(reason, detail)
        self.host.unpark(self)

    def answer_meanwhile(self, envelope: Envelope, sender: Sender) -> bool:
        """Answer an ask while a handler awaits, if that only reads; False if it does not."""
        if self.host.is_leased():
            return super().answer_meanwhile(envelope, sender)
        self.host.refuse_unleased(sender)
        return True


def _end_hook(cell: "weak[EntityCell]", task: HandlerTask, name: str, seconds: float) -> None:
    """End a hook of an activation that is still there."""
    found = cell()
    if found is not None:
        found.end_hook(task, name, seconds)


@dataclass(frozen=True, slots=True)
class _Begin:
    """To an activation itself: the state is there."""


_BEGIN: Final = _Begin()


def unavailable(error: BaseException) -> BaseException:
    """Return what an asker gets when the state could not be read or written."""
    if type(error).__name__ in _TOLD:
        return error
    return EntityUnavailable(f"{error_text(error)}{_REPEAT}")


#: How the text of an error ends behind which nothing has happened.
_REPEAT: Final = "; nothing was stored: repeat it"

#: Errors that say more than that nothing happened.
_TOLD: Final = frozenset(
    (
        "OutcomeUnknown",
        "StateCorrupt",
        "StateVersion",
        "ValueRefused",
        "WrongState",
        "StateReplaced",
        "EntityUnavailable",
    )
)


def _unread(cell: EntityCell, error: BaseException) -> str:
    """Return the text of an error in user code while an entity was recovered."""
    return f"{cell.ref} cannot be recovered: {class_name(error)}: {error_text(error)}"
