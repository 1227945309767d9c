"""The module `topic`: connects the gateway with topics of the cluster."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from callboard.gateway.module import Module, ModuleArguments
from callboard.gateway.modules.record import filled
from callboard.gateway.wire.message import Message
from callboard.support.json_form import json_of
from callboard.support.nesting import parse_json
from callboard.topics.hub import Hub
from callboard.topics.machine.effect import Item


class TopicArguments(ModuleArguments):
    """Arguments of a topic module.

    Attributes:
        publish: the topic for received messages; `{name}` is replaced by a property.
        subscribe: topic prefixes; messages of these topics are published in the gateway, with
            the property `topic`.
        value: `json` converts contents to values and back, `bytes` keeps them unchanged.
    """

    publish: str | None = None
    subscribe: list[str] = []
    value: Literal["json", "bytes"] = "json"


#: Property with the names of the topic modules through which a message came into the gateway.
ORIGIN: Final = "origin"


class TopicModule(Module):
    """Publishes received messages to a topic, and messages of topics in the gateway.

    A message that came in through topic modules does not come in through these again, nor
    through the module that publishes it: links in both directions, or from all modules to all,
    do not loop.
    """

    Arguments = TopicArguments

    def create(self, args: Mapping[str, Any]) -> None:
        """Check the arguments."""
        self._args = TopicArguments.read(args)
        self._hub: Hub | None = None
        self._is_subscribed = False
        self._origin = ""

    def start(self) -> None:
        """Subscribe."""
        self._hub = Hub.of(self.node)
        self._origin = f"{self.name}:{self._hub.new_object_id()}"
        if self._args.subscribe:
            self._is_subscribed = True
            self._hub.add_receiver(self, self._args.subscribe, publisher=self._origin)

    def receive(self, message: Message) -> None:
        """Publish a message to the topic."""
        if self._args.publish is None or self._hub is None:
            msg = f"module {self.name!r} has no topic to publish to; set args.publish"
            raise ValueError(msg)
        value = parse_json(message.content) if self._args.value == "json" else message.content
        origins = frozenset((self._origin, *message.properties.get(ORIGIN, "").split("\n")))
        topic = filled(self._args.publish, message.properties)
        self._hub.publishing.publish_as(origins, (topic, value))

    def take(self, items: list[Item]) -> None:
        """Schedule the publication of topic messages; called on the node's thread."""
        self.after(0.0, lambda: self._publish_all(items))

    def destroy(self) -> None:
        """Unsubscribe."""
        if self._hub is not None and self._is_subscribed:
            self._hub.remove_receiver(self)

    def _publish_all(self, items: list[Item]) -> None:
        """Publish the values of topics in the gateway."""
        for topic, value in items:
            if self._args.value == "json":
                content = json_of(_plain(value)).encode()
            else:
                content = value if isinstance(value, bytes) else str(value).encode()
            self.publish(content, {"topic": topic, ORIGIN: self._origin})


def _plain(value: Any) -> Any:
    """Return a JSON value for a value of a topic, or its text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return str(value)
