"""CBOR of plain values, for the payloads that nodes send each other.

Control payloads (handshake tails, routing updates, reports) hold only None, bool, int, float,
str, bytes, lists, and maps with keys of text and bytes; every tag is refused. The caller
checks the shape.
"""

from collections.abc import Generator
from typing import Any, Final

import cbor2

from callboard.basp.cbor.pieces import CONTAINER, check_weight, weigh
from callboard.basp.cbor.reader import CborReader

# A control payload is a few lists in each other; more is an attack.
_MAX_DEPTH: Final = 8

# What a payload may hold that is longer: in one turn, and in pieces.
_WEIGHED_FROM: Final = 65_536
_AT_ONCE: Final = CONTAINER * 16_384
_IN_PIECES: Final = CONTAINER * 500_000

_READER: Final = CborReader("control payloads", max_depth=_MAX_DEPTH)


def read_plain(payload: bytes) -> Any:
    """Return the one plain value that fills a payload.

    Raises:
        RemoteProtocolError: the bytes are no such value, or one that takes long to read.
    """
    if len(payload) > _WEIGHED_FROM:
        check_weight(payload, _AT_ONCE)
    return _READER.read(payload)


def read_plain_in_pieces(payload: bytes) -> Generator[None, None, Any]:
    """Return what `read_plain` would, however large, with a pause after each piece.

    Raises:
        RemoteProtocolError: the bytes are no such value.
    """
    yield from weigh(payload, _IN_PIECES)
    (value,) = yield from _READER.read_in_pieces(payload, 0, 1)
    return value


#: Return the CBOR of a plain value of our own making.
write_plain: Final = cbor2.dumps


def is_natural(value: object, limit: int = 1 << 64) -> bool:
    """Return whether ``value`` is an integer from 0 below ``limit``, not a bool."""
    return type(value) is int and 0 <= value < limit
