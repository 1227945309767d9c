"""CBOR of plain values, for the payloads that nodes send each other.

Control payloads (handshake tails, routing updates, reports) hold only None, bool, int, float,
str, bytes, lists, and maps with keys of text and bytes; every tag is refused. The caller
checks the shape.
"""

from typing import Final

import cbor2

from callboard.basp.cbor.reader import CborReader

# A control payload is a few lists in each other; more is an attack.
_MAX_DEPTH: Final = 8

#: Return the one plain value that fills a payload, or raise `MalformedPayload`.
read_plain: Final = CborReader("control payloads", max_depth=_MAX_DEPTH).read

#: Return the CBOR of a plain value of our own making.
write_plain: Final = cbor2.dumps


def is_natural(value: object, limit: int = 1 << 64) -> bool:
    """Return whether ``value`` is an integer from 0 below ``limit``, not a bool."""
    return type(value) is int and 0 <= value < limit
