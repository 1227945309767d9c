"""Rules: messages of a filter go through a function of yours, and what it returns to a topic.

A rule is a subscriber within the process, on a thread of its own: it may take its time. QoS 1
and 2 reach it as any subscriber; while it works, the rest waits in the router's logs. What
rules publish is not given to rules, so they cannot feed each other in a circle.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from callboard.mqtt.port.local_link import LocalLink
from callboard.mqtt.router.link import Mailbox
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
        topic_filter: of the messages that it takes.
        function: what becomes of them.
        topic: where payloads go that it returns; the message's own topic is refused, None needs
            messages from the function.
        qos: the most that it subscribes with.
    """

    topic_filter: str
    function: RuleFunction
    topic: str | None = None
    qos: int = 1

    def __post_init__(self) -> None:
        check_filter(self.topic_filter)


class RuleRunner:
    """Runs the rules of a router on one thread."""

    def __init__(self, mailbox: Mailbox, rules: Iterable[Rule]) -> None:
        self._rules = tuple(rules)
        #: Times that a function raised or returned what cannot be published.
        self.failures = 0
        #: Messages that went through a rule.
        self.taken = 0
        self._link = LocalLink(mailbox, CLIENT_ID)
        for topic_filter in {rule.topic_filter for rule in self._rules}:
            qos = max(rule.qos for rule in self._rules if rule.topic_filter == topic_filter)
            self._link.subscribe(topic_filter, qos=qos, no_local=True)
        self._thread = threading.Thread(target=self._run, name="mqtt-rules", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End after the message at hand."""
        self._link.close()
        self._thread.join(1.0)

    def _run(self) -> None:
        """Take messages and apply the rules, until the link is closed."""
        with contextlib.suppress(LinkClosed):
            while True:
                message = self._link.recv()
                for rule in self._rules:
                    if matches(message.topic, rule.topic_filter):
                        self._apply(rule, message)

    def _apply(self, rule: Rule, message: Message) -> None:
        """Give a message to one rule, and publish what it returns."""
        self.taken += 1
        try:
            results = list(_messages(rule, message, rule.function(message)))
            self._link.publish_all(results)
        except LinkClosed:
            return
        except InvalidPacket as error:
            self.failures += 1
            _log.warning("the rule for %s made no message: %s", rule.topic_filter, error)
        except BaseException as error:  # noqa: BLE001  (a function of the user's)
            self.failures += 1
            logged(_log, "the rule for %s failed", rule.topic_filter, error=error)


def _messages(rule: Rule, message: Message, result: Any) -> Iterable[Message]:
    """Return the messages that a rule's function has made."""
    if result is None:
        return
    for each in result if isinstance(result, list | tuple) else (result,):
        if isinstance(each, Message):
            yield each
        elif rule.topic is None:
            text = "a rule without a topic has to return messages"
            raise TypeError(text)
        elif isinstance(each, str | bytes | bytearray | memoryview):
            payload = each.encode() if isinstance(each, str) else bytes(each)
            if (properties := message.properties) is not None:
                properties = replace(properties, subscription_identifiers=(), topic_alias=None)
            yield Message(rule.topic, payload, message.qos, properties=properties)
        else:
            text = f"a rule returned {type(each).__name__}; bytes, text or messages are right"
            raise TypeError(text)
