"""Flows over ZeroMQ (extra `zmq`): ROUTER and DEALER, or SERVER and CLIENT.

ROUTER and DEALER carry a message as frames, `[empty, prefix, coord, payload…]`, as the
originals do; every pyzmq has them. SERVER and CLIENT carry one frame with the whole message;
they need a pyzmq with draft sockets, and are what the originals' flows speak:
`tcp+draft://HOST:PORT`.

ZeroMQ does not tell when a peer is gone: what is noticed is a send that cannot be routed. What
that peer said before, the reason of its end above all, may not have been read then: the broker
calls it lost when all that arrived is read. Everything else is the table of
`callboard.flow.protocol.association`, as over BASP.

A socket belongs to one thread. Others put what they send into a queue and knock at a pair of
sockets of the operating system.
"""

import contextlib
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import zmq

from callboard.flow.broker import CLOSED, BrokerView, FlowSwitch
from callboard.flow.errors import FlowAborted, FlowError, MalformedMessage
from callboard.flow.factories import Factory
from callboard.flow.link import FlowTaker
from callboard.flow.protocol.machine import CREDIT_LIMIT
from callboard.flow.protocol.message import MESSAGE_LIMIT, decode_frames, encode_frames
from callboard.kernel.errors import PublicAddress
from callboard.kernel.reply import Future
from callboard.kernel.tls import refuse_unguarded
from callboard.support import after_fork

#: Messages of one peer that are read before they are passed on; TCP holds the rest back.
RECEIVED: Final = 100

#: Milliseconds that a connection may take to become one of ZeroMQ's.
HANDSHAKE_MS: Final = 10_000

#: Milliseconds between looks for flows and waits whose time is over.
TICK_MS: Final = 200

#: Milliseconds that what was sent has to go out when a socket is closed.
LINGER_MS: Final = 1000

#: Messages that are read before the queue of others is looked at again.
BATCH: Final = 256

#: Seconds that the last words of a lost peer are looked for where other messages never end.
LAST_WORDS: Final = 1.0


def has_draft() -> bool:
    """Return whether this pyzmq has SERVER and CLIENT sockets."""
    return bool(zmq.has("draft"))


class _Loop:
    """A thread with one socket, and a queue for what others want to send."""

    def __init__(self, name: str, address: str, kind: str, draft_kind: str) -> None:
        """Open a socket, and connect it or bind it.

        Raises:
            FlowError: the address is of no use, or this pyzmq has no such sockets.
        """
        self.is_draft = "+draft://" in address
        if self.is_draft and not has_draft():
            msg = f"{address}: this pyzmq has no draft sockets; use tcp:// on both sides"
            raise FlowError(msg)
        chosen = getattr(zmq, draft_kind if self.is_draft else kind)
        self.socket: Any = zmq.Context.instance().socket(chosen)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_LIMIT)
        self.socket.setsockopt(zmq.SNDHWM, 0)  # the credit of flows bounds their number
        self.socket.setsockopt(zmq.RCVHWM, RECEIVED)
        self.socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        try:
            self.join(address.replace("+draft://", "://"))
        except zmq.ZMQError as error:
            self.socket.close(0)
            msg = f"{address}: {error}"
            raise FlowError(msg) from None
        self._address = address
        after_fork.register(self, _Loop._leave)
        self._queue: deque[Callable[[], None]] = deque()
        self._ears, self._knock = map(after_fork.own_socket, socket.socketpair())
        self._ears.settimeout(0)
        self._knock.settimeout(0)
        self._over = threading.Event()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def post(self, call: Callable[[], None]) -> None:
        """Let the thread call something."""
        self._queue.append(call)
        with contextlib.suppress(OSError):  # it has been knocked enough, or is over
            self._knock.send(b"x")

    def close(self) -> None:
        """Close the socket behind what was posted, and end the thread; from any thread."""
        if after_fork.is_copy(self):
            return
        self.post(self._over.set)
        if threading.current_thread() is not self.thread:
            self.thread.join(5 * LINGER_MS / 1000)

    def _leave(self) -> None:
        """Drop the connections of this copy in a forked process.

        The socket is not closed: ZeroMQ would wait for its thread, which is not here.
        """
        after_fork.keep_for_ever(self.socket)
        address = getattr(self, "address", self._address)
        for is_bound in (True, False):
            after_fork.drop_endpoint(address.replace("+draft", ""), is_bound=is_bound)

    def _run(self) -> None:
        """Wait for the socket and for calls of others until the end."""
        poller = zmq.Poller()
        poller.register(self.socket, zmq.POLLIN)
        poller.register(self._ears.fileno(), zmq.POLLIN)
        try:
            while not self._over.is_set():
                poller.poll(TICK_MS)
                with contextlib.suppress(OSError):  # until no knock is left
                    while self._ears.recv(4096):
                        pass
                while self._queue:
                    self._queue.popleft()()
                self._read()
                self.tick()
        finally:
            self.socket.close(LINGER_MS)
            self._ears.close()
            self._knock.close()

    def _read(self) -> None:
        """Take the messages that are there, up to a batch."""
        for _ in range(BATCH):
            try:
                self.take(self.socket.recv_multipart(zmq.DONTWAIT, copy=False))
            except zmq.Again:
                self.emptied()
                return

    def emptied(self) -> None:
        """All that has arrived is read."""

    def join(self, endpoint: str) -> None:
        """Connect or bind the socket."""
        self.socket.connect(endpoint)

    def take(self, frames: list[Any]) -> None:
        """Take a message."""
        raise NotImplementedError

    def tick(self) -> None:
        """Look for what is due."""
        raise NotImplementedError


