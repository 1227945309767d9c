"""A clone of a store: a full copy that follows its master, as a machine without a clock.

As in Broker's developer guide (section 7.5), a clone has a consumer, `input`, for the commands
of its master, and a producer, `output`, which is made for the first write.

States:

- *seeking*: the clone asks all masters of the name to join, when it hears of a master or after
  `resync_interval`. The copy of an earlier connection remains readable.
- *loading*: the chunks of a snapshot arrive; commands that arrive before them are buffered.
- *connected*: the clone applies the commands of the master in order.

A write goes to the master, and becomes visible here when the master sends it back. The clone
buffers its writes until the master acknowledges them. A restarted master knows the last one
that it executed, so the clone sends them again and none is executed twice. Each attempt to join
uses another name, the *reader*: a late message to an earlier reader is recognized and ignored.
The *writer* keeps its name for life.
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
        """Make a clone that does not seek its master yet.

        Args:
            entity: id of the clone as a writer.
            make_reader: returns a name that was not used before.
            now: time in seconds, of the clock that also times all steps.
            options: times of its channels.
        """
        super().__init__(entity)
        self.now = now
        self.options = options or CloneOptions()
        self.master: EntityId | None = None
        self.output: Output | None = None
        self.is_connected = False
        #: Time since which it has been without a master; None while it has one.
        self.lost_at: float | None = now
        self._seq = 0
        #: Writes that the master has not acknowledged.
        self._writes: deque[Action] = deque()
        #: Requests (`put_unique`) without an answer.
        self._questions: dict[int, Action] = {}
        self._must_attach = False
        self._make_reader = make_reader
        self.reader = make_reader()
        self.input: Input | None = None
        #: Whether there is a copy to read: the clone has been connected once.
        self.has_copy = False
        self._heard_at = now
        self._is_suspect = False
        #: Number of the last write for which an acknowledgement was requested early.
        self._hastened = 0
        self._asked_at: float | None = None
        self._intake: SnapshotIntake | None = None
        self._progress_at = now

    # --- inputs ---

    def local(self, actions: Sequence[Action], now: float) -> list[StoreEffect]:
        """Send commands of frontends on this node to the master; buffer them without one."""
        self.now = now
        for action in actions:
            if action[0] == Command.PUT_UNIQUE:
                self._questions[action[5]] = action
        self._write(actions)
        return self._take_effects()

    def forget(self, request: int) -> None:
        """Drop a request; its caller no longer waits for the answer."""
        self._questions.pop(request, None)

    def receive(self, run: CommandRun, now: float) -> list[StoreEffect]:
        """Handle a run of commands from a master."""
        self.now = now
        if run.receiver in (NIL, self.reader, self.entity):
            self._receive(run)
            self._attach_if_due()
        return self._take_effects()

    def step(self, event: StoreInput, now: float) -> list[StoreEffect]:
        """Handle a rare event."""
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
                if self.master is None:  # the new endpoint may have the master
                    self._ask()
            case EndpointLost(endpoint):
                if self.master is not None and self.master.endpoint.bytes == endpoint:
                    self._is_suspect = True  # `_receive` may follow another master now
            case StoreSignal.LEAVE:
                if self.master is not None:
                    self._send_control(self.master, message.Nack(()), self.reader)
        return self._take_effects()

    def _tick(self) -> None:
        """Advance both channels by one tick, and repeat unanswered requests."""
        if self.input is not None:
            self.input.tick()
        if self.output is not None:
            self.output.tick()
        if self._intake is not None:
            self._watch_loading()
        if self.master is None:
            self._ask_again(self.options.resync_interval)
            self._drop_old_writes()
        self._attach_if_due()

    # --- state ---

    @property
    def is_idle(self) -> bool:
        """Whether it is connected, misses no command, and all its writes are acknowledged."""
        is_current = self.input is not None and self.input.is_idle
        return self.is_connected and is_current and not self._writes

    @property
    def input_channels(self) -> int:
        """The number of channels from a master: 1 or 0."""
        return int(self.input is not None)

    @property
    def output_channels(self) -> int:
        """The number of channels to a master: 1 or 0."""
        output = self.output
        return 0 if output is None else len(output.consumers)

    @property
    def out_of_order(self) -> int:
        """The number of commands of the master that wait for earlier ones."""
        consumer = self.input
        return 0 if consumer is None else consumer.buffered

    @property
    def unacknowledged(self) -> int:
        """The number of writes that the master has not acknowledged."""
        return len(self._writes)

    def is_stale(self, now: float) -> bool:
        """Whether the master was lost too long ago to answer from the copy."""
        lost_at = self.lost_at
        return lost_at is not None and now - lost_at >= self.options.stale_interval

    # --- from the master ---

    def _receive(self, run: CommandRun) -> None:
        """Handle a run of this clone's master, or of another master of the name."""
        control = run.control
        if self.master is None and not isinstance(control, SnapshotChunk):
            if control != message.RetransmitFailed(0):  # sent by a master that ends
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
            self._handle_chunk(run.sender, control)
        elif control is not None:
            self._handle_control(run.sender, control)
        elif self.input is not None:
            self.input.handle_run(run.first, run.actions)
            if self.input is not None:
                self.input.acknowledge(ACK_AFTER)

    def _is_silent(self) -> bool:
        """Return whether the master has missed two heartbeats."""
        limit = 2.5 * self.options.heartbeat_interval * self.options.tick_interval
        return self.now - self._heard_at > limit

    def _handle_control(self, master: EntityId, control: StoreControl) -> None:
        """Handle a message of the channels to and from the master."""
        match control:
            case message.RetransmitFailed(0):
                self._disconnect()
                self._ask()
            case message.Nack((0,)):
                self._must_attach = self.output is not None
            case message.CumulativeAck() | message.Nack():
                self._handle_acknowledgement(master, control)
            case _ if self.input is not None:
                self.input.handle(control)  # type: ignore[arg-type]
                if self.input is not None:
                    self.input.acknowledge()  # a heartbeat requests it

    # --- writes ---

    def _write(self, actions: Sequence[Action]) -> None:
        """Buffer writes, and send them if there is a master; refuse writes without room."""
        room = self.options.buffer_limit - len(self._writes)
        if self._is_too_late():
            room = 0
        if len(actions) > room:
            self._refuse(actions[room:], "the master has not acknowledged earlier commands")
            actions = actions[:room]
        if not actions:
            return
        self._buffer(actions)
        if self.output is None:
            self._must_attach = self.is_connected
            self._attach_if_due()
        else:
            self._send_actions(self.output.produce_run(actions), actions, self.master or NIL)

    def _buffer(self, actions: Sequence[Action]) -> None:
        """Buffer writes until the master has acknowledged them."""
        self._writes.extend(actions)
        self._seq += len(actions)

    def _attach_if_due(self) -> None:
        """Attach as a writer if the step made that necessary, once at its end."""
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
        """Return whether the clone has been without a master too long to buffer writes."""
        lost_at = self.lost_at
        limit = self.options.mutation_buffer_interval
        return lost_at is not None and self.now - lost_at >= limit

    def _drop_old_writes(self) -> None:
        """Refuse the writes and requests that have waited too long for a master."""
        if self._writes and self._is_too_late():
            writes = list(self._writes)
            self._writes.clear()
            self._refuse(writes, "no master was found within the mutation buffer interval")
        if self._questions and self._is_too_late():
            self._refuse(list(self._questions.values()), "")

    def refused(self, error: Exception) -> list[StoreEffect]:
        """Refuse all writes that the master has not acknowledged: it does not permit them."""
        writes = list(self._writes)
        self._writes.clear()
        self._must_attach, self.output = False, None
        self._refuse(writes, str(error), error)
        return self._take_effects()

    def _refuse(
        self, actions: Sequence[Action], reason: str, error: Exception | None = None
    ) -> None:
        """Refuse writes; a `put_unique` gets an error as its answer."""
        silent = 0
        for action in actions:
            if action[0] != Command.PUT_UNIQUE:
                silent += 1
            elif self._questions.pop(action[5], None) is not None:
                msg = "the master did not answer; it may have put the value or not"
                self._effects.append(Answer(action[5], error or RequestTimeout(msg)))
        if silent:
            self._effects.append(ReportRefused(silent, reason))

    def _handle_acknowledgement(
        self, master: EntityId, control: message.ConsumerMessage
    ) -> None:
        """Drop the writes that the master has acknowledged."""
        output = self.output
        if output is None or not output.handle(master, control):
            return
        if isinstance(control, message.CumulativeAck):
            for _ in range(len(self._writes) - (self._seq - control.seq)):
                self._writes.popleft()

    # --- joining a master ---

    def _ask(self) -> None:
        """Ask all masters of the name to join."""
        self._asked_at = self.now
        self._send_control(NIL, message.Nack((0,)), self.reader)

    def _ask_again(self, pause: float) -> None:
        """Ask to join, unless the last request is less than `pause` seconds old."""
        if self._asked_at is None or self.now - self._asked_at >= pause:
            self._ask()

    def _handle_chunk(self, master: EntityId, chunk: SnapshotChunk) -> None:
        """Handle a chunk of a snapshot; the sender of the first chunk becomes the master."""
        if self.is_connected:
            if self.input is not None:
                # The acknowledgement was lost, so the master repeats the handshake.
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
        self.unreadable += len(chunk.unreadable)
        self._failures += chunk.unreadable
        if chunk.is_last:
            self._install(intake, chunk.heartbeat_interval)
        elif intake.next_index % ACK_EVERY == 0:
            self._request_chunks(again=False)

    def _request_chunks(self, *, again: bool) -> None:
        """Request the chunks from the next missing one on."""
        assert self._intake is not None
        assert self.master is not None
        progress = (0, self._intake.offset + 1, self._intake.next_index)
        seqs = (*progress, 0) if again else progress
        self._send_control(self.master, message.Nack(seqs), self.reader)

    def _watch_loading(self) -> None:
        """Request chunks again if none has arrived for a heartbeat interval."""
        pause = self.options.heartbeat_interval * self.options.tick_interval
        if self.now - self._progress_at >= pause:
            self._progress_at = self.now
            self._request_chunks(again=True)

    def _install(self, intake: SnapshotIntake, interval: int) -> None:
        """Replace the copy by a complete snapshot, and follow the master from its offset on."""
        old_entries, self.entries = self.entries, intake.entries
        if self.wants_changes:
            self._changes += difference(old_entries, intake.entries)
        self._intake = None
        is_back = self.has_copy
        self.is_connected = self.has_copy = True
        self.lost_at = None
        assert self.input is not None
        self.input.handle_handshake(intake.offset + 1, interval)
        if is_back:
            # The master may have answered a request before it took the snapshot, and this
            # clone would never see the answer. A repeated request gets the recorded answer.
            self._buffer(list(self._questions.values()))
        self._must_attach = bool(self._writes)

    def _disconnect(self) -> None:
        """Leave the master; the copy remains readable."""
        if self.is_connected:
            self.lost_at = self._heard_at
        self.is_connected = False
        self.master = self.input = self.output = self._intake = None
        self._hastened = 0
        self._must_attach = self._is_suspect = False
        self.reader = self._make_reader()

    # --- backend of the channels ---

    def consume(self, consumer: Input, payload: Action) -> None:
        """Apply the master's next command."""
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
            _, inserted, asker, request = payload
            if asker == self.entity.plain:
                self._questions.pop(request, None)
                self._effects.append(Answer(request, inserted))
        elif kind == Command.UNREADABLE:
            self._drop_unreadable(payload)

    def _drop_unreadable(self, action: Action) -> None:
        """Count and report a command that cannot be read, and remove the key that it sets.

        The earlier value would be wrong: the master holds another one.
        """
        _, number, token, reason = action
        self.unreadable += 1
        self._failures.append(reason)
        if number == Command.PUT and token is not None:
            self._erase(token, "erase")

    def consume_nil(self, consumer: Input) -> object | None:
        """End the channel: after a lost command only a new snapshot is complete."""
        return EndOfChannel.RETRANSMISSION_TIMEOUT

    def close(self, consumer: Input, error: object) -> None:
        """Seek a master again."""
        self._disconnect()
        self._ask()

    def send(self, channel: Output | Input, *args: replica.ChannelMessage) -> None:
        """Send a message of a channel to the master."""
        content = args[-1]
        receiver = self.master or NIL
        if isinstance(content, message.Event):
            self._send_actions(content.seq, [content.payload], receiver)
            return
        sender = self.reader if isinstance(channel, Consumer) else self.entity
        self._send_control(receiver, content, sender)  # type: ignore[arg-type]

    def broadcast(self, producer: Output, msg: replica.FromOutput) -> None:
        """Send a heartbeat to the master; events go as runs."""
        self.send(producer, msg)

    def drop(self, producer: Output, hdl: EntityId, reason: EndOfChannel) -> None:
        """Attach again, after the master has not acknowledged writes in time."""
        self._must_attach = True

    def handshake_completed(self, producer: Output, hdl: EntityId) -> None:
        """Do nothing: writes are sent before the handshake is acknowledged."""
