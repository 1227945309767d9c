"""MQTT clients on simulated machines, whose messages a history records.

A client runs on the machine of a node, so what happens to that machine and its ways happens to
the client: it connects again as real ones do, says again what got no acknowledgement, and is
gone when its node is killed. What a router promises its clients is judged from what they were
told: a message is acknowledged, or not.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import field, replace
from typing import Any, Final

import callboard.mqtt.wire.packet as packets
from callboard.kernel.backoff import Backoff
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

#: The port of a router, unless a client is told another one.
PORT: Final = 1883

#: Seconds between attempts to connect: of the first pause, and of the longest.
PAUSES: Final = 0.1, 2.0

#: Packets that wait for an acknowledgement, unless the router allows fewer.
WINDOW: Final = 20


@dataclass(frozen=True, slots=True)
class MqttOptions:
    """How a client connects.

    Attributes:
        port: of the router.
        version: of MQTT: `5`, or `3.1.1`.
        session: seconds for which its session outlives a connection; 0 begins anew each time.
        keep_alive: seconds of silence, at most; half as much again ends a connection.
        will: what the router publishes when a connection ends without a DISCONNECT; or a
            function that returns it for each connection, counted from 1.
        username: for routers that ask for one.
        password: with it.
        reader: who gets its messages, in histories; members of a shared subscription have one
            name for all. The client's id by default.
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
    """A packet that waits for its acknowledgement, what waits for it, and its record."""

    packet: Any
    future: Future[Any]
    operation: Operation | None = None


@dataclass(slots=True, eq=False)
class _RetainedLook:
    """A look at a retained message."""

    operation: Operation | None
    future: Future[bytes | None]
    value: bytes | None = None


