"""The module `filter`: publishes the messages that match its conditions."""

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
        properties: required texts of properties.
        where: required values of fields in a JSON content (`load`, or `cpu.load` in an inner
            object), or comparisons: `{">": 0.5, "<=": 0.9}`, `{"in": [1, 2]}`.
        invert: pass the messages that do not match instead.
    """

    properties: dict[str, str] = {}
    where: dict[str, Any] = {}
    invert: bool = False

    @field_validator("where")
    @classmethod
    def _known(cls, where: dict[str, Any]) -> dict[str, Any]:
        """Refuse comparisons that do not exist."""
        for field, condition in where.items():
            unknown = (
                set(condition) - set(_COMPARISONS) if isinstance(condition, dict) else set()
            )
            if unknown:
                signs = " ".join(_COMPARISONS)
                msg = f"{field}: no comparison {min(unknown)!r}; there are {signs}"
                raise ValueError(msg)
            if isinstance(condition, dict) and not isinstance(condition.get("in", []), list):
                msg = f"{field}: 'in' takes a list"
                raise ValueError(msg)
        return where


class FilterModule(Module):
    """Publishes matching messages; a content that is not JSON fails."""

    Arguments = FilterArguments

    def create(self, args: Mapping[str, Any]) -> None:
        """Check the arguments."""
        self._args = FilterArguments.read(args)

    def receive(self, message: Message) -> None:
        """Publish the message if it passes."""
        if self._fits(message) != self._args.invert:
            self.publish(message)

    def _fits(self, message: Message) -> bool:
        """Return whether a message has the required properties and fields."""
        properties = message.properties
        if any(properties.get(key) != text for key, text in self._args.properties.items()):
            return False
        if not self._args.where:
            return True
        content = parse_json(message.content)
        return all(
            _holds(field_of(content, path), condition)
            for path, condition in self._args.where.items()
        )


def field_of(content: Any, path: str) -> Any:
    """Return a field of a JSON value by its path; a missing field is equal to nothing."""
    for part in path.split("."):
        if not isinstance(content, dict) or part not in content:
            return _MISSING
        content = content[part]
    return content


def _holds(value: Any, condition: Any) -> bool:
    """Return whether a value equals the condition, or satisfies its comparisons."""
    if not isinstance(condition, dict):
        return bool(value == condition)
    if value is _MISSING:
        return False
    try:
        return all(_COMPARISONS[sign](value, limit) for sign, limit in condition.items())
    except TypeError:  # for example a text compared with a number
        return False
