"""Reads the journal of a type: `for entry in node.journal(Cart)`.

Events are read in pages, by position. Positions rise in the order of commits without gaps, and
an event is visible as soon as its commit is durable. So a page that ends at a position contains
all events up to that position. No event is missed or read twice, even if others are committed
at the same time.
"""

import re
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar

from callboard.arguments import require
from callboard.backoff import Backoff
from callboard.closing import Closing, refuse_loop, twin
from callboard.entity.journal.entry import Entry, EntryDecoder
from callboard.entity.journal.growth import JournalGrowth
from callboard.entity.ownership import called
from callboard.entity.state.client import StateClient
from callboard.entity.state.interface import EntityState, StoredEvent
from callboard.kernel.context import NodeContext
from callboard.kernel.errors import WouldDeadlock, WrongValue
from callboard.kernel.reply import Future
from callboard.lease.errors import (
    DatabaseReplaced,
    Fenced,
    OutcomeUnknown,
    StateCorrupt,
    StateUnavailable,
)

if TYPE_CHECKING:
    from callboard.commitlog import CommitLog

T = TypeVar("T")

#: Events in one page, read together and kept until they were yielded.
PAGE: Final = 1_000

#: Seconds between polls of a followed journal; reachable hosts notify it earlier.
POLL_SECONDS: Final = 0.25

#: Seconds until an unavailable database is tried again: at first, and at most.
PAUSES: Final = (0.1, 2.0)

#: Errors that may be over at the next attempt.
_TEMPORARY: Final = (StateUnavailable, DatabaseReplaced, OutcomeUnknown)

_READER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,127}", re.ASCII)


class JournalHome(Protocol):
    """The part of a node that its journals use."""

    runtime: NodeContext
    growth: JournalGrowth

    async def view(self, url: str) -> StateClient:
        """Return a read-only client of a state."""

    async def state(self, url: str) -> StateClient:
        """Return a client of a state."""

    def start(self, coroutine: Coroutine[Any, Any, T], /) -> Future[T]:
        """Run a coroutine on the node's loop."""

    def wait(self, coroutine: Coroutine[Any, Any, T], /) -> T:
        """Run a coroutine to its end, on a thread that may block."""


