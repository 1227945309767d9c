"""What one client may do, by rules and hooks: the `Access` of its link."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from callboard.mqtt.link import Access
from callboard.mqtt.reason_code import ReasonCode

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Client:
    """Somebody who is in, for hooks.

    Attributes:
        client_id: of the session.
        username: None if it gave none.
        address: where it comes from.
    """

    client_id: str
    username: str | None
    address: str


SubscribeHook = Callable[[Client, str, int], int | None]
"""Called with a client, a filter and the QoS; returns the QoS or a reason code, or None."""


class Unruled:
    """The access of all clients that no rule is about when they come in."""

    __slots__ = ()

    is_open = True

    def may_publish(self, _topic: str) -> bool:
        """Say yes."""
        return True

    def may_subscribe(self, _topic_filter: str, qos: int) -> int:
        """Grant it."""
        return qos

    def may_receive(self, _topic: str) -> bool:
        """Say yes."""
        return True


class Ruled:
    """The access of a client that rules or hooks are about; a reload makes another one."""

    __slots__ = ("_client", "_hook", "_rules", "is_open")

    def __init__(
        self, client: Client, rules: Access | None, hook: SubscribeHook | None
    ) -> None:
        self._client = client
        self._rules = rules
        self._hook = hook
        #: Whether no topic is closed to this client.
        self.is_open = rules is None

    def may_publish(self, topic: str) -> bool:
        """Whether this client may publish there."""
        return self._rules is None or self._rules.may_publish(topic)

    def may_subscribe(self, topic_filter: str, qos: int) -> int:
        """Return the QoS or a reason code; the hook is asked about what the rules grant."""
        granted = qos if self._rules is None else self._rules.may_subscribe(topic_filter, qos)
        if self._hook is None or granted >= ReasonCode.UNSPECIFIED_ERROR:
            return granted
        try:
            answer = self._hook(self._client, topic_filter, granted)
        except Exception:  # noqa: BLE001  (a function of the user's)
            _LOG.exception("the subscribe hook failed for client %r", self._client.client_id)
            return ReasonCode.UNSPECIFIED_ERROR
        return granted if answer is None else int(answer)

    def may_receive(self, topic: str) -> bool:
        """Whether messages of a topic may go to this client."""
        return self._rules is None or self._rules.may_receive(topic)
