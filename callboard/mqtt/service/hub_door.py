"""The door between an MQTT router and the topics of a node, both ways.

    MQTT client ──> router ──> local link ──> Hub.bring_in ──> endpoints, actors, stores' kin
    endpoint ──> Hub ──> receiver of the door ──> local link ──> router ──> MQTT clients

Topics are mapped by prefix: by default `a/b` in MQTT is `/mqtt/a/b` on the hub, and whatever
is published below `/mqtt/` on any node that is linked with this one goes to MQTT. So an actor
has one API for both: it subscribes and publishes topics of its endpoint.

No message comes back through the door that it went through: the local link asks for no own
messages, and the hub does not give the door what the door brought in.

Payloads become text, what JSON says, or bytes, as the map wants it; it also says what those
become that are not what they should be. Values become payloads: bytes and text as they are,
everything else as JSON.
"""

import contextlib
import logging
import threading
from collections.abc import Iterable
from typing import Any, Final, Literal, get_args

from callboard.endpoint.hub import Hub
from callboard.endpoint.machine.effect import Item, RunReceiver
from callboard.kernel.twins import Closing
from callboard.model.data import thawed
from callboard.model.errors import EndpointError
from callboard.model.scalar import Octets
from callboard.mqtt.port.local_link import LocalLink
from callboard.mqtt.service.cluster import ROUTERS
from callboard.mqtt.service.router import Router
from callboard.mqtt.wire.client import Message
from callboard.mqtt.wire.errors import LinkClosed
from callboard.mqtt.wire.topic import is_valid_topic
from callboard.node import Node
from callboard.support.dataclass import dataclass
from callboard.support.json_form import json_of
from callboard.support.nesting import parse_json

_log: Final = logging.getLogger(__name__)
CLIENT_ID: Final = "$door"
#: Seconds in which the router has to grant the subscriptions.
START_TIMEOUT: Final = 10.0


@dataclass(frozen=True, slots=True)
class TopicMap:
    """Which topics are the same on both sides.

    Attributes:
        mqtt: the prefix in MQTT: empty, or levels that end with `/`.
        endpoint: the prefix on the hub.
        direction: `in`: from MQTT to the hub; `out`: from the hub to MQTT; or `both`.
        values: what payloads become on the hub: `text`, what `json` says, or `bytes`.
        otherwise: what a payload becomes that is no such text or JSON: `bytes`; `text`, where
            it is UTF-8; or it is `refused`: not carried, but counted and logged.
        qos: with which messages are taken from and given to MQTT.
        retain: whether messages to MQTT are retained; not those of nodes with another router
            of the cluster: what is retained there is retained here without it.
    """

    mqtt: str = ""
    endpoint: str = "/mqtt/"
    direction: Literal["in", "out", "both"] = "both"
    values: Literal["text", "json", "bytes"] = "text"
    qos: int = 1
    retain: bool = False
    otherwise: Literal["bytes", "text", "refused"] = "bytes"

    def __post_init__(self) -> None:
        choices = {"values": self.values, "otherwise": self.otherwise}
        for name, chosen in choices.items():
            known = get_args(TopicMap.__annotations__[name])
            if chosen not in known:
                message = f"{name}={chosen!r}: choose one of {', '.join(known)}"
                raise ValueError(message)
        is_whole = not self.mqtt or self.mqtt.endswith("/")
        if not is_whole or "#" in self.mqtt or "+" in self.mqtt:
            message = f"{self.mqtt!r} is no prefix of MQTT topics; write levels/ or nothing"
            raise ValueError(message)
        if self.direction != "in" and not self.endpoint:
            message = "a map from the hub needs a prefix there, such as '/mqtt/'"
            raise ValueError(message)


