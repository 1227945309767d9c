"""CAF's wire on a node: its ports, its connections, and the messages of actors over them.

    actors ── stand-ins ── peers ── machine of a connection ── stream
              (refs)      (nodes)          (frames)           (bytes)

A frame for another CAF node is forwarded unchanged. When a CAF node has no route for a frame,
it drops the frame silently. When it loses a connection, it does not report that to the nodes
which reached others through it. callboard's node answers a request without a route with
`no_route_to_receiving_node`, and reports the actors
that were reached through it as ended.

Everything but `listen`, `connect`, `remote_actor`, `spawn`, `disconnect` and the sending of
messages runs on the node's thread.
"""

import hashlib
import logging
import os
import socket
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Unpack

from callboard.caf.errors import (
    SYSTEM,
    CafError,
    LimitExceeded,
    SystemError17,
    exit_error,
    reason_of,
)
from callboard.caf.exports import Exports
from callboard.caf.peer import PING_SECONDS, PINGS_PER_SECOND, CafPeer
from callboard.caf.quota import UNANSWERED_LIMIT, Quota
from callboard.caf.services import Services
from callboard.caf.stand_in import CafCell, error_of
from callboard.caf.wire import connection as caf
from callboard.caf.wire.connection import (
    ASKER,
    CATEGORY,
    CONFIG_SERVER,
    NORMAL,
    REQUEST_MASK,
    RESPONSE,
    SPAWN_SERVER,
    CafConnection,
    DownFrame,
    MessageFrame,
    MonitorFrame,
    NodeIntroduced,
    PassingFrame,
)
from callboard.caf.wire.frame import CafOperation
from callboard.caf.wire.message import Atom, CafMessage, ExitMessage, MessageCodec, TypedMessage
from callboard.caf.wire.reader import CafActor, CafNode, atom
from callboard.kernel.actors import ActorRef, Down, Exit, ExitReason
from callboard.kernel.errors import (
    CallboardError,
    InvalidAddress,
    NodeUnreachable,
    NotRegistered,
    NotSpawnable,
)
from callboard.kernel.errors import UnknownMessageType as UnknownMessage
from callboard.kernel.ports import Limits
from callboard.kernel.reply import Future
from callboard.kernel.topology import Endpoint, endpoint_text, parse_node_address
from callboard.kernel.wire import (
    ForeignDial,
    ForeignLink,
    ForeignPort,
    NodeWirePort,
    Opening,
)
from callboard.protocol_errors import (
    BaspError,
    MalformedFrame,
    MessageRefused,
    UnknownMessageType,
)
from callboard.tls.certificates import Certificates

_log = logging.getLogger("callboard.caf")

#: Ended actors that are remembered, to recognize late messages of theirs.
ENDED_LIMIT: Final = 10_000

_NAMES: Final = {caf.SPAWN_NAME: SPAWN_SERVER, caf.CONFIG_NAME: CONFIG_SERVER}

#: Hosts of ports on all addresses of the machine.
_ANY_HOST: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104  # compared with, not bound to

#: With this error a hub of ours reports actors to which no path is left.
_NO_PATH: Final = exit_error(ExitReason.UNREACHABLE)


