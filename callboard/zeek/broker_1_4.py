"""Both ends of a peering of Zeek Broker 1.4, as a pure machine for the stream driver.

| state | who dials | who listens |
|---|---|---|
| GREETING | waits for the server's handshake | waits for the client's |
| PEERING | asks to peer, waits for both streams | waits until it is asked, then the same |
| OPEN | messages go both ways | the same |
| ENDED | closed, by either side | the same |

    dials                                          listens
      client handshake ─────────────────────────────>
      <─────────────── server handshake: its core actor
      "peer", filter ───────────────────────────────>
      <───────────────────────── open stream, filter
      ack, open stream ─────────────────────────────>
      <────────────────────────────────────────── ack

The door hears of the peer's node (`PeerKnown`), and who listens also what it wants
(`PeerTopics`), and says by `introduce` which topics this side wants; until then the machine
waits in PEERING. Whole filters go both ways whenever they
change, by "update". What is sent waits for credit; each read of batches is answered by one
acknowledgment, with as much credit as they took.

CAF's heartbeats are off in Broker. So after `PING_INTERVAL` seconds of silence the spawn server
of the peer is asked who it is, which all of CAF's nodes do and answer; `SILENCE_LIMIT` seconds
are the end. Of what else CAF's nodes tell each other (monitors, their helpers' ends, routes)
only the end of the peer's core means something here.

Only `take`, `introduce`, `send`, `tick`, `lost` and `close` change the state.
"""

from collections import deque
from enum import Enum
from typing import Final, NamedTuple

