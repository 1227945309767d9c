"""The protocol machine of one connection with a CAF node. Pure.

    dialer                                     acceptor
      client_handshake ──────────────────────────>
      <──────────────────────── server_handshake       application ids, a published actor
      client_handshake, selected ────────────────>     or it closes, if the node is linked
      direct, routed, monitor, down, heartbeat  <────>

Both sides send their first frame at once. `NodeIntroduced` is the first message; the driver
then calls `accept`. If the two nodes already have a connection, the driver of the dialer calls
`redundant` instead. The acceptor waits, because the dialer must read the handshake before the
connection ends. If the dialer loses the earlier connection, it selects this one, and the
acceptor's driver gets `NodeIntroduced` again.

Nothing that a peer sends raises an exception: a violation ends the connection, with the name of
CAF's own error. CAF has no limits and, by default, no heartbeats. So this side queries a silent
peer, whose spawn server always answers, and ends the connection if it stays silent.
"""

from enum import Enum, auto
from typing import Any, Final, NamedTuple

from callboard.caf.errors import CafError
from callboard.caf.wire.frame import (
    CAF_VERSION,
    CafFlag,
    CafFrame,
    CafFrames,
    CafOperation,
    caf_frame,
)
from callboard.caf.wire.message import NO_ERROR, Atom, MessageCodec, ValueReader
from callboard.caf.wire.reader import CafActor, CafNode, atom, texts_bytes, varbyte
from callboard.kernel.wire import Admitted, Arrived, Closed, Transmit
from callboard.protocol_errors import (
    AlreadyLinked,
    BaspError,
    ConnectedToItself,
    IncompatibleApplication,
    LinkLost,
    MalformedFrame,
    MessageRefused,
    PeerSilent,
    UnknownMessageType,
)

#: The application id of nodes that configure none.
GENERIC: Final = "generic-caf-app"

#: Bytes of the largest frame before the peer has introduced itself.
HANDSHAKE_LIMIT: Final = 65_536

#: Actors in the forwarding stack of a message; CAF itself uses one or two.
STACK_LIMIT: Final = 64

#: Seconds between two heartbeats; a CAF node with a `connection-timeout` needs them.
HEARTBEAT_SECONDS: Final = 1.0

#: Seconds of silence after which the peer is queried, and after which the connection ends. A
#: CAF node answers when one of its workers is free, so the second one is long.
QUERY_SECONDS: Final = 5.0
SILENCE_LIMIT: Final = 30.0

#: Numbers that every node has: the spawn server, the registry of names, and the asker of ours.
SPAWN_SERVER: Final = 1
CONFIG_SERVER: Final = 2
ASKER: Final = 3

#: Names of the first two in frames.
SPAWN_NAME: Final = atom("SpawnServ")
CONFIG_NAME: Final = atom("ConfigServ")

#: Parts of a message id: a response, the category of normal priority, the request's number.
RESPONSE: Final = 1 << 63
NORMAL: Final = 1 << 60
CATEGORY: Final = 3 << 60
REQUEST_MASK: Final = (1 << 60) - 1

#: Asks a spawn server for its description; it answers if the node is alive.
INFO_QUERY: Final = MessageCodec().encode((Atom("sys"), Atom("get"), "info"))

_Effect = Transmit | Arrived | Admitted | Closed


class NodeIntroduced(NamedTuple):
    """The peer has introduced itself.

    Attributes:
        node: the peer's node.
        actor: the number of the actor published at the peer's port; 0 for none.
        interface: the signatures of this actor; empty for an untyped actor.
        is_selected: whether the peer has selected this one of its connections to the node.
    """

    node: CafNode
    actor: int = 0
    interface: tuple[str, ...] = ()
    is_selected: bool = False


class MessageFrame(NamedTuple):
    """A message for an actor of this node.

    Attributes:
        node: the node of the sender.
        source: number of the sender; 0 for none.
        target: number of the receiver, or its name as a number.
        is_named: whether the target is a name.
        message_id: its kind and the number of a request.
        payload: a buffer with the message.
        offset: where the message begins.
    """

    node: CafNode
    source: int
    target: int
    is_named: bool
    message_id: int
    payload: bytes
    offset: int


