r"""Both ends of a peering with Zeek Broker 2.x, as one pure machine for the stream driver.

Each frame is a length of 4 bytes, big-endian like all numbers, and a body of that length:

| phase | frame |
|---|---|
| handshake | 1 type; probe 7: magic; hello 6: magic, 16 id, 1 lowest, 1 highest version; \
version_select 8: magic, id, 1 version; drop_conn 9: magic, id, 1 code, text; \
originator_syn 10, responder_syn_ack 11: topics; originator_ack 12: nothing |
| peered | 16 sender, 16 receiver (zeros: all), 1 type, 2 TTL, 2 length of topic, \
topic, payload |

Both sides start at the same time: the acceptor sends a probe and the dialer a hello. The side
with the smaller id is the originator. The two sequences below are those of a dialer with the
smaller and with the larger id (`>` sent, `<` received)::

    < probe  > hello  < hello  > version_select  > originator_syn  < syn_ack  > orig_ack
    < probe  > hello  < version_select  < originator_syn  > syn_ack  < orig_ack

| state | waits for | left by |
|---|---|---|
| HELLO | hello; a dialer also for version_select | either frame |
| VERSION | version_select: this side has the larger id and has sent its hello | that frame |
| PARKED | the result of another handshake of the pair | that result |
| SYN, SYN_ACK, ACK | the frame of that name | that frame |
| PEERED | messages | `close`, the peer |
| LEAVING | the reply to our `BYE` | that reply, or `LEAVE_LIMIT` seconds |
| ENDED | nothing | |

A pair has one connection. Once one is peered, the originator drops any other as redundant; if
the first one fails, a parked one continues. A peer that connects again although a connection is
peered may have lost that connection: a ping is sent on it, and without a reply it is closed.

Source: bytes that Broker 2.7.0 sent in both roles; the tests contain them. Only `take`, `tick`,
`lost` and `close` change the state; the driver owns the socket and the clock.
"""

import struct
from collections.abc import Callable, MutableMapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple
from uuid import UUID

from callboard.caf.wire.varbyte import read_varbyte, write_varbyte
from callboard.kernel.wire import Admitted, Arrived, Closed, Transmit, wire_of
from callboard.model.errors import EndpointError, InvalidData
from callboard.protocol_errors import (
    AlreadyLinked,
    BaspError,
    IncompatibleVersion,
    LinkLost,
    MalformedFrame,
    MalformedHandshake,
    PayloadTooLarge,
    PeerSilent,
)
from callboard.topics.machine.status import EC
from callboard.topics.machine.topic import checked_topic

MAGIC: Final = b"ZEEK"
VERSION: Final = 1

#: Receiver id of messages for all endpoints.
NOBODY: Final = bytes(16)

#: TTL of an endpoint's own messages.
TTL: Final = 16

#: Seconds that the leaving side waits for the reply to its `BYE`, as in Broker.
LEAVE_LIMIT: Final = 3.0

#: Seconds of silence until a ping is sent, and until the connection is closed.
PING_INTERVAL: Final = 10.0
SILENCE_LIMIT: Final = 25.0

#: Seconds in which a peer that has connected again must reply on its old connection.
DOUBT_LIMIT: Final = 3.0

#: Seconds between checks of a parked connection.
PARKED_POLL_SECONDS: Final = 0.05

#: Largest frame of the handshake in bytes; only a filter with many topics comes near it.
HANDSHAKE_FRAME_LIMIT: Final = 4 << 20

#: Topics and bytes of a filter. Each change of a filter costs time in proportion to its size.
FILTER_LIMIT: Final = 16_384
FILTER_SIZE_LIMIT: Final = HANDSHAKE_FRAME_LIMIT

#: Default for the largest frame after the handshake, in bytes.
FRAME_LIMIT: Final = 64 << 20

