"""Flows over ZeroMQ (extra `zmq`): ROUTER and DEALER, or SERVER and CLIENT.

ROUTER and DEALER carry a message as frames, `[empty, prefix, coord, payload…]`, as the
originals do; every pyzmq has them. SERVER and CLIENT carry one frame with the whole message;
they need a pyzmq with draft sockets, and are what the originals' flows speak:
`tcp+draft://HOST:PORT`.

ZeroMQ does not tell when a peer is gone: what is noticed is a send that cannot be routed.
Everything else is the table of `callboard.flow.association`, as over BASP.

A socket belongs to one thread. Others put what they send into a queue and knock at a pair of
sockets of the operating system.
"""

import logging
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Self

import zmq

from actors.future import Future
from callboard.flow.association import Associations, CallFactory, Counters, Effect, Send
from callboard.flow.broker import Factory, call_factory
from callboard.flow.errors import FlowAborted, FlowError, MalformedMessage
from callboard.flow.handler import Bot
from callboard.flow.link import Taker
from callboard.flow.machine import CREDIT_LIMIT
from callboard.flow.message import MESSAGE_LIMIT, decode_frames, encode_frames

__all__ = ["ZmqFlowBroker", "ZmqLink", "has_draft"]

log = logging.getLogger("callboard.flow")

TICK_MS: Final = 200
"""Milliseconds between looks for flows and waits whose time is over."""

LINGER_MS: Final = 1000
"""Milliseconds that what was sent has to go out when a socket is closed."""

BATCH: Final = 256
"""Messages that are read before the queue of others is looked at again."""


def has_draft() -> bool:
    """Return True when this pyzmq has SERVER and CLIENT."""
    return bool(zmq.has("draft"))


def _endpoint(address: str) -> tuple[str, bool]:
    """Return the address as ZeroMQ wants it, and whether the draft sockets are meant.

    Raises:
        FlowError: this pyzmq has none.
    """
    is_draft = "+draft://" in address
    if is_draft and not has_draft():
        msg = f"{address}: this pyzmq has no draft sockets; use tcp:// on both sides"
        raise FlowError(msg)
    return address.replace("+draft://", "://"), is_draft


def _set_limits(sock: Any) -> None:
    """Bound messages by size; their number is bounded by the credit of flows."""
    sock.setsockopt(zmq.MAXMSGSIZE, MESSAGE_LIMIT)
    sock.setsockopt(zmq.SNDHWM, 0)
    sock.setsockopt(zmq.RCVHWM, 0)


class _Loop:
    """A thread with one socket, and a queue for what others want to send."""

    def __init__(self, name: str, sock: Any) -> None:
        self.socket = sock
        self._queue: deque[Callable[[], None]] = deque()
        self._ears, self._knock = socket.socketpair()
        self._ears.settimeout(0)
        self._knock.settimeout(0)
        self._is_over = False
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def post(self, call: Callable[[], None]) -> None:
        """Let the thread call something."""
        self._queue.append(call)
        try:
            self._knock.send(b"x")
        except OSError:  # it has been knocked enough, or is over
            pass

    def stop(self) -> None:
        """End the thread behind what was posted; from any thread."""
        self.post(self._stop)
        if threading.current_thread() is not self.thread:
            self.thread.join(5 * LINGER_MS / 1000)

    def _stop(self) -> None:
        self._is_over = True

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self.socket, zmq.POLLIN)
        poller.register(self._ears.fileno(), zmq.POLLIN)
        try:
            while not self._is_over:
                poller.poll(TICK_MS)
                self._drain_knocks()
                while self._queue:
                    self._queue.popleft()()
                self._read()
                self.tick()
        finally:
            self.socket.close(LINGER_MS)
            self._ears.close()
            self._knock.close()

    def _drain_knocks(self) -> None:
        try:
            while self._ears.recv(4096):
                pass
        except OSError:
            pass

    def _read(self) -> None:
        for _ in range(BATCH):
            try:
                self.take(self.socket.recv_multipart(zmq.DONTWAIT, copy=False))
            except zmq.Again:
                return

    def take(self, frames: list[Any]) -> None:
        """Take a message."""
        raise NotImplementedError

    def tick(self) -> None:
        """Look for what is due."""
        raise NotImplementedError


