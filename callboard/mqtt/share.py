"""Shared subscriptions: one cursor for a group, handed from member to member.

The group's only request is with one member's tracker while there is something to read, among
the waiters of the log when all is read, and idle when no member can take anything.
"""

from collections import deque
from typing import Protocol

from callboard.mqtt.limits import ShareStrategy
from callboard.mqtt.message import Run
from callboard.mqtt.session import Session
from callboard.mqtt.tracker import DataRequest, Status

_ABLE = (Status.READY, Status.CAUGHT_UP)


class Chance(Protocol):
    """Where chance comes from: a `random.Random`."""

    def randrange(self, stop: int, /) -> int:
        """Return a number from 0 on, below `stop`."""


class ShareGroup:
    """The members of `$share/GROUP/FILTER`.

    Attributes:
        topic_filter: with the share.
        request: the group's only one; its `session` is the member who has it.
        members: sessions, connected or not.
        returned: messages of members whose sessions ended before they acknowledged.
        is_idle: there is something to read, and nobody to read it.
    """

    __slots__ = (
        "_turn",
        "chance",
        "is_idle",
        "members",
        "request",
        "returned",
        "strategy",
        "topic_filter",
    )

    def __init__(
        self,
        topic_filter: str,
        request: DataRequest,
        strategy: ShareStrategy,
        chance: Chance,
    ) -> None:
        self.topic_filter = topic_filter
        self.request = request
        self.members: list[Session] = []
        self.returned: deque[tuple[Run, int]] = deque()
        self.is_idle = False
        self.strategy = strategy
        self.chance = chance
        self._turn = 0

    @property
    def has_more(self) -> bool:
        """Whether there is something to read."""
        return bool(self.returned) or self.request.offset < self.request.log.end

    @property
    def burst(self) -> int:
        """Messages that a member takes before the next one has its turn."""
        return 200 if self.strategy is ShareStrategy.STICKY else 1

    def next_member(self) -> Session | None:
        """Return who gets the next message, if anybody can take one."""
        members = self.members
        count = len(members)
        if self.strategy is ShareStrategy.RANDOM and count:
            self._turn = self.chance.randrange(count)
        elif self.strategy is ShareStrategy.ROUND_ROBIN:
            self._turn += 1
        for step in range(count):
            index = (self._turn + step) % count
            member = members[index]
            if member.connection is not None and member.tracker.status in _ABLE:
                self._turn = index
                return member
        return None

    def hand_over(self) -> Session | None:
        """Give the request to the next member's tracker; returns the member."""
        member = self.next_member()
        request = self.request
        request.session = member
        self.is_idle = member is None
        if member is not None:
            request.subscription = member.subscriptions[self.topic_filter]
            member.tracker.requests.append(request)
        return member
