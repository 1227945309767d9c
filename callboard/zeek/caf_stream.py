"""Streams of CAF 0.17: one actor sends batches to another one, with credit.

    source                                        sink
      open_stream(slot, content) ──────────────────>
      <──────── ack_open(slots, credit, batch size)
      batch(slots, count, messages, id) ───────────>      while there is credit
      <──── ack_batch(slots, new credit, size, id)
      close(slots) ────────────────────────────────>  or  <──────────────── drop(slots)

A slot is the number of a stream at one of its actors; each message on a stream has the slots of
its sender and of its receiver. Each peer of a Broker is the source of one stream to the other.
The batches hold node messages (`callboard.zeek.node_message`).
"""

import struct
from enum import StrEnum
from typing import Final, NamedTuple

from callboard.caf.wire.frame import CafOperation, caf_frame
from callboard.caf.wire.reader import (
    CafActor,
    CafReader,
    atom,
    message_bytes,
    texts_bytes,
    varbyte,
)
from callboard.protocol_errors import MalformedPayload


class MessageTypes(StrEnum):
    """Type lists that identify the messages between cores and of spawn servers."""

    PEER = "@atom+broker::filter_type+@actor"
    UPDATE = "@atom+broker::filter_type"
    ASK_MASTER = "@atom+@atom+@atom+@str"
    ASK_INFO = "@atom+@atom+@str"
    INFO = "@atom+@str+@strong_actor_ptr+@str"
    OPEN = "@open_stream_msg"
    UPSTREAM = "@upstream_msg"
    DOWNSTREAM = "@downstream_msg"
    DIRECTED = "@atom+@atom+broker::data_message"


#: Kinds of messages, in the data field of their frames: ordinary, upstream and downstream.
NORMAL: Final = 1 << 60
_UPSTREAM: Final = 2 << 60
_DOWNSTREAM: Final = 3 << 60

_STREAM: Final = "caf::stream<broker::node_message>"
#: Content of the first stream, by the acceptor with its filter, and of the second, in reply.
_FIRST: Final = f"{_STREAM}+broker::filter_type+@actor"
_SECOND: Final = f"{_STREAM}+@atom+@actor"
_BATCH: Final = message_bytes("std::vector<broker::node_message>")
_OK: Final = atom("ok").to_bytes(8)
_PRIORITY: Final = (2).to_bytes(4)

#: Tags of upstream messages, and of downstream messages.
_ACK_OPEN, _ACK_BATCH, _DROP, _FORCED_DROP = range(4)
_TO_SINK_BATCH, _CLOSE, _FORCED_CLOSE = range(3)

_SLOTS: Final = struct.Struct(">HH")
_ACK: Final = struct.Struct(">BiiQ")


class OpenStream(NamedTuple):
    """The peer opens a stream.

    Attributes:
        slot: the slot of the source.
        topics: the source's filter, in the acceptor's stream; None in the dialer's.
    """

    slot: int
    topics: tuple[str, ...] | None


class AckOpen(NamedTuple):
    """The peer accepts our stream, with its slot and a first credit in messages."""

    slot: int
    credit: int


class AckBatch(NamedTuple):
    """The peer has received the batches up to this one, and gives more credit."""

    credit: int
    batch: int


class StreamBatch(NamedTuple):
    """A batch: number of messages, and their offset in the payload."""

    messages: int
    at: int


class StreamEnd(NamedTuple):
    """The peer ends a stream.

    Attributes:
        how: `close`, `drop`, or one of these by force.
    """

    how: str


