"""From a log of results to topics and a store.

A bridge follows a log and hands each record on: as a message on its topic, and as the entry of
a store under that name. It writes down how far it is when records were handed over, so after
its end, however that came, it goes on there. What it had handed over just before may then come
again: for entries of a store that makes no difference, since the same values are put in the
same order; subscribers may see up to one run of messages twice.
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

from callboard.actors.closing import Closing
from callboard.actors.errors import CallboardError
from callboard.commitlog import (
    Cursor,
    Follower,
    LogCorrupt,
    LogError,
    LogFailed,
    LogReader,
    Record,
)
from callboard.commitlog.disk import read_plain, replace_plain
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
        lost: Records that retention removed before, or that are damaged.
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
        self._undecodable = 0
        self.lost = 0
        self._thread = threading.Thread(target=self._run, name=f"callboard {name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hand on what is there, and end."""
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        """Follow the log and hand on what comes, until the bridge is closed."""
        follower, damaged = self._opened(), 0
        while follower is not None:
            is_last = self._ends.is_set()
            try:
                records = follower.read(_RUN, timeout=0 if is_last else _WAIT)
            except LogCorrupt as error:
                log.error("the bridge leaves out what is damaged: %s", error)
                damaged += error.next_offset - error.offset
                self.lost = follower.lost + damaged + self._undecodable
                follower.cursor = Cursor(error.next_offset)
                continue
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
                self.lost = follower.lost + damaged + self._undecodable
                self._write_place()
            elif is_last:
                return

    def _opened(self) -> Follower | None:
        """Wait for the log; None if the bridge was closed before it came."""
        while True:
            with suppress(LogFailed):
                reader = LogReader(self._folder)
                if self.position > reader.end:
                    what = "the log %s ends at %d, before the place %d; the bridge begins anew"
                    log.error(what, self._folder, reader.end, self.position)
                    self.position = reader.start
                return reader.follow(self.position)
            if self._ends.wait(_WAIT):
                return None

    def _wanted(self, records: list[Record]) -> Iterator[tuple[str, Any]]:
        """Yield topics and values of the records that are asked for and can be read."""
        for record in records:
            if not self._topics or record.topic.startswith(self._topics):
                try:
                    yield record.topic, record.payload
                except LogCorrupt as error:
                    log.error("the bridge leaves out what is damaged: %s", error)
                    self._undecodable += 1

    def _hand_on(self, records: list[Record]) -> bool:
        """Hand records on until they are taken; False if the bridge was closed meanwhile."""
        wanted = list(self._wanted(records))
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
            return max(0, int(read_plain(self._place)))
        except FileNotFoundError:
            return start
        except (OSError, ValueError) as error:
            log.error("%s is no place of a bridge, which begins anew: %s", self._place, error)
            return start

    def _write_place(self) -> None:
        """Write down the offset of the next record; where that fails, what came comes again."""
        try:
            replace_plain(self._place, str(self.position).encode())
        except OSError as error:
            log.warning("the place of the bridge is not written: %s", error)