_LENGTH: Final = struct.Struct(">I")
_HEAD: Final = struct.Struct(">BHH")  # after sender and receiver: type, TTL, length of topic
_HEAD_AT: Final = 32
_TOPIC_AT: Final = _HEAD_AT + _HEAD.size
_CONTROL_TOPIC: Final = b"<$>"
_BYE: Final = b"BYE"
_SIGN_OF_LIFE: Final = b"callboard"
_SHOWN: Final = 200


class PeeringFrame:
    """Types of frames, as plain integers: reading an enum member takes ten times longer."""

    DATA: Final = 1
    COMMAND: Final = 2
    ROUTING_UPDATE: Final = 3
    PING: Final = 4
    PONG: Final = 5
    HELLO: Final = 6
    PROBE: Final = 7
    VERSION_SELECT: Final = 8
    DROP_CONN: Final = 9
    ORIGINATOR_SYN: Final = 10
    RESPONDER_SYN_ACK: Final = 11
    ORIGINATOR_ACK: Final = 12


#: Layout of the fixed fields after the type.
_FIXED: Final = {
    PeeringFrame.HELLO: struct.Struct(">4s16sBB"),
    PeeringFrame.PROBE: struct.Struct(">4s"),
    PeeringFrame.VERSION_SELECT: struct.Struct(">4s16sB"),
    PeeringFrame.DROP_CONN: struct.Struct(">4s16sB"),
}


class PeeringState(Enum):
    """State of a connection."""

    HELLO = "hello"
    VERSION = "version"
    PARKED = "parked"
    SYN = "syn"
    SYN_ACK = "syn_ack"
    ACK = "ack"
    PEERED = "peered"
    LEAVING = "leaving"
    ENDED = "ended"


#: States in which messages are exchanged.
_OPEN: Final = frozenset({PeeringState.PEERED, PeeringState.LEAVING})
#: States in which at most the id of the peer is known.
_BEFORE_SYN: Final = frozenset({PeeringState.HELLO, PeeringState.VERSION})
_UNPROVEN: Final = _BEFORE_SYN | {PeeringState.PARKED, PeeringState.SYN}


class PeerMessage(NamedTuple):
    """Received data or a command; the payload is not parsed.

    Attributes:
        kind: `PeeringFrame.DATA` or `COMMAND`.
        receiver: id of the receiving endpoint; `NOBODY` for all.
        ttl: links that it could still cross when it was sent.
        topic: bytes that may be invalid UTF-8.
        payload: a value or a command in Broker's encoding.
    """

    kind: int
    receiver: bytes
    ttl: int
    topic: bytes
    payload: bytes


class PeerFilter(NamedTuple):
    """A new filter of the peer; it replaces the old one."""

    topics: tuple[str, ...]


_Effect = Transmit | Arrived | Admitted | Closed


# ------------------------------------------------------------------------------- frames


def frame(*parts: bytes) -> bytes:
    """Return a frame of these parts, with its length in front."""
    return _LENGTH.pack(sum(map(len, parts))) + b"".join(parts)


def handshake_frame(kind: int, *fields: Any, rest: bytes = b"") -> bytes:
    """Return a handshake frame.

    >>> handshake_frame(PeeringFrame.PROBE, MAGIC).hex()
    '00000005075a45454b'
    """
    return frame(bytes((kind,)), _FIXED[kind].pack(*fields) if fields else b"", rest)


def message_frame(
    sender: bytes, receiver: bytes, kind: int, topic: bytes, payload: bytes, ttl: int = TTL
) -> bytes:
    """Return a frame for use after the handshake."""
    return frame(sender, receiver, _HEAD.pack(kind, ttl, len(topic)), topic, payload)


def filter_to_bytes(topics: Sequence[str]) -> bytes:
    """Return an encoded filter: a varbyte count, and each topic after its length."""
    out = bytearray()
    write_varbyte(len(topics), out)
    for topic in topics:
        text = topic.encode()
        write_varbyte(len(text), out)
        out += text
    return bytes(out)


