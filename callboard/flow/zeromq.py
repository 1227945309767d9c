"""Flows over ZeroMQ (extra `zmq`): ROUTER and DEALER, or SERVER and CLIENT.

ROUTER and DEALER carry a message as frames, `[empty, prefix, coord, payload…]`, as the original
implementations do; every pyzmq has them. SERVER and CLIENT carry the whole message in one
frame. They need a pyzmq with draft sockets, and are used by the original flow implementations:
`tcp+draft://HOST:PORT`.

ZeroMQ does not report a lost peer; the broker notices it when a send cannot be routed. Earlier
messages of that peer, such as the reason of its end, may then still be unread. The broker
therefore reads all messages that have arrived before it declares the peer lost. All other rules
are those of `callboard.flow.protocol.association`, as over BASP.

A socket belongs to one thread. Other threads append to its queue, and wake it through a socket
pair of the operating system.
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
from callboard.kernel.ports import refuse_unguarded
from callboard.kernel.reply import Future
from callboard.support import after_fork

#: Unhandled messages of one peer in memory; beyond it, TCP slows the peer down.
RECEIVE_LIMIT: Final = 100

#: Limit of ZeroMQ's handshake on a connection, in milliseconds.
HANDSHAKE_MS: Final = 10_000

#: Milliseconds between checks for flows and waits that have timed out.
TICK_MS: Final = 200

#: Milliseconds for which a closed socket still sends queued messages.
LINGER_MS: Final = 1000

#: Messages that are read before the queue of other threads is checked again.
BATCH_LIMIT: Final = 256

#: Seconds after which a peer is declared lost although messages are still being read, as
#: messages of busy peers may never end.
LAST_MESSAGES_SECONDS: Final = 1.0


def has_draft() -> bool:
    """Return whether this pyzmq has SERVER and CLIENT sockets."""
    return bool(zmq.has("draft"))


class _Loop:
    """A thread with one socket, and a queue of calls of other threads."""

    def __init__(self, name: str, address: str, kind: str, draft_kind: str) -> None:
        """Open a socket, and connect it or bind it.

        Raises:
            FlowError: the address is not usable, or this pyzmq does not have the sockets.
        """
        self.is_draft = "+draft://" in address
        if self.is_draft and not has_draft():
            msg = (
                f"{address} needs draft sockets, which this pyzmq lacks; use tcp:// on both "
                "sides"
            )
            raise FlowError(msg)
        socket_type = getattr(zmq, draft_kind if self.is_draft else kind)
        self.socket: Any = zmq.Context.instance().socket(socket_type)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_LIMIT)
        self.socket.setsockopt(zmq.SNDHWM, 0)  # credit bounds the number of messages
        self.socket.setsockopt(zmq.RCVHWM, RECEIVE_LIMIT)
        self.socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        try:
            self.join(address.replace("+draft://", "://"))
        except zmq.ZMQError as error:
            self.socket.close(0)
            msg = f"{address}: {error}"
            raise FlowError(msg) from None
        self._address = address
        after_fork.register(self, _Loop._drop_copy)
        self._queue: deque[Callable[[], None]] = deque()
        self._wake_reader, self._wake_writer = map(after_fork.own_socket, socket.socketpair())
        self._wake_reader.settimeout(0)
        self._wake_writer.settimeout(0)
        self._is_closing = threading.Event()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def post(self, call: Callable[[], None]) -> None:
        """Queue a call for the thread."""
        self._queue.append(call)
        with contextlib.suppress(OSError):  # the pair is full, so the thread is woken; or ended
            self._wake_writer.send(b"x")

    def close(self) -> None:
        """Close the socket after all posted calls, and end the thread.

        Can be called from any thread.
        """
        if after_fork.is_copy(self):
            return
        self.post(self._is_closing.set)
        if threading.current_thread() is not self.thread:
            self.thread.join(5 * LINGER_MS / 1000)

    def _drop_copy(self) -> None:
        """Drop the connections in a forked process.

        The socket is not closed: ZeroMQ would wait for its thread, which a fork does not copy.
        """
        after_fork.keep_for_ever(self.socket)
        address = getattr(self, "address", self._address)
        for is_bound in (True, False):
            after_fork.drop_endpoint(address.replace("+draft", ""), is_bound=is_bound)

    def _run(self) -> None:
        """Read messages and execute posted calls until the loop is closed."""
        poller = zmq.Poller()
        poller.register(self.socket, zmq.POLLIN)
        poller.register(self._wake_reader.fileno(), zmq.POLLIN)
        try:
            while not self._is_closing.is_set():
                poller.poll(TICK_MS)
                with contextlib.suppress(OSError):  # raised when the pair is empty
                    while self._wake_reader.recv(4096):
                        pass
                while self._queue:
                    self._queue.popleft()()
                self._read()
                self.tick()
        finally:
            self.socket.close(LINGER_MS)
            self._wake_reader.close()
            self._wake_writer.close()

    def _read(self) -> None:
        """Handle messages that have arrived, at most a batch."""
        for _ in range(BATCH_LIMIT):
            try:
                self.handle(self.socket.recv_multipart(zmq.DONTWAIT, copy=False))
            except zmq.Again:
                self.emptied()
                return

    def emptied(self) -> None:
        """Called when all messages that have arrived are handled."""

    def join(self, endpoint: str) -> None:
        """Connect or bind the socket."""
        self.socket.connect(endpoint)

    def handle(self, frames: list[Any]) -> None:
        """Handle a message."""
        raise NotImplementedError

    def tick(self) -> None:
        """Check deadlines; called after each batch, at least every `TICK_MS`."""
        raise NotImplementedError


class ZmqLink(_Loop):
    """A link to a flow broker over ZeroMQ."""

    def __init__(self, address: str, taker: FlowTaker) -> None:
        """Connect to a broker.

        Raises:
            FlowError: the address is not usable.
        """
        self._taker = taker
        self._futures: deque[Future[Any]] = deque()
        super().__init__("callboard-flow", address, "DEALER", "CLIENT")
        self.thread.start()

    def send(self, data: bytes) -> None:
        """Send a message. Can be called from any thread."""
        self.post(lambda: self._send(data))

    def _send(self, data: bytes) -> None:
        try:
            if self.is_draft:
                self.socket.send(data, zmq.DONTWAIT)
            else:
                self.socket.send_multipart([b"", *decode_frames(data)], zmq.DONTWAIT)
        except zmq.ZMQError as error:
            self._taker.lost(FlowAborted(f"ZeroMQ refused a message: {error}"))

    def handle(self, frames: list[Any]) -> None:
        """Pass a message to the flow."""
        parts = [frame.bytes for frame in frames]
        self._taker.received(parts[0] if self.is_draft else encode_frames(parts[1:]))

    def now(self) -> float:
        """Return monotonic time in seconds."""
        return time.monotonic()

    def set_deadline(self, future: Future[Any], seconds: float) -> None:
        """Fail a future after some seconds, unless it is done; a coroutine at the next tick."""
        future.timeout = seconds
        future.deadline = time.monotonic() + seconds
        self._futures.append(future)

    def tick(self) -> None:
        """Fail the futures whose deadlines have passed."""
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
        """Awaitable twin of `close`; does not wait for the end of the thread."""
        self.post(self._is_closing.set)


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
        """Bind the socket, and start the thread.

        Raises:
            FlowError: the address is not usable, or in use.
            PublicAddress: other machines could reach it, and `insecure` does not allow that.
        """
        _Loop.__init__(self, "callboard-flow-broker", address, "ROUTER", "SERVER")
        FlowSwitch.__init__(self, factory, most_credit, secrets.randbits, time.monotonic)
        bound = self.socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
        if bound.startswith("tcp://") and not insecure:  # the address that ZeroMQ resolved
            try:
                host = bound.removeprefix("tcp://").rpartition(":")[0].strip("[]")
                refuse_unguarded(host, is_guarded=False)
            except PublicAddress:
                self.socket.close(0)
                raise
        #: Address for clients and handlers.
        self.address = bound.replace("://", "+draft://") if self.is_draft else bound
        self._ended = threading.Event()
        #: Peers that a send did not reach: when they are declared lost at the latest, and why.
        self._unreached: dict[int, tuple[float, str]] = {}
        self.thread.start()

    def join(self, endpoint: str) -> None:
        """Bind the socket."""
        if not self.is_draft:
            self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.bind(f"{endpoint[:-2]}:*" if endpoint.endswith(":0") else endpoint)

    def handle(self, frames: list[Any]) -> None:
        """Forward a message, or open a flow."""
        if self.is_draft:
            self.pass_on(frames[0].routing_id, frames[0].bytes)
        else:
            identity, *parts = (frame.bytes for frame in frames)
            data = encode_frames(parts[1:] if parts and not parts[0] else parts)
            self.pass_on(self.rid_of(identity), data)

    def send_to(self, rid: int, data: bytes) -> None:
        """Send to a peer; one that ZeroMQ cannot reach is lost after its last messages."""
        try:
            if self.is_draft:
                frame = zmq.Frame(data)
                frame.routing_id = rid
                self.socket.send(frame, zmq.DONTWAIT, copy=False)
            elif rid in self._ports:
                frames = [self._ports[rid], b"", *decode_frames(data)]
                self.socket.send_multipart(frames, zmq.DONTWAIT)
        except (zmq.ZMQError, MalformedMessage) as error:
            lost_at = self._now() + LAST_MESSAGES_SECONDS
            self._unreached.setdefault(rid, (lost_at, str(error)))

    def emptied(self) -> None:
        """Declare unreached peers lost: none of their messages is unread."""
        while self._unreached:
            self._lose(next(iter(self._unreached)))

    def _lose(self, rid: int) -> None:
        """End the flow of a lost peer, unless its last messages have ended it."""
        _, reason = self._unreached.pop(rid)
        self.carry_out(self.table.down(rid, reason))

    def forget(self, rid: int) -> None:
        """Free a routing id."""
        super().forget(rid)
        self._unreached.pop(rid, None)

    def refuse_later(self, cid: int, reason: str) -> None:
        """Refuse the flow of a waiting client; may be called from any thread."""
        self.post(partial(self.refuse, cid, reason))

    def tick(self) -> None:
        """Refuse flows that waited too long for their handlers; end flows of lost peers."""
        now = self._now()
        if self.table.is_waiting:
            self.carry_out(self.table.expire(now))
        for rid, (lost_at, _) in list(self._unreached.items()):
            if lost_at <= now and rid in self._unreached:
                self._lose(rid)

    def close(self) -> None:
        """End all flows with EOT, then the broker. Idempotent."""
        if not self._ended.is_set():
            self._ended.set()
            self.post(lambda: self.carry_out(self.table.close(CLOSED)))
            super().close()
