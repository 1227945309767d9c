"""The registry of message types: the classes that may be sent, and their names on the wire.

A message is sent with the name of its type and the names of its fields, so nodes of neighboring
releases understand each other: a missing field has its default, an unknown field is dropped
and counted, and a missing field without a default raises
:class:`callboard.basp.errors.MessageVersion`. Bytes of a peer can only create instances of
registered classes.
"""

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum, Flag
from functools import partial
from inspect import Parameter, signature
from operator import attrgetter
from sys import getrefcount
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from callboard.basp import errors
from callboard.cbor import tags
from callboard.cbor.reader import RunsUserCode, TagReader
from callboard.cbor.writer import TEXT_HEADS, Encoder, EncoderTable, encode_text, head, too_deep
from callboard.support.construction import Restoring, constructor_of, runs_code_of_users
from callboard.support.dataclass import awaited_fields
from callboard.support.text import describe

#: Characters of a type name, which is sent with every message of its type.
NAME_LIMIT: Final = 255

#: Unused combinations of flags, created by messages of peers, that a class may keep.
SENT_FLAGS: Final = 64
#: References to an unused combination: the map of its class, a local variable, and the argument
#: of `getrefcount`.
_UNUSED: Final = 3

# A dataclass with one of these as a base has content in addition to its fields.
_BUILTIN = (int, float, complex, str, bytes, bytearray, tuple, list, dict, set, frozenset)
#: Types whose instances cannot be sent in any form.
_NEVER_SENT: Final = frozenset({FunctionType, MethodType, BuiltinMethodType, ModuleType, type})
_REGISTERED_HEAD: Final = head(0xC0, tags.REGISTERED) + b"\x82"

#: Called with the name of a type, and the fields of a message that its class here lacks.
NoteDropped = Callable[[str, Collection[str]], None]


class MessageType:
    """One registered class, with all that the codec computes once.

    Attributes:
        name: name on the wire, with which instances are sent and stored.
        names: all names with which instances are read: `name` and its aliases.
        cls: the class.
        field_names: fields in wire order; empty except for records.
        shape: a class with the same names and the same shape may replace this one.
        wire_name: CBOR of the name.
    """

    def __init__(self, name: str, cls: type) -> None:
        """Create the type of a class; subclasses examine the class."""
        self.name = name
        self.names: tuple[str, ...] = (name,)
        self.cls = cls
        self.field_names: tuple[str, ...] = ()
        self.shape: tuple[str, ...] = ()
        self.wire_name = encode_text(name)
        #: Whether reading an instance runs user functions, which may take any time.
        self.runs_code = runs_code_of_users(cls)

    def names_of(self, value: object) -> tuple[str, ...]:
        """Return the names of the fields of an instance."""
        return self.field_names

    def written(self, value: Any) -> object:
        """Return the content to encode for an instance.

        Raises:
            LookupError: the instance cannot be sent.
        """
        raise NotImplementedError

    def make_encoder(self, table: EncoderTable) -> Encoder:
        """Return the encoder of instances; ``table`` encodes their content."""
        prefix, written = _REGISTERED_HEAD + self.wire_name, self.written
        return lambda value, depth: prefix + table.encode(written(value), depth)

    def build(self, content: object, note_dropped: NoteDropped | None = None) -> object:
        """Create an instance from the content that a peer sent.

        Raises:
            MessageVersion: the peer has another release of the class.
            MessageRefused: the constructor raised.
            MalformedPayload: the content has the wrong shape.
        """
        raise NotImplementedError


class EnumType(MessageType):
    """An enum: members are sent as their names."""

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
            MessageVersion: the name is unknown.
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
    """Flags: a combination of them is sent as an integer.

    A Python class keeps every combination that was ever created, so a peer could fill the
    memory with combinations. Therefore those that peers created are removed from the class,
    oldest first, when nothing else refers to them.
    """

    def __init__(self, name: str, cls: type[Flag]) -> None:
        super().__init__(name, cls)
        self.shape = ("flag",)
        # Combinations that messages of peers created, in order of arrival.
        self._from_peers: OrderedDict[int, Flag] = OrderedDict()
        # All combinations that the class keeps.
        self._members: dict[Any, Any] = cls._value2member_map_

    def written(self, value: Any) -> object:
        """Return the integer."""
        return int(value.value)

    def build(self, content: object, note_dropped: NoteDropped | None = None) -> object:
        """Return the flags of an integer.

        Raises:
            MessageVersion: the integer has a bit that the class does not know.
            MalformedPayload: the content is not an integer.
        """
        if type(content) is not int:
            msg = f"flags {self.name!r}: value must be an integer, not {type(content).__name__}"
            raise errors.MalformedPayload(msg)
        member = self._members.get(content)
        if member is not None:
            return member
        try:
            member = self.cls(content)
        except ValueError:
            member = None
        except BaseException as cause:  # `_missing_` of the user
            raise refused(self.name, cause) from cause
        if member is not None:
            self._record_created(member)
        # Depending on its boundary, a flag drops bits that it does not know.
        if getattr(member, "value", None) != content:
            msg = (
                f"flags {self.name!r}: this node does not know all bits of {content:#x}; "
                f"upgrade this node first, then the senders"
            )
            raise errors.MessageVersion(msg)
        return member

    def _record_created(self, member: Any) -> None:
        """Record a combination that a peer created; remove the oldest unused ones."""
        from_peers = self._from_peers
        from_peers[member.value] = member
        del member
        # Up to two are removed for each new one, so the number shrinks to its limit again
        # after combinations that were in use are no longer used.
        for _ in range(min(2, len(from_peers) - SENT_FLAGS)):
            value, oldest = from_peers.popitem(last=False)
            if getrefcount(oldest) > _UNUSED:
                from_peers[value] = oldest
            else:
                self._members.pop(value, None)


