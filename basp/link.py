"""One connection to a peer: handshake, heartbeats, end. No socket, no clock.

States (only this class changes them)::

    INTRODUCING ──► identified: the peer is known and proven (callboard.basp.handshake)

    originator (smaller id):  [PARKED] ──► AWAIT_SYN_ACK ──► ESTABLISHED
    responder (larger id):    AWAIT_SYN ──► [PARKED] ──► AWAIT_ACK ──► ESTABLISHED
    any state ──► CLOSED

Each pair of nodes has one link, whichever side dials and however many dials cross:

- A link must hold its pair in :class:`LinkPairs` before it continues: the originator before it
  sends originator_syn, the responder before it answers one. A link that does not hold the
  pair parks. Only the originator chooses between connections, so the two nodes never choose
  differently. A syn tells the responder that the originator has no other link: a link that
  the responder still holds is dead at the other end and ends soon. So no two links wait for
  each other.
- The originator drops parked connections as redundant only after it has received bytes on
  the established link. They prove that the peer has established it too, because the responder
  sends a heartbeat at once. A link that fails earlier is replaced by the next parked one.
- A connection that arrives long after a link was established may be a redial by a peer that
  noticed the loss of the link before we did. It parks. If the established link receives bytes
  a heartbeat later, the connection is redundant. If that link is dead, it ends because of its
  silence, and the parked connection continues. A restarted peer has another id and never
  parks.

Identified links send heartbeats while they are parked, too, so a parked link has no time
limit; each part of the handshake has one, and so has silence. Frames are delivered in the
order of the stream, all of them after ``Established``. Source: Zeek Broker's developer
guide, section 7.2.1.1; CAF 0.17 manual, "Binary Actor System Protocol".
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum, auto
from operator import itemgetter
from typing import Any, Final

from callboard.basp import errors
from callboard.basp.frame import Frame, FrameReader, RawFrame
from callboard.basp.handshake import (
    HANDSHAKE_LIMIT,
    DropReason,
    Introduction,
    LinkConfig,
    PeerIdentity,
    drop_error,
    drop_reason,
    pack_link_frame,
)
from callboard.basp.header import Operation, check_header
from callboard.basp.node_id import NO_NODE, NodeId, node_id_text
from callboard.basp.seal import Opener, Sealer
from callboard.support.dataclass import dataclass

#: Seconds for which bytes of an incomplete batch count as a sign of life. They are not checked
#: yet, so a third party could send them to keep a dead link.
BATCH_SECONDS: Final = 10.0

#: Connections of one pair that may be parked; more are dropped as redundant. A node that dials
#: more often is broken, and its parked connections suffice to keep the pair connected.
PARKED_LIMIT: Final = 32

_DISPATCH: Final = int(Operation.DISPATCH_MESSAGE)
_ONLY_DISPATCHES: Final = frozenset({_DISPATCH})
_operation_of = itemgetter(0)


class LinkState(Enum):
    """States of a link; the diagram at the top of this file has the transitions."""

    INTRODUCING = auto()
    AWAIT_SYN = auto()
    PARKED = auto()
    AWAIT_SYN_ACK = auto()
    AWAIT_ACK = auto()
    ESTABLISHED = auto()
    CLOSED = auto()


#: The frame that continues the handshake, by state.
_AWAITED: Final[Mapping[LinkState, Operation]] = {
    LinkState.AWAIT_SYN: Operation.ORIGINATOR_SYN,
    LinkState.AWAIT_SYN_ACK: Operation.RESPONDER_SYN_ACK,
    LinkState.AWAIT_ACK: Operation.ORIGINATOR_ACK,
}
#: States without heartbeats. In INTRODUCING the peer is unknown. In AWAIT_ACK the originator
#: would accept a heartbeat as proof that we have its ack.
_SILENT: Final = frozenset({LinkState.INTRODUCING, LinkState.AWAIT_ACK})

#: Operations that are delivered to the node.
_FOR_NODE: Final = frozenset(
    {_DISPATCH, Operation.ANNOUNCE_PROXY_INSTANCE, Operation.DOWN_MESSAGE}
    | {Operation.ROUTING_UPDATE, Operation.RELEASE_PROXY_INSTANCE}
    | {Operation.DELIVERY_REPORT, Operation.PATH_END}
)
#: Operations that the link handles itself.
_OF_LINK: Final = frozenset({Operation.HEARTBEAT, Operation.DROP_CONN})
#: Operations between neighbors, which are never forwarded.
_BETWEEN_NEIGHBORS: Final = _OF_LINK | {Operation.ROUTING_UPDATE}


@dataclass(frozen=True, slots=True)
class Transmit:
    """Write ``data`` to the connection, after all earlier data."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Seal:
    """Seal all later writes to the connection with ``sealer``.

    ``opener`` opens the received data: the driver asks it for the size of the next read.
    """

    sealer: Sealer
    opener: Opener


