"""A non-blocking stream: a socket, the bytes to be written, and the protocol's machine.

Frames are collected and written once per turn, or earlier when enough bytes are collected.
Writing is possible from any thread (under the stream's lock); everything else happens on the
runner with its role. A machine is pure: its inputs are bytes and the time, its outputs frames
and effects.
"""

import contextlib
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import field
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector
from typing import Any, Final, Generic, Protocol, TypeVar

from callboard import locks
from callboard.actors.runner import contention
from callboard.actors.runner.contention import CONTENTION
from callboard.actors.runner.runner import ConnectionOwner, Runner
from callboard.actors.runner.timers import Timer
from callboard.basp.seal import CONTENT_LIMIT, OVERHEAD, Opener, Sealer
from callboard.proxies.errors import LinkFull
from callboard.proxies.link.limits import Throttle
from callboard.proxies.link.tls_socket import TlsSocket
from callboard.support.calls import Action
from callboard.support.dataclass import dataclass
from callboard.support.text import describe

F = TypeVar("F")
E = TypeVar("E")


#: Bytes of one read: larger ones cost more in fresh memory than they save in calls.
READ_SIZE: Final = 65536

#: Bytes of a closing peer that are discarded. Further bytes stay in the system's buffers, so
#: that a peer that sends endlessly costs no more than this.
DISCARD_LIMIT: Final = 64 << 20

#: Bytes that are written at once instead of at the end of the turn.
WRITE_SIZE: Final = 65536

#: The threshold at the start of a turn; it doubles with each write, so that the peer starts
#: early and a flood is soon written in the largest portions.
FIRST_WRITE: Final = 2048

#: Bytes that may wait for a peer that does not read; then senders on other threads wait.
#:
#: A handler may reach twice as much before it gets `LinkFull`. Output that cannot be refused
#: (answers, forwarded frames, control frames) may reach three times as much; then the
#: connection is cut. So a peer that does not read occupies bounded memory and delays no other
#: peer.
WAITING_LIMIT: Final = 64 * 1024 * 1024

#: Seconds between two checks of a machine at most: its deadlines change with its state.
TICK_INTERVAL: Final = 0.5

SHORTEST_TICK: Final = 0.001

#: Seconds until a broken connection is closed again if closing it raised an error, as it does
#: until there is free memory.
CLOSE_AGAIN: Final = 0.1

#: Seconds that an outside thread waits for room before it gets `LinkFull`.
WAIT_FOR_ROOM: Final = 30.0


class Machine(Protocol[F, E]):
    """The state machine of a protocol. It returns messages as frames, and other effects."""

    @property
    def next_tick_at(self) -> float:
        """Time of the next `tick`; it may change with each call."""

    def start(self) -> list[E]:
        """Start the protocol."""

    def take(self, data: bytes, now: float) -> "tuple[list[F], list[E]]":
        """Process the bytes of one read; return frames alone, or effects."""

    def tick(self, now: float) -> list[E]:
        """Do the work that is due."""

    def lost(self, reason: str) -> list[E]:
        """Handle a broken connection."""

    def close(self, reason: str) -> list[E]:
        """Close from our side."""


