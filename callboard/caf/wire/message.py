"""Messages of CAF: their type names, and the Python value of each type.

CAF's message is a list of values. In Python it is a tuple; a message with one value is that
value, and an empty message is None.

| CAF | Python |
|---|---|
| `@i8` … `@u64` | `int`, sent as `@i32` or else as `@i64`; `U16(7)` is sent as `@u16` |
| `bool`, `float`, `double`, `@ldouble` | `bool`, `F32`, `float`, `Decimal` |
| `@str`, `@u16str`, `@u32str`, `@charbuf`, `@atom` | `str`, `str`, `str`, `bytes`, `Atom` |
| `@actor`, `@strong_actor_ptr`, `@weak_actor_ptr`, `@addr` | a ref, or None; sent as `@actor` |
| `@strvec`, `@actorvec`, `@addrvec`, `@strset`, `@strmap` | `list`, `set`, `dict` |
| `@timestamp`, `@timespan` | `datetime`, `timedelta`: microseconds |
| `@duration`, `@config_value` | `Duration` or None, `ConfigValue` |
| `@error`, `@node`, `@group`, `@unit` | `CafError` or None, `CafNode`, `CafGroup`, None |
| `@message` | a `tuple` |
| a type of a program | a class with `@message("name", caf="type name")` |

A class with a signature, such as `@message("Add", caf="'add'+@i32+@i32")`, stands for a whole
message: its fields are the values without the constant atoms.
"""

import contextlib
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields as fields_of
from dataclasses import is_dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from types import UnionType
from typing import Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints

from callboard.caf.errors import CafError
from callboard.caf.wire.reader import (
    CafActor,
    CafNode,
    CafReader,
    atom,
    atom_text,
    sized,
    varbyte,
)
from callboard.kernel.actors import ActorRef, frozen_message
from callboard.kernel.codec import DEFAULT_REGISTRY, MessageRegistry
from callboard.kernel.errors import NotSerializable
from callboard.protocol_errors import (
    MalformedPayload,
    MessageRefused,
    PayloadTooHeavy,
    UnknownMessageType,
)

#: Messages inside messages.
DEPTH_LIMIT: Final = 32

#: Combinations of types whose plan is kept.
PLAN_LIMIT: Final = 1_000

#: Type names in one message.
TYPE_LIMIT: Final = 1_000


@frozen_message("callboard.caf.Atom")
class Atom:
    """A name of at most ten of the characters ` 0-9A-Z_a-z`."""

    name: str


class F32(float):
    """A number that is sent as `float`."""

    __slots__ = ()


class I8(int):
    """A number that is sent as `@i8`."""


class U8(int):
    """A number that is sent as `@u8`."""


class I16(int):
    """A number that is sent as `@i16`."""


class U16(int):
    """A number that is sent as `@u16`."""


class I32(int):
    """A number that is sent as `@i32`."""


class U32(int):
    """A number that is sent as `@u32`."""


class I64(int):
    """A number that is sent as `@i64`."""


class U64(int):
    """A number that is sent as `@u64`."""


class Duration(timedelta):
    """A time that is sent as `@duration`; None is CAF's `infinite`."""


class ConfigValue(NamedTuple):
    """A value that is sent as `@config_value`.

    Attributes:
        value: a bool, an integer, a float, an `Atom`, a `timedelta`, a text, or such values in
            a list or, with texts as keys, in a dict.
    """

    value: Any


class TypedMessage(NamedTuple):
    """A message inside a message, with the names of its types."""

    types: tuple[str, ...]
    values: tuple[Any, ...]


class CafGroup(NamedTuple):
    """A group of CAF: the actor that sends to the members, and the name of the group."""

    module: str
    name: str = ""
    broker: Any = None


class GroupDown(NamedTuple):
    """`@group_down`: the node that hosts a group is lost."""

    group: CafGroup | None


class ExitMessage(NamedTuple):
    """`@exit`: the source asks the receiver to end, or a linked actor has ended."""

    source: Any
    error: CafError | None


class DownMessage(NamedTuple):
    """`@down`: a monitored actor has ended."""

    source: Any
    error: CafError | None


