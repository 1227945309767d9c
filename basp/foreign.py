"""Foreign wires: what machines of other protocols ask of their driver, and who speaks what.

A machine of a foreign wire is as pure as a `Link`: bytes and the time go in, effects come out,
in the order in which they are to be carried out: `Transmit` and `Closed`, as of links, and the
two of this file. Whatever else a machine knows of its peer reaches the door as an arrival.
"""

from dataclasses import dataclass
from typing import Any, Final

from callboard.basp.header import HEADER

#: Protocol versions of our own handshakes are at least this: "CB", then a number.
_OUR_VERSIONS: Final = 0x43420001

#: What nodes of callboard speak with each other.
OURS: Final = "BASP"

#: What streams of other protocols begin with. Longer starts come first.
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

#: Bytes that tell one wire from another.
FIRST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Admitted:
    """The peer is one: its handshake is over, and it has proven what it has to.

    Attributes:
        name: what the peer calls itself, or is called where its wire has no names.
        endpoint: the id of its endpoint, 16 bytes, where its wire has such; or None.
    """

    name: str
    endpoint: bytes | None = None


@dataclass(frozen=True, slots=True)
class Arrived:
    """Hand what the peer sent to the door, in this order."""

    messages: list[Any]


def wire_of(data: bytes) -> str:
    """Return what a peer speaks by its first bytes, for people; "" where they do not tell.

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
