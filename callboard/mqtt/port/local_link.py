"""A client within the process: no socket, the same rights and promises as any other client.

    link = router.link("recorder")
    link.subscribe("sensors/#", qos=1).result(5)
    message = link.recv(timeout=5)
    link.publish("seen", message.payload, qos=1).result(5)

Acknowledgements go both ways as on a wire; the router cannot tell the difference. Messages wait
in a queue; a full one makes the router wait as a full socket does. All methods may be called
from any thread.
"""

import asyncio
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Final

import callboard.mqtt.wire.packet as packets
from callboard import locks
from callboard.endpoint.message_queue import MessageQueue
from callboard.kernel.checks import limit
from callboard.kernel.twins import Closing
from callboard.mqtt.router.link import UNSCHEDULE, Access, Disconnected, Link, Mailbox
from callboard.mqtt.wire.client import ClientProtocol, Message, Settled
from callboard.mqtt.wire.codec import decode_all, encode
from callboard.mqtt.wire.errors import LinkClosed, Refused
from callboard.mqtt.wire.packet import V5, Packet, Publish
from callboard.mqtt.wire.properties import Properties
from callboard.mqtt.wire.reason_code import reason_text

#: Messages that wait for `recv`; above it the router sends no more until half are taken.
QUEUE_LIMIT: Final = 10_000
Answered = Future[tuple[int, ...]]


