"""The registry of message types: which classes may travel, and under which names.

A registered class travels with its name and its field names, so nodes of neighboring
releases understand each other: a field that is missing takes its default, one that is
unknown is dropped and counted, and one that is missing without a default is
:class:`callboard.basp.errors.MessageVersion`. Only registered classes are ever constructed
from the bytes of a peer.
"""

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from enum import Enum, Flag
from functools import partial
from inspect import Parameter, signature
from operator import attrgetter
from sys import getrefcount
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from callboard.basp import errors
from callboard.basp.cbor import tags
from callboard.basp.cbor.reader import RunsUserCode, TagReader
from callboard.basp.cbor.writer import (
    TEXT_HEADS,
    Encoder,
    EncoderTable,
    encode_text,
    head,
    too_deep,
)
from callboard.support.construction import Restoring, constructor_of, runs_code_of_users
from callboard.support.dataclass import awaited_fields
from callboard.support.text import describe

#: A type name travels with every message of its type; 255 characters hide no abuse.
NAME_LIMIT: Final = 255

#: Combinations of flags that peers sent and a class keeps, though nothing refers to them.
SENT_FLAGS: Final = 64
#: References to a combination that nothing else refers to: the map of its class, a local name,
#: and the argument of the function that counts.
_UNUSED: Final = 3

# A dataclass that is also one of these holds content that its fields do not show.
_BUILTIN = (int, float, complex, str, bytes, bytearray, tuple, list, dict, set, frozenset)
#: Types of which no instance can be sent in any form.
_NEVER_TRAVEL: Final = frozenset(
    {FunctionType, MethodType, BuiltinMethodType, ModuleType, type}
)
_REGISTERED_HEAD: Final = head(0xC0, tags.REGISTERED) + b"\x82"

#: Called with the name of a type and the fields of a message that its class here lacks.
NoteDropped = Callable[[str, Collection[str]], None]


class MessageType:
    """What the codec has to know about one class, computed once.

    Attributes:
        name: name on the wire, under which instances are sent and stored.
        names: that name, and others under which they are read.
        cls: the class.
        field_names: fields in wire order; empty for all but records.
        shape: what classes of one name must have in common to replace each other.
        wire_name: CBOR of the name.
    """

    def __init__(self, name: str, cls: type) -> None:
        """Take note of a class; those derived from this one examine it."""
        self.name = name
        self.names: tuple[str, ...] = (name,)
        self.cls = cls
        self.field_names: tuple[str, ...] = ()
        self.shape: tuple[str, ...] = ()
        self.wire_name = encode_text(name)
        #: Whether reading one runs functions of its user, which may take any time.
        self.runs_code = runs_code_of_users(cls)

    def names_of(self, value: object) -> tuple[str, ...]:
        """Return the names of the fields of an instance."""
        return self.field_names

    def written(self, value: Any) -> object:
        """Return what travels of an instance; what cannot travel raises `LookupError`."""
        raise NotImplementedError

    def make_encoder(self, table: EncoderTable) -> Encoder:
        """Return the encoder of instances; ``table`` encodes what is written of them."""
        prefix, written = _REGISTERED_HEAD + self.wire_name, self.written
        return lambda value, depth: prefix + table.encode(written(value), depth)

    def build(self, content: object, note_dropped: NoteDropped | None = None) -> object:
        """Make an instance of what a peer sent.

        Raises:
            MessageVersion: the peer has another release of the class.
            MessageRefused: the constructor raised.
            MalformedPayload: the content has the wrong shape.
        """
        raise NotImplementedError


