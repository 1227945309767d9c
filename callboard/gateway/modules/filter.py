"""The module `filter`: lets some messages pass."""

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import field_validator

from callboard.gateway.module import Module, ModuleArguments
from callboard.gateway.wire.message import Message
from callboard.support.nesting import parse_json

_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "in": lambda value, choices: value in choices,
}

_MISSING: Final = object()


class FilterArguments(ModuleArguments):
    """Arguments of a filter; a message passes if all conditions hold.

    Attributes:
        properties: texts that properties have to be.
        where: for fields of a JSON content (`load`, or `cpu.load` in an inner object) the value
            that they have to be, or comparisons: `{">": 0.5, "<=": 0.9}`, `{"in": [1, 2]}`.
        invert: let pass what would not.
    """

    properties: dict[str, str] = {}
    where: dict[str, Any] = {}
    invert: bool = False

    @field_validator("where")
    @classmethod
    def _known(cls, where: dict[str, Any]) -> dict[str, Any]:
        """Refuse comparisons that do not exist."""
        for field, wanted in where.items():
            unknown = set(wanted) - set(_COMPARISONS) if isinstance(wanted, dict) else set()
            if unknown:
                known = " ".join(_COMPARISONS)
                msg = f"{field}: no comparison {min(unknown)!r}; there are {known}"
                raise ValueError(msg)
            if isinstance(wanted, dict) and not isinstance(wanted.get("in", []), list):
                msg = f"{field}: 'in' takes a list"
                raise ValueError(msg)
        return where


class FilterModule(Module):
    """Publishes the messages that fit; a content that is not JSON fails."""

    Arguments = FilterArguments

    def create(self, args: Mapping[str, Any]) -> None:
        """Check the arguments."""
        self._args = FilterArguments.read(args)

    def receive(self, message: Message) -> None:
        """Publish it again, or not."""
        if self._fits(message) != self._args.invert:
            self.publish(message)

    def _fits(self, message: Message) -> bool:
        """Return whether a message has the wanted properties and fields."""
        held = message.properties
        if any(held.get(key) != text for key, text in self._args.properties.items()):
            return False
        if not self._args.where:
            return True
        content = parse_json(message.content)
        return all(
            _holds(field_of(content, path), wanted) for path, wanted in self._args.where.items()
        )


def field_of(content: Any, path: str) -> Any:
    """Return a field of a JSON value by its path; what is not there equals nothing."""
    for part in path.split("."):
        if not isinstance(content, dict) or part not in content:
            return _MISSING
        content = content[part]
    return content


def _holds(value: Any, wanted: Any) -> bool:
    """Return whether a value is the wanted one, or within the comparisons."""
    if not isinstance(wanted, dict):
        return bool(value == wanted)
    if value is _MISSING:
        return False
    try:
        return all(_COMPARISONS[sign](value, limit) for sign, limit in wanted.items())
    except TypeError:  # a text is neither more nor less than a number
        return False
