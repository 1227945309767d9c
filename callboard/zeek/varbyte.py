"""Lengths and counts on Broker's wires: seven bits in each byte, the low ones first.

The highest bit of a byte says that another one follows.
"""

from typing import Final

from callboard.model.errors import InvalidData

_LOW: Final = 0x7F
_MORE: Final = 0x80
#: Ten times seven bits hold any number of 64 bits.
_BYTES_MAX: Final = 10


def write_varbyte(number: int, out: bytearray) -> None:
    """Append a number of at most 64 bits."""
    assert 0 <= number < 1 << 64
    while number > _LOW:
        out.append(number & _LOW | _MORE)
        number >>= 7
    out.append(number)


def read_varbyte(buffer: bytes, at: int) -> tuple[int, int]:
    """Return the number at a place, and the place behind it.

    Raises:
        InvalidData: more than 64 bits.
        IndexError: the bytes end before the number does.
    """
    number = 0
    for count in range(_BYTES_MAX):
        byte = buffer[at + count]
        number |= (byte & _LOW) << 7 * count
        if byte <= _LOW:
            if number >> 64:
                break
            return number, at + count + 1
    msg = f"the length at byte {at:,} has more than 64 bits"
    raise InvalidData(msg)
