"""Refusals: exceptions that are answers.

A handler that raises one has answered its message: the asker gets it as an exception with its
fields, on every node where its class is registered. The actor lives on, and nothing is logged.

    @message("bank.NoMoney")
    @dataclass
    class NoMoney(Refusal):
        has: int
        needs: int
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from callboard.actors.errors import CallboardError

T = TypeVar("T")
R = TypeVar("R", bound="Refusal")

#: The fields of a refusal by name.
_Fields = Mapping[str, Any]

#: Attributes that Python and its standard library set on every exception that is raised.
_OF_EXCEPTIONS: Final = frozenset(
    {"__traceback__", "__cause__", "__context__", "__suppress_context__", "__notes__"}
)


class Refusal(CallboardError):
    """Base class of refusals; a subclass is a dataclass, and a message if it is to travel."""

    def __str__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in _values(self).items())

    def __hash__(self) -> int:
        # Dataclasses that compare by their fields have no hash of their own.
        return hash(type(self))

    def __reduce__(
        self,
    ) -> tuple[Callable[..., "Refusal"], tuple[type, _Fields, Sequence[str]]]:
        return _restored, (type(self), _values(self), getattr(self, "__notes__", ()))


def _values(refusal: Refusal) -> _Fields:
    """Return the fields of a refusal, which is a dataclass."""
    names: Iterable[str] = getattr(refusal, "__dataclass_fields__", ())
    return {name: getattr(refusal, name) for name in names if hasattr(refusal, name)}


def _restored(cls: type[R], values: _Fields, notes: Sequence[str]) -> R:
    """Return a copy of a refusal: its fields are set as they are, without its constructor."""
    refusal = cls.__new__(cls)
    for name, value in values.items():
        object.__setattr__(refusal, name, value)
    for note in notes:
        refusal.add_note(note)
    return refusal


def prepare(cls: type) -> None:
    """Make a dataclass fit to be raised wherever exceptions are.

    A dataclass that compares has no hash, and a frozen one refuses the attributes that
    `contextlib`, task groups and `add_note` set.
    """
    if not issubclass(cls, Refusal):
        return
    if vars(cls).get("__hash__", cls) is None:
        del cls.__hash__  # the inherited one is used
    parameters = getattr(cls, "__dataclass_params__", None)
    if parameters is None or not parameters.frozen or "__setattr__" not in vars(cls):
        return
    refuse_change: Callable[..., None] = cls.__setattr__
    refuse_removal: Callable[..., None] = cls.__delattr__

    def set_attribute(self: Refusal, name: str, value: T) -> None:
        (object.__setattr__ if name in _OF_EXCEPTIONS else refuse_change)(self, name, value)

    def delete_attribute(self: Refusal, name: str) -> None:
        (object.__delattr__ if name in _OF_EXCEPTIONS else refuse_removal)(self, name)

    type.__setattr__(cls, "__setattr__", set_attribute)
    type.__setattr__(cls, "__delattr__", delete_attribute)
