"""Rules: messages of a filter are selected, and go to a function or a destination.

A rule is a subscriber in the process, on a separate thread, so it may be slow. It gets messages
with QoS 1 and 2 like any subscriber; while it is busy, the rest waits in the router's logs.
Rules do not get messages that rules publish, so messages cannot loop.

`RuleRunner` publishes the results of functions, and selected messages under another topic. The
other destinations are served by `forwarding`.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from typing import Any, Final

from callboard.model.conditions import MISSING, check_conditions, field_of, meets
from callboard.mqtt.port.local_link import LocalLink
from callboard.mqtt.router.link import RouterMailbox
from callboard.mqtt.service.destination import Destination, decoded, filled
from callboard.mqtt.service.forwarding import START_TIMEOUT, Forwarded
from callboard.mqtt.wire.client import Message
from callboard.mqtt.wire.errors import InvalidPacket, LinkClosed
from callboard.mqtt.wire.topic import check_filter, matches
from callboard.support.dataclass import dataclass
from callboard.support.json_form import json_of
from callboard.support.nesting import parse_json
from callboard.support.text import logged

_log: Final = logging.getLogger(__name__)
CLIENT_ID: Final = "$rules"

#: Returns None for nothing, a payload (bytes or text), a `Message`, or a list of these.
RuleFunction = Callable[[Message], Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        topic_filter: the topic filter of the messages that it processes.
        function: called with each message; None for a rule with a destination.
        topic: the topic of payloads that the function returns. With None it must return
            messages.
        qos: the QoS of the subscription.
        conditions: conditions on the fields of a JSON payload, as in `{"celsius": {">": 30}}`;
            other messages are skipped.
        select: the field of a JSON payload that is passed on, or several of them as an object;
            None passes on the payload.
        to: the destination of a rule without a function.
    """

    topic_filter: str
    function: RuleFunction | None = None
    topic: str | None = None
    qos: int = 1
    conditions: Mapping[str, Any] = field(default_factory=dict)
    select: str | tuple[str, ...] | None = None
    to: Destination | None = None

    def __post_init__(self) -> None:
        check_filter(self.topic_filter)
        check_conditions(self.conditions)
        if (self.function is None) == (self.to is None):
            message = f"the rule for {self.topic_filter} needs a function or a destination"
            raise ValueError(message)
        if self.to is not None and self.topic is not None:
            message = f"the rule for {self.topic_filter} has a topic and a destination"
            raise ValueError(message)

    @property
    def is_forwarded(self) -> bool:
        """Whether the destination is outside of the router."""
        return self.to is not None and not self.to.topic

    def selected(self, payload: bytes) -> Any:
        """Return the selected part of a payload, or `MISSING`."""
        if not self.conditions and self.select is None:
            return payload
        try:
            content = parse_json(payload)
        except ValueError:
            return MISSING
        if not meets(content, self.conditions):
            return MISSING
        if self.select is None:
            return payload
        if isinstance(self.select, str):
            return field_of(content, self.select)
        values = {path: field_of(content, path) for path in self.select}
        return {path: value for path, value in values.items() if value is not MISSING}

    def forward(self, message: Message) -> Forwarded | None:
        """Return a message as its destination gets it; None if it is not selected."""
        assert self.to is not None
        value = self.selected(message.payload)
        if value is MISSING:
            return None
        if value is message.payload:
            with contextlib.suppress(ValueError):  # it stays bytes
                value = decoded(message.payload, self.to.values)
        return Forwarded(message.topic, value)

    def apply(self, message: Message) -> Any:
        """Return the result of the function, or the message for another topic."""
        value = self.selected(message.payload)
        if value is MISSING:
            return None
        if self.to is None:
            assert self.function is not None
            return self.function(message)
        payload = value
        if not isinstance(value, bytes):
            payload = value.encode() if isinstance(value, str) else json_of(value).encode()
        topic = filled(self.to.topic, message.topic)
        properties = message.properties
        if properties is not None:
            properties = replace(properties, subscription_identifiers=(), topic_alias=None)
        return Message(topic, payload, message.qos, self.to.retain, properties=properties)


class RuleRunner:
    """Runs the rules of a router on one thread."""

    def __init__(self, mailbox: RouterMailbox, rules: Iterable[Rule]) -> None:
        self._rules = tuple(rule for rule in rules if not rule.is_forwarded)
        #: Calls of functions that raised, or returned a value that cannot be published.
        self.failures = 0
        #: Messages that were processed by a rule.
        self.taken = 0
        self._link = LocalLink(mailbox, CLIENT_ID)
        self._filters = _filters(self._rules)
        for topic_filter, qos in self._filters.items():
            self._link.subscribe(topic_filter, qos=qos, no_local=True)
        self._thread = threading.Thread(target=self._run, name="mqtt-rules", daemon=True)
        self._thread.start()

    def replace(self, rules: Iterable[Rule]) -> None:
        """Replace the rules; filters that stay miss no message.

        Raises:
            Refused: the router does not grant a subscription.
        """
        self._rules = tuple(rule for rule in rules if not rule.is_forwarded)
        former, self._filters = self._filters, _filters(self._rules)
        for topic_filter, qos in self._filters.items():
            if former.get(topic_filter) != qos:
                granted = self._link.subscribe(topic_filter, qos=qos, no_local=True)
                granted.result(START_TIMEOUT)
        for topic_filter in former.keys() - self._filters.keys():
            self._link.unsubscribe(topic_filter)

    def close(self) -> None:
        """Stop after the current message."""
        self._link.close()
        self._thread.join(1.0)

    def _run(self) -> None:
        """Process messages until the link is closed."""
        with contextlib.suppress(LinkClosed):
            while True:
                message = self._link.recv()
                for rule in self._rules:
                    if matches(message.topic, rule.topic_filter):
                        self._apply(rule, message)

    def _apply(self, rule: Rule, message: Message) -> None:
        """Apply one rule to a message, and publish the result."""
        self.taken += 1
        try:
            results = list(_messages(rule, message, rule.apply(message)))
            self._link.publish_all(results)
        except LinkClosed:
            return
        except InvalidPacket as error:
            self.failures += 1
            _log.warning("the rule for %s made a bad message: %s", rule.topic_filter, error)
        except BaseException as error:  # noqa: BLE001  (a function of the application)
            self.failures += 1
            logged(_log, "the rule for %s failed", rule.topic_filter, error=error)


def _filters(rules: Iterable[Rule]) -> dict[str, int]:
    """Return the filters of rules with the highest QoS of each."""
    filters: dict[str, int] = {}
    for rule in rules:
        filters[rule.topic_filter] = max(rule.qos, filters.get(rule.topic_filter, 0))
    return filters


def _messages(rule: Rule, message: Message, result: Any) -> Iterable[Message]:
    """Return the messages of a rule's result."""
    if result is None:
        return
    for item in result if isinstance(result, list | tuple) else (result,):
        if isinstance(item, Message):
            yield item
        elif rule.topic is None:
            text = "a rule without a topic must return messages"
            raise TypeError(text)
        elif isinstance(item, str | bytes | bytearray | memoryview):
            payload = item.encode() if isinstance(item, str) else bytes(item)
            if (properties := message.properties) is not None:
                properties = replace(properties, subscription_identifiers=(), topic_alias=None)
            yield Message(rule.topic, payload, message.qos, properties=properties)
        else:
            text = f"a rule returned {type(item).__name__}; return bytes, text or messages"
            raise TypeError(text)
