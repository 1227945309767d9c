"""Zeek's events as data, with the interface of the module `broker.zeek`.

    endpoint.publish("/zeek/event/ping", zeek.Event("ping", "hi", 7))
    topic, data = subscriber.get()
    event = zeek.Event(data)

An event is `(count 1, count 1, (name, (arguments …)[, metadata]))`. The first count is the
version of the format, the second marks an event. The optional metadata is a vector of pairs
`(count id, value)`: 1 is the network time, a timestamp; ids from 200 on are free for users.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from callboard.broker.containers import Data
from callboard.model.data import Data as AnyData
from callboard.model.data import DataType, python_value
from callboard.model.errors import InvalidData
from callboard.model.scalar import Count

Metadata = Mapping[Any, Any] | Iterable[tuple[Any, Any]]


class MetadataType:
    """Ids of metadata: Zeek's network time, and the first id for users."""

    NetworkTimestamp: Final = Count(1)
    UserMetadataStart: Final = Count(200)


_FORMAT: Final = AnyData(Count(1))
_EVENT: Final = AnyData(Count(1))
_SHORT, _LONG = 2, 3


class StrictEvent:
    """An event of Zeek, created from a name and arguments, or read from data.

    >>> Event("pong", 7, "text").name()
    'pong'
    >>> Event(Data(Event("pong", 7))).args()
    [7]

    Args:
        args: a name and arguments, or one value that is an event.
        metadata: the metadata of a new event: values by id, or pairs of both.

    Raises:
        InvalidData: the data is not an event, or the metadata is invalid.
    """

    def __init__(self, *args: Any, metadata: Metadata | None = None) -> None:
        if len(args) == 1 and not isinstance(args[0], str) and metadata is None:
            self._read = _parse(AnyData(args[0]))
        elif args and isinstance(args[0], str):
            self._read = args[0], tuple(map(AnyData, args[1:])), _metadata(metadata)
        else:
            msg = "pass a name and arguments, or one value that is an event"
            raise InvalidData(msg)

    def _parts(self) -> "_Parts":
        """Return the name, the arguments and the metadata, which may be nil."""
        return self._read

    def name(self) -> str:
        """Return the name."""
        return self._parts()[0]

    def args(self) -> list[Any]:
        """Return the arguments as Python values."""
        return [python_value(arg, hashed=False) for arg in self._parts()[1]]

    def metadata(self) -> list[tuple[Count, Any]] | None:
        """Return pairs of id and Python value in order; None if there are none."""
        metadata = self._parts()[2]
        if metadata.get_type() is DataType.Nil:
            return None
        return [(pair.value[0].value, AnyData.to_py(pair.value[1])) for pair in metadata.value]

    def valid(self) -> bool:
        """Return True: other data was refused by the constructor."""
        return True

    def as_data(self) -> Data:
        """Return the event as data."""
        name, args, metadata = self._parts()
        inner: list[Any] = [name, AnyData(args)]
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
    """An event with immutable arguments: frozen sets, tuples, read-only mappings."""

    def args(self) -> list[Any]:
        """Return the arguments as immutable Python values."""
        return [python_value(arg, hashed=False, frozen=True) for arg in self._parts()[1]]


_Parts = tuple[str, tuple[AnyData, ...], AnyData]


def _metadata(entries: Metadata | None) -> AnyData:
    """Return metadata as data: nil for none, else pairs with counts as ids."""
    if entries is None:
        return AnyData()
    pairs = list(entries.items() if isinstance(entries, Mapping) else entries)
    data = AnyData([(Count(key) if type(key) is int else key, value) for key, value in pairs])
    _check_metadata(data)
    return data


def _check_metadata(metadata: AnyData) -> None:
    """Refuse data that is not a vector of pairs, or has an invalid network time."""
    for pair in _members(metadata, None):
        key, value = _members(pair, (_SHORT,))
        if key.get_type() is not DataType.Count:
            msg = f"event metadata must be pairs (count, value), not {str(pair)[:80]}"
            raise InvalidData(msg)
        is_time = value.get_type() is DataType.Timestamp
        if key.value == MetadataType.NetworkTimestamp and not is_time:
            msg = f"the network time of an event must be a timestamp, not {str(value)[:80]}"
            raise InvalidData(msg)


def _parse(data: AnyData) -> _Parts:
    """Return the name, arguments and metadata (nil for none) of an event."""
    inner = _members(data, (_LONG,))
    if inner[0] != _FORMAT or inner[1] != _EVENT:
        msg = (
            f"({inner[0]}, {inner[1]}, …) is not an event: the first two items must be count 1"
        )
        raise InvalidData(msg)
    parts = _members(inner[2], (_SHORT, _LONG))
    if parts[0].get_type() is not DataType.String or parts[1].get_type() is not DataType.Vector:
        msg = "an event must have a name, which is a string, and a vector of arguments"
        raise InvalidData(msg)
    metadata = parts[2] if len(parts) == _LONG else AnyData()
    if len(parts) == _LONG:
        _check_metadata(metadata)
    try:
        name = parts[0].as_string().decode()
    except UnicodeDecodeError as cause:
        msg = f"the name of an event is not UTF-8: {parts[0]}"
        raise InvalidData(msg) from cause
    return name, tuple(parts[1].value), metadata


def _members(data: AnyData, lengths: tuple[int, ...] | None) -> tuple[AnyData, ...]:
    if data.get_type() is not DataType.Vector:
        msg = f"an event consists of vectors, but {str(data)[:80]} is a {data.get_type().name}"
        raise InvalidData(msg)
    members = tuple(data.value)
    if lengths is not None and len(members) not in lengths:
        sizes = " or ".join(map(str, lengths))
        msg = f"a vector of {len(members)} items instead of {sizes}"
        raise InvalidData(msg)
    return members


class Event(StrictEvent):
    """An event, created from a name and arguments, or read from a received value.

    For a value that is not an event, `valid()` is False, and all other methods raise.
    """

    def __init__(self, *args: Any, metadata: Metadata | None = None) -> None:
        self._error: InvalidData | None = None
        try:
            super().__init__(*args, metadata=metadata)
        except InvalidData as error:
            if len(args) != 1 or metadata is not None:
                raise
            self._error = error

    def valid(self) -> bool:
        """Return whether the value is an event."""
        return self._error is None

    def _parts(self) -> "_Parts":
        """Return the name, the arguments and the metadata.

        Raises:
            InvalidData: the value is not an event.
        """
        if self._error is not None:
            raise self._error
        return super()._parts()
