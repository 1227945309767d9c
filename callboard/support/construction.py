"""Instances of sent or stored messages: each field has the value that was sent or stored.

A class may have code that runs when an instance is created: `__post_init__`, its own
`__init__`, `__new__` or `__setattr__`. This code may check values, so it also runs for values
of peers. But it has already run where the value was created, and a conversion such as "from
euros to cents" must not be applied twice. Therefore fields that it changes are set back to the
sent value, and the log names the class once.

Whether a class has such code is determined when it is registered. Instances of other classes
are created directly.
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
    """Return a function that creates an instance from values of fields, in order or by name.

    It is the class itself if the class has no code of its own.
    """
    return Restoring(cls, names) if has_own_code(cls) else cls


def has_own_code(cls: type) -> bool:
    """Return whether code that is not generated runs when an instance is created."""
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
    """Return whether a method is a Python function that is not generated."""
    method = next((vars(kind)[name] for kind in cls.__mro__ if name in vars(kind)), None)
    if isinstance(method, (staticmethod, classmethod)):
        method = method.__func__
    if isinstance(method, FunctionType):
        return method.__code__.co_filename != _GENERATED
    return False  # built-in, or generated at its first use


def runs_code_of_users(cls: type) -> bool:
    """Return whether reading instances of a class runs user functions.

    Such a function may take any time, so a node calls it in the turn of the receiving actor.
    Besides the code for new instances, these functions are `__hash__` and `__eq__` of keys and
    elements of sets, and default factories. Classes of callboard itself have none.
    """
    if _is_ours(cls.__module__):
        return False
    if _is_users(cls, "__hash__") or _is_users(cls, "__eq__"):
        return True
    if issubclass(cls, Enum):  # members exist already; combinations of flags are created
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
    """Creates instances of a class that has its own code, with the sent values of fields."""

    __slots__ = ("_cls", "_has_warned", "_names")

    def __init__(self, cls: type, names: Iterable[str]) -> None:
        self._cls = cls
        self._names = tuple(names)
        self._has_warned = False

    def __call__(self, *values: Any, **fields: Any) -> Any:
        """Return an instance with the sent values, given in order or by name."""
        sent_fields = dict(zip(self._names, values, strict=False))
        sent_fields.update(fields)
        return self.make(sent_fields, sent_fields.keys())

    def make(self, fields: Mapping[str, Any], sent: Collection[str]) -> Any:
        """Return an instance.

        Args:
            fields: values for the constructor.
            sent: names of fields that were sent. The others have defaults, which the code of
                the class may change.
        """
        copies = {name: _copied(fields[name]) for name in sent if name in fields}
        instance = self._cls(**fields)
        if type(instance) is not self._cls:
            return instance
        if isinstance(instance, tuple):
            return self._restored_tuple(instance, fields, copies)
        for name, copy in copies.items():
            original, current = fields[name], getattr(instance, name, _NOTHING)
            # Equal to the copy, too: the code may have changed a list in place.
            if current is original and (copy is original or _is_equal(copy, original)):
                continue
            self._warn(name, copy, current)
            object.__setattr__(instance, name, copy)
        return instance

    def _restored_tuple(
        self, instance: Any, fields: Mapping[str, Any], copies: Mapping[str, Any]
    ) -> Any:
        """Return a named tuple with the sent values; create a new one if any was changed."""
        values = [
            copies.get(name, current)
            for name, current in zip(instance._fields, instance, strict=False)
        ]
        is_same = len(values) == len(instance) and all(
            current is fields[name] and _is_equal(copies.get(name, current), current)
            for name, current in zip(instance._fields, instance, strict=False)
            if name in copies
        )
        if is_same:
            return instance
        for name, value, current in zip(instance._fields, values, instance, strict=False):
            self._warn(name, value, current)
        restored: Any = tuple.__new__(self._cls, values)
        if hasattr(instance, "__dict__"):
            vars(restored).update(vars(instance))
        return restored

    def _warn(self, name: str, sent_value: Any, current: Any) -> None:
        """Log a field whose value was changed, once for the class."""
        if self._has_warned or _is_equal(sent_value, current):
            return
        self._has_warned = True
        _log.warning(
            "%s.%s changes field %r when an instance is created; received and stored instances "
            "keep the original value. Change the value before the first instance is created, "
            "or let the code give the same result when it runs twice",
            self._cls.__module__,
            self._cls.__qualname__,
            name,
        )


def _is_equal(first: Any, second: Any) -> bool:
    """Return whether two values are equal; False if the comparison raises."""
    if first is second:
        return True
    try:
        return type(first) is type(second) and bool(first == second)
    except Exception:  # noqa: BLE001 - `__eq__` of a user
        return False


def _copied(value: Any) -> Any:
    """Return a value that does not change with the original; immutable parts are shared."""
    kind = type(value)
    if kind in _CONTAINERS:
        if kind is list:
            return [_copied(item) for item in value]
        if kind is dict:
            return {key: _copied(item) for key, item in value.items()}
        return kind(value)
    if kind is tuple:
        items = tuple(map(_copied, value))
        is_same = all(map(_is_identical, items, value))
        return value if is_same else items
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _copied_record(value)
    return value


def _is_identical(first: object, second: object) -> bool:
    """Return whether both arguments are the same object."""
    return first is second


def _copied_record(value: Any) -> Any:
    """Return a deep copy of a dataclass instance, without running code of its class."""
    names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
    fields = {name: _copied(getattr(value, name)) for name in names}
    is_frozen = type(value).__dataclass_params__.frozen
    if is_frozen and all(fields[name] is getattr(value, name) for name in names):
        return value
    record: Any = object.__new__(type(value))
    if hasattr(value, "__dict__"):
        vars(record).update(vars(value))
    for name, item in fields.items():
        object.__setattr__(record, name, item)
    return record