class Turns:
    """Writes the collected output of one runner's streams before each poll."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        #: Streams with collected output.
        self.dirty: list[Stream[Any, Any]] = []
        runner.before_poll.append(self.flush)

    def flush(self) -> None:
        """Write everything that was collected."""
        dirty = self.dirty
        while dirty:
            stream = dirty.pop()
            try:
                stream.flush()
            except BaseException as error:  # noqa: BLE001  # so that the other streams are written
                self.runner.failed(stream.flush, error)


class Stream(ConnectionOwner, Generic[F, E]):
    """A connection and its machine."""

    #: Each read and write uses them; `Runtime` explains why they are slots.
    __slots__ = (
        "__dict__", "__weakref__", "_deliver", "_dirty", "_frames", "_is_blocked",
        "_is_dirty", "_is_inside", "_late", "_lock", "_opener", "_patience", "_read_size",
        "_receive", "_rest", "_runner", "_sealer", "_send", "_take", "_throttle", "_unsealed",
        "_write_at", "after_read", "bytes_received", "bytes_sent", "frames_received",
        "frames_sent", "is_open", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        turns: Turns,
        sock: "socket.socket | TlsSocket",
        machine: Machine[F, E],
        deliver: Callable[[list[F]], object],
        carry_out: Callable[[list[E]], object],
        throttle: Throttle | None = None,
    ) -> None:
        """Take over a connected socket; `start` starts the protocol.

        Args:
            turns: the turns of the runner that serves the stream.
            sock: the socket; the stream owns it from here on.
            machine: the protocol that is spoken on the socket.
            deliver: called with the frames of a read.
            carry_out: carries out effects of the machine, in order. It calls `shut` at the
                effect that ends the connection.
            throttle: limits the input; None for no limit.
        """
        runner = turns.runner
        self.machine = machine
        self.is_open = True
        #: Called after each read, while it is set.
        self.after_read: Action | None = None
        #: Number of pauses in reading because of the throttle.
        self.pauses = 0
        self.waiting = 0
        self.bytes_received = 0
        self.bytes_sent = 0
        self.frames_sent = 0
        #: `carry_out` adds the frames among the effects.
        self.frames_received = 0
        self._throttle = throttle
        self._read_size = READ_SIZE if throttle is None else throttle.read_size
        self._runner = runner
        self._patience = runner.patience
        self._socket = sock
        #: Releases the socket at the end.
        self.let_go: Callable[[Any], object] = _close
        self._receive = sock.recv
        self._send = sock.send
        self._take = machine.take
        self._deliver = deliver
        self._carry_out = carry_out
        self._dirty = turns.dirty
        self._is_dirty = False
        self._is_blocked = False
        self._lock = locks.lock("writing to a link", 720)
        self._is_inside = locks.owner_test(self._lock)
        #: Frames of a nested call: a finalizer or signal handler wrote while this thread was
        #: inside another call of the stream.
        self._late: deque[bytes] = deque()
        self._room = locks.condition_on(self._lock)
        self._frames: list[bytes] = []
        self._write_at = FIRST_WRITE
        self._rest: memoryview | None = None
        #: Seals the output; None on connections without a seal.
        self._sealer: Sealer | None = None
        #: Opens the input; None on connections without a seal.
        self._opener: Opener | None = None
        #: Plain bytes that precede the frames: the rest of a batch that was too large to seal
        #: at once.
        self._unsealed: memoryview | None = None
        self._timer: Timer | None = None
        self._pause: Timer | None = None
        self._pause_end = 0.0
        self._holds = 0
        self._awaits_room = False
        self._is_broken = False
        self._last_effects: list[E] = []
        sock.setblocking(False)  # noqa: FBT003  # its signature
        if not isinstance(sock, socket.socket) or sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._watched = EVENT_READ
        runner.selector.register(sock, EVENT_READ, self._ready)

    @property
    def name(self) -> str:
        """Description of the other end, for people."""
        return "the other side"

    def start(self) -> None:
        """Start the machine."""
        self._carry_out(self.machine.start())
        self._arm()

    def catch_up(self) -> None:
        """Read at once: bytes that the socket object already holds do not wake the selector."""
        if self.is_open:
            self._read()

    # --- writing, from any thread ---

    def write(self, frame: bytes, *, at_once: bool = False) -> None:
        """Send a frame after all earlier ones.

        `at_once` is set if a thread outside of actors waits for the answer.

        Never blocks or raises. A sender that can wait, or can be refused, calls `make_room`
        first.
        """
        if self._is_inside():
            self._write_later(frame)
            return
        lock = self._lock
        # Takes half the time of `with`, which matters because each frame is written here.
        lock.acquire()
        try:
            if self._late:
                self._append_late()
            self._frames.append(frame)
            waiting = self.waiting = self.waiting + len(frame)
            self.frames_sent += 1
            self._patience.has_sent = True
            if self._is_blocked or not self.is_open:
                if self.waiting > 3 * WAITING_LIMIT:
                    self._give_up()
                return
            if waiting >= self._write_at:
                self._flush_early()
                return
            if at_once and not self._runner.is_runner_thread():
                self._flush()
                return
            if self._is_dirty:
                return
            self._is_dirty = True
            self._dirty.append(self)
        finally:
            lock.release()
        if self._runner.sleeping:  # also for a handler that has lost the runner's role
            self._runner.wake()

    def _write_later(self, frame: bytes) -> None:
        """Keep a frame until the enclosing call has released the lock."""
        self._late.append(frame)
        self._runner.post(self._write_late)

    def _append_late(self) -> None:
        """Append the frames of nested calls. The caller must hold the lock."""
        late = self._late
        while late:
            frame = late.popleft()
            self._frames.append(frame)
            self.waiting += len(frame)
            self.frames_sent += 1

    def _write_late(self) -> None:
        """Write the frames of nested calls."""
        with self._lock:
            self._append_late()
            if not self._is_blocked and self.is_open:
                self._flush()

    def write_run(self, frames: list[bytes]) -> None:
        """Send forwarded frames after all earlier frames, like `write`.

        Must be called on the runner's thread.
        """
        if self._is_inside():
            for frame in frames:
                self._write_later(frame)
            return
        with self._lock:
            self._append_late()
            self._frames += frames
            self.waiting += sum(map(len, frames))
            self.frames_sent += len(frames)
            self._patience.has_sent = True
            if self._is_blocked or not self.is_open:
                if self.waiting > 3 * WAITING_LIMIT:
                    self._give_up()
            elif self.waiting >= self._write_at:
                self._flush_early()
            elif not self._is_dirty:
                self._is_dirty = True
                self._dirty.append(self)
        if self._runner.sleeping:
            self._runner.wake()

    def seal(self, sealer: Sealer, opener: Opener) -> None:
        """Seal all further output, and read batch by batch.

        Frames that were written earlier and still wait are sent unsealed.
        """
        with self._lock:
            if self._frames:
                rest = b"" if self._rest is None else self._rest
                self._rest = memoryview(b"".join((rest, *self._frames)))
                self._frames.clear()
            self._sealer, self._opener = sealer, opener

    @property
    def is_busy(self) -> bool:
        """Whether a thread is writing at this moment."""
        return locks.is_taken(self._lock)

    def make_room(self) -> None:
        """Wait until a full stream has room for a message.

        Raises:
            LinkFull: the peer did not read in time, or the caller must not wait.
        """
        is_inside = self._is_inside()  # in a nested call, this thread must not wait
        with self._lock:
            if is_inside or self._runner.is_runner_thread():
                has_room = self.waiting <= 2 * WAITING_LIMIT
            else:
                has_room = self._room.wait_for(self._has_room, WAIT_FOR_ROOM)
        if not has_room:
            size = f"{self.waiting:,} B are waiting to be sent to {self.name}"
            msg = f"{size}, which reads too slowly; send less"
            raise LinkFull(msg)

    def _has_room(self) -> bool:
        return self.waiting <= WAITING_LIMIT or not self.is_open

    def _give_up(self) -> None:
        """Cut the connection to a peer that does not read; further calls have no effect."""
        frames, self._frames = self._frames, []
        self.waiting -= sum(map(len, frames))
        if self.is_open:
            self._runner.post(
                self._lost, f"{self.waiting:,} B wait, and the peer does not read"
            )

    def flush(self) -> None:
        """Write the output collected in this turn."""
        with self._lock:
            self._is_dirty = False
            # While a handler is blocked, its turn has not ended.
            if not self._runner.times.stuck:
                self._write_at = FIRST_WRITE
            if not self._is_blocked and self.is_open:
                self._flush()

    def _flush_early(self) -> None:
        """Write before the end of the turn; if the socket is full, this wakes the runner."""
        if self._write_at < WRITE_SIZE:
            self._write_at *= 2
        self._flush()

    def _flush(self) -> None:
        """Write until nothing is left or the socket is full. The caller must hold the lock."""
        frames = self._frames
        while frames or self._rest is not None or self._unsealed is not None:
            data: bytes | memoryview
            if self._rest is not None:
                data = self._rest
            elif self._sealer is not None:
                data = self._next_batch(self._sealer)
            else:
                try:
                    data = frames[0] if len(frames) == 1 else b"".join(frames)
                except MemoryError:  # a single frame needs no fresh memory
                    data = frames.pop(0)
                else:
                    frames.clear()
            try:
                if CONTENTION.is_seen:
                    count = contention.send(self._socket, memoryview(data))
                else:
                    count = self._send(data)
            except BlockingIOError:
                count = 0
            except OSError as error:
                self._runner.post(self._lost, str(error.strerror or error))
                self._rest = self._unsealed = None
                self._is_blocked = True  # nothing is written after this
                return
            self.waiting -= count
            self.bytes_sent += count
            if count < len(data):
                self._rest = memoryview(data)[count:]
                self._is_blocked = True
                self._runner.post(self._await_room)
                return
            self._rest = None

    def _next_batch(self, sealer: Sealer) -> bytes:
        """Seal and return the next batch of output; the caller must hold the lock."""
        frames, plain = self._frames, self._unsealed
        if plain is None:
            count = len(frames)
            try:
                data = frames[0] if count == 1 else b"".join(frames)
            except MemoryError:  # a single frame needs less memory
                data, count = frames[0], 1
            if len(data) <= CONTENT_LIMIT:
                batch = sealer.seal(data)
                del frames[:count]
                self.waiting += OVERHEAD
                return batch
            plain = self._unsealed = memoryview(data)
            del frames[:count]
        batch = sealer.seal(plain[:CONTENT_LIMIT])
        self._unsealed = plain[CONTENT_LIMIT:] or None
        self.waiting += OVERHEAD
        return batch

    def _await_room(self) -> None:
        """Poll for the socket to accept more output."""
        if self.is_open:
            self._awaits_room = True
            self._watch()

    # --- on the runner ---

    def _ready(self, mask: int) -> None:
        """Write and read as the socket allows."""
        if mask & EVENT_WRITE:
            self._awaits_room = False
            self._watch()
            with self._lock:
                self._is_blocked = False
                self._flush()
                if self.waiting <= WAITING_LIMIT:
                    self._room.notify_all()
        if mask & EVENT_READ and self.is_open:
            self._read()

    def _watch(self) -> None:
        """Poll for the events that are needed: input, and room to write."""
        events = 0 if self.is_paused or self.is_held else EVENT_READ
        if self._awaits_room:
            events |= EVENT_WRITE
        watched, self._watched = self._watched, events
        self._runner.watch(self._socket, watched, events, self._ready)

    def _read(self) -> None:
        """Read from the socket once, and process the bytes."""
        size, opener = self._read_size, self._opener
        if opener is not None and opener.missing:
            size = opener.read_size(size)
        try:
            if CONTENTION.is_seen:
                data = contention.receive(self._socket, size)
            else:
                data = self._receive(size)
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(str(error.strerror or error))
            return
        if not data:
            self._lost("closed by the other side")
            return
        self.bytes_received += len(data)
        frames_before = self.frames_received
        frames, effects = self._take(data, self._runner.now())
        if frames:
            self.frames_received = frames_before + len(frames)
            self._deliver(frames)
        elif effects:
            self._carry_out(effects)
        if self._throttle is not None and self.is_open:
            brought = self.frames_received - frames_before
            self.pause_reading(self._throttle.take(brought, len(data), self._runner.now()))
        if self.after_read is not None:
            self.after_read()

    @property
    def is_paused(self) -> bool:
        """Whether reading is paused for a time."""
        return self._pause is not None

    def pause_reading(self, seconds: float) -> None:
        """Pause reading for a time; input waits in the system's buffers, and at the sender."""
        until = self._runner.now() + seconds
        if seconds <= 0.0 or not self.is_open or (self._pause and until <= self._pause_end):
            return
        if self._pause is None:
            self.pauses += 1
        else:
            self._pause.cancel()
        self._pause, self._pause_end = self._runner.call_at(until, self._read_again), until
        if self._watched & EVENT_READ:
            self._watch()

    def _read_again(self) -> None:
        """End a pause of reading."""
        self._pause = None
        if self.is_open:
            self._watch()

    @property
    def is_held(self) -> bool:
        """Whether reading is paused until received data is processed."""
        return self._holds > 0

    def hold(self) -> None:
        """Pause reading while received data is processed; each `hold` needs one `release`."""
        self._holds += 1
        if self.is_open and self._watched & EVENT_READ:
            self._watch()

    def release(self) -> None:
        """Resume reading, unless other holds remain."""
        self._holds -= 1
        if self.is_open and not self._holds and self._pause is None:
            self._watch()

    def _lost(self, reason: str) -> None:
        """Report a broken connection to the machine, once."""
        if self.is_open:
            # The effects are stored until they are carried out: a machine returns them only
            # once, and if memory runs out while they are carried out, the node tries again.
            self._last_effects = self._last_effects or self.machine.lost(reason)
            self._carry_out(self._last_effects)

    def broken(self, error: BaseException) -> None:
        """Cut the connection after an exception, because a frame may be half processed."""
        if self.is_open:
            pause = CLOSE_AGAIN if self._is_broken else 0.0
            if not self._is_broken:
                self._is_broken = True
                self.hold()  # never released
            reason = f"an error of this node: {describe(error)}"
            self._runner.call_later(pause, self._lost, reason)

    def end(self, reason: str) -> None:
        """Close from our side, after writing waiting output if the socket accepts it."""
        if self.is_open:
            self._carry_out(self.machine.close(reason))

    def shut(self) -> None:
        """Close the socket. Called when the machine has ended."""
        with self._lock:
            if not self.is_open:
                return
            if not self._is_blocked:
                self._flush()
            self.is_open = False
            self._frames = []
            self._rest = self._unsealed = None
            self._room.notify_all()
        for timer in (self._timer, self._pause):
            if timer is not None:
                timer.cancel()
        if self._watched:
            self._runner.selector.unregister(self._socket)
        self.let_go(self._socket)
        self._deliver = self._carry_out = _nothing  # to break a reference cycle
        self.after_read = None

    def _arm(self) -> None:
        """Schedule the next check of the machine's deadlines."""
        if self.is_open:
            now = self._runner.now()
            due = min(self.machine.next_tick_at, now + TICK_INTERVAL)
            # The timer's rounded time may be earlier than the deadline of the machine. Without
            # a shortest pause, the timer would then fire again and again.
            self._timer = self._runner.call_at(max(due, now + SHORTEST_TICK), self._tick)

    def _tick(self) -> None:
        """Read, and then let the machine do the work that is due."""
        now = self._runner.now()
        if self.is_open and now >= self.machine.next_tick_at:
            # Read first, because a busy node would otherwise take its own delay for a silent
            # peer.
            if self.is_held:
                self._take(b"", now)
            else:
                self._read()
            if self.is_open:
                self._carry_out(self.machine.tick(now))
        self._arm()


