"""A non-blocking stream: a socket, what waits to be written, and the machine above it.

What is written is collected and sent once a turn, or as soon as many bytes are there. Writing
is possible from any thread (under the stream's lock); everything else happens on the runner
with its role. A machine is pure: bytes and the time go in, frames and effects come out.
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
from callboard.support.dataclass import dataclass
from callboard.support.text import describe

F = TypeVar("F")
E = TypeVar("E")


#: Bytes of one read: larger ones cost more in fresh memory than they save in calls.
READ_SIZE: Final = 65536

#: Bytes of a peer that are thrown away; from there on they wait in its system and ours, so
#: that one that sends without end costs no more than this.
DISCARD_LIMIT: Final = 64 << 20

#: Bytes that are written at once instead of at the end of the turn.
WRITE_SIZE: Final = 65536

#: As many bytes are written at once when a turn begins, then twice as many each time: the peer
#: begins while the turn goes on, and a flood is soon written in the largest portions.
FIRST_WRITE: Final = 2048

#: Bytes that may wait for a peer that does not read: senders on other threads then wait.
#:
#: A handler may go to twice as much before it gets `LinkFull`. What cannot be refused (answers,
#: frames of other nodes, control) may go to three times as much; then the connection is cut, so
#: that one peer that does not read takes bounded memory and holds nobody else up.
WAITING_LIMIT: Final = 64 * 1024 * 1024

#: Seconds after which a machine is looked at in any case: its times change with its state.
TICK_INTERVAL: Final = 0.5

SHORTEST_TICK: Final = 0.001

#: Seconds before a broken connection is closed again, where closing it raised: without memory,
#: until there is some.
CLOSE_AGAIN: Final = 0.1

#: Seconds that a thread outside of the node waits for room before it gets `LinkFull`.
WAIT_FOR_ROOM: Final = 30.0


class Machine(Protocol[F, E]):
    """The protocol that a stream carries: frames are its messages, effects its other wishes."""

    @property
    def next_tick_at(self) -> float:
        """When `tick` has something to do; it may move with each call."""

    def start(self) -> list[E]:
        """Begin."""

    def take(self, data: bytes, now: float) -> "tuple[list[F], list[E]]":
        """Take what one read brought: frames alone, or effects."""

    def tick(self, now: float) -> list[E]:
        """Do what is due."""

    def lost(self, reason: str) -> list[E]:
        """Take note that the connection broke."""

    def close(self, reason: str) -> list[E]:
        """End from our side."""


class Turns:
    """Writes before each poll what the streams of one runner collected in the turn."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        #: Streams with something to write.
        self.dirty: list[Stream[Any, Any]] = []
        runner.before_poll.append(self.flush)

    def flush(self) -> None:
        """Write everything that was collected."""
        dirty = self.dirty
        while dirty:
            stream = dirty.pop()
            try:
                stream.flush()
            except BaseException as error:  # noqa: BLE001  # the other streams are written
                self.runner.failed(stream.flush, error)


