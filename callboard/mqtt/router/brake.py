"""Brakes: publishers wait for readers whose backlog nears the capacity of their log.

Readers with QoS 1 or 2 are to lose nothing while they are connected. When one of them is
behind by half of the capacity of its filter's log, the log is braked: its publishers are held
until no reader is behind by more than a quarter, and meanwhile the log drops nothing. From a
held client, acknowledgements are still taken, since other publishers may wait for them, and so
are pings. All its other packets wait in their order, unacknowledged; above `HELD_BYTES` of them
the client's socket is not read.

A reader that neither takes nor acknowledges anything for `acknowledge_patience` seconds is
passed over until it does. Then its log drops the oldest messages, which are reported as lost.
Brakes cost nothing before a log has filled half of its segments.
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

#: What waits of a held client before its wire is read no more.
HELD_BYTES: Final = 256 * 1024

#: The same for clients within the process, which nobody can stop: more is taken anyway.
LOCAL_BYTES: Final = 16 << 20

#: How many times its segments a braked log may have: what its publishers had sent already.
GUARD: Final = 8

_AHEAD: Final = (
    PacketType.PINGREQ,
    *range(PacketType.PUBACK, PacketType.PUBCOMP + 1),
)

Token = tuple[int, ...]


class _Laggard:
    """A reader that a log is braked for: how far it was, since when."""

    def __init__(self, token: Token, now: float) -> None:
        self.token = token
        self.began = self.since = now


@dataclass(eq=False)
class _Brake:
    """What a braked log waits for, and who is held for it, in this order."""

    laggards: dict[DataRequest, _Laggard] = field(default_factory=dict)
    held: dict[Connection, None] = field(default_factory=dict)
    #: The segment that the log began last when its readers were looked at.
    newest: Segment | None = None


class Brakes:
    """The braked logs of a router.

    Attributes:
        braked: by log.
        passed: readers that nobody waits for, until they do something, or until a time.
        due: when to look next, though nothing happens; None is never.
        grace: until when logs drop nothing of what a router before had for its readers, who
            were connected and come back one by one.
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
        """Take note of an append to a log that has filled half of its segments.

        Brakes it for its laggards and holds the publisher, or lets it drop segments.
        """
        brake = self.braked.get(log)
        if brake is None or brake.newest is not log.segments[-1]:
            brake = self._look(log, brake or _Brake())
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

    def _look(self, log: FilterLog, brake: _Brake) -> _Brake:
        """Find the readers of a log that are far behind."""
        now = self._effects.now
        brake.newest = log.segments[-1]
        self._delivery.notify()  # who was woken by this batch is to be seen in its tracker
        self.passed = {
            request: token
            for request, token in self.passed.items()
            if self._is_behind(request.log, request)
        }
        for request in self._behind(log):
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

    def _behind(self, log: FilterLog) -> Iterator[DataRequest]:
        """Iterate over the requests of connected readers that are half of a log behind."""
        half = max(1, log.segment_count // 2)
        if log.in_memory <= half or not self._effects.limits.acknowledge_patience:
            return
        head, line = log.head if log.shelved else 0, log.segments[-half].base
        sessions = [each.session for each in self._delivery.connections.values()]
        requests = [each for session in sessions for each in session.tracker]
        requests = [each for each in requests if each.subscription.qos]
        requests += [each.request for each in self._delivery.groups.values() if each.is_idle]
        for request in requests:
            # What is shelved waits for its readers without a brake.
            if request.log is log and head <= request.offset < line:
                yield request

    def _is_behind(self, log: FilterLog, request: DataRequest) -> bool:
        """Return whether a reader is there, and more than a quarter of its log behind."""
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

    # --- what held clients send ---

    def sift(self, connection: Connection, chunks: list[bytes]) -> list[bytes]:
        """Return what is taken at once of a held client's packets; keep the others."""
        held, link = connection.held, connection.link
        assert held is not None
        ahead: list[bytes] = []
        behind: list[bytes] = []
        for chunk in chunks:
            ahead += _part(chunk, behind)
        held.chunks += filter(None, behind)
        held.size += sum(map(len, behind))
        link.is_full = held.size > HELD_BYTES
        if link.is_local and held.size > LOCAL_BYTES:
            ahead += held.chunks
            connection.held = HeldPackets([])
        return ahead

    def forget(self, connection: Connection) -> None:
        """Hold a client no more: its connection ends."""
        for brake in self.braked.values():
            brake.held.pop(connection, None)

    # --- turns ---

    def relax(self) -> Iterator[Connection]:
        """Let go those that need not wait any more; once a turn while logs are braked.

        Yields clients whose packets are to be taken, until they are held again, before the
        next one is asked for.
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
            since = [each.since for b in self.braked.values() for each in b.laggards.values()]
            self.due = min(since) + patience if since else None
        self._delivery.notify()

    def _is_stuck(self, request: DataRequest, laggard: _Laggard, now: float) -> bool:
        """Whether a reader is not to be waited for; takes note of what it did."""
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
        """Let publishers go on, one by one, until readers are far behind again."""
        del self.braked[log]
        log.relax()
        held = brake.held
        while held and log not in self.braked:
            connection = next(iter(held))
            del held[connection]
            if not any(connection in other.held for other in self.braked.values()):
                yield connection
        if held:
            self.braked[log].held |= held

    def spare(self, logs: Iterable[FilterLog]) -> None:
        """Let logs keep what was put into them for readers to come, for a while."""
        self.grace = self._effects.now + self._effects.limits.acknowledge_patience
        for log in logs:
            log.most = max(GUARD * log.segment_count, log.in_memory + 1)

    def laggards(self) -> set[str]:
        """Return the client ids of readers that hold others up, or are passed over."""
        requests = [each for brake in self.braked.values() for each in brake.laggards]
        return {
            request.session.client_id
            for request in (*requests, *self.passed)
            if request.session is not None
        }


def _token(request: DataRequest) -> Token:
    """Return what changes when a reader takes or acknowledges something."""
    session = request.session
    if session is None or request.is_shared:
        return (request.offset,)
    window = session.window
    return request.offset, window.following, len(window.inflight), len(window.releasing)


def _part(chunk: bytes, behind: list[bytes]) -> list[bytes]:
    """Return the packets of a chunk that may go ahead of others; put those others `behind`."""
    ahead: list[bytes] = []
    start = position = 0
    while position < len(chunk):
        end = packet_end(chunk, position)
        if chunk[position] >> 4 in _AHEAD:
            behind.append(chunk[start:position])
            ahead.append(chunk[position:end])
            start = end
        position = end
    behind.append(chunk[start:])
    return ahead
