"""Publishers wait for readers whose backlog nears what their log keeps.

Readers with QoS 1 or 2 are to lose nothing while they are connected. When one of them is
behind by half of what the log of its filter holds, the log is braked: who publishes to it is
held until no reader is behind by more than a quarter, and meanwhile the log drops nothing. Of
a held client the acknowledgements are taken on, since they may be what others wait for, and its
pings; all else waits in its order, so it gets no acknowledgements, and above `HELD_BYTES` it is
not read.

A reader that neither takes nor acknowledges anything for `acknowledge_patience` seconds is
passed over until it does. Then its log drops what is too old, which is lost to it, and told.
Nothing here costs anything before a log has filled half of its segments.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from callboard.mqtt.connection import Connection
from callboard.mqtt.datalog import DataLog
from callboard.mqtt.framing import packet_end
from callboard.mqtt.ingest import take_chunks
from callboard.mqtt.packet import PacketType
from callboard.mqtt.session import Session
from callboard.mqtt.tracker import DataRequest

if TYPE_CHECKING:
    from callboard.mqtt.machine import RouterMachine

HELD_BYTES: Final = 256 * 1024
"""What waits of a held client before its wire is read no more."""

LOCAL_BYTES: Final = 16 << 20
"""The same for clients within the process, which nobody can stop: more is taken anyway."""

GUARD: Final = 8
"""How many times its segments a braked log may have: what its publishers had sent already."""

_AHEAD: Final = frozenset(
    (
        PacketType.PUBACK,
        PacketType.PUBREC,
        PacketType.PUBREL,
        PacketType.PUBCOMP,
        PacketType.PINGREQ,
    )
)

Token = tuple[int, ...]


class Waiting:
    """Whole packets of a held client, in their order."""

    __slots__ = ("chunks", "size")

    def __init__(self, chunks: list[bytes]) -> None:
        self.chunks = chunks
        self.size = sum(map(len, chunks))


class _Laggard:
    """A reader that a log is braked for: how far it was, since when."""

    __slots__ = ("began", "since", "token")

    def __init__(self, token: Token, now: float) -> None:
        self.token = token
        self.began = self.since = now


class _Brake:
    """What a braked log waits for, and who is held for it, in this order."""

    __slots__ = ("held", "laggards", "newest")

    def __init__(self) -> None:
        self.laggards: dict[DataRequest, _Laggard] = {}
        self.held: dict[Connection, None] = {}
        #: The segment that the log began last when its readers were looked at.
        self.newest: object = None


class Brakes:
    """The braked logs of a router.

    Attributes:
        braked: by log.
        passed: readers that nobody waits for, until they do something, or until a time.
        due: when to look next, though nothing happens; None is never.
        grace: until when logs drop nothing of what a router before had for its readers, who
            were connected and come back one by one.
    """

    def __init__(self, machine: "RouterMachine") -> None:
        self.braked: dict[DataLog, _Brake] = {}
        self.passed: dict[DataRequest, Token | float] = {}
        self.due: float | None = None
        self.grace = 0.0
        self._machine = machine

    # --- appending ---

    def press(self, log: DataLog, publisher: Session | None) -> None:
        """Take note of an append to a log that has filled half of its segments."""
        brake = self.braked.get(log)
        if brake is None or brake.newest is not log.segments[-1]:
            brake = self._look(log, brake or _Brake())
        if not brake.laggards:
            if self._machine.now < self.grace:
                log.is_swollen = False
            else:
                log.relax()
        elif publisher is not None and publisher.connection is not None:
            self._hold(brake, publisher.connection)

    def _look(self, log: DataLog, brake: _Brake) -> _Brake:
        """Find the readers of a log that are far behind."""
        now = self._machine.now
        brake.newest = log.segments[-1]
        self._machine.notify()  # who was woken by this batch is to be seen in its tracker
        self._forget_passed()
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
                self.due = now + self._machine.limits.acknowledge_patience
        return brake

    def _behind(self, log: DataLog) -> Iterator[DataRequest]:
        """Iterate over the requests of connected readers that are half of a log behind."""
        half = max(1, log.segment_count // 2)
        if log.in_memory <= half or not self._machine.limits.acknowledge_patience:
            return
        head, line = log.head if log.shelved else 0, log.segments[-half].base
        for connection in self._machine.connections.values():
            for request in connection.session.tracker.requests:
                if request.log is not log or not head <= request.offset < line:
                    continue  # what is shelved waits for its readers without a brake
                if request.subscription.qos:
                    yield request
        for group in self._machine.groups.values():
            request = group.request
            if request.log is log and group.is_idle and head <= request.offset < line:
                yield request

    def _forget_passed(self) -> None:
        self.passed = {
            request: token
            for request, token in self.passed.items()
            if _is_behind(request.log, request)
        }

    def _hold(self, brake: _Brake, connection: Connection) -> None:
        if connection.held is None:
            connection.held = Waiting([])
            self._machine.meters.braked += 1
        brake.held[connection] = None

    # --- what held clients send ---

    def sift(self, connection: Connection, chunks: list[bytes]) -> list[bytes]:
        """Return what is taken at once of a held client's packets; keep the others."""
        held, link = connection.held, connection.link
        assert held is not None
        ahead: list[bytes] = []
        behind: list[bytes] = []
        for chunk in chunks:
            ahead += _part(chunk, behind)
        held.chunks += behind
        held.size += sum(map(len, behind))
        link.is_full = held.size > HELD_BYTES
        if link.is_local and held.size > LOCAL_BYTES:
            ahead += held.chunks
            connection.held = Waiting([])
        return ahead

    def forget(self, connection: Connection) -> None:
        """Take all that a held client has sent: its connection ends."""
        for brake in self.braked.values():
            brake.held.pop(connection, None)
        self._let_go(connection, is_over=True)
        self._machine.notify()  # the requests of who ends as well have to be in their places

    def _let_go(self, connection: Connection, *, is_over: bool = False) -> None:
        """Take what waits of a client, until it is held again."""
        chunks = _take_back(connection)
        for index, chunk in enumerate(chunks):
            take_chunks(self._machine, connection, [chunk])
            if connection.session.connection is not connection:
                return
            if connection.held is not None and not is_over:
                connection.held = Waiting(chunks[index + 1 :])
                return
        connection.link.is_full = False
        self._machine.transmits.append((connection.link, []))  # so that it is read on

    # --- turns ---

    def relax(self) -> None:
        """Let go who need not wait any more; once a turn while logs are braked."""
        now = self._machine.now
        for log, brake in list(self.braked.items()):
            for request, laggard in list(brake.laggards.items()):
                if not _is_behind(log, request):
                    del brake.laggards[request]
                elif self._is_stuck(request, laggard, now):
                    del brake.laggards[request]
                    self._machine.meters.passed_over += 1
            if not brake.laggards:
                self._release(log, brake)
        if self.due is not None and (self.due <= now or not self.braked):
            patience = self._machine.limits.acknowledge_patience
            since = [each.since for b in self.braked.values() for each in b.laggards.values()]
            self.due = min(since) + patience if since else None
        self._machine.notify()

    def _is_stuck(self, request: DataRequest, laggard: _Laggard, now: float) -> bool:
        """Whether a reader is not to be waited for; takes note of what it did."""
        limits, token = self._machine.limits, _token(request)
        if token != laggard.token:
            laggard.token, laggard.since = token, now
        if now - laggard.since >= limits.acknowledge_patience:
            self.passed[request] = token
            return True
        if limits.max_hold and now - laggard.began >= limits.max_hold:
            self.passed[request] = now + limits.max_hold
            return True
        return False

    def _release(self, log: DataLog, brake: _Brake) -> None:
        """Let publishers go on, one by one, until readers are far behind again."""
        del self.braked[log]
        log.relax()
        held = brake.held
        while held and log not in self.braked:
            connection = next(iter(held))
            del held[connection]
            if not any(connection in other.held for other in self.braked.values()):
                self._let_go(connection)
        if held:
            self.braked[log].held |= held

    def restore(self) -> None:
        """Let the logs of a router before keep what they have, for a while."""
        self.spare(self._machine.routes)

    def spare(self, logs: Iterable[DataLog]) -> None:
        """Let logs keep what was put into them for readers to come, for a while."""
        self.grace = self._machine.now + self._machine.limits.acknowledge_patience
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


