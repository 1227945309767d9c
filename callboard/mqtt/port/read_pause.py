"""Back-pressure: publishers wait a moment for readers that do not keep up.

While the wire of a reader is full and the router waits for it, connections that publish are not
read: TCP slows their clients down, and no message must be dropped. A reader can hold up
publishers only for a while. It is passed over for ten seconds if it does not read anything for
`patience` seconds, or has held up publishers for half of the last ten seconds. Then its backlog
grows, and messages beyond the capacity of its log are lost to it alone, and counted. So a dead
or hostile reader costs the other clients at most a twentieth of their time, and a slow one
half.

The connections of full readers are still read, because their acknowledgements reduce the
backlog.
"""

from collections.abc import Callable
from typing import Final, Protocol

from callboard.support.dataclass import dataclass

#: Seconds over which hold-ups are added, and for which a slow reader is passed over.
WINDOW: Final = 10.0
#: Fraction of the window for which one reader may hold up publishers.
SHARE: Final = 0.5


class Held(Protocol):
    """A connection, as a reader or as a publisher."""

    def hold(self) -> None:
        """Pause reading until `release`."""

    def release(self) -> None:
        """Resume reading."""


@dataclass(slots=True, eq=False)
class _SlowReader:
    """The record of a reader in its window."""

    window: float
    held: float = 0.0
    passed_until: float = 0.0


class ReadPause:
    """The readers that are full, and the publishers that wait for them.

    Attributes:
        patience: seconds; may be changed.
        full: readers that hold up publishers, and since when.
        passed_over: how often a reader was passed over as too slow.
    """

    def __init__(self, patience: float, clock: Callable[[], float]) -> None:
        """Start without readers.

        Args:
            patience: seconds; with 0 publishers never wait.
            clock: monotonic seconds.
        """
        self.full: dict[Held, float] = {}
        self.passed_over = 0
        self.patience = patience
        self._clock = clock
        self._held: set[Held] = set()
        self._readers: dict[Held, _SlowReader] = {}
        self._is_armed = False

    def begin(self, reader: Held, later: Callable[[float, Callable[[], None]], None]) -> None:
        """Record that a reader is full; `later` sets a timer."""
        if not self.patience or reader in self.full:
            return
        now = self._clock()
        record = self._readers.setdefault(reader, _SlowReader(now))
        if now < record.passed_until:
            return
        if now - record.window > WINDOW:
            record.window, record.held = now, 0.0
        self.full[reader] = now
        if not self._is_armed:
            self._is_armed = True
            later(self.patience, lambda: self._check(later))

    def end(self, reader: Held) -> None:
        """Record that a reader reads again."""
        if (since := self.full.pop(reader, None)) is None:
            return
        now = self._clock()
        record = self._readers[reader]
        record.held += now - since
        if record.held > WINDOW * SHARE:
            self._pass_over(record, now)
        self._release()

    def forget(self, connection: Held) -> None:
        """Remove a connection that has ended."""
        self._held.discard(connection)
        self.full.pop(connection, None)
        self._readers.pop(connection, None)
        self._release()

    def wait(self, publisher: Held) -> None:
        """Hold a connection that has just published, unless it is a full reader, too."""
        if publisher not in self.full and publisher not in self._held:
            self._held.add(publisher)
            publisher.hold()

    def slow_readers(self) -> list[Held]:
        """Return the readers that are full or passed over."""
        now = self._clock()
        return [
            reader
            for reader, record in self._readers.items()
            if reader in self.full or now < record.passed_until
        ]

    def _check(self, later: Callable[[float, Callable[[], None]], None]) -> None:
        """Pass over readers that have not read for too long."""
        now = self._clock()
        for reader, since in list(self.full.items()):
            if now - since >= self.patience:
                del self.full[reader]
                self._pass_over(self._readers[reader], now)
        self._release()
        self._is_armed = bool(self.full)
        if self._is_armed:
            later(self.patience, lambda: self._check(later))

    def _pass_over(self, record: _SlowReader, now: float) -> None:
        """Exclude a reader from hold-ups for one window."""
        self.passed_over += 1
        record.passed_until = record.window = now + WINDOW
        record.held = 0.0

    def _release(self) -> None:
        """Release the publishers if no reader is full."""
        if not self.full and self._held:
            publishers, self._held = self._held, set()
            for publisher in publishers:
                publisher.release()
