"""The bridge between an MQTT router and the topics of a node, in both directions.

    MQTT client ──> router ──> local link ──> Hub.ingest ──> endpoints, actors, stores
    endpoint ──> Hub ──> receiver of the door ──> local link ──> router ──> MQTT clients

Topics are mapped by prefix: by default `a/b` in MQTT is `/mqtt/a/b` on the hub, and every
message published below `/mqtt/` on a node linked with this one goes to MQTT. So an actor has
one API for both: it subscribes and publishes topics of its endpoint.

No message loops: the local link subscribes without its own messages, and the hub does not
return a message to the door through which it arrived.

Payloads become text, parsed JSON, or bytes, as the map defines; so does its treatment of
payloads that are not valid text or JSON. Values become payloads: bytes and text unchanged,
everything else as JSON.
"""

import contextlib
import itertools
import logging
import threading
from collections.abc import Iterable
from typing import Any, Final, Literal, get_args

from callboard.closing import Closing
from callboard.model.data import thawed
from callboard.model.errors import EndpointError
from callboard.model.scalar import Octets
from callboard.mqtt.port.local_link import LocalLink
from callboard.mqtt.service.cluster import ROUTERS
from callboard.mqtt.service.destination import Destination, decoded
from callboard.mqtt.service.forwarding import Forwarded, Forwarder, session_id
from callboard.mqtt.service.router import Router
from callboard.mqtt.wire.client import Message
from callboard.mqtt.wire.errors import LinkClosed
from callboard.mqtt.wire.topic import is_valid_topic
from callboard.node import Node
from callboard.support.dataclass import dataclass
from callboard.support.json_form import json_of
from callboard.topics.hub import Hub
from callboard.topics.machine.effect import Item, RunReceiver

_log: Final = logging.getLogger(__name__)
CLIENT_ID: Final = "$door"
#: Seconds within which the router must grant the subscriptions.
START_TIMEOUT: Final = 10.0


@dataclass(frozen=True, slots=True)
class TopicMap:
    """The mapping of a prefix in MQTT to a prefix on the hub.

    Attributes:
        mqtt: the prefix in MQTT: empty, or levels that end with `/`.
        endpoint: the prefix on the hub.
        direction: `in`: from MQTT to the hub; `out`: from the hub to MQTT; or `both`.
        values: the form of payloads on the hub: `text`, parsed `json`, or `bytes`.
        otherwise: the form of payloads that are not such text or JSON: `bytes`; `text`, if they
            are UTF-8; or `refused`: not carried, but counted and logged.
        qos: the QoS of the subscriptions in MQTT, and of messages to MQTT.
        retain: whether messages to MQTT are retained. Messages from a node with another router
            of the cluster are not: routers exchange retained messages themselves.
        acknowledge: when a message from MQTT is acknowledged: when the hub has it (`arrival`),
            or when the actor or the queue is done with it (`handled`).
        actor: the name of the actor that handles the messages, with `acknowledge="handled"`.
        queue: the name of a work queue in place of an actor.
        attempts: attempts to handle a message before it is given up.
        timeout: seconds of one attempt.
    """

    mqtt: str = ""
    endpoint: str = "/mqtt/"
    direction: Literal["in", "out", "both"] = "both"
    values: Literal["text", "json", "bytes"] = "text"
    qos: int = 1
    retain: bool = False
    otherwise: Literal["bytes", "text", "refused"] = "bytes"
    acknowledge: Literal["arrival", "handled"] = "arrival"
    actor: str = ""
    queue: str = ""
    attempts: int = 5
    timeout: float = 30.0

    def __post_init__(self) -> None:
        choices = {
            "values": self.values,
            "otherwise": self.otherwise,
            "acknowledge": self.acknowledge,
        }
        for name, choice in choices.items():
            allowed = get_args(TopicMap.__annotations__[name])
            if choice not in allowed:
                message = f"{name}={choice!r}: choose one of {', '.join(allowed)}"
                raise ValueError(message)
        is_whole = not self.mqtt or self.mqtt.endswith("/")
        if not is_whole or "#" in self.mqtt or "+" in self.mqtt:
            message = f"{self.mqtt!r} is not a prefix of MQTT topics; write levels/ or nothing"
            raise ValueError(message)
        if self.direction != "in" and not self.endpoint:
            message = "a map to MQTT needs a prefix on the hub, such as '/mqtt/'"
            raise ValueError(message)
        self._check_handled()

    def _check_handled(self) -> None:
        """Refuse settings that contradict one another."""
        if self.acknowledge == "arrival":
            if self.actor or self.queue:
                message = 'a map to an actor or a queue needs acknowledge="handled"'
                raise ValueError(message)
            return
        if bool(self.actor) == bool(self.queue):
            message = 'acknowledge="handled" needs the name of an actor or of a queue'
            raise ValueError(message)
        if self.direction != "in" or not self.qos:
            message = 'acknowledge="handled" needs direction="in", and a QoS of 1 or 2'
            raise ValueError(message)
        self.destination()  # checks its numbers

    def destination(self) -> Destination:
        """Return the destination of messages that are acknowledged when they are handled."""
        limits = {"attempts": self.attempts, "timeout": self.timeout}
        return Destination(actor=self.actor, queue=self.queue, **limits)  # type: ignore[arg-type]


