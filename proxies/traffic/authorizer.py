"""Authorization of leaves: the gates on all links of one node with leaves."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final

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

#: Bytes that may wait for a leaf that does not read; beyond that, its refused monitors are not
#: reported to it.
REPORT_BACKLOG_LIMIT: Final = 1024 * 1024


class PeerAuthorizer:
    """State shared by the gates of one node.

    Must be used on the runner, except the methods for gates.
    """

    #: Grants a leaf credit for an actor that it may send to but not monitor.
    lend: Callable[[bytes, int], object]
    #: Returns the names under which an actor of this node is registered.
    registered: Callable[[ActorRef], Collection[str]]
    #: Classes that other nodes may spawn here, by name.
    offered: Mapping[str, type]
    #: Read-only questions to the inspector.
    inspections: tuple[type, ...] = ()

    def __init__(self, runtime: Runtime, routes: RouteTable, codec: PayloadCodec) -> None:
        self._runtime = runtime
        self._routes = routes
        self._codec = codec
        #: Records the requests of leaves that were refused.
        self.audit = Audit(runtime.now, runtime.call_later, runtime.report)
        #: Proven identity of each neighbor, until it is forgotten.
        self._identities: dict[bytes, str] = {}
        routes.on_refused = lambda *refusal: runtime.post(self.refused, *refusal)
        #: Decodes messages from leaves to system actors, without running users' code.
        self.read = codec.with_stand_ins().decode_message
        self.offered = {}
        self.registered = lambda _: ()

    def objection(self, peer: NodeId, standing: Principal) -> str:
        """Return why a peer may not use its node id; empty if it may.

        Each peer chooses its own node id. Therefore a leaf may not use an id that another
        identity has used on a proven link, or that belongs to a node in reach through other
        members.
        """
        identity, routes, leaf = self._identities.get(peer), self._routes, standing.rights
        if leaf.is_member:
            return ""
        if identity is None:
            is_taken = routes.has_path(peer) or (not leaf.reach and peer in routes.departed)
        else:
            is_taken = identity != standing.identity
        text = f"{standing.identity!r} has the id of another node, {node_id_text(peer)}"
        return text if is_taken else ""

    def begin(self, wire: Wire, standing: Principal) -> bool:
        """Record the identity of a neighbor; install the gate on the link if it is a leaf.

        Returns whether the neighbor is a leaf.
        """
        assert wire.peer is not None, "a link that is established has a peer"
        self._identities[wire.peer] = standing.identity
        if standing.rights.is_member:
            return False
        gate = LeafGate(self, self._routes.node_id, wire.peer, standing)
        if wire.link.published_actor:
            gate.grant(wire.link.published_actor)
        wire.guard(partial(self._admit, gate, wire), partial(self._outgoing, gate))
        return True

    def _admit(self, gate: LeafGate, wire: Wire, frames: list[RawFrame]) -> list[RawFrame]:
        """Return the frames that a leaf may send; record and answer the refused ones."""
        admitted = gate.admit(frames)
        leaf = wire.peer or b""
        if gate.refusals:
            self._routes.refused += gate.dropped
            for refusal in gate.refusals:
                self.refused(leaf, refusal.right, refusal.name)
            gate.refusals.clear()
            gate.dropped = 0
        for host, number in gate.unwatched:
            if host == self._routes.node_id and gate.may_send(number):
                self.lend(leaf, number)
            if wire.waiting < REPORT_BACKLOG_LIMIT:
                text = gate.text_of(Refusal("monitor", "", f"actor {number}"))
                node_ref = self._runtime.ref_of(leaf, NODE_ACTOR)
                node_ref.tell(Failure("NotPermitted", text, actor_text(None, host, number)))
        gate.unwatched.clear()
        return admitted

    def _outgoing(self, gate: LeafGate, frame: bytes) -> bytes:
        """Return the bytes to send to a leaf for a frame, and send the refusals of the gate."""
        outgoing = gate.outgoing(frame)
        while gate.answers:
            self._routes.send_to(*gate.answers.pop(0))
        return outgoing

    def refused(self, leaf: bytes, right: str, name: str) -> None:
        """Record the right that a leaf lacks for a request."""
        self.audit.refused(self._identities.get(leaf, ""), leaf, right, name)

    def forget(self, node: bytes) -> None:
        """Forget a node that has been out of reach for long.

        Its rights are kept until then, because its messages may still wait in mailboxes.
        """
        self._routes.rights.pop(node, None)
        self._identities.pop(node, None)

    # --- questions of gates ---

    def names_of(self, number: int) -> Collection[str]:
        """Return the registered names of an actor here, or else the name of its class."""
        cell = self._runtime.contexts.get(number)
        if cell is None:
            return ()
        actor = getattr(cell, "actor", None)
        own = OWN if isinstance(actor, SystemActor) else ""
        return self.registered(cell.ref) or (own + type(actor).__name__,)

    def offered_as(self, request: Spawn) -> str:
        """Return the name under which the class of a spawn request is offered."""
        if request.by_class:
            for name in sorted(self.offered):
                if self.offered[name].__qualname__ == request.name:
                    return name
        return request.name

    def name_of(self, node: bytes) -> str:
        """Return the name of a node, empty if it is unknown."""
        own = node == self._routes.node_id
        return self._runtime.name if own else self._routes.names.get(node, "")

    def is_behind(self, node: bytes) -> bool:
        """Return whether a node is a member that a path leads to."""
        return node not in self._routes.rights and self._routes.has_path(node)

    def write_error(self, text: str) -> bytes:
        """Encode the answer to an ask that is not permitted."""
        return self._codec.encode(failure_of(NotPermitted(text)))