class CafWire:
    """The ports, connections and peers of one node on CAF's wire."""

    #: Name of this wire in events and figures.
    kind: Final = "caf-0.17"

    def __init__(self, node: Any, tls: Certificates | None) -> None:
        """Create a wire without ports and connections.

        Args:
            node: the `Node` whose actors use the wire.
            tls: the certificates of encrypted connections; None without encryption.
        """
        self.context, self.runner = node.context, node.runner
        host = hashlib.sha1(node.node_id, usedforsecurity=False).digest()
        #: The id of this node for CAF.
        self.own = CafNode(os.getpid(), host)
        self.limits: Limits = node.overlay.foreign.limits
        self.exports = Exports(self.context, self.own, self.limits.proxies)
        self.codec = MessageCodec(
            items=self.limits.items,
            actor_of=self._value_of,
            actor_from=self.exports.actor_of,
        )
        self.peers: dict[CafNode, CafPeer] = {}
        #: The stand-ins of CAF actors.
        self.stand_ins: dict[CafActor, CafCell] = {}
        #: The stand-ins of the CAF actors that ended last.
        self.ended: OrderedDict[CafActor, CafCell] = OrderedDict()
        #: The number of an actor that does not exist; pings name it. Other nodes cannot guess
        #: it, so an answer with this number answers a ping of this node.
        self.pinged = 1 << 62 | self.context.random.getrandbits(62)
        self._quotas: dict[ForeignLink, Quota] = {}
        self._foreign, self._tls = node.overlay.foreign, tls
        self._services = Services(self.context, self.own)
        self._services.endpoint = self._own_endpoint
        self._ports: list[_CafPort] = []
        #: The futures of callers that wait for the handshake of a dialed node.
        self._waiting: dict[ForeignDial, Future[NodeIntroduced]] = {}
        #: Addresses to which this node stays connected: their dial and its latest handshake.
        self._dials: dict[Endpoint, tuple[ForeignDial, NodeIntroduced]] = {}
        #: The connection whose frame is being handled.
        self._reading: ForeignLink | None = None
        self._is_ticking = False

    # --- for users ---

    def listen(self, address: str, port: int, **options: Unpack[NodeWirePort]) -> int:
        """Accept connections of CAF nodes; return the port.

        Without `tls`, the port uses the certificates of the node.

        Raises:
            PublicAddress: other machines can reach the port, and it has no TLS.
            PortUnavailable: the address is not on this machine, or the port is taken.
        """
        publish, tls = options["publish"], options["tls"]
        published = 0 if publish is None else self.exports.actor_of(publish).number
        door = _CafPort(self, published, options["interface"])
        certificates = self._tls if tls is None else Certificates(tls, self.context.report)
        door.has_tls = certificates is not None
        door.port = self._foreign.listen(
            door,
            address,
            port,
            tls=certificates,
            insecure=options["insecure"],
            limits=self.limits,
        )
        self._ports.append(door)
        if publish is not None:
            close, opened = self._foreign.close_port, door.port
            key = "caf port", opened
            text = "its actor has ended"
            publish.target.monitor(key, lambda _: close(opened, text, keep_links=True))
        return door.port.port

    def _own_endpoint(self) -> Endpoint | None:
        """Return the address of an open port without TLS, for CAF nodes to dial; or None."""
        for door in self._ports:
            if door.port is not None and door.port in self._foreign.ports and not door.has_tls:
                host, port = door.port.endpoint
                return socket.gethostname() if host in _ANY_HOST else host, port
        return None

    async def connect(self, address: str, timeout: float) -> bytes:
        """Link with the CAF node at an address, and stay linked; return its id.

        Raises:
            InvalidAddress: the address is not `caf://HOST:PORT`.
            NodeUnreachable: no CAF node answers there.
        """
        endpoint, _ = parse(address)
        handshake = await self._handshake(endpoint, timeout)
        return handshake.node.host + handshake.node.process.to_bytes(4)

    async def remote_actor(self, address: str, timeout: float) -> ActorRef:
        """Return the actor that is published at a port, or registered under a name.

        Raises:
            InvalidAddress: the address is not `caf://HOST:PORT` or `caf://HOST:PORT/NAME`.
            NodeUnreachable: no CAF node answers there.
            NotRegistered: no actor is published, or no actor has the name.
        """
        endpoint, name = parse(address)
        handshake = await self._handshake(endpoint, timeout, fresh=name is None)
        if name is None:
            if not handshake.actor:
                code = SystemError17.NO_ACTOR_PUBLISHED_AT_PORT.name.lower()
                msg = f"no actor is published at {address} ({code})"
                raise NotRegistered(msg)
            ref: ActorRef = await self._on_node(
                lambda: self._peer(handshake).cell_of(handshake.actor).ref
            )
            return ref
        answer = await self._ask(handshake, caf.CONFIG_NAME, (Atom("get"), Atom(name)), timeout)
        if not isinstance(answer, ActorRef):
            msg = f"no actor is registered as {name!r} at {address}"
            raise NotRegistered(msg)
        return answer

    async def spawn(
        self, address: str, name: str, args: tuple[Any, ...], timeout: float
    ) -> ActorRef:
        """Create an actor of a type that is registered at a CAF node; return its ref.

        Raises:
            NotSpawnable: the node has no type of that name, or refuses the arguments.
            NodeUnreachable: no CAF node answers there.
        """
        handshake = await self._handshake(parse(address)[0], timeout)
        types = tuple([self.codec.name_of(value) for value in args])
        content = TypedMessage(types, args)
        request = (Atom("spawn"), name, content, set[str]())
        types = ("@atom", "@str", "@message", "@strset")
        try:
            spawned = await self._ask(
                handshake, caf.SPAWN_NAME, TypedMessage(types, request), timeout
            )
        except CafError as error:
            msg = f"{handshake.node} does not spawn {name!r}: {error}"
            raise NotSpawnable(msg) from error
        if not isinstance(spawned, ActorRef):
            msg = f"{handshake.node} did not spawn {name!r}"
            raise NotSpawnable(msg)
        return spawned

    def disconnect(self, node: bytes) -> None:
        """End the connection with a CAF node, and do not restore it."""
        self.context.post(self._disconnect, CafNode(int.from_bytes(node[20:]), node[:20]))

    def _disconnect(self, node: CafNode) -> None:
        """Stop the dials to a node, and end its connection."""
        for endpoint, (dial, handshake) in list(self._dials.items()):
            if handshake.node == node:
                del self._dials[endpoint]
                self._foreign.stop(dial, "this side disconnected")
        peer = self.peers.get(node)
        if peer is not None:
            peer.link.end("this side disconnected")

    # --- connections ---

    async def _on_node(self, function: Callable[[], Any]) -> Any:
        """Call a function on the node's thread."""
        future: Future[Any] = Future()

        def call() -> None:
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001  # it is the caller's
                future.set_exception(error)

        self.context.post(call)
        return await self.context.shutdown.guard(future)

    def _peer(self, handshake: NodeIntroduced) -> CafPeer:
        """Return the peer that sent a handshake.

        Raises:
            NodeUnreachable: the connection to the peer was lost after the handshake.
        """
        peer = self.peers.get(handshake.node)
        if peer is None:
            msg = f"{handshake.node} is lost"
            raise NodeUnreachable(msg)
        return peer

    async def _handshake(
        self, endpoint: Endpoint, timeout: float, *, fresh: bool = False
    ) -> NodeIntroduced:
        """Connect with the node at an address, and return its handshake.

        Args:
            endpoint: the address.
            timeout: seconds to wait.
            fresh: whether to dial again if the node is connected, because the actor that its
                earlier handshake names may have ended.
        """
        done: Future[NodeIntroduced] = Future()
        self.context.post(partial(self._begin_handshake, endpoint, done, fresh=fresh))
        late = NodeUnreachable(f"{endpoint[0]}:{endpoint[1]} did not answer in {timeout:g} s")
        timer = self.context.call_later(timeout, done.set_exception, late)
        try:
            await self.context.shutdown.guard(done)
            return done.result()
        finally:
            timer.cancel()
            if done.exception() is not None:
                self.context.post(self._give_up, done)

    def _begin_handshake(
        self, endpoint: Endpoint, done: Future[NodeIntroduced], *, fresh: bool
    ) -> None:
        """Dial an address, unless this node is already connected with the node there."""
        if endpoint in self._dials:
            handshake = self._dials[endpoint][1]
            peer = self.peers.get(handshake.node)
            if peer is not None and peer.is_direct:
                cell = peer.cells.get(handshake.actor)
                if not fresh or (cell is not None and cell.reason is None):
                    done.set_result(handshake)
                    return
        dial = self._foreign.dial(_CafPort(self, 0, ()), endpoint, tls=self._tls)
        self._waiting[dial] = done

    def _give_up(self, done: Future[NodeIntroduced]) -> None:
        """Stop the dial whose caller no longer waits for the handshake."""
        for dial, other in list(self._waiting.items()):
            if other is done:
                del self._waiting[dial]
                self._foreign.stop(dial, "it did not answer")

    async def _ask(
        self, handshake: NodeIntroduced, name: int, message: Any, timeout: float
    ) -> Any:
        """Send a request to one of the actors that CAF runs on every node.

        Return the answer.
        """
        done: Future[Any] = Future()

        def answered(answer: Any) -> None:
            if isinstance(answer, BaseException):
                done.set_exception(answer)
            else:
                done.set_result(answer)

        def ask() -> None:
            try:
                self._peer(handshake).request(name, message, answered, limit=timeout)
            except CallboardError as error:
                done.set_exception(error)

        self.context.post(ask)
        return await self.context.shutdown.guard(done)

    # --- callbacks of the links; on the node's thread ---

    def handshake(self, link: ForeignLink, handshake: NodeIntroduced) -> None:
        """Handle the handshake of a peer: use this connection, unless an earlier one exists."""
        machine: CafConnection = link.machine  # type: ignore[assignment]
        peer, dial = self.peers.get(handshake.node), link.dial
        is_redundant = peer is not None and peer.is_direct and peer.link.is_open
        done = None if dial is None else self._waiting.pop(dial, None)
        if dial is not None and is_redundant:
            for other, earlier in list(self._dials.values()):  # the present link's own dial
                if earlier.node == handshake.node and other is not dial:
                    self._dials[dial.endpoint] = other, handshake
            self._foreign.stop(dial, "its node is linked already")
        elif dial is not None:
            self._dials[dial.endpoint] = dial, handshake
        if is_redundant and dial is not None:
            self._foreign.carry_out(link, machine.redundant())
        elif not is_redundant:
            self._adopt(handshake.node, link)
            self._foreign.carry_out(link, machine.accept())
            if handshake.actor:
                self.peers[handshake.node].cell_of(handshake.actor)
        if done is not None:
            done.set_result(handshake)

    def _select(self, link: ForeignLink, handshake: NodeIntroduced) -> None:
        """Use the connection that a dialer has selected, and end the earlier connection."""
        peer = self.peers.get(handshake.node)
        if peer is None or peer.link is not link:
            if peer is not None and peer.is_direct:
                peer.link.end("its node has selected another connection")
            self.handshake(link, handshake)

    def _adopt(self, node: CafNode, link: ForeignLink) -> None:
        """Use a connection for a node; others may have forwarded the node's frames before."""
        peer = self.peers.get(node)
        if peer is None:
            self.peers[node] = CafPeer(self, node, link, is_direct=True)
        else:
            peer.go_direct(link)

    def quota(self, link: ForeignLink) -> Quota:
        """Return the limits of the connection whose frame is handled, or else of `link`."""
        link = self._reading or link
        quota = self._quotas.get(link)
        if quota is None:
            quota = Quota(self.limits.proxies)
            if link.is_open:
                self._quotas[link] = quota
        return quota

    def peer_of(self, node: CafNode, link: ForeignLink) -> CafPeer:
        """Return the peer object of a node; create one that sends over `link` if there is none.

        Raises:
            LimitExceeded: frames of the connection named too many nodes.
            MalformedFrame: the frame names this node as another one.
        """
        peer = self.peers.get(node)
        if peer is None:
            if node == self.own:
                msg = "the peer uses the node id of this node"
                raise MalformedFrame(msg)
            quota = self.quota(link)
            quota.add_node()
            peer = self.peers[node] = CafPeer(self, node, link, is_direct=False)
            peer.shown_by = quota
            self._tick_later()
        return peer

    def _sender(self, node: CafNode, link: ForeignLink) -> CafPeer | None:
        """Return the node that sent a frame; None if the frame claims a false sender.

        A node that is connected with this one sends over that connection. A frame that arrives
        on another connection and names this node as its sender is forged, or was forwarded in a
        circle. The exception is the connection over which the node was reached before.
        """
        peer = self.peer_of(node, link)
        if peer.is_direct and link not in (peer.link, peer.former_link):
            self.context.counters.unexpected += 1
            text = f"a frame of {node} arrived from {link.name}, and is ignored"
            self.context.warn_once(("caf frame", link.name), text)
            return None
        peer.heard()
        return peer

    def remember(self, cell: CafCell) -> None:
        """Remember the stand-in of an actor that has ended."""
        self.ended[cell.caf] = cell
        if len(self.ended) > ENDED_LIMIT:
            self.ended.popitem(last=False)

    def _tick_later(self) -> None:
        """Schedule the next pings to indirect nodes."""
        if not self._is_ticking:
            self._is_ticking = True
            pause = max(PING_SECONDS, len(self.peers) / PINGS_PER_SECOND)
            self.context.call_later(pause, self._tick)

    def _tick(self) -> None:
        """Ping the nodes whose frames another node forwards."""
        self._is_ticking = False
        if self.context.is_closed:
            return
        now = self.context.now()
        for peer in list(self.peers.values()):
            if not peer.ping(now):
                self._lose(peer, "it does not answer behind its neighbor")
        if any(not peer.is_direct for peer in self.peers.values()):
            self._tick_later()

    def link_down(self, link: ForeignLink, reason: str) -> None:
        """Treat all nodes that were reached through a lost connection as lost."""
        for peer in list(self.peers.values()):
            if peer.link is link:
                self._lose(peer, reason)
        self._quotas.pop(link, None)

    def _lose(self, peer: CafPeer, reason: str) -> None:
        """Treat a node as lost, and report its monitored actors as ended."""
        if self.peers.get(peer.node) is peer:
            del self.peers[peer.node]
        for actor in [actor for actor in self.ended if actor.node == peer.node]:
            del self.ended[actor]  # a new process may have the id of this one
        peer.lose(reason)
        for other in list(self.peers.values()):
            other.lose_path(peer.node)

    def not_linked(self, remote: Endpoint, reason: str) -> None:
        """Fail the caller of a dial whose first attempt failed."""
        for dial, done in list(self._waiting.items()):
            if dial.endpoint == remote:
                del self._waiting[dial]
                self._foreign.stop(dial, reason)
                done.set_exception(NodeUnreachable(reason))

    def deliver(self, link: ForeignLink, messages: list[Any]) -> None:
        """Handle the messages of a connection, in order."""
        self._reading = link
        try:
            for message in messages:
                if not link.is_open:
                    return
                self._handle(link, message)
        except LimitExceeded as error:
            link.end(str(error))
        except BaspError as error:
            link.end(f"{error} (malformed_basp_message)")
        finally:
            self._reading = None

    def _handle(self, link: ForeignLink, message: Any) -> None:
        """Handle one message of a connection."""
        if isinstance(message, MessageFrame):
            self._receive(link, message)
        elif isinstance(message, MonitorFrame):
            self._monitor(link, message)
        elif isinstance(message, DownFrame):
            self._down(link, message)
        elif isinstance(message, PassingFrame):
            self._forward(link, message)
        elif message.is_selected:
            self._select(link, message)
        else:
            self.handshake(link, message)

    # --- messages of CAF actors ---

    def _value_of(self, actor: CafActor | None) -> ActorRef | CafActor | None:
        """Return the value that handlers receive for an actor in a message: a ref, or None."""
        if actor is None or self._reading is None:
            return actor
        if actor.node != self.own:
            return self.peer_of(actor.node, self._reading).cell_of(actor.number).ref
        if actor.number <= ASKER:
            return actor
        ref = self.exports.find(actor.number)
        return self.context.ref_of(self.context.node_id, actor.number) if ref is None else ref

    def _receive(self, link: ForeignLink, frame: MessageFrame) -> None:
        """Handle a message for an actor of this node."""
        is_internal = frame.node == self.own  # a link: CAF sends it as if from this node
        peer = self._sender(link.machine.peer if is_internal else frame.node, link)  # type: ignore[attr-defined]
        if peer is None:
            return
        source = peer.cell_of(frame.source) if frame.source and not is_internal else None
        message_id, target = frame.message_id, frame.target
        if frame.is_named:
            target = _NAMES.get(target, 0)
        ref = self.exports.find(target)
        try:
            message = self.codec.decode(frame.payload, frame.offset)
        except (UnknownMessageType, MessageRefused) as error:
            self._undecoded(peer, frame, ref, error)
            return
        if message_id & RESPONSE:
            peer.answer(message_id, message.content)
        elif target in (SPAWN_SERVER, CONFIG_SERVER):
            self._serve(peer, frame, target, message)
        elif is_internal:
            self._link(ref, message)
        elif ref is None:
            self._refuse(peer, frame, message, source)
        else:
            self._pass_on(peer, frame, ref, message, source)

    def _pass_on(
        self,
        peer: CafPeer,
        frame: MessageFrame,
        ref: ActorRef,
        message: CafMessage,
        source: CafCell | None,
    ) -> None:
        """Put a message into the mailbox of its actor."""
        if message.types == ("@exit",):
            self._exit(ref, message.content)
        elif frame.message_id & REQUEST_MASK:
            self._request(peer, frame, ref, message.content)
        elif frame.message_id & CATEGORY:
            ref.target.post(message.content, source)
        else:
            ref.target.post_urgent(message.content, source)

    def _request(self, peer: CafPeer, frame: MessageFrame, ref: ActorRef, content: Any) -> None:
        """Put a request into the mailbox of its actor.

        The answer is sent to the asking node.
        """
        quota = self.quota(peer.link)
        respond = partial(self._respond, peer, frame)
        if not quota.may_ask:
            text = f"{UNANSWERED_LIMIT:,} requests of this node are not answered"
            respond(CafError(SystemError17.RUNTIME_ERROR, SYSTEM, text))
            return
        quota.unanswered.add(respond)
        if not ref.is_local:
            future = ref.ask(content, timeout=None)
        else:  # CAF sends no deadline
            future = Future(ref)
            post = ref.target.post
            if not frame.message_id & CATEGORY:
                post = ref.target.post_urgent
            post(content, future)

        def answered(done: Future[Any]) -> None:
            quota.unanswered.discard(respond)
            respond(done.exception() or done.result())

        future.on_done(answered)

    def _respond(self, peer: CafPeer, frame: MessageFrame, answer: Any) -> None:
        """Send the answer to a request. Can be called from any thread."""
        if peer.is_lost or not frame.source:
            return  # CAF ignores answers to anonymous requests
        if isinstance(answer, BaseException) and not isinstance(answer, CafError):
            answer = error_of(answer)
        try:
            content = peer.encode(answer)
        except CallboardError as error:
            content = peer.encode(error_of(error))
        self._answer(peer, frame, content)

    def _answer(self, peer: CafPeer, frame: MessageFrame, content: bytes) -> None:
        """Send an encoded answer."""
        target = 0 if frame.is_named else frame.target
        peer.message(frame.message_id | RESPONSE, target, frame.source, content)

    def _serve(
        self, peer: CafPeer, frame: MessageFrame, target: int, message: CafMessage
    ) -> None:
        """Answer a message to the spawn server or the registry."""

        def answer(types: tuple[str, ...], values: tuple[Any, ...]) -> None:
            if peer.is_lost or not frame.source:
                return
            try:
                content = self.codec.encode_as(types, values)
            except CallboardError as error:
                content = peer.encode(error_of(error))
            if frame.message_id & REQUEST_MASK:
                peer.message(frame.message_id | RESPONSE, target, frame.source, content)
            else:
                peer.message(NORMAL, target, frame.source, content)

        self._services.handle(target, message.values, answer)

    def _refuse(
        self, peer: CafPeer, frame: MessageFrame, message: CafMessage, source: CafCell | None
    ) -> None:
        """Refuse a message to an actor that does not exist."""
        if frame.target == ASKER and not frame.is_named:
            return  # the description of a spawn server, which shows that its node is alive
        ref = self.context.ref_of(self.context.node_id, frame.target & 0xFFFFFFFF)
        self.context.dead_letter(ref, message.content, source)
        if frame.message_id & REQUEST_MASK and frame.source:
            error = CafError(SystemError17.REQUEST_RECEIVER_DOWN)
            peer.message(frame.message_id | RESPONSE, 0, frame.source, peer.encode(error))

    def _undecoded(
        self, peer: CafPeer, frame: MessageFrame, ref: ActorRef | None, error: BaspError
    ) -> None:
        """Refuse a message that contains a type which this program does not have."""
        text = str(error)
        self.context.warn_once(("caf", text), f"a message of {peer.node} is refused: {text}")
        self.context.counters.unexpected += 1
        if frame.message_id & RESPONSE:
            peer.fail(frame.message_id, UnknownMessage(text))
            return
        if ref is not None:
            self.context.dead_letter(ref, text, None)
        if frame.message_id & REQUEST_MASK and frame.source:
            refusal = CafError(SystemError17.UNEXPECTED_MESSAGE, SYSTEM, text)
            self._answer(peer, frame, peer.encode(refusal))

    # --- links, exits, monitors ---

    def _link(self, ref: ActorRef | None, message: CafMessage) -> None:
        """Link an actor of this node with a CAF actor, or remove the link."""
        match message.values:
            case (Atom("link"), ActorRef() as other) if ref is not None:
                if isinstance(other.target, CafCell):
                    other.target.is_linked = True
                ref.target.link(other)
                key = "caf peer", other
                ref.target.monitor(key, partial(self._linked_ended, other))
            case (Atom("link"), ActorRef() as other):
                reason = Down(other, ExitReason.NOT_FOUND)
                self._linked_ended(other, reason)
            case (Atom("unlink"), ActorRef() as other) if ref is not None:
                ref.target.unlink(other)
                ref.target.demonitor(("caf peer", other))

    def _linked_ended(self, other: ActorRef, down: Down) -> None:
        """Report the end of an actor of this node to a linked CAF actor."""
        if isinstance(other.target, CafCell):
            other.target.report_exit(down)

    def _exit(self, ref: ActorRef, message: ExitMessage) -> None:
        """Handle an exit message from a CAF actor: end the receiving actor, or notify it."""
        reason, detail = reason_of(message.error)
        target: Any = ref.target
        source = message.source if isinstance(message.source, ActorRef) else None
        cell = None if source is None else source.target
        if isinstance(cell, CafCell):
            if source in getattr(
                target, "linked", ()
            ):  # an exit message ends a link, as in CAF
                target.unlink(source)
                target.demonitor(("caf peer", source))
            elif not cell.alive and reason is not ExitReason.KILLED:
                return  # the down message has reported the end of the linked actor
            if cell.awaits_reason:
                cell.outlet.down(cell.caf.number, message.error)
        if not ref.is_local or reason is ExitReason.KILLED:
            target.kill()
        elif target.trap_exit:
            target.post(Exit(source or ref, reason, detail), None)
        elif reason is not ExitReason.NORMAL:
            target.kill(reason, detail)

    def _monitor(self, link: ForeignLink, frame: MonitorFrame) -> None:
        """Monitor an actor for a CAF node, so that the node learns of the actor's end."""
        if frame.actor not in (SPAWN_SERVER, CONFIG_SERVER, ASKER):
            peer = self._sender(frame.node, link)
            if peer is not None:
                peer.watch(frame.actor, self.exports.find(frame.actor), self.quota(link))

    def _down(self, link: ForeignLink, frame: DownFrame) -> None:
        """Handle the end of a CAF actor, or the answer to a ping."""
        peer = self._sender(frame.node, link)
        if peer is None:
            return
        if frame.actor != self.pinged:
            peer.down(frame.actor, frame.error)
        elif frame.error == _NO_PATH and not peer.is_direct:  # from a hub of ours
            self._lose(peer, "its neighbor has no path to it")

    # --- frames for other CAF nodes ---

    def _forward(self, link: ForeignLink, passing: PassingFrame) -> None:
        """Forward a frame, or refuse it if no connection leads to its node."""
        destination, frame = self.peers.get(passing.destination), passing.frame
        if passing.source == self.own:
            is_ping = (frame.operation, frame.target) == (CafOperation.MONITOR, self.pinged)
            if destination is not None and not destination.is_direct and is_ping:
                self._lose(destination, "the path to it is a circle through this node")
            return
        # CAF sends links as if from the actor to itself.
        is_link = passing.source == passing.destination
        source = self._sender(link.machine.peer if is_link else passing.source, link)  # type: ignore[attr-defined]
        if source is None:
            return
        if destination is not None and destination.link is link:
            if not destination.is_direct:  # the node before it sends it to us: it has no path
                self._lose(destination, "its neighbor has no path to it")
            destination = None
        if destination is None:
            self._unrouted(source, passing)
            return
        destination.is_used = True
        if frame.operation == CafOperation.MONITOR:
            actor = CafActor(frame.target, passing.destination)
            source.watch_behind(actor, self.quota(link))
        elif frame.operation == CafOperation.DOWN:
            destination.watch_behind(CafActor(frame.source, passing.source), None)
        destination.link.say(passing.octets)

    def _unrouted(self, source: CafPeer, passing: PassingFrame) -> None:
        """Answer a frame for a node that this node does not know; CAF would drop the frame."""
        source.report_lost(passing.destination)
        frame, nodes = passing.frame, (passing.destination, passing.source)
        if frame.operation == CafOperation.ROUTED and frame.target != self.pinged:
            self.context.counters.dead_letters += 1
        if frame.operation == CafOperation.MONITOR:
            error = self.codec.error_bytes(exit_error(ExitReason.UNREACHABLE))
            actor = CafActor(frame.target, passing.destination)
            source.link.say(caf.down(actor, source.node, error))
        elif frame.operation == CafOperation.ROUTED:
            is_request = frame.data & REQUEST_MASK and not frame.data & RESPONSE
            if is_request and frame.source:
                code = SystemError17.NO_ROUTE_TO_RECEIVING_NODE
                content = self.codec.encode(CafError(code))
                response = frame.data | RESPONSE
                source.link.say(caf.routed(nodes, response, 0, frame.source, content))


