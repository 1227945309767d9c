"""The flow broker: many clients, one handler for each flow, one port.

Its actor runs the table of `callboard.flow.protocol.association`. The actor's mailbox is what
the originals have a thread for: one message at a time, in the order of each sender. Routing ids
are random numbers of 32 bits, given to each port that wants or answers a flow.
"""

import re
import threading
from collections.abc import Callable
from typing import Any, Final, Generic, Self, TypeVar

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
from callboard.kernel.checks import limit, require
from callboard.kernel.context import CallBack, SystemActor
from callboard.kernel.errors import CallboardError, InvalidAddress
from callboard.kernel.twins import Closing
from callboard.node import Node

#: The name under which a flow broker is registered unless it is given another.
BROKER_NAME: Final = "flow"

#: Seconds between looks for flows whose handler does not answer.
TICK: Final = 1.0

#: What the other sides are told when a broker is closed.
CLOSED: Final = "the flow broker is closed"

P = TypeVar("P")

_ADDRESS: Final = re.compile(
    r"basp://(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\[\]:/@\s]+):(?P<port>\d{1,5})(?:/(?P<name>[\w.-]+))?"
)


class FlowSwitch(Generic[P]):
    """Carries out what the table of associations decides, whatever its peers' ports are."""

    #: Where handlers reach the broker: an actor, or an address.
    broker: ActorRef[Any] | None = None
    address = ""

    def __init__(
        self,
        factory: Factory,
        most_credit: int,
        draw: Callable[[int], int],
        now: Callable[[], float],
    ) -> None:
        """Begin without flows.

        Args:
            factory: finds a handler for each BOT.
            most_credit: BOTs that ask for more are refused.
            draw: returns so many random bits.
            now: returns the time in seconds.
        """
        self.table = AssociationTable(lambda: f"{draw(128):032x}", most_credit=most_credit)
        self._factory = factory
        self._draw = draw
        self._now = now
        self._rids: dict[P, int] = {}
        self._ports: dict[int, P] = {}

    def rid_of(self, peer: P) -> int:
        """Return the routing id of a peer: at first a random one that is free."""
        rid = self._rids.get(peer, 0)
        if not rid:
            while not rid or rid in self._ports:
                rid = self._draw(32)
            self._rids[peer] = rid
            self._ports[rid] = peer
        return rid

    def pass_on(self, rid: int, data: bytes) -> None:
        """Take a message; a peer that has no flow behind it is forgotten."""
        self.carry_out(self.table.receive(rid, data, self._now()))
        if rid not in self.table:
            self.forget(rid)

    def carry_out(self, effects: list[Effect]) -> None:
        """Do what the table has decided, in order."""
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
        """Tell a client that waits."""
        self.carry_out(self.table.refuse(cid, reason))

    def forget(self, rid: int) -> None:
        """Free a routing id."""
        peer = self._ports.pop(rid, None)
        if peer is not None:
            del self._rids[peer]

    def send_to(self, rid: int, data: bytes) -> None:
        """Send to a peer; one that takes nothing loses its flow."""
        raise NotImplementedError

    def refuse_later(self, cid: int, reason: str) -> None:
        """Tell a client that waits; from any thread."""
        raise NotImplementedError