class LocalLink(Closing):
    """A client of the router that lives in this process."""

    def __init__(
        self,
        mailbox: Mailbox,
        client_id: str = "",
        *,
        clean_start: bool = True,
        session_expiry: int = 0,
        access: Access | None = None,
    ) -> None:
        """Connect.

        Args:
            mailbox: the router, or what stands for it.
            client_id: of the session; the router makes one up for an empty one.
            clean_start: whether to forget a session that is there.
            session_expiry: seconds for which the session lives after `close`.
            access: what it may do; None is everything.
        """
        #: It drops nothing: the router stops sending when it is full.
        self._queue: MessageQueue[Message] = MessageQueue(sys.maxsize)
        #: Holds something while the router waits to hear that there is room. No lock guards it:
        #: a finalizer may use the link inside any of its calls.
        self._owed: list[None] = []
        self._client: ClientProtocol[Answered] = ClientProtocol()
        self._end: str | None = None
        self._ending = locks.Turn()
        #: Takes back that the link ends with the node of its router.
        self.forget_end: Callable[[], object] = _nothing
        #: Done with whether a session was there, when the router has answered.
        self.connected: Future[bool] = Future()
        said = Properties(session_expiry_interval=session_expiry or None)
        connect = packets.Connect(client_id, clean_start, version=V5, properties=said)
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
    ) -> Answered:
        """Publish a message.

        Returns:
            A future that is done when the router has it: at once with QoS 0, else when it has
            acknowledged it. It fails with `Refused` where the router did not take it.

        Raises:
            InvalidPacket: the topic or a property is none.
            LinkClosed: the link is over.
        """
        return self.publish_all([Message(topic, payload, qos, retain, properties)])[-1]

    def publish_all(self, messages: Iterable[Message]) -> list[Answered]:
        """Publish several messages with one wake-up of the router; see `publish`."""
        chunks: list[bytes] = []
        futures: list[Answered] = []
        for each in messages:
            packet_id, future = self._expect() if each.qos else (0, _done())
            try:
                chunks.append(encode(each.packet(packet_id), V5))
            except BaseException:
                self._client.inflight.pop(packet_id, None)
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
    ) -> Answered:
        """Subscribe; the future gives the granted QoS, and fails with `Refused`."""
        packet_id, future = self._expect()
        wanted = packets.Subscription(
            topic_filter, qos, no_local, retain_as_published, retain_handling
        )
        self._send(encode(packets.Subscribe(packet_id, (wanted,)), V5))
        return future

    def unsubscribe(self, topic_filter: str) -> Answered:
        """Unsubscribe; messages in flight still arrive."""
        packet_id, future = self._expect()
        self._send(encode(packets.Unsubscribe(packet_id, (topic_filter,)), V5))
        return future

    def close(self) -> None:
        """Disconnect as a client does that wants no will. Idempotent."""
        if self._end is None:
            self._link.push(encode(packets.Disconnect(), V5))
            self._finish("closed here")

    # --- in ---

    def try_recv(self) -> Message | None:
        """Return the next message, None if there is none."""
        try:
            return self._took(self._queue.pop())
        except IndexError:
            return None

    def recv(self, timeout: float | None = None) -> Message:
        """Wait for the next message.

        Raises:
            TimeoutError: none came in time.
            LinkClosed: the link is over and nothing is left.
            WouldBlock: called on the thread of a running event loop; use `arecv`.
            WouldDeadlock: called in a handler, whose node would stand still.
        """
        timeout = limit(timeout)
        try:
            message = self._queue.get(timeout)
        except EOFError:
            raise LinkClosed(self._end or "closed") from None
        if message is None:
            text = f"no message came in {timeout} s"
            raise TimeoutError(text)
        return self._took(message)

    async def arecv(self, timeout: float | None = None) -> Message:
        """Wait for the next message; see `recv`."""
        async with asyncio.timeout(limit(timeout)):
            try:
                return self._took(await self._queue.aget())
            except EOFError:
                raise LinkClosed(self._end or "closed") from None

    def _took(self, message: Message) -> Message:
        """Return a message that was taken; the router goes on once there is room."""
        if self._owed:
            self._pay(QUEUE_LIMIT // 2)
        return message

    def _pay(self, most: int) -> None:
        """Let the router go on if no more than so many messages wait."""
        if self._queue.available() <= most:
            with suppress(IndexError):  # another thread has done it
                self._owed.pop()  # one step of the interpreter
                self._link.ready()

    # --- towards the router ---

    def _expect(self) -> tuple[int, Answered]:
        """Return an identifier, and the future of its acknowledgement."""
        future: Answered = Future()
        return self._client.expect(future), future  # no lock: it may be inside another call

    def _send(self, chunk: bytes) -> None:
        """Give packets to the router."""
        if self._end is not None:
            raise LinkClosed(self._end)
        if chunk:
            self._link.push(chunk)

    # --- from the router, on its thread ---

    def _wake(self) -> None:
        """Take what the router has sent; on its thread."""
        messages: list[Message] = []
        is_full = False
        for each in self._link.take():
            if isinstance(each, bytes):
                for packet in decode_all(each, V5):
                    self._take(packet, messages)
            elif each is UNSCHEDULE:
                is_full = True
            elif isinstance(each, Disconnected):
                self._finish(each.text or reason_text(each.reason_code))
        if messages:
            self._queue.take(messages)
        answers = self._client.take_answers()
        if answers and self._end is None:
            self._link.push(answers)
        if is_full:
            self._owed.append(None)  # first: a reader that takes messages from here on sees it
            self._pay(QUEUE_LIMIT)

    def _take(self, packet: Packet, messages: list[Message]) -> None:
        """Take one packet of the router."""
        match self._client.take(packet):
            case Publish() as publish:
                self._client.acknowledge(publish)
                messages.append(Message.of(publish))
            case Settled(future, codes) as settled if settled.refusal:
                _end(future, Refused(reason_text(codes[0]), codes[0]))
            case Settled(future, codes):
                _end(future, codes)
            case packets.ConnAck(session_present=is_present, reason_code=0):
                _end(self.connected, is_present)
            case packets.ConnAck(reason_code=code):
                _end(self.connected, Refused(reason_text(code), code))

    def node_ended(self, name: str) -> None:
        """End the link with the node of its router; from any thread."""
        self._finish(f"the node {name} was closed")

    def _finish(self, why: str) -> None:
        """End the link: whatever waits for something fails."""
        if not self._ending.take():  # for good
            return
        self._end = why  # first: what is published from here on is refused
        pending = self._client.take_inflight()
        self.forget_end()
        self._queue.close()
        for future in pending:
            _end(future, LinkClosed(why))
        _end(self.connected, LinkClosed(why))


def _nothing() -> None:
    """What takes back that nothing was registered."""


def _end(future: Future[Any], outcome: object) -> None:
    """Complete a future, unless the link was closed or its owner has cancelled it.

    On the router's thread: what is raised here would end the router.
    """
    with suppress(InvalidStateError):
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def _done() -> Answered:
    """Return a future that is done: QoS 0 is not acknowledged."""
    future: Answered = Future()
    future.set_result((0,))
    return future
