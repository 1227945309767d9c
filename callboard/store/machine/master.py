"""The master of a store: the one copy that counts, as a machine without sockets or a clock.

As the developer guide draws it (section 7.5), a master has a producer, `output`, whose
consumers are its clones, and a consumer for each clone that writes, in `inputs`.

- A clone asks to be let in with a nack of event 0 under a fresh name. It is added to `output`,
  and the handshake brings it the state in chunks, see `snapshot`.
- A writer announces itself with a handshake; its commands are consumed in its order, each
  once: the master remembers how far each writer is, in the backend too, so that a master which
  comes back from its backend carries out nothing twice.
- Effects come in this order: persist, then acknowledgements, commands for clones and answers.
  The driver waits at `Persist` until it is durable. That is all of "acknowledged means
  durable".

- All changes, also those that add to a value, go out as `put`, `erase`, `expire` or `clear`,
  so that clones compute nothing.

An unknown writer is told so with a nack of event 0, an unknown clone with a `retransmit failed`
of event 0; both then begin anew. A clone that leaves sends an empty nack.
"""

import heapq
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from callboard.channel import Consumer, EndOfChannel, message
from callboard.model.data import DataType
from callboard.model.errors import EndpointError
from callboard.store.errors import NoSuchKey
from callboard.store.machine import replica
from callboard.store.machine.arithmetic import add, empty_value, subtract
from callboard.store.machine.command import NIL, Action, Command, CommandRun, EntityId, Who
from callboard.store.machine.replica import MISSING, Input, Output, Replica
from callboard.store.machine.snapshot import Snapshot
from callboard.store.machine.step import (
    ERASED,
    Answer,
    Persist,
    ReportRefused,
    Resign,
    Row,
    SendRun,
    StoreEffect,
    StoreInput,
    StoreSignal,
    WriterRow,
)
from callboard.store.machine.stored import Stored, Token
from callboard.store.options import ACK_AFTER, StoreOptions

#: Answers to `put_unique` that are remembered for each writer, which may ask again.
ANSWERS_KEPT: Final = 256

#: Writers that are remembered when they are gone; the earliest are forgotten beyond it.
WRITERS_KEPT: Final = 4096

_NS: Final = 10**9


