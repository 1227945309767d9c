"""Events and states as JSON, so that what is stored can be read by SQL without callboard.

What JSON has is written as it is. A registered message inside is an object with its name under
`$type`; everything else that can travel is `{"$cbor": "…"}`, base64 of its form on the wire.
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

from callboard.kernel.codec import (
    BaspError,
    MessageRefused,
    MessageType,
    MessageVersion,
    PayloadCodec,
    RecordType,
    RemoteProtocolError,
    UnknownMessageType,
)
from callboard.kernel.codec import NotSerializable as CannotTravel
from callboard.kernel.errors import NotSerializable
from callboard.lease.errors import StateCorrupt, StateVersion
from callboard.support.dataclass import dataclass
from callboard.support.text import safe_repr

V = TypeVar("V")

_log: Final = logging.getLogger("callboard.entity")

#: Dropped fields that are logged at most, each once.
_TOLD_LIMIT: Final = 1000

#: What is never changed by anybody, so that it needs no copy.
IMMUTABLE: Final = frozenset({int, str, bytes, bool, float, type(None)})

#: What other software has as well, where JSON does not.
_ANYWHERE: Final = frozenset({int, float, bytes, datetime, Decimal, UUID})

#: Integers that every reader of JSON takes: those between are exact as a double.
_EXACT: Final = 2**53

#: What other values are in.
_NESTING: Final[frozenset[type]] = frozenset({dict, list})


class _Missing(UnknownMessageType):
    """A stored value has a type that this program lacks."""

    def __init__(self, name: object) -> None:
        super().__init__(f"no message is registered as {name!r} in this program")
        self.name = name if isinstance(name, str) else ""


#: What a value raises that cannot be written; a `ValueError` is a text without a form in UTF-8.
_CANNOT_WRITE: Final = (CannotTravel, ValueError, RecursionError)

#: What a text raises that is well-formed, and of which this program has no or another class.
OTHER_RELEASE: Final = (UnknownMessageType, MessageVersion, MessageRefused)

#: What a text raises that is no value.
_NO_VALUE: Final = (
    ValueError, TypeError, KeyError, RecursionError, RemoteProtocolError
)  # fmt: skip


def _why(error: BaseException) -> str:
    """Return the text of an error; that of the interpreter's stack says nothing of values."""
    return "it is nested too deep" if isinstance(error, RecursionError) else str(error)


def _encoder() -> Callable[[Any], str]:
    """Return what writes JSON; each event goes there, so nothing is made anew for one."""
    make, join = vars(json.encoder)["c_make_encoder"], "".join
    if make is None:  # another Python
        return json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    escaped = vars(json.encoder)["encode_basestring"]
    # No look for cycles: what is written was made of the value, and has none.
    parts = make(None, None, escaped, None, ":", ",", False, False, True)  # noqa: FBT003
    return lambda value: join(parts(value, 0))


_Encode: Final = _encoder()
_Escaped: Final[Callable[[str], str]] = vars(json.encoder)["encode_basestring"]
_DECODER: Final = json.JSONDecoder()
_SCAN: Final[Callable[[str, int], tuple[Any, int]]] = vars(_DECODER)["scan_once"]


def _decoded(text: str) -> Any:
    """Return what a text holds; a replay reads a million of them.

    Raises:
        ValueError: it is no JSON.
    """
    try:
        value, end = _SCAN(text, 0)
    except StopIteration:
        return _DECODER.decode(text)  # which says where it is wrong
    return value if end == len(text) else _DECODER.decode(text)


def _has_plain_keys(value: dict[Any, Any]) -> bool:
    """Return whether all keys are texts that JSON objects have.

    Raises:
        UnicodeEncodeError: UTF-8 cannot express one.
    """
    for key in value:
        if type(key) is not str or key[:1] == "$":
            return False
        if not key.isascii():
            key.encode()
    return True


