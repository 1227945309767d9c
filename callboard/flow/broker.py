"""The flow broker: one address for many clients, with a handler for each flow.

Its actor runs the table of `callboard.flow.protocol.association`. The actor's mailbox replaces
the thread of the original implementations: it handles one message at a time, in the order of
each sender. Every port that opens or answers a flow gets a random 32-bit number as routing id.
"""

import re
import threading
from collections.abc import Callable
from typing import Any, Final, Generic, Self, TypeVar

from callboard.arguments import limit, require
from callboard.closing import Closing
from callboard.flow.factories import Bot, Factory, call_factory
from callboard.flow.flow import is_zeromq, zeromq
from callboard.flow.protocol.association import (
    AssociationTable,
    CallFactory,
    Effect,
    FlowCounters,
    Send,
)
from callboard.flow.protocol.machine import CREDIT_LIMIT
from callboard.kernel.actors import ActorRef, Down, ExitReason, handler
from callboard.kernel.context import CallBack, SystemActor
from callboard.kernel.errors import CallboardError, InvalidAddress
from callboard.node import Node

#: The default name under which a flow broker is registered.
BROKER_NAME: Final = "flow"

#: Seconds between checks for flows whose handler does not answer.
TICK: Final = 1.0

#: Reason sent to the peers when a broker is closed.
CLOSED: Final = "the flow broker is closed"

P = TypeVar("P")

_ADDRESS: Final = re.compile(
    r"basp://(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\[\]:/@\s]+):(?P<port>\d{1,5})(?:/(?P<name>[\w.-]+))?"
)


class FlowSwitch(Generic[P]):
    """Executes the effects of the association table, for any kind of port."""

    #: The broker for handlers: its actor, or its address.
    broker: ActorRef | None = None
    address = ""

    def __init__(
        self,
        factory: Factory,
        most_credit: int,
        draw: Callable[[int], int],
        now: Callable[[], float],
    ) -> None:
        """Start without flows.

        Args:
            factory: finds a handler for each BOT.
            most_credit: limit of credit; BOTs that request more are refused.
            draw: returns a random number of a number of bits.
            now: returns the time in seconds.
        """
        self.table = AssociationTable(lambda: f"{draw(128):032x}", most_credit=most_credit)
        self._factory = factory
        self._draw = draw
        self._now = now
        self._rids: dict[P, int] = {}
        self._ports: dict[int, P] = {}

    def rid_of(self, peer: P) -> int:
        """Return the routing id of a peer; draw an unused one for a new peer."""
        rid = self._rids.get(peer, 0)
        if not rid:
            while not rid or rid in self._ports:
                rid = self._draw(32)
            self._rids[peer] = rid
            self._ports[rid] = peer
        return rid

    def pass_on(self, rid: int, data: bytes) -> None:
        """Handle a message, then forget the peer if it does not have a flow."""
        self.carry_out(self.table.receive(rid, data, self._now()))
        if rid not in self.table:
            self.forget(rid)

    def carry_out(self, effects: list[Effect]) -> None:
        """Execute effects of the table, in order."""
        for effect in effects:
            if isinstance(effect, Send):
                self.send_to(effect.rid, effect.data)
            elif isinstance(effect, CallFactory):
                bot = Bot(effect.bot, self.broker, self.address, self.refuse_later)
                reason = call_factory(self._factory, bot, self._now)
                if reason:
                    self.refuse(effect.cid, reason)
            else:
                self.forget(effect.rid)

    def refuse(self, cid: int, reason: str) -> None:
        """Refuse the flow of a waiting client."""
        self.carry_out(self.table.refuse(cid, reason))

    def forget(self, rid: int) -> None:
        """Free a routing id."""
        peer = self._ports.pop(rid, None)
        if peer is not None:
            del self._rids[peer]

    def send_to(self, rid: int, data: bytes) -> None:
        """Send to a peer; if its link is full, its flow ends."""
        raise NotImplementedError

    def refuse_later(self, cid: int, reason: str) -> None:
        """Refuse the flow of a waiting client; may be called from any thread."""
        raise NotImplementedError


