"""Base class of messages in programs for older Broker versions."""

from typing import Any


class Message:
    """A value that converts itself to data; subclasses define `to_broker`."""

    def to_broker(self) -> Any:
        """Return the data."""
        msg = f"{type(self).__name__} must define to_broker()"
        raise NotImplementedError(msg)
