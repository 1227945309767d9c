"""Dataclasses whose methods are generated at their first use.

The standard library compiles all methods when a class is defined. This takes 0.7 ms for a
frozen class, and took a third of the import time of a node, although a program uses few of the
methods. Here a descriptor represents each method. At its first use, it replaces itself with the
method that the standard library generates. From then on the class is the same as a dataclass of
the standard library.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, Final

_FIELDS: Final = "__dataclass_fields__"
_KEPT: Final = ("__module__", "__qualname__", "__doc__", "__post_init__")
_NONE: Final = {"init": False, "repr": False, "eq": False}


class _Generated:
    """Represents a method of a class until its first use."""

    def __init__(self, home: type[Any], name: str, **options: bool) -> None:
        self.home, self.name, self.options = home, name, options

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
        if self.home.__dict__[self.name] is self:  # another thread may have been faster
            setattr(self.home, self.name, self._generate())
        return self.home.__dict__[self.name].__get__(instance, owner)

    def _generate(self) -> Any:
        """Generate a class with the same fields and only this method; return the method."""
        home, fields = self.home, dataclasses.fields(self.home)
        body: dict[str, Any] = {
            name: getattr(home, name) for name in _KEPT if hasattr(home, name)
        }
        body |= {field.name: field for field in fields}
        body["__annotations__"] = {field.name: field.type for field in fields}
        twin = type(home.__name__, (), body)
        return dataclasses.dataclass(**_NONE | self.options)(twin).__dict__[self.name]


def _refuse(instance: Any, name: str, *value: object) -> None:
    """Refuse to change a field of a frozen class; a subclass may have other attributes."""
    if _FIELDS in type(instance).__dict__ or name in getattr(instance, _FIELDS):
        message = f"cannot {'assign to' if value else 'delete'} field {name!r}"
        raise dataclasses.FrozenInstanceError(message)
    (object.__setattr__ if value else object.__delattr__)(instance, name, *value)


def _get_state(instance: Any) -> list[Any]:
    return [getattr(instance, field.name) for field in dataclasses.fields(instance)]


def _set_state(instance: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(instance), state, strict=True):
        object.__setattr__(instance, field.name, value)


def _define(cls: type[Any], **options: bool) -> type[Any]:
    """Make a class a dataclass. With `order` or an `InitVar`, generate all methods at once."""
    kinds = cls.__dict__.get("__annotations__", {}).values()
    if options.get("order") or any(isinstance(kind, dataclasses.InitVar) for kind in kinds):
        return dataclasses.dataclass(**options)(cls)
    frozen, eq = options.get("frozen", False), options.get("eq", True)
    own = set(cls.__dict__)
    has_hash = (
        cls.__dict__.get("__hash__") is not None
    )  # Python sets None if the class defines __eq__
    late = _NONE if hasattr(cls, _FIELDS) else _NONE | {"frozen": False}
    result = dataclasses.dataclass(**options | late)(cls)
    result.__dataclass_params__.frozen = frozen  # subclasses read it
    members: dict[str, Any] = {}
    if options.get("init", True):
        # With slots, __init__ also sets the fields that are not its parameters. Without slots
        # their defaults are attributes of the class.
        slots = options.get("slots", False) and not all(
            f.init for f in dataclasses.fields(result)
        )
        members["__init__"] = _Generated(
            result, "__init__", init=True, frozen=frozen, slots=slots
        )
    if options.get("repr", True):
        members["__repr__"] = _Generated(result, "__repr__", repr=True)
    if eq:
        members["__eq__"] = _Generated(result, "__eq__", eq=True)
        if not has_hash:
            generated = _Generated(result, "__hash__", unsafe_hash=True)
            members["__hash__"] = generated if frozen else None
            own.discard("__hash__")
    if frozen:
        members |= {"__setattr__": _refuse, "__delattr__": _refuse}
        if options.get("slots"):
            members |= {"__getstate__": _get_state, "__setstate__": _set_state}
    for name in members.keys() - own:
        setattr(result, name, members[name])
    return result


def awaited_fields(cls: type[Any]) -> tuple["dataclasses.Field[Any]", ...] | None:
    """Return the parameters of a constructor that is not generated yet; None otherwise."""
    if not isinstance(cls.__dict__.get("__init__"), _Generated):
        return None
    return tuple(field for field in dataclasses.fields(cls) if field.init)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type[Any] | None = None, /, **options: bool) -> Any:
        """Make a class a dataclass whose methods are generated at their first use."""
        return _define(cls, **options) if cls else lambda cls: _define(cls, **options)