class Stream(ConnectionOwner, Generic[F, E]):
    """A connection and its machine."""

    #: Used by each read and write; why slots: see `Runtime`.
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
        """Take a connected socket; `start` begins.

        Args:
            turns: the turns of the runner that serves the stream.
            sock: the socket; it belongs to the stream from here on.
            machine: the protocol above it.
            deliver: takes the frames of a read.
            carry_out: does what the machine asks for, in its order; in the end it calls `shut`.
            throttle: limits what comes in; None for no limit.
        """
        runner = turns.runner
        self.machine = machine
        self.is_open = True
        #: Called after each read, while it is set.
        self.after_read: Callable[[], object] | None = None
        #: How often reading was put off because more came than may.
        self.pauses = 0
        self.waiting = 0
        self.bytes_received = 0
        self.bytes_sent = 0
        self.frames_sent = 0
        #: The function that carries out effects adds the frames among them.
        self.frames_received = 0
        self._throttle = throttle
        self._read_size = READ_SIZE if throttle is None else throttle.read_size
        self._runner = runner
        self._patience = runner.patience
        self._socket = sock
        #: What becomes of the socket at the end.
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
        #: Frames that came from a call inside another one, which this thread is still in.
        self._late: deque[bytes] = deque()
        self._room = locks.condition_on(self._lock)
        self._frames: list[bytes] = []
        self._write_at = FIRST_WRITE
        self._rest: memoryview | None = None
        #: Seals what is written; None on connections without a seal.
        self._sealer: Sealer | None = None
        #: Opens what is read; None on connections without a seal.
        self._opener: Opener | None = None
        #: What goes before the frames, and is not sealed yet: the next batch is full already.
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
        """Who is at the other end, for people."""
        return "the other side"

    def start(self) -> None:
        """Let the machine begin."""
        self._carry_out(self.machine.start())
        self._arm()

    def catch_up(self) -> None:
        """Read at once: what the socket itself holds already makes no selector tell."""
        if self.is_open:
            self._read()

    # --- writing, from any thread ---

    def write(self, frame: bytes, *, at_once: bool = False) -> None:
        """Send a frame behind all others; `at_once`: a thread outside waits for the answer.

        Never blocks or raises: senders that can wait or be refused call `make_room` before.
        """
        if self._is_inside():
            self._write_later(frame)
            return
        lock = self._lock
        lock.acquire()  # in half of the time that `with` takes: each frame comes here
        try:
            if self._late:
                self._take_late()
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
        if self._runner.sleeping:  # also when a handler lost the runner's role while it blocked
            self._runner.wake()

    def _write_later(self, frame: bytes) -> None:
        """Keep a frame until the call that this one runs inside has left the lock."""
        self._late.append(frame)
        self._runner.post(self._write_late)

    def _take_late(self) -> None:
        """Put frames that came from inside a call behind those before them; needs the lock."""
        late = self._late
        while late:
            frame = late.popleft()
            self._frames.append(frame)
            self.waiting += len(frame)
            self.frames_sent += 1

    def _write_late(self) -> None:
        """Write what came from inside a call."""
        with self._lock:
            self._take_late()
            if not self._is_blocked and self.is_open:
                self._flush()

    def write_run(self, frames: list[bytes]) -> None:
        """Send frames of other nodes behind all others, as `write` does; on the runner."""
        if self._is_inside():
            for frame in frames:
                self._write_later(frame)
            return
        with self._lock:
            self._take_late()
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
        """Seal what is written from here on, and read batch by batch.

        Frames that wait already are written without a seal.
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
        """Wait until the peer has read, before a message is written to a stream that is full.

        Raises:
            LinkFull: it did not read in time, or a handler, which must not wait, went too far.
        """
        is_inside = self._is_inside()  # then this thread must not wait
        with self._lock:
            if is_inside or self._runner.is_runner_thread():
                has_room = self.waiting <= 2 * WAITING_LIMIT
            else:
                has_room = self._room.wait_for(self._has_room, WAIT_FOR_ROOM)
        if not has_room:
            msg = f"{self.waiting:,} B wait for {self.name}, which does not read; send less"
            raise LinkFull(msg)

    def _has_room(self) -> bool:
        return self.waiting <= WAITING_LIMIT or not self.is_open

    def _give_up(self) -> None:
        """Cut the connection to a peer that does not read, once."""
        frames, self._frames = self._frames, []
        self.waiting -= sum(map(len, frames))
        if self.is_open:
            self._runner.post(self._lost, f"{self.waiting:,} B wait and it does not read")

    def flush(self) -> None:
        """Write what was collected in this turn."""
        with self._lock:
            self._is_dirty = False
            if not self._runner.times.stuck:  # a handler that fires a flood is in the same turn
                self._write_at = FIRST_WRITE
            if not self._is_blocked and self.is_open:
                self._flush()

    def _flush_early(self) -> None:
        """Write before the turn is over, which wakes the runner if the socket is full."""
        if self._write_at < WRITE_SIZE:
            self._write_at *= 2
        self._flush()

    def _flush(self) -> None:
        """Write until all is out or the socket is full; with the lock held."""
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
                except MemoryError:  # one by one they need none
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
                self._is_blocked = True  # nothing is written any more
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
        """Seal what is to be written, as much as goes into one batch; with the lock held."""
        frames, plain = self._frames, self._unsealed
        if plain is None:
            count = len(frames)
            try:
                data = frames[0] if count == 1 else b"".join(frames)
            except MemoryError:  # one by one they need less
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
        """Wait until the socket takes more."""
        if self.is_open:
            self._awaits_room = True
            self._watch()

    # --- on the runner ---

    def _ready(self, mask: int) -> None:
        """Write and read as far as the socket is ready."""
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
        """Tell the selector what to wait for: something to read, room to write."""
        events = 0 if self.is_paused or self.is_held else EVENT_READ
        if self._awaits_room:
            events |= EVENT_WRITE
        watched, self._watched = self._watched, events
        self._runner.watch(self._socket, watched, events, self._ready)

    def _read(self) -> None:
        """Take what one read brings; each message of a sequential exchange is one."""
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
        before = self.frames_received
        frames, effects = self._take(data, self._runner.now())
        if frames:
            self.frames_received = before + len(frames)
            self._deliver(frames)
        elif effects:
            self._carry_out(effects)
        if self._throttle is not None and self.is_open:
            brought = self.frames_received - before
            self.pause_reading(self._throttle.take(brought, len(data), self._runner.now()))
        if self.after_read is not None:
            self.after_read()

    @property
    def is_paused(self) -> bool:
        """Whether nothing is read for a time."""
        return self._pause is not None

    def pause_reading(self, seconds: float) -> None:
        """Read nothing for a time; what comes waits in the system, and then at the sender."""
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
        """Whether nothing is read before what came is done with."""
        return self._holds > 0

    def hold(self) -> None:
        """Read nothing until `release` is called as often: what came is not done with."""
        self._holds += 1
        if self.is_open and self._watched & EVENT_READ:
            self._watch()

    def release(self) -> None:
        """Read on, unless something else is not done with."""
        self._holds -= 1
        if self.is_open and not self._holds and self._pause is None:
            self._watch()

    def _lost(self, reason: str) -> None:
        """Tell the machine that the connection broke, once."""
        if self.is_open:
            # Kept until they are carried out: a machine says them once, and without memory the
            # node may have to do it again.
            self._last_effects = self._last_effects or self.machine.lost(reason)
            self._carry_out(self._last_effects)

    def broken(self, error: BaseException) -> None:
        """Cut the connection: a callback raised, so what it read may be handled by half."""
        if self.is_open:
            pause = CLOSE_AGAIN if self._is_broken else 0.0
            if not self._is_broken:
                self._is_broken = True
                self.hold()  # for good
            why = f"an error of this node: {describe(error)}"
            self._runner.call_later(pause, self._lost, why)

    def end(self, reason: str) -> None:
        """Close from our side: what waits is written as far as the socket takes it."""
        if self.is_open:
            self._carry_out(self.machine.close(reason))

    def shut(self) -> None:
        """Close the socket; called when the machine has ended."""
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
        self._deliver = self._carry_out = _nothing  # they may refer back
        self.after_read = None

    def _arm(self) -> None:
        """Plan the next look at the machine's times."""
        if self.is_open:
            now = self._runner.now()
            due = min(self.machine.next_tick_at, now + TICK_INTERVAL)
            # Rounding may put a deadline a hair before the machine sees it as reached.
            self._timer = self._runner.call_at(max(due, now + SHORTEST_TICK), self._tick)

    def _tick(self) -> None:
        """Let the machine do what is due."""
        now = self._runner.now()
        if self.is_open and now >= self.machine.next_tick_at:
            # A node that was busy must not take its own delay for silence.
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
    """Stand where frames and effects went before the end."""


