"""A backend of stores in virtual time: commits take a while, and a crash loses waiting ones."""

from collections.abc import Callable

from callboard.simulation.clock import Clock
from callboard.store.backend.interface import Contents
from callboard.store.errors import BackendFailure
from callboard.store.machine.step import ERASED, Persist, WriterRow


class SimulatedBackend:
    """The disk of one store's master, over all its lives."""

    is_durable = True

    def __init__(self, clock: Clock, delay: float) -> None:
        self._clock = clock
        self._delay = delay
        self._life = 0
        self._free_at = 0.0
        #: The durable entries.
        self.contents = Contents()

    def open(self, wall_offset: float) -> Contents:
        """Start a life."""
        self._life += 1
        self._free_at = 0.0
        writers = {
            who: WriterRow(row.seq, dict(row.answers))
            for who, row in self.contents.writers.items()
        }
        return Contents(dict(self.contents.rows), writers)

    def write(self, changes: Persist, done: Callable[[BackendFailure | None], object]) -> None:
        """Make changes durable soon, after the earlier ones."""
        self._free_at = max(self._free_at, self._clock.now) + self._delay
        self._clock.plan_at(self._free_at, self._commit, self._life, changes, done)

    def _commit(
        self, life: int, changes: Persist, done: Callable[[BackendFailure | None], object]
    ) -> None:
        if life != self._life:
            return
        contents = self.contents
        if changes.is_cleared:
            contents.rows.clear()
        for token, row in changes.rows.items():
            if row is ERASED:
                contents.rows.pop(token, None)
            else:
                contents.rows[token] = row
        for who, row in changes.writers.items():
            contents.writers[who] = WriterRow(row[0], dict(row[1]))
        done(None)

    def crash(self) -> None:
        """Lose changes that are not durable."""
        self._life += 1

    def close(self) -> None:
        """A master that ends has waited for its writes."""
        self._life += 1