class StreamPair:
    """The two streams between a pair of actors.

    Attributes:
        source: our slot as the source.
        sink: our slot as the sink.
        their_sink: the peer's slot for our messages.
        their_source: the peer's slot for its messages.
    """

    source: Final = 1
    sink: Final = 2

    def __init__(self, own: CafActor, peer: CafActor) -> None:
        self.own, self.peer = own, peer
        self.their_sink = self.their_source = 0
        self._address = own.to_bytes()

    def tell(self, content: bytes, kind: int = NORMAL) -> bytes:
        """Return the frame of a message to the peer's actor."""
        source, target = self.own.number, self.peer.number
        payload = b"\0" + content
        return caf_frame(CafOperation.DIRECT, payload, data=kind, source=source, target=target)

    def open(self, topics: tuple[str, ...] | None) -> bytes:
        """Open our stream, with our filter or (None) in reply to the peer's stream."""
        first = _OK if topics is None else texts_bytes(topics)
        inner = message_bytes(_SECOND if topics is None else _FIRST, first, self._address)
        ends = self._address, self.peer.to_bytes()
        slot = self.source.to_bytes(2)
        return self.tell(message_bytes(MessageTypes.OPEN, slot, inner, *ends, _PRIORITY))

    def ack_open(self, credit: int, size: int) -> bytes:
        """Accept the peer's stream, with a credit and the preferred batch size."""
        tag = bytes((_ACK_OPEN,))
        limits = credit.to_bytes(4) + size.to_bytes(4)
        return self._up(tag + self._address + self._address + limits)

    def ack_batch(self, credit: int, size: int, batch: int) -> bytes:
        """Acknowledge batches up to this id; give credit and the preferred batch size."""
        return self._up(_ACK.pack(_ACK_BATCH, credit, size, batch))

    def drop(self) -> bytes:
        """End the peer's stream."""
        return self._up(bytes((_DROP,)))

    def close(self) -> bytes:
        """End our stream."""
        return self._down(bytes((_CLOSE,)))

    def batch(self, messages: list[bytes], number: int) -> bytes:
        """Return the frame of a batch of node messages."""
        count = len(messages)
        head = bytes((_TO_SINK_BATCH,)) + count.to_bytes(4) + _BATCH + varbyte(count)
        return self._down(b"".join((head, *messages, number.to_bytes(8))))

    def _up(self, content: bytes) -> bytes:
        slots = _SLOTS.pack(self.sink, self.their_source)
        return self.tell(
            message_bytes(MessageTypes.UPSTREAM, slots, self._address, content), _UPSTREAM
        )

    def _down(self, content: bytes) -> bytes:
        slots = _SLOTS.pack(self.source, self.their_sink)
        return self.tell(
            message_bytes(MessageTypes.DOWNSTREAM, slots, self._address, content), _DOWNSTREAM
        )

    def read_up(self, reader: CafReader) -> AckOpen | AckBatch | StreamEnd:
        """Read a message from the sink of our stream.

        Raises:
            MalformedPayload: the data is not a valid message of that stream.
        """
        slot = self._read_slots(reader, self.source)
        tag = reader.number(1)
        if tag == _ACK_OPEN:
            for _ in range(2):
                reader.actor()
            credit = self._credit(reader)
            self._credit(reader)
            reader.finish()
            return AckOpen(slot, credit)
        if slot != self.their_sink:
            msg = f"the peer replied on stream {slot} instead of {self.their_sink}"
            raise MalformedPayload(msg)
        if tag == _ACK_BATCH:
            credit = self._credit(reader)
            self._credit(reader)
            batch = reader.number(8)
            reader.finish()
            return AckBatch(credit, batch)
        if tag in (_DROP, _FORCED_DROP):
            return StreamEnd("drop" if tag == _DROP else "forced drop")
        msg = f"a reply in a stream of CAF has the unknown tag {tag}"
        raise MalformedPayload(msg)

    def read_down(self, reader: CafReader) -> StreamBatch | StreamEnd:
        """Read a message from the source of the peer's stream, up to a batch's messages.

        Raises:
            MalformedPayload: the data is not a valid message of that stream.
        """
        slot = self._read_slots(reader, self.sink)
        if slot != self.their_source:
            msg = (
                f"the peer sent the peer sent a message on stream {slot} instead of "
                f"{self.their_source}"
            )
            raise MalformedPayload(msg)
        tag = reader.number(1)
        if tag in (_CLOSE, _FORCED_CLOSE):
            return StreamEnd("close" if tag == _CLOSE else "forced close")
        if tag != _TO_SINK_BATCH:
            msg = f"{tag} is not a kind of message on a stream"
            raise MalformedPayload(msg)
        announced = reader.number(4)
        if reader.take(len(_BATCH)) != _BATCH:
            msg = "a batch does not hold node messages"
            raise MalformedPayload(msg)
        count = reader.count()
        if count != announced:
            msg = f"a batch of {announced:,} messages holds {count:,}"
            raise MalformedPayload(msg)
        return StreamBatch(count, reader.at)

    def _read_slots(self, reader: CafReader, own: int) -> int:
        """Read the slots and the sender; return the sender's slot."""
        sender_slot, receiver_slot = _SLOTS.unpack(reader.take(_SLOTS.size))
        if receiver_slot != own:
            msg = (
                f"the peer sent the peer sent a message for stream {receiver_slot} instead of "
                f"{own}"
            )
            raise MalformedPayload(msg)
        reader.actor()
        slot: int = sender_slot
        return slot

    @staticmethod
    def _credit(reader: CafReader) -> int:
        """Read a number of messages."""
        number = reader.number(4, signed=True)
        if number < 0:
            msg = f"a credit of {number:,} messages is negative"
            raise MalformedPayload(msg)
        return number


def read_open(reader: CafReader) -> OpenStream:
    """Read a message that opens a stream.

    Raises:
        MalformedPayload: the message does not have Broker's form.
    """
    slot, types = reader.number(2), reader.types()
    if types == _FIRST:
        topics: tuple[str, ...] | None = reader.texts()
    elif types == _SECOND and reader.take(len(_OK)) == _OK:
        topics = None
    else:
        msg = f"a stream is opened with {types[:80]!r}"
        raise MalformedPayload(msg)
    for _ in range(3):  # the peer; the previous stage, which is the peer, too; the next stage
        reader.actor()
    reader.number(4)
    reader.finish()
    if not slot:
        msg = "the peer opened a stream with the slot 0"
        raise MalformedPayload(msg)
    return OpenStream(slot, topics)
