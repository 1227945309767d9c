"""A bridge from a log of results to topics and a store.

A bridge follows a log and passes each record on: as a message on its topic, and as a store
entry with the topic as its key. It records its position after a run of records, so it resumes
there after any kind of end. A position of another log, or of records that were replaced, is
refused. The records of the last run may then be passed on again. A store
does not change by this, because the same values are put in the same order. Subscribers may see
up to one run of messages twice.

Messages without a subscriber wait for a configured time and then count as unheard. Of the
records after the position where it started, `handed + unheard + lost` are those up to its
current position, if it has no filter of topics; all others wait.
"""

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

from callboard.backoff import Backoff, retrying
from callboard.closing import Closing
from callboard.commitlog import (
    Cursor,
    Follower,
    LogCorrupt,
    LogError,
    LogFailed,
    LogReader,
    Position,
    Record,
)
from callboard.commitlog.disk import read_plain, replace_plain
from callboard.commitlog.identity.position import decode_position
from callboard.commitlog.objects.store import FileSystemObjects, object_address
from callboard.commitlog.reader import is_archive
from callboard.kernel.errors import CallboardError
from callboard.pipeline.errors import InvalidSetting
from callboard.pipeline.result_publisher import (
    MessagePublisher,
    OnSilence,
    Outlet,
    is_publishable,
)
from callboard.topics.origin import origin_of_log

log = logging.getLogger("callboard.pipeline")

#: Records that are passed on together.
_RUN: Final = 1000

#: Seconds between checks whether the bridge was closed, while it waits for records.
_WAIT: Final = 0.1

#: Seconds between attempts after an error.
_RETRY: Final = 0.5