class EnumType(MessageType):
    """An enum: its members travel as their names."""

    def __init__(self, name: str, cls: type[Enum]) -> None:
        super().__init__(name, cls)
        self._members = cls.__members__
        self.shape = tuple(self._members)

    def make_encoder(self, table: EncoderTable) -> Encoder:
        """Return the encoder of members."""
        prefix = _REGISTERED_HEAD + self.wire_name
        names = {name: prefix + encode_text(name) for name in self._members}
        return lambda member, _depth: names[member.name]

    def build(self, content: object, note_dropped: NoteDropped | None = None) -> object:
        """Return the member of a name.

        Raises:
            MessageVersion: there is none.
            MalformedPayload: the content is not a text.
        """
        if type(content) is not str:
            msg = f"enum {self.name!r}: member must be a name, not {type(content).__name__}"
            raise errors.MalformedPayload(msg)
        member = self._members.get(content)
        if member is None:
            msg = (
                f"enum {self.name!r} has no member {content[:80]!r} on this node; "
                f"upgrade this node first, then the senders"
            )
            raise errors.MessageVersion(msg)
        return member


class FlagType(MessageType):
    """Flags: a set of them travels as an integer.

    Python keeps each combination that was ever made in its class. Those that peers sent are
    dropped again, the oldest first, when nothing else refers to them.
    """

    def __init__(self, name: str, cls: type[Flag]) -> None:
        super().__init__(name, cls)
        self.shape = ("flag",)
        # Combinations that peers sent first.
        self._sent: OrderedDict[int, Flag] = OrderedDict()
        # All combinations that were made so far.
        self._known: dict[Any, Any] = cls._value2member_map_

    def written(self, value: Any) -> object:
        """Return the integer."""
        return int(value.value)

    def build(self, content: object, note_dropped: NoteDropped | None = None) -> object:
        """Return the flags of an integer.

        Raises:
            MessageVersion: it has a bit that the class does not know.
            MalformedPayload: the content is not an integer.
        """
        if type(content) is not int:
            msg = f"flags {self.name!r}: value must be an integer, not {type(content).__name__}"
            raise errors.MalformedPayload(msg)
        known = self._known.get(content)
        if known is not None:
            return known
        try:
            made = self.cls(content)
        except ValueError:
            made = None
        except BaseException as cause:  # `_missing_` of the user
            raise refused(self.name, cause) from cause
        if made is not None:
            self._note_sent(made)
        # Depending on its boundary, a flag drops bits that it does not know.
        if getattr(made, "value", None) != content:
            msg = (
                f"flags {self.name!r} do not know all bits of {content:#x} on this node; "
                f"upgrade this node first, then the senders"
            )
            raise errors.MessageVersion(msg)
        return made

    def _note_sent(self, made: Any) -> None:
        """Drop combinations that nothing refers to, when many of peers are kept."""
        sent, known = self._sent, self._known
        sent[made.value] = made
        del made
        for _ in range(min(2, len(sent) - SENT_FLAGS)):  # two, so that the number goes down
            value, oldest = sent.popitem(last=False)
            if getrefcount(oldest) > _UNUSED:
                sent[value] = oldest
            else:
                known.pop(value, None)


