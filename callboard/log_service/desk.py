"""Who is read to next, and who waits for a log to grow. Pure: questions in, effects out.

Each peer has a queue of reads. One read of each is served in turn, and none of a peer whose
link has more to take than `TAKEN_WITHIN`: such reads wait, some seconds, then they are refused.
So what a reader that stops taking costs is its questions; the bytes are read from the disk when
they can go out.

A question about growth is answered when the log's newest segment is another than the one that
the asker knows, or longer, and after `WAIT_SECONDS` in any case.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from callboard.log_service.messages import AwaitLogGrowth, ReadLogFile
from callboard.support.dataclass import dataclass

#: Reads of one peer that may wait, some 300 B each: 128 readers that read ahead.
READS_PER_PEER: Final = 1_024
#: Questions about growth of one peer, and of all: one for each reader that follows.
WAITS_PER_PEER: Final = 1_024
WAITS: Final = 8_192
#: Readers of one peer, and of all, that figures tell of; those heard of last.
READERS_PER_PEER: Final = 64
READERS: Final = 1_024
#: Bytes that a link has to take before more are read for its peer.
TAKEN_WITHIN: Final = 4 << 20
#: Seconds for which reads of a peer that takes nothing wait.
HELD_SECONDS: Final = 30.0
#: Seconds after which a question about growth is answered in any case.
WAIT_SECONDS: Final = 20.0
#: Seconds for which a reader is told of that asks no more.
READER_SECONDS: Final = 60.0


class LogPlace(NamedTuple):
    """The end of a log: its newest segment, and how long that is."""

    file: str = ""
    size: int = -1


class Fetch(NamedTuple):
    """Read from the disk and answer."""

    ticket: Any
    question: ReadLogFile


class Refuse(NamedTuple):
    """Answer that a question is not served; it may be put again."""

    ticket: Any
    why: str


class Tell(NamedTuple):
    """Answer where a log ends."""

    ticket: Any
    place: LogPlace


@dataclass(slots=True)
class ServedReader:
    """One reader, for figures.

    Attributes:
        log: what it reads.
        file: the segment that it read last.
        at: where it is in that.
        seen: when it asked last, by the node's clock.
    """

    log: str
    file: str
    at: int
    seen: float


class _Held(NamedTuple):
    """A read that waits."""

    since: float
    question: ReadLogFile
    ticket: Any


class _Wait(NamedTuple):
    """A question about growth that waits."""

    until: float
    peer: bytes
    known: LogPlace


class LogDesk:
    """The questions of all readers of a node. A ticket stands for who put one."""

    def __init__(self) -> None:
        """Begin with nobody."""
        self._reads: dict[bytes, deque[_Held]] = {}
        self._waits: dict[str, dict[Any, _Wait]] = {}
        self._readers: dict[tuple[bytes, int], ServedReader] = {}

    # --- reads ---

    def take_read(
        self, peer: bytes, question: ReadLogFile, ticket: Any, now: float
    ) -> Refuse | None:
        """Queue a read, unless too many of the peer wait."""
        queue = self._reads.setdefault(peer, deque())
        if len(queue) >= READS_PER_PEER:
            return Refuse(ticket, f"{READS_PER_PEER:,} reads of this node wait already")
        queue.append(_Held(now, question, ticket))
        return None

    @property
    def has_reads(self) -> bool:
        """Whether any read waits."""
        return bool(self._reads)

    def serve(self, load: Callable[[bytes], int], now: float) -> list[Fetch | Refuse]:
        """Return a read of each peer that takes it, and those that waited too long.

        Args:
            load: returns how many bytes wait on the link to a peer.
            now: monotonic seconds.
        """
        effects: list[Fetch | Refuse] = []
        for peer, queue in list(self._reads.items()):
            if load(peer) < TAKEN_WITHIN:
                _, question, ticket = queue.popleft()
                effects.append(Fetch(ticket, question))
                self._note(peer, question, now)
            while queue and now - queue[0].since >= HELD_SECONDS:
                why = f"this node took nothing for {HELD_SECONDS:g} s"
                effects.append(Refuse(queue.popleft().ticket, why))
            if not queue:
                del self._reads[peer]
        return effects

    # --- waiting for growth ---

    def take_wait(
        self, peer: bytes, question: AwaitLogGrowth, ticket: Any, place: LogPlace, now: float
    ) -> Tell | Refuse | None:
        """Keep a question about growth; `place` is where the log ends."""
        known = LogPlace(question.file, question.size)
        if known != place:
            return Tell(ticket, place)
        waits = [each for of_log in self._waits.values() for each in of_log.values()]
        of_peer = sum(each.peer == peer for each in waits)
        if of_peer >= WAITS_PER_PEER or len(waits) >= WAITS:
            count = min(of_peer, WAITS_PER_PEER) or WAITS
            return Refuse(
                ticket, f"{count:,} readers wait for growth already; look now and then"
            )
        self._waits.setdefault(question.log, {})[ticket] = _Wait(
            now + WAIT_SECONDS, peer, known
        )
        return None

    @property
    def awaited(self) -> list[str]:
        """The logs whose growth somebody waits for."""
        return list(self._waits)

    def look(self, log: str, place: LogPlace, now: float) -> Iterator[Tell]:
        """Return answers to who waits for the growth of a log, which ends at `place`."""
        waits = self._waits.get(log, {})
        for ticket, wait in list(waits.items()):
            if wait.known != place or now >= wait.until:
                del waits[ticket]
                yield Tell(ticket, place)
        if not waits:
            self._waits.pop(log, None)

    def refuse_waits(self, why: str) -> list[Refuse]:
        """Return refusals to all who wait for growth."""
        waits, self._waits = self._waits, {}
        return [Refuse(ticket, why) for of_log in waits.values() for ticket in of_log]

    # --- figures ---

    def _note(self, peer: bytes, question: ReadLogFile, now: float) -> None:
        """Note where a reader is; of too many the one is forgotten that was heard of first."""
        if not question.size or not question.file.endswith(".log"):  # it looks
            return
        key, readers = (peer, question.reader), self._readers
        known = readers.pop(key, None)
        if known is None:
            of_peer = [each for each in readers if each[0] == peer]
            if len(of_peer) >= READERS_PER_PEER:
                del readers[of_peer[0]]
            elif len(readers) >= READERS:
                del readers[next(iter(readers))]
        at = question.at + question.size
        readers[key] = ServedReader(question.log, question.file, at, now)

    def readers(self, now: float) -> Iterable[tuple[bytes, ServedReader]]:
        """Return the readers that asked within the last minute, with their nodes."""
        for key, reader in list(self._readers.items()):
            if now - reader.seen > READER_SECONDS:
                self._readers.pop(key, None)
        return [(peer, reader) for (peer, _), reader in list(self._readers.items())]
