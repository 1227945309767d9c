"""Where packets end in a run of bytes: one look at a whole read, no packet is made.

The fixed header of a packet is a byte with type and flags, then the length of the rest as a
variable byte integer (section 2.1 of both standards).
"""

from typing import Final, NamedTuple

from callboard.mqtt.errors import MalformedPacket, ProtocolViolation, RemoteMqttError
from callboard.mqtt.reason_code import ReasonCode

UNLIMITED: Final = 1 << 62
"""More packets than a read holds."""
_SMALL_RUN: Final = 8
"""Packets that a read must hold before a look for a run of equal lengths pays."""


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
                msg = f"a packet of {step} bytes is above the limit of {limit}"
                raise ProtocolViolation(msg, ReasonCode.PACKET_TOO_LARGE)
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
                msg = f"the length {length} of a packet takes more bytes than it needs"
                raise MalformedPacket(msg)
            return length + index + 1
    msg = "the length of a packet goes on after 4 bytes"
    raise MalformedPacket(msg)


def body_start(data: bytes, start: int = 0) -> int:
    """Return where the body of the whole packet at `start` begins."""
    position = start + 1
    while data[position] >= 0x80:
        position += 1
    return position + 1


def packet_end(data: bytes, start: int = 0) -> int:
    """Return where the whole packet at `start` ends."""
    length = shift = 0
    position = start + 1
    while True:
        byte = data[position]
        length |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return position + length
        shift += 7
