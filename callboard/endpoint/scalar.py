"""Count and enum values: the two scalars that Python has no type for."""

from functools import total_ordering
from typing import Final

from callboard.endpoint.errors import DataOverflow, InvalidData
from callboard.endpoint.number import whole_number

__all__ = ["COUNT_MAX", "Count", "Enum"]

COUNT_MAX: Final = 2**64 - 1


@total_ordering
class Count:
    """An unsigned integer of 64 bits.

    Not equal to the integer of the same value: the data model keeps the two apart, so a set
    may hold both. Unlike Zeek's class it is hashable, so a table may have counts as keys.

    >>> Count(5), Count(5) == 5, int(Count(5))
    (Count(5), False, 5)

    Raises:
        DataOverflow: below 0 or over 2**64 - 1.
        UnsupportedData: no integer.
    """

    __slots__ = ("_value",)

    def __init__(self, value: int) -> None:
        value = whole_number(value, "a count")
        if not 0 <= value <= COUNT_MAX:
            msg = f"count {value} is outside 0 to 2**64 - 1"
            raise DataOverflow(msg)
        self._value = value

    @property
    def value(self) -> int:
        """The number as a Python int."""
        return self._value

    def __int__(self) -> int:
        return self._value

    __index__ = __int__

    def __eq__(self, other: object) -> bool:
        return self._value == other._value if isinstance(other, Count) else NotImplemented

    def __lt__(self, other: object) -> bool:
        return self._value < other._value if isinstance(other, Count) else NotImplemented

    def __hash__(self) -> int:
        return hash((Count, self._value))

    def __str__(self) -> str:
        return str(self._value)

    def __repr__(self) -> str:
        return f"Count({self._value})"


@total_ordering
class Enum:
    """The name of an enum value, as `Notice::LOG`. The type of the enum does not travel."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        try:
            name.encode()
        except UnicodeEncodeError as cause:
            msg = f"the name of an enum value has no UTF-8 form: {cause}"
            raise InvalidData(msg) from cause
        self._name = name

    @property
    def name(self) -> str:
        """The name."""
        return self._name

    def __eq__(self, other: object) -> bool:
        return self._name == other._name if isinstance(other, Enum) else NotImplemented

    def __lt__(self, other: object) -> bool:
        return self._name < other._name if isinstance(other, Enum) else NotImplemented

    def __hash__(self) -> int:
        return hash((Enum, self._name))

    def __str__(self) -> str:
        return self._name

    __repr__ = __str__
