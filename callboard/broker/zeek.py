"""Zeek's events as data, under the names of the module `broker.zeek`.

    endpoint.publish("/zeek/event/ping", zeek.Event("ping", "hi", 7))
    topic, data = subscriber.get()
    event = zeek.Event(data)

An event is `(count 1, count 1, (name, (arguments …)[, metadata]))`. The first count is the
version of the format, the second says that this is an event. Metadata, where present, is a
vector of pairs `(count id, value)`: 1 is the network time, 200 and above are free for users.
"""

from collections.abc import Iterable
from typing import Any, Final

from callboard.model.data import Data, DataType, python_value
from callboard.model.errors import InvalidData
from callboard.model.scalar import Count

#: The id of the metadata entry that holds Zeek's network time.
NETWORK_TIMESTAMP: Final = 1
_FORMAT: Final = Data(Count(1))
_EVENT: Final = Data(Count(1))
_SHORT, _LONG = 2, 3


class StrictEvent:
    """An event of Zeek: made of a name and arguments, or read from data.

    >>> Event("pong", 7, "text").name()
    'pong'
    >>> Event(Data(Event("pong", 7))).args()
    [7]

    Raises:
        InvalidData: read from data that is no event.
    """

    def __init__(self, *args: Any) -> None:
        if len(args) == 1 and not isinstance(args[0], str):
            self._read = _parse(Data(args[0]))
        elif args and isinstance(args[0], str):
            self._read = args[0], tuple(map(Data, args[1:])), Data()
        else:
            msg = "an event is made of a name and arguments, or of one value that is an event"
            raise InvalidData(msg)

    def _parts(self) -> "_Parts":
        """Return the name, the arguments and the metadata; nil where there is none."""
        return self._read

    def name(self) -> str:
        """Return the name."""
        return self._parts()[0]

    def args(self) -> list[Any]:
        """Return the arguments as Python values."""
        return [python_value(arg, hashed=False) for arg in self._parts()[1]]

    def metadata(self) -> dict[int, Any]:
        """Return the metadata by id, as Python values; empty where there is none."""
        metadata = self._parts()[2]
        if metadata.get_type() is DataType.Nil:
            return {}
        pairs: Iterable[Data] = metadata.as_vector()
        return {pair.value[0].as_count(): Data.to_py(pair.value[1]) for pair in pairs}

    def with_metadata(self, entries: dict[int, Any]) -> "StrictEvent":
        """Return the same event with these metadata entries instead of its own."""
        name, args, _ = self._parts()
        made = type(self)(name, *args)
        metadata = Data([(Count(key), value) for key, value in entries.items()])
        made._read = name, args, metadata  # noqa: SLF001
        return made

    def valid(self) -> bool:
        """Tell that this is an event: what is none was refused when it was made."""
        return True

    def as_data(self) -> Data:
        """Return the event as data, as it travels."""
        name, args, metadata = self._parts()
        inner: list[Any] = [name, Data(args)]
        if metadata.get_type() is not DataType.Nil:
            inner.append(metadata)
        return Data([_FORMAT, _EVENT, inner])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StrictEvent):
            return NotImplemented
        return self.as_data() == other.as_data()

    def __hash__(self) -> int:
        return hash(self.as_data())

    def __repr__(self) -> str:
        name, args, _ = self._parts()
        return f"<{type(self).__name__} {name}({', '.join(map(str, args))})>"


class SafeEvent(StrictEvent):
    """An event whose arguments cannot be changed: frozen sets, tuples, read-only mappings."""

    def args(self) -> list[Any]:
        """Return the arguments as Python values that cannot be changed."""
        return [python_value(arg, hashed=False, frozen=True) for arg in self._parts()[1]]


_Parts = tuple[str, tuple[Data, ...], Data]


def _parse(data: Data) -> _Parts:
    """Take an event apart: its name, arguments and metadata (nil where there is none)."""
    inner = _members(data, (_LONG,))
    if inner[0] != _FORMAT or inner[1] != _EVENT:
        msg = f"({inner[0]}, {inner[1]}, …) is no event: both must be count 1"
        raise InvalidData(msg)
    parts = _members(inner[2], (_SHORT, _LONG))
    if parts[0].get_type() is not DataType.String or parts[1].get_type() is not DataType.Vector:
        msg = "an event holds its name, a string, and a vector of arguments"
        raise InvalidData(msg)
    metadata = parts[2] if len(parts) == _LONG else Data()
    for pair in _members(metadata, None) if len(parts) == _LONG else ():
        if _members(pair, (_SHORT,))[0].get_type() is not DataType.Count:
            msg = f"event metadata is a vector of pairs (count, value), not {str(pair)[:80]}"
            raise InvalidData(msg)
    try:
        name = parts[0].as_string().decode()
    except UnicodeDecodeError as cause:
        msg = f"the name of an event is no UTF-8: {parts[0]}"
        raise InvalidData(msg) from cause
    return name, tuple(parts[1].as_vector()), metadata


def _members(data: Data, lengths: tuple[int, ...] | None) -> tuple[Data, ...]:
    if data.get_type() is not DataType.Vector:
        msg = f"an event is made of vectors, and {str(data)[:80]} is a {data.get_type().name}"
        raise InvalidData(msg)
    found = tuple(data.as_vector())
    if lengths is not None and len(found) not in lengths:
        msg = f"a vector of {len(found)} where an event has {' or '.join(map(str, lengths))}"
        raise InvalidData(msg)
    return found


class Event(StrictEvent):
    """An event, made of a name and arguments, or read from what a subscriber got.

    What was read and is no event has `valid()` False, and nothing else can be asked of it.
    """

    def __init__(self, *args: Any) -> None:
        self._error: InvalidData | None = None
        try:
            super().__init__(*args)
        except InvalidData as error:
            if len(args) != 1:
                raise
            self._error = error

    def valid(self) -> bool:
        """Tell whether what was read is an event."""
        return self._error is None

    def _parts(self) -> "_Parts":
        """Return what the event is made of.

        Raises:
            InvalidData: what was read is no event.
        """
        if self._error is not None:
            raise self._error
        return super()._parts()
