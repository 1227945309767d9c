"""One connection's bytes: whole packets out of reads that end anywhere.

Pure. A read is looked at once; where it ends with a packet, which is nearly always, its bytes
are handed on as they came.
"""

from typing import Final

from callboard.mqtt.framing import find_frames

PACKETS_PER_READ: Final = 10_000
"""Packets handed on at a time: no client keeps the others waiting longer than this takes."""
PACKET_SIZE: Final = 1 << 20
"""Bytes of one packet, header included."""

_SHORT: Final = 0x80 + 2
"""Bytes from which on the length of a packet takes more than one."""


class Network:
    """Deframes what comes in, within limits.

    Attributes:
        packet_size: the most bytes of one packet.
        packets_per_read: the most packets handed on at once.
        is_full: there may be more to say: `receive(b"")` hands on more packets, or raises.
        packets: handed on in the last call.
        minimal: see `find_frames`; set once the version is known.
    """

    __slots__ = (
        "_need",
        "_rest",
        "is_full",
        "minimal",
        "packet_size",
        "packets",
        "packets_per_read",
    )

    def __init__(
        self, packet_size: int = PACKET_SIZE, packets_per_read: int = PACKETS_PER_READ
    ) -> None:
        self.packet_size = packet_size
        self.packets_per_read = packets_per_read
        self.is_full = False
        self.packets = 0
        self.minimal = False
        #: The part of a packet that came last; None as long as reads ended with packets.
        self._rest: bytearray | None = None
        self._need = 0

    @property
    def pending(self) -> int:
        """Bytes that wait for the rest of their packet."""
        return len(self._rest or b"")

    def receive(self, data: bytes) -> bytes:
        """Take what was read; returns whole packets, none or many.

        Raises:
            MalformedPacket: the bytes are no packets.
            ProtocolViolation: a packet is too large.
        """
        rest = self._rest
        if not rest:
            # A client that says one short thing and waits, which is the most usual of all.
            if 1 < len(data) < _SHORT and len(data) == data[1] + 2 <= self.packet_size:
                self.packets = 1
                self.is_full = self.packets_per_read == 1
                return data
        else:
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
            rest = self._rest = bytearray()
        rest += data[end:]
        return data[:end]