class FlowBrokerActor(FlowSwitch[ActorRef], SystemActor):
    """The actor that runs the association table on a node."""

    def __init__(self, factory: Factory, most_credit: int) -> None:
        random = self.runtime.random.getrandbits
        super().__init__(factory, most_credit, random, self.runtime.now)
        self.broker = self.me
        self._monitors: dict[int, Any] = {}
        self._is_ticking = False
        #: Output for each port while a run of messages is handled; None otherwise.
        self._outputs: dict[ActorRef, list[bytes]] | None = None

    @handler
    def receive(self, data: bytes) -> None:
        """Forward a message, or open a flow; monitor peers with a flow."""
        sender = self.sender
        if sender is None:
            self.table.counters.unknown += 1
            return
        rid = self.rid_of(sender)
        self.pass_on(rid, data)
        if rid not in self._monitors and rid in self._ports:
            self._monitors[rid] = self.monitor(sender)
            if self.table.is_waiting and not self._is_ticking:
                self._is_ticking = True
                self.after(TICK, CallBack(self.expire_flows))

    @handler
    def receive_run(self, run: tuple[bytes, ...]) -> None:
        """Forward several messages from a peer; send one run to each destination."""
        self._outputs = {}
        try:
            for data in run:
                if type(data) is bytes:
                    self.receive(data)
        finally:
            outputs, self._outputs = self._outputs, None
            for ref, output in outputs.items():
                self._post(ref, output[0] if len(output) == 1 else tuple(output))

    def send_to(self, rid: int, data: bytes) -> None:
        """Send to a peer; collect messages for the same port in a run."""
        if self._outputs is None:
            self._post(self._ports[rid], data)
        else:
            self._outputs.setdefault(self._ports[rid], []).append(data)

    def _post(self, ref: ActorRef, output: bytes | tuple[bytes, ...]) -> None:
        """Send to a peer; if its link is full, its flow ends."""
        try:
            ref.target.post(output, self.context)
        except CallboardError as error:  # for example a full link: only this flow ends
            self._lose(ref, str(error))

    def _lose(self, ref: ActorRef, reason: str) -> None:
        """End the flow of a lost peer."""
        rid = self._rids.get(ref)
        if rid is not None:
            self.carry_out(self.table.down(rid, reason))

    def forget(self, rid: int) -> None:
        """Free a routing id, and stop monitoring its peer."""
        super().forget(rid)
        monitor = self._monitors.pop(rid, None)
        if monitor is not None:
            monitor.cancel()

    def refuse_later(self, cid: int, reason: str) -> None:
        """Refuse the flow of a waiting client; may be called from any thread."""
        self.call_soon(self.refuse, cid, reason)

    @handler
    def port_down(self, down: Down) -> None:
        """Handle the end of a client or handler, or the loss of all paths to it."""
        if not self.has_sender:
            self._lose(down.ref, down.detail or str(down.reason))

    def expire_flows(self) -> None:
        """Refuse flows that have waited too long for their handlers."""
        self.carry_out(self.table.expire(self._now()))
        self._is_ticking = self.table.is_waiting
        if self._is_ticking:
            self.after(TICK, CallBack(self.expire_flows))

    def close_flows(self) -> None:
        """End all flows, then stop the actor."""
        self.carry_out(self.table.close(CLOSED))
        self.stop_self(ExitReason.NORMAL)


class BrokerView(Closing):
    """The public interface of a flow broker, for any transport."""

    table: AssociationTable
    _ended: threading.Event

    @property
    def counters(self) -> FlowCounters:
        """Counters of flows and messages."""
        return self.table.counters

    def __len__(self) -> int:
        """Return the number of flows."""
        return len(self.table)

    def __bool__(self) -> bool:
        """Return True, even without flows."""
        return True

    def run(self, timeout: float | None = None) -> bool:
        """Wait until the broker is closed; return False after `timeout` seconds."""
        return self._ended.wait(limit(timeout))


