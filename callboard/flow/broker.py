"""The flow broker: many clients, one handler for each flow, one port.

Its actor runs the table of `callboard.flow.protocol.association`. The actor's mailbox is what
the originals have a thread for: one message at a time, in the order of each sender. Routing ids
are random numbers of 32 bits, given to each port that wants or answers a flow.
"""

import re
import threading
from dataclasses import dataclass
from typing import Any, Final, Self

from callboard.actors.closing import Closing
from callboard.actors.dispatch import handler
from callboard.actors.errors import CallboardError, InvalidAddress
from callboard.actors.exit_reason import ExitReason
from callboard.actors.reference import ActorRef, Down
from callboard.actors.system_actor import SystemActor
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
from callboard.node import Node

#: The name under which a flow broker is registered unless it is given another.
BROKER_NAME: Final = "flow"

#: Seconds between looks for flows whose handler does not answer.
TICK: Final = 1.0

_ADDRESS: Final = re.compile(
    r"basp://(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\[\]:/@\s]+):(?P<port>\d{1,5})(?:/(?P<name>[\w.-]+))?"
)


@dataclass(frozen=True, slots=True)
class Refuse:
    """To the broker: no handler could be found for a flow after all."""

    cid: int
    reason: str


class CloseFlows:
    """To the broker: end all flows, then yourself."""


class ExpireFlows:
    """To the broker: refuse the flows whose handlers did not answer in time."""


class FlowBrokerActor(SystemActor):
    """Runs the table of associations on a node."""

    def __init__(self, factory: Factory, most_credit: int) -> None:
        self._factory = factory
        self._now = self.runtime.now
        draw = self.runtime.random.getrandbits
        self.table = AssociationTable(lambda: f"{draw(128):032x}", most_credit=most_credit)
        self._rids: dict[ActorRef[Any], int] = {}
        self._ports: dict[int, tuple[ActorRef[Any], Any]] = {}
        self._is_ticking = False
        #: While a run is handled: what it lets go to each port.
        self._outputs: dict[ActorRef[Any], list[bytes]] | None = None

    @handler
    def receive(self, data: bytes) -> None:
        """Pass a message on, or begin a flow."""
        sender = self.sender
        if sender is None:
            self.table.counters.unknown += 1
            return
        known = self._rids.get(sender)
        rid = known or self._new_rid(sender)
        self._carry_out(self.table.receive(rid, data, self._now()))
        if known is None:
            self._settle(rid, sender)

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

    def _post(self, ref: ActorRef[Any], sent: bytes | tuple[bytes, ...]) -> None:
        """Send to a peer; one that takes nothing loses its flow."""
        try:
            ref.target.post(sent, self.context)
        except CallboardError as error:  # its link is full, say: only that flow ends
            rid = self._rids.get(ref)
            if rid is not None:
                self._carry_out(self.table.down(rid, str(error)))

    def _new_rid(self, sender: ActorRef[Any]) -> int:
        """Give a peer a random routing id that is free."""
        while not (rid := self.runtime.random.getrandbits(32)) or rid in self._ports:
            pass
        self._rids[sender] = rid
        self._ports[rid] = sender, None
        return rid

    def _settle(self, rid: int, sender: ActorRef[Any]) -> None:
        """Watch a peer that has a flow since this message; forget the others."""
        if rid in self.table:
            self._ports[rid] = sender, self.monitor(sender)
        else:
            self._forget(rid)
        if self.table.is_waiting and not self._is_ticking:
            self._is_ticking = True
            self.after(TICK, ExpireFlows())

    def _forget(self, rid: int) -> None:
        """Free a routing id."""
        found = self._ports.pop(rid, None)
        if found is not None:
            ref, monitor = found
            del self._rids[ref]
            if monitor is not None:
                monitor.cancel()

    @handler
    def port_down(self, down: Down) -> None:
        """A client or handler ended, or no path leads to it."""
        rid = self._rids.get(down.ref)
        if rid is not None:
            self._carry_out(self.table.down(rid, down.detail or str(down.reason)))

    @handler
    def expire_flows(self, order: ExpireFlows) -> None:
        """Refuse flows that waited too long for their handlers."""
        self._carry_out(self.table.expire(self._now()))
        self._is_ticking = self.table.is_waiting
        if self._is_ticking:
            self.after(TICK, order)

    def _carry_out(self, effects: list[Effect]) -> None:
        """Do what the table has decided, in order."""
        for effect in effects:
            if isinstance(effect, Send):
                ref = self._ports[effect.rid][0]
                if self._outputs is None:
                    self._post(ref, effect.data)
                else:
                    self._outputs.setdefault(ref, []).append(effect.data)
            elif isinstance(effect, CallFactory):
                bot = Bot(effect.bot, self.me, refuse=self._refuse)
                reason = call_factory(self._factory, bot, self._now)
                if reason:
                    self._carry_out(self.table.refuse(effect.cid, reason))
            else:
                self._forget(effect.rid)

    def _refuse(self, cid: int, reason: str) -> None:
        """Refuse a flow later; from any thread."""
        self.post_self(Refuse(cid, reason))

    @handler
    def refuse(self, order: Refuse) -> None:
        """Tell a client that waits."""
        self._carry_out(self.table.refuse(order.cid, order.reason))

    @handler
    def close_flows(self, _: CloseFlows) -> None:
        """End all flows, then this actor."""
        self._carry_out(self.table.close("the flow broker is closed"))
        self.stop_self(ExitReason.NORMAL)


class FlowBroker(Closing):
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
        self._actor: FlowBrokerActor = node.runtime.contexts[self.ref.actor_id].actor
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
                `tcp://HOST:PORT` binds a ZeroMQ socket (extra `zmq`), which nothing guards;
                that broker has no `node` and `ref`.
            factory: finds a handler for each BOT, and returns promptly.
            node: listen on this one (not with ZeroMQ); otherwise the broker has one of its own.
            most_credit: clients that ask for more are refused.
            options: `secret`, `tls`, `insecure` as for `Node.listen`.

        Raises:
            InvalidAddress: the address has another form.
            PublicAddress: other machines could reach it; see `Node.listen`.
            OSError: the address is not ours or the port is taken.
        """
        if is_zeromq(address):
            make = zeromq().ZmqFlowBroker
            return make(address, factory, most_credit=most_credit)  # type: ignore[no-any-return]
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

    @property
    def counters(self) -> FlowCounters:
        """What happened so far."""
        return self._actor.table.counters

    def __len__(self) -> int:
        """Return the number of flows in its table."""
        return len(self._actor.table)

    def __bool__(self) -> bool:
        """Be true also without flows."""
        return True

    def run(self, timeout: float | None = None) -> bool:
        """Wait until the broker is closed, or for `timeout` seconds: then return False."""
        return self._ended.wait(timeout)

    def close(self) -> None:
        """End all flows with EOT, the broker, and its node if it has its own. Idempotent."""
        if not self._ended.is_set():
            self.ref.tell(CloseFlows())
        if self._owns_node:
            self.node.close()

    async def aclose(self) -> None:
        """Awaitable twin of `close`."""
        if not self._ended.is_set():
            self.ref.tell(CloseFlows())
        if self._owns_node:
            await self.node.aclose()