class _CafPort:
    """Creates the machines of one port, or of one dial."""

    kind: Final = CafWire.kind

    def __init__(self, wire: CafWire, published: int, interface: tuple[str, ...]) -> None:
        self._wire, self._published, self._interface = wire, published, interface
        self.port: ForeignPort | None = None
        self.has_tls = False

    def make_machine(self, opening: Opening) -> CafConnection:
        """Return the machine of a new connection."""
        return CafConnection(
            self._wire.own,
            opening.now,
            is_dialed=opening.is_dialed,
            limit=self._wire.limits.payload,
            published=self._published,
            interface=self._interface,
        )

    def link_up(self, link: ForeignLink, name: str) -> None:
        """Log the admission of a peer."""
        _log.info("%s at %s", name, endpoint_text(link.remote))

    def link_down(self, link: ForeignLink, reason: str) -> None:
        """Handle the end of a connection."""
        _log.info("%s ended: %s", link.name, reason)
        self._wire.link_down(link, reason)

    def deliver(self, link: ForeignLink, messages: list[Any]) -> None:
        """Handle messages."""
        self._wire.deliver(link, messages)

    def not_linked(self, remote: Endpoint, reason: str) -> None:
        """Handle a failed attempt."""
        self._wire.not_linked(remote, reason)


def parse(address: str) -> tuple[Endpoint, str | None]:
    """Return the endpoint and the name of an address `caf://HOST:PORT[/NAME]`.

    Raises:
        InvalidAddress: the text has another form.
    """
    scheme, _, rest = address.partition("://")
    place, _, name = rest.partition("/")
    problem = f"{address!r:.200} is not an address"
    forms = "write caf://HOST:PORT or caf://HOST:PORT/NAME"
    try:
        endpoint = parse_node_address(f"basp://{place}")
    except InvalidAddress as cause:
        msg = f"{problem}; {forms}"
        raise InvalidAddress(msg) from cause
    if scheme != "caf":
        msg = f"{problem}; {forms}"
        raise InvalidAddress(msg)
    try:
        atom(name)
    except ValueError as cause:
        msg = f"{problem}; {forms}, where NAME has at most 10 of ` 0-9A-Z_a-z`"
        raise InvalidAddress(msg) from cause
    return endpoint, name or None
