"""The leaves that one node is linked with: each link has a gate, refusals are told."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final

from callboard.actors.reference import ActorRef
from callboard.actors.runtime import Runtime
from callboard.actors.system_actor import SystemActor
from callboard.basp.frame import RawFrame
from callboard.basp.header import NODE_ACTOR
from callboard.basp.node_id import NodeId, node_id_text
from callboard.basp.payload import PayloadCodec
from callboard.proxies.address import actor_text
from callboard.proxies.errors import NotPermitted
from callboard.proxies.link.wire import Wire
from callboard.proxies.messages import Failure, Spawn, failure_of
from callboard.proxies.rights.audit import Audit
from callboard.proxies.rights.gate import LeafGate, Refusal
from callboard.proxies.rights.permissions import Principal
from callboard.proxies.rights.rights import OWN
from callboard.proxies.route_table import RouteTable

#: Bytes that may wait for a leaf that does not read, while it is told what it may not watch.
TOLD_WITHIN: Final = 1024 * 1024


class PeerAuthorizer:
    """What the gates of one node share. On the runner, but for what gates ask."""

    #: Tells a leaf how much an actor takes that it may send to, though not watch.
    lend: Callable[[bytes, int], object]
    #: Returns what an actor of this node is registered as.
    registered: Callable[[ActorRef[Any]], Collection[str]]
    #: The classes that others may spawn here, by name.
    offered: Mapping[str, type]
    #: Questions to the inspector that only look.
    inspections: tuple[type, ...] = ()

    def __init__(self, runtime: Runtime, routes: RouteTable, codec: PayloadCodec) -> None:
        self._runtime = runtime
        self._routes = routes
        self._codec = codec
        #: What leaves asked for in vain.
        self.audit = Audit(runtime.now, runtime.call_later, runtime.report)
        #: What each neighbor has proven to be, as long as it is not forgotten.
        self._identities: dict[bytes, str] = {}
        routes.on_refused = lambda *refusal: runtime.post(self.refused, *refusal)
        #: Reads what leaves ask of parts of a node, on the runner: no code of users runs there.
        self.read = codec.with_stand_ins().decode_message
        self.offered = {}
        self.registered = lambda _: ()

    def objection(self, peer: NodeId, standing: Principal) -> str:
        """Return why a peer may not have its id, with what it has proven; empty if it may.

        Its id is what it says itself, so no leaf gets one that was proven to be another's, or
        that of a node which members lead to.
        """
        known, routes, leaf = self._identities.get(peer), self._routes, standing.rights
        if leaf.is_member:
            return ""
        if known is None:
            is_taken = routes.has_path(peer) or (not leaf.reach and peer in routes.departed)
        else:
            is_taken = known != standing.identity
        what = f"{standing.identity!r} comes with the id of another node, {node_id_text(peer)}"
        return what if is_taken else ""

    def begin(self, wire: Wire, standing: Principal) -> bool:
        """Note who a neighbor is; guard a leaf's link, before anything goes over it.

        Returns whether it is a leaf's.
        """
        assert wire.peer is not None, "a link that is established has a peer"
        self._identities[wire.peer] = standing.identity
        if standing.rights.is_member:
            return False
        gate = LeafGate(self, self._routes.node_id, wire.peer, standing)
        if wire.link.shown:
            gate.give(wire.link.shown)
        wire.guard(partial(self._admit, gate, wire), partial(self._sent, gate))
        return True

    def _admit(self, gate: LeafGate, wire: Wire, frames: list[RawFrame]) -> list[RawFrame]:
        """Let frames of a leaf pass, and tell of what was refused."""
        admitted = gate.admit(frames)
        leaf = wire.peer or b""
        if gate.refusals:
            self._routes.refused += gate.dropped
            for refusal in gate.refusals:
                self.refused(leaf, refusal.right, refusal.name)
            gate.refusals.clear()
            gate.dropped = 0
        for node, number in gate.unwatched:
            if node == self._routes.node_id and gate.may_send(number):
                self.lend(leaf, number)
            if wire.waiting < TOLD_WITHIN:
                text = gate.text_of(Refusal("monitor", "", f"actor {number}"))
                node_ref = self._runtime.ref_of(leaf, NODE_ACTOR)
                node_ref.tell(Failure("NotPermitted", text, actor_text(None, node, number)))
        gate.unwatched.clear()
        return admitted

    def _sent(self, gate: LeafGate, frame: bytes) -> bytes:
        """Return a frame as it goes out to a leaf, or answer who may not talk with it."""
        sent = gate.sent(frame)
        while gate.answers:
            self._routes.send_to(*gate.answers.pop(0))
        return sent

    def refused(self, leaf: bytes, right: str, name: str) -> None:
        """Take note of what a leaf lacks a right for."""
        self.audit.refused(self._identities.get(leaf, ""), leaf, right, name)

    def forget(self, node: bytes) -> None:
        """Forget a node that is out of reach for long: its messages waited in mailboxes."""
        self._routes.rights.pop(node, None)
        self._identities.pop(node, None)

    # --- what gates ask ---

    def names_of(self, number: int) -> Collection[str]:
        """Return what an actor here is registered as, else what its class is called."""
        cell = self._runtime.contexts.get(number)
        if cell is None:
            return ()
        actor = getattr(cell, "actor", None)
        own = OWN if isinstance(actor, SystemActor) else ""
        return self.registered(cell.ref) or (own + type(actor).__name__,)

    def offered_as(self, request: Spawn) -> str:
        """Return the name under which the class is offered that a request means."""
        if request.by_class:
            for name in sorted(self.offered):
                if self.offered[name].__qualname__ == request.name:
                    return name
        return request.name

    def name_of(self, node: bytes) -> str:
        """Return what a node is called."""
        own = node == self._routes.node_id
        return self._runtime.name if own else self._routes.names.get(node, "")

    def is_behind(self, node: bytes) -> bool:
        """Return whether a node is a member that a path leads to."""
        return node not in self._routes.rights and self._routes.has_path(node)

    def write_error(self, text: str) -> bytes:
        """Write the answer to an ask that says that it is not permitted."""
        return self._codec.encode(failure_of(NotPermitted(text)))
