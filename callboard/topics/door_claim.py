"""Ensures that only one node of the overlay has a door to each foreign peer.

With two doors to the same Zeek, messages would circle: one door would publish a message from
Zeek, and the other door would send it back to Zeek. So a node claims a door before it opens
one. Claims use two groups in the directories: the claimers, and the holder.

- A claimer waits a moment for the answers of other nodes' directories. If the door has a
  holder, the claimer becomes a standby. Of two simultaneous claimers, the one with the smaller
  node id wins.
- A partition can lead to two holders. When the partition ends, the holder with the smaller node
  id keeps its door, and the other holder closes its own.
- A standby claims the door again when it has no holder any longer, so a holder that dies is
  replaced.
- A holder that cannot reach the peer for a while gives up the door if a standby can reach the
  peer. Standbys that can are in a third group. They stay in this group while they claim the
  door. Otherwise the former holder would claim the door again, and would win if its id is the
  smallest.

Leaves do not take part, because the directories do not lead to them. They must not open a door
to a peer to which a member has one.
"""

import hashlib
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final

from callboard.kernel.actors import ActorRef
from callboard.kernel.context import CallBack
from callboard.model.errors import DoorTaken
from callboard.node import Node
from callboard.topics.hub import Hub
from callboard.topics.machine.topic import RESERVED

#: Seconds to wait for the directories to report other claims.
GRACE: Final = 0.5

#: Seconds between checks of other claims.
POLL_SECONDS: Final = 0.1


class DoorState(Enum):
    """State of a node's claim."""

    CLAIMING = "claiming"
    HELD = "held"
    STANDBY = "standby"
    RELEASED = "released"


def next_state(
    state: DoorState,
    own: bytes,
    claimers: Iterable[bytes],
    holders: Iterable[bytes],
    *,
    has_waited: bool,
    is_outdone: bool = False,
) -> DoorState:
    """Return the next state of a claim; a pure function.

    Args:
        state: the present state.
        own: node id of the claim.
        claimers: the known nodes that claim the door.
        holders: the known nodes that hold it.
        has_waited: whether the directories had time to report other claims.
        is_outdone: whether this node cannot reach the peer, but a standby or claimer can.
    """
    other_holders = {*holders} - {own}
    if state is DoorState.HELD:
        is_second = any(other < own for other in other_holders)
        return DoorState.STANDBY if is_second or is_outdone else state
    if state is DoorState.STANDBY:
        return state if other_holders or is_outdone else DoorState.CLAIMING
    if state is DoorState.CLAIMING:
        if other_holders or is_outdone:
            return DoorState.STANDBY
        if has_waited and not any(other < own for other in {*claimers} - {own}):
            return DoorState.HELD
    return state


class DoorClaim:
    """A node's claim to be the door to one foreign peer.

    Attributes:
        peer_key: identity of the peer: its address as configured.
        state: state of the claim.
        topic: prefix of the topics on which other nodes send the holder messages for the peer.
        holder: the node that holds the door, if it is a known other node.
    """

    def __init__(
        self,
        hub: Hub,
        peer_key: str,
        *,
        on_held: Callable[[], object],
        on_lost: Callable[[bytes], object],
        reaches: Callable[[], bool] = lambda: True,
    ) -> None:
        """Claim a door. Can be called from any thread; callbacks run on the node's thread.

        Args:
            hub: hub of the node.
            peer_key: identity of the peer; a node can have one claim for each peer.
            on_held: called when this node becomes the holder.
            on_lost: called when another node is the holder, with its id, which is empty while
                unknown. At the end of a partition this may follow `on_held`.
            reaches: returns whether this node can reach the peer.

        Raises:
            DoorTaken: this node already has a claim to the peer.
        """
        self.peer_key = peer_key
        self.state = DoorState.CLAIMING
        self.holder: bytes | None = None
        name = f"callboard.door.{hashlib.sha256(peer_key.encode()).hexdigest()[:32]}"
        self.topic = f"{RESERVED}/local/{name}"
        with hub.lock:
            if name in hub.claims:
                msg = (
                    f"this node is connected to {peer_key} already; close that connection first"
                )
                raise DoorTaken(msg)
            hub.claims.add(name)
        self._hub, self._name = hub, name
        self._on_held, self._on_lost, self._reaches = on_held, on_lost, reaches
        node: Node = hub.node
        self._claimers, self._holders = node.group(name), node.group(f"{name}.held")
        #: Standbys and claimers that can reach the peer.
        self._ready = node.group(f"{name}.ready")
        self._is_ready = False
        self._since = hub.runtime.now()
        hub.call_soon(self._begin)

    def release(self) -> None:
        """Withdraw the claim, and close the door.

        Can be called from any thread; further calls do nothing.
        """
        if self.state is not DoorState.RELEASED:
            self.state = DoorState.RELEASED
            with self._hub.lock:
                self._hub.claims.discard(self._name)
            if not self._hub.runtime.is_closed:
                self._hub.call_soon(self._leave)

    def _begin(self) -> None:
        """Publish the claim, and start to check other claims."""
        if self.state is DoorState.CLAIMING:
            self._claimers.join(self._hub.me)
        self._check()

    def _leave(self) -> None:
        """Withdraw the claim from all groups."""
        self._is_ready = False
        for group in (self._claimers, self._holders, self._ready):
            group.leave(self._hub.me)

    def _check(self) -> None:
        """Compare this claim with those of other nodes, and change the state if needed."""
        if self.state is DoorState.RELEASED:
            return
        hub, own = self._hub, self._hub.runtime.node_id
        is_alone = not hub.overlay.nodes() and not hub.overlay.dials()
        grace = 0.0 if is_alone else GRACE
        holders = _nodes(self._holders.members())
        reaches = self._reaches()
        state = next_state(
            self.state,
            own,
            _nodes(self._claimers.members()),
            holders,
            has_waited=hub.runtime.now() - self._since >= grace,
            is_outdone=not reaches and bool({*_nodes(self._ready.members())} - {own}),
        )
        if state is not self.state:
            self._enter(state, holders)
        elif state is DoorState.STANDBY and self.holder != (other := _other(holders, own)):
            self.holder = other
            self._on_lost(other or b"")
        if (state is not DoorState.HELD and reaches) is not self._is_ready:
            self._is_ready = not self._is_ready
            (self._ready.join if self._is_ready else self._ready.leave)(hub.me)
        hub.after(POLL_SECONDS, CallBack(self._check))

    def _enter(self, state: DoorState, holders: list[bytes]) -> None:
        """Change the state, update the groups, and notify the door."""
        self.state, me = state, self._hub.me
        if state is DoorState.HELD:
            self.holder = None
            self._holders.join(me)
            self._claimers.leave(me)
            self._on_held()
        elif state is DoorState.STANDBY:
            self._leave()
            self.holder = _other(holders, self._hub.runtime.node_id)
            self._on_lost(self.holder or b"")
        else:
            self._since = self._hub.runtime.now()
            self._claimers.join(me)


def _other(holders: list[bytes], own: bytes) -> bytes | None:
    """Return the other node that holds the door; of two, the one that will keep it."""
    return min(set(holders) - {own}, default=None)


def _nodes(refs: list[ActorRef[object]]) -> list[bytes]:
    """Return the nodes of actors."""
    return [ref.node_id for ref in refs]