class ZmqLink(_Loop):
    """One side's way to a flow broker on ZeroMQ."""

    def __init__(self, address: str, taker: FlowTaker) -> None:
        """Connect.

        Raises:
            FlowError: the address is of no use.
        """
        self._taker = taker
        self._futures: deque[Future[Any]] = deque()
        super().__init__("callboard-flow", address, "DEALER", "CLIENT")
        self.thread.start()

    def send(self, data: bytes) -> None:
        """Send a message; from any thread."""
        self.post(lambda: self._send(data))

    def _send(self, data: bytes) -> None:
        try:
            if self.is_draft:
                self.socket.send(data, zmq.DONTWAIT)
            else:
                self.socket.send_multipart([b"", *decode_frames(data)], zmq.DONTWAIT)
        except zmq.ZMQError as error:
            self._taker.lost(FlowAborted(f"ZeroMQ takes no message: {error}"))

    def take(self, frames: list[Any]) -> None:
        """Hand a message to the flow."""
        parts = [frame.bytes for frame in frames]
        self._taker.received(parts[0] if self.is_draft else encode_frames(parts[1:]))

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
            if future.is_done:
                continue
            if future.deadline is not None and future.deadline <= now:
                future.expire()
            else:
                self._futures.append(future)

    async def aclose(self) -> None:
        """Awaitable twin of `close`; the thread ends by itself."""
        self.post(self._over.set)


class ZmqFlowBroker(_Loop, FlowSwitch[bytes], BrokerView):
    """A flow broker on a ROUTER or SERVER socket; handlers connect to it as clients do."""

    def __init__(
        self,
        address: str,
        factory: Factory,
        *,
        most_credit: int = CREDIT_LIMIT,
        insecure: bool = False,
    ) -> None:
        """Bind the socket and begin.

        Raises:
            FlowError: the address is of no use, or taken.
            PublicAddress: other machines could reach it, and `insecure` does not allow that.
        """
        _Loop.__init__(self, "callboard-flow-broker", address, "ROUTER", "SERVER")
        FlowSwitch.__init__(self, factory, most_credit, secrets.randbits, time.monotonic)
        bound = self.socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
        if bound.startswith("tcp://") and not insecure:  # as ZeroMQ understood the address
            try:
                host = bound.removeprefix("tcp://").rpartition(":")[0].strip("[]")
                refuse_unguarded(host, is_guarded=False)
            except PublicAddress:
                self.socket.close(0)
                raise
        #: Where clients and handlers reach it.
        self.address = bound.replace("://", "+draft://") if self.is_draft else bound
        self._ended = threading.Event()
        #: Peers that a send did not reach: until when their last words are looked for, and why.
        self._unreached: dict[int, tuple[float, str]] = {}
        self.thread.start()

    def join(self, endpoint: str) -> None:
        """Bind the socket."""
        if not self.is_draft:
            self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.bind(f"{endpoint[:-2]}:*" if endpoint.endswith(":0") else endpoint)

    def take(self, frames: list[Any]) -> None:
        """Pass a message on, or begin a flow."""
        if self.is_draft:
            self.pass_on(frames[0].routing_id, frames[0].bytes)
        else:
            identity, *parts = (frame.bytes for frame in frames)
            data = encode_frames(parts[1:] if parts and not parts[0] else parts)
            self.pass_on(self.rid_of(identity), data)

    def send_to(self, rid: int, data: bytes) -> None:
        """Send to a peer; one that ZeroMQ has no way to loses its flow after its last words."""
        try:
            if self.is_draft:
                frame = zmq.Frame(data)
                frame.routing_id = rid
                self.socket.send(frame, zmq.DONTWAIT, copy=False)
            elif rid in self._ports:
                frames = [self._ports[rid], b"", *decode_frames(data)]
                self.socket.send_multipart(frames, zmq.DONTWAIT)
        except (zmq.ZMQError, MalformedMessage) as error:
            self._unreached.setdefault(rid, (self._now() + LAST_WORDS, str(error)))

    def emptied(self) -> None:
        """Nothing is left that a lost peer has said."""
        while self._unreached:
            self._lose(next(iter(self._unreached)))

    def _lose(self, rid: int) -> None:
        """End the flow of a lost peer, if its last words have not done so."""
        _, reason = self._unreached.pop(rid)
        self.carry_out(self.table.down(rid, reason))

    def forget(self, rid: int) -> None:
        """Free a routing id."""
        super().forget(rid)
        self._unreached.pop(rid, None)

    def refuse_later(self, cid: int, reason: str) -> None:
        """Tell a client that waits; from any thread."""
        self.post(partial(self.refuse, cid, reason))

    def tick(self) -> None:
        """Refuse flows that waited too long for their handlers; end those of lost peers."""
        now = self._now()
        if self.table.is_waiting:
            self.carry_out(self.table.expire(now))
        for rid, (until, _) in list(self._unreached.items()):
            if until <= now and rid in self._unreached:
                self._lose(rid)

    def close(self) -> None:
        """End all flows with EOT, then the broker. Idempotent."""
        if not self._ended.is_set():
            self._ended.set()
            self.post(lambda: self.carry_out(self.table.close(CLOSED)))
            super().close()
