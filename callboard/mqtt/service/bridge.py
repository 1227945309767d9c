"""A bridge: carries messages between a router and a remote broker, as a client of each.

A message from the remote broker is acknowledged there when the local router has it. Messages to
the broker wait in the router, in the session of the bridge's local link, while the broker is
unreachable. Unacknowledged messages are sent again, so they arrive at least once as long as
this process runs.

To avoid loops, the bridge subscribes on both sides without its own messages (*no local*). MQTT
3.1.1 lacks that option, so with it a topic may be carried in one direction only.
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
from callboard.mqtt.router.link import RouterMailbox
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
#: Seconds that messages wait in the router for an unreachable broker.
SESSION: Final = 7 * 86_400
#: The longest pause between attempts to connect, in seconds.
LONGEST_DELAY: Final = 60.0
#: Seconds within which the remote broker must answer.
CONNECT_TIMEOUT: Final = 10.0
#: Seconds for the shutdown of a bridge.
LAST_WORDS: Final = 2.0
#: Seconds of these for the remote broker to close its connection.
FAREWELL: Final = 1.0
#: Unacknowledged messages to the remote broker, unless it allows fewer.
WINDOW: Final = 100


@dataclass(frozen=True, slots=True)
class BridgeTopics:
    """One topic filter whose messages are carried.

    Attributes:
        topic_filter: the filter on the side where messages are subscribed.
        direction: `in`: from the remote broker; `out`: to it.
        qos: the highest QoS that messages are carried with.
        prefix: added to topics on the side where messages are published.
    """

    topic_filter: str
    direction: str = "in"
    qos: int = 1
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class BridgeSettings:
    """The settings of one bridge.

    Attributes:
        address: the address of the remote broker: `HOST:PORT` or `tls://HOST:PORT`.
        topics: the filters that are carried.
        client_id: the client id on the remote broker.
        username: the user name on the remote broker.
        password: the password on the remote broker.
        tls: TLS for `tls://`; with a certificate if the remote broker requires one.
        version: the version of MQTT that the remote broker speaks: `5` or `3.1.1`. The latter
            has no properties and no *no local*, so a topic can be carried in one direction
            only.
        keep_alive: seconds between pings.
        reconnect_delay: seconds between attempts to connect; doubled after each, up to a
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
        """Return host, port, and whether TLS is used.

        Raises:
            ListenError: the address is malformed, or messages would loop.
        """
        self._refuse_rounds()
        scheme, colon, rest = self.address.rpartition("://")
        host, _, port = rest.rpartition(":")
        is_scheme = not colon or scheme in {"tcp", "tls"}
        is_port = port.isdecimal() and len(port) <= 5 and 0 < int(port) <= 65_535
        if not is_scheme or not host or not is_port:
            message = f"{redacted(self.address)!r} is not a broker address; write HOST:PORT or tls://HOST:PORT"
            raise ListenError(message)
        return host.strip("[]"), int(port), scheme == "tls"

    def _refuse_rounds(self) -> None:
        """Refuse topics for which a broker of 3.1.1 would return the bridge's own messages."""
        if self.version == "5":
            return
        inward = [topic.topic_filter for topic in self.topics if topic.direction == "in"]
        outward = [e.prefix + e.topic_filter for e in self.topics if e.direction == "out"]
        for target in outward:
            for topic_filter in inward:
                if overlap(target, topic_filter):
                    message = (
                        f"the bridge to {redacted(self.address)}"
                        f" would receive its own messages to {target} "
                        f"from {topic_filter}: MQTT 3.1.1 cannot exclude them; choose other "
                        "prefixes"
                    )
                    raise ListenError(message)


