"""MQTT clients on simulated machines; a history records their messages.

A client runs on the machine of a node and shares the faults of that machine. Like a real
client, it reconnects and repeats unacknowledged packets. It ends when its node is killed. The
guarantees of a router are checked against the acknowledgements that its clients got.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import field, replace
from typing import Any, Final

import callboard.mqtt.wire.packet as packets
from callboard.backoff import Backoff
from callboard.kernel.reply import Future
from callboard.mqtt.wire.client import ClientProtocol, Message, Settled
from callboard.mqtt.wire.codec import decode_all, encode
from callboard.mqtt.wire.errors import Refused
from callboard.mqtt.wire.framing import Deframer
from callboard.mqtt.wire.packet import V4, V5, Packet
from callboard.mqtt.wire.properties import Properties
from callboard.mqtt.wire.reason_code import ReasonCode, reason_text
from callboard.mqtt.wire.topic import matches, split_share
from callboard.node import Node
from callboard.simulation.history import History, Operation
from callboard.simulation.mqtt.port import SimulatedStream
from callboard.simulation.runner import runner_of
from callboard.support.dataclass import dataclass

#: The default port of a router.
PORT: Final = 1883

#: Seconds between connection attempts: the first pause, and the longest.
PAUSES: Final = 0.1, 2.0

#: Maximum unacknowledged packets, unless the router allows fewer.
WINDOW: Final = 20


@dataclass(frozen=True, slots=True)
class MqttOptions:
    """Connection options of a client.

    Attributes:
        port: port of the router.
        version: version of MQTT, `5` or `3.1.1`.
        session: session expiry in seconds; 0 starts a new session with each connection.
        keep_alive: keep-alive interval in seconds; 1.5 times as much silence ends a connection.
        will: message that the router publishes if a connection ends without a DISCONNECT; or
            a function that returns it for each connection, counted from 1.
        username: user name for routers that require one.
        password: password for the user name.
        reader: receiver of its messages in histories; members of a shared subscription must
            use the same one. The client's id by default.
    """

    port: int = PORT
    version: str = "5"
    session: int = 3600
    keep_alive: int = 4
    will: Message | Callable[[int], Message] | None = None
    username: str | None = None
    password: bytes | None = field(default=None, repr=False)
    reader: str = ""


@dataclass(slots=True, eq=False)
class _Unacknowledged:
    """A packet without an acknowledgement, with its future and its record in the history."""

    packet: Any
    future: Future[Any]
    operation: Operation | None = None


@dataclass(slots=True, eq=False)
class _RetainedLook:
    """A pending read of a retained message."""

    operation: Operation | None
    future: Future[bytes | None]
    value: bytes | None = None


class MqttClient:
    """A client of an MQTT router, on the machine of a simulated node.

    Attributes:
        client_id: client identifier of its session.
        is_connected: whether the router has accepted the current connection.
        is_reading: whether it reads from the connection.
        has_session: whether the router had its session at the last connection.
        messages: received messages, in order.
        connections: number of accepted connections.
    """

    def __init__(
        self,
        node: Node,
        client_id: str,
        router: Node,
        history: History | None = None,
        **options: Any,
    ) -> None:
        """Create a client. It connects when time advances, and reconnects after each loss.

        Args:
            node: a node on the machine of the client.
            client_id: client identifier of its session.
            router: a node on the machine of the router.
            history: records what it publishes and receives.
            options: fields of `MqttOptions`.
        """
        self.options = MqttOptions(**options)
        self.client_id = client_id
        self.is_connected = self.has_session = False
        self.is_reading = True
        self.messages: list[Message] = []
        self.connections = 0
        version = V5 if self.options.version == "5" else V4
        self._client: ClientProtocol[_Unacknowledged] = ClientProtocol(version)
        self._history = history
        self._runner = runner_of(node)
        self._address = runner_of(router).machine.host, self.options.port
        self._stream: SimulatedStream | None = None
        self._deframer = Deframer()
        self._backoff = Backoff(*PAUSES)
        self._waiting: deque[_Unacknowledged] = deque()
        self._filters: dict[str, int] = {}
        self._reads: dict[str, _RetainedLook] = {}
        self._probed_at: set[str] = set()
        self._pings: deque[list[str]] = deque()
        self._window = WINDOW
        self._heard = 0.0
        self._will: Operation | None = None
        self._wills = 0
        self._stays_away = False
        self._runner.on_death.append(self._died)
        self._runner.post(self._dial)

    def __repr__(self) -> str:
        """Return the client id."""
        return f"<MqttClient {self.client_id}>"

    # --- for tests ---

    def publish(
        self, topic: str, payload: bytes = b"", *, qos: int = 0, retain: bool = False
    ) -> Future[None]:
        """Publish a message when the client is connected; recorded as sent and confirmed.

        Returns:
            A future that is done when the message is acknowledged, or with QoS 0 when it is
            sent. It fails with `Refused` if the router refuses the message.
        """
        operation = self._record("send", topic, payload)
        return self._publish(Message(topic, payload, qos, retain), operation)

    def retain(self, topic: str, payload: bytes, *, qos: int = 2) -> Future[None]:
        """Publish a retained message, or clear it with an empty one; recorded as `write`."""
        operation = self._record("write", topic, payload or None)
        return self._publish(Message(topic, payload, qos, retain=True), operation)

    def retained(self, topic: str) -> Future[bytes | None]:
        """Read a retained message by a temporary subscription; recorded as `read`."""
        operation = self._record("read", topic, None)
        self._probed_at.add(topic)
        probe = self._reads[topic] = _RetainedLook(operation, Future())
        if self.is_connected:
            self._probe(topic)
        return probe.future

    def _record(self, name: str, topic: str, value: bytes | None) -> Operation | None:
        """Record the start of an operation, if there is a history."""
        if self._history is None:
            return None
        return self._history.begin(name, value, key=topic, client=self.client_id)

    def subscribe(self, topic_filter: str, *, qos: int = 0) -> Future[int]:
        """Subscribe; the future has the granted QoS, or fails with `Refused`.

        Messages are recorded as received, except messages retained before the subscription;
        these are only appended to `messages`.
        """
        self._filters[topic_filter] = qos
        return self._ask(_subscribe(topic_filter, qos, self._versioned(Properties())))

    def unsubscribe(self, topic_filter: str) -> Future[int]:
        """Remove a subscription."""
        self._filters.pop(topic_filter, None)
        packet = packets.Unsubscribe(0, (topic_filter,), self._versioned(Properties()))
        return self._ask(packet)

    def lose(self) -> None:
        """Lose the connection without a DISCONNECT; the client reconnects."""
        if self._stream is not None:
            self._stream.abort()

    def disconnect(self) -> None:
        """Send DISCONNECT, which discards the will, and stay offline until `connect`."""
        self._stays_away = True
        if self.is_connected and self._stream is not None:
            self._end_will("unknown")
            self._send(packets.Disconnect(0, self._versioned(Properties())))
            self._stream.close()

    def connect(self) -> None:
        """Reconnect after `disconnect`."""
        self._stays_away = False
        if self._stream is None:
            self._runner.post(self._dial)

    def stop_reading(self) -> None:
        """Stop reading from the router, like a program that hangs; pings are still sent.

        Publishing continues until the window of unacknowledged packets is full. While the
        client is not reading, it notices the end of a connection only when it writes.
        """
        self.is_reading = False
        if self._stream is not None:
            self._stream.pause()

    def read_on(self) -> None:
        """Resume reading, starting with everything that has arrived."""
        self.is_reading, self._heard = True, self._runner.now()
        if self._stream is not None:
            self._stream.resume()

    @property
    def is_idle(self) -> bool:
        """Whether it is connected and all its packets are acknowledged."""
        return self.is_connected and not (self._client.inflight or self._waiting or self._reads)

    # --- connections ---

    def _dial(self) -> None:
        """Start connecting, unless the client is connected, offline or ended."""
        if self._stream is not None or self._stays_away or self._runner.closed:
            return
        sock, _ = self._runner.machine.connect(self._address)
        self._deframer, self._heard = Deframer(), self._runner.now()
        stream = self._stream = SimulatedStream(self._runner, sock)
        stream.owner = self
        if self.is_reading:
            stream.resume()
        options = self.options
        connect = packets.Connect(
            self.client_id,
            not options.session,
            options.keep_alive,
            options.username,
            options.password,
            self._make_will(),
            self._client.version,
            self._versioned(Properties(session_expiry_interval=options.session)),
        )
        stream.write(encode(connect, self._client.version))
        self._runner.call_later(options.keep_alive / 2, self._check, stream)

    def _check(self, stream: SimulatedStream) -> None:
        """Send a ping; abort the connection if the router is silent."""
        if stream is self._stream:
            silence = self._runner.now() - self._heard
            if self.is_reading and silence > 1.5 * self.options.keep_alive:
                stream.abort()
                return
            if self.is_connected:
                self._ping([])
            self._runner.call_later(self.options.keep_alive / 2, self._check, stream)

    def _ping(self, topics: list[str]) -> None:
        """Send a ping; its answer completes the reads of these topics."""
        self._pings.append(topics)
        self._send(packets.PingReq())

    def _died(self) -> None:
        """End with the node; the router must publish the will."""
        self._end_will("answered" if self.is_connected else "unknown")
        self.is_connected = False

    def drained(self) -> None:
        """Do nothing: a client never waits for the write buffer."""

    def hang_up(self) -> None:
        """Close the connection, because the router has closed it."""
        if self._stream is not None:
            self._stream.abort()

    def lost(self) -> None:
        """Schedule a reconnection."""
        self._end_will("answered" if self.is_connected else "unknown")
        self.is_connected, self._stream = False, None
        self._pings.clear()
        self._client.take_answers()
        for probe in self._reads.values():
            probe.value = None
        self._runner.call_later(self._backoff.next_pause(self._runner.random), self._dial)

    # --- the will ---

    def _make_will(self) -> packets.Will | None:
        """Return the will of the next connection, and record it as possibly sent."""
        option = self.options.will
        self._wills += 1
        will = option(self._wills) if callable(option) else option
        if will is None:
            return None
        if self._history is not None and (callable(option) or self._wills == 1):
            reader = f"the will of {self.client_id}"
            self._will = self._history.sent(will.payload, key=will.topic, client=reader)
            if will.properties is not None and will.properties.will_delay_interval:
                self._end_will("unknown")  # a reconnection within the delay discards it
        fields = will.topic, will.payload, will.qos, will.retain
        return packets.Will(*fields, self._versioned(will.properties or Properties()))

    def _end_will(self, outcome: str) -> None:
        """Record the outcome of the will: `answered` if the router must publish it."""
        if self._will is not None and self._history is not None:
            getattr(self._history, outcome)(self._will)
        self._will = None

    # --- sending ---

    def _versioned(self, properties: Properties) -> Properties | None:
        """Return properties for MQTT 5, None for older versions."""
        return properties if self._client.version == V5 else None

    def _publish(self, message: Message, operation: Operation | None) -> Future[None]:
        """Queue a message to publish."""
        properties = message.properties or self._versioned(Properties())
        pending = _Unacknowledged(
            replace(message.packet(), properties=properties), Future(), operation
        )
        self._waiting.append(pending)
        self._runner.post(self._pump)
        return pending.future

    def _ask(self, packet: Packet) -> Future[int]:
        """Queue a packet; return a future for its answer."""
        pending = _Unacknowledged(packet, Future())
        self._waiting.append(pending)
        self._runner.post(self._pump)
        return pending.future

    def _pump(self) -> None:
        """Send queued packets, within the window."""
        while self.is_connected and self._waiting:
            if len(self._client.inflight) >= self._window:
                return
            pending = self._waiting.popleft()
            if getattr(pending.packet, "qos", 1):
                packet_id = self._client.expect(pending)
                pending.packet = replace(pending.packet, packet_id=packet_id)
            self._send(pending.packet)
            if not getattr(pending.packet, "qos", 1):
                self._settle(pending, None)

    def _send(self, *packets_to_send: Packet) -> None:
        """Send pending answers, then packets."""
        for packet in packets_to_send:
            self._client.say(packet)
        data = self._client.take_answers()
        if self._stream is not None and data:
            self._stream.write(data)

    def _probe(self, topic: str) -> None:
        """Subscribe to a topic for its retained message; a ping shows when it has arrived."""
        packet_id = self._client.next_id()
        self._send(
            replace(_subscribe(topic, 0, self._versioned(Properties())), packet_id=packet_id)
        )
        self._ping([topic])

    # --- receiving ---

    def receive(self, data: bytes) -> None:
        """Receive bytes from the router."""
        self._heard = self._runner.now()
        for packet in decode_all(self._deframer.receive(data), self._client.version):
            # An error code in a PUBCOMP does not matter: the message had arrived before.
            if isinstance(packet, packets.PubComp):
                self._take(self._client.take(packets.PubComp(packet.packet_id)))
            elif not isinstance(packet, packets.ConnAck):
                self._take(self._client.take(packet))
            elif packet.reason_code:
                self._refused(packet.reason_code)
                return
            else:
                self._begin(packet)
        self._send()
        self._pump()

    def _refused(self, code: int) -> None:
        """Fail all queued packets, because the router refused the connection."""
        error = Refused(reason_text(code), code)
        waiting, self._waiting = self._waiting, deque()
        for pending in waiting:
            pending.future.set_exception(error)
        self.lose()

    def _begin(self, packet: packets.ConnAck) -> None:
        """Continue the session of the previous connection, or start a new one."""
        client = self._client
        allowed = packet.properties and packet.properties.receive_maximum
        self._window = min(WINDOW, allowed or WINDOW)
        self.has_session, self.is_connected = packet.session_present, True
        self.connections += 1
        self._backoff.reset()
        if not packet.session_present:
            for packet_id in client.released:
                self._settle(client.inflight[packet_id], 0)
            client.begin_anew()
            for topic_filter, qos in self._filters.items():
                packet_id = client.next_id()
                subscribe = _subscribe(topic_filter, qos, self._versioned(Properties()))
                self._send(replace(subscribe, packet_id=packet_id))
        for packet_id, pending in client.inflight.items():
            if packet_id in client.released:
                self._send(packets.PubRel(packet_id))
            elif isinstance(pending.packet, packets.Publish):
                self._send(replace(pending.packet, dup=True))
            else:
                self._send(pending.packet)
        for topic in self._reads:
            self._probe(topic)

    def _take(self, event: Packet | Settled[_Unacknowledged] | None) -> None:
        """Handle a packet, or a settled acknowledgement, of the protocol machine."""
        match event:
            case Settled(token=pending):
                self._settle(pending, event.codes[0])
            case packets.Publish():
                self._receive(event)
            case packets.PingResp() if self._pings:
                for topic in self._pings.popleft():
                    self._finish_probe(topic)

    def _settle(self, pending: _Unacknowledged, code: int | None) -> None:
        """Finish a packet with a reason code; None means that the outcome is unknown."""
        operation, history = pending.operation, self._history
        is_refused = code is not None and code >= ReasonCode.UNSPECIFIED_ERROR
        if operation is not None and history is not None:
            if is_refused:
                history.failed(operation)
            elif code is None:
                history.unknown(operation)
            else:
                history.answered(operation)
        if is_refused:
            assert code is not None
            pending.future.set_exception(Refused(reason_text(code), code))
        elif isinstance(pending.packet, packets.Publish):
            pending.future.set_result(None)
        else:
            pending.future.set_result(code)

    def _receive(self, packet: packets.Publish) -> None:
        """Store a received message, and acknowledge it."""
        probe = self._reads.get(packet.topic)
        is_subscribed = packet.topic not in self._probed_at or self._has_filter(packet.topic)
        if probe is not None and (packet.retain or not is_subscribed):
            probe.value = packet.payload or None
        elif is_subscribed:
            self.messages.append(Message.of(packet))
            if self._history is not None and not packet.retain:
                reader = self.options.reader or self.client_id
                self._history.received(packet.payload, key=packet.topic, client=reader)
        self._client.acknowledge(packet)

    def _has_filter(self, topic: str) -> bool:
        """Return whether a subscription matches a topic, apart from temporary ones."""
        return any(
            matches(topic, split_share(topic_filter)[1]) for topic_filter in self._filters
        )

    def _finish_probe(self, topic: str) -> None:
        """Finish the read of a retained message."""
        probe = self._reads.pop(topic, None)
        if probe is None:
            return
        if probe.operation is not None and self._history is not None:
            self._history.answered(probe.operation, probe.value)
        probe.future.set_result(probe.value)
        if topic not in self._filters:
            self._send(
                packets.Unsubscribe(
                    self._client.next_id(), (topic,), self._versioned(Properties())
                )
            )


def _subscribe(topic_filter: str, qos: int, properties: Properties | None) -> packets.Subscribe:
    """Return a SUBSCRIBE without its identifier."""
    return packets.Subscribe(0, (packets.Subscription(topic_filter, qos),), properties)