def filter_from_bytes(buffer: bytes) -> tuple[str, ...]:
    """Return the filter that fills the buffer.

    Raises:
        InvalidData: the buffer is not a filter.
    """
    try:
        count, offset = read_varbyte(buffer, 0)
        if count > FILTER_LIMIT:
            msg = f"a filter of {count:,} topics exceeds the limit of {FILTER_LIMIT:,}"
            raise InvalidData(msg)
        topics = []
        for _ in range(count):
            length, offset = read_varbyte(buffer, offset)
            if length > len(buffer) - offset:
                left = len(buffer) - offset
                msg = f"a topic of {length:,} bytes, but {left:,} bytes are left"
                raise InvalidData(msg)
            topics.append(checked_topic(buffer[offset : offset + length].decode()))
            offset += length
    except (IndexError, UnicodeDecodeError, EndpointError) as cause:
        msg = f"a filter cannot be read: {cause}"
        raise InvalidData(msg) from cause
    if offset != len(buffer):
        msg = f"{len(buffer) - offset:,} bytes follow a filter of {offset:,} bytes"
        raise InvalidData(msg)
    return tuple(topics)


def message_of(body: bytes) -> tuple[bytes, PeerMessage]:
    """Return sender and message of a frame after the handshake.

    Raises:
        MalformedFrame: the frame is shorter than its fields require.
    """
    if len(body) < _TOPIC_AT:
        msg = f"a message of {len(body)} bytes is shorter than its head of {_TOPIC_AT}"
        raise MalformedFrame(msg)
    kind, ttl, length = _HEAD.unpack_from(body, _HEAD_AT)
    end = _TOPIC_AT + length
    if end > len(body):
        msg = f"a topic of {length:,} bytes in a message of {len(body):,}"
        raise MalformedFrame(msg)
    message = PeerMessage(kind, body[16:_HEAD_AT], ttl, body[_TOPIC_AT:end], body[end:])
    return body[:16], message