class MqttDoor(RunReceiver, Closing):
    """Carries messages between a router and a node's topics, until it is closed.

    Attributes:
        brought: messages from MQTT to the hub.
        taken: the number of messages from the hub to MQTT.
        unmapped: messages from the hub whose topic or value MQTT cannot represent.
        malformed: messages from MQTT that were not the text or JSON that their map requires.
        refused: malformed messages that were not carried, as their map says.
    """

    def __init__(
        self, router: Router, node: Node | Any, maps: Iterable[TopicMap] = (TopicMap(),)
    ) -> None:
        """Start carrying messages.

        Args:
            router: a running router.
            node: the node whose topics are mapped, or an endpoint on it.
            maps: the mappings of topics.

        Raises:
            Refused: the router does not grant a subscription.
        """
        self._hub = Hub.of(getattr(node, "node", node))
        self._routers = self._hub.node.group(ROUTERS)
        self._maps = tuple(maps)
        is_handled = [item.acknowledge == "handled" for item in self._maps]
        self._inward = [
            item
            for item, handled in zip(self._maps, is_handled, strict=True)
            if item.direction != "out" and not handled
        ]
        self._outward = [item for item in self._maps if item.direction != "in"]
        self.brought = self.taken = self.unmapped = self.malformed = self.refused = 0
        self._link: LocalLink = router.link(CLIENT_ID)
        self._closed = threading.Event()
        for mapping in self._inward:
            granted = self._link.subscribe(f"{mapping.mqtt}#", qos=mapping.qos, no_local=True)
            granted.result(START_TIMEOUT)
        self._thread = threading.Thread(target=self._bring, name="mqtt-door", daemon=True)
        self._thread.start()
        #: One for each map whose messages are acknowledged when they are handled.
        self.forwarders: list[Forwarder] = []
        try:
            for mapping in itertools.compress(self._maps, is_handled):
                self.forwarders.append(self._forward(router, mapping))
        except BaseException:
            self._stop_bringing()
            raise
        if self._outward:
            prefixes = [mapping.endpoint for mapping in self._outward]
            self._hub.add_receiver(self, prefixes, sees_own=True).result(START_TIMEOUT)

    def close(self) -> None:
        """Stop carrying messages. Idempotent."""
        if self._closed.is_set():
            return
        self._closed.set()
        if self._outward and not self._hub.node.context.is_closed:
            self._hub.remove_receiver(self).result(START_TIMEOUT)
        self._stop_bringing()

    def _stop_bringing(self) -> None:
        """Stop carrying messages from MQTT."""
        self._link.close()
        self._thread.join(START_TIMEOUT)
        for forwarder in self.forwarders:
            forwarder.close()

    def _forward(self, router: Router, mapping: TopicMap) -> Forwarder:
        """Start to pass the messages of a map on to its actor or queue."""

        def convert(message: Message) -> Forwarded | None:
            value = self._value(message, mapping)
            if value is _REFUSED:
                return None
            topic = mapping.endpoint + message.topic.removeprefix(mapping.mqtt)
            return Forwarded(topic, bytes(value) if isinstance(value, Octets) else value)

        destination, topic_filter = mapping.destination(), f"{mapping.mqtt}#"
        client_id = session_id("$door-", topic_filter, destination.label)
        return Forwarder(
            router.link,
            self._hub.node,
            client_id,
            [(topic_filter, mapping.qos)],
            destination,
            convert,
        )

    # --- from MQTT, on a separate thread: the hub may block it ---

    def _bring(self) -> None:
        """Publish messages of the router on the hub, until the link is closed."""
        with contextlib.suppress(LinkClosed):
            while True:
                messages = [self._link.recv()]
                while len(messages) < RUN and (more := self._link.try_recv()) is not None:
                    messages.append(more)
                self._bring_all(messages)

    def _bring_all(self, messages: list[Message]) -> None:
        """Publish a run of messages on the hub."""
        pairs = [
            (mapping.endpoint + message.topic.removeprefix(mapping.mqtt), value)
            for message in messages
            for mapping in self._inward
            if message.topic.startswith(mapping.mqtt)
            and (value := self._value(message, mapping)) is not _REFUSED
        ]
        try:
            self._hub.ingest(pairs, self)
        except EndpointError as error:
            if len(pairs) == 1:  # a topic too long, a number too large
                _log.warning("a message from MQTT cannot be published: %s", error)
                self.malformed += 1
                self.refused += 1
                return
            for message in messages:
                self._bring_all([message])
            return
        self.brought += len(pairs)

    def _value(self, message: Message, mapping: TopicMap) -> Any:
        """Return the value of a payload on the hub, or `_REFUSED`."""
        payload = message.payload
        try:
            value = decoded(payload, mapping.values)
        except ValueError as error:
            return self._malformed(message, mapping, error)
        return Octets(payload) if mapping.values == "bytes" else value

    def _malformed(self, message: Message, mapping: TopicMap, error: Exception) -> Any:
        """Count a payload that does not fit its map, and log the first one."""
        kind = {"bytes": "taken as bytes", "text": "taken as text", "refused": "refused"}
        text = f"a payload of {message.topic[:200]!r} is not {mapping.values} ({error}): "
        self._hub.runtime.warn_once((self, mapping), f"{text}{kind[mapping.otherwise]}")
        self.malformed += 1
        if mapping.otherwise == "refused":
            self.refused += 1
            return _REFUSED
        return message.payload if mapping.otherwise == "text" else Octets(message.payload)

    # --- from the hub, on the node's thread ---

    def take_from(self, sender: bytes, items: list[Item], _size: int) -> None:
        """Publish a run of messages of the hub in MQTT.

        Messages from a node with another router may come from its clients; they are not
        retained.
        """
        is_own = sender == self._hub.runtime.node_id
        may_retain = is_own or all(ref.node_id != sender for ref in self._routers)
        mapped = [self._message(*item, may_retain=may_retain) for item in items]
        messages = [message for message in mapped if message is not None]
        self.unmapped += len(mapped) - len(messages)
        try:
            self._link.publish_all(messages)
        except LinkClosed as error:
            _log.warning("%d messages do not reach MQTT: %s", len(messages), error)
            return
        self.taken += len(messages)

    def _message(self, topic: str, value: Any, *, may_retain: bool) -> Message | None:
        """Return the message for a value of the hub; None if MQTT cannot represent it."""
        for mapping in self._outward:
            if topic.startswith(mapping.endpoint):
                name = mapping.mqtt + topic.removeprefix(mapping.endpoint)
                payload = _payload(value)
                if payload is None or not is_valid_topic(name) or name.startswith("$"):
                    return None
                return Message(name, payload, mapping.qos, mapping.retain and may_retain)
        return None


#: The most messages that are published on the hub at once.
RUN: Final = 1_000


#: Marks a payload that is not carried.
_REFUSED: Final = object()


def _payload(value: Any) -> bytes | None:
    """Return the payload for a value; None if MQTT cannot represent it."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    try:
        return json_of(thawed(value), ensure_ascii=True, default=_plain).encode()
    except (TypeError, ValueError):
        return None


def _plain(value: Any) -> Any:
    """Return a JSON value for a value that JSON lacks."""
    return sorted(value, key=str) if isinstance(value, set | frozenset) else str(value)
