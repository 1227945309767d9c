"""Variable-length integers of CAF and of Broker: seven bits per byte, low bits first.

The highest bit of a byte is set if another byte follows.
"""

from typing import Final

from callboard.model.errors import InvalidData

_LOW: Final = 0x7F
_MORE: Final = 0x80
#: A number of 64 bits needs at most ten bytes of seven bits.
_BYTES_MAX: Final = 10


def write_varbyte(number: int, out: bytearray) -> None:
    """Append a number of at most 64 bits."""
    assert 0 <= number < 1 << 64
    while number > _LOW:
        out.append(number & _LOW | _MORE)
        number >>= 7
    out.append(number)


def read_varbyte(buffer: bytes, offset: int) -> tuple[int, int]:
    """Return the number at an offset, and the offset after it.

    Raises:
        InvalidData: the number has more than 64 bits.
        IndexError: the buffer ends within the number.
    """
    number = 0
    for count in range(_BYTES_MAX):
        byte = buffer[offset + count]
        number |= (byte & _LOW) << 7 * count
        if byte <= _LOW:
            if number >> 64:
                break
            return number, offset + count + 1
    msg = f"the length at byte {offset:,} has more than 64 bits"
    raise InvalidData(msg)