class ValueReader(CafReader):
    """Reads values.

    Attributes:
        actor_of: returns the value that stands for an actor.
        budget: items that may still be read.
        depth: enclosing messages and values of configurations.
    """

    __slots__ = ("actor_of", "budget", "codec", "depth")

    def __init__(self, codec: "MessageCodec", buffer: bytes, offset: int = 0) -> None:
        super().__init__(buffer, offset)
        self.codec, self.actor_of = codec, codec.actor_of
        self.budget, self.depth = codec.items, 0

    @contextlib.contextmanager
    def nested(self) -> Iterator[None]:
        """Limit the depth while a message or value inside another one is read."""
        self.depth += 1
        if self.depth > DEPTH_LIMIT:
            msg = f"messages are nested deeper than {DEPTH_LIMIT}"
            raise PayloadTooHeavy(msg)
        yield
        self.depth -= 1

    def items(self) -> range:
        """Read the length of a list; return its range. The caller then reads the items."""
        count = self.count()
        self.budget -= count
        if self.budget < 0:
            msg = f"a message has more than {self.codec.items:,} items"
            raise PayloadTooHeavy(msg)
        return range(count)


Read = Callable[[ValueReader], Any]
Write = Callable[["MessageCodec", Any], bytes]


class ValueType(NamedTuple):
    """A type of values: its name on the wire, its reader and its writer."""

    name: str
    read: Read
    write: Write


def _refuse(value: object, name: str, advice: str = "") -> NotSerializable:
    """Return the error for a value that a type cannot hold."""
    return NotSerializable(f"{value!r:.80} is not a value of CAF's type {name}{advice}")


def _number(name: str, size: int, *, signed: bool) -> ValueType:
    """Return the type of integers that take `size` bytes."""
    least = -(1 << 8 * size - 1) if signed else 0
    limit = least + (1 << 8 * size)

    def write(_: "MessageCodec", value: Any) -> bytes:
        if not isinstance(value, int) or not least <= value < limit:
            raise _refuse(value, name, "; annotate or send a wider one, such as I64")
        return value.to_bytes(size, signed=signed)

    return ValueType(name, lambda reader: reader.number(size, signed=signed), write)


def _float(name: str, layout: str, size: int) -> ValueType:
    """Return the type of floating-point numbers that take `size` bytes."""
    form = struct.Struct(layout)

    def write(_: "MessageCodec", value: Any) -> bytes:
        try:
            return form.pack(value)
        except (struct.error, OverflowError) as cause:
            raise _refuse(value, name) from cause

    return ValueType(name, lambda reader: form.unpack(reader.take(size))[0], write)


def _read_bool(reader: ValueReader) -> bool:
    """Read a bool."""
    number = reader.number(1)
    if number > 1:
        msg = f"byte {reader.at - 1:,} of a bool is {number}, neither 0 nor 1"
        raise MalformedPayload(msg)
    return bool(number)


def _read_text(reader: ValueReader) -> str:
    """Read the bytes of a `std::string`; bytes that are not UTF-8 become surrogates."""
    return reader.take(reader.count()).decode(errors="surrogateescape")


def _write_text(_: "MessageCodec", value: Any) -> bytes:
    """Encode a `std::string`."""
    if not isinstance(value, str):
        raise _refuse(value, "@str")
    return sized(value.encode(errors="surrogateescape"))


