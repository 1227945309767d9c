"""A bridge: carries messages between a router and a remote broker, as a client of each.

A message is acknowledged to the side that it comes from when the other side has acknowledged
it; see `bridge_relay`. The bridge is a client of the router from the start of the router, with
a lasting session: messages to a broker that is unreachable wait there, and in the journal.

To avoid loops, the bridge subscribes on both sides without its own messages (*no local*). MQTT
3.1.1 lacks that option, so with it a topic may be carried in one direction only.
"""

import asyncio
import hashlib
import logging
import os
import secrets
import socket
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import closing, suppress
from dataclasses import field, replace
from pathlib import Path
from typing import Final, Literal

import callboard.mqtt.wire.packet as packets
from callboard.backoff import Backoff
from callboard.kernel.errors import TlsError
from callboard.mqtt.router.link import UNSCHEDULE, Disconnected, RouterLink, RouterMailbox
from callboard.mqtt.service.bridge_relay import (
    WINDOW,
    BridgeFigures,
    BridgeRelay,
    BridgeTopics,
    RemoteLimits,
)
from callboard.mqtt.wire.codec import decode_all, decode_packet, encode
from callboard.mqtt.wire.errors import LinkClosed, ListenError, Refused, RemoteMqttError
from callboard.mqtt.wire.framing import Deframer, split_packets
from callboard.mqtt.wire.packet import V4, V5, Packet, Publish
from callboard.mqtt.wire.properties import NO_PROPERTIES, Properties
from callboard.mqtt.wire.reason_code import reason_text
from callboard.mqtt.wire.topic import overlap
from callboard.support import after_fork
from callboard.support.dataclass import dataclass
from callboard.support.redaction import redacted
from callboard.support.token_bucket import TokenBucket
from callboard.tls.certificates import CERTIFICATE_POLL_SECONDS, Certificates
from callboard.tls.contexts import Tls

_log: Final = logging.getLogger(__name__)
#: Seconds that messages wait in the router for an unreachable broker.
SESSION: Final = 7 * 86_400
#: The longest pause between attempts to connect, in seconds.
LONGEST_DELAY: Final = 60.0
#: Seconds within which either broker must answer.
CONNECT_TIMEOUT: Final = 10.0
#: Seconds for the shutdown of a bridge.
LAST_WORDS: Final = 2.0
#: Seconds of these for the remote broker to close its connection.
FAREWELL: Final = 1.0
#: Seconds between two publications of the counts.
FIGURES_INTERVAL: Final = 10.0
#: Log lines per second about single messages.
NOTES_PER_SECOND: Final = 1.0
#: The client id of bridges without one, in release 0.1.
FORMER_CLIENT_ID: Final = "callboard-bridge"
#: Identifiers of our SUBSCRIBEs; acknowledgements of messages have other packet types.
_SUBSCRIBE_ID: Final = 1


@dataclass(frozen=True, slots=True)
class BridgeSettings:
    """The settings of one bridge.

    Attributes:
        address: the address of the remote broker: `HOST:PORT` or `tls://HOST:PORT`.
        topics: the filters that are carried.
        client_id: the client id on the remote broker; if it is empty, it comes from the names
            of router and host, the journal's folder and the address.
        username: the user name on the remote broker.
        password: the password on the remote broker.
        tls: TLS for `tls://`; with a certificate if the remote broker requires one.
        version: the version of MQTT that the remote broker speaks: `5` or `3.1.1`. The latter
            has no properties and no *no local*, so a topic can be carried in one direction
            only.
        keep_alive: seconds between pings.
        reconnect_delay: seconds between attempts to connect; doubled after each, up to a
            minute.
        fallbacks: further addresses of the same kind, tried in order when `address` is
            unreachable.
        retain: whether messages to the remote broker keep the flag *retain*.
        packet_size: bytes of the largest packet to the remote broker; None for its own limit.
        notifications: whether `$SYS/broker/connection/CLIENT-ID/state` and topics beside it
            tell the state and the counts of the bridge.
    """

    address: str
    topics: tuple[BridgeTopics, ...] = ()
    client_id: str = ""
    username: str | None = None
    password: bytes | None = field(default=None, repr=False)
    tls: Tls | None = None
    version: Literal["5", "3.1.1"] = "5"
    keep_alive: int = 60
    reconnect_delay: float = 1.0
    fallbacks: tuple[str, ...] = ()
    notifications: bool = True
    retain: bool = True
    packet_size: int | None = None

    def parse(self, address: str | None = None) -> tuple[str, int, bool]:
        """Return host, port, and whether TLS is used, of `address` or the first one.

        Raises:
            ListenError: the address is malformed, or messages would loop.
        """
        if address is None:
            if any(topic.direction == "both" and topic.prefix for topic in self.topics):
                message = (
                    "a bridge topic of both directions takes local_prefix and remote_prefix"
                )
                raise ListenError(message)
            self._refuse_rounds()
            for fallback in self.fallbacks:
                self.parse(fallback)
            address = self.address
        scheme, colon, rest = address.rpartition("://")
        host, _, port = rest.rpartition(":")
        is_scheme = not colon or scheme in {"tcp", "tls"}
        is_port = port.isdecimal() and len(port) <= 5 and 0 < int(port) <= 65_535
        if not is_scheme or not host or not is_port:
            message = f"{redacted(address)!r} is not a broker address; write HOST:PORT or tls://HOST:PORT"
            raise ListenError(message)
        return host.strip("[]"), int(port), scheme == "tls"

    def _refuse_rounds(self) -> None:
        """Refuse topics for which a broker of 3.1.1 would return the bridge's own messages."""
        if self.version == "5":
            return
        routes = [route for topic in self.topics for route in topic.routes()]
        inward = [route.source for route in routes if not route.is_outward]
        outward = [route.target for route in routes if route.is_outward]
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


