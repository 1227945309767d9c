"""The life of one connection: handshake, heartbeats, end. No socket, no clock.

States (only this class changes them)::

    INTRODUCING ──► identified: the peer is known and proven (basp.introduction)

    originator (smaller id):  [PARKED] ──► AWAIT_SYN_ACK ──► ESTABLISHED
    responder (larger id):    AWAIT_SYN ──► [PARKED] ──► AWAIT_ACK ──► ESTABLISHED
    any state ──► CLOSED

One link for each pair, whichever side dialed, however many dials cross:

- A link needs its node's entry in :class:`basp.link_pairs.LinkPairs` to go on: the
  originator before it sends originator_syn, the responder before it answers one. Who does
  not get it parks. Only the originator chooses between connections, so two nodes never
  choose differently; and a syn tells the responder that the originator has no other link,
  so what the responder still holds is dead there and ends soon: nobody waits in a circle.
- The originator drops parked connections as redundant only after it heard the peer on the
  established link, which proves that the peer has established it too (the responder sends
  a heartbeat at once). Until then one that fails is replaced by the next parked one.
- A connection that comes when a link is long established may be a redial by a peer that
  noticed the loss of that link earlier than we did. It parks; one heartbeat later it is
  redundant if the link was heard meanwhile; if the link is dead, its silence ends it
  and the parked connection goes on. A restarted peer has another id, so never parks.

Identified links send heartbeats also while they are parked, so waiting has no time limit of
its own: each part of the handshake has, and silence has. Order: frames are delivered in the
order of the stream, all of them after ``Established``. Source: Zeek Broker's developer
guide, section 7.2.1.1; CAF 0.17 manual, "Binary Actor System Protocol".
"""

from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from typing import ClassVar, Final

from basp.effects import (
    Closed,
    Deliver,
    Effect,
    Established,
    Parked,
    PeerIdentity,
    Redundant,
    Transmit,
    Wake,
)
from basp.errors import BaspError, LinkLost, MalformedHandshake, PeerSilent, RemoteProtocolError
from basp.frame import Frame, FrameReader
from basp.handshake import HANDSHAKE_LIMIT, DropReason, LinkConfig, drop_reason, pack_link_frame
from basp.header import Operation, check_header
from basp.introduction import Introduction
from basp.link_frames import check_neighbor, drop_error, is_for_node
from basp.link_pairs import LinkPairs
from basp.link_state import LinkState
from basp.link_times import LinkTimes
from basp.node_id import NO_NODE, NodeId, node_id_text

__all__ = ["Link"]


_DISPATCH: Final = int(Operation.DISPATCH_MESSAGE)
_ONLY_DISPATCHES: Final = frozenset({_DISPATCH})
_operation_of = itemgetter(0)


