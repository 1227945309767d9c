"""One door for each foreign peer in the whole overlay.

Two doors to the same Zeek would let each message circle: what one brings in, the other would
carry out again. So a node that wants to open a door to a peer claims it first, in two groups of
the directories: those that claim, and the one that has it.

- Who claims waits a moment for what the directories of other nodes say. If somebody has the
  door, it stands by; of two that claim at once the smaller node id goes first.
- Where a partition made two, both see each other when it ends: the smaller node id keeps the
  door, the other one closes its own.
- Who stands by claims again when nobody has the door any more: a node that dies is replaced.
- Who has the door and has not reached the peer for a while gives it up, if another node that
  stands by reaches it: those are in a third group. They stay there while they claim: the node
  that gave the door up may have the smallest id, and must not claim it against them.

Leaves are not asked, as nobody is led to them by names: they must not have doors to a peer
that a member has.
"""

import hashlib
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final

from callboard.endpoint.hub import Hub
from callboard.endpoint.machine.topic import RESERVED
from callboard.kernel.actors import ActorRef
from callboard.kernel.context import CallBack
from callboard.model.errors import DoorTaken
from callboard.node import Node

#: Seconds that directories have to tell of other claims.
GRACE: Final = 0.5

#: Seconds between looks at the claims of others.
LOOK_INTERVAL: Final = 0.1


class DoorState(Enum):
    """What a node's claim has come to."""

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
    """Return what becomes of a claim; pure.

    Args:
        state: what it is.
        own: the node id of the claim.
        claimers: the nodes that claim the door, as far as is known here.
        holders: the nodes that have it.
        has_waited: whether directories had time to tell of others.
        is_outdone: whether the peer is out of reach, and another node reaches it that stands by
            or claims.
    """
    others = {*holders} - {own}
    if state is DoorState.HELD:
        is_second = any(other < own for other in others)
        return DoorState.STANDBY if is_second or is_outdone else state
    if state is DoorState.STANDBY:
        return state if others or is_outdone else DoorState.CLAIMING
    if state is DoorState.CLAIMING:
        if others or is_outdone:
            return DoorState.STANDBY
        if has_waited and not any(other < own for other in {*claimers} - {own}):
            return DoorState.HELD
    return state


class DoorClaim:
    """A node's claim to be the door to one foreign peer.

    Attributes:
        peer_key: what tells the peer from others: its address as it was configured.
        state: what the claim has come to.
        topic: begins the topics by which others hand the holder what it is to carry out.
        holder: the node that has the door, where it is another one and known.
    """

    def __init__(
        self,
        hub: Hub,
        peer_key: str,
        *,
        kept: Callable[[], object],
        lost: Callable[[bytes], object],
        reaches: Callable[[], bool] = lambda: True,
    ) -> None:
        """Claim a door; from any thread.

        Args:
            hub: of the node.
            peer_key: what tells the peer from others; at most one claim of it on a node.
            kept: called when the door is this node's; on the node's thread.
            lost: called with the node that has it, when it is another's: at once, after `kept`
                where a partition had made two, or after another had it; empty while that one
                is to be found; on the node's thread.
            reaches: returns whether the peer is in reach from here; on the node's thread.

        Raises:
            DoorTaken: this node has a claim to the peer already.
        """
        self.peer_key = peer_key
        self.state = DoorState.CLAIMING
        self.holder: bytes | None = None
        name = f"callboard.door.{hashlib.sha256(peer_key.encode()).hexdigest()[:32]}"
        self.topic = f"{RESERVED}/local/{name}"
        with hub.lock:
            if name in hub.claims:
                msg = f"this node has a door to {peer_key} already; close that one first"
                raise DoorTaken(msg)
            hub.claims.add(name)
        self._hub, self._name = hub, name
        self._kept, self._lost, self._reaches = kept, lost, reaches
        node: Node = hub.node
        self._claimers, self._holders = node.group(name), node.group(f"{name}.held")
        #: Those that stand by, or claim, and reach the peer.
        self._ready = node.group(f"{name}.ready")
        self._is_ready = False
        self._since = hub.runtime.now()
        hub.call_soon(self._begin)

    def release(self) -> None:
        """Give the claim, and the door, up; from any thread. Idempotent."""
        if self.state is not DoorState.RELEASED:
            self.state = DoorState.RELEASED
            with self._hub.lock:
                self._hub.claims.discard(self._name)
            if not self._hub.runtime.is_closed:
                self._hub.call_soon(self._leave)

    def _begin(self) -> None:
        """Tell the others of the claim, and look at theirs from here on."""
        if self.state is DoorState.CLAIMING:
            self._claimers.join(self._hub.me)
        self._look()

    def _leave(self) -> None:
        """Tell the others that there is no claim any more."""
        self._is_ready = False
        for group in (self._claimers, self._holders, self._ready):
            group.leave(self._hub.me)

    def _look(self) -> None:
        """Look at the claims of others, and do what follows."""
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
            self._lost(other or b"")
        if (state is not DoorState.HELD and reaches) is not self._is_ready:
            self._is_ready = not self._is_ready
            (self._ready.join if self._is_ready else self._ready.leave)(hub.me)
        hub.after(LOOK_INTERVAL, CallBack(self._look))

    def _enter(self, state: DoorState, holders: list[bytes]) -> None:
        """Change to another state, tell the directories, and the door."""
        self.state, me = state, self._hub.me
        if state is DoorState.HELD:
            self.holder = None
            self._holders.join(me)
            self._claimers.leave(me)
            self._kept()
        elif state is DoorState.STANDBY:
            self._leave()
            self.holder = _other(holders, self._hub.runtime.node_id)
            self._lost(self.holder or b"")
        else:
            self._since = self._hub.runtime.now()
            self._claimers.join(me)


def _other(holders: list[bytes], own: bytes) -> bytes | None:
    """Return which of the others has the door: of two, the one that keeps it."""
    return min(set(holders) - {own}, default=None)


def _nodes(refs: list[ActorRef[object]]) -> list[bytes]:
    """Return the nodes of actors."""
    return [ref.node_id for ref in refs]