class FrameBuffer:
    """Splits a stream into frames; parts of an incomplete one are kept without copying."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._waiting = 0
        #: Bytes known to be needed for the next frame.
        self._needed = _LENGTH.size

    def take(self, data: bytes, limit: int) -> list[bytes]:
        """Return the bodies of the frames that are now complete.

        Raises:
            PayloadTooLarge: a length field exceeds the limit.
            MalformedFrame: a length field is 0.
        """
        self._waiting += len(data)
        if self._waiting < self._needed:
            self._parts.append(data)
            return []
        if self._parts:
            data = b"".join((*self._parts, data))
            self._parts.clear()
        bodies, offset, size = [], 0, len(data)
        while size - offset >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(data, offset)
            if not 0 < length <= limit:
                self._refuse(length, limit, data[offset:])
            end = offset + _LENGTH.size + length
            if end > size:
                break
            bodies.append(data[offset + _LENGTH.size : end])
            offset = end
        rest = data[offset:]
        self._waiting, self._needed = len(rest), _LENGTH.size
        if rest:
            self._parts.append(rest)
            if len(rest) >= _LENGTH.size:
                self._needed += _LENGTH.unpack_from(rest)[0]
        return bodies

    @staticmethod
    def _refuse(length: int, limit: int, data: bytes) -> None:
        wire = wire_of(data)
        hint = f"; the peer speaks {wire}" if wire else ""
        if not length:
            msg = f"a frame of 0 bytes{hint}"
            raise MalformedFrame(msg)
        msg = f"a frame of {length:,} B exceeds the limit of {limit:,} B{hint}"
        raise PayloadTooLarge(msg)


# ------------------------------------------------------------------------------- the machine


class PeeringSession:
    """One connection.

    Attributes:
        state: the state of the connection.
        peer: id of the peer, 16 bytes; empty until it is known.
        topics: the peer's current filter.
        sent_filter: our filter as last sent.
        is_confirmed: whether the peer is known to have applied our filter. A responder learns
            it from the handshake, an originator from the next message.
    """

    def __init__(
        self,
        own: bytes,
        topics: Callable[[], Sequence[str]],
        known: MutableMapping[bytes, "PeeringSession"],
        now: float,
        *,
        is_dialed: bool,
        frame_limit: int = FRAME_LIMIT,
    ) -> None:
        """Create a session that is not started.

        Args:
            own: id of this endpoint.
            topics: returns our filter; called when it is sent.
            known: the sessions of this endpoint that are the chosen connection of their pair,
                by the peer's id; shared by all sessions.
            now: monotonic seconds.
            is_dialed: whether this side dialed.
            frame_limit: largest message in bytes.
        """
        self.state = PeeringState.HELLO
        self.peer = b""
        self.topics: tuple[str, ...] = ()
        self.sent_filter: tuple[str, ...] = ()
        self.is_confirmed = False
        self._own = own
        self._wanted = topics
        self._known = known
        self._is_dialed = is_dialed
        self._limit = frame_limit
        self._frames = FrameBuffer()
        self._heard_at = self._pinged_at = self._checked_at = self._now = now
        #: Deadline for a reply from a peer that has connected again; None if it has not.
        self._reply_deadline: float | None = None
        #: Deadline for the reply to our `BYE`; 0 until the next tick sets it.
        self._bye_deadline = 0.0
        self._reason = ""
        self._bye = b""

    # --- for the driver ---

    @property
    def next_tick_at(self) -> float:
        """Time at which `tick` must be called."""
        if self.state is PeeringState.LEAVING:
            return self._bye_deadline
        if self.state is PeeringState.PARKED:
            return self._checked_at + PARKED_POLL_SECONDS
        due = min(
            max(self._heard_at, self._pinged_at) + PING_INTERVAL, self._heard_at + SILENCE_LIMIT
        )
        return due if self._reply_deadline is None else min(due, self._reply_deadline)

    def is_over(self) -> bool:
        """Return whether the connection has ended."""
        return self.state is PeeringState.ENDED

    def start(self) -> list[_Effect]:
        """Send a hello as the dialer, a probe as the acceptor."""
        return [Transmit(self._hello() if self._is_dialed else _PROBE)]

    def take(self, data: bytes, now: float) -> tuple[list[Any], list[_Effect]]:
        """Handle received bytes; return either messages or effects."""
        if self.is_over():
            return [], []
        if data:
            self._heard_at, self._reply_deadline = now, None
        self._now = now
        messages: list[Any] = []
        effects: list[_Effect] = []
        try:
            limit = HANDSHAKE_FRAME_LIMIT if self.state in _UNPROVEN else self._limit
            for body in self._frames.take(data, limit):
                if self.state in _OPEN:
                    self._handle_message(body, messages, effects)
                else:
                    effects += self._handle_handshake(body)
                if self.is_over():
                    return [], effects
        except BaspError as error:
            if messages:
                effects.append(Arrived(messages))
            if self.state not in _OPEN:
                effects.append(Transmit(self._drop_frame(EC.InvalidMessage, str(error))))
            return [], [*effects, *self._end(str(error), error)]
        if not effects:
            return messages, []
        return [], [*effects, Arrived(messages)] if messages else effects

    def tick(self, now: float) -> list[_Effect]:
        """Act on timers.

        A silent peer is pinged and later disconnected. A parked session checks whether it can
        continue.
        """
        self._now = now
        if self.state is PeeringState.LEAVING:
            self._bye_deadline = self._bye_deadline or now + LEAVE_LIMIT
            return self._end(self._reason) if now >= self._bye_deadline else []
        if self.state is PeeringState.PARKED:
            self._checked_at = now
            return self._try_select()
        limit = self._heard_at + SILENCE_LIMIT
        limit = limit if self._reply_deadline is None else min(limit, self._reply_deadline)
        if now >= limit:
            reason = f"nothing was received for {now - self._heard_at:.0f} s"
            return self._end(reason, PeerSilent(reason))
        if self.state is not PeeringState.PEERED or now < self._pinged_at + PING_INTERVAL:
            return []
        return [self._ping(now)]

    def lost(self, reason: str) -> list[_Effect]:
        """Handle the loss of the connection."""
        if self.state is PeeringState.LEAVING:
            return self._end(self._reason)
        if self.state is PeeringState.HELLO:
            reason += "; check that the peer speaks Broker 2.x, and that disable_ssl is equal"
        return self._end(reason, LinkLost(reason))

    def close(self, reason: str) -> list[_Effect]:
        """Send `BYE` and end after the reply; end at once before the peering."""
        if self.state is PeeringState.LEAVING:
            return []
        if self.state is not PeeringState.PEERED:
            return self._end(reason)
        self.state, self._reason = PeeringState.LEAVING, reason
        self._bye = _BYE + self._own[-8:]
        return [Transmit(self._control(PeeringFrame.PING, self._bye))]

    # --- sending ---

    def send(self, topic: bytes, payload: bytes, ttl: int, receiver: bytes = NOBODY) -> bytes:
        """Return data as bytes to write; empty unless peered."""
        if self.state is not PeeringState.PEERED:
            return b""
        return message_frame(self._own, receiver, PeeringFrame.DATA, topic, payload, ttl)

    def send_filter(self, topics: Sequence[str]) -> bytes:
        """Return our filter as bytes to write; empty if the peer has it already."""
        if self.state is not PeeringState.PEERED or tuple(topics) == self.sent_filter:
            return b""
        self.sent_filter = tuple(topics)
        return self._control(PeeringFrame.ROUTING_UPDATE, filter_to_bytes(self.sent_filter))

    def ask(self) -> bytes:
        """Return a ping as bytes to write; the reply sets `is_confirmed`."""
        return self._control(PeeringFrame.PING, _SIGN_OF_LIFE)

    def _control(self, kind: int, payload: bytes) -> bytes:
        """Return a frame for this peer alone."""
        return message_frame(self._own, self.peer, kind, _CONTROL_TOPIC, payload)

    def _hello(self) -> bytes:
        return handshake_frame(PeeringFrame.HELLO, MAGIC, self._own, VERSION, VERSION)

    def _ping(self, now: float) -> Transmit:
        """Send a ping."""
        self._pinged_at = now
        return Transmit(self.ask())

    # --- the handshake ---

    def _handle_handshake(self, body: bytes) -> list[_Effect]:
        """Handle a handshake frame."""
        kind, rest = body[0], body[1:]
        form = _FIXED.get(kind)
        fields: Sequence[Any] = ()
        if form is not None:
            has_rest = kind == PeeringFrame.DROP_CONN
            if len(rest) < form.size or (len(rest) > form.size and not has_rest):
                return self._drop(EC.InvalidMessage, f"a frame {kind} of {len(rest)} bytes")
            magic, *fields = form.unpack_from(rest)
            if magic != MAGIC:
                return self._drop(EC.WrongMagicNumber, "wrong magic number")
        if kind == PeeringFrame.DROP_CONN:
            return self._handle_drop(*fields, rest=rest[_FIXED[kind].size :])
        if kind == PeeringFrame.PROBE and self.state in _BEFORE_SYN:
            return []
        if kind == PeeringFrame.HELLO and self.state is PeeringState.HELLO:
            return self._handle_hello(*fields)
        awaits_version = self.state is PeeringState.VERSION or (
            self.state is PeeringState.HELLO and self._is_dialed
        )
        if kind == PeeringFrame.VERSION_SELECT and awaits_version:
            return self._handle_version(*fields)
        return self._handle_filters(kind, rest)

    def _handle_filters(self, kind: int, rest: bytes) -> list[_Effect]:
        """Handle a frame of the handshake's last part."""
        match kind, self.state:
            case PeeringFrame.ORIGINATOR_SYN, PeeringState.SYN:
                self.topics, self.state = _filter(rest), PeeringState.ACK
                return [self._own_filter(PeeringFrame.RESPONDER_SYN_ACK)]
            case PeeringFrame.RESPONDER_SYN_ACK, PeeringState.SYN_ACK:
                self.topics = _filter(rest)
                return [Transmit(handshake_frame(PeeringFrame.ORIGINATOR_ACK)), *self._peered()]
            case PeeringFrame.ORIGINATOR_ACK, PeeringState.ACK if not rest:
                self.is_confirmed = True
                return self._peered()
            case _:
                text = f"unexpected frame {kind} in state {self.state.value}"
                return self._drop(EC.UnexpectedHandshakeMessage, text)

    def _handle_hello(self, peer: bytes, lowest: int, highest: int) -> list[_Effect]:
        """Handle the peer's hello; the ids decide which side is the originator."""
        if not lowest <= VERSION <= highest:
            text = f"unsupported versions offered: {lowest} to {highest}"
            return self._drop(EC.PeerIncompatible, text)
        if self._is_impossible(peer):
            return self._drop(EC.InvalidPeeringRequest, "an endpoint cannot peer with itself")
        self.peer = peer
        if self._own < peer:
            return self._try_select()
        self.state = PeeringState.VERSION
        # A dialer has sent its hello in `start`.
        return [] if self._is_dialed else [Transmit(self._hello())]

    def _handle_version(self, peer: bytes, version: int) -> list[_Effect]:
        """Handle the originator's choice of a version: this side is the responder."""
        if version != VERSION:
            text = f"unsupported version selected: {version}"
            return self._drop(EC.PeerIncompatible, text)
        if self._is_impossible(peer):
            return self._drop(EC.InvalidPeeringRequest, "an endpoint cannot peer with itself")
        if peer > self._own or self.peer not in (b"", peer):
            text = "the side with the smaller id, as in its hello, selects the version"
            return self._drop(EC.UnexpectedHandshakeMessage, text)
        other = self._known.get(peer)
        if other is not None:
            other.doubt(self._now)
            text = "detected redundant connection at the responder"
            return self._drop(EC.LogicError, text)
        self._known[peer] = self
        self.peer, self.state = peer, PeeringState.SYN
        return []

    def _is_impossible(self, peer: bytes) -> bool:
        """Return whether a peer cannot have that id."""
        return peer in (self._own, NOBODY)

    def _try_select(self) -> list[_Effect]:
        """Continue as the originator unless another connection of the pair exists."""
        other = self._known.get(self.peer)
        if other is None:
            self._known[self.peer] = self
            self.state = PeeringState.SYN_ACK
            select = handshake_frame(PeeringFrame.VERSION_SELECT, MAGIC, self._own, VERSION)
            return [Transmit(select), self._own_filter(PeeringFrame.ORIGINATOR_SYN)]
        if other.state in _OPEN:
            other.doubt(self._now)
            return self._drop(EC.RedundantConnection, "redundant connection")
        self.state = PeeringState.PARKED
        return []

    def _own_filter(self, kind: int) -> Transmit:
        """Return the handshake frame with our filter."""
        self.sent_filter = tuple(self._wanted())
        return Transmit(handshake_frame(kind, rest=filter_to_bytes(self.sent_filter)))

    def _peered(self) -> list[_Effect]:
        """Complete the handshake."""
        self.state = PeeringState.PEERED
        return [Admitted(str(UUID(bytes=self.peer)), self.peer)]

    def _drop(self, code: EC, text: str) -> list[_Effect]:
        """Send the peer the reason and end the session."""
        kinds = {
            EC.PeerIncompatible: IncompatibleVersion,
            EC.RedundantConnection: AlreadyLinked,
        }
        error = kinds.get(code, MalformedHandshake)(text)
        return [Transmit(self._drop_frame(code, text)), *self._end(text, error)]

    def _drop_frame(self, code: EC, text: str) -> bytes:
        """Return the frame with the reason."""
        content = text.encode()[:_SHOWN]
        size = bytearray()
        write_varbyte(len(content), size)
        fields = MAGIC, self._own, code
        return handshake_frame(PeeringFrame.DROP_CONN, *fields, rest=bytes(size) + content)

    def _handle_drop(self, peer: bytes, code: int, *, rest: bytes) -> list[_Effect]:
        """End the session: the peer has refused the connection."""
        try:
            length, offset = read_varbyte(rest, 0)
        except (IndexError, InvalidData):
            length, offset = 0, 0
        text = rest[offset : offset + length].decode(errors="replace")[:_SHOWN]
        if code in (EC.RedundantConnection, EC.LogicError) and self._has_other(peer):
            self.peer = peer
            return self._end(text, AlreadyLinked(text))
        reason = f"the peer refuses the connection: {text} (code {code})"
        kind = IncompatibleVersion if code == EC.PeerIncompatible else LinkLost
        return self._end(reason, kind(reason))

    def _has_other(self, peer: bytes) -> bool:
        """Return whether another connection with a peer is the chosen one."""
        return self._known.get(peer) not in (None, self)

    # --- messages ---

    def _handle_message(self, body: bytes, messages: list[Any], effects: list[_Effect]) -> None:
        """Handle a frame after the handshake."""
        sender, message = message_of(body)
        self.is_confirmed = True
        kind = message.kind
        if kind in (PeeringFrame.DATA, PeeringFrame.COMMAND):
            messages.append(message)
            return
        if kind == PeeringFrame.PING:
            reply = message_frame(
                self._own, sender, PeeringFrame.PONG, message.topic, message.payload
            )
            # The reply confirms that all earlier messages were handled, so deliver them first.
            effects += (
                [Arrived([*messages]), Transmit(reply)] if messages else [Transmit(reply)]
            )
            messages.clear()
        elif kind == PeeringFrame.ROUTING_UPDATE:
            self.topics = _filter(message.payload)
            messages.append(PeerFilter(self.topics))
        elif kind == PeeringFrame.PONG:
            if self.state is PeeringState.LEAVING and message.payload == self._bye:
                effects += [Arrived([*messages]), *self._end(self._reason)]
                messages.clear()
        else:
            msg = f"a message has the type {kind}; types are 1 to 5"
            raise MalformedFrame(msg)

    def doubt(self, now: float) -> None:
        """Require a reply soon: the peer has connected again and may have lost this."""
        if self.state is PeeringState.PEERED and self._reply_deadline is None:
            self._reply_deadline = now + DOUBT_LIMIT
            self._pinged_at = now - PING_INTERVAL

    def _end(self, reason: str, error: BaspError | None = None) -> list[_Effect]:
        """End the session once."""
        if self.is_over():
            return []
        self.state = PeeringState.ENDED
        if self._known.get(self.peer) is self:
            del self._known[self.peer]
        return [Closed(reason, error)]


_PROBE: Final = handshake_frame(PeeringFrame.PROBE, MAGIC)


def _filter(buffer: bytes) -> tuple[str, ...]:
    """Return a peer's filter.

    Raises:
        MalformedHandshake: the buffer is not a filter.
    """
    try:
        if len(buffer) > FILTER_SIZE_LIMIT:
            msg = f"a filter of {len(buffer):,} B exceeds the limit of {FILTER_SIZE_LIMIT:,} B"
            raise MalformedHandshake(msg)
        return filter_from_bytes(buffer)
    except InvalidData as error:
        raise MalformedHandshake(str(error)[:_SHOWN]) from error
