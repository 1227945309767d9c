"""The module `filter`: publishes the messages that match its conditions."""

from collections.abc import Mapping
from typing import Any

from pydantic import field_validator

from callboard.gateway.module import Module, ModuleArguments
from callboard.gateway.wire.message import Message
from callboard.model.conditions import check_conditions, meets
from callboard.support.nesting import parse_json


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
        check_conditions(where)
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
        return meets(parse_json(message.content), self._args.where)