def _close(sock: "socket.socket | TlsSocket") -> None:
    sock.close()


def _nothing(_: object) -> None:
    """Ignore frames and effects after the end."""


@dataclass(eq=False, repr=False)
class Parting(ConnectionOwner):
    """Closes a connection so that the last bytes reach the peer.

    A socket that is closed with unread input, or that receives more afterwards, sends a reset.
    The reset overtakes the last output, or makes the peer stop before it has read that. So this
    class closes only the sending direction, after all output was sent, and discards input until
    the peer closes too. The owner limits the time for this, during which the connection counts
    as open.
    """

    #: Runner whose selector is used; everything happens with its role.
    _runner: Runner
    #: A non-blocking socket that no selector watches; it is closed at the end.
    _sock: socket.socket | TlsSocket
    #: Called with this parting when it is closed.
    _ended: Callable[[Any], object]
    #: Bytes to write.
    _rest: Any = b""
    _left: int = field(default_factory=lambda: DISCARD_LIMIT)
    _reads: bool = True
    _writes: bool = True
    _watched: int = 0

    def __post_init__(self) -> None:
        self._rest = memoryview(self._rest)

    def begin(self) -> None:
        """Read and write at once as the socket allows; this may end the connection."""
        self._handle_events(EVENT_READ | EVENT_WRITE)

    def wait(self, until: float) -> None:
        """Block until the peer has closed, or until the monotonic time `until`.

        The runner must have ended before.
        """
        with contextlib.suppress(OSError), DefaultSelector() as selector:
            selector.register(self._sock, EVENT_READ)
            while (left := until - time.monotonic()) > 0 and selector.select(left):
                if not self._sock.recv(READ_SIZE):
                    break
        self._sock.close()

    def abort(self) -> None:
        """Close at once. Idempotent."""
        self._watch(0)
        self._sock.close()
        ended, self._ended = self._ended, _nothing
        ended(self)

    def broken(self, error: BaseException) -> None:
        """Close at once."""
        self.abort()

    def _handle_events(self, events: int) -> None:
        """Read and write as the socket allows."""
        try:
            if events & EVENT_READ and self._reads:
                self._read()
            if events & EVENT_WRITE and self._writes:
                self._write()
        except OSError:  # the peer has reset it
            self.abort()
            return
        if self._writes or self._reads or self._left <= 0:
            self._watch(EVENT_READ * self._reads | EVENT_WRITE * self._writes)
        else:
            self.abort()

    def _read(self) -> None:
        """Discard one read."""
        try:
            count = len(self._sock.recv(READ_SIZE))
        except (BlockingIOError, InterruptedError):
            return
        self._left -= count
        if not count:  # the peer has closed, so only output is left
            self._reads = False
            self._writes = bool(self._rest)
        elif self._left <= 0:
            self._reads = False

    def _write(self) -> None:
        """Write the remaining output, then close the sending direction."""
        try:
            while self._rest:
                self._rest = self._rest[self._sock.send(self._rest) :]
        except (BlockingIOError, InterruptedError):
            return
        self._writes = False
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def _watch(self, events: int) -> None:
        """Poll for other events."""
        watched, self._watched = self._watched, events
        self._runner.watch(self._sock, watched, events, self._handle_events)
