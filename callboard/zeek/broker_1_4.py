"""Both ends of a peering with Zeek Broker 1.4, as a pure machine for the stream driver.

| state | dialer | acceptor |
|---|---|---|
| GREETING | waits for the server's handshake | waits for the client's |
| PEERING | sends "peer", waits for both streams | waits for "peer", then the same |
| OPEN | exchanges messages | the same |
| ENDED | closed by either side | the same |

    dialer                                         acceptor
      client handshake ─────────────────────────────>
      <─────────────── server handshake: its core actor
      "peer", filter ───────────────────────────────>
      <───────────────────────── open stream, filter
      ack, open stream ─────────────────────────────>
      <────────────────────────────────────────── ack

The machine reports the peer's node (`PeerKnown`), and at the acceptor also the peer's filter
(`PeerTopics`). It then waits in PEERING until `introduce` gives it our filter. When a filter
changes, "update" sends the whole new one. Messages wait for credit. Each read that contains
batches is answered with one acknowledgment, which returns the credit that they used.

Broker switches CAF's heartbeats off. So after `PING_INTERVAL` seconds of silence this side
sends a request for information to the peer's spawn server, which every CAF node answers; after
`SILENCE_LIMIT` seconds the connection is closed. Of the other messages between CAF nodes
(monitors, ends of helper actors, routes), only the end of the peer's core matters here.

Only `take`, `introduce`, `send`, `tick`, `lost` and `close` change the state.
"""

from collections import deque
from enum import Enum
from typing import Final, NamedTuple

from callboard.caf.wire.frame import (
    CAF_VERSION,
    CafFlag,
    CafFrame,
    CafFrames,
    CafOperation,
    caf_frame,
)
from callboard.caf.wire.reader import (
    CafActor,
    CafNode,
    CafReader,
    atom,
    message_bytes,
    sized,
    texts_bytes,
)
from callboard.kernel.wire import Admitted, Arrived, Closed, Transmit
from callboard.model.errors import InvalidData
from callboard.protocol_errors import (
    AlreadyLinked,
    BaspError,
    ConnectedToItself,
    IncompatibleApplication,
    LinkLost,
    MalformedHandshake,
    MalformedPayload,
    PeerSilent,
    RemoteProtocolError,
)
from callboard.topics.machine.topic import TOPIC_LIMIT
from callboard.zeek.caf_stream import (
    NORMAL,
    AckOpen,
    MessageTypes,
    StreamEnd,
    StreamPair,
    read_open,
)
from callboard.zeek.node_message import CommandMessage, DataRun, read_messages
from callboard.zeek.transcoder import cbor_at

#: Application name in a server's handshake.
APPLICATION: Final = "broker.v2"

#: Number of a Broker's core actor: the first one after CAF's own actors.
CORE: Final = 6
#: Numbers of our actor that queries silent peers, and of the spawn server, which answers.
_ASKER: Final = 5
_SPAWN_SERVER: Final = 1

#: Seconds without a byte until the peer is queried, and until the connection is closed.
PING_INTERVAL: Final = 10.0
SILENCE_LIMIT: Final = 25.0

#: Largest frame before OPEN in bytes: handshakes and filters.
GREETING_LIMIT: Final = 1 << 20

#: Topics in one filter.
FILTER_LIMIT: Final = 16_384

#: Messages that a peer may send before an acknowledgment, and the largest batch we ask for.
CREDIT: Final = 2_048
BATCH_WANTED: Final = 50

#: Largest batch of ours in messages and bytes; later messages wait until it is written.
BATCH_LIMIT: Final = 1_024
BATCH_BYTES: Final = 256 * 1024

#: Messages waiting for credit above which publishers are slowed down, and below which they are
#: released.
QUEUE_HIGH: Final = 8_192
QUEUE_LOW: Final = 2_048

#: Bytes waiting for credit above which the peering ends.
QUEUE_BYTES: Final = 64 << 20

#: Seconds without credit, with more than `QUEUE_LOW` messages waiting, until the peering ends.
STUCK_LIMIT: Final = 20.0

