"""The master of a store: the authoritative copy, as a machine without sockets or a clock.

As in Broker's developer guide (section 7.5), a master has a producer, `output`, whose consumers
are its clones, and one consumer in `inputs` for each clone that writes.

- A clone joins with a nack of event 0 under a name that it has not used before. It is added to
  `output`, and the handshake carries the state to it in chunks, see `snapshot`.
- A writer announces itself with a handshake. Its commands are executed in order, each once:
  the master and its backend record the number of each writer's last command, so a master that
  restarts from its backend executes no command twice.
- The effects of a step are ordered: `Persist` first, then acknowledgements, commands for
  clones, and answers. The driver holds all effects after a `Persist` until it is durable.
  This alone makes an acknowledged command a durable one.
- Each change, including an addition to a value, is sent as `put`, `erase`, `expire` or
  `clear`, so clones compute nothing and cannot differ from the master.

The master answers an unknown writer with a nack of event 0, and an unknown clone with a
`retransmit failed` of event 0; both then join again. A leaving clone sends an empty nack.
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
from callboard.store.machine.command import (
    NIL,
    Action,
    Command,
    CommandRun,
    EntityId,
    PlainEntity,
)
from callboard.store.machine.replica import MISSING, Input, Output, Replica
from callboard.store.machine.snapshot import Snapshot
from callboard.store.machine.step import (
    ERASED,
    Answer,
    Persist,
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

#: Answers to `put_unique` that are recorded for each writer, which may repeat its request.
ANSWERS_LIMIT: Final = 256

#: Recorded writers; beyond the limit the earliest detached one is forgotten.
WRITERS_LIMIT: Final = 4096

_NS: Final = 10**9


class Master(Replica):
    """The master of one store."""

    #: The master's copy is the authoritative one.
    has_copy = is_connected = True
    _to_master = False
    role = "master"

    def __init__(
        self,
        entity: EntityId,
        options: StoreOptions | None = None,
        *,
        rows: Mapping[Token, Row] | None = None,
        writers: Mapping[PlainEntity, WriterRow] | None = None,
        unreadable: int = 0,
        is_durable: bool = False,
    ) -> None:
        """Make a master.

        Args:
            entity: id of the master as a sender of commands.
            options: times of its channels.
            rows: rows of its backend.
            writers: progress of each writer, from its backend.
            unreadable: number of rows that the backend could not read.
            is_durable: whether changes must be written to a backend.
        """
        super().__init__(entity)
        self.unreadable = unreadable
        options = options or StoreOptions()
        self.options = options
        rows = rows or {}
        self.entries = {token: value for token, (value, _) in rows.items()}
        self._deadlines: dict[Token, float] = {}
        self._queue: list[tuple[float, int, Token]] = []
        self._queued = 0
        for token, (_, deadline) in rows.items():
            if deadline is not None:
                self._expire_at(token, deadline)
        self.writers: dict[PlainEntity, WriterRow] = dict(writers or {})
        self._persist = Persist() if is_durable else None
        #: Writers whose progress has changed since the last `Persist`.
        self._touched: set[PlainEntity] = set()
        self._out: list[Action] = []
        self._handlers = {
            Command.PUT_UNIQUE: self._put_unique,
            Command.ERASE: lambda action: self._remove(action[1], Command.ERASE),
            Command.ADD: lambda act: self._change(act[1], act[2], act[4], DataType(act[3])),
            Command.SUBTRACT: lambda act: self._change(act[1], act[2], act[3], None),
            Command.CLEAR: self._clear_all,
            Command.UNREADABLE: self._refuse_unreadable,
        }

        self.inputs: dict[EntityId, Input] = {}
        self._names: dict[Input, tuple[EntityId, PlainEntity]] = {}
        self.output = replica.make_output(self, options)
        self._snapshots: dict[EntityId, Snapshot] = {}
        self._ticks = 0
        #: Number of the last command for which acknowledgements were requested early.
        self._hastened = 0

    # --- inputs ---

    def local(self, actions: Sequence[Action], now: float) -> list[StoreEffect]:
        """Execute commands of the frontends on this node."""
        self.now = now
        self._apply(actions)
        return self._finish()

    def receive(self, run: CommandRun, now: float) -> list[StoreEffect]:
        """Handle a run of commands from a clone, or a control of another master."""
        if run.sender == self.entity or (run.receiver and run.receiver != self.entity):
            return []
        self.now = now
        if run.control is not None:
            self._handle_control(run)
        elif run.sender in self.inputs:
            self.inputs[run.sender].handle_run(run.first, run.actions)
        else:
            self._send_control(run.sender, message.Nack((0,)))
        return self._finish()

    def step(self, event: StoreInput, now: float) -> list[StoreEffect]:
        """Handle a rare event."""
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
                self._announce()
            case StoreSignal.KEY_EXPIRES:
                self._remove_expired()
            case StoreSignal.LEAVE:
                self._send_control(NIL, message.RetransmitFailed(0))
        return self._finish()

    def _tick(self) -> None:
        """Advance all channels by one tick; announce the master at each heartbeat interval."""
        self._ticks += 1
        self.output.tick()
        for consumer in list(self.inputs.values()):
            consumer.tick()
        if self._ticks % self.options.heartbeat_interval == 1:
            self._announce()

    def _announce(self) -> None:
        """Send a heartbeat to clones that have not joined, and to rival masters."""
        beat = message.Heartbeat(self.output.seq)
        if not self.output.consumers:
            self._send_control(NIL, beat)
        self._effects.append(SendRun(CommandRun(self.entity, control=beat), to_master=True))

    # --- state ---

    @property
    def master(self) -> EntityId:
        """The replica that changes the entries: this one."""
        return self.entity

    @property
    def is_idle(self) -> bool:
        """Whether clones have acknowledged all commands, and no command of a writer waits."""
        return self.output.is_idle and not self.out_of_order

    @property
    def input_channels(self) -> int:
        """The number of attached writers."""
        return len(self.inputs)

    @property
    def output_channels(self) -> int:
        """The number of clones."""
        return len(self.output.consumers)

    @property
    def out_of_order(self) -> int:
        """Commands of writers that wait for earlier ones; may be called on any thread."""
        return sum(consumer.buffered for consumer in list(self.inputs.values()))

    @property
    def unacknowledged(self) -> int:
        """The number of commands that at least one clone has not acknowledged."""
        return self.output.buffered

    def expires_in(self, token: Token) -> float | None:
        """Return the seconds until a key expires; None if it does not."""
        deadline = self._deadlines.get(token)
        return None if deadline is None else max(0.0, deadline - self.now)

    @property
    def next_expiry(self) -> float | None:
        """The earliest deadline of a key; None if no key expires."""
        queue, deadlines = self._queue, self._deadlines
        while queue and deadlines.get(queue[0][2]) != queue[0][0]:
            heapq.heappop(queue)
        return queue[0][0] if queue else None

    def _finish(self) -> list[StoreEffect]:
        """Return the effects of a step, its `Persist` first."""
        if self._out:
            actions, self._out = self._out, []
            first = self.output.produce_run(actions)
            if self.output.consumers:
                self._send_actions(first, actions)
        for consumer in self.inputs.values():
            consumer.acknowledge(ACK_AFTER)
        effects = self._take_effects()
        persist = self._take_persist()
        return effects if persist is None else [persist, *effects]

    # --- actions ---

    def _apply(self, actions: Sequence[Action]) -> None:
        """Execute actions in order. Puts, nearly all of them, are executed without a call."""
        out, persist, deadlines = self._out, self._persist, self._deadlines
        entries, wants_changes, put = self.entries, self.wants_changes, Command.PUT
        self.processed += len(actions)
        for action in actions:
            if action[0] != put:
                execute = self._handlers.get(action[0])
                if execute is not None:  # a master ignores actions that only masters send
                    execute(action)
                    entries = self.entries  # `clear` replaces the dictionary
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
        self.processed -= 1  # `_apply` counts it, and has counted the other command
        self._apply(((Command.PUT, token, value, expiry),))

    def _put_unique(self, action: Action) -> None:
        """Put a value if its key has none; a repeated request gets its first answer again."""
        _, token, value, expiry, writer, request = action
        is_own = writer == self.entity.plain
        inserted = None if is_own else self._writer(writer).answers.get(request)
        if inserted is None:
            inserted = token not in self.entries
            if inserted:
                self._set(token, value, expiry)
            if not is_own:
                self._record_answer(writer, request, inserted=inserted)
        if is_own:
            self._effects.append(Answer(request, inserted))
        else:
            self._out.append((Command.RESULT, inserted, writer, request))

    def _change(
        self, token: Token, operand: Stored, expiry: int | None, initial: DataType | None
    ) -> None:
        """Add to a value (if `initial` is a type), or subtract from it."""
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

    def _refuse_unreadable(self, action: Action) -> None:
        """Count and report an action that could not be read."""
        self.unreadable += 1
        self._failures.append(action[3])

    def _remove(self, token: Token, kind: int) -> None:
        """Erase or expire a key, if the store has it."""
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
        """Set the deadline of a key; it replaces an earlier one, see `next_expiry`."""
        self._deadlines[token] = deadline
        self._queued += 1
        heapq.heappush(self._queue, (deadline, self._queued, token))

    def _take_persist(self) -> Persist | None:
        """Return the changes of a step that must become durable; None if there are none."""
        touched, self._touched = self._touched, set()
        if self._persist is None:
            return None
        for writer in sorted(touched):
            row = self.writers.get(writer)
            if row is not None:
                self._persist.writers[writer] = (row.seq, list(row.answers.items()))
        changes, self._persist = self._persist, Persist()
        return changes or None

    def _remove_expired(self) -> None:
        """Remove the keys whose deadlines have passed."""
        queue, deadlines = self._queue, self._deadlines
        while queue and queue[0][0] <= self.now:
            deadline, _, token = heapq.heappop(queue)
            if deadlines.get(token) == deadline:
                self._remove(token, Command.EXPIRE)

    # --- writers ---

    def _writer(self, writer: PlainEntity) -> WriterRow:
        """Return the progress of a writer; a new writer may replace a detached one."""
        row = self.writers.get(writer)
        if row is None:
            row = self.writers[writer] = WriterRow()
            if len(self.writers) > WRITERS_LIMIT:
                self._forget_a_writer()
        return row

    def _forget_a_writer(self) -> None:
        """Forget the earliest writer that is not attached."""
        for writer in self.writers:
            if EntityId(UUID(bytes=writer[0]), writer[1]) not in self.inputs:
                del self.writers[writer]
                if self._persist is not None:
                    self._persist.writers[writer] = ERASED
                return

    def _record_answer(self, writer: PlainEntity, request: int, *, inserted: bool) -> None:
        """Record an answer for a writer, which repeats its request after a lost connection."""
        row = self._writer(writer)
        row.answers[request] = inserted
        if len(row.answers) > ANSWERS_LIMIT:
            del row.answers[next(iter(row.answers))]
        self._touched.add(writer)

    def _attach(self, writer: EntityId, handshake: message.Handshake) -> None:
        """Attach a writer; its commands up to the recorded number are not executed again."""
        consumer = self.inputs.get(writer)
        if consumer is None or consumer.is_closed:
            consumer = self.inputs[writer] = replica.make_input(self, self.options)
            self._names[consumer] = writer, writer.plain
        seq = self._writer(writer.plain).seq
        consumer.handle_handshake(max(handshake.first, seq + 1), handshake.heartbeat_interval)

    def _handle_control(self, run: CommandRun) -> None:
        """Handle a message of the channels to clones and from writers."""
        sender, control = run.sender, run.control
        match control:
            case message.Handshake():
                self._attach(sender, control)
            case message.Nack((0, *_)):
                self._join(sender, control.seqs)
            case message.Nack(()):
                self.output.remove(sender)
                self._snapshots.pop(sender, None)
            case message.CumulativeAck() | message.Nack():
                is_known = self.output.handle(sender, control)
                if not is_known and sender not in self.output.consumers:
                    self._send_control(sender, message.RetransmitFailed(0))
            case _:
                self._handle_producer_control(run)

    def _handle_producer_control(self, run: CommandRun) -> None:
        """Handle a message of a writer's channel, or the heartbeat of another master."""
        sender, control = run.sender, run.control
        consumer = self.inputs.get(sender)
        if consumer is not None:
            if isinstance(control, message.Heartbeat | message.RetransmitFailed):
                consumer.handle(control)
                consumer.acknowledge()  # a heartbeat requests it
        elif not isinstance(control, message.Heartbeat) or run.receiver:
            self._send_control(sender, message.Nack((0,)))
        elif sender < self.entity:  # of two masters the one with the smaller id stays
            self._effects.append(Resign(sender))

    # --- clones ---

    def _join(self, clone: EntityId, seqs: tuple[int, ...]) -> None:
        """Add a clone, or send it more chunks of its snapshot.

        Args:
            clone: the clone.
            seqs: `(0,)` to join; `(0, offset + 1, chunk)` to request the chunks from an index
                on. A fourth number says that chunks which were sent have not arrived.
        """
        snapshot = self._snapshots.get(clone)
        if snapshot is None:
            # A clone that has joined has repeated its request, which changes nothing: a clone
            # that begins again uses another name.
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
        """Execute a writer's next command."""
        writer = self._names[consumer][1]
        self._writer(writer).seq = consumer.next_seq - 1
        self._touched.add(writer)
        self._apply((payload,))

    def consume_nil(self, consumer: Input) -> object | None:
        """Skip a command that its writer no longer buffers."""
        return None

    def close(self, consumer: Input, error: object) -> None:
        """Remove a silent writer; it may attach again."""
        writer, _ = self._names.pop(consumer)
        if self.inputs.get(writer) is consumer:
            del self.inputs[writer]

    def send(self, channel: Output | Input, *args: replica.ChannelMessage) -> None:
        """Send a message of a channel to a clone or a writer."""
        if isinstance(channel, Consumer):
            self._send_control(self._names[channel][0], args[0])  # type: ignore[arg-type]
            return
        clone, content = args
        assert isinstance(clone, EntityId)
        if isinstance(content, message.Handshake):
            self._send_handshake(clone, content)
        elif isinstance(content, message.Event):
            self._send_actions(content.seq, [content.payload], clone)
        else:
            self._send_control(clone, content)  # type: ignore[arg-type]

    def _send_handshake(self, clone: EntityId, handshake: message.Handshake) -> None:
        """Take a snapshot for a clone, and send its first chunks."""
        if clone not in self._snapshots:
            offset = handshake.first - 1
            snapshot = Snapshot(self.entries, offset, handshake.heartbeat_interval)
            self._snapshots[clone] = snapshot
            self._send_chunks(clone, 0, again=True)

    def broadcast(self, producer: Output, msg: replica.FromOutput) -> None:
        """Send a heartbeat to all clones; events go as runs, see `_finish`."""
        self._send_control(NIL, msg)  # type: ignore[arg-type]

    def drop(self, producer: Output, hdl: EntityId, reason: EndOfChannel) -> None:
        """Drop the snapshot of a silent clone; it joins again under another name."""
        self._snapshots.pop(hdl, None)

    def handshake_completed(self, producer: Output, hdl: EntityId) -> None:
        """Drop the snapshot of a clone that has all of it."""
        self._snapshots.pop(hdl, None)