@dataclass(frozen=True, slots=True)
class UnreadableValue:
    """A stored value that this program cannot read, with what is stored of it.

    It stands where the value would, in lists for people such as `queue.dead()`.

    Attributes:
        type_name: the name under which its class is registered; "" where it has none.
        body: the value as it is stored, JSON.
        why: why this program cannot read it.
    """

    type_name: str
    body: str
    why: str


def type_of_body(body: str) -> str:
    """Return the name of the registered type of a stored value; "" where it has none."""
    try:
        plain = _decoded(body)
    except (ValueError, RecursionError):
        return ""
    name = plain.get("$type") if isinstance(plain, dict) else None
    return name if isinstance(name, str) else ""


class EventSerializer:
    """Writes and reads values with the message types of a node."""

    def __init__(self, codec: PayloadCodec) -> None:
        """Make one on the codec of a node."""
        self._codec = codec
        #: Fields that were dropped and are in the log, with their types.
        self._told_fields: set[tuple[str, str]] = set()
        #: By registered type, its fields, each with the text that stands before its value.
        self._fields: dict[RecordType, list[tuple[str, str]]] = {}

    def kind_of(self, event: object) -> RecordType:
        """Return the registered type of an event.

        Raises:
            NotSerializable: its class is no registered dataclass or named tuple.
        """
        cls = type(event)
        kind = self._codec.registry.type_of(cls)
        if not isinstance(kind, RecordType):
            advice = self._codec.registry.advice(cls)
            msg = f"an event is a registered message, and {cls.__qualname__} is none; {advice}"
            raise NotSerializable(msg)
        return kind

    def kind_named(self, name: str) -> MessageType | None:
        """Return the registered type of a name; None for one that this program lacks."""
        registry = self._codec.registry
        return registry.by_name.get(name) or registry.type_named(name)

    def note_dropped(self, name: str, fields: Collection[str]) -> None:
        """Count fields that are stored and that the class lacks; log each one once.

        What is stored next of the value has them no more.
        """
        self._codec.dropped_fields += len(fields)
        for field in fields:
            if (name, field) not in self._told_fields and len(self._told_fields) < _TOLD_LIMIT:
                self._told_fields.add((name, field))
                _log.warning(
                    "field %r of %s is stored, and the class in this program lacks it: its "
                    "value is dropped. If it was renamed, write @upcast(%r, 1)",
                    field,
                    name,
                    name,
                )

    def kinds_below(self, classes: Iterable[type]) -> list[MessageType]:
        """Return the registered types whose values are of some classes."""
        bases = tuple(classes)
        registry = self._codec.registry
        found = {registry.type_of(cls) for cls in bases}
        found |= {kind for cls, kind in registry.by_class.items() if issubclass(cls, bases)}
        return sorted((kind for kind in found if kind is not None), key=attrgetter("name"))

    def write(self, value: object) -> str:
        """Return a value as JSON.

        Raises:
            NotSerializable: it has no form on the wire.
        """
        try:
            return _Encode(self._plain(value))
        except _CANNOT_WRITE as error:
            msg = f"{safe_repr(value):.80} cannot be stored: {_why(error)}"
            raise NotSerializable(msg) from None

    def write_fields(self, kind: RecordType, value: object) -> str:
        """Return the fields of a registered record as a JSON object.

        Texts and numbers, which most fields are, are written without a general encoder.
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
            for before, name in fields:
                field = getattr(value, name)
                if field.__class__ is str:
                    if not field.isascii():
                        field.encode()
                    text += before + _Escaped(field)
                elif field.__class__ is int and -_EXACT <= field <= _EXACT:
                    text += before + repr(field)
                else:
                    text += before + _Encode(self._plain(field))
            return text + "}" if text else "{}"
        except _CANNOT_WRITE as error:
            msg = f"{kind.name} cannot be stored: {_why(error)}"
            raise NotSerializable(msg) from None

    def read(self, text: str) -> Any:
        """Return the value of a text that `write` made.

        Raises:
            StateCorrupt: it is none.
            StateVersion: this program lacks one of its types, or has another release of it.
        """
        try:
            value: Any = _decoded(text)
            if value.__class__ is dict and "$type" not in value and "$cbor" not in value:
                for field in value.values():
                    if field.__class__ in _NESTING:
                        break
                else:
                    return value  # nearly every event
        except (ValueError, RecursionError) as error:
            msg = f"what is stored cannot be read: {text[:200]!r} ({_why(error)})"
            raise StateCorrupt(msg) from None
        return self._reading(text, lambda: self._value(value))

    @staticmethod
    def _reading(text: str, make: Callable[[], V]) -> V:
        """Return what is made of a text.

        Raises:
            StateCorrupt: it is no value.
            StateVersion: this program lacks one of its types, or has another release of it.
        """
        try:
            return make()
        except OTHER_RELEASE as error:
            msg = f"this program cannot read what is stored: {text[:200]!r} ({error})"
            other = StateVersion(msg)
            other.missing = getattr(error, "name", "")
            raise other from None
        except _NO_VALUE as error:
            msg = f"what is stored cannot be read: {text[:200]!r} ({_why(error)})"
            raise StateCorrupt(msg) from None

    def read_record(self, text: str) -> tuple[RecordType, dict[str, Any]]:
        """Return the registered type of a stored record, and its fields before it is made.

        Raises:
            StateCorrupt: it is no record.
            StateVersion: this program lacks its type.
        """
        plain = self._reading(text, lambda: _decoded(text))
        name = plain.pop("$type", None) if isinstance(plain, dict) else None
        kind = self.kind_named(name) if isinstance(name, str) else None
        if isinstance(kind, RecordType):
            fields = self._reading(text, lambda: {k: self._value(v) for k, v in plain.items()})
            return kind, fields
        value = self.read(text)  # which says why not
        msg = f"a record has to be stored, and it is a {type(value).__name__}: {text[:200]!r}"
        raise StateCorrupt(msg)

    def build(self, kind: MessageType, fields: Any) -> Any:
        """Return the record of a registered type that has these fields.

        Raises:
            StateCorrupt: they are no fields.
            StateVersion: the class in this program has other ones, or refuses them.
        """
        return self._reading(str(kind.name), lambda: kind.build(fields, self.note_dropped))

    def read_or_show(self, text: str) -> Any:
        """Return the value of a text, or an `UnreadableValue` that shows the text."""
        try:
            return self.read(text)
        except (StateCorrupt, StateVersion) as error:
            return UnreadableValue(type_of_body(text), text, str(error))

    def read_loosely(self, text: str) -> Any:
        """Return what a text holds without any class: for logs.

        Numbers, bytes, times and the like that JSON lacks are themselves; records stay objects
        with `$type`, and what else has a form of ours only stays as it is written.

        Raises:
            StateCorrupt: it is no JSON.
        """
        try:
            return self._loose(_decoded(text))
        except (ValueError, RecursionError) as error:
            msg = f"what is stored cannot be read: {text[:200]!r} ({_why(error)})"
            raise StateCorrupt(msg) from None

    def _loose(self, plain: Any) -> Any:
        """Return a part of that."""
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
        """Return a value that later changes of the original do not reach.

        Raises:
            NotSerializable: it has no form on the wire.
        """
        if type(value) in IMMUTABLE:
            return value
        try:
            return self._codec.decode_whole(self._codec.encode(value))
        except CannotTravel as error:
            raise NotSerializable(str(error)) from None

    def _plain(self, value: Any) -> Any:
        """Return what JSON has for a value."""
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
        """Return the value that `_plain` made this of."""
        if isinstance(plain, list):
            return [self._value(item) for item in plain]
        if not isinstance(plain, dict):
            return plain
        if "$cbor" in plain:
            return self._codec.decode_whole(base64.b64decode(plain["$cbor"]))
        if "$type" not in plain and _NESTING.isdisjoint(map(type, plain.values())):
            return plain  # nearly every event
        fields = {key: self._value(item) for key, item in plain.items() if key != "$type"}
        if "$type" not in plain:
            return fields
        kind = self.kind_named(plain["$type"])
        if kind is None:
            raise _Missing(plain["$type"])
        return kind.build(fields, self.note_dropped)
