"""In: what becomes of the frames of one read. On the runner, with its role.

Dispatches for this node are decoded and put into mailboxes, control frames go to whom they
concern, frames for other nodes go on (`proxies.forwarding`).
"""

import logging
from typing import TYPE_CHECKING, Any, ClassVar, Final

from actors.envelope import Envelope
from actors.errors import ActorDown, NodeClosed
from actors.reference import ActorRef
from basp.errors import BaspError, MalformedPayload, RemoteProtocolError
from basp.header import (
    EPOCH_COUNT,
    EPOCH_SHIFT,
    FIRST_ACTOR,
    HIGH_PRIORITY,
    MESSAGE_ID_MASK,
    NODE_ACTOR,
    POSITION_MASK,
    POSITION_SHIFT,
    RESPONSE,
    Operation,
)
from basp.node_id import NodeId
from basp.path_order import PathOrder
from proxies.arrival import RemoteAsker, RemoteTeller
from proxies.events import MessagesLost, Undeliverable
from proxies.messages import Failure, LinkActors, StopActor, error_of, failure_of
from proxies.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from basp.frame import Frame
    from proxies.broker import Broker

log = logging.getLogger("callboard.broker")

_DISPATCH: Final = int(Operation.DISPATCH_MESSAGE)
_EPOCH_BITS: Final = EPOCH_COUNT - 1
_NEVER: Final = float("inf")


