"""Rules: functions of the application that process messages and publish their results.

A rule is a subscriber in the process, on a separate thread, so it may be slow. It gets messages
with QoS 1 and 2 like any subscriber; while it is busy, the rest waits in the router's logs.
Rules do not get messages that rules publish, so messages cannot loop.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from callboard.mqtt.port.local_link import LocalLink
from callboard.mqtt.router.link import RouterMailbox
from callboard.mqtt.wire.client import Message
from callboard.mqtt.wire.errors import InvalidPacket, LinkClosed
from callboard.mqtt.wire.topic import check_filter, matches
from callboard.support.dataclass import dataclass
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
        function: called with each message.
        topic: the topic of payloads that the function returns. With None it must return
            messages.
        qos: the QoS of the subscription.
    """

    topic_filter: str
    function: RuleFunction
    topic: str | None = None
    qos: int = 1

    def __post_init__(self) -> None:
        check_filter(self.topic_filter)


class RuleRunner:
    """Runs the rules of a router on one thread."""

    def __init__(self, mailbox: RouterMailbox, rules: Iterable[Rule]) -> None:
        self._rules = tuple(rules)
        #: Calls of functions that raised, or returned a value that cannot be published.
        self.failures = 0
        #: Messages that were processed by a rule.
        self.taken = 0
        self._link = LocalLink(mailbox, CLIENT_ID)
        for topic_filter in {rule.topic_filter for rule in self._rules}:
            qos = max(rule.qos for rule in self._rules if rule.topic_filter == topic_filter)
            self._link.subscribe(topic_filter, qos=qos, no_local=True)
        self._thread = threading.Thread(target=self._run, name="mqtt-rules", daemon=True)
        self._thread.start()

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
            results = list(_messages(rule, message, rule.function(message)))
            self._link.publish_all(results)
        except LinkClosed:
            return
        except InvalidPacket as error:
            self.failures += 1
            _log.warning("the rule for %s made a bad message: %s", rule.topic_filter, error)
        except BaseException as error:  # noqa: BLE001  (a function of the application)
            self.failures += 1
            logged(_log, "the rule for %s failed", rule.topic_filter, error=error)


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
