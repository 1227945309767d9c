"""The BASP broker: where messages leave a node, arrive, and pass through.

Out: a proxy hands over a message; it is serialized once, on the caller's thread, gets its
header and goes to the wire of the next hop. In: the frames of one read come as a run; those for
this node are decoded and put into mailboxes, those for others go on unchanged. Announce, down
and release keep the proxies of all nodes true; routing updates say what is in reach; delivery
reports close the accounts.

`dispatch`, `respond` and `command` may be called from any thread. Everything else runs on
the runner with its role, so routes, proxies and accounts change on one thread at a time.
"""

import itertools
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from actors.cell import Cell, Sender
from actors.current import current_cell
from actors.errors import ActorDown, NodeUnreachable
from actors.exit_reason import ExitReason
from actors.future import Future
from actors.reference import ActorRef
from actors.signals import Down
from basp.accounting import Accounts
from basp.control import pack_announce, pack_down, pack_release, read_down
from basp.errors import BaspError, LocalProtocolError, MalformedPayload, RemoteProtocolError
from basp.frame import pack_frame, repack_frame
from basp.handshake import LinkConfig
from basp.header import (
    DIRECTORY,
    EPOCH_COUNT,
    EPOCH_SHIFT,
    FIRST_ACTOR,
    HEADER,
    MESSAGE_ID_MASK,
    NODE_ACTOR,
    RESPONSE,
    Operation,
)
from basp.node_id import NodeId
from basp.path_order import PathOrder, pack_path_end
from basp.payload import PayloadCodec
from basp.plain_cbor import read_plain, write_plain
from basp.registry import DEFAULT_REGISTRY
from basp.routing import Changes, Router
from proxies.address import Endpoint, actor_text, endpoint_text
from proxies.arrival import RemoteAsker, RemoteTeller
from proxies.connector import Connector, Dial
from proxies.errors import LinkFull, MessageTooLarge, NotSerializable
from proxies.events import LinkDown, LinkUp, MessagesLost, NodeDown, NodeUp, Undeliverable
from proxies.messages import Describe, Failure, LinkActors, StopActor, error_of, failure_of
from proxies.proxy import Proxy
from proxies.registry import HolderRegistry
from proxies.stats import Passage
from proxies.wire import WAITING_LIMIT, Wire

if TYPE_CHECKING:
    from actors.runtime import Runtime
    from basp.effects import PeerIdentity
    from basp.frame import Frame
    from proxies.surroundings import Network

log = logging.getLogger("callboard.broker")

_DISPATCH: Final = int(Operation.DISPATCH_MESSAGE)
_EPOCH_BITS: Final = EPOCH_COUNT - 1

REPORT_INTERVAL: Final = 1.0
"""Seconds between delivery reports, and between looks for proxies that nobody uses."""

_REFS_OF_OUR_OWN: Final = 3
"""Counted references to a ref that only `_release_unused` holds: list, variable, argument."""

PASSAGES: Final = 256
"""Asks of others that a node remembers to have forwarded."""

DIAL_TIMEOUT: Final = 5.0
"""Seconds that the first use of a ref with an address waits for a link."""

OLD_PATH_LIMIT: Final = 5.0
"""Seconds after which nothing comes over a path that traffic has left.

By then each of its links has delivered what it held, or was found dead after three heartbeats.
"""

PATH_ENDS: Final = 8
"""Ends of old paths told again with each change: one may be lost with the next path."""

RECENT_DOWNS: Final = 10_000
"""Down messages kept for being told again; more than end in a few seconds on a sane node."""

DIAL_QUEUE: Final = 100_000
"""Messages to one actor that may wait for such a link or a path; more are refused with
`LinkFull`. As many responses and messages of others may wait for a path to one node."""