def default_client_id(
    name: str, journal: "Path | str | os.PathLike[str] | None", address: str
) -> str:
    """Return a client id for a bridge without one, the same after a restart.

    Args:
        name: the name of the router.
        journal: the folder of its journal; None for a router that forgets everything.
        address: the address of the remote broker.
    """
    place = secrets.token_hex(8) if journal is None else str(Path(journal).resolve())
    digest = hashlib.sha256(f"{place} {address}".encode()).hexdigest()[:8]
    return f"{name}-{socket.gethostname()}-{digest}"


def session_name(client_id: str) -> str:
    """Return the client id of a bridge at its own router."""
    return f"$bridge-{client_id}"


class BridgeConnection:
    """A running bridge, on the router's loop.

    It reads and writes packets in coroutines, on a connection of asyncio. A dial of
    `callboard.kernel.wire` has one address; a bridge tries its addresses in turn, with one
    pause of its `Backoff` for each round.

    Attributes:
        settings: the settings of the bridge, with its client id.
        is_connected: whether the remote broker has accepted the connection.
    """

    def __init__(
        self,
        mailbox: RouterMailbox,
        settings: BridgeSettings,
        report: Callable[[object], object],
        backlog: Callable[[], int] = int,
    ) -> None:
        """Create a bridge; `run` runs it.

        Args:
            mailbox: the mailbox of the router.
            settings: the settings of the bridge, with a client id.
            report: receives events of the TLS certificates.
            backlog: returns how many messages for the bridge the router has not sent it.
        """
        self._mailbox, self.settings, self._report = mailbox, settings, report
        self._backlog = backlog
        self.is_connected = False
        self._version = V5 if settings.version == "5" else V4
        self._relay = self._new_relay()
        self._figures = BridgeFigures()
        self._link: RouterLink | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Done when the router has accepted the link; its result is whether it had a session.
        self._joined: asyncio.Future[bool] | None = None
        #: Done when the router has ended the link.
        self._parted: asyncio.Future[str] | None = None
        #: Whether retained messages of the router are on their way to the remote broker.
        self._has_retained = False
        #: Set while the router is paused until its earlier output is written.
        self._owes_ready = asyncio.Event()
        self._keep_alive = settings.keep_alive
        self._writer: asyncio.StreamWriter | None = None
        self._reader: asyncio.StreamReader | None = None
        self._certificates: Certificates | None = None
        self._heard = 0.0
        self._attempt = 0
        self._notes = TokenBucket(NOTES_PER_SECOND)

    @property
    def figures(self) -> BridgeFigures:
        """The counts of this bridge."""
        return self._relay.figures

    @property
    def received(self) -> int:
        """Number of messages from the remote broker."""
        return self.figures.received

    @property
    def sent(self) -> int:
        """Number of messages to the remote broker, without resent ones."""
        return self.figures.sent

    @property
    def waiting(self) -> int:
        """Number of messages of the router that the remote broker has not acknowledged."""
        return self._relay.waiting + self._backlog()

    async def run(self) -> None:
        """Join the router again after every loss of its link, until cancelled."""
        try:
            while True:
                try:
                    reason = await self._serve()
                    _log.warning("the bridge to %s: %s", self.settings.address, reason)
                except (LinkClosed, TimeoutError) as error:
                    text = str(error) or "the router does not answer"
                    _log.warning("the bridge to %s: %s", self.settings.address, text)
                except Exception:  # noqa: BLE001  # a defect must not end the bridge silently
                    _log.exception("the bridge to %s has failed", self.settings.address)
                self._leave_router()
                await asyncio.sleep(self.settings.reconnect_delay)
        finally:
            self._publish_state("0")
            self._leave_router()

    async def _serve(self) -> str:
        """Carry messages over one link with the router; return the reason of its end."""
        await self._join_router()
        assert self._parted is not None
        remote = asyncio.ensure_future(self._serve_remote())
        try:
            await asyncio.wait((remote, self._parted), return_when=asyncio.FIRST_COMPLETED)
        finally:
            remote.cancel()
            await asyncio.gather(remote, return_exceptions=True)
        if not self._parted.done():
            await remote  # raises
        return self._parted.result()

    @staticmethod
    def ended(running: "Future[None]") -> None:
        """Cancel `run`, and wait until both connections are closed."""
        running.cancel()
        wait([running], LAST_WORDS)

    def _new_relay(self) -> BridgeRelay:
        """Return a relay for a new link with the router."""
        settings = self.settings
        return BridgeRelay(
            settings.topics,
            self._version,
            retains=settings.retain,
            packet_size=settings.packet_size,
        )

    # --- the router ---

    async def _join_router(self) -> None:
        """Become a client of the router, and subscribe the filters of direction `out`."""
        loop = self._loop = asyncio.get_running_loop()
        figures, self._relay = self._relay.figures, self._new_relay()
        self._relay.figures = figures  # of all connections
        self._joined, self._parted = loop.create_future(), loop.create_future()
        properties = Properties(session_expiry_interval=SESSION, receive_maximum=WINDOW)
        connect = packets.Connect(
            session_name(self.settings.client_id),
            clean_start=False,
            version=V5,
            properties=properties,
        )
        self._link = RouterLink(self._mailbox, connect, self._wake, peer="local", is_local=True)
        self._link.begin()
        async with asyncio.timeout(CONNECT_TIMEOUT):
            had_session = await self._joined
        self._has_retained = not had_session
        self._subscribe_at_router(only_new=True)
        self._publish_state("0")

    def _subscribe_at_router(self, *, only_new: bool) -> None:
        """Subscribe the filters of direction `out`.

        Args:
            only_new: whether only filters without a subscription get retained messages.
        """
        subscriptions = tuple(
            packets.Subscription(
                route.source,
                route.qos,
                no_local=True,
                retain_as_published=True,
                retain_handling=int(only_new),
            )
            for topic in self.settings.topics
            for route in topic.routes()
            if route.is_outward
        )
        if subscriptions:
            self._push(packets.Subscribe(_SUBSCRIBE_ID, subscriptions))

    def _wake(self) -> None:
        """Schedule the router's output on the loop; called on the router's thread."""
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._from_router)

    def _from_router(self) -> None:
        """Process the router's output."""
        if self._link is None:
            return
        for notification in self._link.take():
            if isinstance(notification, bytes):
                for data in split_packets(notification):
                    if not self._relay.pass_through(data):
                        self._take(decode_packet(data, V5))
            elif notification is UNSCHEDULE:
                self._owes_ready.set()
            elif isinstance(notification, Disconnected):
                text = notification.text or reason_text(notification.reason_code)
                self._part(f"the router ended its link: {text}")
        self._flush()

    def _take(self, packet: Packet) -> None:
        """Process a packet of the router."""
        if isinstance(packet, packets.ConnAck):
            assert self._joined is not None
            if packet.reason_code:
                self._part(f"the router refused its link: {reason_text(packet.reason_code)}")
            elif not self._joined.done():
                self._joined.set_result(packet.session_present)
        else:
            self._relay.from_router(packet)

    def _part(self, reason: str) -> None:
        """Handle the end of the link with the router."""
        if self._joined is not None and not self._joined.done():
            self._joined.set_exception(LinkClosed(reason))
        if self._parted is not None and not self._parted.done():
            self._parted.set_result(reason)

    def _leave_router(self) -> None:
        """Disconnect from the router; its session remains."""
        if self._link is not None:
            self._push(packets.Disconnect())
            self._link = None

    def _push(self, *sent: Packet) -> None:
        """Send packets to the router."""
        if self._link is not None and sent:
            self._link.push(b"".join(encode(packet, V5) for packet in sent))

    def _publish_state(self, state: str) -> None:
        """Publish whether the remote broker is connected, as mosquitto does."""
        if self.settings.notifications:
            self._push(self._status("state", state))

    def _status(self, name: str, text: str) -> Publish:
        """Return a retained message on the state of this bridge."""
        topic = f"$SYS/broker/connection/{self.settings.client_id}/{name}"
        return Publish(topic, text.encode(), retain=True, properties=NO_PROPERTIES)

    # --- the remote broker ---

    async def _serve_remote(self) -> None:
        """Connect again after every loss, until cancelled."""
        backoff = Backoff(self.settings.reconnect_delay, LONGEST_DELAY)
        addresses = (self.settings.address, *self.settings.fallbacks)
        while True:
            address = addresses[self._attempt % len(addresses)]
            try:
                await self._session(address)
            except (OSError, RemoteMqttError, LinkClosed, Refused, TlsError) as error:
                _log.warning("the bridge to %s is down: %s", address, error)
            finally:
                was_connected = self.is_connected
                await self._hang_up()
            if was_connected:
                backoff.reset()
            self._attempt += 1
            if self._attempt % len(addresses) == 0 or was_connected:
                self._attempt = 0  # the first address is the preferred one
                await asyncio.sleep(backoff.next_pause(None))

    async def _hang_up(self) -> None:
        """Close the remote connection after a DISCONNECT.

        If unread data were left, closing would reset the connection, and the broker might not
        see the DISCONNECT. So everything is read until the broker closes, as the standard
        demands.
        """
        self.is_connected = False
        self._relay.remote_closed()
        self._publish_state("0")
        self._report_ready()
        writer, self._writer = self._writer, None
        if writer is None:
            return
        with (
            closing(writer),
            suppress(OSError),
        ):  # the connection is lost, or the broker does not close
            writer.write(encode(packets.Disconnect(), self._version))
            async with asyncio.timeout(FAREWELL):
                while self._reader is not None and await self._reader.read(65_536):
                    pass

    async def _session(self, address: str) -> None:
        """Carry messages over one connection until it ends."""
        host, port, is_tls = self.settings.parse(address)
        certificates = self._certificates
        if is_tls and certificates is None:
            certificates = Certificates(self.settings.tls or Tls(), self._report)
            self._certificates = certificates
        context = certificates.dialing() if is_tls and certificates is not None else None
        network = Deframer()
        async with asyncio.timeout(CONNECT_TIMEOUT):
            self._reader, self._writer = await asyncio.open_connection(host, port, ssl=context)
            after_fork.register(self._writer, _drop_copy)
            reader = self._reader
            if context is not None and certificates is not None:
                certificates.follow(self, self._writer.get_extra_info("ssl_object"))
            self._writer.write(encode(self._hello(), self._version))
            early = await self._greet(reader, network)
        for packet in early:
            self._receive(packet)
        self._flush()
        tasks = [
            asyncio.ensure_future(work)
            for work in (
                self._read(reader, network),
                self._ping(),
                self._drain(),
                self._check_certificates(),
                self._publish_figures(),
            )
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _hello(self) -> packets.Connect:
        """Return the CONNECT for the remote broker."""
        settings, properties = self.settings, None
        if self._version == V5:
            properties = Properties(session_expiry_interval=SESSION, receive_maximum=WINDOW)
        rest = settings.client_id, False, settings.keep_alive, settings.username
        version = self._version
        return packets.Connect(*rest, settings.password, version=version, properties=properties)

    async def _greet(self, reader: asyncio.StreamReader, network: Deframer) -> list[Packet]:
        """Wait for the CONNACK; return the packets that arrived after it."""
        arrived: list[Packet] = []
        while not arrived:
            arrived = decode_all(await _chunk(reader, network), self._version)
        greeting = arrived[0]
        if not isinstance(greeting, packets.ConnAck):
            message = f"the first packet was a {type(greeting).__name__}, not a CONNACK"
            raise LinkClosed(message)
        if greeting.reason_code:
            raise Refused(reason_text(greeting.reason_code), greeting.reason_code)
        properties = greeting.properties or NO_PROPERTIES
        self._keep_alive = self.settings.keep_alive
        if properties.server_keep_alive is not None:
            self._keep_alive = properties.server_keep_alive
        self._relay.remote_opened(
            RemoteLimits.of(greeting), session_present=greeting.session_present
        )
        self._relay.subscribe(_SUBSCRIBE_ID)
        if not greeting.session_present and not self._has_retained:
            self._subscribe_at_router(only_new=False)  # it may have lost retained messages, too
        self._has_retained = False
        self.is_connected = True
        self._heard = asyncio.get_running_loop().time()
        self._publish_state("1")
        return arrived[1:]

    async def _read(self, reader: asyncio.StreamReader, network: Deframer) -> None:
        """Process packets from the remote broker."""
        while True:
            for packet in decode_all(await _chunk(reader, network), self._version):
                self._receive(packet)
            self._flush()
            self._heard = asyncio.get_running_loop().time()

    def _receive(self, packet: Packet) -> None:
        """Process a packet from the remote broker."""
        if isinstance(packet, packets.Disconnect):
            raise LinkClosed(reason_text(packet.reason_code))
        self._relay.from_remote(packet)

    async def _ping(self) -> None:
        """Send pings, and end the connection if the remote broker is silent."""
        while self._keep_alive:
            await asyncio.sleep(self._keep_alive / 2)
            silence = asyncio.get_running_loop().time() - self._heard
            if silence > 1.5 * self._keep_alive:
                message = f"the broker has sent nothing for {silence:.0f} s"
                raise LinkClosed(message)
            self._relay.say(packets.PingReq())
            self._flush()

    async def _drain(self) -> None:
        """Resume the router after the remote broker has read the written bytes."""
        while self._writer is not None:
            await self._owes_ready.wait()
            await self._writer.drain()
            self._report_ready()

    async def _check_certificates(self) -> None:
        """Check the TLS files for changes once a second."""
        while self._certificates is not None:
            await asyncio.sleep(CERTIFICATE_POLL_SECONDS)
            self._certificates.check()

    async def _publish_figures(self) -> None:
        """Publish the counts that have changed."""
        while self.settings.notifications:
            figures = replace(self.figures)
            for name in ("sent", "received", "dropped", "refused", "lost"):
                value = getattr(figures, name)
                if value != getattr(self._figures, name):
                    self._push(self._status(name, str(value)))
            self._push(self._status("waiting", str(self.waiting)))
            self._figures = figures
            await asyncio.sleep(FIGURES_INTERVAL)

    def end(self, reason: str) -> None:
        """End the connection, because the remote broker's certificate was revoked."""
        _log.warning("the bridge to %s ends: %s", self.settings.address, reason)
        if self._writer is not None:
            self._writer.transport.abort()

    # --- output ---

    def _flush(self) -> None:
        """Write the relay's packets to both sides, and its notes to the log."""
        relay = self._relay
        if relay.to_router:
            sent, relay.to_router = relay.to_router, []
            self._push(*sent)
        data = relay.take_remote()
        if data and self._writer is not None:
            self._writer.write(data)
        notes, relay.notes = relay.notes, []
        for note in notes:
            if self._notes.allows(asyncio.get_running_loop().time()):
                _log.warning("the bridge to %s: %s", self.settings.address, note)
        if notes and self.settings.notifications:
            self._push(self._status("problem", notes[-1]))
        if not self.is_connected:
            self._report_ready()

    def _report_ready(self) -> None:
        """Resume the router after it has filled the buffer of the link."""
        if self._owes_ready.is_set() and self._link is not None:
            self._owes_ready.clear()
            self._link.ready()


async def _chunk(reader: asyncio.StreamReader, network: Deframer) -> bytes:
    """Read whole packets."""
    if network.is_full:
        return network.receive(b"")
    data = await reader.read(65_536)
    if not data:
        message = "the broker closed the connection"
        raise LinkClosed(message)
    return network.receive(data)


def _drop_copy(writer: asyncio.StreamWriter) -> None:
    """Close the socket of a connection in a forked process."""
    after_fork.drop(writer.get_extra_info("socket"))
