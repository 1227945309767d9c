"""Shared subscriptions: one cursor for a group, passed from member to member.

A group has one request. It is in one member's tracker while there is something to read, among
the waiters of the log when everything is read, and idle when no member can receive.

A member can receive when it is connected and neither its link nor its window is full; a full
window does not stop messages with QoS 0. Among these, a member is preferred whose limit of
packets and whose access rules admit the next message. If such a member is connected and can
only receive later, the group waits for it.
"""

from collections import deque
from dataclasses import field
from typing import Final, Protocol

from callboard.mqtt.router.limits import ShareStrategy
from callboard.mqtt.router.message import MessageRun
from callboard.mqtt.router.session import ConnectionStatus, DataRequest, Session
from callboard.support.dataclass import dataclass

_ABLE = (ConnectionStatus.READY, ConnectionStatus.CAUGHT_UP)

#: Bytes that the router may add to a packet: expiry, alias, subscription identifier, packet id.
ADDED_BYTES: Final = 16


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

    @property
    def next_run(self) -> MessageRun | None:
        """The run of the next message; None if it is not in memory."""
        if self.returned:
            return self.returned[0][0]
        log = self.request.log
        if self.request.offset >= log.end:
            return None
        _, segment, index = log.find(self.request.offset)
        return segment.runs[index] if segment.runs else None

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
        index = self._choose(count)
        if index is None:
            self.is_idle = True
            request.session = None
            return None
        self._turn, self.is_idle = index, False
        member = request.session = members[index]
        request.subscription = member.subscriptions[self.topic_filter]
        member.tracker.append(request)
        return member

    def _choose(self, count: int) -> int | None:
        """Return the index of the member for the next message; None if no member can get it."""
        members, turn, run = self.members, self._turn, None
        unfit: int | None = None
        for step in range(count):
            index = (turn + step) % count
            member = members[index]
            connection = member.connection
            if connection is None:
                continue
            if member.status not in _ABLE:
                run = run or self.next_run
                if not self._passes_window(member, run):
                    continue
            if not connection.is_limited:
                return index
            run = run or self.next_run
            if run is None or connection.accepts(run, ADDED_BYTES):
                return index
            if unfit is None:
                unfit = index
        if unfit is None or any(
            member.connection is not None and member.connection.accepts(run, ADDED_BYTES)
            for member in members
            if run is not None
        ):
            return None  # the latter members cannot receive now
        return unfit

    def _passes_window(self, member: Session, run: MessageRun | None) -> bool:
        """Return whether a member with a full window can be sent a message, with QoS 0."""
        if member.status is not ConnectionStatus.INFLIGHT_FULL or run is None:
            return False
        return not run.qos or not member.subscriptions[self.topic_filter].qos

    def take_back(self, session: Session) -> None:
        """Return QoS 1 messages of an ending session to the group (MQTT 5, 4.8.2)."""
        for packet_id, entry in session.window.resend.items():
            if entry.is_shared and entry.topic_filter == self.topic_filter and entry.qos == 1:
                self.returned.append((entry.run, entry.start + packet_id - entry.first))
