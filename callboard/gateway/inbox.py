"""The bounded queue before a module: publishers append frames, the module's actor takes them.

An append is one operation of a deque, and at most one mark waits in the actor's mailbox however
many frames wait here: so a frame costs no message of its own. What happens to a frame that does
not fit is the policy of the queue's `Mailbox`:

- `wait`: a thread outside of actors blocks until there is room. In a handler nothing blocks:
  the frame is taken, up to the bound once more (the overdraft), and the publisher's actor gets
  no turn until there is room, unless the sink waits for it in turn. Beyond the overdraft it is
  refused with `MailboxFull`.
- `drop_newest`, `drop_oldest`: that frame, or the oldest ones, are lost.
- `fail`: the frame is refused with `MailboxFull`.

Each frame that is refused or dropped goes to `on_lost`, which counts it. Threads that append at
the same moment may exceed the bound by one frame each.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from actors.current import current_cell
from actors.errors import MailboxFull, ResultTimeout
from actors.future import Future
from actors.mailbox import Mailbox
from callboard.gateway.errors import PublishTimeout

if TYPE_CHECKING:
    from actors.cell import Cell

__all__ = [
    "AWAITED_FRAMES",
    "DEFAULT_QUEUE",
    "ENDED",
    "FRAMES",
    "OVERFLOW",
    "AwaitedFrames",
    "Frames",
    "Inbox",
]

DEFAULT_QUEUE: Final = Mailbox(limit=1000)
"""What may wait before a module unless its configuration says otherwise; publishers wait."""

OVERFLOW: Final = "overflow"
"""Why a frame is lost that did not fit."""

ENDED: Final = "ended"
"""Why a frame is lost that came for a module which has ended."""


class Frames:
    """To the actor of a module: frames wait."""


class AwaitedFrames:
    """The same to the actor of a module whose `receive` is a coroutine function."""


FRAMES: Final = Frames()
AWAITED_FRAMES: Final = AwaitedFrames()


class Inbox:
    """One module's queue."""

    __slots__ = (
        "_blocked",
        "_lock",
        "bounds",
        "cell",
        "held",
        "is_open",
        "is_poked",
        "items",
        "mark",
        "name",
        "on_lost",
        "quit_message",
        "room",
        "waiters",
    )

    def __init__(
        self,
        name: str,
        bounds: Mailbox,
        quit_message: bytes,
        on_lost: Callable[[bytes, str], None],
    ) -> None:
        """Make a queue that nobody empties yet.

        Args:
            name: of the module, for errors.
            bounds: how much may wait, and what becomes of the rest.
            quit_message: what ends the module's loop; never lost, never counted.
            on_lost: told of each lost frame and why, on the thread that lost it.
        """
        self.name = name
        self.bounds = bounds
        self.quit_message = quit_message
        self.items: deque[bytes] = deque()
        #: Frames that may be appended without asking `put`; 0 where that has to look closer.
        self.room = 0 if bounds.bytes is not None else _unbounded(bounds.limit)
        #: Bytes that wait, where they are bounded.
        self.held = 0
        self.is_open = True
        #: True while a mark waits in the mailbox of the module's actor.
        self.is_poked = False
        #: The module's actor; None while there is none.
        self.cell: Cell | None = None
        self.mark: Frames | AwaitedFrames = FRAMES
        #: Called when there is room: they let threads and actors go on.
        self.waiters: deque[Callable[[], object]] = deque()
        self.on_lost = on_lost
        #: Threads that wait for room.
        self._blocked = 0
        self._lock = threading.Lock()

    # --- for publishers ---

    def put(self, frame: bytes, timeout: float | None = None) -> None:
        """Append a frame, or do with it what the policy says.

        Raises:
            MailboxFull: it was refused.
            PublishTimeout: there was no room for `timeout` seconds.
        """
        if not self._take(frame):
            self._overflow(frame, timeout)
        if not self.is_poked:
            self.poke()

    def offer(self, frame: bytes) -> None:
        """Append a frame if it fits, else lose it; never waits, never raises."""
        if not self._take(frame):
            self.on_lost(frame, OVERFLOW)
        if not self.is_poked:
            self.poke()

    def poke(self) -> None:
        """Let the module's actor look at what waits; frames for nobody are lost at once."""
        self.is_poked = True
        cell = self.cell
        if cell is not None:
            cell.post(self.mark, None)
        elif not self.is_open:
            self.bury()

    def has_room(self) -> bool:
        """Say whether a frame would be taken without waiting."""
        return not self.is_open or self._fits(1)

    def when_room(self) -> Future[None]:
        """Return a future that is done when there is room; at once, if there is."""
        room: Future[None] = Future()
        self.waiters.append(lambda: room.set_result(None))
        if self.has_room():
            self.release()
        return room

    def _fits(self, size: int, times: int = 1) -> bool:
        limit, most = self.bounds.limit, self.bounds.bytes
        if limit is not None and len(self.items) >= times * limit:
            return False
        return most is None or self.held + size <= times * most or not self.items

    def _take(self, frame: bytes, times: int = 1) -> bool:
        """Append a frame if it fits; one for a closed queue is lost. False: it is neither."""
        with self._lock:
            if self.is_open:
                if not self._fits(len(frame), times):
                    return False
                self.items.append(frame)
                self.held += len(frame) if self.bounds.bytes is not None else 0
                return True
            if self.items and self.items[-1] is self.quit_message:
                # It was published before the end: its thread waited, or was about to append.
                self.items.insert(len(self.items) - 1, frame)
                self.held += len(frame) if self.bounds.bytes is not None else 0
                return True
        self.on_lost(frame, ENDED)
        return True

    def _overflow(self, frame: bytes, timeout: float | None) -> None:
        policy = self.bounds.on_full
        if policy == "drop_oldest":
            self._drop_for(frame)
        elif policy == "drop_newest":
            self.on_lost(frame, OVERFLOW)
        elif policy == "fail":
            self.on_lost(frame, OVERFLOW)
            raise self._full()
        elif asyncio._get_running_loop() is None:  # noqa: SLF001  # the fastest way to ask
            self._block(frame, timeout)
        else:
            self._overdraw(frame)

    def _overdraw(self, frame: bytes) -> None:
        """Take a frame beyond the bound; its publisher gets no turn until there is room."""
        if not self._take(frame, 2):
            self.on_lost(frame, OVERFLOW)
            raise self._full()
        sender, sink = current_cell.get(), self.cell
        if sender is not None and sink is not None and sender.block_on(sink):
            self.waiters.append(sender.unblock)
            if self._is_half_empty() or self.cell is not sink:
                self.release()

    def _block(self, frame: bytes, timeout: float | None) -> None:
        with self._lock:
            self._blocked += 1
        try:
            self._await_room(frame, timeout)
        finally:
            with self._lock:
                self._blocked -= 1
            if not self.is_open and not self.is_poked:
                self.poke()  # the quit message waits for the last of us

    def _await_room(self, frame: bytes, timeout: float | None) -> None:
        while True:
            room: Future[None] = Future()
            self.waiters.append(lambda room=room: room.set_result(None))  # type: ignore[misc]
            if self._take(frame):
                return
            try:
                room.result(timeout)
            except ResultTimeout:
                self.on_lost(frame, OVERFLOW)
                msg = f"module {self.name!r} had no room for {timeout} s; {self._state()}"
                raise PublishTimeout(msg) from None

    def _drop_for(self, frame: bytes) -> None:
        dropped = []
        with self._lock:
            while self.items and not self._fits(len(frame)):
                oldest = self.items.popleft()
                if oldest is self.quit_message:
                    self.items.appendleft(oldest)
                    break
                dropped.append(oldest)
                self.held -= len(oldest) if self.bounds.bytes is not None else 0
            self.items.append(frame)
            self.held += len(frame) if self.bounds.bytes is not None else 0
        for oldest in dropped:
            self.on_lost(oldest, OVERFLOW)

    def _full(self) -> MailboxFull:
        return MailboxFull(f"module {self.name!r} is full: {self._state()}")

    def _state(self) -> str:
        bounds = self.bounds
        return (
            f"{len(self.items):,} messages wait, it takes {_shown(bounds.limit)} messages and "
            f"{_shown(bounds.bytes)} bytes (on_full={bounds.on_full!r}); publish less, or "
            "raise its bounds"
        )

    # --- for the module's actor ---

    def took(self, frame: bytes) -> None:
        """Take note that a frame was taken out, where bytes are bounded."""
        with self._lock:
            self.held -= len(frame)

    def _is_half_empty(self) -> bool:
        limit, most = self.bounds.limit, self.bounds.bytes
        return (limit is None or 2 * len(self.items) <= limit) and (
            most is None or 2 * self.held <= most
        )

    def make_room(self) -> None:
        """Let all go on who wait, if half of the bounds is free."""
        if self.waiters and self._is_half_empty():
            self.release()

    def release(self) -> None:
        """Let all go on who wait for room."""
        while self.waiters:
            try:
                self.waiters.popleft()()
            except IndexError:  # another thread was faster
                return

    def attach(self, cell: "Cell", mark: Frames | AwaitedFrames = FRAMES) -> None:
        """Let an actor take the frames from here on; it gets `mark` when some wait."""
        self.mark = mark
        self.cell = cell
        self.is_poked = False
        if self.items:
            self.poke()

    def detach(self, cell: "Cell") -> None:
        """Take note that an actor has ended; another one may follow."""
        if self.cell is cell:
            self.cell = None
            self.release()  # who waited for that actor may have to wait for the next one

    # --- the end ---

    def quit(self) -> None:
        """Take no more frames; the quit message stands behind those that wait."""
        with self._lock:
            self.is_open = False
            self.room = 0
            self.items.append(self.quit_message)
        self.release()
        if not self.is_poked:
            self.poke()

    def may_end(self) -> bool:
        """Say that nobody is about to append; else the quit message waits for them."""
        with self._lock:
            if not self._blocked:
                return True
            self.items.append(self.quit_message)
            self.is_poked = False
            return False

    def close(self) -> None:
        """Take no more frames and lose those that wait."""
        with self._lock:
            self.is_open = False
            self.room = 0
        self.cell = None
        self.bury()
        self.release()

    def bury(self) -> None:
        """Lose what waits."""
        self.is_poked = False  # first: who appends from here on sees it and comes here as well
        while self.items:
            try:
                frame = self.items.popleft()
            except IndexError:  # another thread was faster
                return
            if frame is not self.quit_message:
                self.on_lost(frame, ENDED)


def _unbounded(limit: int | None) -> int:
    return 2**62 if limit is None else limit


def _shown(bound: int | None) -> str:
    return "any number of" if bound is None else f"{bound:,}"
