"""The module `map`: changes messages on their way."""

from collections.abc import Mapping
from typing import Any

from callboard.gateway.module import Module, ModuleArguments
from callboard.gateway.wire.message import Message
from callboard.support.json_form import json_of
from callboard.support.nesting import parse_json


class MapArguments(ModuleArguments):
    """Arguments of a map.

    Attributes:
        set: properties that are set.
        remove: properties that are removed, before others are set.
        pick: the only fields of a JSON object that stay.
        rename: fields of a JSON object that get other names.
        add: fields that a JSON object gets.
    """

    set: dict[str, str] = {}
    remove: list[str] = []
    pick: list[str] | None = None
    rename: dict[str, str] = {}
    add: dict[str, Any] = {}


class MapModule(Module):
    """Publishes what it receives with other properties and fields.

    A content that is not a JSON object fails where fields are to be changed.
    """

    Arguments = MapArguments

    def create(self, args: Mapping[str, Any]) -> None:
        """Check the arguments."""
        self._args = MapArguments.read(args)

    def receive(self, message: Message) -> None:
        """Publish a changed message."""
        args = self._args
        properties = {k: v for k, v in message.properties.items() if k not in args.remove}
        properties.update(args.set)
        content = message.content
        if args.pick is not None or args.rename or args.add:
            content = self._changed(parse_json(content))
        self.publish(content, properties)

    def _changed(self, fields: Any) -> bytes:
        """Return the JSON of an object with the fields changed."""
        if not isinstance(fields, dict):
            msg = f"the content is a {type(fields).__name__}, and only an object has fields"
            raise TypeError(msg)
        args = self._args
        kept = fields if args.pick is None else {k: fields[k] for k in args.pick if k in fields}
        renamed = {args.rename.get(key, key): value for key, value in kept.items()}
        return json_of({**renamed, **args.add}).encode()
