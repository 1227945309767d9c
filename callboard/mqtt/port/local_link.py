"""A client in the process: without a socket, with the same guarantees as any other client.

    link = router.link("recorder")
    link.subscribe("sensors/#", qos=1).result(5)
    message = link.recv(timeout=5)
    link.publish("seen", message.payload, qos=1).result(5)

Acknowledgements are sent in both directions as over a network; the router does not see a
difference. Messages wait in a queue; a full queue makes the router wait like a full socket. All
methods may be called from any thread.

A link with a lasting session acknowledges a message with QoS 1 or 2 when it is read, so that
unread messages arrive again after `close` or a restart. With `acknowledge="manual"` it does so
when `acknowledge` is called::

    lasting = {"clean_start": False, "session_expiry": 86_400}
    link = router.link("billing", acknowledge="manual", **lasting)
    message = link.recv()
    book(message)
    link.acknowledge(message)
"""

import asyncio
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Literal, get_args

import callboard.mqtt.wire.packet as packets
from callboard import locks
from callboard.arguments import limit, require
from callboard.closing import Closing
from callboard.mqtt.router.link import (
    UNSCHEDULE,
    Access,
    Disconnected,
    RouterLink,
    RouterMailbox,
)
from callboard.mqtt.wire.client import ClientProtocol, Message, Settled
from callboard.mqtt.wire.codec import decode_all, encode
from callboard.mqtt.wire.errors import LinkClosed, Refused
from callboard.mqtt.wire.packet import V5, Packet, Publish
from callboard.mqtt.wire.properties import Properties
from callboard.mqtt.wire.reason_code import reason_text
from callboard.topics.message_queue import MessageQueue

#: Messages that may wait for `recv`. Above it the router pauses until half of them are read.
QUEUE_LIMIT: Final = 10_000
Answered = Future[tuple[int, ...]]
#: The moment of an acknowledgement to the router: when a message has arrived in the queue, when
#: it is read, or when `LocalLink.acknowledge` is called.
Acknowledge = Literal["arrival", "read", "manual"]


