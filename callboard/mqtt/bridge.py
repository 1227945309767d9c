"""A bridge: messages between a router and a remote broker, by a client of each.

What comes from the remote broker is acknowledged there when our router has it. What goes there
waits in the router, in the session of the bridge's local link, while the broker cannot be
reached; what was sent and not acknowledged is sent again, so it arrives at least once as long
as this process lives.

Nothing goes round: each side is asked for no messages that the bridge itself published. MQTT
3.1.1 cannot ask for that, so a bridge that speaks it carries nothing in that it carries out.
"""

import asyncio
import contextlib
import itertools
import logging
import ssl
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from callboard.mqtt.bridge_settings import BridgeSettings
from callboard.mqtt.codec import decode, encode
from callboard.mqtt.errors import LinkClosed, Refused, RemoteMqttError
from callboard.mqtt.framing import body_start, packet_end
from callboard.mqtt.local_link import LocalLink, Message
from callboard.mqtt.network import Network
from callboard.mqtt.packet import (
    V4,
    V5,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Subscription,
)
from callboard.mqtt.properties import Properties
from callboard.mqtt.reason_code import reason_text
from callboard.mqtt.topic import matches
from proxies.tls import dialing_context

if TYPE_CHECKING:
    from callboard.mqtt.router import Router

_LOG: Final = logging.getLogger(__name__)
SESSION: Final = 7 * 86_400
"""Seconds for which messages wait in the router for a broker that cannot be reached."""
LONGEST_DELAY: Final = 60.0
"""Seconds between attempts to reach it, at most."""
CONNECT_TIMEOUT: Final = 10.0
"""Seconds in which the remote broker has to answer."""
LAST_WORDS: Final = 2.0
"""Seconds for the end of a bridge."""
WINDOW: Final = 100
"""Messages sent to the remote broker and not acknowledged, unless it allows fewer."""