class MqttDoor(RunReceiver, Closing):
    """Carries messages between a router and a node's topics, until it is closed.

    Attributes:
        brought: messages from MQTT to the hub.
        taken: messages from the hub to MQTT.
        unmapped: messages from the hub whose topic or value MQTT cannot have.
        malformed: messages from MQTT that were not the text or JSON which a map wants.
        refused: those of them that were not carried, as their map says.
    """

    def __init__(
        self, router: Router, node: Node | Any, maps: Iterable[TopicMap] = (TopicMap(),)
    ) -> None:
        """Open the door.

        Args:
            router: one that runs.
            node: the node whose topics these are, or an endpoint on it.
            maps: which topics are carried.

        Raises:
            Refused: the router does not grant a subscription.
        """
        self._hub = Hub.of(getattr(node, "node", node))
        self._routers = self._hub.node.group(ROUTERS)
        self._maps = tuple(maps)
        self._inward = [each for each in self._maps if each.direction != "out"]
        self._outward = [each for each in self._maps if each.direction != "in"]
        self.brought = self.taken = self.unmapped = self.malformed = self.refused = 0
        self._link: LocalLink = router.link(CLIENT_ID)
        self._closed = threading.Event()
        for each in self._inward:
            granted = self._link.subscribe(f"{each.mqtt}#", qos=each.qos, no_local=True)
            granted.result(START_TIMEOUT)
        self._thread = threading.Thread(target=self._bring, name="mqtt-door", daemon=True)
        self._thread.start()
        if self._outward:
            prefixes = [each.endpoint for each in self._outward]
            self._hub.add_receiver(self, prefixes, sees_own=True).result(START_TIMEOUT)

    def close(self) -> None:
        """Carry nothing any more. Idempotent."""
        if self._closed.is_set():
            return
        self._closed.set()
        if self._outward and not self._hub.node.context.is_closed:
            self._hub.remove_receiver(self).result(START_TIMEOUT)
        self._link.close()
        self._thread.join(START_TIMEOUT)

    # --- from MQTT, on a thread of its own: the hub may let it wait ---

    def _bring(self) -> None:
        """Bring messages in, until the link is closed."""
        with contextlib.suppress(LinkClosed):
            while True:
                messages = [self._link.recv()]
                while len(messages) < RUN and (more := self._link.try_recv()) is not None:
                    messages.append(more)
                self._bring_all(messages)

    def _bring_all(self, messages: list[Message]) -> None:
        """Publish a run of messages on the hub."""
        pairs = [
            (each.endpoint + message.topic.removeprefix(each.mqtt), value)
            for message in messages
            for each in self._inward
            if message.topic.startswith(each.mqtt)
            and (value := self._value(message, each)) is not _REFUSED
        ]
        try:
            self._hub.bring_in(pairs, self)
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

    def _value(self, message: Message, each: TopicMap) -> Any:
        """Return the value that a payload becomes on the hub, or that it is refused."""
        payload = message.payload
        try:
            if each.values == "json":
                return parse_json(payload)
            if each.values == "text":
                return payload.decode()
        except ValueError as error:
            return self._malformed(message, each, error)
        return Octets(payload)

    def _malformed(self, message: Message, each: TopicMap, error: Exception) -> Any:
        """Count a payload that is not what its map wants, and tell of the first one."""
        kind = {"bytes": "taken as bytes", "text": "taken as text", "refused": "refused"}
        text = f"a payload of {message.topic[:200]!r} is not {each.values} ({error}): "
        self._hub.runtime.warn_once((self, each), f"{text}{kind[each.otherwise]}")
        self.malformed += 1
        if each.otherwise == "refused":
            self.refused += 1
            return _REFUSED
        return message.payload if each.otherwise == "text" else Octets(message.payload)

    # --- from the hub, on the node's thread ---

    def take_from(self, sender: bytes, items: list[Item], _size: int) -> None:
        """Take a run of messages of the hub.

        What comes from a node with another router may be its clients', and not to be retained.
        """
        is_own = sender == self._hub.runtime.node_id
        may_retain = is_own or all(each.node_id != sender for each in self._routers)
        made = [self._message(*each, may_retain=may_retain) for each in items]
        found = [message for message in made if message is not None]
        self.unmapped += len(made) - len(found)
        try:
            self._link.publish_all(found)
        except LinkClosed as error:
            _log.warning("%d messages do not reach MQTT: %s", len(found), error)
            return
        self.taken += len(found)

    def _message(self, topic: str, value: Any, *, may_retain: bool) -> Message | None:
        """Return the message for a value of the hub; None if MQTT cannot have it."""
        for each in self._outward:
            if topic.startswith(each.endpoint):
                name = each.mqtt + topic.removeprefix(each.endpoint)
                payload = _payload(value)
                if payload is None or not is_valid_topic(name) or name.startswith("$"):
                    return None
                return Message(name, payload, each.qos, each.retain and may_retain)
        return None


#: Messages that are published on the hub at once.
RUN: Final = 1_000


#: What a payload becomes that is not carried.
_REFUSED: Final = object()


def _payload(value: Any) -> bytes | None:
    """Return the payload that a value becomes; None if MQTT cannot have it."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    try:
        return json_of(thawed(value), ensure_ascii=True, default=_plain).encode()
    except (TypeError, ValueError):
        return None


def _plain(value: Any) -> Any:
    """Return something that JSON has for a value that it lacks."""
    return sorted(value, key=str) if isinstance(value, set | frozenset) else str(value)
