"""The bounded queue of a module: publishers append frames, the module's actor removes them.

An append is one operation of a deque, and at most one mark waits in the actor's mailbox however
many frames wait here, so a frame does not cost a message. The queue outlives the actor: frames
wait while a failed module is restarted. The policy of the queue's `Mailbox` decides about a
frame that does not fit:

- `wait`: a thread outside of actors blocks until there is room. A handler never blocks: the
  frame is accepted, up to twice the bound (the overdraft), and the publisher's actor gets no
  turn until there is room, unless the sink waits for it in turn. Beyond the overdraft the frame
  is refused with `MailboxFull`.
- `drop_newest`, `drop_oldest`: the new frame, or the oldest ones, are lost.
- `fail`: the frame is refused with `MailboxFull`.

Each refused or dropped frame goes to `on_lost`, which counts it. Threads that append at the
same moment may exceed the bound by one frame each.

A finalizer or signal handler may publish a frame inside another call of the queue. That frame
is handed over (`callboard.support.reentry`): it is appended when the call has left the queue,
and later frames are appended after it. It does not wait for room. With the policy `wait` it may
use the overdraft; beyond that it is lost and counted.

A queue that is drained still accepts frames of threads that were waiting for room, but no
others. When it is empty, the actor of its module ends.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from callboard import locks
from callboard.arguments import limit
from callboard.backoff import Backoff, retrying
from callboard.gateway.errors import PublishTimeout
from callboard.kernel.context import ActorContext, current_cell
from callboard.kernel.errors import MailboxFull, ResultTimeout
from callboard.kernel.queue import BackPressure, Mailbox, may_wait
from callboard.kernel.reply import Future
from callboard.support import after_fork
from callboard.support.reentry import PATIENCE, HandOver

#: The default bounds of a module's queue; publishers wait.
DEFAULT_QUEUE: Final = Mailbox(limit=1000)

#: Reason of a loss: the frame did not fit.
OVERFLOW: Final = "overflow"

#: Reason of a loss: `receive` raised, or the disk failed.
FAILED: Final = "failed"

#: Reason of a loss: the module has ended.
ENDED: Final = "ended"


@dataclass(eq=False, repr=False)
class Inbox:
    """The queue of one module.

    Its bounds and the publishers that wait are the `BackPressure` of mailboxes. The policies
    differ from those of a `BoundedMailbox`: a lost frame goes to `on_lost`. It has no sender
    whose ask could fail, no credit of other nodes, and no signal that always fits.

    Attributes:
        name: the name of the module, for errors.
        bounds: the size of the inbox, and the policy for frames that do not fit.
        on_lost: called with each lost frame, the reason and details, on the thread that lost
            it.
    """

    name: str
    bounds: Mailbox
    on_lost: Callable[..., None]

    def __post_init__(self) -> None:
        bounds = self.bounds
        self.items: Any = deque()
        #: Frames that may be appended without `put`; 0 if `put` must always check.
        self.room = self._usual_room = 0 if bounds.bytes is not None else bounds.limit or 2**62
        self.pressure = BackPressure(bounds)
        self.is_open = True
        #: The queue of the module that replaced this one; it gets the frames that arrive after
        #: the end. A publisher may have read the old links before they changed, and append
        #: after the module has read its last frame: without a successor that frame is lost.
        self.successor: Inbox | None = None
        #: Whether a mark waits in the mailbox of the module's actor.
        self.wake_pending = False
        #: The module's actor; None until it is attached, and after it has ended.
        self.context: ActorContext | None = None
        #: The actor that is processing a run of frames.
        self._taker: ActorContext | None = None
        self._mark: Any = None
        self._is_draining = False
        #: The number of threads that wait for room.
        self._blocked = 0
        self._lock = locks.lock("inbox of a gateway module", 240)
        self._is_inside = locks.owner_test(self._lock)
        self._hand_over = HandOver(self._lock, self._poke_late)
        #: Frames that were handed over; they are appended before all others.
        self.handed = self._hand_over.calls
        after_fork.own_wake(self)

    # --- for publishers ---

    def put(self, frame: bytes, timeout: float | None = None) -> None:
        """Append a frame, or apply the policy if it does not fit.

        Raises:
            MailboxFull: the policy refused the frame.
            PublishTimeout: there was no room for `timeout` seconds.
        """
        if (self.handed or self._is_inside()) and self._must_hand_over():
            self._put_later(frame)
            return
        if not self._take(frame):
            self._overflow(frame, timeout)
        if not self.wake_pending:
            self.wake()

    def offer(self, frame: bytes) -> None:
        """Append a frame if it fits, otherwise lose it; never waits, never raises."""
        if self.handed or self._is_inside():
            self._put_later(frame)
            return
        if not self._take(frame):
            self.on_lost(frame, OVERFLOW)
        if not self.wake_pending:
            self.wake()

    def _must_hand_over(self) -> bool:
        """Return whether a frame must be handed over: after others, or inside a call.

        A thread outside of calls first appends the frames that were handed over, so that it can
        wait for room as usual.
        """
        for _ in retrying(Backoff.fixed(PATIENCE / 20), PATIENCE):
            if self._is_inside():
                break
            self.carry_out()
            if not self.handed:  # this thread or another one has appended them
                return False
        return True

    def _put_later(self, frame: bytes) -> None:
        """Hand over a frame that comes from inside a call, or after such a frame."""

        def refuse(error: BaseException) -> None:
            self.on_lost(frame, OVERFLOW, str(error))

        self._hand_over.add(partial(self._put_late, frame), refuse)
        self.room = 0  # after the append above: from now on all publishers use `put`
        self._hand_over.carry_out()  # does nothing inside a call
        if not self.handed and not self._is_inside():  # it was appended before `room` was 0
            self._open_room()

    def _put_late(self, frame: bytes) -> None:
        """Append a frame that was handed over, or apply the policy if it does not fit."""
        self.append_late(frame)
        self._open_room()

    def append_late(self, frame: bytes) -> None:
        """Append a frame whose publisher no longer waits, or apply the policy."""
        policy = self.bounds.on_full
        if not self._take(frame, 2 if policy == "wait" else 1):
            if policy == "drop_oldest":
                self._drop_for(frame)
            else:
                self.on_lost(frame, OVERFLOW)
        if not self.wake_pending:
            self.wake()

    def _end_for(self, frame: bytes) -> None:
        """Pass a frame on that arrived after the end, or lose it."""
        if self.successor is None:
            self.on_lost(frame, ENDED)
        else:
            self.successor.append_late(frame)

    def _open_room(self) -> None:
        """Allow appends without `put`, unless other frames wait to be handed over.

        The frame that is being appended at this moment is still in `handed`.
        """
        with self._lock:
            if self.is_open:
                self.room = self._usual_room  # first: a later hand-over sets it to 0 again
                if len(self.handed) > 1:
                    self.room = 0

    def _poke_late(self, _: object) -> None:
        """Wake the module's actor, which appends the frames that were handed over."""
        if self.context is not None:
            self.wake()

    def carry_out(self) -> None:
        """Append the frames that were handed over."""
        self._hand_over.carry_out()

    def wake(self) -> None:
        """Wake the module's actor; if the module has ended, the frames are lost."""
        self.wake_pending = True
        context = self.context
        if context is not None:
            context.post(self._mark, None)
        elif not self.is_open and not self._is_draining:
            self._bury()

    def has_room(self) -> bool:
        """Return whether a frame would be accepted without waiting."""
        return not self.is_open or self.pressure.fits(len(self.items), 1)

    def when_room(self) -> Future[None]:
        """Return a future that is done when there is room, which may be at once."""
        room = self.pressure.room()
        if self.has_room():
            self.pressure.release()
        return room

    def _push(self, frame: bytes) -> None:
        """Append a frame; the caller must hold the lock."""
        self.items.append(frame)
        if self.bounds.bytes is not None:
            self.pressure.held += len(frame)

    def _take(self, frame: bytes, times: int = 1) -> bool:
        """Append a frame, or lose it if the queue is closed; False if it does not fit."""
        lock = self._lock
        lock.acquire()  # twice as fast as `with`, on a hot path
        try:
            if self.is_open and not self.pressure.fits(len(self.items), len(frame), times):
                return False
            if self.is_open or self._is_draining:
                self._push(frame)
                return True
        finally:
            lock.release()
        self._end_for(frame)
        return True

    def _overflow(self, frame: bytes, timeout: float | None) -> None:
        """Apply the policy to a frame that does not fit."""
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
        """Accept a frame beyond the bound; its publisher gets no turn until there is room."""
        if not self._take(frame, 2):
            self.on_lost(frame, OVERFLOW)
            raise self._full()
        sender, sink = current_cell.get(), self.context
        if sender is not None and sink is not None:
            self.pressure.hold(sender, sink, self.items.__len__)
            if self.context is not sink:  # the sink has ended during the call
                self.pressure.release()

    def _block(self, frame: bytes, timeout: float | None) -> None:
        """Block this thread until the frame is accepted."""
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
            if not self.is_open and not self.wake_pending:
                self.wake()  # the module can end only after the last of these threads

    def _drop_for(self, frame: bytes) -> None:
        """Drop the oldest frames until a new one fits."""
        dropped = []
        with self._lock:
            while self.items and not self.pressure.fits(len(self.items), len(frame)):
                dropped.append(oldest := self.items.popleft())
                self.pressure.held -= len(oldest) if self.bounds.bytes is not None else 0
            self._push(frame)
        for oldest in dropped:
            self.on_lost(oldest, OVERFLOW)

    def _full(self) -> MailboxFull:
        """Return the error for a refused frame."""
        return MailboxFull(f"module {self.name!r} is full: {self._state()}")

    def _state(self) -> str:
        """Return a text with the size of the queue and its bounds."""
        return f"{self.pressure.describe(len(self.items))}; publish less, or raise its bounds"

    # --- for the module's actor ---

    def subtract(self, frame: bytes) -> None:
        """Subtract the bytes of a removed frame, if bytes are bounded."""
        with self._lock:
            self.pressure.held -= len(frame)

    def take_run(self, most: int) -> list[bytes]:
        """Remove up to `most` frames."""
        frames: list[bytes] = []
        while self.items and len(frames) < most:
            try:
                frames.append(self.items.popleft())
            except IndexError:  # `drop_oldest` has removed the rest
                break
            if self.bounds.bytes is not None:
                self.subtract(frames[-1])
        self.pressure.make_room(len(self.items))
        return frames

    def runs(self, most: int) -> Iterator[list[bytes]]:
        """Yield batches of up to `most` frames until none is left.

        A call while another call's batches are being read yields nothing.
        """
        self.wake_pending = False
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
        """Attach the actor that reads the frames; it gets `mark` when frames wait."""
        self._mark = mark
        self.context = context
        self.wake_pending = False
        if self.items or self.handed or not self.is_open:
            self.wake()

    def detach(self, context: ActorContext) -> None:
        """Detach an actor that has ended; another one may follow."""
        if self.context is context:
            self.context = None
            self.pressure.release()  # actors held for it may wait for the next one

    # --- the end ---

    def drain(self) -> None:
        """Close the queue; the actor reads the queued frames, then ends. See `is_drained`."""
        with self._lock:
            self.is_open = False
            self._is_draining = True
            self.room = 0
        self.pressure.release()
        if not self.wake_pending:
            self.wake()

    def is_drained(self) -> bool:
        """Return whether the queue is empty, and no thread or run is active."""
        with self._lock:
            if self.is_open or self.items or self.handed or self._blocked:
                return False
            if self._taker is not None:
                return False
            self._is_draining = False
            return True

    def close(self) -> None:
        """Refuse new frames, and lose the queued ones, or pass them to the successor."""
        with self._lock:
            self.is_open = self._is_draining = False
            self.room = 0
        self.context = None
        self.carry_out()  # which loses these frames
        self._bury()
        self.pressure.release()

    def _bury(self) -> None:
        """Lose the queued frames."""
        self.wake_pending = False  # first, so that a publisher that appends later pokes again
        while self.items:
            try:
                frame = self.items.popleft()
            except IndexError:  # another thread was faster
                return
            self._end_for(frame)
