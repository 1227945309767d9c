"""Foreign wires: effects of the machines of other protocols, and detection of protocols.

A machine of a foreign wire is pure, like a `Link`: bytes and the time go in, effects come out,
to be executed in order. The effects are `Transmit` and `Closed`, as of links, and the two in
this file. The adapter gets all other information about the peer as an `Arrived`.
"""

from dataclasses import dataclass
from typing import Any, Final

from callboard.basp.header import HEADER

#: Smallest protocol version of our own handshakes: "CB", then a number.
_OUR_VERSIONS: Final = 0x43420001

#: Name of the protocol between nodes of callboard.
OURS: Final = "BASP"

#: First bytes of streams of other protocols; longer ones come first.
_STARTS: Final = {
    b"\x00\x00\x00\x05\x07ZEEK": "Zeek Broker 2.x",
    b"\xff\x00\x00\x00": "ZeroMQ",
    b"GET ": "HTTP or WebSocket",
    b"POST": "HTTP",
    b"HEAD": "HTTP",
    b"HTTP": "HTTP",
    b"SSH-": "SSH",
    b"\x16\x03": "TLS",
    b"\x15\x03": "TLS",
    b"\x10": "MQTT",
}

#: Bytes that suffice to detect a protocol.
FIRST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Admitted:
    """Effect: the peer has completed its handshake and proven its identity if required.

    Attributes:
        name: name that the peer gives itself, or a substitute if its wire lacks names.
        endpoint: id of its endpoint, 16 bytes; None if its wire lacks ids.
    """

    name: str
    endpoint: bytes | None = None


@dataclass(frozen=True, slots=True)
class Arrived:
    """Effect: pass messages from the peer to the adapter, in this order."""

    messages: list[Any]


def wire_of(data: bytes) -> str:
    """Return the protocol of a peer by its first bytes, for people; "" if it is unknown.

    >>> wire_of(b"GET /v1/messages/json HTTP/1.1")
    'HTTP or WebSocket'
    """
    for start, name in _STARTS.items():
        if data.startswith(start):
            return name
    if len(data) < FIRST_BYTES or data[0]:
        return ""
    version = int.from_bytes(data[8:16])
    if version >= _OUR_VERSIONS and version >> 32 == 0:
        return OURS
    return "CAF or Zeek Broker 1.4" if version == 3 else ""  # CAF's own


assert HEADER.size >= FIRST_BYTES
