"""A short cut for the commonest message: one registered record whose fields are scalars.

Our own encoder always writes a record the same way: tag, name, fields in order. Bytes that
look exactly so are read here in one pass, at half the cost of the general decoder and its
callbacks; whatever else comes (another order, another release, nested values, anything
broken) is left to it.
"""

from collections.abc import Mapping
from struct import Struct
from typing import Final

from basp import cbor_tags
from basp.registry import MessageType

__all__ = ["NOT_FLAT", "ONE_BYTE", "UNSIGNED_WIDTHS", "read_flat_record"]

#: Returned when the general decoder has to read the payload.
NOT_FLAT: Final = object()

#: Immutable scalars that take one byte, by that byte.
ONE_BYTE: Final[Mapping[int, object]] = {
    **{number: number for number in range(24)},
    **{0x20 + number: -1 - number for number in range(24)},
    **{0x40: b"", 0x60: "", 0xF4: False, 0xF5: True, 0xF6: None},
}
#: Bytes of an unsigned integer behind its first byte.
UNSIGNED_WIDTHS: Final[Mapping[int, int]] = {0x18: 1, 0x19: 2, 0x1A: 4, 0x1B: 8}

_PREFIX: Final = b"\x81\xd9" + cbor_tags.REGISTERED.to_bytes(2, "big") + b"\x82"
_NAME_AT: Final = len(_PREFIX)
_read_float = Struct(">d").unpack_from


# One loop with one branch for each scalar: calls would cost what the short cut saves.
def read_flat_record(  # noqa: C901, PLR0912
    payload: bytes, kinds: Mapping[bytes, MessageType]
) -> object:
    """Read a whole payload, or return ``NOT_FLAT``.

    Args:
        payload: ``[message]`` without options.
        kinds: positional records by the CBOR of their name.

    Raises:
        RemoteProtocolError: the constructor of the record refused its fields.
    """
    if not payload.startswith(_PREFIX):
        return NOT_FLAT
    try:
        first = payload[_NAME_AT]
        at = _NAME_AT + (first - 0x5F if first < 0x78 else 2 + payload[_NAME_AT + 1])
        kind = kinds.get(payload[_NAME_AT:at])
        if kind is None:
            return NOT_FLAT
        values: list[object] = []
        for key in kind.wire_keys:
            if not payload.startswith(key, at):
                return NOT_FLAT
            at += len(key)
            first = payload[at]
            at += 1
            if first in ONE_BYTE:
                values.append(ONE_BYTE[first])
            elif 0x60 < first < 0x79:
                if first == 0x78:
                    end = at + 1 + payload[at]
                    at += 1
                else:
                    end = at + first - 0x60
                values.append(payload[at:end].decode())
                at = end
            elif first in UNSIGNED_WIDTHS:
                end = at + UNSIGNED_WIDTHS[first]
                values.append(int.from_bytes(payload[at:end], "big"))
                at = end
            elif first == 0xFB:
                values.append(_read_float(payload, at)[0])
                at += 8
            else:
                return NOT_FLAT
    except Exception:  # noqa: BLE001  (cut short, or no UTF-8: the general decoder tells)
        return NOT_FLAT
    # A slice that runs over the end is short, and its end shows it here.
    if at != len(payload):
        return NOT_FLAT
    try:
        return kind.cls(*values)
    except Exception as cause:  # noqa: BLE001  (a constructor of the user)
        raise kind.refused(cause) from cause
