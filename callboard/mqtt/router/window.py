"""The window of a client: messages with QoS 1 and 2 that it has not acknowledged.

`inflight` holds messages that wait for a PUBACK or PUBREC, `releasing` those that wait for a
PUBCOMP, both in the order of sending. When the connection ends, messages in flight move to
`resend`; they are sent again before anything else, with the same packet identifiers (MQTT 5,
4.4 and 4.6).
"""

from dataclasses import field
from typing import Final, NamedTuple

from callboard.mqtt.router.message import Run
from callboard.mqtt.wire.errors import ProtocolViolation
from callboard.support.dataclass import dataclass

LAST_ID = 65_535

PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBREL: Final = 0x62
#: First bytes of acknowledgements.
PUBCOMP: Final = 0x70

_NAMES: Final = {PUBACK: "PUBACK", PUBREC: "PUBREC"}


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


@dataclass(slots=True, eq=False, repr=False)
class Window:
    """What one session has in flight."""

    #: How many messages may be unacknowledged; set at each connect.
    size: int
    following: int = 1
    inflight: dict[int, Sent] = field(default_factory=dict)
    releasing: dict[int, None] = field(default_factory=dict)
    resend: dict[int, Sent] = field(default_factory=dict)

    @property
    def room(self) -> int:
        """How many more messages may be sent."""
        return self.size - len(self.inflight) - len(self.releasing)

    @property
    def unacknowledged(self) -> list[tuple[int, Sent]]:
        """Packet identifiers of messages in flight, now or with the connection before."""
        return [*self.inflight.items(), *self.resend.items()]

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
            count = min((inflight.keys() | releasing.keys()).intersection(ids)) - first
        self.following = (first + count - 1) % LAST_ID + 1
        return first, count

    def acknowledge(self, kind: int, ids: tuple[int, ...]) -> list[int]:
        """Take PUBACKs, PUBRECs or PUBCOMPs; return the identifiers that are not known.

        Any order is accepted. `kind` is the first byte of the packets.

        Raises:
            ProtocolViolation: one is of the wrong kind for its message.
        """
        if kind == PUBCOMP:
            release = self.releasing.pop
            return [packet_id for packet_id in ids if release(packet_id, ids) is ids]
        unknown: list[int] = []
        pop = self.inflight.pop
        qos = 1 if kind == PUBACK else 2
        for packet_id in ids:
            sent = pop(packet_id, None)
            if sent is None:
                unknown.append(packet_id)
            elif sent.qos != qos:
                message = (
                    f"a {_NAMES[kind]} for {packet_id}, which was sent with QoS {sent.qos}"
                )
                raise ProtocolViolation(message)
        if kind == PUBREC:
            unknown = [packet_id for packet_id in unknown if packet_id not in self.releasing]
            received = [each for each in ids if each not in unknown] if unknown else ids
            self.releasing |= dict.fromkeys(received)
        return unknown

    def connection_lost(self) -> None:
        """Prepare to send again what was not acknowledged, in its order."""
        if self.inflight:
            self.resend = {**self.inflight, **self.resend}
            self.inflight = {}
