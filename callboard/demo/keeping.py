"""The demo's store on one node: what every sensor saw last, and its peak of sixty seconds.

C has the master, in a SQLite file, so its kill takes the master too; A and D have clones. A
node with sensors writes through its clone, which keeps what the master has not acknowledged.
With each reading it also counts one up under a key of its own life: in the end the counter
shows whether every write was carried out, once.

| key | value |
|---|---|
| `A.cpu latest`, `A.cpu peak` | the level of the last reading, and the highest of a minute |
| `LIFE writes` | how many readings that life of a node has kept |
"""

import threading
import time
from contextlib import ExitStack
from typing import Any, ClassVar, Final

from callboard.demo.sensor import Note
from callboard.demo.window import Peak
from callboard.endpoint.hub import Hub
from callboard.kernel.errors import CallboardError
from callboard.store import Backend, BackendOptions, Store, attach_clone, attach_master

#: The name of the store.
NAME: Final = "metrics"

#: How the keys of counters end.
COUNTER: Final = " writes"

PEAK_SECONDS: Final = 60.0

#: Seconds that one question for acknowledgement may take; then comes the next one.
IDLE_LIMIT: Final = 5.0


class Keeping:
    """A master or clone, and what the parent is told of it; what was told last stays."""

    role: ClassVar[str]

    def __init__(self) -> None:
        self._store: Store | None = None
        self._is_closed = False
        self._last: dict[str, Any] | None = None

    def _figures(self, store: Store) -> dict[str, Any]:
        """Return what there is to tell."""
        raise NotImplementedError

    def report(self) -> dict[str, Any] | None:
        """Return what the parent has to know; None as long as there is nothing."""
        if self._store is not None and not self._is_closed:
            self._last = {"role": self.role, "parted": False, **self._figures(self._store)}
        return self._last

    def keep(self, sensor: str, level: float) -> None:
        """Keep a reading, where there are sensors; on the node's thread."""

    def close(self) -> None:
        """Detach."""
        last = self.report()
        self._last = last and {**last, "parted": True}
        self._is_closed = True
        if self._store is not None:
            self._store.close()


class MasterKeeping(Keeping):
    """The master on C."""

    role = "master"

    def __init__(self, hub: Hub, note: Note, path: str) -> None:
        """Open the file in a thread: looking for another master takes a moment."""
        super().__init__()
        threading.Thread(target=self._open, args=(hub, note, path), daemon=True).start()

    def _open(self, hub: Hub, note: Note, path: str) -> None:
        """Open the file, and report what it holds."""
        try:
            store = attach_master(hub, NAME, Backend.SQLite, BackendOptions(path=path))
        except CallboardError as error:  # or the node was closed meanwhile
            note("failed", actor=f"the master of {NAME}", reason=str(error))
            return
        found = self._figures(store)
        note("master_open", writes=sum(found["kept"].values()), **found)
        self._store = store

    def _figures(self, store: Store) -> dict[str, Any]:
        """Return the number of entries, and the counters by life."""
        keys = store.keys()
        kept = {key: store.get(key) for key in keys if key.endswith(COUNTER)}
        return {
            "entries": len(keys),
            "kept": {key.removesuffix(COUNTER): count for key, count in kept.items()},
        }


class CloneKeeping(Keeping):
    """A clone on a node with sensors, which write through it."""

    role = "clone"

    def __init__(self, hub: Hub) -> None:
        """Attach the clone; its master may come later."""
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
        """Keep a reading and what follows from it."""
        if self._is_closed:
            return
        peak = self._peaks.setdefault(sensor, Peak(PEAK_SECONDS))
        self.store.put(f"{sensor} latest", level)
        if peak.add(time.monotonic(), level):
            self.store.put(f"{sensor} peak", peak.value)
        self.store.increment(self._life + COUNTER)
        self._written += 1

    def _ask(self) -> None:
        """Ask how far writes are acknowledged, one question at a time."""
        if self._is_asking:
            return
        self._is_asking, written = True, self._written

        def answered(is_idle: bool) -> None:  # noqa: FBT001
            if is_idle:
                self._acknowledged = max(self._acknowledged, written)
            self._is_asking = False

        self.store.await_idle(IDLE_LIMIT, answered)

    def _figures(self, _: Store) -> dict[str, Any]:
        """Return how far this life is, and what the copy here shows."""
        self._ask()
        for event in self._changes.poll():
            if event.key.startswith("/"):  # what Spark found, under its topic
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
