"""Zeek's events as data, under the names of the module `broker.zeek`.

    endpoint.publish("/zeek/event/ping", zeek.Event("ping", "hi", 7))
    topic, data = subscriber.get()
    event = zeek.Event(data)

An event is `(count 1, count 1, (name, (arguments …)[, metadata]))`. The first count is the
version of the format, the second says that this is an event. Metadata, where present, is a
vector of pairs `(count id, value)`: 1 is the network time, a timestamp, 200 and above are free
for users.
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
    """Ids of metadata: Zeek's network time, and the first that users may take."""

    NetworkTimestamp: Final = Count(1)
    UserMetadataStart: Final = Count(200)


_FORMAT: Final = AnyData(Count(1))
_EVENT: Final = AnyData(Count(1))
_SHORT, _LONG = 2, 3


class StrictEvent:
    """An event of Zeek: made of a name and arguments, or read from data.

    >>> Event("pong", 7, "text").name()
    'pong'
    >>> Event(Data(Event("pong", 7))).args()
    [7]

    Args:
        args: a name and arguments, or one value that is an event.
        metadata: of an event that is made: values by id, or pairs of both.

    Raises:
        InvalidData: read from data that is not an event, or the metadata cannot be any.
    """

    def __init__(self, *args: Any, metadata: Metadata | None = None) -> None:
        if len(args) == 1 and not isinstance(args[0], str) and metadata is None:
            self._read = _parse(AnyData(args[0]))
        elif args and isinstance(args[0], str):
            self._read = args[0], tuple(map(AnyData, args[1:])), _metadata(metadata)
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

    def metadata(self) -> list[tuple[Count, Any]] | None:
        """Return pairs of id and Python value in their order, None where there are none."""
        metadata = self._parts()[2]
        if metadata.get_type() is DataType.Nil:
            return None
        return [(pair.value[0].value, AnyData.to_py(pair.value[1])) for pair in metadata.value]

    def valid(self) -> bool:
        """Tell that this is an event: what is none was refused when it was made."""
        return True

    def as_data(self) -> Data:
        """Return the event as data, as it travels."""
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
    """An event whose arguments cannot be changed: frozen sets, tuples, read-only mappings."""

    def args(self) -> list[Any]:
        """Return the arguments as Python values that cannot be changed."""
        return [python_value(arg, hashed=False, frozen=True) for arg in self._parts()[1]]


_Parts = tuple[str, tuple[AnyData, ...], AnyData]


def _metadata(entries: Metadata | None) -> AnyData:
    """Return metadata as data: nil for none, else pairs whose ids are counts."""
    if entries is None:
        return AnyData()
    pairs = list(entries.items() if isinstance(entries, Mapping) else entries)
    made = AnyData([(Count(key) if type(key) is int else key, value) for key, value in pairs])
    _check_metadata(made)
    return made


def _check_metadata(metadata: AnyData) -> None:
    """Refuse what is not a vector of pairs, or has a network time that is not a timestamp."""
    for pair in _members(metadata, None):
        key, value = _members(pair, (_SHORT,))
        if key.get_type() is not DataType.Count:
            msg = f"event metadata is a vector of pairs (count, value), not {str(pair)[:80]}"
            raise InvalidData(msg)
        is_time = value.get_type() is DataType.Timestamp
        if key.value == MetadataType.NetworkTimestamp and not is_time:
            msg = f"the network time of an event is a timestamp, not {str(value)[:80]}"
            raise InvalidData(msg)


def _parse(data: AnyData) -> _Parts:
    """Take an event apart: its name, arguments and metadata (nil where there is none)."""
    inner = _members(data, (_LONG,))
    if inner[0] != _FORMAT or inner[1] != _EVENT:
        msg = f"({inner[0]}, {inner[1]}, …) is no event: both must be count 1"
        raise InvalidData(msg)
    parts = _members(inner[2], (_SHORT, _LONG))
    if parts[0].get_type() is not DataType.String or parts[1].get_type() is not DataType.Vector:
        msg = "an event holds its name, a string, and a vector of arguments"
        raise InvalidData(msg)
    metadata = parts[2] if len(parts) == _LONG else AnyData()
    if len(parts) == _LONG:
        _check_metadata(metadata)
    try:
        name = parts[0].as_string().decode()
    except UnicodeDecodeError as cause:
        msg = f"the name of an event is no UTF-8: {parts[0]}"
        raise InvalidData(msg) from cause
    return name, tuple(parts[1].value), metadata


def _members(data: AnyData, lengths: tuple[int, ...] | None) -> tuple[AnyData, ...]:
    if data.get_type() is not DataType.Vector:
        msg = f"an event is made of vectors, and {str(data)[:80]} is a {data.get_type().name}"
        raise InvalidData(msg)
    found = tuple(data.value)
    if lengths is not None and len(found) not in lengths:
        msg = f"a vector of {len(found)} where an event has {' or '.join(map(str, lengths))}"
        raise InvalidData(msg)
    return found


class Event(StrictEvent):
    """An event, made of a name and arguments, or read from what a subscriber got.

    What was read and is no event has `valid()` False, and nothing else can be asked of it.
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
