"""Where packets end in a run of bytes: one look at a whole read, no packet is made.

The fixed header of a packet is a byte with type and flags, then the length of the rest as a
variable byte integer (section 2.1 of both standards).
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from callboard.mqtt.wire.errors import MalformedPacket, ProtocolViolation, RemoteMqttError
from callboard.mqtt.wire.reason_code import ReasonCode
from callboard.support.dataclass import dataclass

#: Bytes of one packet, header included.
PACKET_SIZE: Final = 1 << 20
#: Packets handed on at a time: no client keeps the others waiting longer than this takes.
PACKETS_PER_READ: Final = 10_000
#: More packets than a read holds.
UNLIMITED: Final = 1 << 62
#: Bytes from which on the length of a packet takes more than one.
SHORT: Final = 0x80 + 2
#: Packets that a read must hold before a look for a run of equal lengths pays.
_SMALL_RUN: Final = 8


class Frames(NamedTuple):
    """What a read holds: `packets` whole ones up to `end`; then part of one, or nothing.

    `need` is how many bytes that part has when it is whole, 0 while that is not known, and -1
    when it breaks a rule: looking again from `end` says which.
    """

    end: int
    packets: int
    need: int


def find_frames(
    data: bytes | bytearray, limit: int, *, minimal: bool = True, most: int = UNLIMITED
) -> Frames:
    """Find the end of the last whole packet.

    What is wrong behind a good packet is told by `need`, and raised when it comes first: the
    good ones are to be handed on before the connection ends.

    Args:
        data: bytes that start at the start of a packet.
        limit: the most bytes of one packet, header included.
        minimal: whether a length may not take more bytes than it needs (MQTT 5, 1.5.5-1).
        most: packets after which to stop.

    Raises:
        MalformedPacket: a length goes on after four bytes, or takes more than it needs.
        ProtocolViolation: a packet is above the limit; its reason code is *packet too large*.
    """
    size = len(data)
    position = count = 0
    try:
        while position < size and count < most:
            length = data[position + 1]
            if length < 0x80:
                step = length + 2
                if size - position >= step * _SMALL_RUN and step <= limit:
                    run = min(_equal_run(data, position, step), most - count)
                    position += run * step
                    count += run
                    continue
            else:
                step = _long_step(data, position, minimal=minimal)
            if step > limit:
                message = f"a packet of {step} bytes is above the limit of {limit}"
                raise ProtocolViolation(message, ReasonCode.PACKET_TOO_LARGE)
            if size - position < step:
                return Frames(position, count, step)
            position += step
            count += 1
    except IndexError:
        return Frames(position, count, 0)
    except RemoteMqttError:
        if not count:
            raise
        return Frames(position, count, -1)
    return Frames(position, count, 0)


def _equal_run(data: bytes | bytearray, start: int, step: int) -> int:
    """Return how many packets of one length and one first byte follow each other, at least 1.

    Such a run is what a busy publisher sends. Two slices with a stride compare all of their
    headers at once: each header stands where the one before it says that it ends.
    """
    most = (len(data) - start) // step
    stop = start + most * step
    firsts = data[start:stop:step]
    lengths = data[start + 1 : stop : step]
    run = most - len(firsts.lstrip(firsts[:1]))
    return min(run, most - len(lengths.lstrip(lengths[:1])))


def _long_step(data: bytes | bytearray, position: int, *, minimal: bool) -> int:
    """Return the size of a packet whose length takes two bytes or more."""
    length = data[position + 1] & 0x7F
    for index, shift in ((2, 7), (3, 14), (4, 21)):
        byte = data[position + index]
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            if not byte and minimal:
                message = f"the length {length} of a packet takes more bytes than it needs"
                raise MalformedPacket(message)
            return length + index + 1
    message = "the length of a packet goes on after 4 bytes"
    raise MalformedPacket(message)


def body_start(data: bytes, start: int = 0) -> int:
    """Return where the body of the whole packet at `start` begins."""
    position = start + 1
    while data[position] >= 0x80:
        position += 1
    return position + 1


def packet_end(data: bytes, start: int = 0) -> int:
    """Return where the whole packet at `start` ends."""
    length = data[start + 1]
    return start + (length + 2 if length < 0x80 else _long_step(data, start, minimal=False))


def split_packets(chunk: bytes) -> Iterator[bytes]:
    """Return the packets of a chunk that holds whole ones only."""
    position = 0
    while position < len(chunk):
        end = packet_end(chunk, position)
        yield chunk[position:end]
        position = end


@dataclass(slots=True, eq=False, repr=False)
class Deframer:
    """Whole packets out of one connection's reads, which end anywhere.

    A read is looked at once. Where it ends with a packet, which is nearly always, its bytes are
    handed on as they came.

    Attributes:
        packet_size: the most bytes of one packet, header included.
        packets_per_read: the most packets handed on at once.
        is_full: there may be more to say: `receive(b"")` hands on more packets, or raises.
        packets: handed on in the last call.
        minimal: see `find_frames`; set once the version is known.
        rest: the part of a packet that came last; None as long as reads ended with packets.
    """

    packet_size: int = PACKET_SIZE
    packets_per_read: int = PACKETS_PER_READ
    is_full: bool = False
    packets: int = 0
    minimal: bool = False
    rest: bytearray | None = None
    _need: int = 0

    def receive(self, data: bytes) -> bytes:
        """Take what was read; returns whole packets, none or many.

        Raises:
            MalformedPacket: the bytes are no packets.
            ProtocolViolation: a packet is too large.
        """
        rest = self.rest
        if rest:
            rest += data
            if len(rest) < self._need:
                self.packets = 0
                return b""
            data = bytes(rest)
            rest.clear()
        end, self.packets, self._need = find_frames(
            data, self.packet_size, minimal=self.minimal, most=self.packets_per_read
        )
        self.is_full = self._need < 0 or self.packets == self.packets_per_read
        if end == len(data):
            return data
        if rest is None:
            rest = self.rest = bytearray()
        rest += data[end:]
        return data[:end]