class RecordType(MessageType):
    """A dataclass or a named tuple: its instances travel as maps of their fields.

    Attributes:
        construct: makes an instance of the values of all fields that the constructor takes, in
            order or by name; they keep the values that were sent.
        wire_keys: CBOR of the field names; the map's head is in front of the first.
        is_flat: whether the constructor takes exactly the fields, in order.
    """

    def __init__(self, name: str, cls: type) -> None:
        """Examine ``cls``.

        Raises:
            NotSerializable: the class is neither a dataclass nor a named tuple, or its
                instances have content that is not a field.
        """
        super().__init__(name, cls)
        is_named_tuple = issubclass(cls, tuple) and hasattr(cls, "_fields")
        if not dataclasses.is_dataclass(cls) and not is_named_tuple:
            why = "it is not a dataclass, named tuple or enum; decorate it with @dataclass"
            raise self._unfit(why)
        self._parameters = _parameters(cls)
        # Fields that __init__ does not take are set after it.
        self._late: frozenset[str] = frozenset()
        self._defaults: dict[str, Callable[[], object] | None] = {}
        if dataclasses.is_dataclass(cls):
            self._examine_dataclass(cls, dataclasses.fields(cls))
        else:
            self._examine_named_tuple(cls)
        self.field_names = tuple(self._defaults)
        self.shape = self.field_names or ("record",)
        keys = [encode_text(field) for field in self.field_names]
        self.wire_keys = (head(0xA0, len(keys)) + b"".join(keys[:1]), *keys[1:])
        self.is_flat = all(
            parameter.kind is Parameter.POSITIONAL_OR_KEYWORD for parameter in self._parameters
        )
        self.is_flat &= self.field_names == tuple(each.name for each in self._parameters)
        self.construct: Callable[..., Any] = constructor_of(cls, self.field_names)

    def _unfit(self, why: str) -> errors.NotSerializable:
        """Return the error for a class that cannot travel."""
        what = f"cannot register {_full_name(self.cls)} as message {self.name!r}"
        return errors.NotSerializable(f"{what}: {why}")

    def _examine_dataclass(
        self, cls: type, fields: "tuple[dataclasses.Field[Any], ...]"
    ) -> None:
        """Note the fields of a dataclass, their defaults, and which are set late."""
        if issubclass(cls, _BUILTIN):
            why = (
                "it is also a built-in container or scalar; hold that value in a field instead"
            )
            raise self._unfit(why)
        self._defaults = {field.name: _default_maker(field) for field in fields}
        for each in self._parameters:
            if each.name not in self._defaults and _is_required(each):
                why = (
                    f"its constructor wants {each.name!r}, which is not a field; "
                    f"give it a default"
                )
                raise self._unfit(why)
        self._late = frozenset(self._defaults) - {each.name for each in self._parameters}

    def _examine_named_tuple(self, cls: Any) -> None:
        """Note the fields of a named tuple and their defaults."""
        defaults: dict[str, object] = getattr(cls, "_field_defaults", {})
        self._defaults = {
            name: partial(defaults.__getitem__, name) if name in defaults else None
            for name in cls._fields
        }

    def make_encoder(self, table: EncoderTable) -> Encoder:
        """Return the encoder of instances; ``table`` encodes their fields.

        It interleaves the constant heads and names with the encoded fields.
        """
        limit = table.depth_limit
        first = _REGISTERED_HEAD + self.wire_name + self.wire_keys[0]
        if not self.field_names:
            return lambda _value, _depth: first
        values_of = attrgetter(*self.field_names)
        if len(self.field_names) == 1:

            def encode_single(value: object, depth: int) -> bytes:
                if depth >= limit:
                    raise too_deep(limit)
                field: Any = values_of(value)
                if type(field) is str:  # as `encode_text`, without the call
                    text = field.encode()
                    size = len(text)
                    return first + (TEXT_HEADS[size] if size < 256 else head(0x60, size)) + text
                return first + table[type(field)](field, depth + 1)

            return encode_single
        blank = [part for key in (first, *self.wire_keys[1:]) for part in (key, b"")]

        def encode(value: object, depth: int) -> bytes:
            if depth >= limit:
                raise too_deep(limit)
            inner = depth + 1
            parts = blank.copy()
            parts[1::2] = [table[type(field)](field, inner) for field in values_of(value)]
            return b"".join(parts)

        return encode

    def build(self, content: object, note_dropped: NoteDropped | None = None) -> object:
        """Make an instance of a map of fields.

        Raises:
            MessageVersion: a field without default is missing.
            MessageRefused: the constructor raised.
            MalformedPayload: the content is not a map.
        """
        if type(content) is not dict:
            kind = type(content).__name__
            msg = f"message {self.name!r}: fields must be a map, not {kind}"
            raise errors.MalformedPayload(msg)
        try:
            if self._late or content.keys() != self._defaults.keys():
                return self._build_in_parts(content, note_dropped)
            return self.construct(**content)
        except errors.MessageVersion:
            raise
        except BaseException as cause:  # a constructor of the user, or a maker of a default
            raise refused(self.name, cause) from cause

    def _fit(
        self, content: dict[object, object], note_dropped: NoteDropped | None
    ) -> dict[str, object]:
        """Drop unknown fields and fill missing ones: the sender has another release."""
        fitted: dict[str, object] = {}
        for name, make in self._defaults.items():
            if name in content:
                fitted[name] = content[name]
            elif make is not None:
                fitted[name] = make()
            else:
                msg = (
                    f"message {self.name!r} lacks field {name!r}, which has no default on "
                    f"this node; give it one, or upgrade the sender"
                )
                raise errors.MessageVersion(msg)
        dropped = content.keys() - fitted.keys()
        if dropped and note_dropped is not None:
            note_dropped(self.name, sorted(map(str, dropped)))
        return fitted

    def _build_in_parts(
        self, content: dict[Any, Any], note_dropped: NoteDropped | None
    ) -> object:
        """Make an instance of a sender that has other fields, or of what is set late.

        What was not sent has the value that the constructor gives it.
        """
        late, fitted = self._late, content
        if content.keys() != self._defaults.keys():
            fitted = self._fit(content, note_dropped)
        taken = {name: value for name, value in fitted.items() if name not in late}
        construct = self.construct
        built: object
        if isinstance(construct, Restoring):
            built = construct.make(taken, content.keys() - late)
        else:
            built = construct(**taken)
        for name in late.intersection(content):
            # object.__setattr__ because the class may be frozen.
            object.__setattr__(built, name, content[name])
        return built


