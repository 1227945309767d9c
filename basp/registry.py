"""The registry of message types: which classes may travel, and under which names.

A registered class travels with its name and its field names, so nodes of neighboring
releases understand each other: a field that is missing takes its default, one that is
unknown is dropped and counted, and one that is missing without a default is
:class:`basp.errors.MessageVersion`. Only registered classes are ever constructed from the
bytes of a peer.
"""

import dataclasses
from collections.abc import Callable, Mapping
from enum import Enum, Flag
from functools import partial
from inspect import Parameter, signature
from typing import Any, Final

import cbor2

from basp.errors import (
    DuplicateMessageType,
    MalformedPayload,
    MessageRefused,
    MessageVersion,
    NotSerializable,
)

__all__ = ["DEFAULT_REGISTRY", "NAME_LIMIT", "MessageRegistry", "MessageType"]

#: A type name travels with every message of its type; 255 characters hide no abuse.
NAME_LIMIT: Final = 255

# A dataclass that is also one of these holds content that its fields do not show.
_BUILTIN_CONTENT = (
    int,
    float,
    complex,
    str,
    bytes,
    bytearray,
    tuple,
    list,
    dict,
    set,
    frozenset,
)  # fmt: skip


class MessageType:
    """What the codec has to know about one registered class, computed once.

    Attributes:
        name: name on the wire.
        cls: the class.
        kind: ``"record"`` (dataclass or named tuple), ``"enum"``, ``"flag"`` or ``"free"``.
        field_names: fields in wire order; empty for enums.
        members: enum members by name, aliases included; empty for records and flags.
        is_positional: whether the constructor takes exactly the fields, in their order.
        wire_name: CBOR of the name.
        wire_keys: CBOR of the field names; the map's head is in front of the first.
    """

    __slots__ = (
        "_defaults",
        "_late",
        "_names",
        "cls",
        "field_names",
        "is_positional",
        "kind",
        "members",
        "name",
        "wire_keys",
        "wire_name",
    )

    def __init__(self, name: str, cls: type) -> None:
        """Examine ``cls``.

        Raises:
            NotSerializable: the class is neither a dataclass, a named tuple nor an enum.
        """
        self.name = name
        self.cls = cls
        self.kind = "record"
        self.field_names: tuple[str, ...] = ()
        self.members: Mapping[str, Enum] = {}
        # Fields that __init__ does not take are set after it.
        self._late: frozenset[str] = frozenset()
        self._defaults: dict[str, Callable[[], object] | None] = {}
        if issubclass(cls, Enum):
            self._examine_enum(cls)
        elif dataclasses.is_dataclass(cls):
            self._examine_dataclass(cls, dataclasses.fields(cls))
        elif issubclass(cls, tuple) and hasattr(cls, "_fields"):
            self._examine_named_tuple(cls)
        else:
            msg = (
                f"cannot register {_full_name(cls)} as message {name!r}: it is not a "
                f"dataclass, named tuple or enum; decorate it with @dataclass"
            )
            raise NotSerializable(msg)
        self._names: frozenset[str] = frozenset(self.field_names)
        self.wire_name = cbor2.dumps(name)
        self.wire_keys = _wire_keys(self.field_names)
        self.is_positional = self.kind == "record" and _is_positional(cls, self.field_names)

    def _examine_enum(self, cls: type[Enum]) -> None:
        if issubclass(cls, Flag):
            self.kind = "flag"
        else:
            self.kind = "enum"
            self.members = cls.__members__

    def _examine_dataclass(
        self, cls: type, fields: "tuple[dataclasses.Field[Any], ...]"
    ) -> None:
        if issubclass(cls, _BUILTIN_CONTENT):
            msg = (
                f"cannot register {_full_name(cls)} as message {self.name!r}: it is also a "
                f"built-in container or scalar; hold that value in a field instead"
            )
            raise NotSerializable(msg)
        self.field_names = tuple(field.name for field in fields)
        self._defaults = {field.name: _default_maker(field) for field in fields}
        accepted = signature(cls).parameters.values()
        for parameter in accepted:
            if parameter.name not in self._defaults and _is_required(parameter):
                msg = (
                    f"cannot register {_full_name(cls)} as message {self.name!r}: its "
                    f"constructor wants {parameter.name!r}, which is not a field; "
                    f"give it a default"
                )
                raise NotSerializable(msg)
        taken = {parameter.name for parameter in accepted}
        self._late = frozenset(name for name in self.field_names if name not in taken)

    def _examine_named_tuple(self, cls: type) -> None:
        names: tuple[str, ...] = cls._fields  # type: ignore[attr-defined]
        defaults: dict[str, object] = getattr(cls, "_field_defaults", {})
        self.field_names = names
        self._defaults = {
            name: partial(defaults.__getitem__, name) if name in defaults else None
            for name in names
        }

    def names_of(self, value: object) -> tuple[str, ...]:  # noqa: ARG002
        """Return the names of the fields of an instance."""
        return self.field_names

    def build(
        self, content: object, note_dropped: Callable[[int], None] | None = None
    ) -> object:
        """Make an instance from what a peer sent: a map of fields, or a member's name.

        Args:
            content: the fields, the name of a member, or the integer of a flag.
            note_dropped: told how many fields no class here knows, if there are any.

        Raises:
            MessageVersion: a field without default is missing, or a member or bit is unknown.
            MessageRefused: the constructor raised.
            MalformedPayload: the content has the wrong shape.
        """
        if self.kind == "enum":
            return self._member(content)
        if self.kind == "flag":
            return self._flags(content)
        if type(content) is not dict:
            msg = f"message {self.name!r}: fields must be a map, not {_short(content)}"
            raise MalformedPayload(msg)
        if content.keys() != self._names:
            content = self._fit(content, note_dropped)
        try:
            return self._build_late(content) if self._late else self.cls(**content)
        except Exception as cause:  # noqa: BLE001  (a constructor of the user)
            raise self.refused(cause) from cause

    def refused(self, cause: Exception) -> MessageRefused:
        """Return the error for a constructor that raised."""
        return MessageRefused(
            f"message {self.name!r} is refused by its class on this node: "
            f"{type(cause).__name__}: {cause}"
        )

    def _flags(self, content: object) -> object:
        if type(content) is not int:
            msg = f"flags {self.name!r}: value must be an integer, not {_short(content)}"
            raise MalformedPayload(msg)
        try:
            made = self.cls(content)
        except ValueError:
            made = None
        # Depending on its boundary, a flag drops bits that it does not know.
        if getattr(made, "value", None) != content:
            msg = (
                f"flags {self.name!r} do not know all bits of {content:#x} on this node; "
                f"upgrade this node first, then the senders"
            )
            raise MessageVersion(msg)
        return made

    def _member(self, content: object) -> Enum:
        if type(content) is not str:
            msg = f"enum {self.name!r}: member must be a name, not {_short(content)}"
            raise MalformedPayload(msg)
        member = self.members.get(content)
        if member is None:
            msg = (
                f"enum {self.name!r} has no member {content[:80]!r} on this node; "
                f"upgrade this node first, then the senders"
            )
            raise MessageVersion(msg)
        return member

    def _fit(
        self, content: dict[object, object], note_dropped: Callable[[int], None] | None
    ) -> dict[str, object]:
        """Drop unknown fields and fill missing ones: the sender has another release."""
        fitted: dict[str, object] = {}
        for name in self.field_names:
            if name in content:
                fitted[name] = content[name]
                continue
            make = self._defaults[name]
            if make is None:
                msg = (
                    f"message {self.name!r} lacks field {name!r}, which has no default on "
                    f"this node; give it one, or upgrade the sender"
                )
                raise MessageVersion(msg)
            fitted[name] = make()
        dropped = len(content.keys() - self._names)
        if dropped and note_dropped is not None:
            note_dropped(dropped)
        return fitted

    def _build_late(self, content: dict[str, object]) -> object:
        late = self._late
        built: object = self.cls(
            **{name: value for name, value in content.items() if name not in late}
        )
        for name in late:
            # object.__setattr__ because the class may be frozen.
            object.__setattr__(built, name, content[name])
        return built