class Bridge:
    """One bridge, on the router's loop.

    Attributes:
        is_connected: whether the remote broker is there.
        brought: messages from it.
        sent: messages to it, second attempts not counted.
    """

    def __init__(self, router: "Router", settings: BridgeSettings) -> None:
        self.settings = settings
        self.is_connected = False
        self.brought = self.sent = 0
        self._router = router
        self._outward = [each for each in settings.topics if each.direction == "out"]
        self._inward = [each for each in settings.topics if each.direction == "in"]
        self._ids = itertools.cycle(range(1, 65_536))
        self._inflight: dict[int, Publish | None] = {}
        self._received: set[int] = set()
        self._window = WINDOW
        self._has_room = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._local: LocalLink | None = None
        self._heard = 0.0
        self._version = V5 if settings.version == "5" else V4

    async def run(self) -> None:
        """Connect again and again, until cancelled."""
        delay = self.settings.reconnect_delay
        while True:
            try:
                await self._session()
            except (OSError, RemoteMqttError, LinkClosed, Refused, TimeoutError) as error:
                _LOG.warning("the bridge to %s is down: %s", self.settings.address, error)
            finally:
                delay = self.settings.reconnect_delay if self.is_connected else delay
                self._hang_up()
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST_DELAY)

    @staticmethod
    def ended(running: "Future[None]") -> None:
        """Cancel `run`, and wait until both connections are closed."""
        running.cancel()
        wait([running], LAST_WORDS)

    def _hang_up(self) -> None:
        self.is_connected = False
        if self._local is not None:
            self._local.close()
            self._local = None
        if self._writer is not None:
            with contextlib.suppress(Exception):
                self._writer.write(encode(Disconnect(), self._version))
            self._writer.close()
            self._writer = None

    # --- one connection ---

    async def _session(self) -> None:
        host, port, is_tls = self.settings.parse()
        context: ssl.SSLContext | None = None
        if is_tls:
            assert self.settings.tls is not None
            context = dialing_context(self.settings.tls)
        network = Network()
        async with asyncio.timeout(CONNECT_TIMEOUT):
            reader, self._writer = await asyncio.open_connection(host, port, ssl=context)
            self._say(self._hello())
            early = await self._greet(reader, network)
        await self._open_local()
        self._resume()
        self._subscribe_there()
        for packet in early:
            self._take(packet)
        tasks = [
            asyncio.ensure_future(work)
            for work in (self._read(reader, network), self._ping(), self._pump())
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()

    def _hello(self) -> Connect:
        settings = self.settings
        return Connect(
            settings.client_id,
            False,  # noqa: FBT003  (clean start)
            settings.keep_alive,
            settings.username,
            settings.password,
            version=self._version,
            properties=self._said(Properties(session_expiry_interval=SESSION)),
        )

    def _said(self, properties: Properties) -> Properties | None:
        """Return properties as the remote broker can be told them."""
        return properties if self._version == V5 else None

    async def _greet(self, reader: asyncio.StreamReader, network: Network) -> list[Packet]:
        """Wait for the CONNACK; returns what came behind it."""
        while True:
            packets = self._packets(await _chunk(reader, network))
            if packets:
                break
        greeting = packets[0]
        if not isinstance(greeting, ConnAck):
            msg = f"it began with a {type(greeting).__name__}"
            raise LinkClosed(msg)
        if greeting.reason_code:
            raise Refused(reason_text(greeting.reason_code), greeting.reason_code)
        allowed = greeting.properties and greeting.properties.receive_maximum
        self._window = min(WINDOW, allowed or WINDOW)
        if not greeting.session_present:
            self._received.clear()
            done = [each for each, packet in self._inflight.items() if packet is None]
            for packet_id in done:  # the broker has forgotten them: they had arrived
                del self._inflight[packet_id]
        self.is_connected = True
        self._heard = asyncio.get_running_loop().time()
        return packets[1:]

    def _resume(self) -> None:
        """Send again what was not acknowledged."""
        for packet_id, packet in self._inflight.items():
            if packet is None:
                self._say(PubRel(packet_id))
            else:
                self._say(replace(packet, dup=True))

    def _subscribe_there(self) -> None:
        is_v5 = self._version == V5  # no local, retain as published
        if self._inward:
            wanted = tuple(
                Subscription(each.topic_filter, each.qos, is_v5, is_v5) for each in self._inward
            )
            self._say(Subscribe(next(self._ids), wanted))

    def _packets(self, chunk: bytes) -> list[Packet]:
        """Return the packets in a chunk of whole ones."""
        found: list[Packet] = []
        position = 0
        while position < len(chunk):
            end = packet_end(chunk, position)
            body = chunk[body_start(chunk, position) : end]
            found.append(decode(chunk[position], body, self._version))
            position = end
        return found

    async def _read(self, reader: asyncio.StreamReader, network: Network) -> None:
        while True:
            for packet in self._packets(await _chunk(reader, network)):
                self._take(packet)
            self._heard = asyncio.get_running_loop().time()

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(self.settings.keep_alive / 2)
            silence = asyncio.get_running_loop().time() - self._heard
            if silence > 1.5 * self.settings.keep_alive:
                msg = f"nothing came for {silence:.0f} s"
                raise LinkClosed(msg)
            self._say(PingReq())

    def _say(self, packet: Packet) -> None:
        if self._writer is None:
            return
        self._writer.write(encode(packet, self._version))

    # --- to the remote broker ---

    async def _open_local(self) -> None:
        local = self._local = self._router.link(
            f"$bridge-{self.settings.client_id}", clean_start=False, session_expiry=SESSION
        )
        await asyncio.wrap_future(local.connected)
        for each in self._outward:
            await asyncio.wrap_future(
                local.subscribe(
                    each.topic_filter, qos=each.qos, no_local=True, retain_as_published=True
                )
            )

    async def _pump(self) -> None:
        assert self._local is not None
        while True:
            message = await self._local.arecv()
            for each in self._outward:
                if matches(message.topic, each.topic_filter):
                    topic = each.prefix + message.topic
                    await self._send(message, topic, min(each.qos, message.qos))
                    break
            if self._writer is not None:
                await self._writer.drain()

    async def _send(self, message: Message, topic: str, qos: int) -> None:
        packet_id = 0
        if qos:
            while len(self._inflight) >= self._window:
                self._has_room.clear()
                await self._has_room.wait()
            packet_id = next(each for each in self._ids if each not in self._inflight)
        packet = Publish(
            topic,
            message.payload,
            qos,
            message.retain,
            packet_id=packet_id,
            properties=self._said(_carried(message.properties)),
        )
        if qos:
            self._inflight[packet_id] = packet
        self.sent += 1
        self._say(packet)

    # --- from the remote broker ---

    def _take(self, packet: Packet) -> None:
        match packet:
            case Publish():
                self._take_publish(packet)
            case PubRec(packet_id=packet_id) if packet.reason_code < 0x80:
                if packet_id in self._inflight:
                    self._inflight[packet_id] = None
                self._say(PubRel(packet_id))
            case PubAck() | PubComp() | PubRec():
                self._inflight.pop(packet.packet_id, None)
                self._has_room.set()
            case PubRel(packet_id=packet_id):
                self._received.discard(packet_id)
                self._say(PubComp(packet_id))
            case Disconnect(reason_code=code):
                raise LinkClosed(reason_text(code))

    def _take_publish(self, packet: Publish) -> None:
        each = next(
            (each for each in self._inward if matches(packet.topic, each.topic_filter)), None
        )
        if each is None or packet.packet_id in self._received:
            self._acknowledge(packet)
            return
        if packet.qos == 2:
            self._received.add(packet.packet_id)
        local = self._local
        assert local is not None
        message = Message(
            each.prefix + packet.topic,
            packet.payload,
            packet.qos,
            packet.retain,
            _carried(packet.properties),
        )
        (future,) = local.publish_all([message])
        self.brought += 1
        if packet.qos:
            future.add_done_callback(self._acknowledger(packet))

    def _acknowledger(self, packet: Publish) -> Callable[["Future[tuple[int, ...]]"], None]:
        def done(_: "Future[tuple[int, ...]]") -> None:
            self._acknowledge(packet)

        return done

    def _acknowledge(self, packet: Publish) -> None:
        if packet.qos == 1:
            self._say(PubAck(packet.packet_id))
        elif packet.qos == 2:
            self._say(PubRec(packet.packet_id))


def _carried(properties: Properties | None) -> Properties:
    if properties is None:
        return Properties()
    return replace(properties, topic_alias=None, subscription_identifiers=())


async def _chunk(reader: asyncio.StreamReader, network: Network) -> bytes:
    if network.is_full:
        return network.receive(b"")
    data = await reader.read(65_536)
    if not data:
        msg = "it closed the connection"
        raise LinkClosed(msg)
    return network.receive(data)
