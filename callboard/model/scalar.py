"""Count and enum values, types that Python lacks, and the base class of all scalars."""

from functools import total_ordering
from typing import Any, Final

from callboard.model.errors import DataOverflow, InvalidData, UnsupportedData

COUNT_MAX: Final = 2**64 - 1


def whole_number(value: object, label: str) -> int:
    """Return `value` as a plain int.

    Raises:
        UnsupportedData: `value` is a bool or not an int; the message starts with `label`.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"{label} must be an int, not {type(value).__name__}"
        raise UnsupportedData(msg)
    return int(value)


@total_ordering
class Scalar:
    """Base class of scalars: immutable; equality and order follow a key within each class."""

    __slots__ = ("_key",)
    _key: Any

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, type(self)) else NotImplemented

    def __lt__(self, other: object) -> bool:
        return self._key < other._key if isinstance(other, type(self)) else NotImplemented

    def __hash__(self) -> int:
        return hash((type(self), self._key))

    def __repr__(self) -> str:
        return str(self)


class Count(Scalar):
    """An unsigned integer of 64 bits.

    Not equal to the integer of the same value: the data model keeps the two apart, so a set
    may hold both. Unlike Zeek's class it is hashable, so a table may have counts as keys.

    >>> Count(5), Count(5) == 5, int(Count(5))
    (Count(5), False, 5)

    Raises:
        DataOverflow: below 0 or over 2**64 - 1.
        UnsupportedData: not an integer.
    """

    __slots__ = ()
    _key: int

    def __init__(self, value: int) -> None:
        if type(value) is not int:
            value = whole_number(value, "a count")
        if not 0 <= value <= COUNT_MAX:
            msg = f"count {value} is outside 0 to 2**64 - 1"
            raise DataOverflow(msg)
        self._key = value

    @property
    def value(self) -> int:
        """The number as a Python int."""
        return self._key

    def __int__(self) -> int:
        return self._key

    __index__ = __int__

    def __str__(self) -> str:
        return str(self._key)

    def __repr__(self) -> str:
        return f"Count({self._key})"


class Octets(bytes):
    """Bytes that arrive as bytes. Plain bytes that are valid UTF-8 arrive as text."""

    __slots__ = ()


class Enum(Scalar):
    """The name of an enum value, such as `Notice::LOG`. The enum's type is not sent."""

    __slots__ = ()
    _key: str

    def __init__(self, name: str) -> None:
        try:
            name.encode()
        except UnicodeEncodeError as cause:
            msg = f"the name of an enum value cannot be encoded as UTF-8: {cause}"
            raise InvalidData(msg) from cause
        self._key = name

    @property
    def name(self) -> str:
        """The name."""
        return self._key

    def __str__(self) -> str:
        return self._key