@dataclass(eq=False, repr=False)
class BridgeConnection:
    """A running bridge, on the router's loop.

    Attributes:
        settings: the settings of the bridge.
        is_connected: whether the remote broker has accepted the connection.
        brought: number of messages from the broker.
        sent: number of messages to the broker, without resent ones.
    """

    _mailbox: RouterMailbox
    settings: BridgeSettings
    #: Receives events of the TLS certificates.
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
        self._outward = [topic for topic in topics if topic.direction == "out"]
        self._inward = [topic for topic in topics if topic.direction == "in"]
        self._client: ClientProtocol[Publish] = ClientProtocol(version)
        self._has_room = asyncio.Event()

    async def run(self) -> None:
        """Connect again after every loss, until cancelled."""
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
        """Close both connections, the remote one after a DISCONNECT.

        If unread data were left, closing would reset the connection, and the broker might not
        see the DISCONNECT. So everything is read until the broker closes, as the standard
        demands.
        """
        self.is_connected = False
        if self._local is not None:
            self._local.close()
            self._local = None
        writer, self._writer = self._writer, None
        if writer is None:
            return
        with (
            closing(writer),
            suppress(OSError),
        ):  # the connection is lost, or the broker does not close
            writer.write(encode(packets.Disconnect(), self._client.version))
            async with asyncio.timeout(FAREWELL):
                while self._reader is not None and await self._reader.read(65_536):
                    pass

    # --- one connection ---

    async def _session(self) -> None:
        """Carry messages over one connection until it ends."""
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
        settings = self.settings
        properties = self._allowed_properties(Properties(session_expiry_interval=SESSION))
        rest = settings.client_id, False, settings.keep_alive, settings.username
        version = self._client.version
        return packets.Connect(*rest, settings.password, version=version, properties=properties)

    def _allowed_properties(self, properties: Properties) -> Properties | None:
        """Return the properties if the version of MQTT has them."""
        return properties if self._client.version == V5 else None

    async def _greet(self, reader: asyncio.StreamReader, network: Deframer) -> list[Packet]:
        """Wait for the CONNACK; return the packets that arrived after it."""
        packets_in: list[Packet] = []
        while not packets_in:
            packets_in = decode_all(await _chunk(reader, network), self._client.version)
        greeting = packets_in[0]
        if not isinstance(greeting, packets.ConnAck):
            message = f"the first packet was a {type(greeting).__name__}, not a CONNACK"
            raise LinkClosed(message)
        if greeting.reason_code:
            raise Refused(reason_text(greeting.reason_code), greeting.reason_code)
        allowed = greeting.properties and greeting.properties.receive_maximum
        self._window = min(WINDOW, allowed or WINDOW)
        if not greeting.session_present:
            self._client.begin_anew()
        self.is_connected = True
        self._heard = asyncio.get_running_loop().time()
        return packets_in[1:]

    def _resume(self) -> None:
        """Send unacknowledged messages again."""
        client = self._client
        for packet_id, packet in client.inflight.items():
            is_received = packet_id in client.released
            self._say(packets.PubRel(packet_id) if is_received else replace(packet, dup=True))

    def _subscribe_there(self) -> None:
        """Subscribe the filters of direction `in` at the remote broker."""
        is_v5 = self._client.version == V5  # no local, retain as published
        if self._inward:
            subscriptions = tuple(
                packets.Subscription(topic.topic_filter, topic.qos, is_v5, is_v5)
                for topic in self._inward
            )
            self._say(packets.Subscribe(self._client.next_id(), subscriptions))

    async def _read(self, reader: asyncio.StreamReader, network: Deframer) -> None:
        """Process packets from the remote broker."""
        while True:
            for packet in decode_all(await _chunk(reader, network), self._client.version):
                self._take(packet)
            self._heard = asyncio.get_running_loop().time()

    async def _ping(self) -> None:
        """Send pings, and end the connection if the remote broker is silent."""
        while True:
            await asyncio.sleep(self.settings.keep_alive / 2)
            silence = asyncio.get_running_loop().time() - self._heard
            if silence > 1.5 * self.settings.keep_alive:
                message = f"the broker was silent for {silence:.0f} s"
                raise LinkClosed(message)
            self._say(packets.PingReq())

    async def _look(self) -> None:
        """Check the TLS files for changes once a second."""
        while self._certificates is not None:
            await asyncio.sleep(LOOK_INTERVAL)
            self._certificates.look()

    def end(self, reason: str) -> None:
        """End the connection, because the remote broker's certificate was revoked."""
        _log.warning("the bridge to %s ends: %s", self.settings.address, reason)
        if self._writer is not None:
            self._writer.transport.abort()

    def _say(self, *following: Packet) -> None:
        """Write pending acknowledgements, then some packets."""
        for packet in following:
            self._client.say(packet)
        data = self._client.take_answers()
        if self._writer is not None and data:
            self._writer.write(data)

    # --- to the remote broker ---

    async def _open_local(self) -> None:
        """Connect to the local router, and subscribe the filters of direction `out`."""
        name = f"$bridge-{self.settings.client_id}"
        local = self._local = LocalLink(
            self._mailbox, name, clean_start=False, session_expiry=SESSION
        )
        await asyncio.wrap_future(local.connected)
        for topic in self._outward:
            await asyncio.wrap_future(
                local.subscribe(
                    topic.topic_filter, qos=topic.qos, no_local=True, retain_as_published=True
                )
            )

    async def _pump(self) -> None:
        """Send messages of the router to the remote broker."""
        assert self._local is not None
        while True:
            message = await self._local.arecv()
            for topics in self._outward:
                if matches(message.topic, topics.topic_filter):
                    topic = topics.prefix + message.topic
                    await self._send(message, topic, min(topics.qos, message.qos))
                    break
            if self._writer is not None:
                await self._writer.drain()

    async def _send(self, message: Message, topic: str, qos: int) -> None:
        """Send one message to the remote broker, within the window."""
        properties = self._allowed_properties(_carried(message.properties))
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
        """Process a packet from the remote broker."""
        match self._client.take(packet):
            case Publish() as publish:
                self._bring(publish)
            case Settled():
                self._has_room.set()
            case packets.Disconnect(reason_code=code):
                raise LinkClosed(reason_text(code))
        self._say()

    def _bring(self, packet: Publish) -> None:
        """Publish a message from the remote broker locally, then acknowledge it there."""
        matching = (e for e in self._inward if matches(packet.topic, e.topic_filter))
        if (topics := next(matching, None)) is None:
            self._client.acknowledge(packet)
            return
        assert self._local is not None
        topic, properties = topics.prefix + packet.topic, _carried(packet.properties)
        message = replace(Message.of(packet), topic=topic, properties=properties)
        (future,) = self._local.publish_all([message])
        self.brought += 1

        def acknowledge(_: object) -> None:
            self._client.acknowledge(packet)
            self._say()

        if packet.qos:
            future.add_done_callback(acknowledge)


def _carried(properties: Properties | None) -> Properties:
    """Return the properties that a message keeps on the other side."""
    return replace(properties or NO_PROPERTIES, topic_alias=None, subscription_identifiers=())


async def _chunk(reader: asyncio.StreamReader, network: Deframer) -> bytes:
    """Read whole packets."""
    if network.is_full:
        return network.receive(b"")
    data = await reader.read(65_536)
    if not data:
        message = "the broker closed the connection"
        raise LinkClosed(message)
    return network.receive(data)


def _leave(writer: asyncio.StreamWriter) -> None:
    """Close the socket of a connection in a forked process."""
    after_fork.drop(writer.get_extra_info("socket"))