def _wide_text(name: str, encoding: str, size: int) -> ValueType:
    """Return the type of texts in UTF-16 or UTF-32."""

    def read(reader: ValueReader) -> str:
        try:
            return reader.take(size * reader.count()).decode(encoding, "surrogatepass")
        except UnicodeDecodeError as cause:
            msg = f"the text before byte {reader.at:,} is not {encoding}"
            raise MalformedPayload(msg) from cause

    def write(_: "MessageCodec", value: Any) -> bytes:
        octets: bytes = value.encode(encoding, "surrogatepass")
        return varbyte(len(octets) // size) + octets

    return ValueType(name, read, write)


def _read_decimal(reader: ValueReader) -> Decimal:
    """Read a `long double`."""
    text = _read_text(reader)
    try:
        return Decimal(text)
    except InvalidOperation as cause:
        msg = f"{text!r:.80} is not a number"
        raise MalformedPayload(msg) from cause


def _write_atom(_: "MessageCodec", value: Any) -> bytes:
    """Encode a name."""
    try:
        return atom(value.name).to_bytes(8)
    except (ValueError, TypeError, AttributeError) as cause:
        raise _refuse(value, "@atom", "; it has at most 10 of ` 0-9A-Z_a-z`") from cause


def _read_actor(reader: ValueReader) -> Any:
    """Read an actor."""
    return reader.actor_of(reader.actor())


def _write_actor(codec: "MessageCodec", value: Any) -> bytes:
    """Encode an actor."""
    if value is None:
        return NO_ACTOR
    actor: CafActor = value if isinstance(value, CafActor) else codec.actor_from(value)
    return actor.to_bytes()


def _read_node(reader: ValueReader) -> CafNode | None:
    """Read a node."""
    return reader.node()


def _write_node(_: "MessageCodec", value: Any) -> bytes:
    """Encode a node."""
    return NO_NODE if value is None else value.to_bytes()


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TICK: Final = timedelta(microseconds=1)


def _read_span(reader: ValueReader) -> timedelta:
    """Read a duration."""
    return timedelta(microseconds=reader.number(8, signed=True) // 1000)


def _write_span(_: "MessageCodec", value: Any) -> bytes:
    """Encode a duration."""
    try:
        nanoseconds: int = value // _TICK * 1000
        return nanoseconds.to_bytes(8, signed=True)
    except (OverflowError, TypeError) as cause:
        raise _refuse(value, "@timespan") from cause


#: The units of `@duration`; a time without a unit is infinite.
_UNITS: Final = ("", "minutes", "seconds", "milliseconds", "microseconds")
_MICROSECONDS: Final = 4
_NANOSECONDS: Final = 5


def _read_duration(reader: ValueReader) -> Duration | None:
    """Read a duration of any unit; nanoseconds are rounded down to microseconds."""
    unit, count = reader.number(4), reader.number(8)
    if unit > _NANOSECONDS:
        msg = f"{unit} before byte {reader.at - 8:,} is not a unit of time"
        raise MalformedPayload(msg)
    if not unit:
        return None
    if unit == _NANOSECONDS:
        unit, count = _MICROSECONDS, count // 1000
    try:
        return Duration(**{_UNITS[unit]: count})
    except OverflowError as cause:
        msg = f"a timedelta cannot hold {count:,} {_UNITS[unit]}"
        raise MessageRefused(msg) from cause


def _write_duration(_: "MessageCodec", value: Any) -> bytes:
    """Encode a duration in microseconds."""
    if value is None:
        return bytes(12)
    try:
        count: int = value // _TICK
        return _MICROSECONDS.to_bytes(4) + count.to_bytes(8)
    except (OverflowError, TypeError) as cause:
        raise _refuse(value, "@duration", "; it is not negative") from cause


def _write_time(codec: "MessageCodec", value: Any) -> bytes:
    """Encode a time."""
    try:
        return _write_span(codec, value - _EPOCH)
    except TypeError as cause:
        raise _refuse(value, "@timestamp", "; it needs a time zone") from cause


def _read_error(reader: ValueReader) -> CafError | None:
    """Read an error."""
    code, category = reader.number(1), atom_text(reader.number(8))
    context = reader.codec.read_values(reader)
    return CafError(code, category, *context) if code else None


def _write_error(codec: "MessageCodec", value: Any) -> bytes:
    """Encode an error."""
    if value is None:
        return NO_ERROR
    content = codec.encode(tuple(value.context))
    return bytes([value.code]) + atom(value.category).to_bytes(8) + content


def _read_message(reader: ValueReader) -> tuple[Any, ...]:
    """Read a message inside another one."""
    return reader.codec.read_values(reader)


def _write_message(codec: "MessageCodec", value: Any) -> bytes:
    """Encode a message inside another one."""
    if value.__class__ is TypedMessage:
        return codec.encode_as(value.types, value.values)
    return codec.encode(tuple(value))


def _read_group(reader: ValueReader) -> CafGroup | None:
    """Read a group."""
    module = _read_text(reader)
    if not module:
        return None
    if module != "local":
        msg = (
            "the message contains the message contains a group of the module "
            f"{module[:80]!r}; only 'local' is known"
        )
        raise UnknownMessageType(msg)
    return CafGroup(module, _read_text(reader), _read_actor(reader))


def _write_group(codec: "MessageCodec", value: Any) -> bytes:
    """Encode a group."""
    if value is None:
        return sized(b"")
    name = sized(value.name.encode(errors="surrogateescape"))
    return sized(value.module.encode()) + name + _write_actor(codec, value.broker)


def _pair(name: str, make: Callable[[Any, Any], Any]) -> ValueType:
    """Return the type of a message about the end of an actor."""

    def read(reader: ValueReader) -> Any:
        return make(_read_actor(reader), _read_error(reader))

    def write(codec: "MessageCodec", value: Any) -> bytes:
        return _write_actor(codec, value.source) + _write_error(codec, value.error)

    return ValueType(name, read, write)


def _many(name: str, item: ValueType, make: Callable[[list[Any]], Any] = list) -> ValueType:
    """Return the type of a list or set of items."""
    read_item, write_item = item.read, item.write

    def read(reader: ValueReader) -> Any:
        return make([read_item(reader) for _ in reader.items()])

    def write(codec: "MessageCodec", value: Any) -> bytes:
        values = sorted(value) if isinstance(value, set | frozenset) else value
        return varbyte(len(value)) + b"".join(
            [write_item(codec, element) for element in values]
        )

    return ValueType(name, read, write)


def _bits(name: str, make: Callable[[list[Any]], Any] = list) -> ValueType:
    """Return the type of a list of bools: packed bits, low bit first."""

    def read(reader: ValueReader) -> Any:
        count = reader.count_up_to(8 * len(reader.buffer))
        octets = reader.take(reader.count())
        reader.budget -= count
        if reader.budget < 0 or len(octets) != (count + 7) // 8:
            msg = f"{count:,} bools are announced in {len(octets):,} B"
            raise MalformedPayload(msg)
        return make([bool(octets[i >> 3] >> (i & 7) & 1) for i in range(count)])

    def write(_: "MessageCodec", value: Any) -> bytes:
        octets = bytearray((len(value) + 7) // 8)
        for i, bit in enumerate(value):
            octets[i >> 3] |= bool(bit) << (i & 7)
        return varbyte(len(value)) + sized(bytes(octets))

    return ValueType(name, read, write)


def _map(name: str, key: ValueType, item: ValueType) -> ValueType:
    """Return the type of a map."""

    def read(reader: ValueReader) -> Any:
        try:
            return {key.read(reader): item.read(reader) for _ in reader.items()}
        except TypeError as cause:
            msg = f"a key before byte {reader.at:,} is not hashable"
            raise MalformedPayload(msg) from cause

    def write(codec: "MessageCodec", value: Any) -> bytes:
        parts = [key.write(codec, k) + item.write(codec, v) for k, v in value.items()]
        return varbyte(len(value)) + b"".join(parts)

    return ValueType(name, read, write)


def _read_config_value(reader: ValueReader) -> ConfigValue:
    """Read a value of a configuration."""
    return ConfigValue(_read_setting(reader))


def _read_setting(reader: ValueReader) -> Any:
    """Read the content of a value of a configuration."""
    tag = reader.number(1)
    if tag >= len(_SETTINGS):
        msg = f"{tag} before byte {reader.at:,} is not a kind of a configuration's value"
        raise MalformedPayload(msg)
    with reader.nested():
        return _SETTINGS[tag].read(reader)


def _write_setting(codec: "MessageCodec", value: Any) -> bytes:
    """Encode the content of a value of a configuration."""
    kind = value.__class__
    tag = _TAGS.get(kind)
    if tag is None or (kind is dict and not all(isinstance(key, str) for key in value)):
        raise _refuse(value, "@config_value")
    return bytes([tag]) + _SETTINGS[tag].write(codec, value)


def _read_uri(_: ValueReader) -> Any:
    """Refuse a URI, whose layout is that of CAF's parser."""
    msg = "the message contains a URI, which is not supported; send the URI as text"
    raise UnknownMessageType(msg)


#: No node, no actor, no error, the empty message.
NO_NODE: Final = atom("").to_bytes(8)
NO_ACTOR: Final = bytes(8) + NO_NODE
EMPTY: Final = b"\0\0" + sized(b"@<>")
NO_ERROR: Final = b"\0" + NO_NODE + EMPTY

_U32 = _number("@u32", 4, signed=False)
_STR = ValueType("@str", _read_text, _write_text)
_ACTOR = ValueType("@actor", _read_actor, _write_actor)
_TYPES: Final = {
    kind.name: kind
    for kind in (
        _number("@i8", 1, signed=True),
        _number("@u8", 1, signed=False),
        _number("@i16", 2, signed=True),
        _number("@u16", 2, signed=False),
        _number("@i32", 4, signed=True),
        _U32,
        _number("@i64", 8, signed=True),
        _number("@u64", 8, signed=False),
        _number("@message_id", 8, signed=False),
        _float("float", ">f", 4),
        _float("double", ">d", 8),
        ValueType("bool", _read_bool, lambda _, value: b"\1" if value else b"\0"),
        ValueType("@ldouble", _read_decimal, lambda codec, v: _write_text(codec, str(v))),
        ValueType("@unit", lambda _: None, lambda _codec, _value: b""),
        _STR,
        _wide_text("@u16str", "utf-16-be", 2),
        _wide_text("@u32str", "utf-32-be", 4),
        ValueType(
            "@charbuf",
            lambda reader: reader.take(reader.count()),
            lambda _, value: sized(bytes(value)),
        ),
        ValueType("@atom", lambda reader: Atom(atom_text(reader.number(8))), _write_atom),
        _ACTOR,
        _ACTOR._replace(name="@strong_actor_ptr"),
        _ACTOR._replace(name="@weak_actor_ptr"),
        _ACTOR._replace(name="@addr"),
        ValueType("@node", _read_node, _write_node),
        ValueType("@timespan", _read_span, _write_span),
        ValueType("@timestamp", lambda reader: _EPOCH + _read_span(reader), _write_time),
        ValueType("@duration", _read_duration, _write_duration),
        ValueType(
            "@config_value",
            _read_config_value,
            lambda codec, value: _write_setting(codec, value.value),
        ),
        ValueType(
            "@group_down",
            lambda reader: GroupDown(_read_group(reader)),
            lambda codec, value: _write_group(codec, value.group),
        ),
        ValueType("@error", _read_error, _write_error),
        ValueType("@message", _read_message, _write_message),
        ValueType("@group", _read_group, _write_group),
        _pair("@exit", ExitMessage),
        _pair("@down", DownMessage),
        _many("@strvec", _STR),
        _many("@strset", _STR, set),
        _many("@actorvec", _ACTOR),
        _many("@addrvec", _ACTOR),
        _map("@strmap", _STR, _STR),
        _map("@address_listing", _U32, _many("", _STR)),
    )
}

_SETTING: Final = ValueType("", _read_setting, _write_setting)

#: The kinds of a configuration's values, by tag.
_SETTINGS: Final = (
    _TYPES["@i64"],
    _TYPES["bool"],
    _TYPES["double"],
    _TYPES["@atom"],
    _TYPES["@timespan"],
    ValueType("", _read_uri, lambda _codec, _value: b""),
    _STR,
    _many("", _SETTING),
    _map("", _STR, _SETTING),
)
_TAGS: Final = {
    kind: tag
    for tag, kind in enumerate((int, bool, float, Atom, timedelta, None, str, list, dict))
    if kind is not None
}

#: The name of the type that a value of a class is sent as.
_NAMES: Final[dict[type, str]] = {
    bool: "bool",
    float: "double",
    F32: "float",
    str: "@str",
    bytes: "@charbuf",
    type(None): "@unit",
    Atom: "@atom",
    I8: "@i8",
    U8: "@u8",
    I16: "@i16",
    U16: "@u16",
    I32: "@i32",
    U32: "@u32",
    I64: "@i64",
    U64: "@u64",
    CafActor: "@actor",
    CafNode: "@node",
    CafGroup: "@group",
    GroupDown: "@group_down",
    Duration: "@duration",
    ConfigValue: "@config_value",
    CafError: "@error",
    ExitMessage: "@exit",
    DownMessage: "@down",
    Decimal: "@ldouble",
    datetime: "@timestamp",
    timedelta: "@timespan",
    tuple: "@message",
}

#: Types of fields whose annotation is a class of Python.
_ANNOTATED: Final = {**_NAMES, int: "@i32"}


class _Signature(NamedTuple):
    """A class that stands for a whole message."""

    cls: type
    #: The name of each type, and the constant atom at this place or None.
    names: tuple[str, ...]
    atoms: tuple[Atom | None, ...]
    fields: tuple[str, ...]


def is_signature(name: str) -> bool:
    """Return whether a name in `caf=…` describes a whole message."""
    return name.startswith(("@", "'")) or "+" in name


class CafMessage(NamedTuple):
    """A decoded message.

    Attributes:
        types: the names of its types.
        values: its values.
        content: the message for handlers.
    """

    types: tuple[str, ...]
    values: tuple[Any, ...]
    content: Any


def _as_is(actor: Any) -> Any:
    """Return the actor."""
    return actor


class MessageCodec:
    """Encodes and decodes messages with the types of one registry."""

    def __init__(
        self,
        registry: MessageRegistry = DEFAULT_REGISTRY,
        *,
        items: int = 500_000,
        actor_of: Callable[[CafActor | None], Any] = _as_is,
        actor_from: Callable[[Any], CafActor] = _as_is,
    ) -> None:
        """Create a codec.

        Args:
            registry: the classes of messages, with their names here.
            items: limit of items of lists and maps in one message.
            actor_of: returns the value for an actor in a message.
            actor_from: returns the actor for a ref.
        """
        self.registry, self.items = registry, items
        self.actor_of, self.actor_from = actor_of, actor_from
        self._heads: dict[tuple[str, ...], bytes] = {}
        self._records: dict[str, ValueType] = {}
        self._signatures: dict[tuple[str, ...], list[_Signature]] = {}
        self._signed: dict[type, _Signature] = {}
        self._known: object = None

    # --- decoding ---

    def decode(self, payload: bytes, offset: int = 0) -> CafMessage:
        """Return the message at an offset, which ends with the payload.

        Raises:
            MalformedPayload: the bytes are not a message.
            PayloadTooHeavy: it has too many items.
            UnknownMessageType: a type is not known here.
            MessageRefused: the constructor of a class raised.
        """
        reader = ValueReader(self, payload, offset)
        message = self._read(reader)
        reader.finish()
        return message

    def read_values(self, reader: ValueReader) -> tuple[Any, ...]:
        """Read a message inside another one."""
        with reader.nested():
            return self._read(reader).values

    def read_error(self, reader: CafReader) -> CafError | None:
        """Read the error with which an actor ended; None for an end without an error."""
        own = ValueReader(self, reader.buffer, reader.at)
        error = _read_error(own)
        reader.at = own.at
        return error

    def error_bytes(self, error: CafError | None) -> bytes:
        """Return an encoded error; None for the end without one."""
        return _write_error(self, error)

    def _read(self, reader: ValueReader) -> CafMessage:
        """Read a message."""
        text = reader.types()
        names = tuple(text.split("+")) if text else ()
        reader.budget -= len(names)
        if len(names) > TYPE_LIMIT or reader.budget < 0:
            msg = f"a message has {len(names):,} types, more than {TYPE_LIMIT:,}"
            raise PayloadTooHeavy(msg)
        values = tuple([(_TYPES.get(name) or self.named(name)).read(reader) for name in names])
        return CafMessage(names, values, self._content(names, values))

    def _content(self, names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
        """Return the message for handlers."""
        if self._known is not self.registry.foreign_types("caf"):
            self._index()
        for signature in self._signatures.get(names, ()):
            pairs = tuple(zip(signature.atoms, values, strict=True))
            if all(constant is None or constant == value for constant, value in pairs):
                contents = [value for constant, value in pairs if constant is None]
                return _construct(
                    signature.cls, dict(zip(signature.fields, contents, strict=True))
                )
        if len(values) == 1 and values[0].__class__ is not tuple:
            return values[0]
        return values or None

    # --- encoding ---

    def encode(self, message: Any) -> bytes:
        """Return an encoded message.

        Raises:
            NotSerializable: CAF has no type for the message, or a value does not fit its type.
        """
        kind = message.__class__
        if kind is int and -0x80000000 <= message < 0x80000000:  # the most frequent types first
            number: int = message
            return _INT_HEAD + number.to_bytes(4, signed=True)
        if kind is str:
            return _STR_HEAD + _write_text(self, message)
        if kind is tuple:
            names = tuple([self.name_of(value) for value in message])
            return self.encode_as(names, message)
        if message is None:
            return EMPTY
        if kind is TypedMessage:
            return self.encode_as(message.types, message.values)
        if self._known is not self.registry.foreign_types("caf"):
            self._index()
        signature = self._signed.get(kind)
        if signature is None:
            return self.encode_as((self.name_of(message),), (message,))
        fields = iter([getattr(message, name) for name in signature.fields])
        values = [next(fields) if const is None else const for const in signature.atoms]
        return self.encode_as(signature.names, values)

    def encode_as(self, names: tuple[str, ...], values: Sequence[Any]) -> bytes:
        """Return a message with the given names of types."""
        head = self._heads.get(names)
        if head is None:
            head = b"\0\0" + sized("+".join(("@<>", *names)).encode())
            if len(self._heads) < PLAN_LIMIT:
                self._heads[names] = head
        parts = [head]
        for name, value in zip(names, values, strict=True):
            parts.append((_TYPES.get(name) or self.named(name)).write(self, value))
        return b"".join(parts)

    def name_of(self, value: Any) -> str:
        """Return the name of the type that a value is sent as.

        Raises:
            NotSerializable: CAF has no type for it.
        """
        kind = value.__class__
        if kind is int:
            if value >= 1 << 63:
                return "@u64"
            return "@i32" if -0x80000000 <= value < 0x80000000 else "@i64"
        name = _NAMES.get(kind) or self.registry.foreign_name("caf", kind)
        if name is None and isinstance(value, ActorRef):
            name = "@actor"
        if name is None and isinstance(value, list | set | frozenset | dict):
            name = _container_name(value)
        if name is None or is_signature(name) and kind not in _NAMES and name not in _TYPES:
            text = f"{kind.__qualname__} has no type in CAF; "
            advice = 'register it: @message("name", caf="the name of its C++ type")'
            raise NotSerializable(text + advice)
        return name

    # --- types of programs ---

    def _index(self) -> None:
        """Index the classes that stand for whole messages."""
        types = self.registry.foreign_types("caf")
        self._signatures, self._signed, self._records, self._known = {}, {}, {}, types
        for name, cls in types.items():
            if is_signature(name):
                signature = self._signature(name, cls)
                self._signatures.setdefault(signature.names, []).append(signature)
                self._signed[cls] = signature

    def _signature(self, text: str, cls: type) -> _Signature:
        """Return the signature of a class."""
        parts = text.split("+")
        atoms = tuple([Atom(part[1:-1]) if part[:1] == "'" else None for part in parts])
        names = tuple(["@atom" if part.startswith("'") else part for part in parts])
        fields = tuple(_field_names(cls))
        if len(fields) != atoms.count(None):
            count = atoms.count(None)
            msg = f"{cls.__qualname__} has {len(fields)} fields, and {text!r} needs {count}"
            raise NotSerializable(msg)
        return _Signature(cls, names, atoms, fields)

    def named(self, name: str) -> ValueType:
        """Return the type of one of the program's classes by its name.

        Raises:
            UnknownMessageType: no class has this name.
        """
        kind = _TYPES.get(name) or self._records.get(name)
        if kind is None:
            cls = self.registry.foreign_types("caf").get(name)
            if cls is None:
                msg = (
                    f"CAF's type {name[:80]!r} is not registered here; declare a class with "
                    f'@message("…", caf="{name[:80]}")'
                )
                raise UnknownMessageType(msg)
            kind = self._records[name] = self._record(name, cls)
        return kind

    def _record(self, name: str, cls: type) -> ValueType:
        """Return the type of a class: its fields in order, or the number of an enum."""
        if issubclass(cls, Enum):
            return _enum(name, cls)
        hints = get_type_hints(cls)
        parts = [(field, self.annotated(hints[field])) for field in _field_names(cls)]

        def read(reader: ValueReader) -> Any:
            return _construct(cls, {field: kind.read(reader) for field, kind in parts})

        def write(codec: "MessageCodec", value: Any) -> bytes:
            return b"".join([kind.write(codec, getattr(value, field)) for field, kind in parts])

        return ValueType(name, read, write)

    def annotated(self, hint: Any) -> ValueType:
        """Return the type of a field by its annotation.

        Raises:
            NotSerializable: CAF has no type for it.
        """
        origin, args = get_origin(hint), get_args(hint)
        if origin in (Union, UnionType):
            rest = [arg for arg in args if arg is not type(None)]
            if len(rest) == 1 and (get_origin(rest[0]) or rest[0]) is ActorRef:
                return _ACTOR
        elif origin in (list, set, frozenset) or (origin is tuple and args[1:] == (...,)):
            if args[0] is bool and origin in (list, tuple):
                return _bits("", origin)
            return _many("", self.annotated(args[0]), origin)
        elif origin is tuple:
            return _tuple([self.annotated(arg) for arg in args])
        elif origin is dict:
            return _map("", self.annotated(args[0]), self.annotated(args[1]))
        elif (origin or hint) is ActorRef:
            return _ACTOR
        elif isinstance(hint, type):
            name = _ANNOTATED.get(hint) or self.registry.foreign_name("caf", hint)
            if name is not None:
                return self.named(name)
        msg = f"a field of type {hint!r:.80} has no type in CAF"
        raise NotSerializable(msg)


_INT_HEAD: Final = b"\0\0" + sized(b"@<>+@i32")
_STR_HEAD: Final = b"\0\0" + sized(b"@<>+@str")


def _container_name(value: Any) -> str | None:
    """Return the name of CAF's type for a list, set or dict; None if there is none."""
    if isinstance(value, dict):
        texts = all(isinstance(part, str) for pair in value.items() for part in pair)
        return "@strmap" if texts else None
    if all(isinstance(element, str) for element in value):
        return "@strvec" if isinstance(value, list) else "@strset"
    actors = all(isinstance(element, ActorRef | CafActor) for element in value)
    return "@actorvec" if actors and isinstance(value, list) else None


def _field_names(cls: type) -> list[str]:
    """Return the fields of a dataclass or named tuple."""
    if is_dataclass(cls):
        return [field.name for field in fields_of(cls) if field.init]
    return list(getattr(cls, "_fields", ()))


def _construct(cls: type, fields: dict[str, Any]) -> Any:
    """Return an instance of a class of the program."""
    try:
        return cls(**fields)
    except Exception as cause:
        msg = f"a {cls.__qualname__} is refused by its class: {cause!r:.200}"
        raise MessageRefused(msg) from cause


def _enum(name: str, cls: type[Enum]) -> ValueType:
    """Return the type of an enum with numbers: its number as `@i32`."""

    def read(reader: ValueReader) -> Any:
        number = reader.number(4, signed=True)
        try:
            return cls(number)
        except ValueError as cause:
            msg = f"{number} is not a member of {cls.__qualname__}"
            raise MessageRefused(msg) from cause

    def write(codec: "MessageCodec", value: Any) -> bytes:
        return _TYPES["@i32"].write(codec, value.value)

    return ValueType(name, read, write)


def _tuple(kinds: list[ValueType]) -> ValueType:
    """Return the type of a pair or tuple: its values in order."""

    def read(reader: ValueReader) -> Any:
        return tuple([kind.read(reader) for kind in kinds])

    def write(codec: "MessageCodec", value: Any) -> bytes:
        parts = zip(kinds, value, strict=True)
        return b"".join([kind.write(codec, element) for kind, element in parts])

    return ValueType("", read, write)