_SPAWN_NAME: Final = atom("SpawnServ")
_INFO_ASKED: Final = message_bytes(
    MessageTypes.ASK_INFO, atom("sys").to_bytes(8), atom("get").to_bytes(8), sized(b"info")
)
_PEER_ATOM: Final = atom("peer").to_bytes(8)
_UPDATE_ATOM: Final = atom("update").to_bytes(8)
#: Reply that this side has no such store: Broker's error 8 without a text.
_NO_MASTER: Final = message_bytes(
    "@error", b"\x08", atom("broker").to_bytes(8), b"\0\0", sized(b"@<>")
)
#: Exit reason of our core: CAF's reason 4, "user shutdown".
_SHUT_DOWN: Final = b"\x04" + atom("exit").to_bytes(8) + b"\0\0" + sized(b"@<>")


class BrokerState(Enum):
    """State of a connection."""

    GREETING = "greeting"
    PEERING = "peering"
    OPEN = "open"
    ENDED = "ended"


class PeerKnown(NamedTuple):
    """The peer has identified its node; the machine waits for `introduce`."""

    node: CafNode


class PeerTopics(NamedTuple):
    """A new filter of the peer; it replaces the old one."""

    topics: tuple[str, ...]


class RoomAgain(NamedTuple):
    """At most `QUEUE_LOW` messages still wait for credit."""


_Arrival = PeerKnown | PeerTopics | RoomAgain | DataRun | CommandMessage
_Effect = Transmit | Arrived | Admitted | Closed


