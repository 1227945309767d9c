"""Shared subscriptions: one cursor for a group, passed from member to member.

A group has one request. It is in one member's tracker while there is something to read, among
the waiters of the log when everything is read, and idle when no member can receive.
"""

from collections import deque
from dataclasses import field
from typing import Protocol

from callboard.mqtt.router.limits import ShareStrategy
from callboard.mqtt.router.message import MessageRun
from callboard.mqtt.router.session import ConnectionStatus, DataRequest, Session
from callboard.support.dataclass import dataclass

_ABLE = (ConnectionStatus.READY, ConnectionStatus.CAUGHT_UP)


class RandomSource(Protocol):
    """A source of random numbers: a `random.Random`."""

    def randrange(self, stop: int, /) -> int:
        """Return a number from 0 up to, but not including, `stop`."""


@dataclass(slots=True, eq=False, repr=False)
class ShareGroup:
    """The members of `$share/GROUP/FILTER`.

    Attributes:
        topic_filter: the topic filter with the share.
        request: the group's request; its `session` is the member that has it.
        members: sessions, connected or not.
        returned: messages of members whose sessions ended before they acknowledged.
        is_idle: whether there are messages, but no member that can receive them.
    """

    topic_filter: str
    request: DataRequest
    strategy: ShareStrategy
    chance: RandomSource
    members: list[Session] = field(default_factory=list)
    returned: deque[tuple[MessageRun, int]] = field(default_factory=deque)
    is_idle: bool = False
    _turn: int = 0

    @property
    def has_more(self) -> bool:
        """Whether there is something to read."""
        return bool(self.returned) or self.request.offset < self.request.log.end

    @property
    def burst(self) -> int:
        """Messages that a member gets before it is the next member's turn."""
        return 200 if self.strategy is ShareStrategy.STICKY else 1

    def hand_over(self) -> Session | None:
        """Pass the request to the next member that can receive a message.

        Return that member.
        """
        members, request = self.members, self.request
        count = len(members)
        if self.strategy is ShareStrategy.RANDOM and count:
            self._turn = self.chance.randrange(count)
        elif self.strategy is ShareStrategy.ROUND_ROBIN:
            self._turn += 1
        for step in range(count):
            index = (self._turn + step) % count
            member = members[index]
            if member.connection is not None and member.status in _ABLE:
                self._turn = index
                self.is_idle = False
                request.session = member
                request.subscription = member.subscriptions[self.topic_filter]
                member.tracker.append(request)
                return member
        self.is_idle = True
        request.session = None
        return None

    def take_back(self, session: Session) -> None:
        """Return QoS 1 messages of an ending session to the group (MQTT 5, 4.8.2)."""
        for packet_id, entry in session.window.resend.items():
            if entry.is_shared and entry.topic_filter == self.topic_filter and entry.qos == 1:
                self.returned.append((entry.run, entry.start + packet_id - entry.first))
