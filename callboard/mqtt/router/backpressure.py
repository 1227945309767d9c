"""Brakes: back-pressure on publishers while a reader's backlog nears its log's capacity.

Connected readers with QoS 1 or 2 must not lose messages. When the backlog of one exceeds half
of the capacity of its filter's log, the log is braked: it drops nothing, and its publishers are
held until no backlog exceeds a quarter. Acknowledgements and pings of a held client are still
processed, since other publishers may wait for them. All its other packets wait in order,
unacknowledged; above `HELD_BYTES` of them the client's socket is not read.

A reader that neither receives nor acknowledges anything for `acknowledge_patience` seconds is
passed over until it does. Then its log drops the oldest messages, which are reported as lost.
Brakes cost nothing until a log has filled half of its segments.
"""

from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import Final

from callboard.mqtt.router.datalog import Segment
from callboard.mqtt.router.delivery import Delivery
from callboard.mqtt.router.effects import Effects
from callboard.mqtt.router.logs import Logs
from callboard.mqtt.router.session import (
    Connection,
    DataRequest,
    FilterLog,
    HeldPackets,
    Session,
)
from callboard.mqtt.wire.framing import packet_end
from callboard.mqtt.wire.packet import PacketType
from callboard.support.dataclass import dataclass

#: Bytes of a held client's waiting packets above which its socket is not read.
HELD_BYTES: Final = 256 * 1024

#: The same for clients in the process. They cannot be paused, so above this all is processed.
LOCAL_BYTES: Final = 16 << 20

#: Factor on a braked log's number of segments, for messages that its publishers had sent.
GUARD: Final = 8

_AHEAD: Final = (
    PacketType.PINGREQ,
    *range(PacketType.PUBACK, PacketType.PUBCOMP + 1),
)

Token = tuple[int, ...]


class _Laggard:
    """A reader for which a log is braked: its last progress, and since when it is stuck."""

    def __init__(self, token: Token, now: float) -> None:
        self.token = token
        self.began = self.since = now


@dataclass(eq=False)
class _Brake:
    """The state of a braked log: the readers it waits for, and the held publishers in order."""

    laggards: dict[DataRequest, _Laggard] = field(default_factory=dict)
    held: dict[Connection, None] = field(default_factory=dict)
    #: The newest segment of the log when its readers were last checked.
    newest: Segment | None = None