class Broker:
    """The node's end of BASP; it is the runtime's way to other nodes."""

    def __init__(
        self, runtime: "Runtime", network: "Network", node_id: NodeId, name: str
    ) -> None:
        self.runtime = runtime
        self.node_id = node_id
        self.name = name
        self.accounts = Accounts()
        self.router = Router(node_id)
        self.connector = Connector(runtime.runner, network, node_id, self)
        self.connector.upper_state = write_plain([name])
        self.names: dict[bytes, str] = {}
        self.passages: deque[Passage] = deque(maxlen=PASSAGES)
        self.forwarded = 0
        self.undeliverable = 0
        #: Where this node listens, for the text of its refs.
        self.endpoint: Endpoint | None = None
        #: Where other nodes listen, as far as links and texts told.
        self.endpoints: dict[bytes, Endpoint] = {}
        self.wires: dict[bytes, Wire] = {}
        self.pending: dict[int, tuple[Future[Any], bytes]] = {}
        self.secret: bytes | None = None
        self._lock = threading.Lock()  # order of epoch, count and write of one dispatch
        self._message_ids = itertools.count(1)
        self._refs: dict[tuple[bytes, int], ActorRef[Any]] = {}
        self._watchers: dict[bytes, list[Future[NodeDown]]] = {}
        #: Down messages of the last seconds, to be told again when their path moves.
        self._recent_downs: deque[tuple[float, bytes, bytes]] = deque(maxlen=RECENT_DOWNS)
        #: Neighbours that lead to nodes, as of the last change of their paths.
        self._hops: dict[bytes, NodeId] = {}
        #: The latest `path_end` frames for each node.
        self._path_ends: dict[bytes, deque[bytes]] = {}
        self._orders: dict[bytes, PathOrder] = {}
        self._armed: set[PathOrder] = set()
        self._holders = HolderRegistry(runtime.cells.__contains__)
        self._dialing: dict[Endpoint, set[Proxy]] = {}
        #: Nodes that the router is active for, and why their path was lost.
        self._sought: dict[NodeId, str] = {}
        #: How to send what waits for a path to such a node.
        self._held: dict[bytes, list[Callable[[], None]]] = {}
        #: Hops to nodes that were found and did not say their name yet.
        self._unnamed: dict[NodeId, int] = {}
        self._codec = PayloadCodec(
            DEFAULT_REGISTRY,
            ref_types=(ActorRef,),
            ref_to_pair=_pair_of,
            pair_to_ref=runtime.ref_to,
        )
        runtime.remote = self
        runtime.on_end.append(self._actor_ended)
        runtime.runner.call_later(REPORT_INTERVAL, self._every_second)

    # --- refs and proxies ---

    def ref_text(self, node: bytes, number: int) -> str:
        """Return a ref's text, with an address where the node is known to listen."""
        endpoint = self.endpoint if node == self.node_id else self.endpoints.get(node)
        return actor_text(endpoint, node, number)

    def remote_ref(self, node: bytes, number: int) -> ActorRef[Any]:
        """Return the ref of an actor elsewhere; its proxy is made, and announced, when new."""
        ref = self._refs.get((node, number))
        if ref is None:
            with self._lock:
                ref = self._refs.get((node, number))
                if ref is not None:
                    return ref
                proxy = Proxy(self, node, number)
                ref = self._refs[node, number] = ActorRef(self.runtime, node, number, proxy)
            if number >= FIRST_ACTOR:
                self._send_to(node, pack_announce(self.node_id, node, number))
        return ref

    def _proxies_of(self, node: bytes) -> list[Proxy]:
        return [ref.target for (host, _), ref in list(self._refs.items()) if host == node]  # type: ignore[misc]

    @property
    def proxy_count(self) -> int:
        """How many remote actors this node knows."""
        return len(self._refs)

    # --- out, from any thread ---

    def dispatch(
        self, proxy: Proxy, message: Any, sender: Sender | None, payload: bytes | None = None
    ) -> None:
        """Send a message to a proxy's actor: serialized here, counted, written.

        A message that waited for a dial brings its payload along, and goes in front of those
        that still wait.

        Raises:
            NotSerializable: it holds something that cannot travel.
            MessageTooLarge: it is larger than the receiver accepts.
            LinkFull: the next hop does not read.
        """
        has_waited = payload is not None
        if payload is None:
            payload = self._encode(message)
        node = proxy.node
        has_room = has_waited
        while True:
            with self._lock:
                hop = self.router.next_hops.get(node)
                if hop is None or (proxy.waiting is not None and not has_waited):
                    break
                wire = self.wires[hop]
                if has_room or wire.waiting <= WAITING_LIMIT:
                    message_id = asker = 0
                    if sender is None:
                        pass
                    elif sender.expects:
                        message_id = self._expect(sender, node)
                        cell = current_cell.get()
                        if cell is not None and cell.runtime is self.runtime:
                            asker = cell.number
                    elif sender.runtime is self.runtime:
                        asker = sender.number
                    account = self.accounts.account(node)
                    account.sent += 1
                    header = HEADER.pack(
                        _DISPATCH,
                        len(payload),
                        account.epoch << EPOCH_SHIFT | message_id,
                        self.node_id,
                        node,
                        asker,
                        proxy.number,
                    )
                    wire.write(header + payload, at_once=message_id != 0)
                    return
            wire.make_room()  # without the lock: others have other ways
            has_room = True
        self._no_route(proxy, message, sender, payload)

    def _encode(self, message: Any) -> bytes:
        try:
            payload = self._codec.encode(message)
        except LocalProtocolError as error:
            raise NotSerializable(str(error)) from None
        limit = self.connector.limits.payload
        if len(payload) > limit:
            msg = (
                f"a {type(message).__qualname__} of {len(payload):,} B exceeds the limit of "
                f"{limit:,} B for one message; send it in parts, or raise Limits(payload=…) on "
                "all nodes"
            )
            raise MessageTooLarge(msg)
        return payload

    def _expect(self, asker: Any, node: bytes) -> int:
        message_id = next(self._message_ids) & MESSAGE_ID_MASK
        asker.message_id = message_id
        self.pending[message_id] = (asker, node)
        return message_id

    def _no_route(
        self, proxy: Proxy, message: Any, sender: Sender | None, payload: bytes
    ) -> None:
        """Wait while a path is sought, dial where the ref's text says, or refuse."""
        endpoint = proxy.endpoint or self.endpoints.get(proxy.node)
        with self._lock:
            is_active = proxy.node in self.router.active
            may_wait = endpoint is not None or proxy.node in self.router.next_hops
            if may_wait or is_active:
                if proxy.waiting is None:
                    proxy.waiting = []
                elif len(proxy.waiting) >= DIAL_QUEUE:
                    msg = f"{DIAL_QUEUE:,} messages wait for a path to node {proxy.node.hex()}"
                    raise LinkFull(msg)
                proxy.waiting.append((message, sender, payload))
        if is_active:
            return  # it is sent or refused when the router knows, see `_search_over`
        if not may_wait:
            proxy.refuse(message, sender, proxy.no_path())
        else:
            self.runtime.runner.post(self._dial_for, proxy, endpoint)

    def command(self, proxy: Proxy, command: object) -> None:
        """Send a message to a proxy's node itself."""
        node_proxy = self.remote_ref(proxy.node, NODE_ACTOR).target
        if isinstance(node_proxy, Proxy):
            node_proxy.endpoint = proxy.endpoint
            self.dispatch(node_proxy, command, None)

    def respond(self, node: bytes, number: int, message_id: int, value: Any) -> None:
        """Answer an ask from another node; an answer that cannot travel fails it."""
        try:
            payload = self._encode(value)
        except (NotSerializable, MessageTooLarge) as error:
            payload = self._codec.encode(failure_of(error))
        self._send_response(node, number, message_id, payload)

    def respond_error(
        self, node: bytes, number: int, message_id: int, error: BaseException
    ) -> None:
        """Let an ask from another node fail."""
        self._send_response(node, number, message_id, self._codec.encode(failure_of(error)))

    def _send_response(self, node: bytes, number: int, message_id: int, payload: bytes) -> None:
        with self._lock:
            wire = self._wire_to(node)
            if wire is None:
                again = partial(self._send_response, node, number, message_id, payload)
                if not self._hold(node, again):
                    self.undeliverable += 1
                return
            account = self.accounts.account(node)
            account.sent += 1
            data = RESPONSE | account.epoch << EPOCH_SHIFT | message_id
            head = HEADER.pack(_DISPATCH, len(payload), data, self.node_id, node, 0, number)
            wire.write(head + payload, at_once=True)

    def _hold(self, node: bytes, send: Callable[[], None]) -> bool:
        """Keep what has no path until one is found or the node is lost; needs the lock."""
        held = self._held.setdefault(node, []) if node in self.router.active else None
        if held is None or len(held) >= DIAL_QUEUE:
            return False
        held.append(send)
        return True

    def _wire_to(self, node: bytes) -> Wire | None:
        hop = self.router.next_hops.get(node)
        return None if hop is None else self.wires.get(hop)

    def _send_to(self, node: bytes, frame: bytes) -> None:
        wire = self._wire_to(node)
        if wire is not None:
            wire.write(frame)

    # --- in: the frames of one read ---

    # One branch for each kind of frame: a call would cost as much as what it does.
    def deliver(  # noqa: C901
        self, wire: Wire, frames: "list[Frame]", *, is_ordered: bool = False
    ) -> None:
        """Take a run of frames: the hot loop for everything that arrives.

        With `is_ordered` they were held back until their turn came.
        """
        me, cells = self.node_id, self.runtime.cells
        decode = self._codec.decode_message
        wire.frames_received += len(frames)
        teller: RemoteTeller | None = None
        last: tuple[int, bytes, int] | None = None
        order: PathOrder | None = None
        ordered_source = b""
        for frame in frames:
            operation, _, data, source, destination, source_actor, number, payload = frame
            if destination != me:
                self._forward(frame)
                continue
            if operation != _DISPATCH:
                self._take_control(wire, frame)
                continue
            if not is_ordered:
                if source != ordered_source:
                    ordered_source, order = source, self._order_of(source)
                assert order is not None
                if order.has_ends or data >> EPOCH_SHIFT & _EPOCH_BITS != order.current:
                    self._deliver_in_order(wire, order, frame)
                    continue
                order.arrived += 1
            if data & RESPONSE:
                self._take_response(frame)
                continue
            try:
                message = decode(payload)
            except RemoteProtocolError as error:
                self._refuse_payload(wire, frame, error)
                continue
            sender: Any
            if data & MESSAGE_ID_MASK:
                arrivals = self.accounts.arrivals_of(source, data >> EPOCH_SHIFT & _EPOCH_BITS)
                sender = RemoteAsker(
                    self, source, source_actor, data & MESSAGE_ID_MASK, arrivals
                )
            elif last == (data, source, source_actor):
                sender = teller  # many messages of one sender come in a row
            else:
                last = (data, source, source_actor)
                arrivals = self.accounts.arrivals_of(source, data >> EPOCH_SHIFT & _EPOCH_BITS)
                sender = teller = RemoteTeller(source, source_actor, arrivals)
                if source_actor:
                    self.remote_ref(source, source_actor)
            cell = cells.get(number)
            if cell is not None:
                cell.post(message, sender)
            else:
                self._no_such_actor(number, message, sender)

    def _order_of(self, source: bytes) -> PathOrder:
        order = self._orders.get(source)
        if order is None:
            order = self._orders[source] = PathOrder()
        return order

    def _deliver_in_order(self, wire: Wire, order: PathOrder, frame: "Frame") -> None:
        """Take a dispatch while the path of its source changes."""
        now = self.runtime.runner.now()
        late = order.late
        if frame[2] >> EPOCH_SHIFT & _EPOCH_BITS == order.current:
            released = [frame, *order.note_arrival(now)]
        else:
            released = order.take(frame, now)
        self.undeliverable += order.late - late
        self.deliver(wire, released, is_ordered=True)
        self._arm(wire, order)

    def _arm(self, wire: Wire, order: PathOrder) -> None:
        if order.deadline is not None and order not in self._armed:
            self._armed.add(order)
            self.runtime.runner.call_at(order.deadline, self._order_due, wire, order)

    def _order_due(self, wire: Wire, order: PathOrder) -> None:
        self._armed.discard(order)
        self.deliver(wire, order.tick(self.runtime.runner.now()), is_ordered=True)
        self._arm(wire, order)

    def _forward(self, frame: "Frame") -> None:
        destination = frame[4]
        wire = self._wire_to(destination)
        if wire is None:
            with self._lock:
                is_held = self._hold(destination, partial(self._forward, frame))
            if not is_held:
                self.undeliverable += 1
                self.runtime.emit(Undeliverable(frame[3], destination))
            return
        self.forwarded += 1
        wire.write(repack_frame(frame))
        if frame[0] == _DISPATCH and frame[2] & MESSAGE_ID_MASK:
            self.passages.append(
                Passage(
                    frame[3],
                    destination,
                    frame[2] & MESSAGE_ID_MASK,
                    bool(frame[2] & RESPONSE),
                    int(self.runtime.runner.now() * 1e9),
                )
            )

    def _take_response(self, frame: "Frame") -> None:
        data, source, payload = frame[2], frame[3], frame[7]
        arrivals = self.accounts.arrivals_of(source, data >> EPOCH_SHIFT & _EPOCH_BITS)
        arrivals.delivered += 1
        waiting = self.pending.get(data & MESSAGE_ID_MASK)
        if waiting is None or waiting[1] != source:
            self.runtime.counters.late_answers += 1
            return
        del self.pending[data & MESSAGE_ID_MASK]
        future = waiting[0]
        try:
            value = self._codec.decode_message(payload)
        except RemoteProtocolError as error:
            future.set_exception(error_of(failure_of(error)))
            return
        if isinstance(value, Failure):
            future.set_exception(error_of(value))
        else:
            future.set_result(value)

    def _no_such_actor(self, number: int, message: Any, sender: Any) -> None:
        if number == NODE_ACTOR:
            self._take_command(message)
            sender.set_result(None)
            return
        ref = self.runtime.ended_ref(number)
        sender.set_exception(ActorDown(f"there is no actor {ref}"))
        self.runtime.dead_letter(ref, message, sender)

    def _refuse_payload(self, wire: Wire, frame: "Frame", error: RemoteProtocolError) -> None:
        """Tell the asker that its message cannot be read; garbage ends a neighbour's link."""
        data, source, source_actor = frame[2], frame[3], frame[5]
        arrivals = self.accounts.arrivals_of(source, data >> EPOCH_SHIFT & _EPOCH_BITS)
        arrivals.dead_letters += 1
        self.runtime.counters.dead_letters += 1
        log.warning("a message from node %s cannot be read: %s", source.hex(), error)
        message_id = data & MESSAGE_ID_MASK
        if message_id:
            self.respond_error(source, source_actor, message_id, error)
        if type(error) is MalformedPayload and source == wire.peer:
            wire.end(str(error))

    def _take_command(self, message: Any) -> None:
        """Carry out what another node asks of this node itself, as far as that makes sense."""
        number = message.number if isinstance(message, StopActor | LinkActors) else None
        if type(number) is not int or number < FIRST_ACTOR:
            self.runtime.counters.unexpected += 1
        elif isinstance(message, StopActor):
            cell = self.runtime.cells.get(number)
            if cell is None:
                return
            if message.kill:
                cell.kill()
            else:
                cell.stop()
        elif isinstance(message.other, ActorRef):
            target = self.runtime.ref_to(self.node_id, number).target
            if message.undo:
                target.unlink(message.other)
            else:
                target.link(message.other)

    # --- control frames for this node ---

    def _take_control(self, wire: Wire, frame: "Frame") -> None:
        try:
            self._CONTROLS[frame[0]](self, wire, frame)
        except BaspError as error:
            source = frame[3]
            log.warning("a control frame from node %s cannot be read: %s", source.hex(), error)
            if source == wire.peer:
                wire.end(str(error))

    def _take_announce(self, _: Wire, frame: "Frame") -> None:
        source, number = frame[3], frame[6]
        limit, detail = self.connector.limits.proxies, ""
        if self._holders.count(source) >= limit:
            reason, detail = ExitReason.UNREACHABLE, f"the node holds {limit:,} proxies already"
        elif self._holders.announced(source, number):
            return
        else:
            reason = ExitReason.NOT_FOUND
        down = pack_down(self.node_id, number, source, reason.ordinal, detail)
        self._send_to(source, down)

    def _take_down(self, _: Wire, frame: "Frame") -> None:
        number, reason, detail = read_down(frame)
        ref = self._refs.get((frame[3], number))
        if ref is not None and isinstance(ref.target, Proxy):
            ref.target.ended(ExitReason.from_ordinal(reason), detail)

    def _take_release(self, _: Wire, frame: "Frame") -> None:
        self._holders.released(frame[3], frame[6])

    def _take_routes(self, _: Wire, frame: "Frame") -> None:
        with self._lock:  # nobody begins to wait for what is just found or lost
            changes = self.router.receive(NodeId(frame[3]), frame[7])
        self._routes_changed(changes, "routes changed")

    def _take_report(self, _: Wire, frame: "Frame") -> None:
        self.accounts.receive_report(NodeId(frame[3]), frame[7])

    def _take_path_end(self, wire: Wire, frame: "Frame") -> None:
        order = self._order_of(frame[3])
        released = order.end(frame[2], self.runtime.runner.now())
        self.deliver(wire, released, is_ordered=True)
        self._arm(wire, order)
        # The source moved its path; ours may be the same, but the report on it may be lost.
        self.accounts.repeat_report(frame[3])

    _CONTROLS: ClassVar[dict[int, "Callable[[Broker, Wire, Frame], None]"]] = {
        Operation.ANNOUNCE_PROXY_INSTANCE: _take_announce,
        Operation.DOWN_MESSAGE: _take_down,
        Operation.RELEASE_PROXY_INSTANCE: _take_release,
        Operation.ROUTING_UPDATE: _take_routes,
        Operation.DELIVERY_REPORT: _take_report,
        Operation.PATH_END: _take_path_end,
    }

    def _actor_ended(self, cell: Cell, down: Down) -> None:
        """Tell the nodes that hold a proxy of an actor that it ended."""
        self.runtime.runner.post(self._announce_end, cell.number, down)

    def _announce_end(self, number: int, down: Down) -> None:
        reason = ExitReason(down.reason).ordinal
        for node in self._holders.ended(number):
            frame = pack_down(self.node_id, number, node, reason, down.detail)
            self._recent_downs.append((self.runtime.runner.now(), node, frame))
            self._send_to(node, frame)

    # --- links and routes ---

    def link_up(self, wire: Wire, peer: "PeerIdentity") -> None:
        """A link is established: exchange routes."""
        node = peer.node_id
        wire.peer_name = self.names[node] = _read_name(peer.state)
        self.wires[node] = wire
        if wire.endpoint is not None:
            self.endpoints[node] = wire.endpoint
        self.runtime.emit(LinkUp(node, wire.peer_name))
        with self._lock:
            changes = self.router.add_peer(node)
        self._routes_changed(changes, "")

    def link_down(self, wire: Wire, reason: str) -> None:
        """An established link ended: find other paths, and tell what is out of reach."""
        node = wire.peer
        if node is None or self.wires.get(node) is not wire:
            return
        with self._lock:  # no sender sees a route without its wire
            del self.wires[node]
            changes = self.router.remove_peer(node)
        self.runtime.emit(LinkDown(node, wire.peer_name, reason))
        self._routes_changed(changes, reason)

    def _routes_changed(self, changes: Changes, reason: str) -> None:
        for peer, payload in changes.updates:
            wire = self.wires.get(peer)
            if wire is not None:
                wire.write(
                    pack_frame(Operation.ROUTING_UPDATE, 0, self.node_id, peer, 0, 0, payload)
                )
        active = self.router.active
        for node in active:
            self._sought.setdefault(node, reason)
        for node in changes.lost:
            self._node_lost(node, self._sought.get(node, reason))
        for node in changes.moved:
            self._path_moved(node)
        for node in changes.gained:
            self._node_found(node)
        for node in [node for node in self._sought if node not in active]:
            del self._sought[node]
            self._search_over(node)

    def _path_moved(self, node: NodeId) -> None:
        """What was under way on the old path may be lost: say what matters again."""
        with self._lock:
            account = self.accounts.account(node)
            epoch = account.epoch
            is_open = self._hops.get(node) in self.wires
            self._end_epoch(node, is_open=is_open)
            self.accounts.path_moved(node)
            self._tell_path_ends(node)
        self.runtime.runner.call_later(OLD_PATH_LIMIT, self._old_path_over, node, epoch)
        self.accounts.repeat_report(node)
        self._renew_proxies(node)

    def _end_epoch(self, node: NodeId, *, is_open: bool) -> None:
        """Note how many dispatches the epoch had that ends now; with the lock held."""
        account = self.accounts.account(node)
        if account.sent_in_epoch:
            ends = self._path_ends.setdefault(node, deque(maxlen=PATH_ENDS))
            ends.append(
                pack_path_end(
                    self.node_id, node, account.epoch, account.sent_in_epoch, is_open=is_open
                )
            )

    def _tell_path_ends(self, node: NodeId) -> None:
        """Say over the new path what the old ones carried; with the lock held."""
        self._hops[node] = self.router.next_hops[node]
        for frame in self._path_ends.get(node, ()):
            self._send_to(node, frame)

    def _old_path_over(self, node: NodeId, epoch: int) -> None:
        """Whatever has not arrived on an old path by now never will."""
        with self._lock:
            lost = self.accounts.account(node).expire(epoch)
        if lost:
            self.runtime.emit(MessagesLost(node, self.names.get(node, ""), lost))

    def _renew_proxies(self, node: NodeId) -> None:
        """Announce our proxies again, and tell again which actors ended: both may be lost."""
        for proxy in self._proxies_of(node):
            if proxy.number >= FIRST_ACTOR and proxy.down is None:
                self._send_to(node, pack_announce(self.node_id, node, proxy.number))
        since = self.runtime.runner.now() - OLD_PATH_LIMIT
        for at, told, frame in list(self._recent_downs):
            if told == node and at >= since:
                self._send_to(node, frame)

    def _search_over(self, node: NodeId) -> None:
        """Send or refuse what waited for another path."""
        with self._lock:
            held = self._held.pop(node, ())
        for send in held:
            send()
        for proxy in self._proxies_of(node):
            if proxy.waiting is not None:
                self._dial_for(proxy, proxy.endpoint or self.endpoints.get(node))

    def _node_found(self, node: NodeId) -> None:
        with self._lock:
            self._tell_path_ends(node)
        self.accounts.repeat_report(node)
        self._renew_proxies(node)
        self._unnamed[node] = len(self.router.path(node))
        if node in self.names:
            self._tell_node_up(node)
            return
        described = self.remote_ref(node, DIRECTORY).ask(Describe(), timeout=DIAL_TIMEOUT)
        described.add_done_callback(lambda future: self._described(node, future))

    def _described(self, node: NodeId, future: Future[Any]) -> None:
        if future.exception() is None and isinstance(future.result(), str):
            self.names[node] = future.result()
        self._tell_node_up(node)

    def _tell_node_up(self, node: NodeId) -> None:
        hops = self._unnamed.pop(node, None)
        if hops is not None:
            self.runtime.emit(NodeUp(node, self.names.get(node, ""), hops))

    def _node_lost(self, node: NodeId, reason: str) -> None:
        self._tell_node_up(node)  # nobody hears of an end before its beginning
        with self._lock:
            self._end_epoch(node, is_open=False)
            lost = self.accounts.node_lost(node)
        name = self.names.get(node, "")
        down = NodeDown(node, name, reason, lost)
        self._holders.node_lost(node)
        text = f"no path leads to node {name or node.hex()} any more ({reason})"
        for message_id, (future, asked) in list(self.pending.items()):
            if asked == node:
                self.pending.pop(message_id, None)
                future.set_exception(NodeUnreachable(text))
        for proxy in self._proxies_of(node):
            proxy.unreachable(text)
        for watcher in self._watchers.pop(node, ()):
            watcher.set_result(down)
        self.runtime.emit(down)

    def monitor_node(self, node: bytes, future: Future[NodeDown]) -> None:
        """Complete the future when the node is out of reach; at once if it is."""
        if node in self.router.next_hops or node in self.router.active:
            self._watchers.setdefault(node, []).append(future)
        else:
            future.set_result(NodeDown(node, self.names.get(node, ""), "not in reach"))

    def ensure_watched(self, proxy: Proxy) -> None:
        """A monitor was set: the host knows of the proxy, unless no path leads there."""
        if proxy.node not in self.router.next_hops:
            self.runtime.runner.post(self._watch_unrouted, proxy)

    def _watch_unrouted(self, proxy: Proxy) -> None:
        endpoint = proxy.endpoint or self.endpoints.get(proxy.node)
        if proxy.node in self.router.next_hops or proxy.node in self.router.active:
            return
        if endpoint is None:
            proxy.unreachable("no path leads to its node")
        else:
            with self._lock:
                proxy.waiting = proxy.waiting or []
            self._dial_for(proxy, endpoint)

    # --- first use of a ref with an address ---

    def _dial_for(self, proxy: Proxy, endpoint: Endpoint | None) -> None:
        if proxy.node in self.router.next_hops:
            self._send_waiting(proxy)
            return
        if proxy.node in self.router.active:
            return
        if endpoint is None:
            self._refuse_waiting(proxy, str(proxy.no_path()))
            return
        proxies = self._dialing.get(endpoint)
        if proxies is not None:
            proxies.add(proxy)
            return
        self._dialing[endpoint] = {proxy}
        waiter: Future[Dial] = Future()
        waiter.add_done_callback(
            lambda done: self.runtime.runner.post(self._dial_done, endpoint, done)
        )
        self.runtime.runner.call_later(
            DIAL_TIMEOUT, waiter.set_exception, TimeoutError("timed out")
        )
        self.connector.dial(endpoint, waiter, secret=self.secret, keep=False)

    def _dial_done(self, endpoint: Endpoint, waiter: Future[Dial]) -> None:
        error = waiter.exception()
        proxies = self._dialing.pop(endpoint, set())
        self._dialed(endpoint, proxies, "" if error is None else str(error))

    def _dialed(self, endpoint: Endpoint, proxies: set[Proxy], error: str) -> None:
        for proxy in proxies:
            if proxy.node in self.router.next_hops:
                self._send_waiting(proxy)
                continue
            if proxy.node in self.router.active:
                continue
            text = error or f"another node listens at {endpoint_text(endpoint)}"
            self._refuse_waiting(proxy, text)
            proxy.unreachable(text)

    def _send_waiting(self, proxy: Proxy) -> None:
        """Send what waited for a link; whoever tells meanwhile queues up behind it."""
        while True:
            with self._lock:
                waiting = proxy.waiting
                if not waiting:
                    proxy.waiting = None
                    return
                proxy.waiting = []
            for message, sender, payload in waiting:
                self.dispatch(proxy, message, sender, payload)

    def _refuse_waiting(self, proxy: Proxy, text: str) -> None:
        with self._lock:
            waiting, proxy.waiting = proxy.waiting, None
        for message, sender, _ in waiting or ():
            proxy.refuse(message, sender, NodeUnreachable(text))

    # --- once a second ---

    def _every_second(self) -> None:
        self.report()
        self._release_unused()
        for message_id, (future, _) in list(self.pending.items()):
            if future.done_:  # it timed out or was cancelled
                self.pending.pop(message_id, None)
        self.runtime.runner.call_later(REPORT_INTERVAL, self._every_second)

    def report(self) -> None:
        """Tell the other nodes what arrived from them."""
        for node, payload in self.accounts.reports():
            frame = pack_frame(Operation.DELIVERY_REPORT, 0, self.node_id, node, 0, 0, payload)
            self._send_to(node, frame)

    def _release_unused(self) -> None:
        """Forget proxies that nobody here holds a ref to, and tell their hosts."""
        for key, ref in list(self._refs.items()):
            node, number = key
            proxy = ref.target
            if not isinstance(proxy, Proxy) or proxy.is_watched or proxy.waiting:
                continue
            with self._lock:  # out of the table first: then nobody can get hold of it any more
                self._refs.pop(key, None)
                is_held = sys.getrefcount(ref) > _REFS_OF_OUR_OWN or proxy.is_watched
                if is_held:
                    self._refs[key] = ref
            if not is_held and number >= FIRST_ACTOR and proxy.down is None:
                self._send_to(node, pack_release(self.node_id, node, number, 1))

    def listening_config(
        self, secret: bytes | None, published: ActorRef[Any] | None
    ) -> LinkConfig:
        """Return what the links of one port have in common."""
        shown = None if published is None else (published.actor_id, ())
        return LinkConfig(self.node_id, secret=secret, published=shown)

    def close(self) -> None:
        """End all links; asks that wait for other nodes fail."""
        self.report()
        for _, (future, _) in list(self.pending.items()):
            future.set_exception(NodeUnreachable("the node was closed"))
        self.pending.clear()
        self.connector.close()
        for ref in list(self._refs.values()):
            if isinstance(ref.target, Proxy):
                self._refuse_waiting(ref.target, "the node was closed")


def _pair_of(ref: ActorRef[Any]) -> tuple[bytes, int]:
    return ref.node_id, ref.actor_id


def _read_name(state: bytes) -> str:
    """Read what a peer says about itself; what is not there or odd counts as no name."""
    try:
        said = read_plain(state)
    except BaspError:
        return ""
    return said[0] if isinstance(said, list) and said and isinstance(said[0], str) else ""