@dataclass(frozen=True, slots=True)
class Established:
    """The link to ``peer`` is up, and frames may be sent on it."""

    peer: PeerIdentity


@dataclass(frozen=True, slots=True)
class Deliver:
    """Pass ``frames`` to the node, in order: operations 2, 3, 4 and 11 to 14 only."""

    frames: list[RawFrame]


@dataclass(frozen=True, slots=True)
class Parked:
    """The pair already has a link or a handshake; this link waits until that one ends.

    Until then that one serves the callers that dialed this connection.
    """

    peer: NodeId


@dataclass(frozen=True, slots=True)
class Redundant:
    """The pair has another established link; the ``Closed`` that follows is not a failure."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class Wake:
    """Call ``link.resume(now)``, and execute its effects after all effects of this list."""

    link: "Link"


@dataclass(frozen=True, slots=True)
class Closed:
    """Write all pending data, close the connection, forget the link.

    Attributes:
        reason: one line for a log or an error message.
        error: the failure; None if one side ended the link on purpose.
    """

    reason: str
    error: errors.BaspError | None = None


#: Instructions of a link to its driver, to be executed in the given order. The driver owns the
#: socket, the clock and the actors.
Effect = Transmit | Seal | Established | Deliver | Parked | Redundant | Wake | Closed


class LinkPairs:
    """The links of one node, by peer.

    For each peer at most one link holds the pair: only this link may be established. All
    other links of the peer are parked in order of arrival. When the holder ends, the next link
    becomes the holder in the same call, so a new connection cannot overtake the parked ones.
    The table belongs to the node's driver, and only its links use it.
    """

    def __init__(self) -> None:
        """Create an empty table."""
        # By peer: the holder, then the parked links.
        self._pairs: dict[NodeId, list[Link]] = {}

    def holder(self, peer: NodeId) -> "Link | None":
        """Return the link that holds the pair, established or not yet."""
        return next(iter(self._pairs.get(peer, ())), None)

    def is_linked(self, peer: NodeId) -> bool:
        """Return whether a link with the peer is established."""
        holder = self.holder(peer)
        return holder is not None and holder.is_established

    def parked(self, peer: NodeId) -> "tuple[Link, ...]":
        """Return the links that wait until the holder ends."""
        return tuple(self._pairs.get(peer, ())[1:])

    def acquire(self, peer: NodeId, link: "Link") -> bool:
        """Make ``link`` the holder if the pair has none; return whether it is the holder."""
        return self._pairs.setdefault(peer, [link])[0] is link

    def park(self, peer: NodeId, link: "Link") -> bool:
        """Queue ``link`` after the holder; return whether there was room."""
        links = self._pairs[peer]
        if link not in links:
            if len(links) > PARKED_LIMIT:
                return False
            links.append(link)
        return True

    def release(self, peer: NodeId, link: "Link") -> "Link | None":
        """Forget ``link``; return the parked link that becomes the holder, if any."""
        links = self._pairs.get(peer, [])
        has_held = links[:1] == [link]
        if link in links:
            links.remove(link)
        if links:
            return links[0] if has_held else None
        self._pairs.pop(peer, None)
        return None


class Link:
    """One connection of a node. Only its driver calls it, in the order of events.

    Frames are delivered in the order of the stream. Dispatches are not checked, because their
    receiver checks them; the headers of all other frames have been checked.

    Attributes:
        state: the state of the link, for tests and displays; read only.
        upper_state: opaque bytes that the peer receives as ``PeerIdentity.state``; set them
            before the handshake ends. Later changes must be sent as frames once the link is
            established.
        state_of: returns the state for a peer by its standing; replaces `upper_state`.
        peer: identity of the peer; None until it is proven.
        heard_at: time of the last byte received; on a sealed link of the last batch, see
            ``BATCH_SECONDS``.
        is_confirmed: whether the peer has established the link too.
    """

    def __init__(
        self,
        config: LinkConfig,
        *,
        dialer: bool,
        nonce: bytes,
        now: float,
        pairs: LinkPairs,
        certified: tuple[str, ...] = (),
        channel: bytes = b"",
    ) -> None:
        """Create the machine of a new connection.

        Args:
            config: settings of all links of the node.
            dialer: whether this side dialed.
            nonce: 16 unpredictable bytes, never used before.
            now: monotonic time in seconds, as in every call.
            pairs: the node's table.
            certified: names in the peer's certificate, which the connection has verified.
            channel: identifies the TLS connection, see `Introduction`.

        Raises:
            ValueError: the nonce has another length.
        """
        self._config = config
        self._introduction = Introduction(
            config, dialer=dialer, nonce=nonce, certified=certified, channel=channel
        )
        self._pairs = pairs
        self._reader = FrameReader(HANDSHAKE_LIMIT)
        # Checks the batches of a sealed link; None before it is sealed, and on other links.
        self._opener: Opener | None = None
        self._opened_at = now  # the last batch
        # End of the time for the current part of the handshake; None between parts.
        self._deadline: float | None = now + config.handshake_timeout
        self._sent_at = now  # the last heartbeat, or the end of a part of the handshake
        self._parked_at = now
        self.is_confirmed = False
        self._peer_id = NO_NODE
        self.heard_at = now
        self.peer: PeerIdentity | None = None
        self.upper_state = b""
        self.state_of: Callable[[Any], bytes] | None = None
        self.state = LinkState.INTRODUCING

    @property
    def is_established(self) -> bool:
        """Whether the node may send frames on the link."""
        return self.state is LinkState.ESTABLISHED

    @property
    def published_actor(self) -> int:
        """Number of the actor that this side publishes at its port; 0 if there is none."""
        published = self._config.published
        return 0 if published is None else published[0]

    @property
    def is_originator(self) -> bool:
        """Whether this node has the smaller id of the pair; valid once the peer is known."""
        return self._config.node_id < self._peer_id

    def start(self) -> list[Effect]:
        """Return the effects of a new connection; the acceptor speaks first."""
        greeting = self._introduction.start()
        return [Transmit(greeting)] if greeting else []

    def take(self, data: bytes, now: float) -> tuple[list[RawFrame], list[Effect]]:
        """Handle the bytes of one read; this is the hot path.

        Returns:
            The frames of a read that has only dispatches, or the effects of any other read.
        """
        opener = self._opener
        if opener is None:
            self.heard_at = now
        else:
            opened = opener.open(data)
            if opened.__class__ is bytes and opened:  # whole batches: the most frequent case
                self._opened_at = self.heard_at = now
                data = opened
            else:
                data = self._update_times(opened, now, was_read=bool(data))
            if opener.error is not None or not data:
                return [], self._handle_broken_seal(data, now, opener.error)
        if not self.is_confirmed:
            return [], self._handle_unconfirmed(data, now)
        reader = self._reader
        try:
            frames = reader.feed(data)
        except MemoryError:
            frames = reader.drop_payload()
        if reader.error is None:
            is_one = len(frames) == 1 and frames[0][0] == _DISPATCH
            if is_one or _ONLY_DISPATCHES.issuperset(map(_operation_of, frames)):
                return frames, []
        return [], self._handle_read(frames, now)

    def _update_times(self, opened: bytes | memoryview, now: float, *, was_read: bool) -> Any:
        """Update the times of a sealed link; return the contents for the frame reader.

        Only complete batches prove that the peer is alive.
        """
        if opened:
            self._opened_at = now
        # The reader accepts a view only for the rest of a payload.
        if type(opened) is memoryview and len(opened) > self._reader.missing:
            opened = bytes(opened)
        # Without data the driver has paused reading, so the peer is not silent.
        if not was_read or now < self._opened_at + BATCH_SECONDS:
            self.heard_at = now
        return opened

    def _handle_unconfirmed(self, data: bytes, now: float) -> list[Effect]:
        """Handle bytes from a peer that may not have established the link yet."""
        reader, effects, was_sealed = self._reader, [], self._opener is not None
        while self.state is LinkState.INTRODUCING and reader.error is None and data:
            size = reader.wanted  # one frame at a time: later bytes may be sealed
            effects += self._handle_read(reader.feed(data[:size]), now)
            data = data[size:]
        if data and self._opener is not None and not was_sealed:
            frames, more = self.take(data, now)
            return [*effects, *([Deliver(frames)] if frames else more)]
        if data:
            effects += self._handle_read(reader.feed(data), now)
        return effects

    def _handle_broken_seal(
        self, data: bytes, now: float, error: errors.BrokenSeal | None
    ) -> list[Effect]:
        """Handle the contents before a broken batch, and end the link."""
        effects = self._handle_read(self._reader.feed(data), now) if data else []
        if error is None:
            return effects
        text = f"the seal of the link with node {self._peer_text()} is broken: {error}"
        return [*effects, *self.close(text, errors.BrokenSeal(text), drop_reason(error))]

    def _handle_read(self, frames: list[RawFrame], now: float) -> list[Effect]:
        """Handle the frames of a read that may hold other operations than dispatches."""
        reader = self._reader
        effects: list[Effect] = []
        if not self.is_confirmed and self.state is LinkState.ESTABLISHED:
            self._confirm(effects)
        try:
            self._handle_frames(frames, now, effects)
            if reader.error is not None:
                raise reader.error
            if self.state is LinkState.INTRODUCING and reader.other_wire.startswith("Zeek"):
                # A Zeek peer sends less than a header and then waits for our first bytes.
                # Without this check both sides would wait until the handshake timeout.
                msg = f"the peer speaks {reader.other_wire}, not BASP"
                raise errors.UnknownOperation(msg)
        except errors.RemoteProtocolError as error:
            effects += self.close(str(error), error, drop_reason(error))
        return effects

    def discard_input(self) -> None:
        """Ignore all later input, because a part of it was lost on this node."""
        self._reader.discard()
        if self._opener is not None:
            self._opener.discard()

    def resume(self, now: float) -> list[Effect]:
        """Continue after ``Wake``: this link holds the pair, or another one is established."""
        effects: list[Effect] = []
        if self.state is not LinkState.PARKED:
            return effects
        holder = self._pairs.holder(self._peer_id)
        if holder is self or holder is None:
            self._proceed(now, effects)
        elif self.is_originator and holder.is_confirmed:
            effects += self._drop_as_redundant()
        return effects

    def tick(self, now: float) -> list[Effect]:
        """Send a heartbeat if it is due, and end the link if the peer is silent.

        Call it at :attr:`next_tick_at`, or several times per heartbeat. Read the connection
        first: unread bytes are not silence.
        """
        effects: list[Effect] = []
        if self.state is LinkState.CLOSED:
            return effects
        late = self._overdue(now)
        if late is not None:
            text = f"node {self._peer_text()} in state {self.state.name.lower()}: {late}"
            return self.close(text, errors.PeerSilent(text), DropReason.TIMEOUT)
        if self.state not in _SILENT and now - self._sent_at >= self._config.heartbeat:
            self._sent_at = now
            self._send(Operation.HEARTBEAT, effects)
        if self.state is LinkState.PARKED and self._is_holder_alive():
            effects += self._drop_as_redundant()
        return effects

    @property
    def next_tick_at(self) -> float:
        """Time of the next call of :meth:`tick`."""
        config = self._config
        times = [] if self._deadline is None else [self._deadline]
        if self.state is not LinkState.INTRODUCING:
            times.append(self.heard_at + config.missed * config.heartbeat)
        if self.state not in _SILENT:
            times.append(self._sent_at + config.heartbeat)
        return min(times)

    def lost(self, reason: str) -> list[Effect]:
        """Return the effects of an end of the stream, or of an error of the socket."""
        if self._reader.other_wire:  # the stream ended before a header was complete
            reason = f"the peer speaks {self._reader.other_wire}, not BASP"
        error = errors.LinkLost(f"connection to node {self._peer_text()} ended: {reason}")
        return self.close(reason, error, None)

    def _overdue(self, now: float) -> str | None:
        """Return the text of an exceeded time limit; None if none is exceeded."""
        config = self._config
        if self._deadline is not None and now >= self._deadline:
            return f"handshake took longer than {config.handshake_timeout:g} s"
        silence = now - self.heard_at
        # A peer that is not proven has the time of its part of the handshake.
        is_stranger = self.state is LinkState.INTRODUCING
        if not is_stranger and silence >= config.missed * config.heartbeat:
            return f"silent for {silence:.1f} s, {config.missed} heartbeats"
        return None

    def _handle_frames(self, frames: list[RawFrame], now: float, effects: list[Effect]) -> None:
        """Handle frames one by one, in any state."""
        run: list[RawFrame] = []
        drop: Frame | None = None
        try:
            for raw in frames:
                if self.state is not LinkState.ESTABLISHED:
                    if self.state is LinkState.CLOSED:
                        return
                    self._handle_handshake(Frame._make(raw), now, effects)
                elif raw[0] == _DISPATCH:
                    run.append(raw)
                else:
                    frame = Frame._make(raw)
                    self._check(frame)
                    if frame.operation in _FOR_NODE:
                        run.append(raw)
                    elif frame.operation == Operation.DROP_CONN:
                        drop = frame
                        break
        finally:
            if run:
                effects.append(Deliver(run))
        if drop is not None:
            self._handle_drop_conn(drop, effects)

    def _check(self, frame: Frame) -> None:
        """Check a frame of an established link that is not a dispatch.

        Raises:
            MalformedFrame: fields contradict the operation, or name other nodes.
            MalformedHandshake: a handshake frame on an established link.
        """
        operation = frame.operation
        if operation not in _FOR_NODE and operation not in _OF_LINK:
            name, source = Operation(operation).name.lower(), node_id_text(frame.source)
            msg = f"{name} from node {source} on an established link"
            raise errors.MalformedHandshake(msg)
        check_header(frame[:7])
        if operation in _BETWEEN_NEIGHBORS:
            self._check_neighbor(frame)

    def _check_neighbor(self, frame: Frame) -> None:
        """Refuse a frame that is not from the peer to this node."""
        if frame.source != self._peer_id or frame.destination != self._config.node_id:
            msg = (
                f"{Operation(frame.operation).name.lower()} between nodes "
                f"{node_id_text(frame.source)} and {node_id_text(frame.destination)} "
                f"on the link of node {node_id_text(self._peer_id)}"
            )
            raise errors.MalformedFrame(msg)

    def _handle_handshake(self, frame: Frame, now: float, effects: list[Effect]) -> None:
        """Handle a frame on a link that is not established."""
        operation = Operation(frame.operation)
        if self.state is LinkState.INTRODUCING:
            if operation is not Operation.DROP_CONN:
                self._introduce(frame, now, effects)
                return
            self._peer_id = NodeId(frame.source)
        elif operation not in _OF_LINK and operation is not _AWAITED.get(self.state):
            msg = (
                f"{operation.name.lower()} from node {node_id_text(frame.source)} in "
                f"state {self.state.name.lower()} of the handshake"
            )
            raise errors.MalformedHandshake(msg)
        check_header(frame[:7])
        self._check_neighbor(frame)
        if operation is Operation.DROP_CONN:
            self._handle_drop_conn(frame, effects)
        elif operation is Operation.ORIGINATOR_SYN:
            self._proceed(now, effects)
        elif operation is Operation.RESPONDER_SYN_ACK:
            self._send(Operation.ORIGINATOR_ACK, effects, self._own_state())
            self._establish(frame, now, effects)
        elif operation is Operation.ORIGINATOR_ACK:
            self._establish(frame, now, effects)
            # The originator keeps its parked connections until it receives bytes, see the top
            # of this file. Without this heartbeat they would stay for a heartbeat's time.
            self._send(Operation.HEARTBEAT, effects)
            self._confirm(effects)

    def _introduce(self, frame: Frame, now: float, effects: list[Effect]) -> None:
        """Handle a frame from a peer that is not proven yet."""
        answer = b""
        try:
            answer, identity = self._introduction.take(frame)
        finally:
            # After an error, too: DROP_CONN is addressed to this peer.
            self._peer_id = self._introduction.peer_id
            if answer:
                effects.append(Transmit(answer))
            self._seal(effects)
        if identity is None:
            return
        self.peer = identity
        self._end_part(now)
        # The state of a proven peer's upper layers may be larger than a handshake.
        self._reader.payload_limit = self._config.payload_limit
        if self.is_originator:
            self._proceed(now, effects)
        else:
            self.state = LinkState.AWAIT_SYN

    def _seal(self, effects: list[Effect]) -> None:
        """Seal the link if both sides have just agreed on keys."""
        keys, is_contended = self._introduction.seal_keys, self._config.is_contended
        if keys is not None and self._opener is None:
            self._opener = Opener(keys[1], is_contended)
            effects.append(Seal(Sealer(keys[0], is_contended), self._opener))

    @property
    def secret(self) -> bytes | None:
        """The secret that was proven on the link; None if none was."""
        return self._introduction.secret

    def _end_part(self, now: float) -> None:
        """End the time limit of the current part; the next heartbeat is due from now."""
        self._deadline = None
        self._sent_at = now

    def _proceed(self, now: float, effects: list[Effect]) -> None:
        """Send the syn, or answer it, if this link holds the pair; otherwise park."""
        pairs, peer = self._pairs, self._peer_id
        if not pairs.acquire(peer, self):
            if not pairs.park(peer, self):
                effects += self._drop_as_redundant()
            elif self.state is not LinkState.PARKED:
                self.state = LinkState.PARKED
                self._parked_at = now
                effects.append(Parked(peer))
            return
        self._deadline = now + self._config.handshake_timeout
        operation, payload = Operation.RESPONDER_SYN_ACK, self._own_state()
        self.state = LinkState.AWAIT_ACK
        if self.is_originator:
            operation, payload = Operation.ORIGINATOR_SYN, b""
            self.state = LinkState.AWAIT_SYN_ACK
        self._send(operation, effects, payload)

    def _own_state(self) -> bytes:
        """Return the state to send to the peer."""
        if self.state_of is None:
            return self.upper_state
        return self.state_of(None if self.peer is None else self.peer.standing)

    def _send(self, operation: Operation, effects: list[Effect], payload: bytes = b"") -> None:
        """Send a frame to the peer's link."""
        frame = pack_link_frame(operation, self._config, self._peer_id, payload=payload)
        effects.append(Transmit(frame))

    def _establish(self, frame: Frame, now: float, effects: list[Effect]) -> None:
        """Enter ESTABLISHED with the peer's state, which the frame carries."""
        assert self.peer is not None, "established before it was identified"
        self.peer = replace(self.peer, state=frame.payload)
        self.state = LinkState.ESTABLISHED
        self._end_part(now)
        effects.append(Established(self.peer))

    def _confirm(self, effects: list[Effect]) -> None:
        """Record that the peer has established the link too; wake the parked links."""
        self.is_confirmed = True
        effects += [Wake(link) for link in self._pairs.parked(self._peer_id)]

    def _handle_drop_conn(self, frame: Frame, effects: list[Effect]) -> None:
        """End the link after a ``drop_conn`` of the peer."""
        reason = frame.data
        is_known = self.peer is not None
        if reason == DropReason.REDUNDANT and is_known and not self.is_originator:
            effects += self._end_redundant(None)
            return
        error = drop_error(self._peer_text(), reason)
        is_clean = reason == DropReason.CLOSING
        effects += self.close(str(error), None if is_clean else error, None)

    def _is_holder_alive(self) -> bool:
        """Return whether the link that this one waits for is alive.

        It is alive if it received bytes at least one heartbeat after this link parked.
        """
        holder = self._pairs.holder(self._peer_id)
        return (
            self.is_originator
            and holder is not None
            and holder.is_confirmed
            and holder.heard_at >= self._parked_at + self._config.heartbeat
        )

    def _drop_as_redundant(self) -> list[Effect]:
        """End this link because another one holds the pair, and notify the peer."""
        drop = DropReason.REDUNDANT if self.is_originator else DropReason.CLOSING
        return self._end_redundant(drop)

    def _end_redundant(self, drop: int | None) -> list[Effect]:
        """End this link because the pair has another one; ``drop`` as for `close`."""
        ended = self.close("redundant: the pair has another link", None, drop)
        return [Redundant(self._peer_id), *ended]

    def close(
        self,
        reason: str,
        error: errors.BaspError | None = None,
        drop: int | None = DropReason.CLOSING,
    ) -> list[Effect]:
        """End the link, and pass the pair to the next parked one.

        ``drop`` is the reason to send to the peer; None sends no ``drop_conn``.
        """
        effects: list[Effect] = []
        if self.state is LinkState.CLOSED:
            return effects
        self.state = LinkState.CLOSED
        self.is_confirmed = False
        peer = self._peer_id
        if drop is not None and peer not in {NO_NODE, self._config.node_id}:
            frame = pack_link_frame(Operation.DROP_CONN, self._config, peer, drop)
            effects.append(Transmit(frame))
        effects.append(Closed(reason, error))
        following = self._pairs.release(peer, self)
        if following is not None:
            effects.append(Wake(following))
        return effects

    def _peer_text(self) -> str:
        """Return the peer's id for error texts."""
        return "unknown" if self._peer_id == NO_NODE else node_id_text(self._peer_id)