class FreeForm(MessageType):
    """A type whose instances do not all have the same fields."""

    __slots__ = ()

    def __init__(self, name: str, cls: type) -> None:
        self.name = name
        self.cls = cls
        self.kind = "free"
        self.field_names = ()
        self.members = {}

    def written(self, value: Any) -> object:
        """Return what travels of an instance; what cannot travel raises `LookupError`."""
        raise NotImplementedError


class MessageRegistry:
    """Message types by class and by name. Not thread-safe while registering."""

    __slots__ = ("by_class", "by_name", "flat")

    def __init__(self) -> None:
        """Make an empty registry."""
        #: Read by the codec on every message; change it only through :meth:`register`.
        self.by_name: dict[str, MessageType] = {}
        self.by_class: dict[type, MessageType] = {}
        #: Positional records with fields, by ``wire_name``, for :mod:`basp.flat_record`.
        self.flat: dict[bytes, MessageType] = {}

    def type_of(self, cls: type) -> MessageType | None:
        """Return what is known about a class, or None."""
        return self.by_class.get(cls)

    def type_named(self, name: object) -> MessageType | None:  # noqa: ARG002
        """Return the type of a name that is not in ``by_name``, or None."""
        return None

    def advice(self, cls: type) -> str:
        """Say what lets a class travel."""
        return f'register it with @message("{cls.__name__}") or send plain values'

    def register(self, name: str, cls: type) -> None:
        """Let instances of ``cls`` travel under ``name``.

        The same name again from the same module, qualified name and fields replaces the
        earlier class (a reloaded module); instances of that one can still be sent.

        Raises:
            DuplicateMessageType: the name belongs to a different class, or the class has
                another name already.
            NotSerializable: the class is neither a dataclass, a named tuple nor an enum.
            ValueError: the name is empty or longer than ``NAME_LIMIT`` characters.
        """
        if not 0 < len(name) <= NAME_LIMIT:
            msg = f"message name must have 1-{NAME_LIMIT} characters, has {len(name)}"
            raise ValueError(msg)
        made = MessageType(name, cls)
        held = self.by_name.get(name)
        if held is not None and not _is_same_source(held, made):
            msg = (
                f"message {name!r} is already registered for {_full_name(held.cls)} with "
                f"fields {_shape(held)}; {_full_name(cls)} has {_shape(made)}: "
                f"choose another name"
            )
            raise DuplicateMessageType(msg)
        other = self.by_class.get(cls)
        if other is not None and other.name != name:
            msg = (
                f"{_full_name(cls)} is already registered as {other.name!r}; "
                f"{name!r} would be a second name for it"
            )
            raise DuplicateMessageType(msg)
        self.by_name[name] = made
        if made.is_positional and made.wire_keys:
            self.flat[made.wire_name] = made
        else:
            self.flat.pop(made.wire_name, None)
        self.by_class[cls] = made