class RecordType(MessageType):
    """A dataclass or a named tuple: instances are sent as maps of their fields.

    Attributes:
        construct: creates an instance from the values of all fields that the constructor takes,
            in order or by name; the instance has these values, whatever the constructor sets.
        wire_keys: CBOR of the field names; the first one starts with the head of the map.
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
            reason = "it is not a dataclass, named tuple or enum; decorate it with @dataclass"
            raise self._unfit(reason)
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
        self.is_flat &= self.field_names == tuple(
            parameter.name for parameter in self._parameters
        )
        self.construct: Callable[..., Any] = constructor_of(cls, self.field_names)

    def _unfit(self, reason: str) -> errors.NotSerializable:
        """Return the error for a class whose instances cannot be sent."""
        message = f"cannot register {_full_name(self.cls)} as message {self.name!r}: {reason}"
        return errors.NotSerializable(message)

    def _examine_dataclass(
        self, cls: type, fields: "tuple[dataclasses.Field[Any], ...]"
    ) -> None:
        """Set the fields of a dataclass, their defaults, and the fields to set late."""
        if issubclass(cls, _BUILTIN):
            reason = "it is also a built-in container or scalar; hold that value in a field"
            raise self._unfit(reason)
        self._defaults = {field.name: _default_maker(field) for field in fields}
        for parameter in self._parameters:
            if parameter.name not in self._defaults and _is_required(parameter):
                reason = (
                    f"its constructor requires {parameter.name!r}, which is not a field; "
                    f"give it a default"
                )
                raise self._unfit(reason)
        parameter_names = {parameter.name for parameter in self._parameters}
        self._late = frozenset(self._defaults) - parameter_names

    def _examine_named_tuple(self, cls: Any) -> None:
        """Set the fields of a named tuple and their defaults."""
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
        """Create an instance from a map of fields.

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
        except BaseException as cause:  # the user's constructor or default factory
            raise refused(self.name, cause) from cause

    def _fit(
        self, content: dict[object, object], note_dropped: NoteDropped | None
    ) -> dict[str, object]:
        """Drop unknown fields and add missing ones: the sender has another release."""
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
        """Create an instance if the sender has other fields, or some fields are set late.

        Fields that were not sent keep the values that the constructor sets.
        """
        late, fitted = self._late, content
        if content.keys() != self._defaults.keys():
            fitted = self._fit(content, note_dropped)
        arguments = {name: value for name, value in fitted.items() if name not in late}
        construct = self.construct
        built: object
        if isinstance(construct, Restoring):
            built = construct.make(arguments, content.keys() - late)
        else:
            built = construct(**arguments)
        for name in late.intersection(content):
            # object.__setattr__ because the class may be frozen.
            object.__setattr__(built, name, content[name])
        return built


def refused(name: str, cause: BaseException) -> errors.MessageRefused:
    """Return the error for a message whose class raised ``cause``."""
    message = f"message {name!r} is refused by its class on this node: {describe(cause)}"
    return errors.MessageRefused(message)


def _type_of(name: str, cls: type) -> MessageType:
    """Return the message type of a class."""
    if issubclass(cls, Flag):
        return FlagType(name, cls)
    return EnumType(name, cls) if issubclass(cls, Enum) else RecordType(name, cls)