class Backpressure:
    """The braked logs of a router.

    Attributes:
        braked: the brakes by log.
        passed: readers that are passed over, until they make progress or until a time.
        due: when to check next without any event; None is never.
        grace: until this time logs do not drop messages restored from the journal: their
            readers were connected before the restart, and reconnect one by one.
    """

    def __init__(self, logs: Logs, delivery: Delivery, effects: Effects) -> None:
        self.braked: dict[FilterLog, _Brake] = {}
        self.passed: dict[DataRequest, Token | float] = {}
        self.due: float | None = None
        self.grace = 0.0
        logs.on_swollen = self.press
        self._delivery = delivery
        self._effects = effects

    # --- appending ---

    def press(self, log: FilterLog, publisher: Session | None) -> None:
        """Handle an append to a log that has filled half of its segments.

        Brakes the log for its laggards and holds the publisher, or lets the log drop segments.
        """
        brake = self.braked.get(log)
        if brake is None or brake.newest is not log.segments[-1]:
            brake = self._check(log, brake or _Brake())
        if not brake.laggards:
            if self._effects.now < self.grace:
                log.is_swollen = False
            else:
                log.relax()
        elif publisher is not None and publisher.connection is not None:
            connection = publisher.connection
            if connection.held is None:
                connection.held = HeldPackets([])
                self._effects.meters.braked += 1
            brake.held[connection] = None

    def _check(self, log: FilterLog, brake: _Brake) -> _Brake:
        """Find the readers of a log that are too slow."""
        now = self._effects.now
        brake.newest = log.segments[-1]
        self._delivery.notify()  # readers woken by this batch must be in their trackers
        self.passed = {
            request: token
            for request, token in self.passed.items()
            if self._is_behind(request.log, request)
        }
        for request in self._laggard_requests(log):
            if request in brake.laggards:
                continue
            token, passed = _token(request), self.passed.pop(request, None)
            if passed == token or (isinstance(passed, float) and now < passed):
                self.passed[request] = passed
                continue
            brake.laggards[request] = _Laggard(token, now)
        if brake.laggards:
            self.braked[log] = brake
            log.most = GUARD * log.segment_count
            if self.due is None:
                self.due = now + self._effects.limits.acknowledge_patience
        return brake

    def _laggard_requests(self, log: FilterLog) -> Iterator[DataRequest]:
        """Iterate over requests of connected readers whose backlog exceeds half of the log."""
        half = max(1, log.segment_count // 2)
        if log.in_memory <= half or not self._effects.limits.acknowledge_patience:
            return
        head, limit = log.head if log.shelved else 0, log.segments[-half].base
        sessions = [connection.session for connection in self._delivery.connections.values()]
        requests = [request for session in sessions for request in session.tracker]
        requests = [request for request in requests if request.subscription.qos]
        requests += [group.request for group in self._delivery.groups.values() if group.is_idle]
        for request in requests:
            # Shelved messages are in the journal; they need no brake.
            if request.log is log and head <= request.offset < limit:
                yield request

    def _is_behind(self, log: FilterLog, request: DataRequest) -> bool:
        """Return whether a connected reader's backlog exceeds a quarter of its log."""
        quarter = max(1, log.segment_count // 4)
        segments = log.segments
        if log.in_memory <= quarter or request.offset >= segments[-quarter].base:
            return False
        if log.shelved and request.offset < log.head:
            return False
        if (session := request.session) is not None:
            return session.connection is not None and request in session.tracker
        group = self._delivery.groups.get(request.subscription.topic_filter)
        if group is None or group.request is not request or not group.is_idle:
            return False
        return any(member.connection is not None for member in group.members)

    # --- packets of held clients ---

    def sift(self, connection: Connection, chunks: list[bytes]) -> list[bytes]:
        """Return a held client's packets that are processed at once; queue the others."""
        queue, link = connection.held, connection.link
        assert queue is not None
        ahead: list[bytes] = []
        waiting: list[bytes] = []
        for chunk in chunks:
            ahead += _part(chunk, waiting)
        queue.chunks += filter(None, waiting)
        queue.size += sum(map(len, waiting))
        link.is_full = queue.size > HELD_BYTES
        if link.is_local and queue.size > LOCAL_BYTES:
            ahead += queue.chunks
            connection.held = HeldPackets([])
        return ahead

    def forget(self, connection: Connection) -> None:
        """Remove a publisher whose connection ends from all brakes."""
        for brake in self.braked.values():
            brake.held.pop(connection, None)

    # --- turns ---

    def relax(self) -> Iterator[Connection]:
        """Release publishers whose readers have caught up, or are stuck; called once per turn.

        Yields clients whose queued packets must be processed before the next one is requested,
        because they may brake the log again.
        """
        now, patience = self._effects.now, self._effects.limits.acknowledge_patience
        for log, brake in list(self.braked.items()):
            for request, laggard in list(brake.laggards.items()):
                if not self._is_behind(log, request):
                    del brake.laggards[request]
                elif self._is_stuck(request, laggard, now):
                    del brake.laggards[request]
                    self._effects.meters.passed_over += 1
            if not brake.laggards:
                yield from self._release(log, brake)
        if self.due is not None and (self.due <= now or not self.braked):
            since = [lag.since for b in self.braked.values() for lag in b.laggards.values()]
            self.due = min(since) + patience if since else None
        self._delivery.notify()

    def _is_stuck(self, request: DataRequest, laggard: _Laggard, now: float) -> bool:
        """Return whether a reader makes no progress; record the progress that it made."""
        limits, token = self._effects.limits, _token(request)
        if token != laggard.token:
            laggard.token, laggard.since = token, now
        if now - laggard.since >= limits.acknowledge_patience:
            self.passed[request] = token
            return True
        if limits.max_hold and now - laggard.began >= limits.max_hold:
            self.passed[request] = now + limits.max_hold
            return True
        return False

    def _release(self, log: FilterLog, brake: _Brake) -> Iterator[Connection]:
        """Release the held publishers, one by one, until readers are too slow again."""
        del self.braked[log]
        log.relax()
        publishers = brake.held
        while publishers and log not in self.braked:
            connection = next(iter(publishers))
            del publishers[connection]
            if not any(connection in other.held for other in self.braked.values()):
                yield connection
        if publishers:
            self.braked[log].held |= publishers

    def spare(self, logs: Iterable[FilterLog]) -> None:
        """Keep logs from dropping restored messages before their readers could reconnect."""
        self.grace = self._effects.now + self._effects.limits.acknowledge_patience
        for log in logs:
            log.most = max(GUARD * log.segment_count, log.in_memory + 1)

    def laggards(self) -> set[str]:
        """Return the client ids of readers that hold up publishers, or are passed over."""
        requests = [request for brake in self.braked.values() for request in brake.laggards]
        return {
            request.session.client_id
            for request in (*requests, *self.passed)
            if request.session is not None
        }


def _token(request: DataRequest) -> Token:
    """Return a value that changes when a reader receives or acknowledges something."""
    session = request.session
    if session is None or request.is_shared:
        return (request.offset,)
    window = session.window
    return request.offset, window.following, len(window.inflight), len(window.releasing)


def _part(chunk: bytes, waiting: list[bytes]) -> list[bytes]:
    """Return the packets of a chunk that may overtake the others; append those to `waiting`."""
    ahead: list[bytes] = []
    start = position = 0
    while position < len(chunk):
        end = packet_end(chunk, position)
        if chunk[position] >> 4 in _AHEAD:
            waiting.append(chunk[start:position])
            ahead.append(chunk[position:end])
            start = end
        position = end
    waiting.append(chunk[start:])
    return ahead
