"""A clone of a store: a full copy that follows its master, as a machine without a clock.

As the developer guide draws it (section 7.5), a clone has a consumer, `input`, for what its
master says, and a producer, `output`, which is made with the first write.

States:

- *seeking*: it asks all masters of the name to be let in, when it hears of one or after
  `resync_interval`. What it held before can still be read.
- *loading*: chunks of the snapshot arrive; commands that outrun them are kept.
- *connected*: the commands of the master are consumed in order.

Writes go to the master and are visible here when they come back. Those that the master has not
acknowledged are kept; a master that comes back knows how far they were carried out, so they
are sent again without being doubled. Each attempt to be let in has a fresh name, the *reader*,
so that late messages of an earlier one cannot confuse; the *writer* keeps its name for life.
"""

from collections import deque
from collections.abc import Callable, Sequence

from callboard.channel import Consumer, EndOfChannel, message
from callboard.store.errors import RequestTimeout
from callboard.store.machine import replica
from callboard.store.machine.change import difference
from callboard.store.machine.command import (
    NIL,
    Action,
    Command,
    CommandRun,
    EntityId,
    StoreControl,
)
from callboard.store.machine.replica import Input, Output, Replica
from callboard.store.machine.snapshot import ACK_EVERY, SnapshotChunk, SnapshotIntake
from callboard.store.machine.step import (
    Answer,
    EndpointLost,
    ReportRefused,
    StoreEffect,
    StoreInput,
    StoreSignal,
)
from callboard.store.options import ACK_AFTER, CloneOptions


