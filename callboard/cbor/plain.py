"""CBOR of plain values, for the payloads that nodes send each other.

Control payloads (handshake tails, routing updates, reports) hold only None, bool, int, float,
str, bytes, lists, and maps with keys of text and bytes; every tag is refused. The caller
checks the shape.
"""

from collections.abc import Generator
from typing import Any, Final

import cbor2

from callboard.cbor.pieces import CONTAINER, check_weight, weigh
from callboard.cbor.reader import CborReader

# Control payloads are a few nested lists; a deeper one is an attack.
_MAX_DEPTH: Final = 8

# Larger payloads are weighed before they are read.
_WEIGHED_FROM: Final = 65_536
# Limits of this weight, for reading in one call and in pieces.
_ONE_CALL_WEIGHT: Final = CONTAINER * 16_384
_PIECES_WEIGHT: Final = CONTAINER * 500_000

_READER: Final = CborReader("control payloads", max_depth=_MAX_DEPTH)


def read_plain(payload: bytes) -> Any:
    """Return the one plain value that fills a payload.

    Raises:
        RemoteProtocolError: the bytes are not exactly one plain value, or it takes too long to
            read.
    """
    if len(payload) > _WEIGHED_FROM:
        check_weight(payload, _ONE_CALL_WEIGHT)
    return _READER.read(payload)


def read_plain_in_pieces(payload: bytes) -> Generator[None, None, Any]:
    """Return the one plain value that fills a payload of any size; yield after each piece.

    Raises:
        RemoteProtocolError: the bytes are not exactly one plain value.
    """
    yield from weigh(payload, _PIECES_WEIGHT)
    (value,) = yield from _READER.read_in_pieces(payload, 0, 1)
    return value


#: Return the CBOR of a plain value. It must not come from a user: nothing is checked.
write_plain: Final = cbor2.dumps


def is_natural(value: object, limit: int = 1 << 64) -> bool:
    """Return whether ``value`` is an integer from 0 below ``limit``, not a bool."""
    return type(value) is int and 0 <= value < limit