class MonitorFrame(NamedTuple):
    """A node wants to learn the end of an actor of this node."""

    node: CafNode
    actor: int


class DownFrame(NamedTuple):
    """An actor of another node has ended."""

    node: CafNode
    actor: int
    error: CafError | None


class PassingFrame(NamedTuple):
    """A frame for another node, which is forwarded unchanged.

    Attributes:
        source: the node that it came from.
        destination: the node that it is for.
        frame: the frame.
        octets: the frame as bytes.
    """

    source: CafNode
    destination: CafNode
    frame: CafFrame
    octets: bytes


class CafState(Enum):
    """State of a connection."""

    AWAITING = auto()  # the peer's handshake
    KNOWN = auto()  # the driver's decision
    OPEN = auto()
    ENDED = auto()


class CafConnection:
    """The machine of one connection.

    Attributes:
        state: only this class changes it.
        peer: the peer's node, once known.
    """

    def __init__(
        self,
        own: CafNode,
        now: float,
        *,
        is_dialed: bool,
        limit: int,
        published: int = 0,
        interface: tuple[str, ...] = (),
        applications: tuple[str, ...] = (GENERIC,),
    ) -> None:
        """Create the machine of a new connection.

        Args:
            own: the node of this side.
            now: monotonic seconds.
            is_dialed: whether this side dialed.
            limit: largest payload in bytes.
            published: number of the actor that this side publishes at the port; 0 for none.
            interface: signatures of this actor.
            applications: ids of applications; the sides need one in common.
        """
        self.own, self.state = own, CafState.AWAITING
        self.peer: CafNode | None = None
        self._is_dialed, self._limit = is_dialed, limit
        self._published = published, interface
        self._applications = applications
        self._frames = CafFrames(min(limit, HANDSHAKE_LIMIT))
        self._codec = MessageCodec()
        self._heard_at = self._queried_at = now
        self._beat_at = now + HEARTBEAT_SECONDS

    @property
    def next_tick_at(self) -> float:
        """Time of the next `tick`."""
        if self.state is CafState.ENDED:
            return float("inf")
        query_at = max(self._heard_at, self._queried_at) + QUERY_SECONDS
        return min(self._beat_at, query_at, self._heard_at + SILENCE_LIMIT)

    def start(self) -> list[_Effect]:
        """Introduce this side."""
        if self._is_dialed:
            return [Transmit(caf_frame(CafOperation.CLIENT_HANDSHAKE, self.own.to_bytes()))]
        actor, interface = self._published
        payload = self.own.to_bytes() + texts_bytes(self._applications)
        payload += actor.to_bytes(8) + texts_bytes(interface)
        handshake = caf_frame(CafOperation.SERVER_HANDSHAKE, payload, data=CAF_VERSION)
        return [Transmit(handshake)]

    def accept(self) -> list[_Effect]:
        """Use this connection for the peer's node, which has introduced itself."""
        if self.state is not CafState.KNOWN:
            return []
        self.state = CafState.OPEN
        admitted = Admitted(str(self.peer))
        if not self._is_dialed:
            return [admitted]
        selected = self.own.to_bytes()
        frame = caf_frame(CafOperation.CLIENT_HANDSHAKE, selected, flags=CafFlag.SELECTED)
        return [Transmit(frame), admitted]

    def redundant(self) -> list[_Effect]:
        """End this connection in favor of another one with the same node."""
        text = f"{self.peer} is already linked (redundant_connection)"
        return self._end(text, AlreadyLinked(text))

    def take(self, data: bytes, now: float) -> tuple[list[Any], list[_Effect]]:
        """Process bytes from the peer; return the messages in them, and the effects."""
        if self.state is CafState.ENDED:
            return [], []
        self._heard_at = now
        messages: list[Any] = []
        try:
            for frame in self._frames.take(data):
                message = self._message_of(frame)
                if message is not None:
                    messages.append(message)
        except BaspError as error:
            is_named = isinstance(error, IncompatibleApplication | ConnectedToItself)
            text = str(error) if is_named else f"{error} (malformed_basp_message)"
            arrived = [Arrived(messages)] if messages else []
            return [], [*arrived, *self._end(text, error)]
        return messages, []

    def tick(self, now: float) -> list[_Effect]:
        """Send a heartbeat or a query; end the connection of a silent peer."""
        if self.state is CafState.ENDED:
            return []
        if now >= self._heard_at + SILENCE_LIMIT:
            text = f"nothing was received for {SILENCE_LIMIT:g} s (connection_timeout)"
            return self._end(text, PeerSilent(text))
        effects: list[_Effect] = []
        if now >= self._beat_at:
            self._beat_at = now + HEARTBEAT_SECONDS
            if self.state is CafState.OPEN:
                effects.append(Transmit(caf_frame(CafOperation.HEARTBEAT)))
        if now >= max(self._heard_at, self._queried_at) + QUERY_SECONDS:
            self._queried_at = now
            if self.state is CafState.OPEN:
                effects.append(Transmit(named(NORMAL, ASKER, SPAWN_NAME, INFO_QUERY)))
        return effects

    def lost(self, reason: str) -> list[_Effect]:
        """Handle the loss of the connection."""
        if self.state is CafState.AWAITING:
            reason = f"{reason} (disconnect_during_handshake)"
        return self._end(reason, LinkLost(reason))

    def close(self, reason: str) -> list[_Effect]:
        """End the connection from this side; CAF's wire has no farewell."""
        return self._end(reason)

    def _end(self, reason: str, error: BaspError | None = None) -> list[_Effect]:
        """End the connection once."""
        if self.state is CafState.ENDED:
            return []
        self.state = CafState.ENDED
        return [Closed(reason, error)]

    # --- frames ---

    def _message_of(self, frame: CafFrame) -> Any:
        """Return the message of a frame; None for a frame that only keeps the connection alive.

        Raises:
            BaspError: the frame violates the protocol.
        """
        operation = frame.operation
        if operation == CafOperation.HEARTBEAT:
            return None
        reader = ValueReader(self._codec, frame.payload)
        if self.peer is None or operation in (
            CafOperation.SERVER_HANDSHAKE,
            CafOperation.CLIENT_HANDSHAKE,
        ):
            return self._handshake(frame, reader)
        if operation == CafOperation.DIRECT:
            return self._message(frame, reader, self.peer)
        source, destination = _nodes(reader)
        if destination != self.own:
            octets = caf_frame(
                CafOperation(operation),
                frame.payload,
                flags=frame.flags,
                data=frame.data,
                source=frame.source,
                target=frame.target,
            )
            return PassingFrame(source, destination, frame, octets)
        if operation == CafOperation.ROUTED:
            return self._message(frame, reader, source)
        if operation == CafOperation.MONITOR:
            reader.finish()
            return MonitorFrame(source, frame.target)
        return DownFrame(source, frame.source, self._error(reader))

    def _handshake(self, frame: CafFrame, reader: ValueReader) -> NodeIntroduced | None:
        """Handle a handshake.

        Return the event of the first, or of one that selects this link.
        """
        name = CafOperation(frame.operation).name.lower()
        expected = (
            CafOperation.SERVER_HANDSHAKE if self._is_dialed else CafOperation.CLIENT_HANDSHAKE
        )
        if frame.operation != expected:
            msg = f"a {name} frame arrived before the peer's handshake"
            raise MalformedFrame(msg)
        node = reader.node()
        if node is None:
            msg = f"the {name} does not name a node"
            raise MalformedFrame(msg)
        if self.peer is not None:
            if self._is_dialed or node != self.peer:
                msg = f"a second {name}, of {node}, arrived"
                raise MalformedFrame(msg)
            is_selected = frame.flags & CafFlag.SELECTED
            return NodeIntroduced(node, is_selected=True) if is_selected else None
        actor = 0
        interface: tuple[str, ...] = ()
        if self._is_dialed:
            applications = reader.texts()
            if not set(applications) & set(self._applications):
                ids = f"{applications[:9]!r:.200} and {self._applications!r:.200}"
                msg = f"no common application id in {ids} (incompatible_application_ids)"
                raise IncompatibleApplication(msg)
            actor, interface = reader.number(8), reader.texts()
        reader.finish()
        if node == self.own:
            msg = "the address leads to this node itself"
            raise ConnectedToItself(msg)
        self.peer, self.state = node, CafState.KNOWN
        self._frames.limit = self._limit
        return NodeIntroduced(node, actor, interface)

    def _message(self, frame: CafFrame, reader: ValueReader, node: CafNode) -> MessageFrame:
        """Return the message of a direct or routed frame."""
        count = reader.count()
        if count > STACK_LIMIT:
            msg = f"a message passes {count:,} actors, more than {STACK_LIMIT}"
            raise MalformedFrame(msg)
        for _ in range(count):
            reader.actor()
        is_named = bool(frame.flags & CafFlag.NAMED)
        ids = frame.source, frame.target
        return MessageFrame(node, *ids, is_named, frame.data, frame.payload, reader.at)

    def _error(self, reader: ValueReader) -> CafError | None:
        """Return the error with which an actor ended; leave out a context of unknown types."""
        code, start = reader.buffer[reader.at : reader.at + 1], reader.at
        try:
            error = self._codec.read_error(reader)
        except (UnknownMessageType, MessageRefused):
            reader.at = start + 1
            category = reader.name()
            return CafError(code[0], category) if code[0] else None
        reader.finish()
        return error