class LocalLink(Closing):
    """A client of the router in this process."""

    def __init__(
        self,
        mailbox: RouterMailbox,
        client_id: str = "",
        *,
        clean_start: bool = True,
        session_expiry: int = 0,
        access: Access | None = None,
        acknowledge: Acknowledge | None = None,
    ) -> None:
        """Connect to the router.

        Args:
            mailbox: the mailbox of the router.
            client_id: the client id of the session; if it is empty, the router generates one.
            clean_start: whether to discard an existing session.
            session_expiry: seconds that the session remains after `close`.
            access: the permissions; None is all.
            acknowledge: when messages with QoS 1 and 2 are acknowledged. By default `read` with
                a `session_expiry`, and `arrival` without one, as nothing would be kept.

        Raises:
            WrongArgument: `acknowledge` is none of these.
        """
        usage = 'acknowledge is "arrival", "read" or "manual"'
        require(acknowledge is None or acknowledge in get_args(Acknowledge), usage, acknowledge)
        self._acknowledge = acknowledge or ("read" if session_expiry else "arrival")
        #: Messages that were not acknowledged, by packet identifier.
        self._unacknowledged: dict[int, Message] = {}
        #: Unlimited, because the router stops sending when QUEUE_LIMIT is exceeded.
        self._queue: MessageQueue[Message] = MessageQueue(sys.maxsize)
        #: Not empty while the router is paused and `ready` has to resume it. It has no lock,
        #: because a finalizer may use the link inside any of its calls.
        self._paused: list[None] = []
        self._client: ClientProtocol[Answered] = ClientProtocol()
        self._end: str | None = None
        self._ending = locks.Turn()
        #: Unregisters the link at the router's node, which would close it at its end.
        self.forget_end: Callable[[], object] = _nothing
        #: Set when the router has answered: whether the session existed before.
        self.connected: Future[bool] = Future()
        properties = Properties(session_expiry_interval=session_expiry or None)
        connect = packets.Connect(client_id, clean_start, version=V5, properties=properties)
        self._link = RouterLink(
            mailbox, connect, self._wake, access=access, peer="local", is_local=True
        )
        self._link.begin()

    @property
    def client_id(self) -> str:
        """The id of the session."""
        return self._link.client_id

    @property
    def is_closed(self) -> bool:
        """Whether either side has closed the link."""
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
            A future that is done when the router has the message: at once with QoS 0, otherwise
            when the router has acknowledged it. It fails with `Refused` if the router refuses
            it.

        Raises:
            InvalidPacket: the topic or a property is invalid.
            LinkClosed: the link is closed.
        """
        return self.publish_all([Message(topic, payload, qos, retain, properties)])[-1]

    def publish_all(self, messages: Iterable[Message]) -> list[Answered]:
        """Publish several messages with one wake-up of the router; see `publish`."""
        chunks: list[bytes] = []
        futures: list[Answered] = []
        for message in messages:
            packet_id, future = self._expect() if message.qos else (0, _done())
            try:
                chunks.append(encode(message.packet(packet_id), V5))
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
        """Subscribe; the future returns the granted QoS, or fails with `Refused`."""
        packet_id, future = self._expect()
        subscription = packets.Subscription(
            topic_filter, qos, no_local, retain_as_published, retain_handling
        )
        self._send(encode(packets.Subscribe(packet_id, (subscription,)), V5))
        return future

    def unsubscribe(self, topic_filter: str) -> Answered:
        """Unsubscribe; messages in flight still arrive."""
        packet_id, future = self._expect()
        self._send(encode(packets.Unsubscribe(packet_id, (topic_filter,)), V5))
        return future

    def close(self) -> None:
        """Disconnect without publishing the will. Idempotent."""
        if self._end is None:
            self._link.push(encode(packets.Disconnect(), V5))
            self._finish("closed here")

    # --- in ---

    def try_recv(self) -> Message | None:
        """Return the next message; None if there is none."""
        try:
            return self._took(self._queue.pop())
        except IndexError:
            return None

    def recv(self, timeout: float | None = None) -> Message:
        """Wait for the next message.

        Raises:
            TimeoutError: no message arrived in time.
            LinkClosed: the link is closed, and all messages have been read.
            WouldBlock: called on the thread of a running event loop; use `arecv`.
            WouldDeadlock: called in a handler, which would block its node.
        """
        timeout = limit(timeout)
        try:
            message = self._queue.get(timeout)
        except EOFError:
            raise LinkClosed(self._end or "closed") from None
        if message is None:
            text = f"no message arrived within {timeout} s"
            raise TimeoutError(text)
        return self._took(message)

    async def arecv(self, timeout: float | None = None) -> Message:
        """Wait for the next message; see `recv`."""
        async with asyncio.timeout(limit(timeout)):
            try:
                return self._took(await self._queue.aget())
            except EOFError:
                raise LinkClosed(self._end or "closed") from None

    def acknowledge(self, message: Message) -> None:
        """Acknowledge a message of a link with `acknowledge="manual"`. Idempotent.

        Until then it counts to the link's unacknowledged messages, and arrives again at the
        next link with this lasting session.

        Raises:
            LinkClosed: the link is closed.
        """
        packet_id, waiting = message.packet_id, self._unacknowledged
        # The removal is atomic: of two threads one acknowledges.
        if waiting.get(packet_id) is message and waiting.pop(packet_id, None) is message:
            packet = packets.PubAck if message.qos == 1 else packets.PubRec
            self._send(encode(packet(packet_id), V5))

    def _took(self, message: Message) -> Message:
        """Return a message from the queue; resume the router if the queue is half empty."""
        if self._acknowledge == "read" and message.packet_id:
            with suppress(LinkClosed):  # it will arrive again
                self.acknowledge(message)
        if self._paused:
            self._resume(QUEUE_LIMIT // 2)
        return message

    def _resume(self, most: int) -> None:
        """Resume the router if at most this many messages wait."""
        if self._queue.available() <= most:
            with suppress(IndexError):  # another thread was first
                self._paused.pop()  # atomic: only one thread gets it
                self._link.ready()

    # --- towards the router ---

    def _expect(self) -> tuple[int, Answered]:
        """Return an identifier, and the future of its acknowledgement."""
        future: Answered = Future()
        return self._client.expect(future), future  # no lock: see `_paused`

    def _send(self, chunk: bytes) -> None:
        """Send packets to the router."""
        if self._end is not None:
            raise LinkClosed(self._end)
        if chunk:
            self._link.push(chunk)

    # --- from the router, on its thread ---

    def _wake(self) -> None:
        """Process the router's output; on its thread."""
        messages: list[Message] = []
        is_full = False
        for notification in self._link.take():
            if isinstance(notification, bytes):
                for packet in decode_all(notification, V5):
                    self._take(packet, messages)
            elif notification is UNSCHEDULE:
                is_full = True
            elif isinstance(notification, Disconnected):
                self._finish(notification.text or reason_text(notification.reason_code))
        if messages:
            self._queue.take(messages)
        answers = self._client.take_answers()
        if answers and self._end is None:
            self._link.push(answers)
        if is_full:
            self._paused.append(None)  # first, so that a concurrent reader sees it
            self._resume(QUEUE_LIMIT)

    def _take(self, packet: Packet, messages: list[Message]) -> None:
        """Process one packet of the router."""
        match self._client.take(packet):
            case Publish() as publish if publish.qos and self._acknowledge != "arrival":
                message = replace(Message.of(publish), packet_id=publish.packet_id)
                self._unacknowledged[publish.packet_id] = message
                messages.append(message)
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
        """Close the link, because the node of its router has ended.

        Can be called from any thread.
        """
        self._finish(f"the node {name} was closed")

    def _finish(self, reason: str) -> None:
        """Close the link: pending futures and waiting calls fail."""
        if not self._ending.take():  # it is closed already
            return
        self._end = reason  # first, so that later publishes are refused
        pending = self._client.take_inflight()
        self.forget_end()
        self._queue.close()
        for future in pending:
            _end(future, LinkClosed(reason))
        _end(self.connected, LinkClosed(reason))


def _nothing() -> None:
    """Do nothing; the value of `forget_end` for a link that is not registered."""


def _end(future: Future[Any], outcome: object) -> None:
    """Complete a future, unless the link was closed or its owner has cancelled it.

    It runs on the router's thread, where an exception would end the router.
    """
    with suppress(InvalidStateError):
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def _done() -> Answered:
    """Return a future that is done, because QoS 0 is not acknowledged."""
    future: Answered = Future()
    future.set_result((0,))
    return future
