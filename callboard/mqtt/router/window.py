"""The window of a client: messages with QoS 1 and 2 that it has not acknowledged.

`inflight` has the messages that wait for a PUBACK or PUBREC; `releasing` has the ones that wait
for a PUBCOMP. Both are in the order of sending. When the connection ends, messages in flight
move to `resend`. They are sent again before anything else, with the same packet identifiers
(MQTT 5, 4.4 and 4.6).
"""

from dataclasses import field
from typing import Final, NamedTuple

from callboard.mqtt.router.message import MessageRun
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
    """Messages of one run that were sent with consecutive packet identifiers.

    Attributes:
        run: the run of the messages; referenced here until all of them are acknowledged.
        start: index of the first message in the run.
        first: its packet identifier.
        qos: the QoS of the delivery.
        extra: encoded properties inserted before the message's.
        retain: the flag of the delivery.
        topic_filter: the topic filter of the subscription.
        is_shared: whether the subscription is shared.
        is_retained: whether the message was sent because it was retained.
    """

    run: MessageRun
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
    """The messages in flight to one session."""

    #: The most unacknowledged messages; set at each connect.
    size: int
    following: int = 1
    inflight: dict[int, Sent] = field(default_factory=dict)
    releasing: dict[int, None] = field(default_factory=dict)
    resend: dict[int, Sent] = field(default_factory=dict)

    @property
    def room(self) -> int:
        """The number of messages that may be sent now."""
        return self.size - len(self.inflight) - len(self.releasing)

    @property
    def unacknowledged(self) -> list[tuple[int, Sent]]:
        """Messages in flight, on this connection or the previous one, by packet identifier."""
        return [*self.inflight.items(), *self.resend.items()]

    def allocate(self, count: int) -> tuple[int, int]:
        """Allocate free consecutive packet identifiers, at least one and at most `count`.

        Returns the first one and their number. One is always free, because the window is
        smaller than the number of identifiers.
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
        """Apply PUBACKs, PUBRECs or PUBCOMPs; return the unknown identifiers.

        Any order is accepted. `kind` is the first byte of the packets.

        Raises:
            ProtocolViolation: an acknowledgement is of the wrong kind for its message.
        """
        if kind == PUBCOMP:
            release = self.releasing.pop
            return [packet_id for packet_id in ids if release(packet_id, ids) is ids]
        unknown: list[int] = []
        pop = self.inflight.pop
        qos = 1 if kind == PUBACK else 2
        for packet_id in ids:
            entry = pop(packet_id, None)
            if entry is None:
                unknown.append(packet_id)
            elif entry.qos != qos:
                message = (
                    f"a {_NAMES[kind]} for {packet_id}, which was sent with QoS {entry.qos}"
                )
                raise ProtocolViolation(message)
        if kind == PUBREC:
            unknown = [packet_id for packet_id in unknown if packet_id not in self.releasing]
            received = [i for i in ids if i not in unknown] if unknown else ids
            self.releasing |= dict.fromkeys(received)
        return unknown

    def connection_lost(self) -> None:
        """Prepare unacknowledged messages for resending, in their order."""
        if self.inflight:
            self.resend = {**self.inflight, **self.resend}
            self.inflight = {}