class ZmqLink(_Loop):
    """One side's way to a flow broker on ZeroMQ."""

    def __init__(self, address: str, taker: Taker) -> None:
        """Connect.

        Raises:
            FlowError: the address is of no use.
        """
        endpoint, self._is_draft = _endpoint(address)
        sock: Any = zmq.Context.instance().socket(zmq.CLIENT if self._is_draft else zmq.DEALER)
        _set_limits(sock)
        try:
            sock.connect(endpoint)
        except zmq.ZMQError as error:
            sock.close(0)
            msg = f"{address}: {error}"
            raise FlowError(msg) from None
        self._taker = taker
        self._futures: deque[Future[Any]] = deque()
        super().__init__("callboard-flow", sock)
        self.thread.start()

    def send(self, data: bytes) -> None:
        """Send a message; from any thread."""
        self.post(lambda: self._send(data))

    def _send(self, data: bytes) -> None:
        try:
            if self._is_draft:
                self.socket.send(data, zmq.DONTWAIT)
            else:
                self.socket.send_multipart([b"", *decode_frames(data)], zmq.DONTWAIT)
        except zmq.ZMQError as error:
            self._taker.lost(FlowAborted(f"ZeroMQ takes no message: {error}"))

    def take(self, frames: list[Any]) -> None:
        """Hand a message to the flow."""
        parts = [frame.bytes for frame in frames]
        if self._is_draft:
            self._taker.received(parts[0])
        else:
            self._taker.received(encode_frames(parts[1:]))

    def now(self) -> float:
        """Return monotonic time in seconds."""
        return time.monotonic()

    def set_deadline(self, future: Future[Any], seconds: float) -> None:
        """Let a future fail unless it is done by then; coroutines learn it at the next tick."""
        future.timeout = seconds
        future.deadline = time.monotonic() + seconds
        self._futures.append(future)

    def tick(self) -> None:
        """Fail what waited too long."""
        now = time.monotonic()
        for _ in range(len(self._futures)):
            future = self._futures.popleft()
            if future.done_:
                continue
            if future.deadline is not None and future.deadline <= now:
                future.expire()
            else:
                self._futures.append(future)

    def close(self) -> None:
        """Close the socket, behind what was sent."""
        self.stop()

    async def aclose(self) -> None:
        """Awaitable twin of `close`; the thread ends by itself."""
        self.post(self._stop)


class ZmqFlowBroker(_Loop):
    """A flow broker on a ROUTER or SERVER socket; handlers connect to it as clients do."""

    def __init__(
        self, address: str, factory: Factory, *, most_credit: int = CREDIT_LIMIT
    ) -> None:
        """Bind the socket and begin.

        Raises:
            FlowError: the address is of no use, or taken.
        """
        endpoint, self._is_draft = _endpoint(address)
        sock: Any = zmq.Context.instance().socket(zmq.SERVER if self._is_draft else zmq.ROUTER)
        _set_limits(sock)
        if not self._is_draft:
            sock.setsockopt(zmq.ROUTER_MANDATORY, 1)
        try:
            sock.bind(endpoint.replace(":0", ":*") if endpoint.endswith(":0") else endpoint)
        except zmq.ZMQError as error:
            sock.close(0)
            msg = f"{address}: {error}"
            raise FlowError(msg) from None
        bound = sock.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
        #: Where clients and handlers reach it.
        self.address = bound.replace("://", "+draft://") if self._is_draft else bound
        self._factory = factory
        self._table = Associations(lambda: secrets.token_hex(16), most_credit=most_credit)
        self._rids: dict[bytes, int] = {}
        self._identities: dict[int, bytes] = {}
        self._ended = threading.Event()
        super().__init__("callboard-flow-broker", sock)
        self.thread.start()

    @property
    def counters(self) -> Counters:
        """What happened so far."""
        return self._table.counters

    def __len__(self) -> int:
        """Return the number of flows in its table."""
        return len(self._table)

    def __bool__(self) -> bool:
        """Be true also without flows."""
        return True

    def take(self, frames: list[Any]) -> None:
        """Pass a message on, or begin a flow."""
        if self._is_draft:
            rid, data = frames[0].routing_id, frames[0].bytes
        else:
            identity, *parts = (frame.bytes for frame in frames)
            rid = self._rid_of(identity)
            data = encode_frames(parts[1:] if parts and not parts[0] else parts)
        self._carry_out(self._table.receive(rid, data, time.monotonic()))
        if rid not in self._table:
            self._forget(rid)

    def _rid_of(self, identity: bytes) -> int:
        rid = self._rids.get(identity)
        while rid is None:
            drawn = secrets.randbits(32)
            if drawn and drawn not in self._identities:
                rid = self._rids[identity] = drawn
                self._identities[drawn] = identity
        return rid

    def _forget(self, rid: int) -> None:
        identity = self._identities.pop(rid, None)
        if identity is not None:
            del self._rids[identity]

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._send(effect)
            elif isinstance(effect, CallFactory):
                bot = Bot(effect.bot, None, self.address, self._refuse)
                reason = call_factory(self._factory, bot, time.monotonic)
                if reason:
                    self._carry_out(self._table.refuse(effect.cid, reason))
            elif effect.rid not in self._table:
                self._forget(effect.rid)

    def _send(self, effect: Send) -> None:
        try:
            if self._is_draft:
                frame = zmq.Frame(effect.data)
                frame.routing_id = effect.rid
                self.socket.send(frame, zmq.DONTWAIT, copy=False)
            elif effect.rid in self._identities:
                frames = [self._identities[effect.rid], b"", *decode_frames(effect.data)]
                self.socket.send_multipart(frames, zmq.DONTWAIT)
        except (zmq.ZMQError, MalformedMessage) as error:
            lost = self._table.down(effect.rid, str(error))
            self._carry_out(lost)

    def _refuse(self, cid: int, reason: str) -> None:
        self.post(lambda: self._carry_out(self._table.refuse(cid, reason)))

    def tick(self) -> None:
        """Refuse flows that waited too long for their handlers."""
        if self._table.is_waiting:
            self._carry_out(self._table.expire(time.monotonic()))

    def run(self, timeout: float | None = None) -> bool:
        """Wait until the broker is closed, or for `timeout` seconds: then return False."""
        return self._ended.wait(timeout)

    def close(self) -> None:
        """End all flows with EOT, then the broker. Idempotent."""
        if not self._ended.is_set():
            self._ended.set()
            self.post(lambda: self._carry_out(self._table.close("the flow broker is closed")))
            self.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