class MqttClient:
    """A client of an MQTT router, on the machine of a simulated node.

    Attributes:
        client_id: of its session.
        is_connected: whether the router has let it in.
        is_reading: whether it takes what the router sends.
        has_session: whether the router knew its session when it connected last.
        messages: what it got, in order.
        connections: how often it was let in.
    """

    def __init__(
        self,
        node: Node,
        client_id: str,
        router: Node,
        history: History | None = None,
        **options: Any,
    ) -> None:
        """Connect, as soon as time passes, and again whenever the connection is lost.

        Args:
            node: whose machine it runs on.
            client_id: of its session.
            router: a node of the machine that the router is on.
            history: records what it publishes and gets.
            options: those of `MqttOptions`.
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
        self._looks: dict[str, _RetainedLook] = {}
        self._looked_at: set[str] = set()
        self._pings: deque[list[str]] = deque()
        self._window = WINDOW
        self._heard = 0.0
        self._will: Operation | None = None
        self._wills = 0
        self._stays_away = False
        self._runner.on_death.append(self._died)
        self._runner.post(self._dial)

    def __repr__(self) -> str:
        """Return who it is."""
        return f"<MqttClient {self.client_id}>"

    # --- what a test says ---

    def publish(
        self, topic: str, payload: bytes = b"", *, qos: int = 0, retain: bool = False
    ) -> Future[None]:
        """Publish a message, when the router is there; recorded as sent, with its receipt.

        Returns:
            A future that is done when it is acknowledged, or with QoS 0 when it is on its way.
            It fails with `Refused` where the router does not take it.
        """
        sent = self._record("send", topic, payload)
        return self._publish(Message(topic, payload, qos, retain), sent)

    def retain(self, topic: str, payload: bytes, *, qos: int = 2) -> Future[None]:
        """Publish what a topic retains, nothing if it is empty; recorded as a `write`."""
        begun = self._record("write", topic, payload or None)
        return self._publish(Message(topic, payload, qos, retain=True), begun)

    def retained(self, topic: str) -> Future[bytes | None]:
        """Ask what a topic retains, by a subscription; recorded as a `read`."""
        begun = self._record("read", topic, None)
        self._looked_at.add(topic)
        look = self._looks[topic] = _RetainedLook(begun, Future())
        if self.is_connected:
            self._look(topic)
        return look.future

    def _record(self, name: str, topic: str, value: bytes | None) -> Operation | None:
        """Record that an operation begins, where there is a history."""
        if self._history is None:
            return None
        return self._history.begin(name, value, key=topic, client=self.client_id)

    def subscribe(self, topic_filter: str, *, qos: int = 0) -> Future[int]:
        """Subscribe; the future has the QoS that is granted, or fails with `Refused`.

        Messages that come are recorded as received, but for retained ones that were there
        before: they are in `messages` alone.
        """
        self._filters[topic_filter] = qos
        return self._ask(_subscribe(topic_filter, qos, self._said(Properties())))

    def unsubscribe(self, topic_filter: str) -> Future[int]:
        """Take a filter back."""
        self._filters.pop(topic_filter, None)
        packet = packets.Unsubscribe(0, (topic_filter,), self._said(Properties()))
        return self._ask(packet)

    def lose(self) -> None:
        """Lose the connection without a word; it connects again."""
        if self._stream is not None:
            self._stream.abort()

    def disconnect(self) -> None:
        """Say DISCONNECT, and stay away until `connect`: no will is owed."""
        self._stays_away = True
        if self.is_connected and self._stream is not None:
            self._end_will("unknown")
            self._say(packets.Disconnect(0, self._said(Properties())))
            self._stream.close()

    def connect(self) -> None:
        """Connect again after `disconnect`."""
        self._stays_away = False
        if self._stream is None:
            self._runner.post(self._dial)

    def stop_reading(self) -> None:
        """Take nothing that the router sends, as a program that hangs; pings go on.

        What it publishes leaves, up to what needs an acknowledgement. The end of a connection
        is not noticed meanwhile, but where it writes.
        """
        self.is_reading = False
        if self._stream is not None:
            self._stream.pause()

    def read_on(self) -> None:
        """Take what the router sends again, and has sent."""
        self.is_reading, self._heard = True, self._runner.now()
        if self._stream is not None:
            self._stream.resume()

    @property
    def is_idle(self) -> bool:
        """Whether it is connected, and everything that it said is acknowledged."""
        return self.is_connected and not (self._client.inflight or self._waiting or self._looks)

    # --- connections ---

    def _dial(self) -> None:
        """Begin a connection, unless there is one or none is wanted."""
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
            self._said(Properties(session_expiry_interval=options.session)),
        )
        stream.write(encode(connect, self._client.version))
        self._runner.call_later(options.keep_alive / 2, self._check, stream)

    def _check(self, stream: SimulatedStream) -> None:
        """Ping, and notice when the router is silent."""
        if stream is self._stream:
            silence = self._runner.now() - self._heard
            if self.is_reading and silence > 1.5 * self.options.keep_alive:
                stream.abort()
                return
            if self.is_connected:
                self._ping([])
            self._runner.call_later(self.options.keep_alive / 2, self._check, stream)

    def _ping(self, topics: list[str]) -> None:
        """Ask for a sign of life, which ends looks at these topics."""
        self._pings.append(topics)
        self._say(packets.PingReq())

    def _died(self) -> None:
        """Be gone with the node: the router owes the will."""
        self._end_will("answered" if self.is_connected else "unknown")
        self.is_connected = False

    def drained(self) -> None:
        """Do nothing: what a client says is little."""

    def hang_up(self) -> None:
        """Close as well."""
        if self._stream is not None:
            self._stream.abort()

    def lost(self) -> None:
        """Connect again, in a while."""
        self._end_will("answered" if self.is_connected else "unknown")
        self.is_connected, self._stream = False, None
        self._pings.clear()
        self._client.take_answers()
        for look in self._looks.values():
            look.value = None
        self._runner.call_later(self._backoff.next_pause(self._runner.random), self._dial)

    # --- the will ---

    def _make_will(self) -> packets.Will | None:
        """Return the will of the next connection, and record that it may be published."""
        given = self.options.will
        self._wills += 1
        will = given(self._wills) if callable(given) else given
        if will is None:
            return None
        if self._history is not None and (callable(given) or self._wills == 1):
            reader = f"the will of {self.client_id}"
            self._will = self._history.sent(will.payload, key=will.topic, client=reader)
            if will.properties is not None and will.properties.will_delay_interval:
                self._end_will("unknown")  # it may come back in time
        about = will.topic, will.payload, will.qos, will.retain
        return packets.Will(*about, self._said(will.properties or Properties()))

    def _end_will(self, outcome: str) -> None:
        """Record whether the will of this connection is owed now."""
        if self._will is not None and self._history is not None:
            getattr(self._history, outcome)(self._will)
        self._will = None

    # --- what it says ---

    def _said(self, properties: Properties) -> Properties | None:
        """Return properties as this version of MQTT has them."""
        return properties if self._client.version == V5 else None

    def _publish(self, message: Message, operation: Operation | None) -> Future[None]:
        """Publish as soon as that can be."""
        said = message.properties or self._said(Properties())
        pending = _Unacknowledged(
            replace(message.packet(), properties=said), Future(), operation
        )
        self._waiting.append(pending)
        self._runner.post(self._pump)
        return pending.future

    def _ask(self, packet: Packet) -> Future[int]:
        """Say a packet as soon as that can be, and wait for its answer."""
        pending = _Unacknowledged(packet, Future())
        self._waiting.append(pending)
        self._runner.post(self._pump)
        return pending.future

    def _pump(self) -> None:
        """Say what waits, within the window."""
        while self.is_connected and self._waiting:
            if len(self._client.inflight) >= self._window:
                return
            pending = self._waiting.popleft()
            if getattr(pending.packet, "qos", 1):
                packet_id = self._client.expect(pending)
                pending.packet = replace(pending.packet, packet_id=packet_id)
            self._say(pending.packet)
            if not getattr(pending.packet, "qos", 1):
                self._settle(pending, None)

    def _say(self, *behind: Packet) -> None:
        """Write answers that are due, and packets behind them."""
        for packet in behind:
            self._client.say(packet)
        data = self._client.take_answers()
        if self._stream is not None and data:
            self._stream.write(data)

    def _look(self, topic: str) -> None:
        """Subscribe to see what a topic retains, and ask when all of that has come."""
        packet_id = self._client.next_id()
        self._say(replace(_subscribe(topic, 0, self._said(Properties())), packet_id=packet_id))
        self._ping([topic])

    # --- what it gets ---

    def receive(self, data: bytes) -> None:
        """Take packets of the router."""
        self._heard = self._runner.now()
        for packet in decode_all(self._deframer.receive(data), self._client.version):
            if isinstance(packet, packets.PubComp):  # the message had arrived, if it knows
                self._take(self._client.take(packets.PubComp(packet.packet_id)))
            elif not isinstance(packet, packets.ConnAck):
                self._take(self._client.take(packet))
            elif packet.reason_code:
                self._refused(packet.reason_code)
                return
            else:
                self._begin(packet)
        self._say()
        self._pump()

    def _refused(self, code: int) -> None:
        """Give up what waits: this router lets nobody in by this name."""
        error = Refused(reason_text(code), code)
        waiting, self._waiting = self._waiting, deque()
        for pending in waiting:
            pending.future.set_exception(error)
        self.lose()

    def _begin(self, packet: packets.ConnAck) -> None:
        """Go on where the connection before ended."""
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
                asked = _subscribe(topic_filter, qos, self._said(Properties()))
                self._say(replace(asked, packet_id=packet_id))
        for packet_id, pending in client.inflight.items():
            if packet_id in client.released:
                self._say(packets.PubRel(packet_id))
            elif isinstance(pending.packet, packets.Publish):
                self._say(replace(pending.packet, dup=True))
            else:
                self._say(pending.packet)
        for topic in self._looks:
            self._look(topic)

    def _take(self, told: Packet | Settled[_Unacknowledged] | None) -> None:
        """Do what is to be done about a packet."""
        match told:
            case Settled(token=pending):
                self._settle(pending, told.codes[0])
            case packets.Publish():
                self._receive(told)
            case packets.PingResp() if self._pings:
                for topic in self._pings.popleft():
                    self._looked(topic)

    def _settle(self, pending: _Unacknowledged, code: int | None) -> None:
        """Tell what became of a packet; without a code nobody knows."""
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
        """Take a message, and acknowledge it."""
        look = self._looks.get(packet.topic)
        is_wanted = packet.topic not in self._looked_at or self._has_filter(packet.topic)
        if look is not None and (packet.retain or not is_wanted):
            look.value = packet.payload or None
        elif is_wanted:
            self.messages.append(Message.of(packet))
            if self._history is not None and not packet.retain:
                reader = self.options.reader or self.client_id
                self._history.received(packet.payload, key=packet.topic, client=reader)
        self._client.acknowledge(packet)

    def _has_filter(self, topic: str) -> bool:
        """Return whether it is subscribed to a topic, and not only looks at it."""
        return any(matches(topic, split_share(each)[1]) for each in self._filters)

    def _looked(self, topic: str) -> None:
        """End a look."""
        look = self._looks.pop(topic, None)
        if look is None:
            return
        if look.operation is not None and self._history is not None:
            self._history.answered(look.operation, look.value)
        look.future.set_result(look.value)
        if topic not in self._filters:
            self._say(
                packets.Unsubscribe(self._client.next_id(), (topic,), self._said(Properties()))
            )


def _subscribe(topic_filter: str, qos: int, said: Properties | None) -> packets.Subscribe:
    """Return a SUBSCRIBE without its identifier."""
    return packets.Subscribe(0, (packets.Subscription(topic_filter, qos),), said)
