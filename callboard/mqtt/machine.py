"""The router as a pure machine: events of links in, records and notifications out.

`run_inner` is one turn: up to `MOST_EVENTS` events, then up to `MOST_READY` connections of the
ready queue. What it returns is carried out in order: first the records are made durable, then
the notifications go to the links. So what was acknowledged is durable, and what a subscriber
got will not be forgotten by a router that starts again.

States of a connection (`Status`, in its tracker):

| from | cause | to |
|---|---|---|
| Busy (its session was there) | Init | Ready |
| Busy (its link was full) | Ready: the link is empty | Ready |
| Caughtup | a publish (FreshData), a subscription (NewFilter) | Ready |
| Caughtup, InflightFull | an acknowledgement, something to acknowledge | Ready |
| Ready | consumed: all read | Caughtup |
| Ready | consumed: link full | Busy |
| Ready | consumed: window full | InflightFull |
| Ready | consumed: what is next is in the journal alone | Fetching |
| Fetching | it was fetched; an acknowledgement, something to acknowledge | Ready |

A connection whose session begins with it is Caughtup: there is nothing that it could read. A
connection is in the ready queue exactly while it is Ready. Nobody but `schedule` and
`consume` changes a status, and `connect` for a connection that begins.
"""

import heapq
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from callboard.mqtt import connecting
from callboard.mqtt.brake import Brakes
from callboard.mqtt.connection import Connection
from callboard.mqtt.datalog import CursorJump, DataLog
from callboard.mqtt.fetching import Fetch, Fetches
from callboard.mqtt.forwarding import consume
from callboard.mqtt.ingest import take_data
from callboard.mqtt.limits import Limits
from callboard.mqtt.link import (
    AccessChanged,
    Connect,
    DeviceData,
    Disconnect,
    Link,
    LinkEvent,
    Notification,
    Ready,
)
from callboard.mqtt.message import Run
from callboard.mqtt.meters import Meters
from callboard.mqtt.packet import Will
from callboard.mqtt.reason_code import ReasonCode
from callboard.mqtt.record import (
    Adopted,
    HandedOver,
    JournalRecord,
    Published,
    Received,
)
from callboard.mqtt.retained import RetainedMessages, retain
from callboard.mqtt.routes import Route, Routes
from callboard.mqtt.segment import UNWRITTEN
from callboard.mqtt.session import Histories, Session
from callboard.mqtt.share import Chance, ShareGroup
from callboard.mqtt.subscribing import all_left
from callboard.mqtt.tracker import Cause, DataRequest, Status

MOST_EVENTS = 500
"""Events of one turn, so that a flood of them cannot keep messages from being sent."""

MOST_READY = 100
"""Connections that one turn sends to, so that events are not kept waiting."""


class Turn(NamedTuple):
    """What a turn wants done, in this order.

    Attributes:
        records: to make durable, all or none.
        transmits: notifications, by link.
        alerts: what somebody should know of.
        fetches: what to read from the journal then.
    """

    records: list[JournalRecord]
    transmits: list[tuple[Link, list[Notification]]]
    alerts: list[CursorJump]
    fetches: list[Fetch]


