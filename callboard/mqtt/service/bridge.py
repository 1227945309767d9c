"""A bridge: messages between a router and a remote broker, by a client of each.

What comes from the remote broker is acknowledged there when our router has it. What goes there
waits in the router, in the session of the bridge's local link, while the broker cannot be
reached; what was sent and not acknowledged is sent again, so it arrives at least once as long
as this process lives.

Nothing goes round: each side is asked for no messages that the bridge itself published. MQTT
3.1.1 cannot ask for that, so a bridge that speaks it carries nothing in that it carries out.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import closing, suppress
from dataclasses import field, replace
from typing import Final, Literal

import callboard.mqtt.wire.packet as packets
from callboard.kernel.backoff import Backoff
from callboard.kernel.errors import TlsError
from callboard.kernel.tls import LOOK_INTERVAL, Certificates, Tls
from callboard.mqtt.port.local_link import LocalLink
from callboard.mqtt.router.link import Mailbox
from callboard.mqtt.wire.client import ClientProtocol, Message, Settled
from callboard.mqtt.wire.codec import decode_all, encode
from callboard.mqtt.wire.errors import LinkClosed, ListenError, Refused, RemoteMqttError
from callboard.mqtt.wire.framing import Deframer
from callboard.mqtt.wire.packet import V4, V5, Packet, Publish
from callboard.mqtt.wire.properties import NO_PROPERTIES, Properties
from callboard.mqtt.wire.reason_code import reason_text
from callboard.mqtt.wire.topic import matches, overlap
from callboard.support import after_fork
from callboard.support.dataclass import dataclass
from callboard.support.redaction import redacted

_log: Final = logging.getLogger(__name__)
#: Seconds for which messages wait in the router for a broker that cannot be reached.
SESSION: Final = 7 * 86_400
#: Seconds between attempts to reach it, at most.
LONGEST_DELAY: Final = 60.0
#: Seconds in which the remote broker has to answer.
CONNECT_TIMEOUT: Final = 10.0
#: Seconds for the end of a bridge.
LAST_WORDS: Final = 2.0
#: Seconds of these that the remote broker has to close its connection.
FAREWELL: Final = 1.0
#: Messages sent to the remote broker and not acknowledged, unless it allows fewer.
WINDOW: Final = 100


@dataclass(frozen=True, slots=True)
class BridgeTopics:
    """One filter that is carried.

    Attributes:
        topic_filter: at the side that messages come from.
        direction: `in`: from the remote broker; `out`: to it.
        qos: the most that messages are carried with.
        prefix: is put before the topics at the side that messages go to.
    """

    topic_filter: str
    direction: str = "in"
    qos: int = 1
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class BridgeSettings:
    """One bridge.

    Attributes:
        address: of the remote broker: `HOST:PORT` or `tls://HOST:PORT`.
        topics: what is carried.
        client_id: there.
        username: there.
        password: there.
        tls: for `tls://`; with a certificate if the remote broker wants one.
        version: of MQTT that the remote broker speaks: `5`, or `3.1.1`, which has no properties
            and cannot be asked for no messages of our own; so what is carried out must not be
            among what is carried in.
        keep_alive: seconds between pings.
        reconnect_delay: seconds between attempts to reach it; twice as long after each, up to a
            minute.
    """

    address: str
    topics: tuple[BridgeTopics, ...] = ()
    client_id: str = "callboard-bridge"
    username: str | None = None
    password: bytes | None = field(default=None, repr=False)
    tls: Tls | None = None
    version: Literal["5", "3.1.1"] = "5"
    keep_alive: int = 60
    reconnect_delay: float = 1.0

    def parse(self) -> tuple[str, int, bool]:
        """Return host, port, and whether TLS is spoken.

        Raises:
            ListenError: the address has another form, or messages would go round.
        """
        self._refuse_rounds()
        scheme, colon, rest = self.address.rpartition("://")
        host, _, port = rest.rpartition(":")
        known = not colon or scheme in {"tcp", "tls"}
        is_port = port.isdecimal() and len(port) <= 5 and 0 < int(port) <= 65_535
        if not known or not host or not is_port:
            message = f"{redacted(self.address)!r} is no broker's address; write HOST:PORT or tls://HOST:PORT"
            raise ListenError(message)
        return host.strip("[]"), int(port), scheme == "tls"

    def _refuse_rounds(self) -> None:
        """Refuse topics that 3.1.1 would bring back as soon as they are sent."""
        if self.version == "5":
            return
        inward = [each.topic_filter for each in self.topics if each.direction == "in"]
        outward = [e.prefix + e.topic_filter for e in self.topics if e.direction == "out"]
        for sent in outward:
            for topic_filter in inward:
                if overlap(sent, topic_filter):
                    message = (
                        f"the bridge to {redacted(self.address)}"
                        f" would get what it sends to {sent} back "
                        f"from {topic_filter}: MQTT 3.1.1 cannot tell them apart; choose other "
                        "prefixes"
                    )
                    raise ListenError(message)


@dataclass(eq=False, repr=False)
class Bridge:
    """One bridge, on the router's loop.

    Attributes:
        settings: of the bridge.
        is_connected: whether the remote broker is there.
        brought: messages from it.
        sent: messages to it, second attempts not counted.
    """

    _mailbox: Mailbox
    settings: BridgeSettings
    #: Takes what becomes of its certificates.
    _report: Callable[[object], object]
    is_connected: bool = False
    brought: int = 0
    sent: int = 0
    _window: int = WINDOW
    _writer: asyncio.StreamWriter | None = None
    _certificates: Certificates | None = None
    _reader: asyncio.StreamReader | None = None
    _local: LocalLink | None = None
    _heard: float = 0.0

    def __post_init__(self) -> None:
        topics, version = self.settings.topics, V5 if self.settings.version == "5" else V4
        self._outward = [each for each in topics if each.direction == "out"]
        self._inward = [each for each in topics if each.direction == "in"]
        self._client: ClientProtocol[Publish] = ClientProtocol(version)
        self._has_room = asyncio.Event()

    async def run(self) -> None:
        """Connect again and again, until cancelled."""
        backoff = Backoff(self.settings.reconnect_delay, LONGEST_DELAY)
        while True:
            try:
                await self._session()
            except (OSError, RemoteMqttError, LinkClosed, Refused, TlsError) as error:
                _log.warning("the bridge to %s is down: %s", self.settings.address, error)
            finally:
                if self.is_connected:
                    backoff.reset()
                await self._hang_up()
            await asyncio.sleep(backoff.next_pause(None))

    @staticmethod
    def ended(running: "Future[None]") -> None:
        """Cancel `run`, and wait until both connections are closed."""
        running.cancel()
        wait([running], LAST_WORDS)

    async def _hang_up(self) -> None:
        """Close both connections, the remote one behind a DISCONNECT.

        A reset would overtake it if anything of the broker was not read: so that is read, until
        the broker closes the connection, as it has to.
        """
        self.is_connected = False
        if self._local is not None:
            self._local.close()
            self._local = None
        writer, self._writer = self._writer, None
        if writer is None:
            return
        with closing(writer), suppress(OSError):  # it is gone, or does not close
            writer.write(encode(packets.Disconnect(), self._client.version))
            async with asyncio.timeout(FAREWELL):
                while self._reader is not None and await self._reader.read(65_536):
                    pass

    # --- one connection ---

    async def _session(self) -> None:
        """Carry messages over one connection, until it ends."""
        host, port, is_tls = self.settings.parse()
        certificates = self._certificates
        if is_tls and certificates is None:
            certificates = Certificates(self.settings.tls or Tls(), self._report)
            self._certificates = certificates
        context = None if certificates is None else certificates.dialing()
        network = Deframer()
        async with asyncio.timeout(CONNECT_TIMEOUT):
            self._reader, self._writer = await asyncio.open_connection(host, port, ssl=context)
            after_fork.register(self._writer, _leave)
            reader = self._reader
            if certificates is not None:
                certificates.follow(self, self._writer.get_extra_info("ssl_object"))
            self._say(self._hello())
            early = await self._greet(reader, network)
        await self._open_local()
        self._resume()
        self._subscribe_there()
        for packet in early:
            self._take(packet)
        tasks = [
            asyncio.ensure_future(work)
            for work in (self._read(reader, network), self._ping(), self._pump(), self._look())
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _hello(self) -> packets.Connect:
        """Return the CONNECT for the remote broker."""
        settings, said = self.settings, self._said(Properties(session_expiry_interval=SESSION))
        about = settings.client_id, False, settings.keep_alive, settings.username
        version = self._client.version
        return packets.Connect(*about, settings.password, version=version, properties=said)

    def _said(self, properties: Properties) -> Properties | None:
        """Return properties as the remote broker can be told them."""
        return properties if self._client.version == V5 else None

    async def _greet(self, reader: asyncio.StreamReader, network: Deframer) -> list[Packet]:
        """Wait for the CONNACK; returns what came behind it."""
        found: list[Packet] = []
        while not found:
            found = decode_all(await _chunk(reader, network), self._client.version)
        greeting = found[0]
        if not isinstance(greeting, packets.ConnAck):
            message = f"it began with a {type(greeting).__name__}"
            raise LinkClosed(message)
        if greeting.reason_code:
            raise Refused(reason_text(greeting.reason_code), greeting.reason_code)
        allowed = greeting.properties and greeting.properties.receive_maximum
        self._window = min(WINDOW, allowed or WINDOW)
        if not greeting.session_present:
            self._client.begin_anew()
        self.is_connected = True
        self._heard = asyncio.get_running_loop().time()
        return found[1:]

    def _resume(self) -> None:
        """Send again what was not acknowledged."""
        client = self._client
        for packet_id, packet in client.inflight.items():
            is_there = packet_id in client.released
            self._say(packets.PubRel(packet_id) if is_there else replace(packet, dup=True))

    def _subscribe_there(self) -> None:
        """Ask the remote broker for what is carried in."""
        is_v5 = self._client.version == V5  # no local, retain as published
        if self._inward:
            wanted = tuple(
                packets.Subscription(each.topic_filter, each.qos, is_v5, is_v5)
                for each in self._inward
            )
            self._say(packets.Subscribe(self._client.next_id(), wanted))

    async def _read(self, reader: asyncio.StreamReader, network: Deframer) -> None:
        """Take what the remote broker sends."""
        while True:
            for packet in decode_all(await _chunk(reader, network), self._client.version):
                self._take(packet)
            self._heard = asyncio.get_running_loop().time()

    async def _ping(self) -> None:
        """Ping, and notice when the remote broker is silent."""
        while True:
            await asyncio.sleep(self.settings.keep_alive / 2)
            silence = asyncio.get_running_loop().time() - self._heard
            if silence > 1.5 * self.settings.keep_alive:
                message = f"nothing came for {silence:.0f} s"
                raise LinkClosed(message)
            self._say(packets.PingReq())

    async def _look(self) -> None:
        """Look at the files of TLS once a second."""
        while self._certificates is not None:
            await asyncio.sleep(LOOK_INTERVAL)
            self._certificates.look()

    def end(self, reason: str) -> None:
        """End the connection: the remote broker's certificate was revoked."""
        _log.warning("the bridge to %s ends: %s", self.settings.address, reason)
        if self._writer is not None:
            self._writer.transport.abort()

    def _say(self, *behind: Packet) -> None:
        """Write answers that are due, and packets behind them."""
        for packet in behind:
            self._client.say(packet)
        written = self._client.take_answers()
        if self._writer is not None and written:
            self._writer.write(written)

    # --- to the remote broker ---

    async def _open_local(self) -> None:
        """Connect to the router here, and subscribe what is carried out."""
        name = f"$bridge-{self.settings.client_id}"
        local = self._local = LocalLink(
            self._mailbox, name, clean_start=False, session_expiry=SESSION
        )
        await asyncio.wrap_future(local.connected)
        for each in self._outward:
            await asyncio.wrap_future(
                local.subscribe(
                    each.topic_filter, qos=each.qos, no_local=True, retain_as_published=True
                )
            )

    async def _pump(self) -> None:
        """Send messages of the router to the remote broker."""
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
        """Send one message there, within the window."""
        properties = self._said(_carried(message.properties))
        packet = replace(message, topic=topic, qos=qos, properties=properties).packet()
        if qos:
            while len(self._client.inflight) >= self._window:
                self._has_room.clear()
                await self._has_room.wait()
            packet = replace(packet, packet_id=self._client.next_id())
            self._client.inflight[packet.packet_id] = packet
        self.sent += 1
        self._say(packet)

    # --- from the remote broker ---

    def _take(self, packet: Packet) -> None:
        """Take a packet of the remote broker."""
        match self._client.take(packet):
            case Publish() as publish:
                self._bring(publish)
            case Settled():
                self._has_room.set()
            case packets.Disconnect(reason_code=code):
                raise LinkClosed(reason_text(code))
        self._say()

    def _bring(self, packet: Publish) -> None:
        """Publish a message of the remote broker here, then acknowledge it there."""
        matching = (e for e in self._inward if matches(packet.topic, e.topic_filter))
        if (each := next(matching, None)) is None:
            self._client.acknowledge(packet)
            return
        assert self._local is not None
        topic, said = each.prefix + packet.topic, _carried(packet.properties)
        message = replace(Message.of(packet), topic=topic, properties=said)
        (future,) = self._local.publish_all([message])
        self.brought += 1

        def acknowledge(_: object) -> None:
            self._client.acknowledge(packet)
            self._say()

        if packet.qos:
            future.add_done_callback(acknowledge)


def _carried(properties: Properties | None) -> Properties:
    """Return the properties that go along with a message."""
    return replace(properties or NO_PROPERTIES, topic_alias=None, subscription_identifiers=())


async def _chunk(reader: asyncio.StreamReader, network: Deframer) -> bytes:
    """Read whole packets."""
    if network.is_full:
        return network.receive(b"")
    data = await reader.read(65_536)
    if not data:
        message = "it closed the connection"
        raise LinkClosed(message)
    return network.receive(data)


def _leave(writer: asyncio.StreamWriter) -> None:
    """Drop a connection in a forked process."""
    after_fork.drop(writer.get_extra_info("socket"))
