"""CBOR of plain values, for the payloads that nodes send each other.

Control payloads (handshake tails, routing updates, reports) hold only None, bool, int, float,
str, bytes, lists, and maps with keys of text and bytes; every tag is refused. Whoever reads
one checks its shape.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NoReturn

import cbor2

from basp.cbor_tags import REFUSED, SET
from basp.errors import MalformedPayload, RemoteProtocolError

__all__ = [
    "is_natural",
    "parse_one",
    "parse_whole",
    "read_plain",
    "remote_error",
    "write_plain",
]

# A control payload is a few lists in each other; more is an attack.
_DEPTH_LIMIT: Final = 8
_CAUSES_FOLLOWED: Final = 1000

# cbor2 ignores what follows the first item. We let it read one item more, a number that we
# append; when bytes trail the item, it meets those instead. The number comes from the hash
# seed of the process, so that a peer cannot append it too (it would gain nothing).
_SENTINEL: Final = hash("end of payload") & 0x3FFF_FFFF_FFFF_FFFF | 1 << 62
_SENTINEL_BYTES: Final = b"\x1b" + _SENTINEL.to_bytes(8, "big")
_DATE_AND_UUID: Final = (37, 1004)
_BIGNUMS: Final = (2, 3)


def remote_error(cause: Exception) -> RemoteProtocolError:
    """Find the typed error in what cbor2 raised, or make one.

    cbor2 wraps what a callback raises once for each tag around it.
    """
    last: BaseException = cause
    for _ in range(_CAUSES_FOLLOWED):
        if isinstance(last, RemoteProtocolError):
            return last
        if last.__cause__ is None:
            break
        last = last.__cause__
    return MalformedPayload(f"payload cannot be read: {type(last).__name__}: {last}")


def parse_whole(loads: Callable[[bytes], Any], body: bytes, count: int) -> list[Any]:
    """Parse ``count`` items that fill ``body`` exactly, and return them.

    Args:
        loads: parses one CBOR item.
        body: the items one after the other.
        count: 1 to 22.

    Raises:
        RemoteProtocolError: the bytes are no such items, or bytes follow them.
    """
    try:
        items: list[Any] = loads(b"".join((bytes((0x81 + count,)), body, _SENTINEL_BYTES)))
    except Exception as cause:  # noqa: BLE001  (constructors of users run in there)
        raise remote_error(cause) from cause
    end = items.pop()
    if type(end) is not int or end != _SENTINEL:
        msg = f"bytes follow the last item in a payload of {len(body):,} B"
        raise MalformedPayload(msg)
    return items


def parse_one(loads: Callable[[bytes], Any], body: bytes) -> Any:
    """Parse the one item that fills ``body`` exactly, and return it.

    Args:
        loads: parses one CBOR item; an array may be a list or a tuple.
        body: the item.

    Raises:
        RemoteProtocolError: the bytes are no such item, or bytes follow it.
    """
    try:
        item, end = loads(b"\x82" + body + _SENTINEL_BYTES)
    except Exception as cause:  # noqa: BLE001  (constructors of users run in there)
        raise remote_error(cause) from cause
    if type(end) is not int or end != _SENTINEL:
        msg = f"bytes follow the last item in a payload of {len(body):,} B"
        raise MalformedPayload(msg)
    return item


def _refuse(_content: object, _is_key: bool) -> NoReturn:  # noqa: FBT001
    msg = "control payloads hold no CBOR tags"
    raise MalformedPayload(msg)


_loads: Final = partial(
    cbor2.loads,
    semantic_decoders=dict.fromkeys((*REFUSED, *_DATE_AND_UUID, *_BIGNUMS, SET), _refuse),
    tag_hook=_refuse,
    max_depth=_DEPTH_LIMIT,
    strict_hashable_types=True,
)


def read_plain(payload: bytes) -> Any:
    """Return the one plain value that fills ``payload``.

    Raises:
        MalformedPayload: anything else.
    """
    return parse_whole(_loads, payload, 1)[0]


def write_plain(value: object) -> bytes:
    """Return the CBOR of a plain value of our own making."""
    return cbor2.dumps(value)


def is_natural(value: object, limit: int = 1 << 64) -> bool:
    """Tell whether ``value`` is an integer from 0 below ``limit``, and no bool."""
    return type(value) is int and 0 <= value < limit
