r"""Both ends of a peering with Zeek Broker 2.x, as one pure machine for the stream driver.

Each frame is a length of 4 bytes, big-endian as all numbers, and so many bytes:

| phase | frame |
|---|---|
| handshake | 1 type; probe 7: magic; hello 6: magic, 16 id, 1 lowest, 1 highest version; \
version_select 8: magic, id, 1 version; drop_conn 9: magic, id, 1 code, text; \
originator_syn 10, responder_syn_ack 11: topics; originator_ack 12: nothing |
| peered | 16 sender, 16 receiver (zeros: all), 1 type, 2 TTL, 2 length of topic, \
topic, payload |

Both sides speak at once: who accepted sends a probe, who dialed a hello, and these cross. The
side with the smaller id is the originator. Seen by who dialed, with the smaller and the larger
id (`>` is sent, `<` comes)::

    < probe  > hello  < hello  > version_select  > originator_syn  < syn_ack  > orig_ack
    < probe  > hello  < version_select  < originator_syn  > syn_ack  < orig_ack

| state | waits for | left by |
|---|---|---|
| HELLO | a hello; who dialed also for a version_select | both |
| VERSION | version_select: this side has the larger id and said hello | it |
| PARKED | the fate of another connection of the pair, which is being made | it |
| SYN, SYN_ACK, ACK | that frame | it |
| PEERED | messages | `close`, the other side |
| LEAVING | the answer to our `BYE` | it, or `LEAVE_LIMIT` seconds |
| ENDED | nothing | |

A pair has one connection: the originator drops a further one as redundant, once the first
stands; if that one fails, the parked one goes on. A peer that comes anew although a connection
stands may have lost that one: it is asked for a sign of life, and ended without.

Source: what Broker 2.7.0 wrote in both roles, kept in the tests. Only `take`, `tick`, `lost`
and `close` change the state; the driver owns socket and clock.
"""

import struct
from collections.abc import Callable, MutableMapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple
from uuid import UUID

from callboard.endpoint.machine.status import EC
from callboard.endpoint.machine.topic import checked_topic
from callboard.kernel.codec import (
    AlreadyLinked,
    BaspError,
    IncompatibleVersion,
    LinkLost,
    MalformedFrame,
    MalformedHandshake,
    PayloadTooLarge,
    PeerSilent,
)
from callboard.kernel.wire import Admitted, Arrived, Closed, Transmit, wire_of
from callboard.model.errors import EndpointError, InvalidData
from callboard.zeek.varbyte import read_varbyte, write_varbyte

MAGIC: Final = b"ZEEK"
VERSION: Final = 1

#: Stands for all endpoints.
NOBODY: Final = bytes(16)

#: TTL of what an endpoint itself says.
TTL: Final = 16

#: Seconds that the leaving side waits for the answer to its `BYE`: Broker's own limit.
LEAVE_LIMIT: Final = 3.0

#: Seconds of silence after which a ping goes, and after which the connection is ended.
PING_INTERVAL: Final = 10.0
SILENCE_LIMIT: Final = 25.0

#: Seconds that a peer which comes anew has to be heard on the connection that stands.
DOUBT_LIMIT: Final = 3.0

#: Seconds between looks of a parked connection at the one that is before it.
PARKED_LOOK: Final = 0.05

#: Bytes of a frame of the handshake: a filter of many topics, and nothing larger.
HANDSHAKE_FRAME_LIMIT: Final = 4 << 20

#: Topics of one filter, and its bytes: each change of it takes its time.
FILTER_LIMIT: Final = 16_384
FILTER_SIZE_LIMIT: Final = HANDSHAKE_FRAME_LIMIT

#: Bytes of a frame behind the handshake, unless the session is told otherwise.
FRAME_LIMIT: Final = 64 << 20