def _default_maker(field: "dataclasses.Field[Any]") -> Callable[[], object] | None:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory
    if field.default is not dataclasses.MISSING:
        return lambda: field.default
    return None


def _wire_keys(field_names: tuple[str, ...]) -> tuple[bytes, ...]:
    keys = [cbor2.dumps(name) for name in field_names]
    if not 0 < len(keys) < 24:
        return ()
    return (bytes((0xA0 + len(keys),)) + keys[0], *keys[1:])


def _is_positional(cls: type, field_names: tuple[str, ...]) -> bool:
    parameters = tuple(signature(cls).parameters.values())
    return tuple(parameter.name for parameter in parameters) == field_names and all(
        parameter.kind is Parameter.POSITIONAL_OR_KEYWORD for parameter in parameters
    )


def _is_required(parameter: Parameter) -> bool:
    return parameter.default is Parameter.empty and parameter.kind not in {
        Parameter.VAR_POSITIONAL,
        Parameter.VAR_KEYWORD,
    }


def _shape(kind: MessageType) -> tuple[str, ...]:
    return kind.field_names or tuple(kind.members) or (kind.kind,)


def _is_same_source(held: MessageType, made: MessageType) -> bool:
    return _full_name(held.cls) == _full_name(made.cls) and _shape(held) == _shape(made)


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _short(content: object) -> str:
    return type(content).__name__


#: The registry that the facade's ``@message`` decorator fills. No codec uses it unless told.
DEFAULT_REGISTRY: Final = MessageRegistry()
