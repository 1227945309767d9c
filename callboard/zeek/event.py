"""Zeek's events and records as dataclasses, and their conversion to and from messages.

    @zeek_event("Notice::found")
    @dataclass(frozen=True)
    class Found:
        note: Enum
        source: IPv4Address | IPv6Address
        port: Port | None = None

    endpoint.publish("/zeek/event/notice", Found(Enum("Scan::Port"), source))
    read = zeek_events(Found)
    topic, value = subscriber.get()
    event = read(topic, value)                   # a Found, or the value if it is not one

| Zeek | annotation |
|---|---|
| bool, int, double, string | bool, int, float, str or bytes |
| count | `Count`, or `Annotated[int, Count]` for a plain int |
| enum | `Enum`, or a Python enumeration whose values are Zeek's names |
| addr, subnet, port | `IPv4Address`, `IPv6Address` or both; networks; `Port` |
| time, interval | datetime, timedelta |
| pattern | `re.Pattern[str]` |
| vector | `list[T]` or `tuple[T, ...]` |
| set, table | `set[T]` or `frozenset[T]`, `dict[K, V]`; several indices are `tuple[A, B]` |
| record | a dataclass with its fields in Zeek's order |
| &optional | a type or None |
| any | `Any` |
"""

import dataclasses
import datetime
import ipaddress
import re
from collections.abc import Callable
from enum import Enum as PythonEnum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from callboard.model.address import Address, Port, Subnet
from callboard.model.data import Data
from callboard.model.errors import InvalidData, UnsupportedData
from callboard.model.scalar import Count, Enum
from callboard.support.construction import constructor_of

C = TypeVar("C", bound=type)

_NAME: Final = "__zeek_event__"
_SHOWN: Final = 60
_ONE: Final = Count(1)
_VECTORS: Final = (tuple, list)
#: Zeek's form of a pattern that must match a whole text.
_EXACT: Final = re.compile(r"\^\?\((.*)\)\$\?", re.DOTALL)


def zeek_event(name: str) -> Callable[[C], C]:
    """Declare a dataclass as an event of Zeek; its fields are the arguments.

    The class gets `as_data()`, so that its instances can be published like any value.

    Args:
        name: name of the event in Zeek, with its module: `Notice::found`.

    Raises:
        UnsupportedData: the class is not a dataclass, or a field has an annotation that is not
            in the table of this module.
    """

    def decorate(cls: C) -> C:
        if not dataclasses.is_dataclass(cls):
            msg = (
                f"{cls.__name__} is not a dataclass; put @zeek_event({name!r}) above @dataclass"
            )
            raise UnsupportedData(msg)
        setattr(cls, _NAME, name)
        cls.as_data = _as_data  # type: ignore[attr-defined]
        return cls

    return decorate


def zeek_events(*classes: type) -> Callable[[str, Any], Any]:
    """Return a function that converts topic and value into typed events.

    It returns an instance of the class for the event, or the value itself for any other event.
    So it can be the `message` of `Endpoint.subscribe`.

    Args:
        classes: classes with `@zeek_event`.

    Raises:
        UnsupportedData: a class has no event, or two have the same name.
    """
    readers: dict[str | None, Callable[[Any], Any]] = {}
    for cls in classes:
        name = cls.__dict__.get(_NAME)
        if name is None or name in readers:
            msg = f"{cls.__name__} needs its own @zeek_event, with a name of its own"
            raise UnsupportedData(msg)
        readers[name] = _codec(cls)[1]

    def read(_topic: str, value: Any) -> Any:
        name = _name_of(value)
        reader = readers.get(name)
        return value if reader is None else _read(name, reader, value)

    return read


def from_value(cls: type[Any], value: Any) -> Any:
    """Return a value, as a subscriber received it, as an event of a class.

    Raises:
        InvalidData: the value is not that event, or an argument has another type.
    """
    name = getattr(cls, _NAME, None)
    if name is None or _name_of(value) != name:
        msg = (
            f"the value is the value is the value is not the event {name}: "
            f"{str(value)[:_SHOWN]}"
        )
        raise InvalidData(msg)
    return _read(name, _codec(cls)[1], value)


def _read(name: str | None, reader: Callable[[Any], Any], value: Any) -> Any:
    """Convert a value to the event with this name."""
    try:
        return reader(value[2][1])
    except InvalidData as error:
        msg = f"{name}: {error}"
        raise InvalidData(msg) from error