def _nodes(reader: ValueReader) -> tuple[CafNode, CafNode]:
    """Read the nodes of a frame that may be forwarded."""
    source, destination = reader.node(), reader.node()
    if source is None or destination is None:
        msg = "a routed frame does not name a node"
        raise MalformedFrame(msg)
    return source, destination


# --- frames to send ---


def direct(message_id: int, source: int, target: int, content: bytes) -> bytes:
    """Return a message to an actor of the peer."""
    payload = b"\0" + content
    return caf_frame(
        CafOperation.DIRECT, payload, data=message_id, source=source, target=target
    )


def _stack(actors: tuple[CafActor, ...]) -> bytes:
    """Return the encoded actors that pass on an answer."""
    return varbyte(len(actors)) + b"".join([actor.to_bytes() for actor in actors])


def named(
    message_id: int, source: int, name: int, content: bytes, stack: tuple[CafActor, ...] = ()
) -> bytes:
    """Return a message to the actor with a name at the peer.

    Args:
        message_id: its kind and the number of a request.
        source: number of the sender.
        name: the name as a number.
        content: the message.
        stack: the actors through which the answer is sent; the last one receives it first.
    """
    return caf_frame(
        CafOperation.DIRECT,
        _stack(stack) + content,
        flags=CafFlag.NAMED,
        data=message_id,
        source=source,
        target=name,
    )


def routed(  # the fields of the frame
    nodes: tuple[CafNode, CafNode],
    message_id: int,
    source: int,
    target: int,
    content: bytes,
    *,
    is_named: bool = False,
    stack: tuple[CafActor, ...] = (),
) -> bytes:
    """Return a message from the first node to an actor of the second one."""
    return caf_frame(
        CafOperation.ROUTED,
        nodes[0].to_bytes() + nodes[1].to_bytes() + _stack(stack) + content,
        flags=CafFlag.NAMED if is_named else 0,
        data=message_id,
        source=source,
        target=target,
    )


def monitor(own: CafNode, actor: CafActor) -> bytes:
    """Return the request to learn the end of an actor."""
    payload = own.to_bytes() + actor.node.to_bytes()
    return caf_frame(CafOperation.MONITOR, payload, target=actor.number)


def down(actor: CafActor, watcher: CafNode, error: bytes = NO_ERROR) -> bytes:
    """Return the report of an actor's end to a node; `error` is encoded."""
    payload = actor.node.to_bytes() + watcher.to_bytes() + error
    return caf_frame(CafOperation.DOWN, payload, source=actor.number)