class FlowBroker(BrokerView):
    """Accepts clients at an address; a factory finds a handler for each of them.

    `FlowBroker.bind` opens a port; `FlowBroker(node, factory=…)` uses an existing node. The
    broker works on the thread of its node; `run` only waits for its end.
    """

    def __init__(
        self,
        node: Node,
        *,
        factory: Factory,
        name: str = BROKER_NAME,
        most_credit: int = CREDIT_LIMIT,
    ) -> None:
        """Start a flow broker on a node, registered there under a name.

        Args:
            node: an existing node.
            factory: finds a handler for each BOT, without blocking; ready-made ones are in
                `callboard.flow.factories`.
            name: the NAME in `basp://HOST:PORT/NAME`.
            most_credit: limit of credit; clients that request more are refused.
        """
        self.node = node
        self._owns_node = False
        self._name = name
        self._ended = threading.Event()
        self.ref = node.spawn(FlowBrokerActor, factory, most_credit)
        self._actor: FlowBrokerActor = node.context.contexts[self.ref.actor_id].actor
        self.table = self._actor.table
        self.ref.target.monitor(self, lambda _: self._ended.set())
        node.register(name, self.ref)

    @classmethod
    def bind(
        cls,
        address: str,
        factory: Factory,
        *,
        node: Node | None = None,
        most_credit: int = CREDIT_LIMIT,
        **options: Any,
    ) -> Self:
        """Start a flow broker at an address and return it.

        Args:
            address: `basp://HOST:PORT`, or `basp://HOST:PORT/NAME`; port 0 picks a free one.
                `tcp://HOST:PORT` binds a ZeroMQ socket (extra `zmq`), which is unprotected: a
                public one needs `insecure`. Such a broker lacks `node` and `ref`.
            factory: finds a handler for each BOT, without blocking.
            node: the node to listen on (not with ZeroMQ); by default a new one.
            most_credit: limit of credit; clients that request more are refused.
            options: `secret`, `tls`, `insecure` as for `Node.listen`.

        Raises:
            InvalidAddress: the address is malformed.
            PublicAddress: other machines could reach it; see `Node.listen`.
            OSError: the address is not local, or the port is in use.
        """
        require(callable(factory), "factory= must be a function of a BOT", factory)
        require(
            isinstance(address, str), "an address must be a str, 'basp://HOST:PORT'", address
        )
        if is_zeromq(address):
            make, insecure = zeromq().ZmqFlowBroker, options.get("insecure", False)
            zmq_broker: Self = make(
                address, factory, most_credit=most_credit, insecure=insecure
            )
            return zmq_broker
        match = _ADDRESS.fullmatch(address)
        if match is None or int(match["port"]) > 65535:
            msg = f"{address!r} is not an address; write basp://HOST:PORT or basp://HOST:PORT/NAME"
            raise InvalidAddress(msg)
        own = Node("flow broker") if node is None else node
        try:
            broker = cls(
                own, factory=factory, name=match["name"] or BROKER_NAME, most_credit=most_credit
            )
            broker._owns_node = node is None
            host = match["host"].strip("[]")
            own.listen(host, int(match["port"]), publish=broker.ref, **options)
        except BaseException:
            if node is None:
                own.close()
            raise
        return broker

    @property
    def address(self) -> str:
        """Address for clients: `basp://HOST:PORT/NAME`."""
        return f"{self.node.address}/{self._name}"

    def close(self) -> None:
        """End all flows with EOT, then close the broker and a node of its own. Idempotent."""
        if not self._ended.is_set():
            self._actor.call_soon(self._actor.close_flows)
        if self._owns_node:
            self.node.close()