def _name_of(value: Any) -> str | None:
    """Return the name of the event in a value; None if it is not an event."""
    if isinstance(value, _VECTORS) and len(value) == 3:
        first, second, body = value
        if isinstance(body, _VECTORS) and 2 <= len(body) <= 3 and first == second == _ONE:
            name, arguments, *_ = body
            if isinstance(name, str) and isinstance(arguments, _VECTORS):
                return name
    return None


def _as_data(self: Any) -> Data:
    """Return the event as data."""
    fields = _codec(type(self))[0](self)
    return Data([_ONE, _ONE, [getattr(self, _NAME), fields]])


# ----------------------------------------------------------------------- values by annotation

_Convert = Callable[[Any], Any]
_Codec = tuple[_Convert, _Convert]


@cache
def _record(cls: Any) -> _Codec:
    """Return the conversions between a dataclass and a vector."""
    hints = get_type_hints(cls, include_extras=True)
    fields = [field for field in dataclasses.fields(cls) if field.init]
    codecs = [(field.name, *_codec(hints[field.name])) for field in fields]
    readers = [read for _, _, read in codecs]
    is_positional = not any(field.kw_only for field in fields)
    construct = constructor_of(cls, [field.name for field in fields])
    required = sum(
        field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        for field in fields
    )

    def write_record(record: Any) -> Any:
        if not isinstance(record, cls):
            raise _wrong(record, cls.__name__)
        return [_convert_field(name, write, getattr(record, name)) for name, write, _ in codecs]

    def read_record(values: Any) -> Any:
        if type(values) not in (tuple, list) or not required <= len(values) <= len(codecs):
            count = f"{required} to {len(codecs)}" if required < len(codecs) else str(required)
            text = str(values)[:_SHOWN]
            msg = f"{cls.__name__} has {count} fields; these are not its values: {text}"
            raise InvalidData(msg)
        try:  # fields after the last value keep their defaults
            made = [read(value) for read, value in zip(readers, values, strict=False)]
        except InvalidData:  # convert again, to add the name of the field to the error
            pairs = zip(codecs, values, strict=False)
            made = [_convert_field(name, read, value) for (name, _, read), value in pairs]
        if is_positional:
            return construct(*made)
        return construct(
            **{codec[0]: value for codec, value in zip(codecs, made, strict=False)}
        )

    return write_record, read_record


def _convert_field(name: str, convert: _Convert, value: Any) -> Any:
    """Convert a field; add its name to an error."""
    try:
        return convert(value)
    except InvalidData as error:
        msg = f"{name}: {error}"
        raise InvalidData(msg) from error


def _wrong(value: Any, expected: str) -> InvalidData:
    """Return an error for a value of another type."""
    return InvalidData(f"{expected} is not {str(value)[:_SHOWN]!r} ({type(value).__name__})")


def _same(*kinds: type) -> _Codec:
    """Return conversions that only check the type."""

    def check(value: Any) -> Any:
        if type(value) in kinds:
            return value
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise _wrong(value, " or ".join(kind.__name__ for kind in kinds))
        return value

    return check, check


def _codec(hint: Any) -> _Codec:
    """Return the conversions for an annotation.

    Raises:
        UnsupportedData: Zeek has no such type.
    """
    origin, inner = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if origin is Annotated and Count in inner[1:]:
        return _count_to, lambda value: int(_count_back(value))
    if origin is Annotated:
        return _codec(inner[0])
    if origin in (Union, UnionType):
        return _union(inner)
    if origin is re.Pattern:
        return _pattern_to, _pattern_back
    if isinstance(hint, type) and issubclass(hint, PythonEnum):
        return _enum_to, lambda value: _enum_back(hint, value)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _record(hint)
    if origin in _CONTAINERS and inner:
        return _CONTAINERS[origin](*inner)
    msg = f"Zeek has no type for {hint!r}; see callboard.zeek.event for the supported types"
    raise UnsupportedData(msg)


def _count_to(value: Any) -> Count:
    """Convert a number to a count."""
    if isinstance(value, Count):
        return value
    if type(value) is not int:
        raise _wrong(value, "a count")
    return Count(value)


def _count_back(value: Any) -> Count:
    """Return a received count."""
    if not isinstance(value, Count):
        raise _wrong(value, "a count")
    return value


def _enum_to(value: Any) -> Enum:
    """Convert a member of an enumeration to Zeek's enum value."""
    if not isinstance(value, PythonEnum):
        raise _wrong(value, "an enum")
    return Enum(str(value.value))