class Journal(Closing):
    """The events of a type in the order of commits; iterate with `for` or `async for`.

    One thread or task at a time may iterate. With `follow`, the iteration waits for further
    events until the journal is closed, which any thread may do. It also waits while the
    database is unavailable. Without `follow`, the iteration ends after the last event, and
    raises `StateUnavailable` if the database is unavailable.
    """

    def __init__(
        self,
        home: JournalHome,
        url: str,
        type_name: str,
        decoder: EntryDecoder,
        *,
        after: int,
        follow: bool,
        reader: str | None,
    ) -> None:
        """Create a journal. Programs call `node.journal` instead."""
        self.type_name = type_name
        self._home, self._url, self._decoder = home, url, decoder
        self._follow, self._reader = follow, reader
        self._page: deque[StoredEvent] = deque()
        #: Positions of the last event that was read, and of the last one that was yielded.
        self._read = self._position = after
        self._epoch = 0
        self._is_open = self._is_closed = self._is_following = False
        #: Completes when the read in progress has ended.
        self._reading: Future[None] | None = None
        #: The id of the state, after the first read.
        self.state_id = ""

    def __repr__(self) -> str:
        return f"<Journal of {self.type_name} at {self._position}>"

    @property
    def position(self) -> int:
        """The position of the last yielded entry; at first the position to start after."""
        return self._position

    @property
    def has_reader(self) -> bool:
        """Whether `done` stores a position."""
        return self._reader is not None

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    # --- iterating ---

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Entry:
        if not self._page and not self._wait_for_more():
            raise StopIteration
        return self._yielded()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Entry:
        if not self._page and not await self._home.start(self._more()):
            raise StopAsyncIteration
        return self._yielded()

    def next_page(self) -> list[Entry]:
        """Return the available entries, at most a page.

        Waits like the iteration, and returns an empty list at its end. For programs that work
        in batches.
        """
        if not self._page and not self._wait_for_more():
            return []
        return [self._yielded() for _ in range(len(self._page))]

    async def anext_page(self) -> list[Entry]:
        """Awaitable twin of `next_page`."""
        if not self._page and not await self._home.start(self._more()):
            return []
        return [self._yielded() for _ in range(len(self._page))]

    def next_stored(self) -> list[StoredEvent]:
        """Return the available events as they are stored; empty at the end."""
        if not self._page and not self._wait_for_more():
            return []
        events = list(self._page)
        self._page.clear()
        self._position = events[-1].position
        return events

    def start_after(self, position: int) -> None:
        """Start after another position; only before the first read."""
        self._read = self._position = position

    def _wait_for_more(self) -> bool:
        """Read the next page, blocking this thread."""
        if self._home.runtime.is_runner_thread():
            msg = "iterating a journal would block its node; use `async for` in a handler"
            raise WouldDeadlock(msg)
        refuse_loop("iterating a journal", "its entries with `async for`")
        return self._home.wait(self._more())

    def _yielded(self) -> Entry:
        """Return the next entry of the page."""
        entry = self._decoder.entry(self._page[0])
        # Only after decoding, so that an entry that cannot be decoded is not skipped.
        self._page.popleft()
        self._position = entry.position
        return entry

    async def _more(self) -> bool:
        """Read the next page; return whether there is one. Runs on the node's loop."""
        while self._reading is not None:  # a cancelled iteration has left a read in progress
            await self._reading
        if self._page:
            return True
        self._reading = reading = Future[None]()
        try:
            return await self._until_more()
        finally:
            self._reading = None
            reading.set_result(None)

    async def _until_more(self) -> bool:
        """Read the next page; wait for it if the journal is followed."""
        growth, name, backoff = self._home.growth, self.type_name, Backoff(*PAUSES)
        if self._follow and not self._is_following and not self._is_closed:
            self._is_following = True
            growth.follow(name)
        while not self._is_closed:
            grown, pause = growth.next(name), POLL_SECONDS
            try:
                await self._read_page()
                if self._page or not self._follow:
                    return bool(self._page)
                timer = self._home.runtime.call_later(pause, grown.set_result, None)
                backoff.reset()
            except _TEMPORARY as error:
                self._is_open = False
                if not self._follow:
                    raise
                text = f"a journal of {name} waits for its database: {error}"
                self._home.runtime.warn_once(("journal", self._url), text)
                # Wait for a time instead, because growth is not reported when the database is
                # back.
                growth.forget(name, grown)
                away = backoff.next_pause()
                timer = self._home.runtime.call_later(away, grown.set_result, None)
            finally:
                if self._page or not self._follow:
                    growth.forget(name, grown)
            try:
                await grown
            finally:
                timer.cancel()
                growth.forget(name, grown)
        return False

    async def _read_page(self) -> None:
        """Read the events after the last read one."""
        view = await self._home.view(self._url)
        if not self._is_open:
            await self._open(view)
        events = await called(view, EntityState.journal, self.type_name, self._read, PAGE)
        if events:
            self._read = events[-1].position
            self._page.extend(events)

    async def _open(self, view: StateClient) -> None:
        """Open the reader, and check that the state has all events up to the position.

        Raises:
            StateCorrupt: the state is not the one read before, or it has fewer events.
        """
        if self._reader is not None and not self._epoch:
            state = await self._home.state(self._url)
            opened = await called(state, EntityState.open_reader, self.type_name, self._reader)
            self._epoch = opened.epoch
            self._read = self._position = opened.position or self._position
        identity = await called(view, EntityState.identity)
        if self.state_id not in ("", identity.id):
            msg = (
                f"the state of {self.type_name} is not the one read before; read from the start"
            )
            raise StateCorrupt(msg)
        self.state_id = identity.id
        if self._read:
            last = await called(view, EntityState.last_position, self.type_name)
            if last < self._read:
                msg = (
                    f"the journal of {self.type_name} ends at {last}, so it cannot be read "
                    f"after {self._read}; the state was replaced or restored: start again "
                    "with after=0"
                )
                raise StateCorrupt(msg)
        self._is_open = True

    # --- copies ---

    def to_log(self, log: "CommitLog | str | Path") -> int:
        """Append all events to a log, each once, until the journal ends or is closed.

        The copy continues after the last event in the log, even if an earlier copy was
        interrupted, because a record and its position are one write. If the log is empty, the
        copy starts at `after`. A record has the topic `/TYPE/KEY`, the key, the time, and the
        fields of the event as payload, with simple fields declared as columns; the headers are
        position, number, epoch, kind and version.

        Args:
            log: an open log, or its folder.

        Returns:
            How many events were appended.

        Raises:
            WrongValue: the journal has a reader, but the log stores the position.
            WrongState: the log has the journal of another state.
            LogError: the log cannot be written; `LogLocked` if another process writes it.
            StateUnavailable: the database is unavailable, and the journal is not followed.
        """
        from callboard.entity.journal.log_copy import copy_to_log

        if self._reader is not None:
            msg = "the log stores the position of its journal; leave reader= away"
            raise WrongValue(msg)
        return copy_to_log(self, self._decoder.form, log)

    ato_log = twin(to_log)

    # --- the position of a reader ---

    def done(self, entry: Entry | None = None) -> None:
        """Store that all entries up to one were processed. The journal needs a `reader`.

        The next journal with this reader, on any node, starts after that entry.

        Args:
            entry: the entry that was processed; by default the last one that was yielded.

        Raises:
            WrongValue: the journal was opened without a reader.
            Fenced: another journal with this reader was opened.
            StateUnavailable: the database is unavailable; nothing was stored.
        """
        self._check_reader()
        refuse_loop("done()", "journal.adone(…)")
        self._home.wait(self.adone(entry))

    async def adone(self, entry: Entry | None = None) -> None:
        """Awaitable twin of `done`."""
        self._check_reader()
        require(entry is None or isinstance(entry, Entry), "done() takes an Entry", entry)
        position = self._position if entry is None else entry.position
        await self._home.start(self._store(position))

    async def _store(self, position: int) -> None:
        """Store the position of the reader."""
        if not self._epoch:
            return  # nothing was read
        state = await self._home.state(self._url)
        moved: Callable[..., bool] = EntityState.move_reader
        row = (self.type_name, self._reader, self._epoch, position)
        if not await called(state, moved, *row):
            msg = (
                f"reader {self._reader!r} of {self.type_name} was opened again elsewhere; "
                "end this one"
            )
            raise Fenced(msg)

    def _check_reader(self) -> None:
        if self._reader is None:
            name = self.type_name
            msg = f"this journal stores no position; use node.journal({name}, reader=NAME)"
            raise WrongValue(msg)

    # --- the end ---

    def close(self) -> None:
        """End the iteration. Can be called from any thread; further calls do nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._home.runtime.post(self._end)

    async def aclose(self) -> None:
        """Awaitable twin of `close`."""
        self.close()

    def _end(self) -> None:
        """Stop following, and wake the iteration. Runs on the node's thread."""
        if self._is_following:
            self._is_following = False
            self._home.growth.unfollow(self.type_name)
        self._home.growth.wake(self.type_name)


def checked_reader(reader: object) -> str | None:
    """Return a valid name of a reader, or None.

    Raises:
        WrongArgument: the name is not a text.
        WrongValue: the name is empty, too long, or has other characters.
    """
    if reader is None:
        return None
    require(type(reader) is str, "a reader's name must be a text", reader)
    if not _READER.fullmatch(str(reader)):
        msg = f"{reader!r:.100}: a reader's name has 1 to 128 letters, digits and . _ - : @"
        raise WrongValue(msg)
    return str(reader)
