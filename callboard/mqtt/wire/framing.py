"""Packet boundaries in a run of bytes: a whole read is scanned once, without making packets.

The fixed header of a packet is a byte with type and flags, then the length of the rest as a
variable byte integer (section 2.1 of both standards).
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from callboard.mqtt.wire.errors import MalformedPacket, ProtocolViolation, RemoteMqttError
from callboard.mqtt.wire.reason_code import ReasonCode
from callboard.support.dataclass import dataclass

#: Bytes of one packet, including the header.
PACKET_SIZE: Final = 1 << 20
#: Packets passed on at once; bounds the time for which one client delays the others.
PACKETS_PER_READ: Final = 10_000
#: A number of packets that no read can hold.
UNLIMITED: Final = 1 << 62
#: The size of a packet from which its length field has more than one byte.
SHORT: Final = 0x80 + 2
#: Packets of equal length that must fit into the rest before a search for a run is worthwhile.
_SMALL_RUN: Final = 8


class Frames(NamedTuple):
    """The content of a read: `packets` whole packets up to `end`, then perhaps part of one.

    `need` is the size of that packet; 0 if it is not known yet; -1 if the packet is invalid,
    which a second call from `end` reports.
    """

    end: int
    packets: int
    need: int


def find_frames(
    data: bytes | bytearray, limit: int, *, minimal: bool = True, most: int = UNLIMITED
) -> Frames:
    """Find the end of the last whole packet.

    An invalid packet is reported by `need` if valid ones precede it, so that they are passed on
    before the connection ends. It raises an error if it is the first.

    Args:
        data: bytes that begin with a packet.
        limit: the most bytes of one packet, including the header.
        minimal: whether a length must have the shortest encoding (MQTT 5, 1.5.5-1).
        most: packets after which to stop.

    Raises:
        MalformedPacket: a length has more than four bytes, or is not the shortest.
        ProtocolViolation: a packet is above the limit; the reason code is *packet too large*.
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
                message = f"a packet of {step} bytes exceeds the limit of {limit}"
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
    """Return the length of a run of packets with equal size and first byte, at least 1.

    A busy publisher sends such runs. Two slices with a stride compare all headers at once: in a
    run every header is exactly where the size of the one before it says.
    """
    most = (len(data) - start) // step
    stop = start + most * step
    firsts = data[start:stop:step]
    lengths = data[start + 1 : stop : step]
    run = most - len(firsts.lstrip(firsts[:1]))
    return min(run, most - len(lengths.lstrip(lengths[:1])))


def _long_step(data: bytes | bytearray, position: int, *, minimal: bool) -> int:
    """Return the size of a packet whose length field has two bytes or more."""
    length = data[position + 1] & 0x7F
    for index, shift in ((2, 7), (3, 14), (4, 21)):
        byte = data[position + index]
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            if not byte and minimal:
                message = f"the length {length} of a packet has more bytes than needed"
                raise MalformedPacket(message)
            return length + index + 1
    message = "the length of a packet has more than 4 bytes"
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
    """Return the packets of a chunk of whole packets."""
    position = 0
    while position < len(chunk):
        end = packet_end(chunk, position)
        yield chunk[position:end]
        position = end


#: Protocol names of a CONNECT, as they are on the wire.
_PROTOCOLS: Final = (b"\0\4MQTT", b"\0\6MQIsdp")


def is_connect(data: bytes | bytearray) -> bool:
    """Return whether the first bytes of a connection may be the start of a CONNECT."""
    if data[:1] not in (b"", b"\x10"):
        return False
    length = data[1:5]
    size = next((i for i, byte in enumerate(length) if byte < 0x80), len(length))
    name = data[2 + size : 10 + size]
    return any(name.startswith(full) or full.startswith(name) for full in _PROTOCOLS)


@dataclass(slots=True, eq=False, repr=False)
class Deframer:
    """Splits the reads of one connection, which may end anywhere, into whole packets.

    A read is scanned once. If it ends with a packet, as nearly always, its bytes are passed on
    without a copy.

    Attributes:
        packet_size: the most bytes of one packet, including the header.
        packets_per_read: the most packets passed on at once.
        is_full: whether `receive(b"")` may return more packets, or raise an error.
        packets: passed on in the last call.
        minimal: see `find_frames`; set when the version is known.
        rest: the incomplete packet; None until a read ends within one.
    """

    packet_size: int = PACKET_SIZE
    packets_per_read: int = PACKETS_PER_READ
    is_full: bool = False
    packets: int = 0
    minimal: bool = False
    rest: bytearray | None = None
    _need: int = 0

    def receive(self, data: bytes) -> bytes:
        """Add the bytes of a read; return whole packets, none or many.

        Raises:
            MalformedPacket: the bytes are not packets.
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
