"""The module `map`: changes properties and fields of messages."""

from collections.abc import Mapping
from typing import Any

from callboard.gateway.module import Module, ModuleArguments
from callboard.gateway.wire.message import Message
from callboard.support.json_form import json_of
from callboard.support.nesting import parse_json


class MapArguments(ModuleArguments):
    """Arguments of a map.

    Attributes:
        set: properties to set.
        remove: properties to remove, before others are set.
        pick: fields of a JSON object to keep; all others are removed.
        rename: new names of fields of a JSON object.
        add: fields to add to a JSON object.
    """

    set: dict[str, str] = {}
    remove: list[str] = []
    pick: list[str] | None = None
    rename: dict[str, str] = {}
    add: dict[str, Any] = {}


class MapModule(Module):
    """Publishes received messages with other properties and fields.

    If fields are to be changed, a content that is not a JSON object fails.
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
        """Return the JSON of an object with changed fields."""
        if not isinstance(fields, dict):
            msg = f"the content is a {type(fields).__name__}; only an object has fields"
            raise TypeError(msg)
        args = self._args
        picked = (
            fields if args.pick is None else {k: fields[k] for k in args.pick if k in fields}
        )
        renamed = {args.rename.get(key, key): value for key, value in picked.items()}
        return json_of({**renamed, **args.add}).encode()
