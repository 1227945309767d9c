"""The bounded queue before a module: publishers append frames, the module's actor takes them.

An append is one operation of a deque, and at most one mark waits in the actor's mailbox however
many frames wait here: so a frame costs no message of its own. The queue outlives the actor:
frames wait while a module that has failed is made again. What happens to a frame that does not
fit is the policy of the queue's `Mailbox`:

- `wait`: a thread outside of actors blocks until there is room. In a handler nothing blocks:
  the frame is taken, up to the bound once more (the overdraft), and the publisher's actor gets
  no turn until there is room, unless the sink waits for it in turn. Beyond the overdraft it is
  refused with `MailboxFull`.
- `drop_newest`, `drop_oldest`: that frame, or the oldest ones, are lost.
- `fail`: the frame is refused with `MailboxFull`.

Each frame that is refused or dropped goes to `on_lost`, which counts it. Threads that append at
the same moment may exceed the bound by one frame each.

A frame that is published inside another call of the queue, by a finalizer or signal handler,
is handed over (`callboard.reentry`): it is appended when that call has left the queue, and what
is published from then on comes behind it. It waits for no room, so where the policy is `wait`
it may take the overdraft, and is lost and counted beyond.

A queue that is drained takes the frames of threads that have waited for room, and no others
find it any more; when it is empty, the actor of its module ends.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from callboard import locks
from callboard.actors.errors import MailboxFull, ResultTimeout
from callboard.actors.future import Future
from callboard.actors.mailbox import BackPressure, Mailbox, may_wait
from callboard.actors.reference import current_cell
from callboard.actors.seconds import limit
from callboard.actors.system_actor import ActorContext
from callboard.gateway.errors import PublishTimeout
from callboard.reentry import PATIENCE, HandOver
from callboard.support import after_fork

#: What may wait before a module unless its configuration says otherwise; publishers wait.
DEFAULT_QUEUE: Final = Mailbox(limit=1000)

#: Why a frame is lost that did not fit.
OVERFLOW: Final = "overflow"

#: Why a frame is lost that `receive` raised at, or that a disk refused.
FAILED: Final = "failed"

#: Why a frame is lost that came for a module which has ended.
ENDED: Final = "ended"


@dataclass(eq=False, repr=False)
class Inbox:
    """The queue of one module.

    Attributes:
        name: of the module, for errors.
        bounds: how much may wait, and what becomes of the rest.
        on_lost: called with each lost frame, why and details, on the thread that lost it.
    """

    name: str
    bounds: Mailbox
    on_lost: Callable[..., None]

    def __post_init__(self) -> None:
        bounds = self.bounds
        self.items: Any = deque()
        #: Frames that may be appended without asking `put`; 0 where that has to look closer.
        self.room = self._usual_room = 0 if bounds.bytes is not None else bounds.limit or 2**62
        self.pressure = BackPressure(bounds)
        self.is_open = True
        #: Whether a mark waits in the mailbox of the module's actor.
        self.is_poked = False
        #: The module's actor; None while there is none.
        self.context: ActorContext | None = None
        #: The actor that is between two of its runs.
        self._taker: ActorContext | None = None
        self._mark: Any = None
        self._is_draining = False
        #: Threads that wait for room.
        self._blocked = 0
        self._lock = locks.lock("inbox of a gateway module", 240)
        self._is_inside = locks.owner_test(self._lock)
        self._hand_over = HandOver(self._lock, self._poke_late)
        #: What was handed over, and goes before anything else does.
        self.handed = self._hand_over.calls
        after_fork.own_poke(self)

    # --- for publishers ---

    def put(self, frame: bytes, timeout: float | None = None) -> None:
        """Append a frame, or do with it what the policy says.

        Raises:
            MailboxFull: it was refused.
            PublishTimeout: there was no room for `timeout` seconds.
        """
        if (self.handed or self._is_inside()) and self._must_hand_over():
            self._put_later(frame)
            return
        if not self._take(frame):
            self._overflow(frame, timeout)
        if not self.is_poked:
            self.poke()

    def offer(self, frame: bytes) -> None:
        """Append a frame if it fits, else lose it; never waits, never raises."""
        if self.handed or self._is_inside():
            self._put_later(frame)
            return
        if not self._take(frame):
            self.on_lost(frame, OVERFLOW)
        if not self.is_poked:
            self.poke()

    def _must_hand_over(self) -> bool:
        """Return whether a frame has to be handed over, behind others or inside a call.

        A thread outside carries out what waits, so that it can wait for room as always.
        """
        until = time.monotonic() + PATIENCE
        while not self._is_inside() and time.monotonic() < until:
            self.carry_out()
            if not self.handed:
                return False
            time.sleep(PATIENCE / 20)  # another thread carries it out, or this one does
        return True

    def _put_later(self, frame: bytes) -> None:
        """Append a frame that is published inside a call of this queue, or behind such ones."""

        def refuse(error: BaseException) -> None:
            self.on_lost(frame, OVERFLOW, str(error))

        self._hand_over.add(partial(self._put_late, frame), refuse)
        self.room = 0  # behind the queue's growth: from here on, all look closer
        self._hand_over.carry_out()  # unless it is inside
        if not self.handed and not self._is_inside():  # it was carried out before `room` was 0
            self._open_room()

    def _put_late(self, frame: bytes) -> None:
        """Append a frame that was handed over, or lose it as the policy says."""
        policy = self.bounds.on_full
        if not self._take(frame, 2 if policy == "wait" else 1):
            if policy == "drop_oldest":
                self._drop_for(frame)
            else:
                self.on_lost(frame, OVERFLOW)
        if not self.is_poked:
            self.poke()
        self._open_room()

    def _open_room(self) -> None:
        """Let publishers append without looking closer, unless frames wait to be handed over.

        One of these is carried out at this moment, and still in the queue.
        """
        with self._lock:
            if self.is_open:
                self.room = (
                    self._usual_room
                )  # first: what is handed over from here on undoes it
                if len(self.handed) > 1:
                    self.room = 0

    def _poke_late(self, _: object) -> None:
        """Wake the module's actor, which looks at what was handed over."""
        if self.context is not None:
            self.poke()

    def carry_out(self) -> None:
        """Append what was handed over by calls inside others."""
        self._hand_over.carry_out()

    def poke(self) -> None:
        """Wake the module's actor; the frames of a module that has ended are lost."""
        self.is_poked = True
        context = self.context
        if context is not None:
            context.post(self._mark, None)
        elif not self.is_open and not self._is_draining:
            self._bury()

    def has_room(self) -> bool:
        """Return whether a frame would be taken without waiting."""
        return not self.is_open or self.pressure.fits(len(self.items), 1)

    def when_room(self) -> Future[None]:
        """Return a future that is done when there is room; at once, if there is."""
        room = self.pressure.room()
        if self.has_room():
            self.pressure.release()
        return room

    def _push(self, frame: bytes) -> None:
        """Append a frame; needs the lock."""
        self.items.append(frame)
        if self.bounds.bytes is not None:
            self.pressure.held += len(frame)

    def _take(self, frame: bytes, times: int = 1) -> bool:
        """Append a frame if it fits; one for a closed queue is lost. False: it is neither."""
        lock = self._lock
        lock.acquire()  # in half of the time that `with` takes: many messages come here
        try:
            if self.is_open and not self.pressure.fits(len(self.items), len(frame), times):
                return False
            if self.is_open or self._is_draining:
                self._push(frame)
                return True
        finally:
            lock.release()
        self.on_lost(frame, ENDED)
        return True

    def _overflow(self, frame: bytes, timeout: float | None) -> None:
        """Do what the policy says with a frame that does not fit."""
        policy = self.bounds.on_full
        if policy == "drop_oldest":
            self._drop_for(frame)
        elif policy == "drop_newest":
            self.on_lost(frame, OVERFLOW)
        elif policy == "fail":
            self.on_lost(frame, OVERFLOW)
            raise self._full()
        elif may_wait() and not locks.holds_any():  # nor inside a call of callboard
            self._block(frame, timeout)
        else:
            self._overdraw(frame)

    def _overdraw(self, frame: bytes) -> None:
        """Take a frame beyond the bound; its publisher gets no turn until there is room."""
        if not self._take(frame, 2):
            self.on_lost(frame, OVERFLOW)
            raise self._full()
        sender, sink = current_cell.get(), self.context
        if sender is not None and sink is not None:
            self.pressure.hold(sender, sink, self.items.__len__)
            if self.context is not sink:  # it has ended meanwhile
                self.pressure.release()

    def _block(self, frame: bytes, timeout: float | None) -> None:
        """Let this thread wait until the frame is taken."""
        timeout = limit(timeout)
        with self._lock:
            self._blocked += 1
        try:
            while True:
                room = self.pressure.room()
                if self._take(frame):
                    return
                room.result(timeout)
        except ResultTimeout:
            self.on_lost(frame, OVERFLOW)
            msg = f"module {self.name!r} had no room for {timeout} s; {self._state()}"
            raise PublishTimeout(msg) from None
        finally:
            with self._lock:
                self._blocked -= 1
            if not self.is_open and not self.is_poked:
                self.poke()  # the end of the module waits for the last of these threads

    def _drop_for(self, frame: bytes) -> None:
        """Drop the oldest frames until another one fits."""
        dropped = []
        with self._lock:
            while self.items and not self.pressure.fits(len(self.items), len(frame)):
                dropped.append(oldest := self.items.popleft())
                self.pressure.held -= len(oldest) if self.bounds.bytes is not None else 0
            self._push(frame)
        for oldest in dropped:
            self.on_lost(oldest, OVERFLOW)

    def _full(self) -> MailboxFull:
        """Return the error for a frame that is refused."""
        return MailboxFull(f"module {self.name!r} is full: {self._state()}")

    def _state(self) -> str:
        """Return how much waits, and what the bounds are."""
        return f"{self.pressure.describe(len(self.items))}; publish less, or raise its bounds"

    # --- for the module's actor ---

    def took(self, frame: bytes) -> None:
        """Take note that a frame was taken out, where bytes are bounded."""
        with self._lock:
            self.pressure.held -= len(frame)

    def take_run(self, most: int) -> list[bytes]:
        """Take up to so many frames."""
        frames: list[bytes] = []
        while self.items and len(frames) < most:
            try:
                frames.append(self.items.popleft())
            except IndexError:  # a policy dropped the rest
                break
            if self.bounds.bytes is not None:
                self.took(frames[-1])
        self.pressure.make_room(len(self.items))
        return frames

    def runs(self, most: int) -> Iterator[list[bytes]]:
        """Take runs of up to so many frames until none waits; none while others are taken."""
        self.is_poked = False
        if self.handed:
            self.carry_out()
        context = self.context
        if self._taker is not context:
            self._taker = context
            try:
                while frames := self.take_run(most):
                    yield frames
            finally:
                if self._taker is context:
                    self._taker = None

    def attach(self, context: ActorContext, mark: Any) -> None:
        """Let an actor take the frames from here on; it gets `mark` when some wait."""
        self._mark = mark
        self.context = context
        self.is_poked = False
        if self.items or self.handed or not self.is_open:
            self.poke()

    def detach(self, context: ActorContext) -> None:
        """Take note that an actor has ended; another one may follow."""
        if self.context is context:
            self.context = None
            self.pressure.release()  # those who waited for it may wait for the next one

    # --- the end ---

    def drain(self) -> None:
        """Let the actor take what waits, then end; see `is_drained`."""
        with self._lock:
            self.is_open = False
            self._is_draining = True
            self.room = 0
        self.pressure.release()
        if not self.is_poked:
            self.poke()

    def is_drained(self) -> bool:
        """Return whether the queue is empty, and neither a thread nor a run is under way."""
        with self._lock:
            if self.is_open or self.items or self.handed or self._blocked:
                return False
            if self._taker is not None:
                return False
            self._is_draining = False
            return True

    def close(self) -> None:
        """Take no more frames and lose those that wait."""
        with self._lock:
            self.is_open = self._is_draining = False
            self.room = 0
        self.context = None
        self.carry_out()  # which loses it
        self._bury()
        self.pressure.release()

    def _bury(self) -> None:
        """Lose what waits."""
        self.is_poked = False  # first: a publisher that appends from here on pokes again
        while self.items:
            try:
                frame = self.items.popleft()
            except IndexError:  # another thread was faster
                return
            self.on_lost(frame, ENDED)
