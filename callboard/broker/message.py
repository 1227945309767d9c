"""The class from which programs of older Broker versions derived their messages."""

from typing import Any


class Message:
    """Something that turns itself into data: derive from it and write `to_broker`."""

    def to_broker(self) -> Any:
        """Return the data."""
        msg = f"{type(self).__name__} derives from Message and has no to_broker()"
        raise NotImplementedError(msg)
