"""Events and states as JSON, so that SQL can read the stored data without callboard.

JSON values are written as they are. A registered message inside a value becomes an object with
its name under `$type`. Any other serializable value is `{"$cbor": "…"}`, the base64 of its form
on the wire.
"""

import base64
import json
import logging
import math
from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from decimal import Decimal
from operator import attrgetter
from typing import Any, Final, TypeVar
from uuid import UUID

from callboard.kernel.codec import MessageType, PayloadCodec, RecordType
from callboard.kernel.errors import NotSerializable
from callboard.lease.errors import StateCorrupt, StateVersion
from callboard.protocol_errors import (
    BaspError,
    MessageRefused,
    MessageVersion,
    RemoteProtocolError,
    UnknownMessageType,
)
from callboard.protocol_errors import NotSerializable as CannotTravel
from callboard.support.dataclass import dataclass
from callboard.support.text import safe_repr

V = TypeVar("V")

_log: Final = logging.getLogger("callboard.entity")

#: Dropped fields that are logged, each once.
_LOGGED_FIELDS_LIMIT: Final = 1000

#: Types of immutable values, which need no copy.
IMMUTABLE: Final = frozenset({int, str, bytes, bool, float, type(None)})

#: Types that other software knows too, although JSON lacks them.
_ANYWHERE: Final = frozenset({int, float, bytes, datetime, Decimal, UUID})

#: Bound of the integers that every JSON reader keeps: a double holds them exactly.
_EXACT: Final = 2**53

#: Types of values with values inside.
_NESTING: Final[frozenset[type]] = frozenset({dict, list})


class _Missing(UnknownMessageType):
    """A stored value has a type that this program lacks."""

    def __init__(self, name: object) -> None:
        super().__init__(f"no message is registered as {name!r} in this program")
        self.name = name if isinstance(name, str) else ""


#: Errors of a value that cannot be written; `ValueError`: a text that UTF-8 cannot express.
_CANNOT_WRITE: Final = (CannotTravel, ValueError, RecursionError)

#: Errors of a well-formed text whose class is missing here, or differs.
OTHER_RELEASE: Final = (UnknownMessageType, MessageVersion, MessageRefused)

#: Errors of a text that is not a stored value.
_NO_VALUE: Final = (
    ValueError, TypeError, KeyError, RecursionError, RemoteProtocolError
)  # fmt: skip


def _reason(error: BaseException) -> str:
    """Return the text of an error; for a recursion error, a text about the value."""
    return "it is nested too deep" if isinstance(error, RecursionError) else str(error)


def _encoder() -> Callable[[Any], str]:
    """Return a fast JSON encoder; it runs for each event, so it reuses one C encoder."""
    make, join = vars(json.encoder)["c_make_encoder"], "".join
    if make is None:  # a Python without the C encoder
        return json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    escaped = vars(json.encoder)["encode_basestring"]
    # There is no check for cycles, because `_plain` never builds a value with one.
    parts = make(None, None, escaped, None, ":", ",", False, False, True)  # noqa: FBT003
    return lambda value: join(parts(value, 0))


_Encode: Final = _encoder()
_Escaped: Final[Callable[[str], str]] = vars(json.encoder)["encode_basestring"]
_DECODER: Final = json.JSONDecoder()
_SCAN: Final[Callable[[str, int], tuple[Any, int]]] = vars(_DECODER)["scan_once"]


def _decoded(text: str) -> Any:
    """Return the value of a JSON text. Fast, because a replay decodes a million texts.

    Raises:
        ValueError: the text is not JSON.
    """
    try:
        value, end = _SCAN(text, 0)
    except StopIteration:
        return _DECODER.decode(text)  # raises with the position of the error
    return value if end == len(text) else _DECODER.decode(text)


def _has_plain_keys(value: dict[Any, Any]) -> bool:
    """Return whether all keys are plain texts, as in JSON objects.

    Raises:
        UnicodeEncodeError: UTF-8 cannot express a key.
    """
    for key in value:
        if type(key) is not str or key[:1] == "$":
            return False
        if not key.isascii():
            key.encode()
    return True


@dataclass(frozen=True, slots=True)
class UnreadableValue:
    """A stored value that this program cannot read, with its stored text.

    Lists for people, such as `queue.dead()`, contain it in place of the value.

    Attributes:
        type_name: the registered name of its class; "" if it has none.
        body: the stored value, as JSON.
        why: why this program cannot read it.
    """

    type_name: str
    body: str
    why: str


def type_of_body(body: str) -> str:
    """Return the registered name of a stored value's type; "" if it has none."""
    try:
        plain = _decoded(body)
    except (ValueError, RecursionError):
        return ""
    name = plain.get("$type") if isinstance(plain, dict) else None
    return name if isinstance(name, str) else ""