class FlowBrokerActor(FlowSwitch[ActorRef[Any]], SystemActor):
    """Runs the table of associations on a node."""

    def __init__(self, factory: Factory, most_credit: int) -> None:
        random = self.runtime.random.getrandbits
        super().__init__(factory, most_credit, random, self.runtime.now)
        self.broker = self.me
        self._monitors: dict[int, Any] = {}
        self._is_ticking = False
        #: While a run is handled: what it lets go to each port.
        self._outputs: dict[ActorRef[Any], list[bytes]] | None = None

    @handler
    def receive(self, data: bytes) -> None:
        """Pass a message on, or begin a flow; peers that have one are watched."""
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
        """Pass several messages of one peer on; what goes to one other goes as a run."""
        self._outputs = {}
        try:
            for data in run:
                if type(data) is bytes:
                    self.receive(data)
        finally:
            outputs, self._outputs = self._outputs, None
            for ref, sent in outputs.items():
                self._post(ref, sent[0] if len(sent) == 1 else tuple(sent))

    def send_to(self, rid: int, data: bytes) -> None:
        """Send to a peer, in a run with what else goes there."""
        if self._outputs is None:
            self._post(self._ports[rid], data)
        else:
            self._outputs.setdefault(self._ports[rid], []).append(data)

    def _post(self, ref: ActorRef[Any], sent: bytes | tuple[bytes, ...]) -> None:
        """Send to a peer; one that takes nothing loses its flow."""
        try:
            ref.target.post(sent, self.context)
        except CallboardError as error:  # its link is full, say: only that flow ends
            self._lose(ref, str(error))

    def _lose(self, ref: ActorRef[Any], reason: str) -> None:
        """End the flow of a peer that is lost."""
        rid = self._rids.get(ref)
        if rid is not None:
            self.carry_out(self.table.down(rid, reason))

    def forget(self, rid: int) -> None:
        """Free a routing id, and watch its peer no more."""
        super().forget(rid)
        monitor = self._monitors.pop(rid, None)
        if monitor is not None:
            monitor.cancel()

    def refuse_later(self, cid: int, reason: str) -> None:
        """Tell a client that waits; from any thread."""
        self.call_soon(self.refuse, cid, reason)

    @handler
    def port_down(self, down: Down) -> None:
        """A client or handler ended, or no path leads to it."""
        if not self.is_told:
            self._lose(down.ref, down.detail or str(down.reason))

    def expire_flows(self) -> None:
        """Refuse flows that waited too long for their handlers."""
        self.carry_out(self.table.expire(self._now()))
        self._is_ticking = self.table.is_waiting
        if self._is_ticking:
            self.after(TICK, CallBack(self.expire_flows))

    def close_flows(self) -> None:
        """End all flows, then this actor."""
        self.carry_out(self.table.close(CLOSED))
        self.stop_self(ExitReason.NORMAL)


class BrokerView(Closing):
    """What users see of a flow broker, whatever carries its messages."""

    table: AssociationTable
    _ended: threading.Event

    @property
    def counters(self) -> FlowCounters:
        """What happened so far."""
        return self.table.counters

    def __len__(self) -> int:
        """Return the number of flows in its table."""
        return len(self.table)

    def __bool__(self) -> bool:
        """Be true also without flows."""
        return True

    def run(self, timeout: float | None = None) -> bool:
        """Wait until the broker is closed, or for `timeout` seconds: then return False."""
        return self._ended.wait(limit(timeout))


class FlowBroker(BrokerView):
    """Takes clients at an address and lets a factory find a handler for each.

    `FlowBroker.bind` opens a port; `FlowBroker(node, factory=…)` puts one on an existing node.
    It works from then on, on its node's thread; `run` only waits for the end.
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
            factory: finds a handler for each BOT, and returns promptly; see `callboard.flow.
                factories` for ready ones.
            name: for `basp://HOST:PORT/NAME`.
            most_credit: clients that ask for more are refused.
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
        """Start a flow broker at an address; returns it.

        Args:
            address: `basp://HOST:PORT`, or `basp://HOST:PORT/NAME`; port 0 picks a free one.
                `tcp://HOST:PORT` binds a ZeroMQ socket (extra `zmq`), which nothing guards: a
                public one needs `insecure`; that broker has no `node` and `ref`.
            factory: finds a handler for each BOT, and returns promptly.
            node: listen on this one (not with ZeroMQ); otherwise the broker has one of its own.
            most_credit: clients that ask for more are refused.
            options: `secret`, `tls`, `insecure` as for `Node.listen`.

        Raises:
            InvalidAddress: the address has another form.
            PublicAddress: other machines could reach it; see `Node.listen`.
            OSError: the address is not ours or the port is taken.
        """
        require(callable(factory), "factory= is a function of a BOT", factory)
        require(isinstance(address, str), "an address is a text, 'basp://HOST:PORT'", address)
        if is_zeromq(address):
            make, insecure = zeromq().ZmqFlowBroker, options.get("insecure", False)
            made: Self = make(address, factory, most_credit=most_credit, insecure=insecure)
            return made
        match = _ADDRESS.fullmatch(address)
        if match is None or int(match["port"]) > 65535:
            msg = f"{address!r} is no address; write basp://HOST:PORT or basp://HOST:PORT/NAME"
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
        """Where clients reach it: `basp://HOST:PORT/NAME`."""
        return f"{self.node.address}/{self._name}"

    def close(self) -> None:
        """End all flows with EOT, the broker, and its node if it has its own. Idempotent."""
        if not self._ended.is_set():
            self._actor.call_soon(self._actor.close_flows)
        if self._owns_node:
            self.node.close()