class MessageRegistry:
    """Message types by class and by name. Not thread-safe while registering."""

    def __init__(self) -> None:
        """Create an empty registry."""
        #: Read by the codec for every message; only :meth:`register` changes it.
        self.by_name: dict[str, MessageType] = {}
        self.by_class: dict[type, MessageType] = {}
        #: Flat records, by ``wire_name``, for the short cut in :mod:`callboard.basp.payload`.
        self.flat: dict[bytes, RecordType] = {}
        #: Flat records that run no user functions.
        self.plain_flat: dict[bytes, RecordType] = {}
        #: All types that run user functions.
        self.coded: dict[bytes, MessageType] = {}
        #: Classes by their names on foreign wires, by wire; and these names by class.
        self._foreign: dict[str, dict[str, type]] = {}
        self._foreign_names: dict[tuple[str, type], str] = {}

    def foreign_types(self, wire: str) -> Mapping[str, type]:
        """Return the classes that have a name on a foreign wire, by that name."""
        return self._foreign.get(wire, {})

    def foreign_name(self, wire: str, cls: type) -> str | None:
        """Return the name of a class on a foreign wire, or None."""
        return self._foreign_names.get((wire, cls))

    def register_foreign(self, wire: str, name: str, cls: type) -> None:
        """Give a class a name on a foreign wire; a reloaded class replaces the earlier one.

        Raises:
            DuplicateMessageType: another class has that name.
        """
        earlier = self._foreign.setdefault(wire, {}).get(name, cls)
        if _full_name(earlier) != _full_name(cls):
            msg = f"{name!r} of {wire} is {_full_name(earlier)} already: choose another name"
            raise errors.DuplicateMessageType(msg)
        self._foreign[wire] = {**self._foreign[wire], name: cls}
        self._foreign_names[wire, cls] = name

    def type_of(self, cls: type) -> MessageType | None:
        """Return the message type of a class, or None."""
        return self.by_class.get(cls)

    def type_named(self, name: object) -> MessageType | None:
        """Return the type of a name that is not in ``by_name``, or None."""
        return None

    def find_encoder(self, table: EncoderTable, cls: type) -> Encoder | None:
        """Return the encoder of a class for ``table``; None if it is not registered."""
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
            note_dropped: called with the unknown fields of a message.
            runs_code: whether the function creates instances that run user functions.
                Otherwise it raises `RunsUserCode` for them.
            stand_in: creates a substitute for such an instance from the name of its type; then
                nothing is raised.
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
        """Return advice on making a class a message, or on a substitute."""
        if cls in _NEVER_SENT:
            return "code cannot be sent; send a value, or a message that names the action"
        register = f'register it with @message("{cls.__name__}")'
        if not (dataclasses.is_dataclass(cls) or issubclass(cls, (tuple, Enum))):
            return f"make it a @dataclass and {register}, or send plain values"
        return f"{register} or send plain values"

    def register(self, name: str, cls: type, aliases: Iterable[str] = ()) -> None:
        """Register ``cls`` as a message with ``name``; its ``aliases`` are read as well.

        A class with the same module, qualified name and fields replaces an earlier one of the
        name, as when a module is reloaded. Instances of the earlier class can still be sent.

        Raises:
            DuplicateMessageType: a name belongs to a different class, or the class is
                registered with another name.
            NotSerializable: the class is neither a dataclass, a named tuple nor an enum.
            ValueError: a name is empty or longer than ``NAME_LIMIT`` characters.
        """
        names = tuple(dict.fromkeys((name, *aliases)))
        kind = _type_of(name, cls)
        kind.names = names
        for known_as in names:
            if not 0 < len(known_as) <= NAME_LIMIT:
                msg = f"a message name must have 1-{NAME_LIMIT} characters, not {len(known_as)}"
                raise ValueError(msg)
            earlier = self.by_name.get(known_as)
            if earlier is not None and _source(earlier) != _source(kind):
                msg = (
                    f"message {known_as!r} is already registered for "
                    f"{_full_name(earlier.cls)} with fields {earlier.shape}; "
                    f"{_full_name(cls)} has {kind.shape}: choose another name"
                )
                raise errors.DuplicateMessageType(msg)
        other = self.by_class.get(cls)
        if other is not None and other.name != name:
            msg = (
                f"{_full_name(cls)} is already registered as {other.name!r}; "
                f"{name!r} would be a second name for it"
            )
            raise errors.DuplicateMessageType(msg)
        is_flat = isinstance(kind, RecordType) and kind.is_flat
        for known_as in names:
            self.by_name[known_as] = kind
            wire_name = encode_text(known_as)
            _file(self.flat, wire_name, kind, belongs=is_flat)
            _file(self.plain_flat, wire_name, kind, belongs=is_flat and not kind.runs_code)
            _file(self.coded, wire_name, kind, belongs=kind.runs_code)
        self.by_class[cls] = kind


def _file(
    table: dict[bytes, Any], wire_name: bytes, kind: MessageType, *, belongs: bool
) -> None:
    """Add a type to a table that it belongs to; otherwise remove its name from the table."""
    if belongs:
        table[wire_name] = kind
    else:
        table.pop(wire_name, None)


def _parameters(cls: type) -> tuple[Parameter, ...]:
    """Return the parameters of a constructor, without generating it."""
    fields = awaited_fields(cls)
    if fields is None:  # it is generated already, or written by the user
        return tuple(signature(cls).parameters.values())
    kinds = {True: Parameter.KEYWORD_ONLY, False: Parameter.POSITIONAL_OR_KEYWORD}
    return tuple(Parameter(field.name, kinds[bool(field.kw_only)]) for field in fields)


def _default_maker(field: "dataclasses.Field[Any]") -> Callable[[], object] | None:
    """Return a function that creates the default of a field; None if a value is required."""
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
    """Return the name and shape that a class and its replacement must share."""
    return _full_name(kind.cls), kind.shape


def _full_name(cls: type) -> str:
    """Return the module and the qualified name of a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


#: The registry of the facade's ``@message`` decorator. A codec uses it only if it is passed.
DEFAULT_REGISTRY: Final = MessageRegistry()