_LENGTH: Final = struct.Struct(">I")
_HEAD: Final = struct.Struct(">BHH")  # behind sender and receiver: type, TTL, length of topic
_HEAD_AT: Final = 32
_TOPIC_AT: Final = _HEAD_AT + _HEAD.size
_CONTROL_TOPIC: Final = b"<$>"
_BYE: Final = b"BYE"
_SIGN_OF_LIFE: Final = b"callboard"
_SHOWN: Final = 200


class PeeringFrame:
    """The types of frames; an attribute of an enum would cost ten times a plain number."""

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


#: How many bytes of fixed form follow the type.
_FIXED: Final = {
    PeeringFrame.HELLO: struct.Struct(">4s16sBB"),
    PeeringFrame.PROBE: struct.Struct(">4s"),
    PeeringFrame.VERSION_SELECT: struct.Struct(">4s16sB"),
    PeeringFrame.DROP_CONN: struct.Struct(">4s16sB"),
}


class PeeringState(Enum):
    """How far a connection is."""

    HELLO = "hello"
    VERSION = "version"
    PARKED = "parked"
    SYN = "syn"
    SYN_ACK = "syn_ack"
    ACK = "ack"
    PEERED = "peered"
    LEAVING = "leaving"
    ENDED = "ended"


#: States in which messages go.
_OPEN: Final = frozenset({PeeringState.PEERED, PeeringState.LEAVING})
#: States in which nothing is known of a peer but an id.
_BEFORE_SYN: Final = frozenset({PeeringState.HELLO, PeeringState.VERSION})
_UNPROVEN: Final = _BEFORE_SYN | {PeeringState.PARKED, PeeringState.SYN}


class PeerMessage(NamedTuple):
    """Data or a command, as it came: nothing of the payload was looked at.

    Attributes:
        kind: `PeeringFrame.DATA` or `COMMAND`.
        receiver: the endpoint that it is for; `NOBODY` for all.
        ttl: the links that it might still cross when it was sent.
        topic: bytes that may be no UTF-8.
        payload: a value or a command in Broker's encoding.
    """

    kind: int
    receiver: bytes
    ttl: int
    topic: bytes
    payload: bytes


class PeerFilter(NamedTuple):
    """The whole filter of the peer, from here on."""

    topics: tuple[str, ...]


_Effect = Transmit | Arrived | Admitted | Closed


# ------------------------------------------------------------------------------- frames


def frame(*parts: bytes) -> bytes:
    """Return a frame of these parts, with its length before it."""
    return _LENGTH.pack(sum(map(len, parts))) + b"".join(parts)


def handshake_frame(kind: int, *fields: Any, rest: bytes = b"") -> bytes:
    """Return a frame of the handshake.

    >>> handshake_frame(PeeringFrame.PROBE, MAGIC).hex()
    '00000005075a45454b'
    """
    return frame(bytes((kind,)), _FIXED[kind].pack(*fields) if fields else b"", rest)


def message_frame(
    sender: bytes, receiver: bytes, kind: int, topic: bytes, payload: bytes, ttl: int = TTL
) -> bytes:
    """Return a frame behind the handshake."""
    return frame(sender, receiver, _HEAD.pack(kind, ttl, len(topic)), topic, payload)


def filter_to_bytes(topics: Sequence[str]) -> bytes:
    """Return the bytes of a filter: a varbyte count, and each topic behind its length."""
    out = bytearray()
    write_varbyte(len(topics), out)
    for topic in topics:
        text = topic.encode()
        write_varbyte(len(text), out)
        out += text
    return bytes(out)