class RouterMachine:
    """Sessions, filters' logs and everything between them.

    Attributes:
        events: what links told, in order; put them here.
        ready: the ready queue.
        connections: by client id.
        graveyard: sessions whose clients are away, by client id.
        routes: the logs of all filters.
        groups: shared subscriptions, by filter with the share.
        retained: the last messages of topics.
        wills: those that wait: when, and what, by client id.
        brakes: what publishers wait for.
        fetches: what readers wait for.
        adopted, handed: sessions on their way from and to other routers; see `claims`.
        number: of the next message.
        now: the time of this turn, in seconds of a clock that does not jump.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        is_durable: bool = False,
        make_client_id: Callable[[], str],
        chance: Chance,
        now: float = 0.0,
        events: deque[LinkEvent] | None = None,
        make_stamp: Callable[[], int] = lambda: 0,
    ) -> None:
        """Make an empty router.

        Args:
            limits: what it allows.
            is_durable: whether there is a journal that takes the records of each turn.
            make_client_id: gives names that nobody can guess, to clients without one.
            chance: for shared subscriptions with the strategy *random*.
            now: the time.
            events: where links put their events, if it is there already.
            make_stamp: gives each connect a number above those before, in all the cluster.
        """
        self.limits = limits or Limits()
        self.is_durable = is_durable
        self.make_client_id = make_client_id
        self.make_stamp = make_stamp
        self.chance = chance
        self.now = now
        self.events: deque[LinkEvent] = deque() if events is None else events
        self.ready: deque[Connection] = deque()
        self.connections: dict[str, Connection] = {}
        self.graveyard: dict[str, Session] = {}
        self.routes = Routes(self.limits, has_journal=is_durable)
        self.groups: dict[str, ShareGroup] = {}
        self.retained = RetainedMessages(self.limits.retained)
        self.wills: dict[str, tuple[float, Will]] = {}
        self.brakes = Brakes(self)
        self.adopted: dict[str, Adopted] = {}
        self.handed: dict[str, HandedOver] = {}
        self.fetches = Fetches(self)
        self.number = 0
        self.meters = Meters()
        self.histories = Histories()
        #: Requests that messages of the events at hand have woken.
        self.notifications: list[DataRequest] = []
        self.records: list[JournalRecord] = []
        self.transmits: list[tuple[Link, list[Notification]]] = []
        self.alerts: list[CursorJump] = []
        self.wanted: list[Fetch] = []
        self._touched: list[Connection] = []
        self._deadlines: list[tuple[float, int, str]] = []
        self._armed = 0
        #: Whose event was taken last: who is to blame if a turn fails.
        self.at_hand: Link | None = None

    # --- turns ---

    @property
    def is_idle(self) -> bool:
        """Whether a turn would do nothing before an event or a deadline comes."""
        return not self.events and not self.ready

    @property
    def next_deadline(self) -> float | None:
        """When a will, the end of a session or a look at slow readers is due next."""
        look = self.brakes.due
        if not self._deadlines:
            return look
        due = self._deadlines[0][0]
        return due if look is None else min(due, look)

    def run_inner(self, now: float) -> Turn:
        """Take events and send to connections that are ready: one turn."""
        self.now = now
        while self._deadlines and self._deadlines[0][0] <= now:
            connecting.expire(self, heapq.heappop(self._deadlines)[2])
        if self.notifications:
            self.notify()
        self._take_events()
        touched = self._touched
        if self.ready:
            self._serve_ready()
        if self.brakes.braked:
            self.brakes.relax()
        transmits = self.transmits
        for connection in touched:
            if connection.out:
                transmits.append((connection.link, connection.out))
                connection.out = []
        touched.clear()
        turn = Turn(self.records, transmits, self.alerts, self.wanted)
        self.records, self.transmits, self.alerts, self.wanted = [], [], [], []
        return turn

    def _serve_ready(self) -> None:
        ready, touched = self.ready, self._touched
        for _ in range(min(len(ready), MOST_READY)):
            connection = ready.popleft()
            if connection.session.connection is connection:
                consume(self, connection)
                if connection.out:
                    touched.append(connection)

    def _take_events(self) -> None:
        events = self.events
        for _ in range(min(len(events), MOST_EVENTS)):
            event = events.popleft()
            if type(event) is DeviceData:
                take_data(self, event.link)
            else:
                self._take(event)
            if self.notifications:
                self.notify()

    def _take(self, event: LinkEvent) -> None:
        self.at_hand = event.link
        kind = type(event)
        if kind is Connect:
            connecting.connect(self, event.link)
        else:
            connection = event.link.connection
            if connection is None:
                return  # it is over already
            if kind is Ready:
                connection.unsent = connection.unsent_bytes = 0
                self.schedule(connection.session, Cause.READY)
                if connection.session.has_shared:
                    self.wake_groups(connection.session)
            elif isinstance(event, Disconnect):
                reason, has_will = event.reason_code, event.has_will
                self.disconnect(connection, reason, has_will=has_will, is_told=event.is_told)
            elif isinstance(event, AccessChanged):
                connection.forget_answers()

    def notify(self) -> None:
        """Hand the requests that publishes have woken to their trackers."""
        requests, self.notifications = self.notifications, []
        for request in requests:
            session = request.session
            if request.group is not None:
                self.hand_over(request.group)
            elif session is not None:
                session.tracker.requests.append(request)
                self.schedule(session, Cause.FRESH_DATA)

    def schedule(self, session: Session, cause: Cause) -> None:
        """Put a connection into the ready queue if this cause makes it ready."""
        if session.connection is None:
            return
        if session.tracker.wakes_for(cause):
            self.ready.append(session.connection)
        if session.has_shared and cause is Cause.INCOMING_ACK:
            self.wake_groups(session)

    def touch(self, connection: Connection) -> None:
        """Send what is in a connection's `out` at the end of this turn."""
        self._touched.append(connection)

    def arm(self, when: float, client_id: str) -> None:
        """Look after a client that is away at a time."""
        self._armed += 1
        heapq.heappush(self._deadlines, (when, self._armed, client_id))

    # --- messages ---

    def append(
        self,
        run: Run,
        route: Route,
        session: Session | None = None,
        received: tuple[int, ...] = (),
    ) -> None:
        """Append messages to the logs of all filters that match, and wake who waits there.

        Args:
            run: what was published.
            route: where it goes.
            session: of the publisher.
            received: the identifiers of its QoS 2 messages.
        """
        run.number = self.number
        self.number += run.count
        run.filters = route.filters
        meters = self.meters
        meters.published += run.count
        meters.published_bytes += run.count * run.size
        if run.retain:
            retain(self, run)
        is_awaited = False
        for log in route.logs:
            log.append(run)
            if log.is_swollen:
                self.brakes.press(log, session)
            if log.waiters:
                self.notifications += log.waiters
                log.waiters.clear()
            if log.durable_readers:
                is_awaited = True
        if is_awaited and run.qos:
            run.place = UNWRITTEN
            if received and session is not None and session.is_durable:
                self.records.append(Published(run, session.client_id, received))
            else:
                self.records.append(Published(run))
        elif received and session is not None and session.is_durable:
            self.records.append(Received(session.client_id, received))

    def route_of(self, topic: bytes) -> Route:
        """Return where messages of a topic go.

        Raises:
            ProtocolViolation: it is no topic.
        """
        return self.routes.cache.get(topic) or self.routes.find(topic)

    # --- requests ---

    def park(self, request: DataRequest) -> None:
        """Let a request that has read everything wait for more, or end."""
        log, session = request.log, request.session
        if session is not None and session.leaving and not session.tracker.requests:
            all_left(self, session)
        if request.stop is not None:
            if not request.is_retained:
                self.drop_reader(log)
            return
        log.waiters[request] = None
        if request.group is not None:
            request.session = None
        log.release()

    def hand_over(self, group: ShareGroup) -> None:
        """Give a group's request to the next member that can take something."""
        if not group.has_more:
            group.is_idle = False
            self.park(group.request)
            return
        member = group.hand_over()
        if member is not None:
            self.schedule(member, Cause.NEW_FILTER)

    def wake_groups(self, session: Session) -> None:
        """Let a session that can take something again serve groups that found nobody."""
        if session.tracker.status not in {Status.READY, Status.CAUGHT_UP}:
            return
        for request in session.requests.values():
            if request.group is not None and request.group.is_idle:
                self.hand_over(request.group)

    def drop_reader(self, log: DataLog) -> None:
        """Note that a log has one reader less; the last one ends it."""
        log.readers -= 1
        if log.readers == 0:
            self.routes.close(log)

    # --- connections ---

    def disconnect(
        self,
        connection: Connection,
        reason: ReasonCode,
        *,
        has_will: bool,
        is_told: bool = True,
        text: str = "",
    ) -> None:
        """End a connection."""
        connecting.disconnect(
            self, connection, reason, has_will=has_will, is_told=is_told, text=text
        )