class Link:
    """One connection of a node. Its driver alone calls it, in the order of events.

    Dispatches pass unchecked (their payload is the receiver's business); the headers of all
    other frames were checked when they are delivered. Order of one link is kept.

    Attributes:
        state: for tests and displays; read only.
        upper_state: opaque bytes that the peer receives as ``PeerIdentity.state``; set it
            before the handshake reaches its end. What changes after the effects that carry
            it must be sent when the link is established.
        peer: what is known of the peer; None until it is identified.
        heard_at: time of the last byte received.
    """

    __slots__ = (
        "_config", "_introduction", "_is_confirmed", "_pairs", "_parked_at", "_peer_id",
        "_reader", "_times", "heard_at", "peer", "state", "upper_state",
    )  # fmt: skip

    def __init__(
        self, config: LinkConfig, *, dialer: bool, nonce: bytes, now: float, pairs: LinkPairs
    ) -> None:
        """Make the machine of a fresh connection.

        Args:
            config: what the node's links have in common.
            dialer: whether we made the connection.
            nonce: 16 unpredictable bytes, never used before.
            now: monotonic time in seconds, as in every call.
            pairs: the node's table.

        Raises:
            ValueError: the nonce has another length.
        """
        self._config = config
        self._introduction = Introduction(config, dialer=dialer, nonce=nonce)
        self._pairs = pairs
        self._reader = FrameReader(HANDSHAKE_LIMIT)
        self._times = LinkTimes(config, now)
        self._parked_at = now
        self._is_confirmed = False
        self._peer_id = NO_NODE
        self.heard_at = now
        self.peer: PeerIdentity | None = None
        self.upper_state = b""
        self.state = LinkState.INTRODUCING

    @property
    def is_established(self) -> bool:
        """Whether frames of the node may be sent."""
        return self.state is LinkState.ESTABLISHED

    @property
    def is_originator(self) -> bool:
        """Whether we have the smaller id of the pair; meaningful once identified."""
        return self._config.node_id < self._peer_id

    def start(self) -> list[Effect]:
        """Begin; the acceptor speaks first."""
        greeting = self._introduction.start()
        return [Transmit(greeting)] if greeting else []

    def receive(self, data: bytes, now: float) -> list[Effect]:
        """Take bytes of the peer; frames in front of a broken one are delivered first."""
        frames, effects = self.take(data, now)
        return [Deliver(frames)] if frames else effects

    def take(self, data: bytes, now: float) -> tuple[list[Frame], list[Effect]]:
        """Take bytes of the peer, one call for a whole read: this is the hot entry.

        A read that brings nothing but dispatches gives them as they are; others give effects.
        """
        self.heard_at = now
        reader = self._reader
        frames = reader.feed(data)
        if self._is_confirmed and reader.error is None:
            is_one = len(frames) == 1 and frames[0][0] == _DISPATCH
            if is_one or _ONLY_DISPATCHES.issuperset(map(_operation_of, frames)):
                return frames, []
        effects: list[Effect] = []
        if not self._is_confirmed and self.state is LinkState.ESTABLISHED:
            self._confirm(effects)
        try:
            self._take(frames, now, effects)
            if reader.error is not None:
                self._refuse(reader.error, effects)
        except RemoteProtocolError as error:
            self._refuse(error, effects)
        return [], effects

    def resume(self, now: float) -> list[Effect]:
        """Go on after ``Wake``: the pair is ours, or another link of it is established."""
        effects: list[Effect] = []
        if self.state is not LinkState.PARKED:
            return effects
        holder = self._pairs.holder(self._peer_id)
        if holder is self or holder is None:
            self._proceed(now, effects)
        elif self.is_originator and holder._is_confirmed:  # noqa: SLF001  (same class)
            self._drop_as_redundant(effects)
        return effects

    def tick(self, now: float) -> list[Effect]:
        """Send the heartbeat that is due, notice silence. Read before ticking.

        Call it at :attr:`next_tick_at`, or every fraction of a heartbeat.
        """
        effects: list[Effect] = []
        if self.state is LinkState.CLOSED:
            return effects
        late = self._times.overdue(self.state, now, self.heard_at)
        if late is not None:
            text = f"node {self._peer_text()} in state {self.state.name.lower()}: {late}"
            self._end(text, PeerSilent(text), effects, DropReason.TIMEOUT)
            return effects
        if self._times.is_heartbeat_due(self.state, now):
            self._times.heartbeat_sent(now)
            self._send(Operation.HEARTBEAT, effects)
        if self.state is LinkState.PARKED and self._is_holder_alive():
            self._drop_as_redundant(effects)
        return effects

    @property
    def next_tick_at(self) -> float:
        """Time at which :meth:`tick` has something to do."""
        return self._times.next_at(self.state, self.heard_at)

    def close(
        self, reason: str, *, error: BaspError | None = None, drop: int = DropReason.CLOSING
    ) -> list[Effect]:
        """End the link from our side and tell the peer why."""
        effects: list[Effect] = []
        self._end(reason, error, effects, drop)
        return effects

    def lost(self, reason: str) -> list[Effect]:
        """Take note that the connection ended: end of stream, or an error of the socket."""
        effects: list[Effect] = []
        error = LinkLost(f"connection to node {self._peer_text()} ended: {reason}")
        self._end(reason, error, effects, None)
        return effects

    def _take(self, frames: list[Frame], now: float, effects: list[Effect]) -> None:
        run: list[Frame] = []
        drop: Frame | None = None
        own = self._config.node_id
        try:
            for frame in frames:
                if self.state is not LinkState.ESTABLISHED:
                    if self.state is LinkState.CLOSED:
                        return
                    self._take_handshake(frame, now, effects)
                elif frame[0] == _DISPATCH or is_for_node(frame, own, self._peer_id):
                    run.append(frame)
                elif frame[0] == Operation.DROP_CONN:
                    drop = frame
                    break
        finally:
            if run:
                effects.append(Deliver(run))
        if drop is not None:
            self._take_drop_conn(drop, now, effects)

    def _take_handshake(self, frame: Frame, now: float, effects: list[Effect]) -> None:
        operation = frame[0]
        if self.state is LinkState.INTRODUCING:
            if operation != Operation.DROP_CONN:
                self._introduce(frame, now, effects)
                return
            step: _Step | None = Link._take_drop_conn
            self._peer_id = NodeId(frame[3])
        else:
            step = self._STEPS.get((self.state, operation)) or self._LINK_STEPS.get(operation)
        if step is None:
            msg = (
                f"{Operation(operation).name.lower()} from node {node_id_text(frame[3])} in "
                f"state {self.state.name.lower()} of the handshake"
            )
            raise MalformedHandshake(msg)
        check_header(frame[:7])
        check_neighbor(frame, self._config.node_id, self._peer_id)
        step(self, frame, now, effects)

    def _introduce(self, frame: Frame, now: float, effects: list[Effect]) -> None:
        try:
            answer, identity = self._introduction.take(frame)
        finally:
            # Whom to tell why the connection is dropped.
            self._peer_id = self._introduction.peer_id
        if answer:
            effects.append(Transmit(answer))
        if identity is not None:
            self._identify(identity, now, effects)

    def _identify(self, identity: PeerIdentity, now: float, effects: list[Effect]) -> None:
        self.peer = identity
        self._times.end_part(now)
        # A proven peer may send the state of its upper layers, which has no such limit.
        self._reader.payload_limit = self._config.payload_limit
        if self.is_originator:
            self._proceed(now, effects)
        else:
            self.state = LinkState.AWAIT_SYN

    def _proceed(self, now: float, effects: list[Effect]) -> None:
        """Send the syn or answer it if the pair is ours, otherwise park."""
        pairs, peer = self._pairs, self._peer_id
        if not pairs.acquire(peer, self):
            if not pairs.park(peer, self):
                self._drop_as_redundant(effects)
            elif self.state is not LinkState.PARKED:
                self.state = LinkState.PARKED
                self._parked_at = now
                effects.append(Parked(peer))
            return
        self._times.begin_part(now)
        operation, payload = Operation.RESPONDER_SYN_ACK, self.upper_state
        self.state = LinkState.AWAIT_ACK
        if self.is_originator:
            operation, payload = Operation.ORIGINATOR_SYN, b""
            self.state = LinkState.AWAIT_SYN_ACK
        self._send(operation, effects, payload)

    def _send(self, operation: Operation, effects: list[Effect], payload: bytes = b"") -> None:
        frame = pack_link_frame(operation, self._config, self._peer_id, payload=payload)
        effects.append(Transmit(frame))

    def _take_syn(self, _frame: Frame, now: float, effects: list[Effect]) -> None:
        self._proceed(now, effects)

    def _take_syn_ack(self, frame: Frame, now: float, effects: list[Effect]) -> None:
        self._send(Operation.ORIGINATOR_ACK, effects, self.upper_state)
        self._establish(frame, now, effects)

    def _take_ack(self, frame: Frame, now: float, effects: list[Effect]) -> None:
        self._establish(frame, now, effects)
        # Tells the originator at once that both ends are up, see the top of this file.
        self._send(Operation.HEARTBEAT, effects)
        self._confirm(effects)

    def _establish(self, frame: Frame, now: float, effects: list[Effect]) -> None:
        assert self.peer is not None, "established before it was identified"
        self.peer = replace(self.peer, state=frame[7])
        self.state = LinkState.ESTABLISHED
        self._times.end_part(now)
        effects.append(Established(self.peer))

    def _confirm(self, effects: list[Effect]) -> None:
        self._is_confirmed = True
        effects += [Wake(link) for link in self._pairs.parked(self._peer_id)]

    def _take_heartbeat(self, _frame: Frame, _now: float, _effects: list[Effect]) -> None:
        """Do nothing: any received byte was noted as life."""

    def _take_drop_conn(self, frame: Frame, _now: float, effects: list[Effect]) -> None:
        reason = frame[2]
        is_known = self.peer is not None
        if reason == DropReason.REDUNDANT and is_known and not self.is_originator:
            effects.append(Redundant(self._peer_id))
            self._end("redundant: the pair has another link", None, effects, None)
            return
        error = drop_error(self._peer_text(), reason)
        is_wanted = reason == DropReason.CLOSING
        self._end(str(error), None if is_wanted else error, effects, None)

    def _is_holder_alive(self) -> bool:
        """Whether the established link was heard a heartbeat after this one parked."""
        holder = self._pairs.holder(self._peer_id)
        return (
            self.is_originator
            and holder is not None
            and holder._is_confirmed  # noqa: SLF001  (same class)
            and holder.heard_at >= self._parked_at + self._config.heartbeat
        )

    def _drop_as_redundant(self, effects: list[Effect]) -> None:
        effects.append(Redundant(self._peer_id))
        drop = DropReason.REDUNDANT if self.is_originator else DropReason.CLOSING
        self._end("redundant: the pair has another link", None, effects, drop)

    def _refuse(self, error: RemoteProtocolError, effects: list[Effect]) -> None:
        self._end(str(error), error, effects, drop_reason(error))

    def _end(
        self, reason: str, error: BaspError | None, effects: list[Effect], drop: int | None
    ) -> None:
        if self.state is LinkState.CLOSED:
            return
        self.state = LinkState.CLOSED
        self._is_confirmed = False
        peer = self._peer_id
        if drop is not None and peer not in {NO_NODE, self._config.node_id}:
            effects.append(
                Transmit(pack_link_frame(Operation.DROP_CONN, self._config, peer, drop))
            )
        effects.append(Closed(reason, error))
        following = self._pairs.release(peer, self)
        if following is not None:
            effects.append(Wake(following))

    def _peer_text(self) -> str:
        return "unknown" if self._peer_id == NO_NODE else node_id_text(self._peer_id)

    _STEPS: ClassVar[dict[tuple[LinkState, int], "_Step"]] = {
        (LinkState.AWAIT_SYN, 7): _take_syn,
        (LinkState.AWAIT_SYN_ACK, 8): _take_syn_ack,
        (LinkState.AWAIT_ACK, 9): _take_ack,
    }
    # Allowed in every state once the peer is identified.
    _LINK_STEPS: ClassVar[dict[int, "_Step"]] = {5: _take_heartbeat, 10: _take_drop_conn}


_Step = Callable[[Link, Frame, float, list[Effect]], None]