class Broker14Session:
    """The machine of one connection.

    Attributes:
        state: the state of the connection.
        peer: the peer's node; None until it is known.
        topics: our filter as last sent.
        waiting: bytes that wait for credit.
        credited: time of the last credit.
    """

    def __init__(self, own: CafNode, now: float, *, is_dialed: bool, limit: int) -> None:
        """Create a session that is not started.

        Args:
            own: our node.
            now: monotonic seconds.
            is_dialed: whether this side dialed.
            limit: largest frame in bytes after OPEN.
        """
        self.state = BrokerState.GREETING
        self.peer: CafNode | None = None
        self.topics: tuple[str, ...] = ()
        self.waiting = 0
        self._own = own
        self._is_dialed = is_dialed
        self._limit = limit
        self._frames = CafFrames(GREETING_LIMIT)
        self._core = CafActor(CORE, own)
        self._streams: StreamPair | None = None
        self._is_introduced = self._is_queried = False
        self._heard_at = self._queried_at = self.credited = now
        #: Messages that wait for credit, in order; and the credit. The session drops none: the
        #: peering slows publishers down, or applies the overflow policy, before it sends.
        self._queue: deque[bytes] = deque()
        self._credit = self._batches = 0
        self._is_congested = False
        #: Received in this read: messages to acknowledge, and the last batch.
        self._arrived = self._last_batch = 0

    @property
    def next_tick_at(self) -> float:
        """Time at which `tick` must be called."""
        query_at = max(self._heard_at, self._queried_at) + PING_INTERVAL
        stuck_at = self.credited + STUCK_LIMIT if self._is_congested else query_at
        return min(query_at, self._heard_at + SILENCE_LIMIT, stuck_at)

    @property
    def is_open(self) -> bool:
        """Whether messages are exchanged."""
        return self.state is BrokerState.OPEN

    @property
    def is_introduced(self) -> bool:
        """Whether our filter was sent."""
        return self._is_introduced

    @property
    def queued(self) -> int:
        """Messages waiting for credit."""
        return len(self._queue)

    def is_over(self) -> bool:
        """Return whether the connection has ended."""
        return self.state is BrokerState.ENDED

    # --- sending ---

    def start(self) -> list[_Effect]:
        """Send the first handshake."""
        node = self._own.to_bytes()
        if self._is_dialed:
            return [Transmit(caf_frame(CafOperation.CLIENT_HANDSHAKE, node))]
        payload = node + texts_bytes((APPLICATION,)) + CORE.to_bytes(8) + texts_bytes(())
        return [Transmit(caf_frame(CafOperation.SERVER_HANDSHAKE, payload, data=CAF_VERSION))]

    def introduce(self, topics: tuple[str, ...]) -> bytes:
        """Return the bytes that continue the peering with our filter.

        Empty if they were sent before, or if the acceptor has not received "peer": the peer's
        filter must be in effect before the peer learns that it is one.
        """
        streams = self._streams
        if self.state is not BrokerState.PEERING or self._is_introduced or streams is None:
            return b""
        self._is_introduced, self.topics = True, topics
        if not self._is_dialed:
            return streams.open(topics)
        own = self._core.to_bytes()
        return streams.tell(
            message_bytes(MessageTypes.PEER, _PEER_ATOM, texts_bytes(topics), own)
        )

    def update(self, topics: tuple[str, ...]) -> bytes:
        """Return our new filter as bytes to write."""
        if topics == self.topics or not self._is_introduced or self._streams is None:
            return b""
        self.topics = topics
        return self._streams.tell(
            message_bytes(MessageTypes.UPDATE, _UPDATE_ATOM, texts_bytes(topics))
        )

    def send(self, messages: list[bytes]) -> bytes:
        """Return messages as bytes to write; messages without credit are queued.

        Args:
            messages: as made by `data_message_bytes`.
        """
        if self.is_over():
            return b""
        self._queue.extend(messages)
        self.waiting += sum(map(len, messages))
        return self._next_batches()

    def direct(self, topic: str, value: bytes) -> bytes:
        """Return a message for this peer alone as bytes to write."""
        if self._streams is None or not self.is_open:
            return b""
        publish, local = atom("publish").to_bytes(8), atom("local").to_bytes(8)
        content = sized(topic.encode()) + value
        return self._streams.tell(message_bytes(MessageTypes.DIRECTED, publish, local, content))

    def _next_batches(self) -> bytes:
        """Return batches of queued messages, while there is credit."""
        queue, streams, out = self._queue, self._streams, []
        while queue and self._credit > 0 and streams is not None:
            messages: list[bytes] = []
            size, room = 0, min(len(queue), self._credit, BATCH_LIMIT)
            while len(messages) < room and size < BATCH_BYTES:
                message = queue.popleft()
                messages.append(message)
                size += len(message)
            self._batches += 1
            self._credit -= len(messages)
            self.waiting -= size
            out.append(streams.batch(messages, self._batches))
        self._is_congested = self._is_congested or len(queue) > QUEUE_LOW
        return b"".join(out)

    # --- receiving ---

    def take(self, data: bytes, now: float) -> tuple[list[_Arrival], list[_Effect]]:
        """Handle received bytes; return either arrivals or effects."""
        if self.is_over():
            return [], []
        self._heard_at = now
        effects: list[_Effect] = []
        try:
            for frame in self._frames.take(data):
                self._handle_frame(frame, now, effects)
                if self.is_over():
                    return [], effects
        except RemoteProtocolError as error:
            return [], [*effects, *self._end(str(error), error)]
        if self._arrived and self._streams is not None:
            credit, self._arrived = self._arrived, 0
            # A Broker sends a batch when it has the preferred size, or after 5 ms. So we prefer
            # batches as small as the last ones: few messages must not wait for more.
            ack = self._streams.ack_batch(credit, min(credit, BATCH_WANTED), self._last_batch)
            effects.append(Transmit(ack))
        return [], effects

    def _handle_frame(self, frame: CafFrame, now: float, effects: list[_Effect]) -> None:
        """Handle a frame."""
        match frame.operation:
            case CafOperation.DIRECT:
                self._handle_message(frame, now, effects)
            case CafOperation.SERVER_HANDSHAKE if self._is_dialed and self.peer is None:
                self._handle_server(frame, effects)
            case CafOperation.CLIENT_HANDSHAKE if not self._is_dialed:
                self._handle_client(frame, effects)
            case CafOperation.SERVER_HANDSHAKE | CafOperation.CLIENT_HANDSHAKE:
                msg = "the peer sent a second handshake, or the handshake of the other role"
                raise MalformedHandshake(msg)
            case CafOperation.DOWN:
                reader = CafReader(frame.payload)
                node = reader.node()
                if node == self.peer and frame.source == self._peer_core():
                    effects += self._end("the peer ended")

    def _peer_core(self) -> int:
        """Return the number of the peer's core actor."""
        return 0 if self._streams is None else self._streams.peer.number

    def _handle_server(self, frame: CafFrame, effects: list[_Effect]) -> None:
        """Handle a server's handshake; `introduce` continues."""
        reader = CafReader(frame.payload)
        node, applications = reader.node(), reader.texts()
        core = reader.number(8)
        if APPLICATION not in applications:
            msg = f"the peer is not Broker 1.4, but {', '.join(applications)[:80]!r}"
            raise IncompatibleApplication(msg)
        if not core:
            msg = "the peer has no core actor"
            raise MalformedHandshake(msg)
        self._set_peer(node, effects)
        assert self.peer is not None
        self._streams = StreamPair(self._core, CafActor(core, self.peer))
        selected = caf_frame(
            CafOperation.CLIENT_HANDSHAKE, self._own.to_bytes(), flags=CafFlag.SELECTED
        )
        effects.insert(-1, Transmit(selected + self._monitor()))

    def _handle_client(self, frame: CafFrame, effects: list[_Effect]) -> None:
        """Handle a client's handshake; a client sends it twice."""
        node = CafReader(frame.payload).node()
        if self.peer is None:
            self._set_peer(node, effects)
        elif node != self.peer:
            msg = f"the second handshake is from {node}, the first was from {self.peer}"
            raise MalformedHandshake(msg)

    def _set_peer(self, node: CafNode | None, effects: list[_Effect]) -> None:
        """Record and report the peer's node."""
        if node is None:
            msg = "the handshake does not name a node"
            raise MalformedHandshake(msg)
        if node == self._own:
            msg = "both ends are this node"
            raise ConnectedToItself(msg)
        self.peer, self.state = node, BrokerState.PEERING
        effects.append(Arrived([PeerKnown(node)]))

    def _monitor(self) -> bytes:
        """Return the frame that subscribes to the end of the peer's core."""
        assert self.peer is not None
        nodes = self._own.to_bytes() + self.peer.to_bytes()
        return caf_frame(CafOperation.MONITOR, nodes, target=self._peer_core())

    def _handle_message(self, frame: CafFrame, now: float, effects: list[_Effect]) -> None:
        """Handle a message for our core or spawn server; ignore all others."""
        reader = CafReader(frame.payload)
        for _ in range(reader.count()):
            reader.actor()
        types = reader.types()
        if frame.flags & CafFlag.NAMED:
            if frame.target == _SPAWN_NAME and types == MessageTypes.ASK_INFO and frame.source:
                effects.append(Transmit(self._info(frame.source)))
        elif frame.target == CORE:
            self._handle_core_message(types, reader, frame.source, now, effects)

    def _handle_core_message(
        self, types: str, reader: CafReader, source: int, now: float, effects: list[_Effect]
    ) -> None:
        """Handle a message for our core."""
        match types:
            case MessageTypes.DOWNSTREAM:
                self._handle_downstream(reader, effects)
            case MessageTypes.UPSTREAM:
                self._handle_upstream(reader, now, effects)
            case MessageTypes.OPEN:
                self._handle_open(reader, effects)
            case MessageTypes.UPDATE:
                self._handle_update(reader, effects)
            case MessageTypes.PEER:
                self._handle_peer(reader, effects)
            case MessageTypes.DIRECTED:
                self._handle_directed(reader, effects)
            case MessageTypes.ASK_MASTER if source:
                reply = caf_frame(
                    CafOperation.DIRECT,
                    b"\0" + _NO_MASTER,
                    data=NORMAL,
                    source=CORE,
                    target=source,
                )
                effects.append(Transmit(reply))

    def _info(self, receiver: int) -> bytes:
        """Return the reply of our spawn server."""
        server = CafActor(_SPAWN_SERVER, self._own).to_bytes()
        ok, name = atom("ok").to_bytes(8), sized(b"spawn_server")
        payload = b"\0" + message_bytes(MessageTypes.INFO, ok, sized(b"info"), server, name)
        return caf_frame(
            CafOperation.DIRECT, payload, data=NORMAL, source=_SPAWN_SERVER, target=receiver
        )

    # --- the peering ---

    def _handle_peer(self, reader: CafReader, effects: list[_Effect]) -> None:
        """Handle the dialer's "peer"."""
        reader.take(len(_PEER_ATOM))
        topics, actor = self._topics(reader), reader.actor()
        reader.finish()
        if self._is_dialed or self.peer is None or self._streams is not None:
            msg = 'the peer sent "peer" twice, or before the handshake'
            raise MalformedHandshake(msg)
        if actor is None or actor.node != self.peer:
            msg = f'"peer" names {actor}, which is not on the peer\'s node'
            raise MalformedHandshake(msg)
        self._streams = StreamPair(self._core, actor)
        effects.append(Transmit(self._monitor()))
        effects.append(Arrived([PeerTopics(topics)]))

    def _handle_open(self, reader: CafReader, effects: list[_Effect]) -> None:
        """Handle the peer's stream."""
        streams, opened = self._streams, read_open(reader)
        is_due = streams is not None and self._is_introduced and not streams.their_source
        if not is_due or self._is_dialed != (opened.topics is not None):
            msg = "the peer opened a stream twice, or one that was not requested"
            raise MalformedHandshake(msg)
        assert streams is not None
        streams.their_source = opened.slot
        effects.append(Transmit(streams.ack_open(CREDIT, BATCH_WANTED)))
        if opened.topics is not None:
            self._check_topics(opened.topics)
            effects.append(Transmit(streams.open(None)))
            effects.append(Arrived([PeerTopics(opened.topics)]))
        self._check_open(effects)

    def _check_open(self, effects: list[_Effect]) -> None:
        """Change to OPEN once both streams are open."""
        streams = self._streams
        are_open = streams is not None and streams.their_sink and streams.their_source
        if are_open and self.state is BrokerState.PEERING:
            self.state = BrokerState.OPEN
            self._frames.limit = self._limit
            effects.append(Admitted(str(self.peer)))

    def _topics(self, reader: CafReader) -> tuple[str, ...]:
        """Read a filter."""
        topics = reader.texts()
        self._check_topics(topics)
        return topics

    @staticmethod
    def _check_topics(topics: tuple[str, ...]) -> None:
        """Refuse a filter above the limits."""
        if len(topics) > FILTER_LIMIT:
            msg = f"a filter of {len(topics):,} topics exceeds the limit of {FILTER_LIMIT:,}"
            raise MalformedPayload(msg)
        if any(len(topic.encode()) > TOPIC_LIMIT for topic in topics):
            msg = f"a topic of a filter exceeds the limit of {TOPIC_LIMIT:,} bytes"
            raise MalformedPayload(msg)

    def _handle_update(self, reader: CafReader, effects: list[_Effect]) -> None:
        """Handle a new filter of the peer."""
        if reader.take(len(_UPDATE_ATOM)) == _UPDATE_ATOM:
            topics = self._topics(reader)
            reader.finish()
            if self._streams is None:
                msg = "the peer updated its filter before it had sent one"
                raise MalformedHandshake(msg)
            effects.append(Arrived([PeerTopics(topics)]))

    # --- the streams ---

    def _handle_upstream(self, reader: CafReader, now: float, effects: list[_Effect]) -> None:
        """Handle a message about our stream."""
        streams = self._streams
        if streams is None:
            msg = "the peer replied on a stream that was not opened"
            raise MalformedHandshake(msg)
        message = streams.read_up(reader)
        if isinstance(message, StreamEnd):
            effects += self._end(f"the peer ended the peering ({message.how})")
            return
        if isinstance(message, AckOpen):
            if streams.their_sink or not message.slot:
                msg = "the peer accepted a stream twice, or with the slot 0"
                raise MalformedHandshake(msg)
            streams.their_sink = message.slot
            self._check_open(effects)
        elif message.batch > self._batches:
            msg = (
                f"batch {message.batch:,} is acknowledged, but only {self._batches:,} were sent"
            )
            raise MalformedPayload(msg)
        self._credit += message.credit
        self.credited = now
        data = self._next_batches()
        if data:
            effects.append(Transmit(data))
        if self._is_congested and len(self._queue) <= QUEUE_LOW:
            self._is_congested = False
            effects.append(Arrived([RoomAgain()]))

    def _handle_downstream(self, reader: CafReader, effects: list[_Effect]) -> None:
        """Handle a message on the peer's stream."""
        streams = self._streams
        if streams is None or not streams.their_source:
            msg = (
                "the peer sent the peer sent the peer sent a message on a stream that was "
                "not opened"
            )
            raise MalformedHandshake(msg)
        message = streams.read_down(reader)
        if isinstance(message, StreamEnd):
            effects += self._end(f"the peer ended the peering ({message.how})")
            return
        messages, end = read_messages(reader.buffer, message.at, message.messages)
        reader.at = end
        self._last_batch = reader.number(8)
        reader.finish()
        self._arrived += message.messages
        effects.append(Arrived(messages))

    def _handle_directed(self, reader: CafReader, effects: list[_Effect]) -> None:
        """Handle a message for this endpoint alone: it crosses no other link."""
        reader.take(2 * len(_PEER_ATOM))
        topic = reader.text()
        try:
            content, reader.at = cbor_at(reader.buffer, reader.at)
        except InvalidData as cause:
            raise MalformedPayload(str(cause)) from cause
        reader.finish()
        if len(topic.encode()) <= TOPIC_LIMIT:
            effects.append(Arrived([DataRun(1, [(topic, content)])]))

    # --- time and the end ---

    def tick(self, now: float) -> list[_Effect]:
        """Query a silent peer; end the session if it stays silent or stuck."""
        if self.is_over():
            return []
        if now >= self._heard_at + SILENCE_LIMIT:
            text = f"nothing was received for {SILENCE_LIMIT:g} s"
            return self._end(text, PeerSilent(text))
        if self._is_congested and now >= self.credited + STUCK_LIMIT:
            text = f"{self.queued:,} messages wait, and no credit arrived for {STUCK_LIMIT:g} s"
            return self._end(text, PeerSilent(text))
        if now < max(self._heard_at, self._queried_at) + PING_INTERVAL or self.peer is None:
            return []
        self._queried_at = now
        query = caf_frame(
            CafOperation.DIRECT,
            b"\0" + _INFO_ASKED,
            flags=CafFlag.NAMED,
            data=NORMAL,
            source=_ASKER,
            target=_SPAWN_NAME,
        )
        return [Transmit(query)]

    def lost(self, reason: str) -> list[_Effect]:
        """Handle the loss of the connection."""
        return self._end(reason, LinkLost(reason))

    def close(self, reason: str) -> list[_Effect]:
        """End both streams and the session."""
        return self._end(reason)

    def redundant(self) -> list[_Effect]:
        """End the session in favor of another connection with the peer."""
        text = f"{self.peer} is already a peer over another connection"
        return self._end(text, AlreadyLinked(text))

    def _end(self, reason: str, error: BaspError | None = None) -> list[_Effect]:
        """End the session once. Without `close` and `drop`, Broker's shutdown would hang."""
        if self.is_over():
            return []
        self.state = BrokerState.ENDED
        self._queue.clear()
        self.waiting = 0
        streams, farewell = self._streams, b""
        if streams is not None:
            farewell += streams.close() if streams.their_sink else b""
            farewell += streams.drop() if streams.their_source else b""
            nodes = self._own.to_bytes() + streams.peer.node.to_bytes()
            farewell += caf_frame(CafOperation.DOWN, nodes + _SHUT_DOWN, source=CORE)
        return [*([Transmit(farewell)] if farewell else ()), Closed(reason, error)]
