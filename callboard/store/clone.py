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

from collections.abc import Callable, Sequence

from callboard.channel import (
    Consumer,
    ConsumerMessage,
    CumulativeAck,
    EndOfChannel,
    Event,
    Heartbeat,
    Nack,
    Producer,
    ProducerMessage,
)
from callboard.store.action import CLEAR, ERASE, EXPIRE, PUT, PUT_UNIQUE, RESULT, Action
from callboard.store.clone_writes import CloneWrites
from callboard.store.command import InternalCommand, NackCommand, RetransmitFailedCommand
from callboard.store.command_cbor import CommandRun, Control
from callboard.store.command_channel import channel_message, control_command
from callboard.store.effect import Answer, Effect
from callboard.store.entity_id import NIL, EntityId
from callboard.store.options import ACK_AFTER, CloneOptions
from callboard.store.snapshot import ACK_EVERY, SnapshotChunk, SnapshotIntake
from callboard.store.store_event import difference

__all__ = ["Clone"]


class Clone(CloneWrites):
    """A clone of one store."""

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
        super().__init__(entity, now, options or CloneOptions())
        self._make_reader = make_reader
        self.reader = make_reader()
        self.input: Consumer[Action] | None = None
        #: Whether it ever was.
        self.was_connected = False
        self._heard_at = now
        self._is_suspect = False
        #: The last write for which an acknowledgement was asked.
        self._hastened = 0
        self._asked_at: float | None = None
        self._intake: SnapshotIntake | None = None
        self._progress_at = now

    # --- events in ---

    def local(self, actions: Sequence[Action], now: float) -> list[Effect]:
        """Send what frontends here want to the master, or keep it until there is one."""
        self.now = now
        for action in actions:
            if action[0] == PUT_UNIQUE:
                self._questions[action[5]] = action
        self._write(actions)
        return self._take_effects()

    def forget(self, request: int) -> None:
        """Nobody waits for the answer to a question any more."""
        self._questions.pop(request, None)

    def receive(self, run: CommandRun, now: float) -> list[Effect]:
        """Take what a master sent."""
        self.now = now
        if run.receiver in (NIL, self.reader, self.entity):
            self._receive(run)
            self._settle()
        return self._take_effects()

    def tick(self, now: float) -> list[Effect]:
        """Let one tick pass."""
        self.now = now
        if self.input is not None:
            self.input.tick()
        if self.output is not None:
            self.output.tick()
        if self._intake is not None:
            self._watch_loading()
        if self.master is None:
            if self._asked_at is None or now - self._asked_at >= self.options.resync_interval:
                self._ask()
            self._drop_old_writes()
        self._settle()
        return self._take_effects()

    def hasten(self, now: float) -> list[Effect]:
        """Ask the master to acknowledge what was written: somebody waits for it."""
        self.now = now
        output = self.output
        if output is not None and self._writes and self._hastened != output.seq:
            self._hastened = output.seq
            self.send(output, Heartbeat(output.seq))
        return self._take_effects()

    def endpoint_found(self, now: float) -> list[Effect]:
        """Somebody came into reach: perhaps the master."""
        self.now = now
        if self.master is None:
            self._ask()
        return self._take_effects()

    def endpoint_lost(self, endpoint: bytes, now: float) -> list[Effect]:
        """No path leads to an endpoint: if it has the master, another may take its place."""
        self.now = now
        if self.master is not None and self.master.endpoint.bytes == endpoint:
            self._is_suspect = True
        return self._take_effects()

    def leave(self, now: float) -> list[Effect]:
        """Tell the master that this clone ends."""
        self.now = now
        if self.master is not None:
            self._send_control(self.reader, self.master, NackCommand(()))
        return self._take_effects()

    @property
    def is_idle(self) -> bool:
        """Whether it is connected, misses nothing, and all its writes are acknowledged."""
        return (
            self.is_connected
            and self.input is not None
            and self.input.is_idle
            and not self._writes
        )

    @property
    def author(self) -> EntityId | None:
        """Who changes the entries, as far as this clone knows."""
        return self.master

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
        control = run.control
        if self.master is None and not isinstance(control, SnapshotChunk):
            if control != RetransmitFailedCommand(0):  # said by masters that end
                self._ask_soon()
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

    def _take_control(self, master: EntityId, control: Control) -> None:
        if control == RetransmitFailedCommand(0):
            self._disconnect()
            self._ask()
            return
        if control == NackCommand((0,)):
            self._must_attach = self.output is not None
            return
        message = channel_message(InternalCommand(0, master, control))  # type: ignore[arg-type]
        if isinstance(message, CumulativeAck | Nack):
            self._hear_acknowledgement(master, message)
        elif self.input is not None:
            self.input.handle(message)  # type: ignore[arg-type]
            if self.input is not None:
                self.input.acknowledge()  # heartbeats ask for it

    # --- being let in ---

    def _ask(self) -> None:
        self._asked_at = self.now
        self._send_control(self.reader, NIL, NackCommand((0,)))

    def _ask_soon(self) -> None:
        """Ask, unless it was asked a moment ago."""
        pause = 2 * self.options.tick_interval
        if self._asked_at is None or self.now - self._asked_at >= pause:
            self._ask()

    def _take_chunk(self, master: EntityId, chunk: SnapshotChunk) -> None:
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
            options = self.options
            self.input = Consumer(
                self, nack_after=options.nack_timeout, timeout=options.connection_timeout
            )
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
        assert self._intake is not None
        assert self.master is not None
        progress = (0, self._intake.offset + 1, self._intake.next_index)
        seqs = (*progress, 0) if again else progress
        self._send_control(self.reader, self.master, NackCommand(seqs))

    def _watch_loading(self) -> None:
        """Ask again for chunks that do not come."""
        pause = self.options.heartbeat_interval * self.options.tick_interval
        if self.now - self._progress_at >= pause:
            self._progress_at = self.now
            self._ask_for_more(again=True)

    def _install(self, intake: SnapshotIntake, interval: int) -> None:
        before, self.entries = self.entries, intake.entries
        if self.wants_changes:
            self._changes += difference(before, intake.entries)
        self._intake = None
        is_back = self.was_connected
        self.is_connected = self.was_connected = True
        self.lost_at = None
        assert self.input is not None
        self.input.handle_handshake(intake.offset + 1, interval)
        if is_back:
            # An answer may have been given before the snapshot: masters remember theirs.
            self._keep(list(self._questions.values()))
        self._must_attach = bool(self._writes)

    def _disconnect(self) -> None:
        if self.is_connected:
            self.lost_at = self._heard_at
        self.is_connected = False
        self.master = self.input = self.output = self._intake = None
        self._hastened = 0
        self._must_attach = self._is_suspect = False
        self.reader = self._make_reader()

    # --- backend of the channels ---

    def consume(self, consumer: Consumer[Action], payload: Action) -> None:
        """Carry out the master's next command."""
        kind = payload[0]
        self.processed += 1
        if kind == PUT:
            if self.wants_changes:
                self._put(payload[1], payload[2], payload[3])
            else:
                self.entries[payload[1]] = payload[2]
        elif kind in (ERASE, EXPIRE):
            self._erase(payload[1], "erase" if kind == ERASE else "expire")
        elif kind == CLEAR:
            self._clear()
        elif kind == RESULT:
            _, inserted, who, request = payload
            if who == (self.entity.endpoint.bytes, self.entity.object):
                self._questions.pop(request, None)
                self._effects.append(Answer(request, inserted))

    def consume_nil(self, consumer: Consumer[Action]) -> object | None:
        """A command is lost for good: only a snapshot helps."""
        return EndOfChannel.RETRANSMISSION_TIMEOUT

    def close(self, consumer: Consumer[Action], error: object) -> None:
        """The master is lost."""
        self._disconnect()
        self._ask()

    def send(
        self,
        channel: "Producer[EntityId, Action] | Consumer[Action]",
        *args: "EntityId | ProducerMessage[Action] | ConsumerMessage",
    ) -> None:
        """Send a message of a channel to the master."""
        message = args[-1]
        receiver = self.master or NIL
        if isinstance(message, Event):
            self._send_actions(self.entity, message.seq, [message.payload], receiver)
            return
        sender = self.reader if isinstance(channel, Consumer) else self.entity
        self._send_control(sender, receiver, control_command(message))  # type: ignore[arg-type]

    def broadcast(
        self, producer: Producer[EntityId, Action], msg: ProducerMessage[Action]
    ) -> None:
        """Send a heartbeat to the master; events go as runs."""
        self.send(producer, msg)

    def drop(
        self, producer: Producer[EntityId, Action], hdl: EntityId, reason: EndOfChannel
    ) -> None:
        """The master does not acknowledge: attach again."""
        self._must_attach = True

    def handshake_completed(self, producer: Producer[EntityId, Action], hdl: EntityId) -> None:
        """The master takes writes."""
