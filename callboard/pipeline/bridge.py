"""From a log of results to topics and a store.

A bridge follows a log and hands each record on: as a message on its topic, and as the entry of
a store under that name. It writes down how far it is when records were handed over, so after
its end, however that came, it goes on there. What it had handed over just before may then come
again: for entries of a store that makes no difference, since the same values are put in the
same order; subscribers may see up to one run of messages twice.

Messages that nobody subscribes to are waited for as long as the bridge is told to; then they
are counted as unheard. Of the records behind the place where it began, `handed + unheard +
lost` are those up to its position, if it takes all topics; all others wait.
"""

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

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
from callboard.commitlog.objects.store import FileSystemObjects, object_address
from callboard.commitlog.reader import is_archive
from callboard.kernel.errors import CallboardError
from callboard.kernel.twins import Closing
from callboard.pipeline.errors import InvalidSetting
from callboard.pipeline.outlet import OnSilence, Outlet, Publisher, is_publishable

log = logging.getLogger("callboard.pipeline")

#: Records that are handed over at once.
_RUN: Final = 1000

#: Seconds without a record after which it is seen whether the bridge was closed.
_WAIT: Final = 0.1

#: Seconds until what was refused is tried again.
_RETRY: Final = 0.5


class Entries(Protocol):
    """What takes entries; a master or clone of a store is one."""

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a key."""


class Bridge(Closing):
    """Hands records of a log on until it is closed; a thread of its own does that.

    Attributes:
        position: The offset of the next record.
        lost: Records that retention removed before, that are damaged, or no messages.
        begin: The place where this object began.
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
        place: str | Path | None = None,
        storage_options: Mapping[str, Any] | None = None,
        wait: float = 0.0,
        on_silence: OnSilence = lambda _, __: None,
    ) -> None:
        """Begin to follow.

        Args:
            folder: The directory of the log, or `s3://…`; the log may come later.
            endpoint: Where messages are published.
            store: Where entries are put.
            name: Tells bridges of one log apart; each has a place of its own.
            topics: Beginnings of topics; others are passed over. None takes all.
            start: Where a bridge of this name begins that was never there before.
            place: The file with its place; by default one beside the log, on a store too. A
                log that is served needs one here.
            storage_options: Of a store, what fsspec needs where the environment does not say.
            wait: Seconds to wait for subscribers: until the first messages are all taken, and
                again when nobody takes any more; then what nobody takes is unheard. It knows
                of subscribers where `endpoint` is an `Endpoint` or its hub.
            on_silence: Called with a topic and how many messages nobody takes, before each
                wait and when it was in vain; the second time the number is negative.

        Raises:
            InvalidSetting: there is neither an endpoint nor a store, or no room for a place.
            LogFailed: the store of the log refuses.
        """
        if endpoint is None and store is None:
            what = "a bridge leads nowhere; give it an endpoint, a store or both"
            raise InvalidSetting(what)
        self._folder = str(folder)
        self._storage = storage_options
        self._objects = None
        if is_archive(folder) and place is None:
            self._objects = FileSystemObjects(object_address(self._folder, storage_options))
        elif "://" in self._folder and place is None:
            what = f"{folder} is served to be read; give the bridge a file for its place=…"
            raise InvalidSetting(what)
        self._outlet = Outlet(endpoint, wait=wait, on_silence=on_silence)
        self._store = store
        self._topics = tuple(topics)
        self._place = Path(place or Path(folder) / f"{name}.position")
        self._name = f"positions/{name}"
        self._ends = threading.Event()
        self.position = self._read_place(start)
        self.begin = self.position
        #: Lost records besides those that the current follower counts.
        self._lost_before = 0
        self.lost = 0
        self._thread = threading.Thread(target=self._run, name=f"callboard {name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hand on what is there, wait for subscribers as long as was said, and end."""
        self._ends.set()
        self._outlet.hurry()
        self._thread.join()

    def leave(self) -> None:
        """Wait no more: what nobody takes stays for the next bridge of this name."""
        self._outlet.leave()

    @property
    def handed(self) -> int:
        """Records that were handed on by this object."""
        return self._outlet.handed

    @property
    def unheard(self) -> int:
        """Records whose messages nobody took; they may be entries of the store."""
        return self._outlet.unheard

    @property
    def under_way(self) -> int:
        """Of those handed on, how many not all have confirmed who take them."""
        return self._outlet.under_way()

    def await_taken(self, timeout: float, stop: threading.Event | None = None) -> bool:
        """Wait until nothing is under way; return whether that came about.

        Args:
            timeout: Seconds to wait at most.
            stop: Ends the wait sooner.
        """
        return self._outlet.await_taken(timeout, stop or threading.Event())

    def _run(self) -> None:
        """Follow the log and hand on what comes, until the bridge is closed."""
        follower, was_last = self._opened(), False
        while follower is not None:
            is_last = self._ends.is_set()
            if is_last and not was_last:
                # A look at a store may be old, and the last one must not be.
                self._lost_before += follower.lost
                if (follower := self._opened()) is None:
                    return
            was_last = is_last
            try:
                records = follower.read(_RUN, timeout=0 if is_last else _WAIT)
            except LogCorrupt as error:
                log.error("the bridge leaves out what is damaged: %s", error)
                self._lost_before += error.next_offset - error.offset
                follower.cursor = Cursor(error.next_offset)
                self._advance(follower)
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
                self._advance(follower)
            elif is_last:
                return

    def _advance(self, follower: Follower) -> None:
        """Record how far the follower is: one that is opened later counts no loss again."""
        self.position = follower.cursor.offset
        self.lost = self._lost_before + follower.lost
        self._write_place()

    def _opened(self) -> Follower | None:
        """Wait for the log; None if the bridge was closed before it came."""
        while True:
            with suppress(LogFailed):
                reader = LogReader(self._folder, storage_options=self._storage)
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
                    self._lost_before += 1

    def _hand_on(self, records: list[Record]) -> bool:
        """Hand records on until they are taken; False if they stay for the next bridge."""
        wanted = list(self._wanted(records))
        while True:
            try:
                if self._store is not None:
                    for key, value in dict(wanted).items():  # the newest of each is enough
                        self._store.put(key, value)
                return self._outlet.publish(wanted)
            except (CallboardError, OSError) as error:
                fit = list(filter(is_publishable, wanted))
                if len(fit) < len(wanted):
                    log.error("the bridge leaves out what can be no message: %s", error)
                    self._lost_before += len(wanted) - len(fit)
                    wanted = fit
                    continue
                log.warning("results are not taken, and tried again: %s", error)
                if self._ends.wait(_RETRY):
                    return False

    def _read_place(self, start: int) -> int:
        """Return the offset that an earlier bridge of this name wrote down."""
        try:
            data = self._objects.read(self._name) if self._objects else read_plain(self._place)
            return max(0, int(data))
        except FileNotFoundError:
            return start
        except (OSError, ValueError) as error:
            if self._objects and isinstance(error, LogFailed):  # there may be one
                raise
            log.error("%s is no place of a bridge, which begins anew: %s", self._place, error)
            return start

    def _write_place(self) -> None:
        """Write down the offset of the next record; where that fails, what came comes again."""
        try:
            data = str(self.position).encode()
            if self._objects:
                self._objects.write(self._name, [data])
            else:
                replace_plain(self._place, data)
        except OSError as error:
            log.warning("the place of the bridge is not written: %s", error)
