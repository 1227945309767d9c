"""From a log of results to topics and a store.

A bridge follows a log and hands each record on: as a message on its topic, and as the entry of
a store under that name. It writes down how far it is when records were handed over, so after
its end, however that came, it goes on there. What it had handed over just before may then come
again: for entries of a store that makes no difference, since the same values are put in the
same order; subscribers may see up to one run of messages twice.
"""

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

from callboard.actors.closing import Closing
from callboard.actors.errors import CallboardError
from callboard.commitlog import Follower, LogError, LogFailed, LogReader, Record
from callboard.pipeline.errors import InvalidSetting

log = logging.getLogger("callboard.pipeline")

#: Records that are handed over at once.
_RUN: Final = 1000

#: Seconds without a record after which it is seen whether the bridge was closed.
_WAIT: Final = 0.1

#: Seconds until what was refused is tried again.
_RETRY: Final = 0.5


class Publisher(Protocol):
    """What takes messages; an `Endpoint` is one."""

    def publish_batch(self, *batch: tuple[str, Any]) -> None:
        """Publish pairs of topic and value."""


class Entries(Protocol):
    """What takes entries; a master or clone of a store is one."""

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a key."""


class Bridge(Closing):
    """Hands records of a log on until it is closed; a thread of its own does that.

    Attributes:
        position: The offset of the next record.
        handed: Records that were handed on by this object.
        lost: Records that retention removed before.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        endpoint: Publisher | None = None,
        store: Entries | None = None,
        name: str = "bridge",
        topics: Sequence[str] = (),
        start: int = 0,
    ) -> None:
        """Begin to follow.

        Args:
            folder: The directory of the log, which may come later.
            endpoint: Where messages are published.
            store: Where entries are put.
            name: Tells bridges of one log apart; each has a place of its own.
            topics: Beginnings of topics; others are passed over. None takes all.
            start: Where a bridge of this name begins that was never there before.

        Raises:
            InvalidSetting: there is neither an endpoint nor a store.
        """
        if endpoint is None and store is None:
            what = "a bridge leads nowhere; give it an endpoint, a store or both"
            raise InvalidSetting(what)
        self._folder = Path(folder)
        self._endpoint = endpoint
        self._store = store
        self._topics = tuple(topics)
        self._place = self._folder / f"{name}.position"
        self._ends = threading.Event()
        self.position = self._read_place(start)
        self.handed = 0
        self.lost = 0
        self._thread = threading.Thread(target=self._run, name=f"callboard {name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hand on what is there, and end."""
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        """Follow the log and hand on what comes, until the bridge is closed."""
        follower = self._opened()
        while follower is not None:
            is_last = self._ends.is_set()
            try:
                records = follower.read(_RUN, timeout=0 if is_last else _WAIT)
            except LogError as error:
                log.warning("the bridge stands still: %s", error)
                self._ends.wait(_RETRY)
                if is_last:
                    return
                continue
            if records:
                if not self._hand_on(records):
                    return
                self.position = follower.cursor.offset
                self.lost = follower.lost
                self._write_place()
            elif is_last:
                return

    def _opened(self) -> Follower | None:
        """Wait for the log; None if the bridge was closed before it came."""
        while True:
            with suppress(LogFailed):
                return LogReader(self._folder).follow(self.position)
            if self._ends.wait(_WAIT):
                return None

    def _hand_on(self, records: list[Record]) -> bool:
        """Hand records on until they are taken; False if the bridge was closed meanwhile."""
        wanted = [
            (record.topic, record.payload)
            for record in records
            if not self._topics or record.topic.startswith(self._topics)
        ]
        while True:
            try:
                if self._endpoint is not None and wanted:
                    self._endpoint.publish_batch(*wanted)
                if self._store is not None:
                    for key, value in dict(wanted).items():  # the newest of each is enough
                        self._store.put(key, value)
            except (CallboardError, OSError) as error:
                log.warning("results are not taken, and tried again: %s", error)
                if self._ends.wait(_RETRY):
                    return False
            else:
                self.handed += len(wanted)
                return True

    def _read_place(self, start: int) -> int:
        """Return the offset that an earlier bridge of this name wrote down."""
        try:
            return int(self._place.read_text())
        except (FileNotFoundError, ValueError):
            return start

    def _write_place(self) -> None:
        """Write down the offset of the next record."""
        temporary = self._place.with_suffix(".tmp")
        temporary.write_text(str(self.position))
        temporary.rename(self._place)
