"""Schedules reads and waits of remote readers. Pure: requests in, effects out.

Each peer has a queue of reads. Every round serves one read of each peer, but none of a peer
whose link has `TAKEN_WITHIN` bytes to send or more. Such reads wait, and are refused after
`HELD_SECONDS`. The bytes are read from the disk only when the link can accept them, so a reader
that stops receiving occupies only the memory of its requests.

A request to wait for growth is answered when the newest segment of the log differs in name or
size from the one that the reader knows, and after `WAIT_SECONDS` in any case.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from callboard.log_service.messages import AwaitLogGrowth, ReadLogFile
from callboard.support.dataclass import dataclass

#: Reads of one peer that may be queued, some 300 B each: enough for 128 readers, each with
#: 8 requests in flight.
READS_PER_PEER: Final = 1_024
#: Waits for growth of one peer, and of all peers: each reader that follows a log has one.
WAITS_PER_PEER: Final = 1_024
WAITS: Final = 8_192
#: Readers of one peer, and of all peers, that the figures include: the most recent ones.
READERS_PER_PEER: Final = 64
READERS: Final = 1_024
#: Bytes queued on a link at which reads for its peer stop.
TAKEN_WITHIN: Final = 4 << 20
#: Seconds after which a queued read of a peer with a full link is refused.
HELD_SECONDS: Final = 30.0
#: Seconds after which a wait for growth is answered even if the log has not grown.
WAIT_SECONDS: Final = 20.0
#: Seconds after its last request for which the figures include a reader.
READER_SECONDS: Final = 60.0


class LogPlace(NamedTuple):
    """The end of a log: the name and size of its newest segment."""

    file: str = ""
    size: int = -1


class Fetch(NamedTuple):
    """Effect: read from the disk and reply."""

    ticket: Any
    question: ReadLogFile


class Refuse(NamedTuple):
    """Effect: refuse a request; the reader may send it again."""

    ticket: Any
    why: str


class Tell(NamedTuple):
    """Effect: reply with the end of a log."""

    ticket: Any
    place: LogPlace


@dataclass(slots=True)
class ServedReader:
    """One reader, for figures.

    Attributes:
        log: name of the log that it reads.
        file: the segment that it read last.
        at: offset in that segment after its last read.
        seen: time of its last request, on the node's clock.
    """

    log: str
    file: str
    at: int
    seen: float


class _Held(NamedTuple):
    """A queued read."""

    since: float
    question: ReadLogFile
    ticket: Any


class _Wait(NamedTuple):
    """A pending wait for growth."""

    until: float
    peer: bytes
    known: LogPlace


class ReadScheduler:
    """Pending requests of all readers of a node; the caller's ticket identifies a request."""

    def __init__(self) -> None:
        """Start with no readers."""
        self._reads: dict[bytes, deque[_Held]] = {}
        self._waits: dict[str, dict[Any, _Wait]] = {}
        self._readers: dict[tuple[bytes, int], ServedReader] = {}

    # --- reads ---

    def add_read(
        self, peer: bytes, question: ReadLogFile, ticket: Any, now: float
    ) -> Refuse | None:
        """Queue a read, or refuse it if the queue of its peer is full."""
        queue = self._reads.setdefault(peer, deque())
        if len(queue) >= READS_PER_PEER:
            return Refuse(
                ticket, f"{READS_PER_PEER:,} reads of the reader's node are queued already"
            )
        queue.append(_Held(now, question, ticket))
        return None

    @property
    def has_reads(self) -> bool:
        """Whether any read is queued."""
        return bool(self._reads)

    def serve(self, load: Callable[[bytes], int], now: float) -> list[Fetch | Refuse]:
        """Return one read of each peer whose link has room, and refusals of expired reads.

        Args:
            load: returns the bytes queued on the link to a peer.
            now: monotonic seconds.
        """
        effects: list[Fetch | Refuse] = []
        for peer, queue in list(self._reads.items()):
            if load(peer) < TAKEN_WITHIN:
                _, question, ticket = queue.popleft()
                effects.append(Fetch(ticket, question))
                self._record(peer, question, now)
            while queue and now - queue[0].since >= HELD_SECONDS:
                reason = f"the link to the reader was full for {HELD_SECONDS:g} s"
                effects.append(Refuse(queue.popleft().ticket, reason))
            if not queue:
                del self._reads[peer]
        return effects

    # --- waiting for growth ---

    def add_wait(
        self, peer: bytes, question: AwaitLogGrowth, ticket: Any, place: LogPlace, now: float
    ) -> Tell | Refuse | None:
        """Register a wait for growth of a log that ends at `place`, or answer it now."""
        known_place = LogPlace(question.file, question.size)
        if known_place != place:
            return Tell(ticket, place)
        waits = [wait for of_log in self._waits.values() for wait in of_log.values()]
        of_peer = sum(wait.peer == peer for wait in waits)
        if of_peer >= WAITS_PER_PEER or len(waits) >= WAITS:
            count = WAITS_PER_PEER if of_peer >= WAITS_PER_PEER else WAITS
            return Refuse(ticket, f"{count:,} readers wait for growth already; poll instead")
        self._waits.setdefault(question.log, {})[ticket] = _Wait(
            now + WAIT_SECONDS, peer, known_place
        )
        return None

    @property
    def awaited(self) -> list[str]:
        """The logs with pending waits for growth."""
        return list(self._waits)

    def due_replies(self, log: str, place: LogPlace, now: float) -> Iterator[Tell]:
        """Yield replies to the due waits for growth of a log that ends at `place`."""
        waits = self._waits.get(log, {})
        for ticket, wait in list(waits.items()):
            if wait.known != place or now >= wait.until:
                del waits[ticket]
                yield Tell(ticket, place)
        if not waits:
            self._waits.pop(log, None)

    def refuse_waits(self, reason: str) -> list[Refuse]:
        """Return refusals of all waits for growth."""
        waits, self._waits = self._waits, {}
        return [Refuse(ticket, reason) for of_log in waits.values() for ticket in of_log]

    # --- figures ---

    def _record(self, peer: bytes, question: ReadLogFile, now: float) -> None:
        """Record the position of a reader; above a limit, drop the least recent one."""
        if not question.size or not question.file.endswith(".log"):  # it only asks for a size
            return
        key, readers = (peer, question.reader), self._readers
        entry = readers.pop(key, None)
        if entry is None:
            of_peer = [reader for reader in readers if reader[0] == peer]
            if len(of_peer) >= READERS_PER_PEER:
                del readers[of_peer[0]]
            elif len(readers) >= READERS:
                del readers[next(iter(readers))]
        position = question.at + question.size
        readers[key] = ServedReader(question.log, question.file, position, now)

    def readers(self, now: float) -> Iterable[tuple[bytes, ServedReader]]:
        """Return the readers with a request in the last minute, each with its node."""
        for key, reader in list(self._readers.items()):
            if now - reader.seen > READER_SECONDS:
                self._readers.pop(key, None)
        return [(peer, reader) for (peer, _), reader in list(self._readers.items())]
