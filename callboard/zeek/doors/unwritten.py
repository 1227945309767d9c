"""Messages that a foreign format cannot express: counted, and logged once per kind."""

import logging
from typing import Final

from callboard.model.errors import EndpointError
from callboard.topics.hub import Hub

#: Kinds of messages that one adapter logs; a kind is a topic and a type of error.
KINDS_LIMIT: Final = 100


class UnwrittenMessages:
    """Counter of the messages that one adapter could not encode.

    Attributes:
        count: messages counted.
    """

    def __init__(self, hub: Hub, log: logging.Logger) -> None:
        self.count = 0
        self._hub, self._log = hub, log
        self._logged: set[tuple[str, str]] = set()

    def add(self, receiver: str, topic: str, error: EndpointError) -> None:
        """Count a message; log the first one of its topic and kind of error."""
        self.count += 1
        self._hub.counters.unwritten += 1
        kind = topic, type(error).__name__
        if kind in self._logged or len(self._logged) >= KINDS_LIMIT:
            return
        self._logged.add(kind)
        text = "a message on %s was not sent to %s; further ones are only counted: %s"
        self._log.warning(text, topic[:80], receiver or "a client", error)
