"""Events of Zeek, under the names of the module `broker.zeek`.

endpoint.publish("/zeek/event/ping", zeek.Event("ping", "hi", 7))
topic, data = subscriber.get()
event = zeek.Event(data)
"""

from typing import Any

from callboard.endpoint import Data, InvalidData
from callboard.endpoint.event import NETWORK_TIMESTAMP, SafeEvent
from callboard.endpoint.event import Event as StrictEvent

__all__ = ["NETWORK_TIMESTAMP", "Event", "SafeEvent"]


class Event(StrictEvent):
    """An event, made of a name and arguments, or read from what a subscriber got.

    What was read and is no event has `valid()` False, and nothing else can be asked of it.
    """

    def __init__(self, *args: Any) -> None:
        self._error: InvalidData | None = None
        try:
            super().__init__(*args)
        except InvalidData as error:
            if len(args) != 1:
                raise
            self._error = error

    def valid(self) -> bool:
        """Tell whether what was read is an event."""
        return self._error is None

    def name(self) -> str:
        """Return the name.

        Raises:
            InvalidData: what was read is no event.
        """
        self._refuse_invalid()
        return super().name()

    def args(self) -> list[Any]:
        """Return the arguments as Python values.

        Raises:
            InvalidData: what was read is no event.
        """
        self._refuse_invalid()
        return super().args()

    def as_data(self) -> Data:
        """Return the event as data, as it travels.

        Raises:
            InvalidData: what was read is no event.
        """
        self._refuse_invalid()
        return super().as_data()

    def _refuse_invalid(self) -> None:
        if self._error is not None:
            raise self._error