class Incoming:
    """What arrives at a node or passes through."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._runtime = broker.runtime
        self._node_id = broker.node_id
        self._accounts = broker.accounts
        self._outgoing = broker.outgoing
        self._forwarding = broker.forwarding
        self._orders: dict[bytes, PathOrder] = {}
        #: Orders that have a timer, and when the next one is due.
        self._armed: dict[PathOrder, float] = {}
        #: True when the node is about to close: asks of other nodes fail at once.
        self.refuses_asks = False

    # One branch for each kind of frame: a call would cost as much as what it does.
    def deliver(  # noqa: C901
        self, wire: Wire, frames: "list[Frame]", *, is_ordered: bool = False
    ) -> None:
        """Take a run of frames: the hot loop for everything that arrives.

        With `is_ordered` they were held back until their turn came.
        """
        me, cells = self._node_id, self._runtime.cells
        decode = self._outgoing.codec.decode_message
        if not is_ordered:
            wire.frames_received += len(frames)
        teller: RemoteTeller | None = None
        last: tuple[int, bytes, int] | None = None
        order: PathOrder | None = None
        ordered_source = b""
        passing: list[Frame] = []
        for frame in frames:
            operation, _, data, source, destination, source_actor, number, payload = frame
            if destination != me:
                passing.append(frame)
                continue
            if operation != _DISPATCH:
                if passing:  # before routes may change
                    self._forwarding.forward(passing)
                    passing = []
                self.take_control(wire, frame)
                continue
            if not is_ordered:
                if source != ordered_source:
                    ordered_source = source
                    order = self._orders.get(source) or self._order_of(source)
                if order is None:
                    self._refuse_stranger(frame)
                    continue
                if data >> POSITION_SHIFT & POSITION_MASK != order.expected:
                    self._deliver_in_order(wire, order, frame)
                    continue
                order.expected += 1
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
                arrivals = self._accounts.arrivals_of(source, data >> EPOCH_SHIFT & _EPOCH_BITS)
                sender = RemoteAsker(
                    self._outgoing, source, source_actor, data & MESSAGE_ID_MASK, arrivals
                )
                if self.refuses_asks and number >= FIRST_ACTOR:
                    sender.set_exception(self._refusal())
                    continue
                if message.__class__ is Envelope:
                    sender.deadline = message.deadline
            elif last == (data >> EPOCH_SHIFT, source, source_actor):
                sender = teller  # many messages of one sender come in a row
            else:
                last = (data >> EPOCH_SHIFT, source, source_actor)
                arrivals = self._accounts.arrivals_of(source, data >> EPOCH_SHIFT & _EPOCH_BITS)
                sender = teller = RemoteTeller(source, source_actor, arrivals)
                if source_actor:
                    self._broker.lifetimes.remote_ref(source, source_actor)
            cell = cells.get(number)
            if cell is None:
                self._no_such_actor(number, message, sender)
            elif data < HIGH_PRIORITY:
                cell.post(message, sender)
            else:
                cell.post_urgent(message, sender)
        if passing:
            self._forwarding.forward(passing)

    def _refusal(self) -> NodeClosed:
        return NodeClosed(
            f"{self._broker.name} is draining and takes no more asks; ask another node"
        )

    def _order_of(self, source: bytes) -> PathOrder | None:
        """Return the order of a source; None for a stranger when there are too many."""
        order = self._orders.get(source)
        if order is None and self._broker.is_admitted(source):
            order = self._orders[source] = PathOrder()
        return order

    def _refuse_stranger(self, frame: "Frame") -> None:
        self._outgoing.undeliverable += 1
        self._runtime.emit(Undeliverable(frame[3], self._node_id))

    def forget(self, source: bytes) -> None:
        """Forget the order of a node that is out of reach for long."""
        self._orders.pop(source, None)

    def _deliver_in_order(self, wire: Wire, order: PathOrder, frame: "Frame") -> None:
        """Take a dispatch that another one may have overtaken."""
        late = order.late
        released = order.take(frame, self._runtime.runner.now())
        self._outgoing.undeliverable += order.late - late
        self._released(wire, order, frame[3], released)

    def _released(
        self, wire: Wire, order: PathOrder, source: bytes, released: "list[Frame]"
    ) -> None:
        """Deliver what is in order again, count what was given up, and wait for the rest."""
        for epoch, count in order.given_up:
            self._accounts.arrivals_of(source, epoch).given_up += count
        order.given_up.clear()
        self.deliver(wire, released, is_ordered=True)
        deadline = order.deadline
        if deadline is not None and deadline < self._armed.get(order, _NEVER):
            self._armed[order] = deadline
            self._runtime.runner.call_at(deadline, self._order_due, wire, order, source)

    def _order_due(self, wire: Wire, order: PathOrder, source: bytes) -> None:
        now = self._runtime.runner.now()
        if self._armed.get(order, _NEVER) <= now:
            del self._armed[order]
        self._released(wire, order, source, order.tick(now))

    def _take_response(self, frame: "Frame") -> None:
        data, source, payload = frame[2], frame[3], frame[7]
        arrivals = self._accounts.arrivals_of(source, data >> EPOCH_SHIFT & _EPOCH_BITS)
        arrivals.delivered += 1
        outgoing = self._outgoing
        waiting = outgoing.pending.get(data & MESSAGE_ID_MASK)
        if waiting is None or waiting[1] != source:
            self._runtime.counters.late_answers += 1
            return
        del outgoing.pending[data & MESSAGE_ID_MASK]
        future = waiting[0]
        try:
            value = outgoing.codec.decode_message(payload)
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
        ref = self._runtime.ended_ref(number)
        sender.set_exception(ActorDown(f"there is no actor {ref}"))
        self._runtime.dead_letter(ref, message, sender)

    def _refuse_payload(self, wire: Wire, frame: "Frame", error: RemoteProtocolError) -> None:
        """Tell the asker that its message cannot be read; garbage ends a neighbour's link."""
        data, source, source_actor = frame[2], frame[3], frame[5]
        arrivals = self._accounts.arrivals_of(source, data >> EPOCH_SHIFT & _EPOCH_BITS)
        arrivals.dead_letters += 1
        self._runtime.counters.dead_letters += 1
        log.warning("a message from node %s cannot be read: %s", source.hex(), error)
        message_id = data & MESSAGE_ID_MASK
        if message_id:
            self._outgoing.respond_error(source, source_actor, message_id, error)
        if type(error) is MalformedPayload and source == wire.peer:
            wire.end(str(error))

    def _take_command(self, message: Any) -> None:
        """Carry out what another node asks of this node itself, as far as that makes sense."""
        number = message.number if isinstance(message, StopActor | LinkActors) else None
        if type(number) is not int or number < FIRST_ACTOR:
            self._runtime.counters.unexpected += 1
        elif isinstance(message, StopActor):
            cell = self._runtime.cells.get(number)
            if cell is None:
                return
            if message.kill:
                cell.kill()
            else:
                cell.stop()
        elif isinstance(message.other, ActorRef):
            target = self._runtime.ref_to(self._node_id, number).target
            if message.undo:
                target.unlink(message.other)
            else:
                target.link(message.other)

    # --- control frames for this node ---

    def take_control(self, wire: Wire, frame: "Frame") -> None:
        """Take any frame for this node that is no dispatch; garbage ends a neighbour's link."""
        try:
            self._CONTROLS[frame[0]](self, wire, frame)
        except BaspError as error:
            source = frame[3]
            log.warning("a control frame from node %s cannot be read: %s", source.hex(), error)
            if source == wire.peer:
                wire.end(str(error))

    def _take_announce(self, _: Wire, frame: "Frame") -> None:
        self._broker.lifetimes.take_announce(frame)

    def _take_down(self, _: Wire, frame: "Frame") -> None:
        self._broker.lifetimes.take_down(frame)

    def _take_release(self, _: Wire, frame: "Frame") -> None:
        self._broker.lifetimes.take_release(frame)

    def _take_routes(self, _: Wire, frame: "Frame") -> None:
        self._broker.paths.take_routes(frame)

    def _take_report(self, _: Wire, frame: "Frame") -> None:
        source = NodeId(frame[3])
        lost = self._accounts.receive_report(source, frame[7])
        if lost:
            name = self._broker.names.get(source, "")
            self._runtime.emit(MessagesLost(source, name, lost))

    def _take_path_end(self, wire: Wire, frame: "Frame") -> None:
        order = self._order_of(frame[3])
        if order is None:
            self._refuse_stranger(frame)
            return
        released = order.end(frame[2], self._runtime.runner.now())
        self._released(wire, order, frame[3], released)
        # The source moved its path; ours may be the same, but the report on it may be lost.
        self._accounts.repeat_report(frame[3])

    _CONTROLS: ClassVar[dict[int, "Callable[[Incoming, Wire, Frame], None]"]] = {
        Operation.ANNOUNCE_PROXY_INSTANCE: _take_announce,
        Operation.DOWN_MESSAGE: _take_down,
        Operation.RELEASE_PROXY_INSTANCE: _take_release,
        Operation.ROUTING_UPDATE: _take_routes,
        Operation.DELIVERY_REPORT: _take_report,
        Operation.PATH_END: _take_path_end,
    }