@dataclass(eq=False, repr=False)
class Parting(ConnectionOwner):
    """The end of a connection whose peer was told why: its last words arrive.

    A socket that is closed with unread bytes in it, or gets more afterwards, answers with a
    reset. It overtakes what was written last, or makes the peer stop before it has read that.
    So our own direction alone is closed, behind all that was written, and what still comes is
    read and thrown away until the peer closes too. The owner bounds the time, and counts the
    connection as open until then.
    """

    #: Whose selector is used; everything happens with its role.
    _runner: Runner
    #: It does not block, and no selector watches it; it is closed in the end.
    _sock: socket.socket | TlsSocket
    #: Called with this parting when it is closed.
    _ended: Callable[[Any], object]
    #: Bytes that are still to be written.
    _rest: Any = b""
    _left: int = field(default_factory=lambda: DISCARD_LIMIT)
    _reads: bool = True
    _writes: bool = True
    _watched: int = 0

    def __post_init__(self) -> None:
        self._rest = memoryview(self._rest)

    def begin(self) -> None:
        """Go as far as it goes at once, which may be the end."""
        self._go_on(EVENT_READ | EVENT_WRITE)

    def wait(self, until: float) -> None:
        """Block until the peer has closed, or to a monotonic time; the runner is over."""
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

    def _go_on(self, events: int) -> None:
        """Read and write as far as the socket is ready."""
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
        """Throw a read away."""
        try:
            count = len(self._sock.recv(READ_SIZE))
        except (BlockingIOError, InterruptedError):
            return
        self._left -= count
        if not count:  # the peer has closed, and only what it may still read is left to do
            self._reads = False
            self._writes = bool(self._rest)
        elif self._left <= 0:
            self._reads = False

    def _write(self) -> None:
        """Write what waits, and close for writing behind it."""
        try:
            while self._rest:
                self._rest = self._rest[self._sock.send(self._rest) :]
        except (BlockingIOError, InterruptedError):
            return
        self._writes = False
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def _watch(self, events: int) -> None:
        """Ask the poller for these events from here on."""
        before, self._watched = self._watched, events
        self._runner.watch(self._sock, before, events, self._go_on)