def filter_from_bytes(buffer: bytes) -> tuple[str, ...]:
    """Return the filter that fills the bytes.

    Raises:
        InvalidData: they are none.
    """
    try:
        count, at = read_varbyte(buffer, 0)
        if count > FILTER_LIMIT:
            msg = f"a filter of {count:,} topics exceeds the limit of {FILTER_LIMIT:,}"
            raise InvalidData(msg)
        topics = []
        for _ in range(count):
            length, at = read_varbyte(buffer, at)
            if length > len(buffer) - at:
                msg = f"a topic of {length:,} bytes with {len(buffer) - at:,} left"
                raise InvalidData(msg)
            topics.append(checked_topic(buffer[at : at + length].decode()))
            at += length
    except (IndexError, UnicodeDecodeError, EndpointError) as cause:
        msg = f"a filter cannot be read: {cause}"
        raise InvalidData(msg) from cause
    if at != len(buffer):
        msg = f"{len(buffer) - at:,} bytes follow a filter of {at:,} bytes"
        raise InvalidData(msg)
    return tuple(topics)


def message_of(body: bytes) -> tuple[bytes, PeerMessage]:
    """Return the sender and the message of a frame behind the handshake.

    Raises:
        MalformedFrame: it is too short for what it says.
    """
    if len(body) < _TOPIC_AT:
        msg = f"a message of {len(body)} bytes is shorter than its head of {_TOPIC_AT}"
        raise MalformedFrame(msg)
    kind, ttl, length = _HEAD.unpack_from(body, _HEAD_AT)
    end = _TOPIC_AT + length
    if end > len(body):
        msg = f"a topic of {length:,} bytes in a message of {len(body):,}"
        raise MalformedFrame(msg)
    found = PeerMessage(kind, body[16:_HEAD_AT], ttl, body[_TOPIC_AT:end], body[end:])
    return body[:16], found