class Entries(Protocol):
    """Receiver of entries, such as a store's master or clone."""

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a key."""


class Bridge(Closing):
    """Passes records of a log on until it is closed, in its own thread.

    Attributes:
        position: Offset of the next record.
        lost: Records that retention removed first, that are damaged, or that cannot be a
            message.
        begin: The position at which this object started.
        failure: The error that ended the bridge; None while it works.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        endpoint: MessagePublisher | None = None,
        store: Entries | None = None,
        name: str = "bridge",
        topics: Sequence[str] = (),
        start: int = 0,
        place: str | Path | None = None,
        storage_options: Mapping[str, Any] | None = None,
        wait: float = 0.0,
        on_silence: OnSilence = lambda _, __: None,
        accept_log: str = "",
    ) -> None:
        """Start following the log.

        Args:
            folder: The directory of the log, or `s3://…`; it need not exist yet.
            endpoint: Where messages are published.
            store: Where entries are put.
            name: Distinguishes bridges of one log; each has its own position.
            topics: Prefixes of topics; other records are skipped. Empty for all.
            start: Start position of a bridge with a new name.
            place: The file with its position; by default beside the log, also on a store. For a
                log that is served it must be given.
            storage_options: Options for fsspec, where the environment does not suffice.
            wait: Seconds to wait for subscribers: until all of the first messages have one, and
                again when no message has one. Then messages without a subscriber are unheard.
                Subscribers are only known if `endpoint` is an `Endpoint` or its hub.
            on_silence: Called with a topic and the number of messages without a subscriber:
                before each wait and, with a negative number, after a wait that did not help.
            accept_log: State of the log, `LOG/EPOCH`, with which the bridge continues although
                its position belongs to another log.

        Raises:
            InvalidSetting: neither an endpoint nor a store is given, or the place is missing.
            LogCorrupt: the file with the position is damaged.
            PositionRefused: the position does not belong to the log. If the log does not exist
                yet, the bridge ends later, with this error as its `failure`.
            LogFailed: the store of the log fails.
        """
        if endpoint is None and store is None:
            msg = "a bridge needs a target; pass an endpoint, a store or both"
            raise InvalidSetting(msg)
        self._folder = str(folder)
        self._storage = storage_options
        self._objects = None
        if is_archive(folder) and place is None:
            self._objects = FileSystemObjects(object_address(self._folder, storage_options))
        elif "://" in self._folder and place is None:
            msg = f"{folder} is read-only; pass a local file for the position with place=…"
            raise InvalidSetting(msg)
        origins: frozenset[object] = frozenset((origin_of_log(folder),))
        self._outlet = Outlet(endpoint, wait=wait, on_silence=on_silence, origins=origins)
        self._store = store
        self._topics = tuple(topics)
        self._place = Path(place or Path(folder) / f"{name}.position")
        self._name, self._title = f"positions/{name}", f"the bridge {name}"
        self._accept = accept_log
        self._ends = threading.Event()
        self.failure: LogError | None = None
        #: The stored position; None before the first one.
        self._stored = self._read_place(start)
        self.position = start if self._stored is None else self._stored.offset
        with suppress(LogFailed):  # the log need not exist yet
            self._open()
        self.begin = self.position
        #: Lost records, without the ones that the current follower counts.
        self._lost_before = 0
        self.lost = 0
        self._thread = threading.Thread(target=self._run, name=f"callboard {name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Pass remaining records on, wait for subscribers as configured, and end."""
        self._ends.set()
        self._outlet.hurry()
        self._thread.join()

    def leave(self) -> None:
        """Stop waiting: messages without a subscriber stay for the next bridge of this name."""
        self._outlet.leave()

    @property
    def handed(self) -> int:
        """Records passed on by this object."""
        return self._outlet.handed

    @property
    def unheard(self) -> int:
        """Records whose messages had no subscriber; they may be entries of the store."""
        return self._outlet.unheard

    @property
    def under_way(self) -> int:
        """Handed records that not all subscribers' nodes have confirmed."""
        return self._outlet.under_way()

    def await_taken(self, timeout: float, stop: threading.Event | None = None) -> bool:
        """Wait until all handed records are confirmed; return whether they are.

        Args:
            timeout: Longest wait in seconds.
            stop: Ends the wait sooner.
        """
        return self._outlet.await_taken(timeout, stop or threading.Event())

    def _run(self) -> None:
        """Follow the log and pass records on, until the bridge is closed."""
        try:
            self._follow()
        except LogError as error:
            self.failure = error
            log.error("the bridge ends: %s", error)

    def _follow(self) -> None:
        """Follow the log and pass records on, until the bridge is closed.

        Raises:
            PositionRefused: the log was replaced, or records that were read were.
        """
        follower, was_last = self._await_log(), False
        while follower is not None:
            is_last = self._ends.is_set()
            if is_last and not was_last:
                # A reader's view of a store may be old; reopen it, so that the last is current.
                self._lost_before += follower.lost
                if (follower := self._await_log()) is None:
                    return
            was_last = is_last
            try:
                records = follower.read(_RUN, timeout=0 if is_last else _WAIT)
            except LogCorrupt as error:
                log.error("the bridge skips damaged records: %s", error)
                self._lost_before += error.next_offset - error.offset
                follower.cursor = Cursor(error.next_offset)
                self._advance(follower)
                continue
            except LogFailed as error:
                log.warning("the bridge waits: %s", error)
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
        """Record the position and losses of the follower before it may be replaced."""
        self._stored = follower.position
        self.position = self._stored.offset
        self.lost = self._lost_before + follower.lost
        self._write_place(self._stored)

    def _await_log(self) -> Follower | None:
        """Wait for the log; return None if the bridge was closed first."""
        for _ in retrying(Backoff.fixed(_WAIT), stop=self._ends):
            with suppress(LogFailed):
                return self._open()
        return None

    def _open(self) -> Follower:
        """Open the log at the position.

        Raises:
            LogFailed: the log does not exist, or cannot be read.
            PositionRefused: the position does not belong to the log.
        """
        reader = LogReader(self._folder, storage_options=self._storage)
        if self._stored is None:
            return reader.follow(self.position)
        way = 'accept_log="{0}", or --accept-log {0}'
        position = reader.resume(self._stored, accept=self._accept, name=self._title, way=way)
        if position != self._stored:
            self._stored, self.position = position, position.offset
            self._write_place(position)
        return reader.follow(position)

    def _messages(self, records: list[Record]) -> Iterator[tuple[str, Any]]:
        """Yield topic and value of each record that the filter selects."""
        for record in records:
            if not self._topics or record.topic.startswith(self._topics):
                try:
                    yield record.topic, record.payload
                except LogCorrupt as error:
                    log.error("the bridge skips damaged records: %s", error)
                    self._lost_before += 1

    def _hand_on(self, records: list[Record]) -> bool:
        """Publish records; return False if they are left to the next bridge."""
        return self._publish(list(self._messages(records)))

    def _publish(self, messages: list[tuple[str, Any]]) -> bool:
        """Publish messages; return False if they are left to the next bridge."""
        for _ in retrying(Backoff.fixed(_RETRY), stop=self._ends):
            try:
                if self._store is not None:
                    for key, value in dict(messages).items():  # the last value per key
                        self._store.put(key, value)
                return self._outlet.publish(messages)
            except (CallboardError, OSError) as error:
                fit = list(filter(is_publishable, messages))
                if len(fit) < len(messages):
                    log.error("the bridge skips records that cannot be messages: %s", error)
                    self._lost_before += len(messages) - len(fit)
                    return self._publish(fit)
                log.warning("results cannot be passed on; trying again: %s", error)
        return False

    def _read_place(self, start: int) -> Position | None:
        """Return the position that an earlier bridge of this name recorded.

        Raises:
            LogCorrupt: the file is damaged.
        """
        try:
            data = self._objects.read(self._name) if self._objects else read_plain(self._place)
            return decode_position(data)
        except FileNotFoundError:
            return None
        except OSError as error:
            if self._objects and isinstance(error, LogFailed):  # a position may exist
                raise
            text = "%s holds no position, so the bridge starts over from offset %s: %s"
            log.error(text, self._place, start, error)
            return None
        except ValueError as error:
            place = self._name if self._objects else self._place
            msg = (
                f"the position of {self._title} in {place} is unknown: {error}; put the file"
                f" back, or remove it to start at {start}"
            )
            raise LogCorrupt(msg) from None

    def _write_place(self, position: Position) -> None:
        """Record the position; after an error, records may be passed on again."""
        try:
            data = position.encode()
            if self._objects:
                self._objects.write(self._name, [data])
            else:
                replace_plain(self._place, data)
        except OSError as error:
            log.warning("the position of the bridge cannot be written: %s", error)
