"""A client within the process: no socket, the same rights and promises as any other client.

    link = router.link("recorder")
    link.subscribe("sensors/#", qos=1).result(5)
    message = link.recv(timeout=5)
    link.publish("seen", message.payload, qos=1).result(5)

Acknowledgements go both ways as on a wire; the router cannot tell the difference. Messages wait
in a bounded queue, or go to a function on the router's thread. A full queue makes the router
wait as a full socket does. All methods may be called from any thread.
"""

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self

from callboard.mqtt.codec import decode, encode
from callboard.mqtt.errors import LinkClosed, Refused
from callboard.mqtt.framing import body_start, packet_end
from callboard.mqtt.link import UNSCHEDULE, Access, Disconnected, Link, RouterMailbox
from callboard.mqtt.packet import (
    V5,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
)
from callboard.mqtt.properties import Properties
from callboard.mqtt.reason_code import ReasonCode, reason_text

QUEUE_LIMIT: Final = 10_000
"""Messages that wait for `recv`; above it the router sends no more until half are taken."""
_LAST_ID: Final = 65_535


@dataclass(frozen=True, slots=True)
class Message:
    """What a subscriber gets, and what may be published."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: Properties | None = None


class LocalLink:
    """A client of the router that lives in this process."""

    def __init__(
        self,
        mailbox: RouterMailbox,
        client_id: str = "",
        *,
        on_messages: Callable[[list[Message]], None] | None = None,
        clean_start: bool = True,
        session_expiry: int = 0,
        access: Access | None = None,
    ) -> None:
        """Connect.

        Args:
            mailbox: the router, or what stands for it.
            client_id: of the session; the router makes one up for an empty one.
            on_messages: takes messages on the router's thread, in place of the queue; it must
                be quick. Those of a run are acknowledged when it returns.
            clean_start: whether to forget a session that is there.
            session_expiry: seconds for which the session lives after `close`.
            access: what it may do; None is everything.
        """
        self._on_messages = on_messages
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._queue: deque[Message] = deque()
        self._waiters: list[Callable[[], Any]] = []
        self._owes_ready = False
        self._ids = itertools.cycle(range(1, _LAST_ID + 1))
        self._pending: dict[int, Future[tuple[int, ...]]] = {}
        self._received: set[int] = set()
        self._end: str | None = None
        #: Done with whether a session was there, when the router has answered.
        self.connected: Future[bool] = Future()
        connect = Connect(
            client_id,
            clean_start,
            version=V5,
            properties=Properties(session_expiry_interval=session_expiry or None),
        )
        self._link = Link(
            mailbox, connect, self._wake, access=access, peer="local", is_local=True
        )
        self._link.begin()

    @property
    def client_id(self) -> str:
        """The id of the session."""
        return self._link.client_id

    @property
    def is_closed(self) -> bool:
        """Whether either side has ended it."""
        return self._end is not None

    # --- out ---

    def publish(
        self,
        topic: str,
        payload: bytes = b"",
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> "Future[tuple[int, ...]]":
        """Publish a message.

        Returns:
            A future that is done when the router has it: at once with QoS 0, else when it has
            acknowledged it. It fails with `Refused` where the router did not take it.

        Raises:
            InvalidPacket: the topic or a property is none.
            LinkClosed: the link is over.
        """
        return self.publish_all([Message(topic, payload, qos, retain, properties)])[-1]

    def publish_all(self, messages: Iterable[Message]) -> "list[Future[tuple[int, ...]]]":
        """Publish several messages with one wake-up of the router; see `publish`."""
        chunks: list[bytes] = []
        futures: list[Future[tuple[int, ...]]] = []
        for each in messages:
            packet_id, future = self._expect() if each.qos else (0, _done())
            packet = Publish(
                each.topic,
                each.payload,
                each.qos,
                each.retain,
                packet_id=packet_id,
                properties=each.properties,
            )
            try:
                chunks.append(encode(packet, V5))
            except BaseException:
                self._pending.pop(packet_id, None)
                raise
            futures.append(future)
        self._send(b"".join(chunks))
        return futures

    def subscribe(
        self,
        topic_filter: str,
        *,
        qos: int = 0,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
    ) -> "Future[tuple[int, ...]]":
        """Subscribe; the future gives the granted QoS, and fails with `Refused`."""
        packet_id, future = self._expect()
        wanted = Subscription(topic_filter, qos, no_local, retain_as_published, retain_handling)
        self._send(encode(Subscribe(packet_id, (wanted,)), V5))
        return future

    def unsubscribe(self, topic_filter: str) -> "Future[tuple[int, ...]]":
        """Unsubscribe; what is on its way already still comes."""
        packet_id, future = self._expect()
        self._send(encode(Unsubscribe(packet_id, (topic_filter,)), V5))
        return future

    def close(self) -> None:
        """Disconnect as a client does that wants no will. Idempotent."""
        if self._end is None:
            self._link.push(encode(Disconnect(), V5))
            self._finish("closed here")

    # --- in ---

    def try_recv(self) -> Message | None:
        """Return the next message, None if there is none."""
        with self._lock:
            return self._next()

    def recv(self, timeout: float | None = None) -> Message:
        """Wait for the next message.

        Raises:
            TimeoutError: none came in time.
            LinkClosed: the link is over and nothing is left.
        """
        with self._arrived:
            if not self._arrived.wait_for(lambda: self._queue or self._end, timeout):
                msg = f"no message came in {timeout} s"
                raise TimeoutError(msg)
            message = self._next()
        if message is None:
            raise LinkClosed(self._end or "closed")
        return message

    async def arecv(self, timeout: float | None = None) -> Message:
        """Wait for the next message; see `recv`."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout):
            while True:
                arrived = asyncio.Event()
                with self._lock:
                    message = self._next()
                    if message is not None:
                        return message
                    if self._end is not None:
                        raise LinkClosed(self._end)
                    self._waiters.append(partial(loop.call_soon_threadsafe, arrived.set))
                await arrived.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _next(self) -> Message | None:
        queue = self._queue
        if not queue:
            return None
        message = queue.popleft()
        if self._owes_ready and len(queue) <= QUEUE_LIMIT // 2:
            self._owes_ready = False
            self._link.ready()
        return message

    # --- towards the router ---

    def _expect(self) -> "tuple[int, Future[tuple[int, ...]]]":
        future: Future[tuple[int, ...]] = Future()
        with self._lock:
            if len(self._pending) >= _LAST_ID:
                msg = "65,535 packets wait for the router; wait for some of them"
                raise LinkClosed(msg)
            packet_id = next(each for each in self._ids if each not in self._pending)
            self._pending[packet_id] = future
        return packet_id, future

    def _send(self, chunk: bytes) -> None:
        if self._end is not None:
            raise LinkClosed(self._end)
        if chunk:
            self._link.push(chunk)

    # --- from the router, on its thread ---

    def _wake(self) -> None:
        messages: list[Message] = []
        answers: list[bytes] = []
        is_full = False
        for each in self._link.take():
            if isinstance(each, bytes):
                self._read(each, messages, answers)
            elif each is UNSCHEDULE:
                is_full = True
            elif isinstance(each, Disconnected):
                self._finish(each.text or reason_text(each.reason_code))
        if messages:
            self._deliver(messages)
        if answers and self._end is None:
            self._link.push(b"".join(answers))
        if is_full:
            with self._lock:
                self._owes_ready = len(self._queue) > QUEUE_LIMIT
            if not self._owes_ready:
                self._link.ready()

    def _deliver(self, messages: list[Message]) -> None:
        if self._on_messages is not None:
            self._on_messages(messages)
            return
        with self._arrived:
            self._queue += messages
            self._arrived.notify_all()
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter()

    def _read(self, data: bytes, messages: list[Message], answers: list[bytes]) -> None:
        position = 0
        while position < len(data):
            end = packet_end(data, position)
            body = data[body_start(data, position) : end]
            self._take(decode(data[position], body, V5), messages, answers)
            position = end

    def _take(self, packet: Packet, messages: list[Message], answers: list[bytes]) -> None:
        match packet:
            case Publish():
                self._take_publish(packet, messages, answers)
            case PubRel(packet_id=packet_id):
                self._received.discard(packet_id)
                answers.append(encode(PubComp(packet_id), V5))
            case PubRec(packet_id=packet_id, reason_code=code):
                if code >= ReasonCode.UNSPECIFIED_ERROR:
                    self._settle(packet_id, (code,))
                else:
                    answers.append(encode(PubRel(packet_id), V5))
            case PubAck(packet_id=packet_id, reason_code=code):
                self._settle(packet_id, (code,))
            case PubComp(packet_id=packet_id):
                self._settle(packet_id, (0,))
            case SubAck() | UnsubAck():
                self._settle(packet.packet_id, packet.reason_codes)
            case ConnAck(session_present=is_present, reason_code=0):
                self.connected.set_result(is_present)
            case ConnAck(reason_code=code):
                self.connected.set_exception(Refused(reason_text(code), code))

    def _take_publish(
        self, packet: Publish, messages: list[Message], answers: list[bytes]
    ) -> None:
        if packet.qos == 2:
            answers.append(encode(PubRec(packet.packet_id), V5))
            if packet.packet_id in self._received:
                return
            self._received.add(packet.packet_id)
        elif packet.qos:
            answers.append(encode(PubAck(packet.packet_id), V5))
        messages.append(
            Message(packet.topic, packet.payload, packet.qos, packet.retain, packet.properties)
        )

    def _settle(self, packet_id: int, codes: Sequence[int]) -> None:
        future = self._pending.pop(packet_id, None)
        if future is None:
            return
        if codes[0] >= ReasonCode.UNSPECIFIED_ERROR:
            future.set_exception(Refused(reason_text(codes[0]), codes[0]))
        else:
            future.set_result(tuple(codes))

    def _finish(self, why: str) -> None:
        with self._arrived:
            if self._end is not None:
                return
            self._end = why
            pending, self._pending = self._pending, {}
            waiters, self._waiters = self._waiters, []
            self._arrived.notify_all()
        for waiter in waiters:
            waiter()
        for future in pending.values():
            future.set_exception(LinkClosed(why))
        if not self.connected.done():
            self.connected.set_exception(LinkClosed(why))


def _done() -> "Future[tuple[int, ...]]":
    future: Future[tuple[int, ...]] = Future()
    future.set_result((0,))
    return future
