"""The demo's store on one node: the latest level of each sensor, and its peak of 60 seconds.

C has the master, in an SQLite file, so killing C kills the master; A and D have clones. A node
with sensors writes through its clone, which keeps unacknowledged writes. With each reading it
also increments a counter of its current process. At the end, these counters show whether every
write was executed exactly once.

| key | value |
|---|---|
| `A.cpu latest`, `A.cpu peak` | the level of the last reading, and the highest of a minute |
| `MONITORS_LOCK writes` | the number of readings written by that process of a node |
"""

import math
import threading
import time
from collections import deque
from contextlib import ExitStack
from typing import Any, ClassVar, Final

from callboard.demo.sensor import Note
from callboard.kernel.errors import CallboardError
from callboard.store import Backend, BackendOptions, Store, attach_clone, attach_master
from callboard.topics.hub import Hub

#: The name of the store.
NAME: Final = "metrics"

#: Suffix of the keys of counters.
COUNTER: Final = " writes"

PEAK_SECONDS: Final = 60.0

#: Seconds until a query for acknowledgements is repeated.
IDLE_LIMIT: Final = 5.0


class Peak:
    """The highest value of the last `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        # Decreasing values with their times; a value before a higher one can never be the peak.
        self._candidates: deque[tuple[float, float]] = deque()
        #: The peak after the last `add`.
        self.value = -math.inf

    def add(self, at: float, value: float) -> bool:
        """Add a value; times must not decrease. Return whether the peak changed."""
        candidates, old_peak = self._candidates, self.value
        while candidates and candidates[-1][1] <= value:
            candidates.pop()
        candidates.append((at, value))
        while candidates[0][0] <= at - self._seconds:
            candidates.popleft()
        self.value = candidates[0][1]
        return self.value != old_peak


class Keeping:
    """A master or clone, and its report for the parent, which is kept after closing."""

    role: ClassVar[str]

    def __init__(self) -> None:
        self._store: Store | None = None
        self._is_closed = False
        self._last: dict[str, Any] | None = None

    def _figures(self, store: Store) -> dict[str, Any]:
        """Return the figures for a report."""
        raise NotImplementedError

    def report(self) -> dict[str, Any] | None:
        """Return the report for the parent; None before the store is open."""
        if self._store is not None and not self._is_closed:
            self._last = {"role": self.role, "parted": False, **self._figures(self._store)}
        return self._last

    def keep(self, sensor: str, level: float) -> None:
        """Write a reading, on nodes with sensors; on the node's thread."""

    def close(self) -> None:
        """Detach from the store."""
        last = self.report()
        self._last = last and {**last, "parted": True}
        self._is_closed = True
        if self._store is not None:
            self._store.close()


class DemoStore(Keeping):
    """The master on C."""

    role = "master"

    def __init__(self, hub: Hub, note: Note, path: str) -> None:
        """Open the file in a thread, because the search for another master takes a moment."""
        super().__init__()
        threading.Thread(target=self._open, args=(hub, note, path), daemon=True).start()

    def _open(self, hub: Hub, note: Note, path: str) -> None:
        """Open the file, and report its contents."""
        try:
            store = attach_master(hub, NAME, Backend.SQLite, BackendOptions(path=path))
        except CallboardError as error:  # the node may have been closed in the meantime
            note("failed", actor=f"the master of {NAME}", reason=str(error))
            return
        figures = self._figures(store)
        note("master_open", writes=sum(figures["kept"].values()), **figures)
        self._store = store

    def _figures(self, store: Store) -> dict[str, Any]:
        """Return the number of entries, and the counters by process."""
        keys = store.keys()
        counters = {key: store.get(key) for key in keys if key.endswith(COUNTER)}
        return {
            "entries": len(keys),
            "kept": {key.removesuffix(COUNTER): count for key, count in counters.items()},
        }


class CloneKeeping(Keeping):
    """A clone on a node with sensors, which write through it."""

    role = "clone"

    def __init__(self, hub: Hub) -> None:
        """Attach the clone; its master may start later."""
        super().__init__()
        self._life = f"{hub.node.name}-{hub.node.node_id.hex()[:8]}"
        self._written = 0
        self._acknowledged = 0
        self._is_asking = False
        self._peaks: dict[str, Peak] = {}
        self._shown: dict[str, float] = {}
        self._results: dict[str, float | None] = {}
        self._store = self.store = attach_clone(hub, NAME)
        self._watching = ExitStack()
        self._changes = self._watching.enter_context(self.store.changes())

    def keep(self, sensor: str, level: float) -> None:
        """Write a reading, a new peak, and the counter."""
        if self._is_closed:
            return
        peak = self._peaks.setdefault(sensor, Peak(PEAK_SECONDS))
        self.store.put(f"{sensor} latest", level)
        if peak.add(time.monotonic(), level):
            self.store.put(f"{sensor} peak", peak.value)
        self.store.increment(self._life + COUNTER)
        self._written += 1

    def _ask(self) -> None:
        """Query whether all writes are acknowledged, one query at a time."""
        if self._is_asking:
            return
        self._is_asking, written = True, self._written

        def answered(is_idle: bool) -> None:  # noqa: FBT001
            if is_idle:
                self._acknowledged = max(self._acknowledged, written)
            self._is_asking = False

        self.store.await_idle(IDLE_LIMIT, answered)

    def _figures(self, _: Store) -> dict[str, Any]:
        """Return the written and acknowledged counts, and the contents of the clone."""
        self._ask()
        for event in self._changes.poll():
            if event.key.startswith("/"):  # a result from Spark, under its topic
                self._results[event.key] = event.value.get("p50")
            elif not event.key.endswith(COUNTER):
                self._shown[event.key] = event.value
        return {
            "life": self._life,
            "written": self._written,
            "acknowledged": self._acknowledged,
            "shown": self._shown,
            "results": self._results,
        }