def refused(name: str, cause: BaseException) -> errors.MessageRefused:
    """Return the error for a class whose own code raised."""
    what = f"message {name!r} is refused by its class on this node: {describe(cause)}"
    return errors.MessageRefused(what)


def _type_of(name: str, cls: type) -> MessageType:
    """Examine a class."""
    if issubclass(cls, Flag):
        return FlagType(name, cls)
    return EnumType(name, cls) if issubclass(cls, Enum) else RecordType(name, cls)


class MessageRegistry:
    """Message types by class and by name. Not thread-safe while registering."""

    def __init__(self) -> None:
        """Make an empty registry."""
        #: Read by the codec on every message; change it only through :meth:`register`.
        self.by_name: dict[str, MessageType] = {}
        self.by_class: dict[type, MessageType] = {}
        #: Flat records, by ``wire_name``, for
        #: the short cut in :mod:`callboard.basp.payload`.
        self.flat: dict[bytes, RecordType] = {}
        #: Those of them that run no functions of users, and all types that do.
        self.plain_flat: dict[bytes, RecordType] = {}
        self.coded: dict[bytes, MessageType] = {}

    def type_of(self, cls: type) -> MessageType | None:
        """Return what is known about a class, or None."""
        return self.by_class.get(cls)

    def type_named(self, name: object) -> MessageType | None:
        """Return the type of a name that is not in ``by_name``, or None."""
        return None

    def find_encoder(self, table: EncoderTable, cls: type) -> Encoder | None:
        """Return the encoder of a class for ``table``; None for one that may not travel."""
        kind = self.type_of(cls)
        return None if kind is None else kind.make_encoder(table)

    def reader(
        self,
        note_dropped: NoteDropped,
        *,
        runs_code: bool = True,
        stand_in: Callable[[str], object] | None = None,
    ) -> TagReader:
        """Return the function of the tag ``REGISTERED``, for a table of tags.

        Args:
            note_dropped: called with the fields of a message that no class here knows.
            runs_code: whether it makes instances with functions of users; it raises
                `RunsUserCode` otherwise.
            stand_in: makes, of the name of its type, what stands for an instance that would run
                functions of users; it is not raised then.
        """
        by_name = self.by_name

        def read(content: Any, _is_key: object) -> object:
            name, fields = content
            kind = by_name.get(name) or self.type_named(name)
            if kind is None:
                message = (
                    f"message type {str(name)[:80]!r} is not registered here; import the "
                    f'module that declares it with @message("{str(name)[:80]}")'
                )
                raise errors.UnknownMessageType(message)
            if kind.runs_code and not runs_code:
                if stand_in is not None:
                    return stand_in(kind.name)
                raise RunsUserCode(kind.name)
            return kind.build(fields, note_dropped)

        return read

    def advice(self, cls: type) -> str:
        """Say what lets a class travel, or what can be sent instead."""
        if cls in _NEVER_TRAVEL:
            return "code does not travel: send a value, or a message that says what to do"
        register = f'register it with @message("{cls.__name__}")'
        if not (dataclasses.is_dataclass(cls) or issubclass(cls, (tuple, Enum))):
            return f"make it a @dataclass and {register}, or send plain values"
        return f"{register} or send plain values"

    def register(self, name: str, cls: type, aliases: Iterable[str] = ()) -> None:
        """Let instances of ``cls`` travel under ``name``; read them under ``aliases`` as well.

        The same name again from the same module, qualified name and fields replaces the
        earlier class (a reloaded module); instances of that one can still be sent.

        Raises:
            DuplicateMessageType: a name belongs to a different class, or the class has
                another name already.
            NotSerializable: the class is neither a dataclass, a named tuple nor an enum.
            ValueError: a name is empty or longer than ``NAME_LIMIT`` characters.
        """
        names = tuple(dict.fromkeys((name, *aliases)))
        made = _type_of(name, cls)
        made.names = names
        for each in names:
            if not 0 < len(each) <= NAME_LIMIT:
                msg = f"message name must have 1-{NAME_LIMIT} characters, has {len(each)}"
                raise ValueError(msg)
            held = self.by_name.get(each)
            if held is not None and _source(held) != _source(made):
                msg = (
                    f"message {each!r} is already registered for {_full_name(held.cls)} with "
                    f"fields {held.shape}; {_full_name(cls)} has {made.shape}: "
                    f"choose another name"
                )
                raise errors.DuplicateMessageType(msg)
        other = self.by_class.get(cls)
        if other is not None and other.name != name:
            msg = (
                f"{_full_name(cls)} is already registered as {other.name!r}; "
                f"{name!r} would be a second name for it"
            )
            raise errors.DuplicateMessageType(msg)
        is_flat = isinstance(made, RecordType) and made.is_flat
        for each in names:
            self.by_name[each] = made
            wire_name = encode_text(each)
            _file(self.flat, wire_name, made, belongs=is_flat)
            _file(self.plain_flat, wire_name, made, belongs=is_flat and not made.runs_code)
            _file(self.coded, wire_name, made, belongs=made.runs_code)
        self.by_class[cls] = made


