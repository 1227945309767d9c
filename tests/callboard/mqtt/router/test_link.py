"""A link: the two buffers between a client and the router, and the wake-ups beside them."""

from collections import deque
from typing import Any

from callboard.mqtt.router.link import (
    UNSCHEDULE,
    ConnectRequested,
    DeviceData,
    Disconnected,
    DisconnectRequested,
    Ready,
    RouterLink,
)
from callboard.mqtt.wire.packet import Connect as ConnectPacket
from callboard.mqtt.wire.reason_code import ReasonCode
from tests.callboard.mqtt.stage import deliver


class Ends:
    """A router's mailbox, and the other side's wake-ups."""

    def __init__(self) -> None:
        self.events: deque[Any] = deque()
        self.wakes = 0
        self.link = RouterLink(self, ConnectPacket("c"), self.wake)

    def post(self, event: Any) -> None:
        self.events.append(event)

    def wake(self) -> None:
        self.wakes += 1


def test_a_link_sends_events_and_packets_towards_the_router() -> None:
    ends = Ends()
    link = ends.link

    link.begin()
    link.push(b"packet")
    link.ready()
    link.disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT)

    assert [type(event) for event in ends.events] == [
        ConnectRequested,
        DeviceData,
        Ready,
        DisconnectRequested,
    ]
    assert all(event.link is link for event in ends.events)
    assert link.incoming == [b"packet"]


def test_a_link_gives_notifications_of_the_router_in_their_order() -> None:
    ends = Ends()
    link = ends.link
    end = Disconnected(ReasonCode.NORMAL_DISCONNECTION)

    deliver(link, [b"1", UNSCHEDULE])
    deliver(link, [b"2", end])

    assert link.take() == [b"1", UNSCHEDULE, b"2", end]
    assert link.take() == []


def test_shared_buffers_are_swapped_whole_and_the_channel_carries_only_wake_ups() -> None:
    ends = Ends()
    link = ends.link
    for number in range(100):
        link.push(bytes([number]))
    for number in range(100):
        deliver(link, [bytes([number])])

    assert {type(event) for event in ends.events} == {DeviceData}
    assert len({id(event) for event in ends.events}) == ends.wakes == 1
    assert len(link.incoming) == len(link.take()) == 100
    assert link.outgoing == []
    deliver(link, [b"more"])
    assert ends.wakes == 2