class FrameBuffer:
    """Cuts a stream into frames; what came of the last one waits, in parts, not copied."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._waiting = 0
        #: Bytes that the next frame needs, as far as that is known.
        self._needed = _LENGTH.size

    def take(self, data: bytes, limit: int) -> list[bytes]:
        """Return the bodies of the frames that are whole now.

        Raises:
            PayloadTooLarge: one is announced that is larger than the limit.
            MalformedFrame: an empty one is announced.
        """
        self._waiting += len(data)
        if self._waiting < self._needed:
            self._parts.append(data)
            return []
        if self._parts:
            data = b"".join((*self._parts, data))
            self._parts.clear()
        found, at, size = [], 0, len(data)
        while size - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(data, at)
            if not 0 < length <= limit:
                self._refuse(length, limit, data[at:])
            end = at + _LENGTH.size + length
            if end > size:
                break
            found.append(data[at + _LENGTH.size : end])
            at = end
        rest = data[at:]
        self._waiting, self._needed = len(rest), _LENGTH.size
        if rest:
            self._parts.append(rest)
            if len(rest) >= _LENGTH.size:
                self._needed += _LENGTH.unpack_from(rest)[0]
        return found

    @staticmethod
    def _refuse(length: int, limit: int, data: bytes) -> None:
        other = wire_of(data)
        hint = f"; it speaks {other}" if other else ""
        if not length:
            msg = f"a frame of no bytes{hint}"
            raise MalformedFrame(msg)
        msg = f"a frame of {length:,} B exceeds the limit of {limit:,} B{hint}"
        raise PayloadTooLarge(msg)


# ------------------------------------------------------------------------------- the machine


class PeeringSession:
    """One connection.

    Attributes:
        state: how far it is.
        peer: the id of the other endpoint, once it is known; 16 bytes.
        topics: the filter that the peer had last.
        sent_filter: the filter that it was sent last.
        is_confirmed: whether the peer is known to have taken note of this side's filter: a
            responder hears it by the handshake, an originator by what comes next.
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
        """Make one that has not begun.

        Args:
            own: the id of this endpoint.
            topics: returns our filter, when it is sent.
            known: the sessions of this endpoint that have come to, or behind, the choice of
                one connection, by the id of the peer; shared by all of them.
            now: monotonic seconds.
            is_dialed: whether this side dialed.
            frame_limit: bytes of a message.
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
        self._heard = self._pinged = self._looked = self._now = now
        #: Until when the peer has to be heard, as it came anew; None if it did not.
        self._doubted_until: float | None = None
        #: Until when the answer to our `BYE` is waited for; 0 before the next tick.
        self._leaves_at = 0.0
        self._reason = ""
        self._bye = b""

    # --- for the driver ---

    @property
    def next_tick_at(self) -> float:
        """When something is to be done."""
        if self.state is PeeringState.LEAVING:
            return self._leaves_at
        if self.state is PeeringState.PARKED:
            return self._looked + PARKED_LOOK
        due = min(max(self._heard, self._pinged) + PING_INTERVAL, self._heard + SILENCE_LIMIT)
        return due if self._doubted_until is None else min(due, self._doubted_until)

    def is_over(self) -> bool:
        """Return whether the connection has ended."""
        return self.state is PeeringState.ENDED

    def start(self) -> list[_Effect]:
        """Say hello, or that this is Broker."""
        return [Transmit(self._hello() if self._is_dialed else _PROBE)]

    def take(self, data: bytes, now: float) -> tuple[list[Any], list[_Effect]]:
        """Take what a read brought: messages alone, or effects."""
        if self.is_over():
            return [], []
        if data:
            self._heard, self._doubted_until = now, None
        self._now = now
        found: list[Any] = []
        effects: list[_Effect] = []
        try:
            limit = HANDSHAKE_FRAME_LIMIT if self.state in _UNPROVEN else self._limit
            for body in self._frames.take(data, limit):
                if self.state in _OPEN:
                    self._take_message(body, found, effects)
                else:
                    effects += self._take_handshake(body)
                if self.is_over():
                    return [], effects
        except BaspError as error:
            if found:
                effects.append(Arrived(found))
            if self.state not in _OPEN:
                effects.append(Transmit(self._drop_frame(EC.InvalidMessage, str(error))))
            return [], [*effects, *self._end(str(error), error)]
        if not effects:
            return found, []
        return [], [*effects, Arrived(found)] if found else effects

    def tick(self, now: float) -> list[_Effect]:
        """Ping what is silent, and end what stays so; look at what is before this one."""
        self._now = now
        if self.state is PeeringState.LEAVING:
            self._leaves_at = self._leaves_at or now + LEAVE_LIMIT
            return self._end(self._reason) if now >= self._leaves_at else []
        if self.state is PeeringState.PARKED:
            self._looked = now
            return self._look_ahead()
        limit = self._heard + SILENCE_LIMIT
        limit = limit if self._doubted_until is None else min(limit, self._doubted_until)
        if now >= limit:
            reason = f"nothing was heard for {now - self._heard:.0f} s"
            return self._end(reason, PeerSilent(reason))
        if self.state is not PeeringState.PEERED or now < self._pinged + PING_INTERVAL:
            return []
        return [self._ping(now)]

    def lost(self, reason: str) -> list[_Effect]:
        """Take note that the connection broke."""
        if self.state is PeeringState.LEAVING:
            return self._end(self._reason)
        if self.state is PeeringState.HELLO:
            reason += "; see that it speaks Broker 2.x, and TLS as this side does (disable_ssl)"
        return self._end(reason, LinkLost(reason))

    def close(self, reason: str) -> list[_Effect]:
        """Say goodbye, and end when that is answered; at once if the peer is none yet."""
        if self.state is PeeringState.LEAVING:
            return []
        if self.state is not PeeringState.PEERED:
            return self._end(reason)
        self.state, self._reason = PeeringState.LEAVING, reason
        self._bye = _BYE + self._own[-8:]
        return [Transmit(self._control(PeeringFrame.PING, self._bye))]

    # --- what goes out ---

    def send(self, topic: bytes, payload: bytes, ttl: int, receiver: bytes = NOBODY) -> bytes:
        """Return what is to be written for data; nothing where no peer is there."""
        if self.state is not PeeringState.PEERED:
            return b""
        return message_frame(self._own, receiver, PeeringFrame.DATA, topic, payload, ttl)

    def send_filter(self, topics: Sequence[str]) -> bytes:
        """Return what is to be written for our filter; nothing where it is known."""
        if self.state is not PeeringState.PEERED or tuple(topics) == self.sent_filter:
            return b""
        self.sent_filter = tuple(topics)
        return self._control(PeeringFrame.ROUTING_UPDATE, filter_to_bytes(self.sent_filter))

    def ask(self) -> bytes:
        """Return what is to be written so that the peer answers: see `is_confirmed`."""
        return self._control(PeeringFrame.PING, _SIGN_OF_LIFE)

    def _control(self, kind: int, payload: bytes) -> bytes:
        """Return a frame for the peer alone."""
        return message_frame(self._own, self.peer, kind, _CONTROL_TOPIC, payload)

    def _hello(self) -> bytes:
        return handshake_frame(PeeringFrame.HELLO, MAGIC, self._own, VERSION, VERSION)

    def _ping(self, now: float) -> Transmit:
        """Ask for a sign of life."""
        self._pinged = now
        return Transmit(self.ask())

    # --- the handshake ---

    def _take_handshake(self, body: bytes) -> list[_Effect]:
        """Take a frame of the handshake."""
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
            return self._dropped(*fields, rest=rest[_FIXED[kind].size :])
        if kind == PeeringFrame.PROBE and self.state in _BEFORE_SYN:
            return []
        if kind == PeeringFrame.HELLO and self.state is PeeringState.HELLO:
            return self._take_hello(*fields)
        awaits_version = self.state is PeeringState.VERSION or (
            self.state is PeeringState.HELLO and self._is_dialed
        )
        if kind == PeeringFrame.VERSION_SELECT and awaits_version:
            return self._take_version(*fields)
        return self._take_filters(kind, rest)

    def _take_filters(self, kind: int, rest: bytes) -> list[_Effect]:
        """Take a frame of the last part of the handshake."""
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
                text = f"a frame {kind} came in state {self.state.value}"
                return self._drop(EC.UnexpectedHandshakeMessage, text)

    def _take_hello(self, peer: bytes, lowest: int, highest: int) -> list[_Effect]:
        """Take the other side's hello: it tells who of both is the originator."""
        if not lowest <= VERSION <= highest:
            text = f"unsupported versions offered: {lowest} to {highest}"
            return self._drop(EC.PeerIncompatible, text)
        if self._is_odd(peer):
            return self._drop(EC.InvalidPeeringRequest, "an endpoint does not peer with itself")
        self.peer = peer
        if self._own < peer:
            return self._look_ahead()
        self.state = PeeringState.VERSION
        # Who dialed has said it already.
        return [] if self._is_dialed else [Transmit(self._hello())]

    def _take_version(self, peer: bytes, version: int) -> list[_Effect]:
        """Take the originator's choice: this side is the responder."""
        if version != VERSION:
            text = f"unsupported version selected: {version}"
            return self._drop(EC.PeerIncompatible, text)
        if self._is_odd(peer):
            return self._drop(EC.InvalidPeeringRequest, "an endpoint does not peer with itself")
        if peer > self._own or self.peer not in (b"", peer):
            text = "the smaller id, said in the hello, selects the version"
            return self._drop(EC.UnexpectedHandshakeMessage, text)
        other = self._known.get(peer)
        if other is not None:
            other.doubt(self._now)
            text = "detected redundant connection at the responder"
            return self._drop(EC.LogicError, text)
        self._known[peer] = self
        self.peer, self.state = peer, PeeringState.SYN
        return []

    def _is_odd(self, peer: bytes) -> bool:
        """Return whether no endpoint but this one can have that id."""
        return peer in (self._own, NOBODY)

    def _look_ahead(self) -> list[_Effect]:
        """Go on as the originator, if no other connection of the pair is before this one."""
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
        """Return the frame of the handshake with our filter."""
        self.sent_filter = tuple(self._wanted())
        return Transmit(handshake_frame(kind, rest=filter_to_bytes(self.sent_filter)))

    def _peered(self) -> list[_Effect]:
        """The handshake is over."""
        self.state = PeeringState.PEERED
        return [Admitted(str(UUID(bytes=self.peer)), self.peer)]

    def _drop(self, code: EC, text: str) -> list[_Effect]:
        """Tell the other side why it is not wanted, and end."""
        kinds = {
            EC.PeerIncompatible: IncompatibleVersion,
            EC.RedundantConnection: AlreadyLinked,
        }
        error = kinds.get(code, MalformedHandshake)(text)
        return [Transmit(self._drop_frame(code, text)), *self._end(text, error)]

    def _drop_frame(self, code: EC, text: str) -> bytes:
        """Return the frame that tells why."""
        content = text.encode()[:_SHOWN]
        size = bytearray()
        write_varbyte(len(content), size)
        fields = MAGIC, self._own, code
        return handshake_frame(PeeringFrame.DROP_CONN, *fields, rest=bytes(size) + content)

    def _dropped(self, peer: bytes, code: int, *, rest: bytes) -> list[_Effect]:
        """End, as the other side does not want this connection."""
        try:
            length, at = read_varbyte(rest, 0)
        except (IndexError, InvalidData):
            length, at = 0, 0
        text = rest[at : at + length].decode(errors="replace")[:_SHOWN]
        if code in (EC.RedundantConnection, EC.LogicError) and self._stands(peer):
            self.peer = peer
            return self._end(text, AlreadyLinked(text))
        reason = f"the peer refuses the connection: {text} (code {code})"
        kind = IncompatibleVersion if code == EC.PeerIncompatible else LinkLost
        return self._end(reason, kind(reason))

    def _stands(self, peer: bytes) -> bool:
        """Return whether another connection with a peer stands, or is being made."""
        return self._known.get(peer) not in (None, self)

    # --- messages ---

    def _take_message(self, body: bytes, found: list[Any], effects: list[_Effect]) -> None:
        """Take a frame behind the handshake."""
        sender, message = message_of(body)
        self.is_confirmed = True
        kind = message.kind
        if kind in (PeeringFrame.DATA, PeeringFrame.COMMAND):
            found.append(message)
            return
        if kind == PeeringFrame.PING:
            answer = message_frame(
                self._own, sender, PeeringFrame.PONG, message.topic, message.payload
            )
            # In the order of what came: what was said before is told before.
            effects += [Arrived([*found]), Transmit(answer)] if found else [Transmit(answer)]
            found.clear()
        elif kind == PeeringFrame.ROUTING_UPDATE:
            self.topics = _filter(message.payload)
            found.append(PeerFilter(self.topics))
        elif kind == PeeringFrame.PONG:
            if self.state is PeeringState.LEAVING and message.payload == self._bye:
                effects += [Arrived([*found]), *self._end(self._reason)]
                found.clear()
        else:
            msg = f"a message of type {kind} is none of 1 to 5"
            raise MalformedFrame(msg)

    def doubt(self, now: float) -> None:
        """Ask for a sign of life soon: the peer came anew, as if this connection was lost."""
        if self.state is PeeringState.PEERED and self._doubted_until is None:
            self._doubted_until = now + DOUBT_LIMIT
            self._pinged = now - PING_INTERVAL

    def _end(self, reason: str, error: BaspError | None = None) -> list[_Effect]:
        """End once."""
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
        MalformedHandshake: the bytes are none.
    """
    try:
        if len(buffer) > FILTER_SIZE_LIMIT:
            msg = f"a filter of {len(buffer):,} B exceeds the limit of {FILTER_SIZE_LIMIT:,} B"
            raise MalformedHandshake(msg)
        return filter_from_bytes(buffer)
    except InvalidData as error:
        raise MalformedHandshake(str(error)[:_SHOWN]) from error