from callboard.endpoint.machine.topic import TOPIC_LIMIT
from callboard.kernel.codec import (
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
from callboard.kernel.wire import Admitted, Arrived, Closed, Transmit
from callboard.model.errors import InvalidData
from callboard.zeek.caf import (
    CAF_VERSION,
    CafActor,
    CafFlag,
    CafFrame,
    CafFrames,
    CafNode,
    CafOperation,
    CafReader,
    atom,
    caf_frame,
    message_bytes,
    sized,
    texts_bytes,
)
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

#: What a server's handshake says of itself.
APPLICATION: Final = "broker.v2"

#: The number of a Broker's core actor: the first that its users' actors get.
CORE: Final = 6
#: Ours that asks silent peers; and the one that answers such questions, on all nodes.
_ASKER: Final = 5
_SPAWN_SERVER: Final = 1

#: Seconds without a byte after which the peer is asked, and after which it is given up.
PING_INTERVAL: Final = 10.0
SILENCE_LIMIT: Final = 25.0

#: Bytes of a frame before the peering stands: handshakes and filters.
GREETING_LIMIT: Final = 1 << 20

#: Topics of one filter.
FILTER_LIMIT: Final = 16_384

#: Messages that a peer may send ahead of our acknowledgments, and those of its batches at most.
CREDIT: Final = 2_048
BATCH_WANTED: Final = 50

#: Messages and bytes of one batch of ours at most: what is behind it waits for its end.
BATCH_LIMIT: Final = 1_024
BATCH_BYTES: Final = 256 * 1024

#: Messages that may wait for credit before those who publish have to wait; and those left when
#: they go on.
QUEUE_HIGH: Final = 8_192
QUEUE_LOW: Final = 2_048

#: Bytes that may wait for credit; more of them end the peering.
QUEUE_BYTES: Final = 64 << 20

#: Seconds without credit, while more than `QUEUE_LOW` messages wait, after which it ends.
STUCK_LIMIT: Final = 20.0

_SPAWN_NAME: Final = atom("SpawnServ")
_INFO_ASKED: Final = message_bytes(
    MessageTypes.ASK_INFO, atom("sys").to_bytes(8), atom("get").to_bytes(8), sized(b"info")
)
_PEER_ATOM: Final = atom("peer").to_bytes(8)
_UPDATE_ATOM: Final = atom("update").to_bytes(8)
#: That this side has no store of a name: Broker's error 8, and no words.
_NO_MASTER: Final = message_bytes(
    "@error", b"\x08", atom("broker").to_bytes(8), b"\0\0", sized(b"@<>")
)
#: Why our core is down: CAF's exit reason 4, "user shutdown".
_SHUT_DOWN: Final = b"\x04" + atom("exit").to_bytes(8) + b"\0\0" + sized(b"@<>")


class BrokerState(Enum):
    """How far a connection is."""

    GREETING = "greeting"
    PEERING = "peering"
    OPEN = "open"
    ENDED = "ended"


class PeerKnown(NamedTuple):
    """The peer said which node it is; it waits for `introduce`."""

    node: CafNode


class PeerTopics(NamedTuple):
    """The peer said what it wants: its whole filter."""

    topics: tuple[str, ...]


class RoomAgain(NamedTuple):
    """What waited for credit has gone, nearly all."""


_Arrival = PeerKnown | PeerTopics | RoomAgain | DataRun | CommandMessage
_Effect = Transmit | Arrived | Admitted | Closed


class Broker14Session:
    """The machine of one connection.

    Attributes:
        state: how far it is.
        peer: the peer's node; None before it said so.
        topics: our filter, as the peer was told last.
        waiting: bytes that wait for credit.
        credited: when the peer gave credit last.
    """

    def __init__(self, own: CafNode, now: float, *, is_dialed: bool, limit: int) -> None:
        """Make one that has not begun.

        Args:
            own: our node.
            now: monotonic seconds.
            is_dialed: whether this side dialed.
            limit: bytes of a frame, once the peering stands.
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
        self._is_introduced = self._is_asked = self._is_taken = False
        self._heard = self._asked = self.credited = now
        #: Messages that wait for credit, in order, and what there is of it.
        self._queue: deque[bytes] = deque()
        self._credit = self._batches = 0
        self._is_behind = False
        #: What the peer sent in this read: messages to acknowledge, and the last batch.
        self._arrived = self._last_batch = 0

    @property
    def next_tick_at(self) -> float:
        """When silence is to be looked at."""
        ask = max(self._heard, self._asked) + PING_INTERVAL
        stuck = self.credited + STUCK_LIMIT if self._is_behind else ask
        return min(ask, self._heard + SILENCE_LIMIT, stuck)

    @property
    def is_open(self) -> bool:
        """Whether messages go both ways."""
        return self.state is BrokerState.OPEN

    @property
    def is_introduced(self) -> bool:
        """Whether our filter was said."""
        return self._is_introduced

    @property
    def queued(self) -> int:
        """Messages that wait for credit."""
        return len(self._queue)

    def is_over(self) -> bool:
        """Return whether the connection has ended."""
        return self.state is BrokerState.ENDED

    # --- out ---

    def start(self) -> list[_Effect]:
        """Say which node this is."""
        node = self._own.to_bytes()
        if self._is_dialed:
            return [Transmit(caf_frame(CafOperation.CLIENT_HANDSHAKE, node))]
        said = node + texts_bytes((APPLICATION,)) + CORE.to_bytes(8) + texts_bytes(())
        return [Transmit(caf_frame(CafOperation.SERVER_HANDSHAKE, said, data=CAF_VERSION))]

    def introduce(self, topics: tuple[str, ...]) -> bytes:
        """Return what is to be written so that the peering goes on, with our filter.

        Nothing, where that is done, or this side listens and was not asked yet: what the peer
        wants is followed before it hears that it is a peer.
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
        """Return what is to be written for a filter that has changed."""
        if topics == self.topics or not self._is_introduced or self._streams is None:
            return b""
        self.topics = topics
        return self._streams.tell(
            message_bytes(MessageTypes.UPDATE, _UPDATE_ATOM, texts_bytes(topics))
        )

    def send(self, messages: list[bytes]) -> bytes:
        """Return what is to be written; what there is no credit for waits.

        Args:
            messages: as `data_message_bytes` makes them.
        """
        if self.is_over():
            return b""
        self._queue.extend(messages)
        self.waiting += sum(map(len, messages))
        return self._emitted()

    def direct(self, topic: str, value: bytes) -> bytes:
        """Return what is to be written for a message that this peer alone is to have."""
        if self._streams is None or not self.is_open:
            return b""
        publish, local = atom("publish").to_bytes(8), atom("local").to_bytes(8)
        content = sized(topic.encode()) + value
        return self._streams.tell(message_bytes(MessageTypes.DIRECTED, publish, local, content))

    def _emitted(self) -> bytes:
        """Return batches, as far as the credit goes."""
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
        self._is_behind = self._is_behind or len(queue) > QUEUE_LOW
        return b"".join(out)

    # --- in ---

    def take(self, data: bytes, now: float) -> tuple[list[_Arrival], list[_Effect]]:
        """Take what a read brought: arrivals alone, or effects."""
        if self.is_over():
            return [], []
        self._heard = now
        effects: list[_Effect] = []
        try:
            for frame in self._frames.take(data):
                self._taken(frame, now, effects)
                if self.is_over():
                    return [], effects
        except RemoteProtocolError as error:
            return [], [*effects, *self._end(str(error), error)]
        if self._arrived and self._streams is not None:
            credit, self._arrived = self._arrived, 0
            # A Broker sends a batch when it is as large as is wanted, or 5 ms have passed: few
            # messages are not worth waiting for more.
            ack = self._streams.ack_batch(credit, min(credit, BATCH_WANTED), self._last_batch)
            effects.append(Transmit(ack))
        return [], effects

    def _taken(self, frame: CafFrame, now: float, effects: list[_Effect]) -> None:
        """Take a frame."""
        match frame.operation:
            case CafOperation.DIRECT:
                self._message(frame, now, effects)
            case CafOperation.SERVER_HANDSHAKE if self._is_dialed and self.peer is None:
                self._server(frame, effects)
            case CafOperation.CLIENT_HANDSHAKE if not self._is_dialed:
                self._client(frame, effects)
            case CafOperation.SERVER_HANDSHAKE | CafOperation.CLIENT_HANDSHAKE:
                msg = "a second handshake, or one of the wrong side"
                raise MalformedHandshake(msg)
            case CafOperation.DOWN:
                reader = CafReader(frame.payload)
                node = reader.node()
                if node == self.peer and frame.source == self._peer_core():
                    effects += self._end("the peer ended")

    def _peer_core(self) -> int:
        """Return the number of the peer's core."""
        return 0 if self._streams is None else self._streams.peer.number

    def _server(self, frame: CafFrame, effects: list[_Effect]) -> None:
        """Take a server's handshake: ask to peer, once we are introduced."""
        reader = CafReader(frame.payload)
        node, applications = reader.node(), reader.texts()
        core = reader.number(8)
        if APPLICATION not in applications:
            msg = f"it is no Broker 1.4, but {', '.join(applications)[:80]!r}"
            raise IncompatibleApplication(msg)
        if not core:
            msg = "it has no core actor"
            raise MalformedHandshake(msg)
        self._known(node, effects)
        assert self.peer is not None
        self._streams = StreamPair(self._core, CafActor(core, self.peer))
        selected = caf_frame(
            CafOperation.CLIENT_HANDSHAKE, self._own.to_bytes(), flags=CafFlag.SELECTED
        )
        effects.insert(-1, Transmit(selected + self._monitor()))

    def _client(self, frame: CafFrame, effects: list[_Effect]) -> None:
        """Take a client's handshake; it says it twice."""
        node = CafReader(frame.payload).node()
        if self.peer is None:
            self._known(node, effects)
        elif node != self.peer:
            msg = f"a second handshake is of {node}, the first was of {self.peer}"
            raise MalformedHandshake(msg)

    def _known(self, node: CafNode | None, effects: list[_Effect]) -> None:
        """The peer's node is known."""
        if node is None:
            msg = "it says no node"
            raise MalformedHandshake(msg)
        if node == self._own:
            msg = "both ends are this node"
            raise ConnectedToItself(msg)
        self.peer, self.state = node, BrokerState.PEERING
        effects.append(Arrived([PeerKnown(node)]))

    def _monitor(self) -> bytes:
        """Return that this side wants to hear of the end of the peer's core."""
        assert self.peer is not None
        nodes = self._own.to_bytes() + self.peer.to_bytes()
        return caf_frame(CafOperation.MONITOR, nodes, target=self._peer_core())

    def _message(self, frame: CafFrame, now: float, effects: list[_Effect]) -> None:
        """Take a message for our core, or for the spawn server; others mean nothing here."""
        reader = CafReader(frame.payload)
        for _ in range(reader.count()):
            reader.actor()
        types = reader.types()
        if frame.flags & CafFlag.NAMED:
            if frame.target == _SPAWN_NAME and types == MessageTypes.ASK_INFO and frame.source:
                effects.append(Transmit(self._info(frame.source)))
        elif frame.target == CORE:
            self._core_message(types, reader, frame.source, now, effects)

    def _core_message(
        self, types: str, reader: CafReader, source: int, now: float, effects: list[_Effect]
    ) -> None:
        """Take a message for our core."""
        match types:
            case MessageTypes.DOWNSTREAM:
                self._downstream(reader, effects)
            case MessageTypes.UPSTREAM:
                self._upstream(reader, now, effects)
            case MessageTypes.OPEN:
                self._opened(reader, effects)
            case MessageTypes.UPDATE:
                self._filter_changed(reader, effects)
            case MessageTypes.PEER:
                self._asked_to_peer(reader, effects)
            case MessageTypes.DIRECTED:
                self._directed(reader, effects)
            case MessageTypes.ASK_MASTER if source:
                answer = caf_frame(
                    CafOperation.DIRECT,
                    b"\0" + _NO_MASTER,
                    data=NORMAL,
                    source=CORE,
                    target=source,
                )
                effects.append(Transmit(answer))

    def _info(self, asker: int) -> bytes:
        """Return the answer of our spawn server."""
        server = CafActor(_SPAWN_SERVER, self._own).to_bytes()
        ok, name = atom("ok").to_bytes(8), sized(b"spawn_server")
        payload = b"\0" + message_bytes(MessageTypes.INFO, ok, sized(b"info"), server, name)
        return caf_frame(
            CafOperation.DIRECT, payload, data=NORMAL, source=_SPAWN_SERVER, target=asker
        )

    # --- the peering ---

    def _asked_to_peer(self, reader: CafReader, effects: list[_Effect]) -> None:
        """Take that the peer, which dialed, asks to peer."""
        reader.take(len(_PEER_ATOM))
        topics, actor = self._topics(reader), reader.actor()
        reader.finish()
        if self._is_dialed or self.peer is None or self._streams is not None:
            msg = "it asks to peer once more, or before its handshake"
            raise MalformedHandshake(msg)
        if actor is None or actor.node != self.peer:
            msg = f"{actor} of another node asks to peer"
            raise MalformedHandshake(msg)
        self._streams = StreamPair(self._core, actor)
        effects.append(Transmit(self._monitor()))
        effects.append(Arrived([PeerTopics(topics)]))

    def _opened(self, reader: CafReader, effects: list[_Effect]) -> None:
        """Take that the peer opens its stream."""
        streams, opened = self._streams, read_open(reader)
        is_due = streams is not None and self._is_introduced and not streams.their_source
        if not is_due or self._is_dialed != (opened.topics is not None):
            msg = "a stream is opened that is there already, or was not asked for"
            raise MalformedHandshake(msg)
        assert streams is not None
        streams.their_source = opened.slot
        effects.append(Transmit(streams.ack_open(CREDIT, BATCH_WANTED)))
        if opened.topics is not None:
            self._check_topics(opened.topics)
            effects.append(Transmit(streams.open(None)))
            effects.append(Arrived([PeerTopics(opened.topics)]))
        self._look_whether_open(effects)

    def _look_whether_open(self, effects: list[_Effect]) -> None:
        """Go on to OPEN when both streams are there."""
        streams = self._streams
        is_there = streams is not None and streams.their_sink and streams.their_source
        if is_there and self.state is BrokerState.PEERING:
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
        """Refuse a filter that is too large."""
        if len(topics) > FILTER_LIMIT:
            msg = f"a filter of {len(topics):,} topics exceeds the limit of {FILTER_LIMIT:,}"
            raise MalformedPayload(msg)
        if any(len(topic.encode()) > TOPIC_LIMIT for topic in topics):
            msg = f"a topic of a filter exceeds the limit of {TOPIC_LIMIT:,} bytes"
            raise MalformedPayload(msg)

    def _filter_changed(self, reader: CafReader, effects: list[_Effect]) -> None:
        """Take a new filter of the peer."""
        if reader.take(len(_UPDATE_ATOM)) == _UPDATE_ATOM:
            topics = self._topics(reader)
            reader.finish()
            if self._streams is None:
                msg = "a filter changes before there is one"
                raise MalformedHandshake(msg)
            effects.append(Arrived([PeerTopics(topics)]))

    # --- the streams ---

    def _upstream(self, reader: CafReader, now: float, effects: list[_Effect]) -> None:
        """Take what the peer says of our stream."""
        streams = self._streams
        if streams is None:
            msg = "an answer on a stream that was not opened"
            raise MalformedHandshake(msg)
        said = streams.read_up(reader)
        if isinstance(said, StreamEnd):
            effects += self._end(f"the peer ended the peering ({said.how})")
            return
        if isinstance(said, AckOpen):
            if streams.their_sink or not said.slot:
                msg = "a stream is taken twice, or by the slot 0"
                raise MalformedHandshake(msg)
            streams.their_sink = said.slot
            self._look_whether_open(effects)
        elif said.batch > self._batches:
            msg = f"batch {said.batch:,} is acknowledged, and {self._batches:,} were sent"
            raise MalformedPayload(msg)
        self._credit += said.credit
        self.credited = now
        data = self._emitted()
        if data:
            effects.append(Transmit(data))
        if self._is_behind and len(self._queue) <= QUEUE_LOW:
            self._is_behind = False
            effects.append(Arrived([RoomAgain()]))

    def _downstream(self, reader: CafReader, effects: list[_Effect]) -> None:
        """Take what comes on the peer's stream."""
        streams = self._streams
        if streams is None or not streams.their_source:
            msg = "a message on a stream that was not opened"
            raise MalformedHandshake(msg)
        said = streams.read_down(reader)
        if isinstance(said, StreamEnd):
            effects += self._end(f"the peer ended the peering ({said.how})")
            return
        found, at = read_messages(reader.buffer, said.at, said.messages)
        reader.at = at
        self._last_batch = reader.number(8)
        reader.finish()
        self._arrived += said.messages
        effects.append(Arrived(found))

    def _directed(self, reader: CafReader, effects: list[_Effect]) -> None:
        """Take a message that is for this endpoint alone: it crosses no other link."""
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
        """Ask a silent peer whether it is there; end what stays silent, or takes nothing."""
        if self.is_over():
            return []
        if now >= self._heard + SILENCE_LIMIT:
            text = f"it was silent for {SILENCE_LIMIT:g} s"
            return self._end(text, PeerSilent(text))
        if self._is_behind and now >= self.credited + STUCK_LIMIT:
            text = f"{self.queued:,} messages wait and it took none for {STUCK_LIMIT:g} s"
            return self._end(text, PeerSilent(text))
        if now < max(self._heard, self._asked) + PING_INTERVAL or self.peer is None:
            return []
        self._asked = now
        asked = caf_frame(
            CafOperation.DIRECT,
            b"\0" + _INFO_ASKED,
            flags=CafFlag.NAMED,
            data=NORMAL,
            source=_ASKER,
            target=_SPAWN_NAME,
        )
        return [Transmit(asked)]

    def lost(self, reason: str) -> list[_Effect]:
        """Take note that the connection broke."""
        return self._end(reason, LinkLost(reason))

    def close(self, reason: str) -> list[_Effect]:
        """Say goodbye and end."""
        return self._end(reason)

    def redundant(self) -> list[_Effect]:
        """End, as another connection with the peer stands."""
        text = f"{self.peer} is a peer already, by another connection"
        return self._end(text, AlreadyLinked(text))

    def _end(self, reason: str, error: BaspError | None = None) -> list[_Effect]:
        """End once: a Broker whose streams are not ended waits for that as it shuts down."""
        if self.is_over():
            return []
        self.state = BrokerState.ENDED
        self._queue.clear()
        self.waiting = 0
        streams, words = self._streams, b""
        if streams is not None:
            words += streams.close() if streams.their_sink else b""
            words += streams.drop() if streams.their_source else b""
            nodes = self._own.to_bytes() + streams.peer.node.to_bytes()
            words += caf_frame(CafOperation.DOWN, nodes + _SHUT_DOWN, source=CORE)
        return [*([Transmit(words)] if words else ()), Closed(reason, error)]
