"""What a session wants to read, and whether the router has to look after it.

A `DataRequest` reads one filter's log. It lives either in the tracker of its session, when
there is something to read, or among the waiters of the log, when it has read everything.
"""

from enum import Enum
from typing import TYPE_CHECKING

from callboard.mqtt.datalog import DataLog

if TYPE_CHECKING:
    from callboard.mqtt.session import Session, Subscription
    from callboard.mqtt.share import ShareGroup


class Status(Enum):
    """Why a connection is, or is not, in the ready queue."""

    READY = "ConnectionReady"
    BUSY = "ConnectionBusy"
    CAUGHT_UP = "ConnectionCaughtup"
    INFLIGHT_FULL = "InflightFull"
    FETCHING = "Fetching"


class Cause(Enum):
    """Why a connection might have to be scheduled."""

    INIT = "Init"
    READY = "Ready"
    NEW_FILTER = "NewFilter"
    FRESH_DATA = "FreshData"
    INCOMING_ACK = "IncomingAck"
    ACKS = "Acks"
    FETCHED = "Fetched"


class DataRequest:
    """A cursor into a filter's log.

    Attributes:
        log: what it reads.
        offset: the next message to read.
        subscription: with what options; for a shared one, that of the member who has it.
        session: who reads; None while a shared request is with no member.
        group: of a shared subscription, which owns this request.
        stop: the offset at which it ends, for retained messages and after UNSUBSCRIBE.
        is_retained: reads retained messages, from a log of its own.
    """

    __slots__ = ("group", "is_retained", "log", "offset", "session", "stop", "subscription")

    def __init__(
        self,
        log: DataLog,
        subscription: "Subscription",
        session: "Session | None",
        *,
        group: "ShareGroup | None" = None,
    ) -> None:
        self.log = log
        self.offset = log.end
        self.subscription = subscription
        self.session = session
        self.group = group
        self.stop: int | None = None
        self.is_retained = False

    def place(self, following: int) -> int:
        """Return the number of the next message to read; `following` if there is none yet."""
        if self.offset >= self.log.end:
            return following
        offset, segment, index = self.log.find(self.offset)
        return segment.number_at(index) + offset - segment.starts[index]


class Tracker:
    """The requests of a session that have something to read, and the session's status."""

    __slots__ = ("requests", "status")

    def __init__(self) -> None:
        #: In turn; few, so that a list is smaller and as quick as a deque.
        self.requests: list[DataRequest] = []
        self.status = Status.BUSY

    def put_first(self, request: DataRequest) -> None:
        """Put a request that will end before those that go on: what it reads is older."""
        behind = sum(each.stop is not None for each in self.requests)
        self.requests.insert(behind, request)

    def wakes_for(self, cause: Cause) -> bool:
        """Take a cause; returns whether the connection has become ready by it."""
        status = self.status
        if status is Status.READY:
            return False
        if cause is Cause.FRESH_DATA or cause is Cause.NEW_FILTER:
            wakes = status is Status.CAUGHT_UP
        elif cause is Cause.INCOMING_ACK or cause is Cause.ACKS:
            wakes = status is not Status.BUSY
        elif cause is Cause.FETCHED:
            wakes = status is Status.FETCHING
        else:
            wakes = status is Status.BUSY
        if wakes:
            self.status = Status.READY
        return wakes
