"""Messages with QoS 1 and 2 that are on their way to one client.

`inflight` holds what waits for its PUBACK or PUBREC, `releasing` what waits for its PUBCOMP,
both in the order of sending. What was in flight when the connection ended is in `resend`, and
goes out again before anything else, with the same packet identifiers (MQTT 5, 4.4 and 4.6).
"""

from typing import NamedTuple

from callboard.mqtt.message import Run

LAST_ID = 65_535


class Sent(NamedTuple):
    """A run of messages that was sent with consecutive packet identifiers.

    Attributes:
        run: what it is of; kept here as long as one of them is not acknowledged.
        start: of the first one in the run.
        first: its packet identifier.
        qos: with which it was sent.
        extra: properties that were put before those of the message.
        retain: the flag that was set.
        topic_filter: of the subscription.
        is_shared: whether the subscription is a shared one.
        is_retained: whether it was sent because it was retained.
    """

    run: Run
    start: int
    first: int
    qos: int
    extra: bytes
    retain: bool
    topic_filter: str
    is_shared: bool = False
    is_retained: bool = False


class Window:
    """What one session has in flight."""

    __slots__ = ("following", "inflight", "releasing", "resend", "size")

    def __init__(self, size: int) -> None:
        #: How many messages may be unacknowledged; set at each connect.
        self.size = size
        self.following = 1
        self.inflight: dict[int, Sent] = {}
        self.releasing: dict[int, None] = {}
        self.resend: dict[int, Sent] = {}

    @property
    def room(self) -> int:
        """How many more messages may be sent."""
        return self.size - len(self.inflight) - len(self.releasing)

    def allocate(self, count: int) -> tuple[int, int]:
        """Take free consecutive packet identifiers, at most `count`, at least one.

        Returns the first one and how many. There is a free one, as the window is smaller than
        the number of identifiers.
        """
        inflight, releasing = self.inflight, self.releasing
        first = self.following
        while first in inflight or first in releasing:
            first = first % LAST_ID + 1
        count = min(count, LAST_ID + 1 - first)
        ids = range(first, first + count)
        if not (inflight.keys().isdisjoint(ids) and releasing.keys().isdisjoint(ids)):
            count = next(
                taken
                for taken in range(1, count)
                if first + taken in inflight or first + taken in releasing
            )
        self.following = (first + count - 1) % LAST_ID + 1
        return first, count

    def connection_lost(self) -> None:
        """Prepare to send again what was not acknowledged, in its order."""
        if self.inflight:
            self.resend = {**self.inflight, **self.resend}
            self.inflight = {}