class Master(Replica):
    """The master of one store."""

    #: A master has the copy that counts.
    has_copy = is_connected = True
    _to_master = False
    role = "master"

    def __init__(
        self,
        entity: EntityId,
        options: StoreOptions | None = None,
        *,
        rows: Mapping[Token, Row] | None = None,
        writers: Mapping[Who, WriterRow] | None = None,
        is_durable: bool = False,
    ) -> None:
        """Make a master.

        Args:
            entity: who it is.
            options: times.
            rows: what its backend holds.
            writers: how far writers were, as the backend remembers.
            is_durable: whether the backend wants to hear of changes.
        """
        super().__init__(entity)
        options = options or StoreOptions()
        self.options = options
        rows = rows or {}
        self._who = entity.who
        self.entries = {token: value for token, (value, _) in rows.items()}
        self._deadlines: dict[Token, float] = {}
        self._queue: list[tuple[float, int, Token]] = []
        self._queued = 0
        for token, (_, deadline) in rows.items():
            if deadline is not None:
                self._expire_at(token, deadline)
        self.writers: dict[Who, WriterRow] = dict(writers or {})
        self._persist = Persist() if is_durable else None
        #: Writers of whom something new is to be made durable.
        self._touched: set[Who] = set()
        self._out: list[Action] = []
        self._failures: list[str] = []
        self._carriers = {
            Command.PUT_UNIQUE: self._put_unique,
            Command.ERASE: lambda action: self._remove(action[1], Command.ERASE),
            Command.ADD: lambda act: self._change(act[1], act[2], act[4], DataType(act[3])),
            Command.SUBTRACT: lambda act: self._change(act[1], act[2], act[3], None),
            Command.CLEAR: self._clear_all,
        }

        self.inputs: dict[EntityId, Input] = {}
        self._names: dict[Input, tuple[EntityId, Who]] = {}
        self.output = replica.make_output(self, options)
        self._snapshots: dict[EntityId, Snapshot] = {}
        self._ticks = 0
        #: The last command for which acknowledgements were asked.
        self._hastened = 0

    # --- events in ---

    def local(self, actions: Sequence[Action], now: float) -> list[StoreEffect]:
        """Carry out what frontends here want."""
        self.now = now
        self._apply(actions)
        return self._finish()

    def receive(self, run: CommandRun, now: float) -> list[StoreEffect]:
        """Take what a clone sent."""
        if run.sender == self.entity or (run.receiver and run.receiver != self.entity):
            return []
        self.now = now
        if run.control is not None:
            self._take_control(run)
        elif run.sender in self.inputs:
            self.inputs[run.sender].handle_run(run.first, run.actions)
        else:
            self._send_control(run.sender, message.Nack((0,)))
        return self._finish()

    def step(self, event: StoreInput, now: float) -> list[StoreEffect]:
        """Take a rare event."""
        self.now = now
        match event:
            case StoreSignal.TICK:
                self._tick()
            case StoreSignal.HASTEN:
                seq = self.output.seq
                if self._hastened != seq and not self.output.is_idle:
                    self._hastened = seq
                    self._send_control(NIL, message.Heartbeat(seq))
            case StoreSignal.ENDPOINT_FOUND:
                self._tell_strangers()
            case StoreSignal.KEY_EXPIRES:
                self._remove_expired()
            case StoreSignal.LEAVE:
                self._send_control(NIL, message.RetransmitFailed(0))
        return self._finish()

    def _tick(self) -> None:
        """Let all channels tick, and tell now and then that there is a master."""
        self._ticks += 1
        self.output.tick()
        for consumer in list(self.inputs.values()):
            consumer.tick()
        if self._ticks % self.options.heartbeat_interval == 1:
            self._tell_strangers()

    def _tell_strangers(self) -> None:
        """Let clones to come, and rivals, hear that there is a master."""
        beat = message.Heartbeat(self.output.seq)
        if not self.output.consumers:
            self._send_control(NIL, beat)
        self._effects.append(SendRun(CommandRun(self.entity, control=beat), to_master=True))

    # --- seeing ---

    @property
    def master(self) -> EntityId:
        """Who changes the entries: this one."""
        return self.entity

    @property
    def is_idle(self) -> bool:
        """Whether all clones have acknowledged the last command, and no writer's one waits."""
        return self.output.is_idle and not self.out_of_order

    @property
    def input_channels(self) -> int:
        """How many writers there are."""
        return len(self.inputs)

    @property
    def output_channels(self) -> int:
        """How many clones there are."""
        return len(self.output.consumers)

    @property
    def out_of_order(self) -> int:
        """Commands of writers that wait for those before them; from any thread."""
        return sum(consumer.buffered for consumer in list(self.inputs.values()))

    @property
    def unacknowledged(self) -> int:
        """Commands that not all clones have acknowledged."""
        return self.output.buffered

    def expires_in(self, token: Token) -> float | None:
        """Return the seconds until a key is removed; None where it stays."""
        deadline = self._deadlines.get(token)
        return None if deadline is None else max(0.0, deadline - self.now)

    @property
    def next_expiry(self) -> float | None:
        """When the next key expires; None when no key has an end."""
        queue, deadlines = self._queue, self._deadlines
        while queue and deadlines.get(queue[0][2]) != queue[0][0]:
            heapq.heappop(queue)
        return queue[0][0] if queue else None

    def _finish(self) -> list[StoreEffect]:
        """Return the effects of a step, what is to be made durable first."""
        if self._out:
            actions, self._out = self._out, []
            first = self.output.produce_run(actions)
            if self.output.consumers:
                self._send_actions(first, actions)
        for consumer in self.inputs.values():
            consumer.acknowledge(ACK_AFTER)
        if self._failures:
            failures, self._failures = self._failures, []
            self._effects.append(ReportRefused(len(failures), failures[0]))
        effects = self._take_effects()
        persist = self._take_persist()
        return effects if persist is None else [persist, *effects]

    # --- actions ---

    def _apply(self, actions: Sequence[Action]) -> None:
        """Carry out actions in order. The usual one, a put, has the short way."""
        out, persist, deadlines = self._out, self._persist, self._deadlines
        entries, wants_changes, put = self.entries, self.wants_changes, Command.PUT
        self.processed += len(actions)
        for action in actions:
            if action[0] != put:
                carrier = self._carriers.get(action[0])
                if carrier is not None:  # what only masters say is nothing to them
                    carrier(action)
                    entries = self.entries
                continue
            _, token, value, expiry = action
            if wants_changes:
                self._put(token, value, expiry)
            else:
                entries[token] = value
            if expiry is not None:
                self._expire_at(token, self.now + expiry / _NS)
            elif deadlines:
                deadlines.pop(token, None)
            if persist is not None:
                persist.rows[token] = (value, deadlines.get(token))
            out.append(action)

    def _set(self, token: Token, value: Stored, expiry: int | None) -> None:
        """Put a value that another command has computed."""
        self.processed -= 1  # a part of what is carried out and counted already
        self._apply(((Command.PUT, token, value, expiry),))

    def _put_unique(self, action: Action) -> None:
        """Put a value if its key has none; a repeated question gets its first answer."""
        _, token, value, expiry, who, request = action
        is_own = who == self._who
        inserted = None if is_own else self._writer(who).answers.get(request)
        if inserted is None:
            inserted = token not in self.entries
            if inserted:
                self._set(token, value, expiry)
            if not is_own:
                self._remember(who, request, inserted=inserted)
        if is_own:
            self._effects.append(Answer(request, inserted))
        else:
            self._out.append((Command.RESULT, inserted, who, request))

    def _change(
        self, token: Token, operand: Stored, expiry: int | None, initial: DataType | None
    ) -> None:
        """Add to a value (if there is a type to start from), or take away from it."""
        try:
            old = self.entries.get(token, MISSING)
            if initial is not None:
                start = empty_value(initial) if old is MISSING else old
                value = add(start, operand)
            elif old is MISSING:
                msg = f"the store has no key {token!r:.60}"
                raise NoSuchKey(msg)
            else:
                value = subtract(old, operand)
        except EndpointError as error:
            self._failures.append(str(error))
            return
        self._set(token, value, expiry)

    def _remove(self, token: Token, kind: int) -> None:
        """Erase or expire a key, if it is there."""
        self._deadlines.pop(token, None)
        if self._erase(token, "erase" if kind == Command.ERASE else "expire"):
            if self._persist is not None:
                self._persist.rows[token] = ERASED
            self._out.append((kind, token))

    def _clear_all(self, _: Action) -> None:
        """Remove all keys and their deadlines."""
        self._clear()
        self._deadlines = {}
        self._queue = []
        if self._persist is not None:
            self._persist.rows.clear()
            self._persist.is_cleared = True
        self._out.append((Command.CLEAR,))

    def _expire_at(self, token: Token, deadline: float) -> None:
        """Give a key its end; an earlier one no longer counts."""
        self._deadlines[token] = deadline
        self._queued += 1
        heapq.heappush(self._queue, (deadline, self._queued, token))

    def _take_persist(self) -> Persist | None:
        """Return what a step wants to make durable."""
        touched, self._touched = self._touched, set()
        if self._persist is None:
            return None
        for who in sorted(touched):
            row = self.writers.get(who)
            if row is not None:
                self._persist.writers[who] = (row.seq, list(row.answers.items()))
        made, self._persist = self._persist, Persist()
        return made or None

    def _remove_expired(self) -> None:
        """Remove the keys whose time is over."""
        queue, deadlines = self._queue, self._deadlines
        while queue and queue[0][0] <= self.now:
            deadline, _, token = heapq.heappop(queue)
            if deadlines.get(token) == deadline:
                self._remove(token, Command.EXPIRE)

    # --- writers ---

    def _writer(self, who: Who) -> WriterRow:
        """Return how far a writer is; one more writer may push out a forgotten one."""
        row = self.writers.get(who)
        if row is None:
            row = self.writers[who] = WriterRow()
            if len(self.writers) > WRITERS_KEPT:
                self._forget_a_writer()
        return row

    def _forget_a_writer(self) -> None:
        """Forget the earliest writer that is not attached."""
        for who in self.writers:
            if EntityId(UUID(bytes=who[0]), who[1]) not in self.inputs:
                del self.writers[who]
                if self._persist is not None:
                    self._persist.writers[who] = ERASED
                return

    def _remember(self, who: Who, request: int, *, inserted: bool) -> None:
        """Remember an answer for a writer that may ask again."""
        row = self._writer(who)
        row.answers[request] = inserted
        if len(row.answers) > ANSWERS_KEPT:
            del row.answers[next(iter(row.answers))]
        self._touched.add(who)

    def _attach(self, writer: EntityId, handshake: message.Handshake) -> None:
        """Let a writer begin, behind what it wrote before as far as that is known here."""
        known = self.inputs.get(writer)
        if known is None or known.is_closed:
            known = self.inputs[writer] = replica.make_input(self, self.options)
            self._names[known] = writer, writer.who
        seq = self._writer(writer.who).seq
        known.handle_handshake(max(handshake.first, seq + 1), handshake.heartbeat_interval)

    def _take_control(self, run: CommandRun) -> None:
        """Take a message of the channels to clones and from writers."""
        sender, control = run.sender, run.control
        match control:
            case message.Handshake():
                self._attach(sender, control)
            case message.Nack((0, *_)):
                self._let_in(sender, control.seqs)
            case message.Nack(()):
                self.output.remove(sender)
                self._snapshots.pop(sender, None)
            case message.CumulativeAck() | message.Nack():
                is_known = self.output.handle(sender, control)
                if not is_known and sender not in self.output.consumers:
                    self._send_control(sender, message.RetransmitFailed(0))
            case _:
                self._take_producer_control(run)

    def _take_producer_control(self, run: CommandRun) -> None:
        """Take what a writer says of its commands, or another master of its own."""
        sender, control = run.sender, run.control
        consumer = self.inputs.get(sender)
        if consumer is not None:
            if isinstance(control, message.Heartbeat | message.RetransmitFailed):
                consumer.handle(control)
                consumer.acknowledge()  # heartbeats ask for it
        elif not isinstance(control, message.Heartbeat) or run.receiver:
            self._send_control(sender, message.Nack((0,)))
        elif sender < self.entity:  # of two masters the smaller name stays
            self._effects.append(Resign(sender))

    # --- clones ---

    def _let_in(self, clone: EntityId, seqs: tuple[int, ...]) -> None:
        """Add a clone, or send it more of its snapshot.

        `(0, offset + 1, chunk)` tells how far it is, a fourth number that it waits in vain.
        """
        snapshot = self._snapshots.get(clone)
        if snapshot is None:
            # One that is in already asked twice: clones that begin anew have another name.
            self.output.add(clone)
            return
        self.output.handle_nack(clone, ())
        if len(seqs) == 1:
            self._send_chunks(clone, 0, again=True)
        elif seqs[1] == snapshot.offset + 1:
            self._send_chunks(clone, seqs[2], again=len(seqs) > 3)

    def _send_chunks(self, clone: EntityId, first: int, *, again: bool) -> None:
        """Send the next chunks of a clone's snapshot."""
        for chunk in self._snapshots[clone].chunks(first, again=again):
            self._send_control(clone, chunk)

    # --- backend of the channels ---

    def consume(self, consumer: Input, payload: Action) -> None:
        """Carry out a writer's next command."""
        who = self._names[consumer][1]
        self._writer(who).seq = consumer.next_seq - 1
        self._touched.add(who)
        self._apply((payload,))

    def consume_nil(self, consumer: Input) -> object | None:
        """A writer gave a command up, and counted it: go on behind it."""
        return None

    def close(self, consumer: Input, error: object) -> None:
        """Nothing was heard of a writer: it may attach again."""
        writer, _ = self._names.pop(consumer)
        if self.inputs.get(writer) is consumer:
            del self.inputs[writer]

    def send(self, channel: Output | Input, *args: replica.Said) -> None:
        """Send a message of a channel to a clone, or to a writer."""
        if isinstance(channel, Consumer):
            self._send_control(self._names[channel][0], args[0])  # type: ignore[arg-type]
            return
        clone, sent = args
        assert isinstance(clone, EntityId)
        if isinstance(sent, message.Handshake):
            self._send_handshake(clone, sent)
        elif isinstance(sent, message.Event):
            self._send_actions(sent.seq, [sent.payload], clone)
        else:
            self._send_control(clone, sent)  # type: ignore[arg-type]

    def _send_handshake(self, clone: EntityId, handshake: message.Handshake) -> None:
        """Begin to send a clone the state of this moment."""
        if clone not in self._snapshots:
            offset = handshake.first - 1
            snapshot = Snapshot(self.entries, offset, handshake.heartbeat_interval)
            self._snapshots[clone] = snapshot
            self._send_chunks(clone, 0, again=True)

    def broadcast(self, producer: Output, msg: replica.FromOutput) -> None:
        """Send a heartbeat to all clones; events go as runs, see `_finish`."""
        self._send_control(NIL, msg)  # type: ignore[arg-type]

    def drop(self, producer: Output, hdl: EntityId, reason: EndOfChannel) -> None:
        """Nothing was heard of a clone: when it comes back it begins anew."""
        self._snapshots.pop(hdl, None)

    def handshake_completed(self, producer: Output, hdl: EntityId) -> None:
        """A clone has the whole snapshot."""
        self._snapshots.pop(hdl, None)