class EventSerializer:
    """Serializes values as JSON, with the message types of a node."""

    def __init__(self, codec: PayloadCodec) -> None:
        """Create a serializer that uses the codec of a node."""
        self._codec = codec
        #: Dropped fields that were logged, with their types.
        self._logged_fields: set[tuple[str, str]] = set()
        #: By registered type: its fields, each with the JSON text before its value.
        self._fields: dict[RecordType, list[tuple[str, str]]] = {}

    def kind_of(self, event: object) -> RecordType:
        """Return the registered type of an event.

        Raises:
            NotSerializable: the value's class is not a registered dataclass or named tuple.
        """
        cls = type(event)
        kind = self._codec.registry.type_of(cls)
        if not isinstance(kind, RecordType):
            advice = self._codec.registry.advice(cls)
            msg = f"an event must be a registered message; {cls.__qualname__} is not: {advice}"
            raise NotSerializable(msg)
        return kind

    def kind_named(self, name: str) -> MessageType | None:
        """Return the registered type of a name; None if this program lacks it."""
        registry = self._codec.registry
        return registry.by_name.get(name) or registry.type_named(name)

    def note_dropped(self, name: str, fields: Collection[str]) -> None:
        """Count stored fields that the class lacks; log each field once.

        When the value is stored again, these fields are lost.
        """
        self._codec.dropped_fields += len(fields)
        for field in fields:
            is_logged = (name, field) in self._logged_fields
            if not is_logged and len(self._logged_fields) < _LOGGED_FIELDS_LIMIT:
                self._logged_fields.add((name, field))
                _log.warning(
                    "field %r of %s is stored, but the class in this program lacks it: its "
                    "value is dropped. If the field was renamed, write @upcast(%r, 1)",
                    field,
                    name,
                    name,
                )

    def kinds_below(self, classes: Iterable[type]) -> list[MessageType]:
        """Return the registered types of some classes and their subclasses."""
        bases = tuple(classes)
        registry = self._codec.registry
        kinds = {registry.type_of(cls) for cls in bases}
        kinds |= {kind for cls, kind in registry.by_class.items() if issubclass(cls, bases)}
        return sorted((kind for kind in kinds if kind is not None), key=attrgetter("name"))

    def write(self, value: object) -> str:
        """Return a value as JSON.

        Raises:
            NotSerializable: the value cannot be serialized.
        """
        try:
            return _Encode(self._plain(value))
        except _CANNOT_WRITE as error:
            msg = f"{safe_repr(value):.80} cannot be stored: {_reason(error)}"
            raise NotSerializable(msg) from None

    def write_fields(self, kind: RecordType, value: object) -> str:
        """Return the fields of a registered record as a JSON object.

        Texts and integers, the most frequent fields, skip the general encoder.
        """
        fields = self._fields.get(kind)
        if fields is None:
            names = kind.names_of(value)
            starts = "{" + "," * (len(names) - 1)
            fields = [
                (f"{start}{_Escaped(name)}:", name)
                for start, name in zip(starts, names, strict=False)
            ]
            self._fields[kind] = fields
        text = ""
        try:
            for prefix, name in fields:
                field = getattr(value, name)
                if field.__class__ is str:
                    if not field.isascii():
                        field.encode()
                    text += prefix + _Escaped(field)
                elif field.__class__ is int and -_EXACT <= field <= _EXACT:
                    text += prefix + repr(field)
                else:
                    text += prefix + _Encode(self._plain(field))
            return text + "}" if text else "{}"
        except _CANNOT_WRITE as error:
            msg = f"{kind.name} cannot be stored: {_reason(error)}"
            raise NotSerializable(msg) from None

    def read(self, text: str) -> Any:
        """Return the value of a text written by `write`.

        Raises:
            StateCorrupt: the text is not a stored value.
            StateVersion: this program lacks one of its types, or has another version of it.
        """
        try:
            value: Any = _decoded(text)
            if value.__class__ is dict and "$type" not in value and "$cbor" not in value:
                for field in value.values():
                    if field.__class__ in _NESTING:
                        break
                else:
                    return value  # usual for an event
        except (ValueError, RecursionError) as error:
            msg = f"the stored text cannot be read: {text[:200]!r} ({_reason(error)})"
            raise StateCorrupt(msg) from None
        return self._reading(text, lambda: self._value(value))

    @staticmethod
    def _reading(text: str, make: Callable[[], V]) -> V:
        """Call a function that reads a text, and convert its errors.

        Raises:
            StateCorrupt: the text is not a stored value.
            StateVersion: this program lacks one of its types, or has another version of it.
        """
        try:
            return make()
        except OTHER_RELEASE as error:
            msg = f"this program cannot read the stored text {text[:200]!r} ({error})"
            other = StateVersion(msg)
            other.missing = getattr(error, "name", "")
            raise other from None
        except _NO_VALUE as error:
            msg = f"the stored text cannot be read: {text[:200]!r} ({_reason(error)})"
            raise StateCorrupt(msg) from None

    def read_record(self, text: str) -> tuple[RecordType, dict[str, Any]]:
        """Return the registered type and the fields of a stored record.

        Raises:
            StateCorrupt: the text is not a record.
            StateVersion: this program lacks its type.
        """
        plain = self._reading(text, lambda: _decoded(text))
        name = plain.pop("$type", None) if isinstance(plain, dict) else None
        kind = self.kind_named(name) if isinstance(name, str) else None
        if isinstance(kind, RecordType):
            fields = self._reading(text, lambda: {k: self._value(v) for k, v in plain.items()})
            return kind, fields
        value = self.read(text)  # may raise an error with a better reason
        msg = f"the stored value must be a record, not a {type(value).__name__}: {text[:200]!r}"
        raise StateCorrupt(msg)

    def build(self, kind: MessageType, fields: Any) -> Any:
        """Return a record of a registered type with these fields.

        Raises:
            StateCorrupt: the fields are malformed.
            StateVersion: the class in this program has other fields, or refuses these.
        """
        return self._reading(str(kind.name), lambda: kind.build(fields, self.note_dropped))

    def read_or_show(self, text: str) -> Any:
        """Return the value of a text, or an `UnreadableValue` with the text."""
        try:
            return self.read(text)
        except (StateCorrupt, StateVersion) as error:
            return UnreadableValue(type_of_body(text), text, str(error))

    def read_loosely(self, text: str) -> Any:
        """Return the content of a text for logs, without creating objects of users' classes.

        Numbers, bytes, times and similar values are restored. Records stay objects with
        `$type`, and values that only callboard can read stay as they are written.

        Raises:
            StateCorrupt: the text is not JSON.
        """
        try:
            return self._loose(_decoded(text))
        except (ValueError, RecursionError) as error:
            msg = f"the stored text cannot be read: {text[:200]!r} ({_reason(error)})"
            raise StateCorrupt(msg) from None

    def _loose(self, plain: Any) -> Any:
        """Return a part of the content without any class."""
        if isinstance(plain, list):
            return [self._loose(item) for item in plain]
        if not isinstance(plain, dict):
            return plain
        if plain.keys() == {"$cbor"}:
            try:
                value = self._codec.decode_whole(base64.b64decode(plain["$cbor"]))
            except (CannotTravel, BaspError, ValueError, TypeError):
                return plain
            return value if type(value) in _ANYWHERE else plain
        return {key: self._loose(item) for key, item in plain.items()}

    def copy(self, value: Any) -> Any:
        """Return a copy of a value, which later changes of the original do not affect.

        Raises:
            NotSerializable: the value cannot be serialized.
        """
        if type(value) in IMMUTABLE:
            return value
        try:
            return self._codec.decode_whole(self._codec.encode(value))
        except CannotTravel as error:
            raise NotSerializable(str(error)) from None

    def _plain(self, value: Any) -> Any:
        """Return the JSON form of a value."""
        kind = type(value)
        if kind is str:
            if not value.isascii():
                value.encode()
            return value
        if value is None or kind is bool:
            return value
        if kind is int and -_EXACT <= value <= _EXACT:
            return value
        if kind is float and math.isfinite(value):
            return value
        if kind is list:
            return [self._plain(item) for item in value]
        if kind is dict and _has_plain_keys(value):
            return {key: self._plain(item) for key, item in value.items()}
        record = self._codec.registry.type_of(kind)
        if isinstance(record, RecordType):
            fields = {name: getattr(value, name) for name in record.names_of(value)}
            plain = {name: self._plain(field) for name, field in fields.items()}
            return {"$type": record.name, **plain}
        return {"$cbor": base64.b64encode(self._codec.encode(value)).decode()}

    def _value(self, plain: Any) -> Any:
        """Return the value of a JSON form made by `_plain`."""
        if isinstance(plain, list):
            return [self._value(item) for item in plain]
        if not isinstance(plain, dict):
            return plain
        if "$cbor" in plain:
            return self._codec.decode_whole(base64.b64decode(plain["$cbor"]))
        if "$type" not in plain and _NESTING.isdisjoint(map(type, plain.values())):
            return plain  # usual for an event
        fields = {key: self._value(item) for key, item in plain.items() if key != "$type"}
        if "$type" not in plain:
            return fields
        kind = self.kind_named(plain["$type"])
        if kind is None:
            raise _Missing(plain["$type"])
        return kind.build(fields, self.note_dropped)
