"""Back-pressure: publishers wait a moment for readers that do not keep up.

While the wire of some reader is full and the router waits for it, connections that publish are
not read: TCP slows their clients down, and nothing has to be dropped. A reader has that power
only for a while: one that does not take anything for `patience` seconds, or has held the others
up for half of the last ten seconds, is passed over for ten seconds. Then it falls behind, and
what its log cannot keep for it is lost to it alone, and counted. So a dead or hostile reader
costs the others a twentieth of their time at most, and a slow one half.

The connections of full readers are read on: their acknowledgements are what helps.
"""

from collections.abc import Callable
from typing import Final, Protocol

from callboard.support.dataclass import dataclass

#: Seconds over which holding up is counted, and for which a slow reader is passed over.
WINDOW: Final = 10.0
#: Part of the window in which one reader may hold the others up.
SHARE: Final = 0.5


class Held(Protocol):
    """A connection, as a reader or as a publisher."""

    def hold(self) -> None:
        """Read nothing until `release`."""

    def release(self) -> None:
        """Read on."""


@dataclass(slots=True, eq=False)
class _Reader:
    """What a reader did in its window."""

    window: float
    held: float = 0.0
    passed_until: float = 0.0


class Backpressure:
    """The readers that are full, and the publishers that wait for them.

    Attributes:
        patience: seconds; may be changed.
        full: readers that hold publishers up at the moment, and since when.
        passed_over: times that a reader was too slow to be waited for.
    """

    def __init__(self, patience: float, clock: Callable[[], float]) -> None:
        """Begin without readers.

        Args:
            patience: seconds; 0 waits for no reader.
            clock: monotonic seconds.
        """
        self.full: dict[Held, float] = {}
        self.passed_over = 0
        self.patience = patience
        self._clock = clock
        self._held: set[Held] = set()
        self._readers: dict[Held, _Reader] = {}
        self._is_armed = False

    def begin(self, reader: Held, later: Callable[[float, Callable[[], None]], None]) -> None:
        """Take note that a reader is full; `later` arms a timer."""
        if not self.patience or reader in self.full:
            return
        now = self._clock()
        record = self._readers.setdefault(reader, _Reader(now))
        if now < record.passed_until:
            return
        if now - record.window > WINDOW:
            record.window, record.held = now, 0.0
        self.full[reader] = now
        if not self._is_armed:
            self._is_armed = True
            later(self.patience, lambda: self._look(later))

    def end(self, reader: Held) -> None:
        """Take note that a reader takes more."""
        if (since := self.full.pop(reader, None)) is None:
            return
        now = self._clock()
        record = self._readers[reader]
        record.held += now - since
        if record.held > WINDOW * SHARE:
            self._pass_over(record, now)
        self._release()

    def forget(self, connection: Held) -> None:
        """Take note that a connection is over."""
        self._held.discard(connection)
        self.full.pop(connection, None)
        self._readers.pop(connection, None)
        self._release()

    def wait(self, publisher: Held) -> None:
        """Hold a connection that has just published, unless it is a full reader itself."""
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

    def _look(self, later: Callable[[float, Callable[[], None]], None]) -> None:
        """Give up on readers that took nothing for too long."""
        now = self._clock()
        for reader, since in list(self.full.items()):
            if now - since >= self.patience:
                del self.full[reader]
                self._pass_over(self._readers[reader], now)
        self._release()
        self._is_armed = bool(self.full)
        if self._is_armed:
            later(self.patience, lambda: self._look(later))

    def _pass_over(self, record: _Reader, now: float) -> None:
        """Let a reader not be waited for, for a window."""
        self.passed_over += 1
        record.passed_until = record.window = now + WINDOW
        record.held = 0.0

    def _release(self) -> None:
        """Let publishers go on once no reader is full."""
        if not self.full and self._held:
            held, self._held = self._held, set()
            for publisher in held:
                publisher.release()
