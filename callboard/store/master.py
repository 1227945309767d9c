"""The master of a store: the one copy that counts, as a machine without sockets or a clock.

As the developer guide draws it (section 7.5), a master has a producer, `output`, whose
consumers are its clones, and a consumer for each clone that writes, in `inputs`.

- A clone asks to be let in with a nack of event 0 under a fresh name. It is added to `output`,
  and the handshake brings it the state in chunks, see `snapshot`.
- A writer announces itself with `attach_writer`; its commands are consumed in its order, each
  once: the master remembers how far each writer is, in the backend too, so that a master which
  comes back from its backend carries out nothing twice.
- Effects come in this order: persist, then acknowledgements, commands for clones and answers.
  Who carries them out waits at `Persist` until it is durable. That is all of "acknowledged
  means durable".

Whoever is unknown here and acts as if it were not is told so: a writer with a nack of event 0,
a clone with a `retransmit_failed` of event 0. Both then begin anew. A clone that
leaves sends an empty nack.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

from callboard.channel import (
    Consumer,
    ConsumerMessage,
    CumulativeAck,
    EndOfChannel,
    Event,
    Handshake,
    Nack,
    Producer,
    ProducerMessage,
)
from callboard.store.action import Action, Who
from callboard.store.authority import Authority
from callboard.store.command import (
    AttachWriter,
    InternalCommand,
    Keepalive,
    NackCommand,
    RetransmitFailedCommand,
)
from callboard.store.command_cbor import CommandRun
from callboard.store.command_channel import channel_message, control_command
from callboard.store.effect import Effect, Refused, Row, Transmit, WriterRow
from callboard.store.entity_id import NIL, EntityId
from callboard.store.options import ACK_AFTER, StoreOptions
from callboard.store.snapshot import Snapshot
from callboard.store.stored import Token

__all__ = ["Master"]


class Master(Authority):
    """The master of one store."""

    _to_master = False

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
        super().__init__(entity, rows or {}, writers or {}, is_durable=is_durable)
        options = options or StoreOptions()
        self.options = options
        self.inputs: dict[EntityId, Consumer[Action]] = {}
        self._names: dict[Consumer[Action], EntityId] = {}
        self.output: Producer[EntityId, Action] = Producer(
            self,
            heartbeat_interval=options.heartbeat_interval,
            timeout=options.connection_timeout,
            buffer_limit=options.buffer_limit,
        )
        self._snapshots: dict[EntityId, Snapshot] = {}
        self._ticks = 0
        #: The last command for which acknowledgements were asked.
        self._hastened = 0
        #: Another master of the same name that was heard; None as it should be.
        self.rival: EntityId | None = None

    # --- events in ---

    def local(self, actions: Sequence[Action], now: float) -> list[Effect]:
        """Carry out what frontends here want."""
        self.now = now
        self._apply(actions)
        return self._finish()

    def receive(self, run: CommandRun, now: float) -> list[Effect]:
        """Take what a clone sent."""
        if run.sender == self.entity or (run.receiver and run.receiver != self.entity):
            return []
        self.now = now
        if run.control is None:
            self._take_actions(run)
        else:
            self._take_control(run)
        return self._finish()

    def tick(self, now: float) -> list[Effect]:
        """Let one tick pass."""
        self.now = now
        self._ticks += 1
        self.output.tick()
        for consumer in list(self.inputs.values()):
            consumer.tick()
        if self._ticks % self.options.heartbeat_interval == 1:
            self._tell_strangers()
        return self._finish()

    def hail(self, now: float) -> list[Effect]:
        """Tell clones at once that there is a master; somebody came into reach."""
        self.now = now
        self._tell_strangers()
        return self._finish()

    def leave(self, now: float) -> list[Effect]:
        """Tell clones that this master ends."""
        self.now = now
        self._send_control(self.entity, NIL, RetransmitFailedCommand(0))
        return self._finish()

    def hasten(self, now: float) -> list[Effect]:
        """Ask the clones to acknowledge what they have: somebody waits for it."""
        self.now = now
        seq = self.output.seq
        if self._hastened != seq and not self.output.is_idle:
            self._hastened = seq
            self._send_control(self.entity, NIL, Keepalive(seq))
        return self._finish()

    def _tell_strangers(self) -> None:
        """Let clones to come, and rivals, hear that there is a master."""
        beat = Keepalive(self.output.seq)
        if not self.output.consumers:
            self._send_control(self.entity, NIL, beat)
        self._effects.append(Transmit(CommandRun(self.entity, control=beat), to_master=True))

    def expire(self, now: float) -> list[Effect]:
        """Remove the keys whose time is over."""
        self.now = now
        self._remove_expired()
        return self._finish()

    @property
    def author(self) -> EntityId:
        """Who changes the entries."""
        return self.entity

    @property
    def is_idle(self) -> bool:
        """Whether all clones have acknowledged the last command, and no writer's one waits."""
        return self.output.is_idle and all(
            consumer.buffered == 0 for consumer in self.inputs.values()
        )

    def _finish(self) -> list[Effect]:
        """Return the effects of a step, what is to be made durable first."""
        if self._out:
            actions, self._out = self._out, []
            if self.output.consumers:
                first = self.output.produce_run(actions)
                self._send_actions(self.entity, first, actions)
            else:
                self.output.produce_run(actions)
        for consumer in self.inputs.values():
            consumer.acknowledge(ACK_AFTER)
        if self._failures:
            failures, self._failures = self._failures, []
            self._effects.append(Refused(len(failures), failures[0]))
        effects = self._take_effects()
        persist = self._take_persist()
        if persist is not None:
            effects.insert(0, persist)
        return effects

    # --- writers ---

    def _is_attached(self, who: Who) -> bool:
        return EntityId(UUID(bytes=who[0]), who[1]) in self.inputs

    def _take_actions(self, run: CommandRun) -> None:
        consumer = self.inputs.get(run.sender)
        if consumer is None:
            self._send_control(self.entity, run.sender, NackCommand((0,)))
            return
        consumer.handle_run(run.first, run.actions)

    def _attach(self, writer: EntityId, attach: AttachWriter) -> None:
        """Let a writer begin, behind what it wrote before as far as that is known here."""
        known = self.inputs.get(writer)
        if known is None or known.is_closed:
            options = self.options
            known = Consumer(
                self, nack_after=options.nack_timeout, timeout=options.connection_timeout
            )
            self.inputs[writer] = known
            self._names[known] = writer
        seq = self._writer((writer.endpoint.bytes, writer.object)).seq
        known.handle_handshake(max(attach.offset, seq) + 1, attach.heartbeat_interval)

    def _take_control(self, run: CommandRun) -> None:
        sender, control = run.sender, run.control
        if isinstance(control, AttachWriter):
            self._attach(sender, control)
            return
        if isinstance(control, NackCommand) and control.seqs[:1] == (0,):
            self._let_in(sender, control.seqs)
            return
        if control == NackCommand(()):
            self.output.remove(sender)
            self._snapshots.pop(sender, None)
            return
        message = channel_message(InternalCommand(0, sender, control, run.receiver))  # type: ignore[arg-type]
        if isinstance(message, CumulativeAck | Nack):
            if not self.output.handle(sender, message) and sender not in self.output.consumers:
                self._send_control(self.entity, sender, RetransmitFailedCommand(0))
            return
        consumer = self.inputs.get(sender)
        if consumer is not None:
            consumer.handle(message)  # type: ignore[arg-type]
            consumer.acknowledge()  # heartbeats ask for it
        elif isinstance(control, Keepalive) and not run.receiver:
            self.rival = sender
        else:
            self._send_control(self.entity, sender, NackCommand((0,)))

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
            self._send_chunks(clone, snapshot, 0, again=True)
        elif seqs[1] == snapshot.offset + 1:
            self._send_chunks(clone, snapshot, seqs[2], again=len(seqs) > 3)

    def _send_chunks(
        self, clone: EntityId, snapshot: Snapshot, first: int, *, again: bool
    ) -> None:
        for chunk in snapshot.chunks(first, again=again):
            self._send_control(self.entity, clone, chunk)

    # --- backend of the channels ---

    def consume(self, consumer: Consumer[Action], payload: Action) -> None:
        """Carry out a writer's next command."""
        writer = self._names[consumer]
        who = (writer.endpoint.bytes, writer.object)
        self._writer(who).seq = consumer.next_seq - 1
        self._touched.add(who)
        self._apply((payload,))

    def consume_nil(self, consumer: Consumer[Action]) -> object | None:
        """A writer gave a command up, and counted it: go on behind it."""
        return None

    def close(self, consumer: Consumer[Action], error: object) -> None:
        """Nothing was heard of a writer: it may attach again."""
        writer = self._names.pop(consumer)
        if self.inputs.get(writer) is consumer:
            del self.inputs[writer]

    def send(
        self,
        channel: "Producer[EntityId, Action] | Consumer[Action]",
        *args: "EntityId | ProducerMessage[Action] | ConsumerMessage",
    ) -> None:
        """Send a message of a channel to a clone, or to a writer."""
        if isinstance(channel, Consumer):
            self._send_message(self._names[channel], args[0])
            return
        clone, message = args
        assert isinstance(clone, EntityId)
        if isinstance(message, Handshake):
            self._send_handshake(clone, message)
        elif isinstance(message, Event):
            self._send_actions(self.entity, message.seq, [message.payload], clone)
        else:
            self._send_message(clone, message)

    def _send_message(self, receiver: EntityId, message: object) -> None:
        self._send_control(self.entity, receiver, control_command(message))  # type: ignore[arg-type]

    def _send_handshake(self, clone: EntityId, handshake: Handshake) -> None:
        snapshot = self._snapshots.get(clone)
        if snapshot is None:
            snapshot = Snapshot(self.entries, handshake.first - 1, handshake.heartbeat_interval)
            self._snapshots[clone] = snapshot
            self._send_chunks(clone, snapshot, 0, again=True)

    def broadcast(
        self, producer: Producer[EntityId, Action], msg: ProducerMessage[Action]
    ) -> None:
        """Send a heartbeat to all clones; events go as runs, see `_finish`."""
        self._send_message(NIL, msg)

    def drop(
        self, producer: Producer[EntityId, Action], hdl: EntityId, reason: EndOfChannel
    ) -> None:
        """Nothing was heard of a clone: when it comes back it begins anew."""
        self._snapshots.pop(hdl, None)

    def handshake_completed(self, producer: Producer[EntityId, Action], hdl: EntityId) -> None:
        """A clone has the whole snapshot."""
        self._snapshots.pop(hdl, None)