def _file(
    table: dict[bytes, Any], wire_name: bytes, kind: MessageType, *, belongs: bool
) -> None:
    """Put a type into a table, or take one of its name out of it."""
    if belongs:
        table[wire_name] = kind
    else:
        table.pop(wire_name, None)


def _parameters(cls: type) -> tuple[Parameter, ...]:
    """Return what a constructor takes; one that is not generated yet is left so."""
    fields = awaited_fields(cls)
    if fields is None:
        return tuple(signature(cls).parameters.values())
    kinds = {True: Parameter.KEYWORD_ONLY, False: Parameter.POSITIONAL_OR_KEYWORD}
    return tuple(Parameter(field.name, kinds[bool(field.kw_only)]) for field in fields)


def _default_maker(field: "dataclasses.Field[Any]") -> Callable[[], object] | None:
    """Return what makes the default of a field; None if it has none."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory
    if field.default is not dataclasses.MISSING:
        return lambda: field.default
    return None


def _is_required(parameter: Parameter) -> bool:
    """Return whether a constructor cannot be called without a parameter."""
    is_variadic = parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return parameter.default is Parameter.empty and not is_variadic


def _source(kind: MessageType) -> tuple[str, tuple[str, ...]]:
    """Return what a class and the one that replaces it have in common."""
    return _full_name(kind.cls), kind.shape


def _full_name(cls: type) -> str:
    """Return the module and the qualified name of a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


#: The registry that the facade's ``@message`` decorator fills. No codec uses it unless told.
DEFAULT_REGISTRY: Final = MessageRegistry()