def _take_back(connection: Connection) -> list[bytes]:
    """Return what waits of a client, which is held no more."""
    held, connection.held = connection.held, None
    return [] if held is None else held.chunks


def _token(request: DataRequest) -> Token:
    """Return what changes when a reader takes or acknowledges something."""
    session = request.session
    if session is None or request.group is not None:
        return (request.offset,)
    window = session.window
    return request.offset, window.following, len(window.inflight), len(window.releasing)


def _is_behind(log: DataLog, request: DataRequest) -> bool:
    """Whether a reader is there, and more than a quarter of its log behind."""
    quarter = max(1, log.segment_count // 4)
    segments = log.segments
    if log.in_memory <= quarter or request.offset >= segments[-quarter].base:
        return False
    if log.shelved and request.offset < log.head:
        return False
    session, group = request.session, request.group
    if session is not None:
        return session.connection is not None and request in session.tracker.requests
    return (
        group is not None
        and group.is_idle
        and any(member.connection is not None for member in group.members)
    )


def _part(chunk: bytes, behind: list[bytes]) -> list[bytes]:
    """Return the packets of a chunk that may go ahead of others; put those others `behind`."""
    ahead: list[bytes] = []
    start = position = 0
    while position < len(chunk):
        end = packet_end(chunk, position)
        if chunk[position] >> 4 in _AHEAD:
            if start < position:
                behind.append(chunk[start:position])
            ahead.append(chunk[position:end])
            start = end
        position = end
    if start < len(chunk):
        behind.append(chunk[start:])
    return ahead
