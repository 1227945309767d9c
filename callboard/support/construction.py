"""Instances of what was sent or stored: the fields have the values that they had there.

A class may have code that runs when an instance is made: `__post_init__`, its own `__init__`,
`__new__` or `__setattr__`. It may check the values of a peer, so it runs for received values.
But it has run before, where the value was made: a change such as "from euros to cents" is wrong
when it is made twice. So fields that it changes get back what was sent, and the log
names the class once.

Whether a class has such code is decided when it is registered: others are made directly.
"""

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum, Flag
from types import FunctionType
from typing import Any, Final

from callboard.support.dataclass import awaited_fields

_log: Final = logging.getLogger("callboard.messages")

#: The file of functions that the standard library generates for dataclasses and named tuples.
_GENERATED: Final = "<string>"
_NOTHING: Final = object()
_CONTAINERS: Final = frozenset({list, dict, set, bytearray})


def constructor_of(cls: type, names: Iterable[str]) -> Callable[..., Any]:
    """Return what makes an instance of values for these fields, in order or by name.

    It is the class itself where that has no code of its own.
    """
    return Restoring(cls, names) if has_own_code(cls) else cls


def has_own_code(cls: type) -> bool:
    """Return whether code that nobody generated runs when an instance is made."""
    if issubclass(cls, tuple):
        return _is_written(cls, "__new__") or _is_written(cls, "__init__")
    is_frozen = getattr(cls, "__dataclass_params__", None)
    sets = not (is_frozen and is_frozen.frozen) and _is_written(cls, "__setattr__")
    awaited = awaited_fields(cls) is not None
    return (
        sets
        or hasattr(cls, "__post_init__")
        or _is_written(cls, "__new__")
        or (not awaited and _is_written(cls, "__init__"))
    )


def _is_written(cls: type, name: str) -> bool:
    """Return whether a method is a function that was not generated."""
    found = next((vars(kind)[name] for kind in cls.__mro__ if name in vars(kind)), None)
    if isinstance(found, (staticmethod, classmethod)):
        found = found.__func__
    if isinstance(found, FunctionType):
        return found.__code__.co_filename != _GENERATED
    return False  # a built-in one, or one that is generated when it is looked up


def runs_code_of_users(cls: type) -> bool:
    """Return whether reading instances of a class runs functions that its user wrote.

    Such a function may take any time, so a node calls it in the turn of the actor that gets
    the message. Beside what makes an instance these are `__hash__` and `__eq__` of keys and
    elements of sets, and the makers of defaults. Classes of callboard itself have none.
    """
    if _is_ours(cls.__module__):
        return False
    if _is_users(cls, "__hash__") or _is_users(cls, "__eq__"):
        return True
    if issubclass(cls, Enum):  # members are there already; flags are made of their bits
        return issubclass(cls, Flag) and _is_users(cls, "_missing_")
    if has_own_code(cls):
        return True
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    return any(isinstance(field.default_factory, FunctionType) for field in fields)


def _is_ours(module: str) -> bool:
    """Return whether a module is callboard's."""
    return module.partition(".")[0] == "callboard"


def _is_users(cls: type, name: str) -> bool:
    """Return whether a method is a function of a module that is not ours or `enum`."""
    home = next(kind for kind in (*cls.__mro__, object) if name in vars(kind) or kind is object)
    module = home.__module__
    return not _is_ours(module) and module != "enum" and _is_written(cls, name)


class Restoring:
    """Makes instances of a class that has code of its own."""

    __slots__ = ("_cls", "_is_told", "_names")

    def __init__(self, cls: type, names: Iterable[str]) -> None:
        self._cls = cls
        self._names = tuple(names)
        self._is_told = False

    def __call__(self, *values: Any, **fields: Any) -> Any:
        """Return an instance of the values that were sent."""
        sent = dict(zip(self._names, values, strict=False))
        sent.update(fields)
        return self.make(sent, sent.keys())

    def make(self, fields: Mapping[str, Any], sent: Collection[str]) -> Any:
        """Return an instance, of which only some fields were sent.

        The others have defaults, which the code of the class may change.
        """
        kept = {name: _kept(fields[name]) for name in sent if name in fields}
        made = self._cls(**fields)
        if type(made) is not self._cls:
            return made
        if isinstance(made, tuple):
            return self._restored_tuple(made, fields, kept)
        for name, value in kept.items():
            given, now = fields[name], getattr(made, name, _NOTHING)
            if now is given and (value is given or _is_equal(value, given)):
                continue
            self._tell(name, value, now)
            object.__setattr__(made, name, value)
        return made

    def _restored_tuple(
        self, made: Any, fields: Mapping[str, Any], kept: Mapping[str, Any]
    ) -> Any:
        """Return a named tuple with what was sent; one that changed is made anew."""
        values = [kept.get(name, now) for name, now in zip(made._fields, made, strict=False)]
        is_same = len(values) == len(made) and all(
            now is fields[name] and _is_equal(kept.get(name, now), now)
            for name, now in zip(made._fields, made, strict=False)
            if name in kept
        )
        if is_same:
            return made
        for name, value, now in zip(made._fields, values, made, strict=False):
            self._tell(name, value, now)
        restored: Any = tuple.__new__(self._cls, values)
        if hasattr(made, "__dict__"):
            vars(restored).update(vars(made))
        return restored

    def _tell(self, name: str, sent: Any, now: Any) -> None:
        """Log a field that has another value than was sent, once for the class."""
        if self._is_told or _is_equal(sent, now):
            return
        self._is_told = True
        _log.warning(
            "%s.%s changes field %r when it is made; values that were sent or stored keep what "
            "they had. Change it where it is made first, or let the code give the same result "
            "when it runs twice",
            self._cls.__module__,
            self._cls.__qualname__,
            name,
        )


def _is_equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal; what raises is not."""
    if one is other:
        return True
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:  # noqa: BLE001 - `__eq__` of a user
        return False


def _kept(value: Any) -> Any:
    """Return a value that code which has the original cannot change."""
    kind = type(value)
    if kind in _CONTAINERS:
        if kind is list:
            return [_kept(item) for item in value]
        if kind is dict:
            return {key: _kept(item) for key, item in value.items()}
        return kind(value)
    if kind is tuple:
        items = tuple(map(_kept, value))
        is_same = all(map(_is_identical, items, value))
        return value if is_same else items
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _kept_record(value)
    return value


def _is_identical(one: object, other: object) -> bool:
    """Return whether two names are of one object."""
    return one is other


def _kept_record(value: Any) -> Any:
    """Return a copy of a record with what it holds, made without its code."""
    names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
    fields = {name: _kept(getattr(value, name)) for name in names}
    is_frozen = type(value).__dataclass_params__.frozen
    if is_frozen and all(fields[name] is getattr(value, name) for name in names):
        return value
    copied: Any = object.__new__(type(value))
    if hasattr(value, "__dict__"):
        vars(copied).update(vars(value))
    for name, item in fields.items():
        object.__setattr__(copied, name, item)
    return copied