def _enum_back(kind: type[PythonEnum], value: Any) -> PythonEnum:
    """Convert Zeek's enum value to a member of an enumeration."""
    try:
        return kind(value.name)
    except (AttributeError, ValueError) as cause:
        raise _wrong(value, kind.__name__) from cause


def _pattern_to(value: Any) -> list[str]:
    """Convert a pattern to Zeek's two forms: for a whole text, and for a part of it."""
    if not isinstance(value, re.Pattern):
        raise _wrong(value, "a pattern")
    return [f"^?({value.pattern})$?", f"^?(.|\\n)*({value.pattern})"]


def _pattern_back(value: Any) -> re.Pattern[str]:
    """Convert Zeek's pattern for a whole text."""
    match value:
        case (str() as exact, str()):
            whole = _EXACT.fullmatch(exact)
            try:
                return re.compile(whole[1] if whole else exact)
            except re.error as cause:
                raise _wrong(exact, "a pattern") from cause
    raise _wrong(value, "a pattern")


def _union(kinds: tuple[Any, ...]) -> _Codec:
    """Return the conversions for an optional value, or a choice of types."""
    codecs = [_codec(kind) for kind in kinds if kind is not NoneType]

    def convert(direction: int, value: Any) -> Any:
        if value is None and NoneType in kinds:
            return None
        for codec in codecs:
            try:
                return codec[direction](value)
            except InvalidData:
                if codec is codecs[-1]:
                    raise
        raise _wrong(value, "none")

    return lambda value: convert(0, value), lambda value: convert(1, value)


def _items(
    make_to: Callable[..., Any], make_back: Callable[..., Any], *received: type
) -> Callable[..., _Codec]:
    """Return a function that makes the conversions for a vector or set."""

    def make_codec(kind: Any, *_: Any) -> _Codec:
        write, read_item = _codec(kind)

        def read(value: Any) -> Any:
            if not isinstance(value, received):
                raise _wrong(value, "a vector or set")
            items: Any = value
            return make_back([read_item(item) for item in items])

        return lambda value: make_to([write(item) for item in value]), read

    return make_codec


def _tuple(*kinds: Any) -> _Codec:
    """Return the conversions for a tuple of any length, or of the given types."""
    if len(kinds) == 2 and kinds[1] is ...:
        return _items(list, tuple, tuple, list)(kinds[0])
    codecs = [_codec(kind) for kind in kinds]

    def convert(direction: int, value: Any) -> Any:
        if not isinstance(value, tuple | list) or len(value) != len(codecs):
            raise _wrong(value, f"a vector of {len(codecs)}")
        return tuple(codec[direction](item) for codec, item in zip(codecs, value, strict=True))

    return lambda value: convert(0, value), lambda value: convert(1, value)


def _table(key: Any, item: Any) -> _Codec:
    """Return the conversions for a table."""
    keys, items = _codec(key), _codec(item)

    def convert(direction: int, value: Any) -> Any:
        try:
            pairs = value.items()
        except AttributeError:
            raise _wrong(value, "a table") from None
        return {keys[direction](index): items[direction](element) for index, element in pairs}

    return lambda value: convert(0, value), lambda value: convert(1, value)


_CONTAINERS: Final[dict[Any, Callable[..., _Codec]]] = {
    list: _items(list, list, tuple, list),
    set: _items(frozenset, set, set, frozenset),
    frozenset: _items(frozenset, frozenset, set, frozenset),
    tuple: _tuple,
    dict: _table,
}

_real: Final = _same(float, int)
_PLAIN: Final[dict[Any, _Codec]] = {
    Any: (lambda value: value, lambda value: value),
    bool: _same(bool),
    int: _same(int),
    float: (lambda value: float(_real[0](value)), _same(float)[1]),
    str: _same(str),
    bytes: (_same(bytes)[0], lambda value: value.encode() if type(value) is str else value),
    Count: (_count_to, _count_back),
    Enum: _same(Enum),
    Port: _same(Port),
    Address: _same(Address, ipaddress.IPv4Address, ipaddress.IPv6Address),
    Subnet: _same(Subnet, ipaddress.IPv4Network, ipaddress.IPv6Network),
    **{
        kind: _same(kind)
        for kind in (
            ipaddress.IPv4Address,
            ipaddress.IPv6Address,
            ipaddress.IPv4Network,
            ipaddress.IPv6Network,
            datetime.datetime,
            datetime.timedelta,
        )
    },
}