class Clone(Replica):
    """A clone of one store."""

    #: Keys expire at the master.
    next_expiry: float | None = None
    _to_master = True
    role = "clone"

    def __init__(
        self,
        entity: EntityId,
        make_reader: Callable[[], EntityId],
        now: float,
        options: CloneOptions | None = None,
    ) -> None:
        """Make a clone that has not sought its master yet.

        Args:
            entity: who it is as a writer.
            make_reader: returns a name that was not used before.
            now: seconds of the clock that all steps are told.
            options: times.
        """
        super().__init__(entity)
        self.now = now
        self.options = options or CloneOptions()
        self.master: EntityId | None = None
        self.output: Output | None = None
        self.is_connected = False
        #: When it lost its master, or began without one; None while it has one.
        self.lost_at: float | None = now
        self._seq = 0
        #: Writes that the master has not acknowledged.
        self._writes: deque[Action] = deque()
        #: Questions (`put_unique`) without an answer.
        self._questions: dict[int, Action] = {}
        self._must_attach = False
        self._make_reader = make_reader
        self.reader = make_reader()
        self.input: Input | None = None
        #: Whether there is a copy to read: it was connected once.
        self.has_copy = False
        self._heard_at = now
        self._is_suspect = False
        #: The last write for which an acknowledgement was asked.
        self._hastened = 0
        self._asked_at: float | None = None
        self._intake: SnapshotIntake | None = None
        self._progress_at = now

    # --- events in ---

    def local(self, actions: Sequence[Action], now: float) -> list[StoreEffect]:
        """Send what frontends here want to the master, or keep it until there is one."""
        self.now = now
        for action in actions:
            if action[0] == Command.PUT_UNIQUE:
                self._questions[action[5]] = action
        self._write(actions)
        return self._take_effects()

    def forget(self, request: int) -> None:
        """Nobody waits for the answer to a question any more."""
        self._questions.pop(request, None)

    def receive(self, run: CommandRun, now: float) -> list[StoreEffect]:
        """Take what a master sent."""
        self.now = now
        if run.receiver in (NIL, self.reader, self.entity):
            self._receive(run)
            self._settle()
        return self._take_effects()

    def step(self, event: StoreInput, now: float) -> list[StoreEffect]:
        """Take a rare event."""
        self.now = now
        match event:
            case StoreSignal.TICK:
                self._tick()
            case StoreSignal.HASTEN:
                output = self.output
                if output is not None and self._writes and self._hastened != output.seq:
                    self._hastened = output.seq
                    self.send(output, message.Heartbeat(output.seq))
            case StoreSignal.ENDPOINT_FOUND:
                if self.master is None:  # perhaps it has the master
                    self._ask()
            case EndpointLost(endpoint):
                if self.master is not None and self.master.endpoint.bytes == endpoint:
                    self._is_suspect = True  # another master may take its place
            case StoreSignal.LEAVE:
                if self.master is not None:
                    self._send_control(self.master, message.Nack(()), self.reader)
        return self._take_effects()

    def _tick(self) -> None:
        """Let both channels tick, and repeat what was not answered."""
        if self.input is not None:
            self.input.tick()
        if self.output is not None:
            self.output.tick()
        if self._intake is not None:
            self._watch_loading()
        if self.master is None:
            self._ask_again(self.options.resync_interval)
            self._drop_old_writes()
        self._settle()

    # --- seeing ---

    @property
    def is_idle(self) -> bool:
        """Whether it is connected, misses nothing, and all its writes are acknowledged."""
        is_current = self.input is not None and self.input.is_idle
        return self.is_connected and is_current and not self._writes

    @property
    def input_channels(self) -> int:
        """Whether there is a channel from the master."""
        return int(self.input is not None)

    @property
    def output_channels(self) -> int:
        """Whether there is a channel to the master."""
        output = self.output
        return 0 if output is None else len(output.consumers)

    @property
    def out_of_order(self) -> int:
        """Commands of the master that wait for those before them."""
        consumer = self.input
        return 0 if consumer is None else consumer.buffered

    @property
    def unacknowledged(self) -> int:
        """Writes that the master has not acknowledged."""
        return len(self._writes)

    def is_stale(self, now: float) -> bool:
        """Whether the master was lost too long ago to answer from the copy."""
        lost_at = self.lost_at
        return lost_at is not None and now - lost_at >= self.options.stale_interval

    # --- from the master ---

    def _receive(self, run: CommandRun) -> None:
        """Take a run of the master, or of one that it hears of."""
        control = run.control
        if self.master is None and not isinstance(control, SnapshotChunk):
            if control != message.RetransmitFailed(0):  # said by masters that end
                self._ask_again(2 * self.options.tick_interval)
            return
        if self.master not in (None, run.sender):
            if self._is_suspect or self._is_silent():
                self._disconnect()
                self._ask()
            return
        self._heard_at = self.now
        self._is_suspect = False
        if isinstance(control, SnapshotChunk):
            self._take_chunk(run.sender, control)
        elif control is not None:
            self._take_control(run.sender, control)
        elif self.input is not None:
            self.input.handle_run(run.first, run.actions)
            if self.input is not None:
                self.input.acknowledge(ACK_AFTER)

    def _is_silent(self) -> bool:
        """Whether the master has missed two heartbeats."""
        limit = 2.5 * self.options.heartbeat_interval * self.options.tick_interval
        return self.now - self._heard_at > limit

    def _take_control(self, master: EntityId, control: StoreControl) -> None:
        """Take a message of the channels to and from the master."""
        match control:
            case message.RetransmitFailed(0):
                self._disconnect()
                self._ask()
            case message.Nack((0,)):
                self._must_attach = self.output is not None
            case message.CumulativeAck() | message.Nack():
                self._hear_acknowledgement(master, control)
            case _ if self.input is not None:
                self.input.handle(control)  # type: ignore[arg-type]
                if self.input is not None:
                    self.input.acknowledge()  # heartbeats ask for it

    # --- writes, which are kept until the master has acknowledged them ---

    def _write(self, actions: Sequence[Action]) -> None:
        """Keep writes, and send them if there is a master."""
        room = self.options.buffer_limit - len(self._writes)
        if self._is_too_late():
            room = 0
        if len(actions) > room:
            self._refuse(actions[room:], "the master has not taken what was written before")
            actions = actions[:room]
        if not actions:
            return
        self._keep(actions)
        if self.output is None:
            self._must_attach = self.is_connected
            self._settle()
        else:
            self._send_actions(self.output.produce_run(actions), actions, self.master or NIL)

    def _keep(self, actions: Sequence[Action]) -> None:
        """Keep writes until the master has acknowledged them."""
        self._writes.extend(actions)
        self._seq += len(actions)

    def _settle(self) -> None:
        """Attach as a writer, once, if the step made that necessary."""
        if not self._must_attach or not self.is_connected:
            return
        self._must_attach = False
        assert self.master is not None
        writes = list(self._writes)
        self.output = replica.make_output(self, self.options, self._seq - len(writes))
        self.output.add(self.master)
        if writes:
            self._send_actions(self.output.produce_run(writes), writes, self.master)

    def _is_too_late(self) -> bool:
        """Return whether the master was lost too long ago to keep writes."""
        lost_at = self.lost_at
        limit = self.options.mutation_buffer_interval
        return lost_at is not None and self.now - lost_at >= limit

    def _drop_old_writes(self) -> None:
        """Give up what waited too long for a master."""
        if self._writes and self._is_too_late():
            writes = list(self._writes)
            self._writes.clear()
            self._refuse(writes, "no master came within the mutation buffer interval")
        if self._questions and self._is_too_late():
            self._refuse(list(self._questions.values()), "")

    def refused(self, error: Exception) -> list[StoreEffect]:
        """Give up all writes that the master has not acknowledged: it does not permit them."""
        writes = list(self._writes)
        self._writes.clear()
        self._must_attach, self.output = False, None
        self._refuse(writes, str(error), error)
        return self._take_effects()

    def _refuse(
        self, actions: Sequence[Action], reason: str, error: Exception | None = None
    ) -> None:
        """Give writes up; what waits for an answer gets an error."""
        silent = 0
        for action in actions:
            if action[0] != Command.PUT_UNIQUE:
                silent += 1
            elif self._questions.pop(action[5], None) is not None:
                msg = "the master did not answer; it may have put the value or not"
                self._effects.append(Answer(action[5], error or RequestTimeout(msg)))
        if silent:
            self._effects.append(ReportRefused(silent, reason))

    def _hear_acknowledgement(self, master: EntityId, told: message.ConsumerMessage) -> None:
        """Forget the writes that the master has acknowledged."""
        output = self.output
        if output is None or not output.handle(master, told):
            return
        if isinstance(told, message.CumulativeAck):
            for _ in range(len(self._writes) - (self._seq - told.seq)):
                self._writes.popleft()

    # --- being let in ---

    def _ask(self) -> None:
        """Ask all masters of the name to be let in."""
        self._asked_at = self.now
        self._send_control(NIL, message.Nack((0,)), self.reader)

    def _ask_again(self, pause: float) -> None:
        """Ask, unless it was asked less than so many seconds ago."""
        if self._asked_at is None or self.now - self._asked_at >= pause:
            self._ask()

    def _take_chunk(self, master: EntityId, chunk: SnapshotChunk) -> None:
        """Take a chunk of the snapshot; the first names the master."""
        if self.is_connected:
            if self.input is not None:
                # The acknowledgement was lost: the master offers the handshake again.
                self.input.handle_handshake(chunk.offset + 1, chunk.heartbeat_interval)
            return
        intake = self._intake
        if intake is None:
            if chunk.index:
                return
            self.master = master
            intake = self._intake = SnapshotIntake(chunk.offset)
            self.input = replica.make_input(self, self.options)
        assert self.input is not None
        self.input.handle_heartbeat(chunk.offset)
        if not intake.take(chunk):
            return
        self._progress_at = self.now
        if chunk.is_last:
            self._install(intake, chunk.heartbeat_interval)
        elif intake.next_index % ACK_EVERY == 0:
            self._ask_for_more(again=False)

    def _ask_for_more(self, *, again: bool) -> None:
        """Tell the master which chunk is wanted next."""
        assert self._intake is not None
        assert self.master is not None
        progress = (0, self._intake.offset + 1, self._intake.next_index)
        seqs = (*progress, 0) if again else progress
        self._send_control(self.master, message.Nack(seqs), self.reader)

    def _watch_loading(self) -> None:
        """Ask again for chunks that do not come."""
        pause = self.options.heartbeat_interval * self.options.tick_interval
        if self.now - self._progress_at >= pause:
            self._progress_at = self.now
            self._ask_for_more(again=True)

    def _install(self, intake: SnapshotIntake, interval: int) -> None:
        """Take a complete snapshot as the copy, and begin to follow the master."""
        before, self.entries = self.entries, intake.entries
        if self.wants_changes:
            self._changes += difference(before, intake.entries)
        self._intake = None
        is_back = self.has_copy
        self.is_connected = self.has_copy = True
        self.lost_at = None
        assert self.input is not None
        self.input.handle_handshake(intake.offset + 1, interval)
        if is_back:
            # An answer may have been given before the snapshot: masters remember theirs.
            self._keep(list(self._questions.values()))
        self._must_attach = bool(self._writes)

    def _disconnect(self) -> None:
        """Forget the master, but not the copy."""
        if self.is_connected:
            self.lost_at = self._heard_at
        self.is_connected = False
        self.master = self.input = self.output = self._intake = None
        self._hastened = 0
        self._must_attach = self._is_suspect = False
        self.reader = self._make_reader()

    # --- backend of the channels ---

    def consume(self, consumer: Input, payload: Action) -> None:
        """Carry out the master's next command."""
        kind = payload[0]
        self.processed += 1
        if kind == Command.PUT:
            if self.wants_changes:
                self._put(payload[1], payload[2], payload[3])
            else:
                self.entries[payload[1]] = payload[2]
        elif kind in (Command.ERASE, Command.EXPIRE):
            self._erase(payload[1], "erase" if kind == Command.ERASE else "expire")
        elif kind == Command.CLEAR:
            self._clear()
        elif kind == Command.RESULT:
            _, inserted, who, request = payload
            if who == self.entity.who:
                self._questions.pop(request, None)
                self._effects.append(Answer(request, inserted))

    def consume_nil(self, consumer: Input) -> object | None:
        """A command is lost for good: only a snapshot helps."""
        return EndOfChannel.RETRANSMISSION_TIMEOUT

    def close(self, consumer: Input, error: object) -> None:
        """The master is lost."""
        self._disconnect()
        self._ask()

    def send(self, channel: Output | Input, *args: replica.Said) -> None:
        """Send a message of a channel to the master."""
        sent = args[-1]
        receiver = self.master or NIL
        if isinstance(sent, message.Event):
            self._send_actions(sent.seq, [sent.payload], receiver)
            return
        sender = self.reader if isinstance(channel, Consumer) else self.entity
        self._send_control(receiver, sent, sender)  # type: ignore[arg-type]

    def broadcast(self, producer: Output, msg: replica.FromOutput) -> None:
        """Send a heartbeat to the master; events go as runs."""
        self.send(producer, msg)

    def drop(self, producer: Output, hdl: EntityId, reason: EndOfChannel) -> None:
        """The master does not acknowledge: attach again."""
        self._must_attach = True

    def handshake_completed(self, producer: Output, hdl: EntityId) -> None:
        """The master takes writes."""
