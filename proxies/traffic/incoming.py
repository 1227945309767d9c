"""In: what becomes of the frames of one read. On the runner, with its role.

Dispatches for this node are decoded and put into mailboxes, control frames go to whom they
concern, frames for other nodes go on (`callboard.proxies.traffic.forwarding`).
"""

import contextvars
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import field
from functools import partial
from itertools import chain, dropwhile
from typing import Any, Final, Literal, NamedTuple

from callboard.actors.asking.reply import Reply
from callboard.actors.envelope import Envelope
from callboard.actors.errors import ActorDown, AskTimeout, MailboxFull, NodeClosed
from callboard.actors.reference import ActorRef, Home
from callboard.actors.runner.loop import current_task_cleared
from callboard.actors.runtime import Runtime
from callboard.basp.accounting import Arrivals, read_report
from callboard.basp.cbor.reader import RunsUserCode
from callboard.basp.errors import (
    BaspError,
    MalformedPayload,
    PayloadTooHeavy,
    RemoteProtocolError,
)
from callboard.basp.frame import Frame, FrameReader, RawFrame
from callboard.basp.header import (
    CARRIED,
    ENTITIES,
    EPOCH_COUNT,
    EPOCH_SHIFT,
    FIRST_ACTOR,
    HIGH_PRIORITY,
    MESSAGE_ID_MASK,
    NODE_ACTOR,
    NOT_PERMITTED,
    POSITION_MASK,
    POSITION_SHIFT,
    RESPONSE,
    Operation,
    count_of,
)
from callboard.basp.node_id import NodeId
from callboard.basp.payload import LargePayload
from callboard.basp.routing.path_order import PathOrder
from callboard.proxies.errors import NotPermitted
from callboard.proxies.events import MessagesLost
from callboard.proxies.lifetime.lifetimes import Lifetimes
from callboard.proxies.link.wire import Wire
from callboard.proxies.messages import (
    TAKES_NO_MORE,
    AskCredit,
    CancelAsk,
    CarriedAnswers,
    Failure,
    LinkActors,
    StopActor,
    UnverifiedFrame,
    error_of,
    failure_of,
)
from callboard.proxies.route_table import RouteTable
from callboard.proxies.traffic.credit_issuer import CreditIssuer
from callboard.proxies.traffic.credit_window import CreditSender
from callboard.proxies.traffic.forwarding import Forwarding
from callboard.proxies.traffic.large import LargeMessages, Reading
from callboard.proxies.traffic.outgoing import Outgoing
from callboard.proxies.traffic.paths import Paths
from callboard.proxies.traffic.unverified import UnverifiedFrames
from callboard.support.dataclass import dataclass
from callboard.support.text import describe

#: Values that always travel, and never are too large.
SCALARS: Final = frozenset({int, bool, float, type(None)})

#: Errors of messages that no handler has seen.
_UNHANDLED: Final = (ActorDown, AskTimeout, MailboxFull, NotPermitted)


class RemoteTeller(Reply):
    """An actor elsewhere that told; number 0 is code outside of any actor."""

    __slots__ = ("_arrivals", "_number", "deadline", "expects", "node")

    wants_reply: Final = False
    is_done: Final = True

    #: Of the outcome, only that there was one.
    expects: Literal[True]
    deadline: None
    node: bytes

    def __init__(self, node: bytes, number: int, arrivals: Arrivals) -> None:
        self.expects, self.deadline = True, None
        #: The id of its node.
        self.node = node
        self._number = number
        self._arrivals = arrivals

    def set_result(self, _: Any) -> bool:
        """Count the message as delivered."""
        self._arrivals.delivered += 1
        return True

    def set_exception(self, error: BaseException) -> bool:
        """Count the message: as a dead letter if no handler has seen it."""
        if isinstance(error, _UNHANDLED):
            self._arrivals.dead_letters += 1
        else:
            self._arrivals.delivered += 1
        return True

    def mark_handled(self) -> None:
        """The handler is done; nobody waits for an answer."""
        self._arrivals.delivered += 1

    def reference(self, runtime: Home) -> ActorRef[Any] | None:
        """Return the sender's ref."""
        return runtime.ref_of(self.node, self._number) if self._number else None


class RemoteAsker(Reply):
    """An asker on another node that waits for an answer."""

    __slots__ = (
        "_arrivals",
        "_counted",
        "node",
        "_number",
        "_outgoing",
        "deadline",
        "is_done",
        "expects",
        "message_id",
    )

    expects: Literal[True]
    node: bytes
    is_done: bool

    #: When the asker's time is over; None if it did not say.
    deadline: float | None

    def __init__(
        self,
        outgoing: Outgoing,
        node: bytes,
        number: int,
        message_id: int,
        arrivals: Arrivals,
    ) -> None:
        self._outgoing = outgoing
        #: The id of its node.
        self.node = node
        self._number = number
        self.message_id = message_id
        self._arrivals = arrivals
        self._counted = False
        self.is_done = False
        self.expects = True
        self.deadline = None

    def set_result(self, value: Any) -> bool:
        """Send the answer."""
        if self.is_done:
            return False
        self.is_done = True
        if not self._counted:  # as `mark_handled`, without the call: each answer comes here
            self._counted = True
            self._arrivals.delivered += 1
        self._outgoing.respond(self.node, self._number, self.message_id, value)
        return True

    def encoded(self, value: Any) -> Callable[[], bool]:
        """Serialize an answer as it is now, and return what sends it.

        Raises:
            NotSerializable: it holds something that cannot travel.
            MessageTooLarge: it is larger than the asker accepts.
        """
        return partial(self._send, self._outgoing.encode(value))

    def _send(self, payload: bytes) -> bool:
        """Send an answer that was serialized before."""
        if self.is_done:
            return False
        self.is_done = True
        self.mark_handled()
        self._outgoing.respond_encoded(self.node, self._number, self.message_id, payload)
        return True

    def set_exception(self, error: BaseException) -> bool:
        """Send the error."""
        if self.is_done:
            return False
        self.is_done = True
        if isinstance(error, _UNHANDLED) and not self._counted:
            self._counted = True
            self._arrivals.dead_letters += 1
        self.mark_handled()
        self._outgoing.respond_error(self.node, self._number, self.message_id, error)
        return True

    @property
    def origin(self) -> tuple[bytes, int]:
        """What names the ask: its node, and its message id there."""
        return self.node, self.message_id

    def mark_handled(self) -> None:
        """The message was handled; its answer may come later."""
        if not self._counted:
            self._counted = True
            self._arrivals.delivered += 1

    def reference(self, runtime: Home) -> ActorRef[Any]:
        """Return a one-shot address that answers the ask."""
        return runtime.reply_ref(self)


class RemoteCarrier(RemoteAsker):
    """Stands for what came together, until it is taken: then each has an asker of its own.

    Attributes:
        count: how many messages that are, by the frame that carries them.
    """

    __slots__ = ("count",)

    def __init__(
        self, outgoing: Outgoing, node: bytes, message_id: int, arrivals: Arrivals, count: int
    ) -> None:
        super().__init__(outgoing, node, 0, message_id, arrivals)
        self.count = count

    def set_result(self, value: Any) -> bool:
        """Send an answer to all of them."""
        self.mark_handled()
        return super().set_result(value)

    def set_exception(self, error: BaseException) -> bool:
        """Refuse all of them."""
        if isinstance(error, _UNHANDLED) and not self._counted:
            self._counted = True
            self._arrivals.dead_letters += self.count
            if isinstance(error, ActorDown):  # who refuses a message counts one
                self._outgoing.counters.dead_letters += self.count - 1
        self.mark_handled()
        return super().set_exception(error)

    def mark_handled(self) -> None:
        """All of them were taken."""
        if not self._counted:
            self._counted = True
            self._arrivals.delivered += self.count

    def died(self) -> None:
        """One of those that were taken is a dead letter."""
        self._arrivals.delivered -= 1
        self._arrivals.dead_letters += 1

    def carried(self, message_id: int) -> "CarriedAsker":
        """Return the asker of one of them, by the id of its ask."""
        return CarriedAsker(self._outgoing, self.node, message_id)

    def answer(self, message_id: int, value: Any) -> None:
        """Send the answer of one of them, which has no asker."""
        outgoing = self._outgoing
        if value.__class__ in SCALARS:  # they travel, each in a few bytes
            payload = outgoing.codec.encode(value)
        else:
            payload = outgoing.payload_of(self.node, value)
        outgoing.gather_answer(self.node, message_id, payload)

    @property
    def read(self) -> Callable[[bytes], Any]:
        """What reads one of them, or raises `RemoteProtocolError` or `RunsUserCode`."""
        return self._outgoing.careful.decode_message

    @property
    def read_whole(self) -> Callable[[bytes], Any]:
        """What reads one of them in the turn of its actor."""
        return self._outgoing.codec.decode_whole


class CarriedAsker(RemoteAsker):
    """An asker on another node whose ask came with others, and whose answer goes with others.

    It was counted when all of them were taken.
    """

    __slots__ = ()

    def __init__(self, outgoing: Outgoing, node: bytes, message_id: int) -> None:
        self._outgoing = outgoing
        self.node = node
        self.message_id = message_id
        self._counted = self.expects = True
        self.is_done = False
        self.deadline = None

    def set_result(self, value: Any) -> bool:
        """Send the answer."""
        if self.is_done:
            return False
        self.is_done = True
        outgoing = self._outgoing
        if value.__class__ in SCALARS:  # they travel, each in a few bytes
            payload = outgoing.codec.encode(value)
        else:
            payload = outgoing.payload_of(self.node, value)
        outgoing.gather_answer(self.node, self.message_id, payload)
        return True

    def _send(self, payload: bytes) -> bool:
        """Send an answer that was serialized before."""
        if self.is_done:
            return False
        self.is_done = True
        self._outgoing.gather_answer(self.node, self.message_id, payload)
        return True

    def set_exception(self, error: BaseException) -> bool:
        """Send the error."""
        return not self.is_done and self._send(self._outgoing.error_payload(error))


#: Messages of one source, that waited for an earlier one, which are posted in one turn.
POSTED_AT_ONCE: Final = 1_000

#: Frames of one link that are not dispatches, and are carried out in one turn: a millisecond.
CONTROLS_AT_ONCE: Final = 64

#: What a frame counts that takes longer.
_COSTS: Final = {int(Operation.ROUTING_UPDATE): 16}

_log = logging.getLogger("callboard.broker")

_DISPATCH: Final = int(Operation.DISPATCH_MESSAGE)
_EPOCH_BITS: Final = EPOCH_COUNT - 1
_NEVER: Final = float("inf")


def _unreadable(error: BaseException) -> RemoteProtocolError:
    """Return why a message cannot be read; without memory, it is that message alone."""
    if isinstance(error, RemoteProtocolError):
        return error
    if isinstance(error, MemoryError):
        return PayloadTooHeavy("there is no memory left to read the message")
    return MalformedPayload(f"the message cannot be read: {describe(error)}")


class Read(NamedTuple):
    """A message that was decoded, or why it cannot be."""

    value: object
    error: RemoteProtocolError | None = None


@dataclass(slots=True, eq=False)
class ApartReader:
    """Decodes messages of one node whose classes have code of users, in turns of its own.

    Such code may take any time. It holds up further messages of its kind from the same node,
    and nothing else: a turn that blocks loses the runner's role, as a handler does.
    """

    _decode: Callable[[bytes], object]
    _runtime: Runtime
    _waiting: deque[tuple[bytes, Callable[[Read], object]]] = field(default_factory=deque)

    def decode(self, payload: bytes, take: Callable[[Read], object]) -> None:
        """Decode a payload soon; `take` is called with the message, on the runner."""
        self._waiting.append((payload, take))
        if len(self._waiting) == 1:
            self._runtime.schedule(self)

    def run(self) -> None:
        """Decode the oldest payload; called by the runner."""
        payload, take = self._waiting[0]
        current_task_cleared(self._runtime.runner.loop, None)
        try:
            read = Read(contextvars.Context().run(self._decode, payload))
        except BaseException as error:  # noqa: BLE001  # it fails this message alone
            read = Read(None, _unreadable(error))
        self._runtime.post(self._take, take, read)

    def _take(self, take: Callable[[Read], object], read: Read) -> None:
        """Hand a message on, and decode the next one in another turn; on the runner."""
        self._waiting.popleft()
        if self._waiting:
            self._runtime.schedule(self)
        take(read)


@dataclass(slots=True)
class Backlog:
    """What one link brought and is left for its next turn: the link is not read before.

    Attributes:
        frames: in their order.
        work: what the frame before them is not done with.
    """

    frames: list[RawFrame]
    work: Iterator[object] | None = None


@dataclass(eq=False, repr=False)
class Incoming:
    """What arrives at a node or passes through.

    A frame that is not a dispatch may take a while, and a read brings a thousand of them. So a
    link has so much carried out in a turn, and the rest in its next ones, as other links have.
    """

    _runtime: Runtime
    _routes: RouteTable
    _out: Outgoing
    _forwarding: Forwarding
    _lifetimes: Lifetimes
    _paths: Paths
    _doubts: UnverifiedFrames
    _pacing: CreditSender
    _granting: CreditIssuer
    _orders: dict[bytes, PathOrder] = field(default_factory=dict)
    #: Orders that have a timer, and when the next one is due.
    _armed: dict[PathOrder, float] = field(default_factory=dict)
    _backlogs: dict[Wire, Backlog] = field(default_factory=dict)
    #: True when the node is about to close: asks of other nodes fail at once.
    refuses_asks: bool = False

    def __post_init__(self) -> None:
        lifetimes, paths = self._lifetimes, self._paths
        self._node_id = self._routes.node_id
        self._accounts = self._routes.accounts
        self._doubts.deliver = partial(self.deliver, were_doubted=True)
        self._doubts.order_of = self._orders.get
        self._accounts.expected = self._expected_epoch
        self._contexts = self._runtime.contexts
        self._decode = self._out.careful.decode_message
        self._large = LargeMessages(self._runtime, self._out.careful, self._large_read)
        self._apart: dict[bytes, ApartReader] = {}
        #: What waits for a message that is decoded apart, by its source and the actor.
        self._behind: dict[tuple[bytes, int], list[tuple[Wire, RawFrame]]] = {}
        #: Messages that could not be read since a line in the log told of one.
        self._unreadable = 0
        self._controls: dict[int, Callable[[Wire, Frame], Iterator[object] | None]] = {
            Operation.ANNOUNCE_PROXY_INSTANCE: lambda _, frame: lifetimes.take_announce(frame),
            Operation.DOWN_MESSAGE: lambda _, frame: lifetimes.take_down(frame),
            Operation.RELEASE_PROXY_INSTANCE: lambda _, frame: lifetimes.take_release(frame),
            Operation.ROUTING_UPDATE: lambda _, frame: paths.take_routes(frame),
            Operation.DELIVERY_REPORT: self._take_report,
            Operation.PATH_END: self._take_path_end,
        }

    def deliver(
        self, wire: Wire, frames: list[RawFrame], *, were_doubted: bool = False
    ) -> None:
        """Take the frames of one read; the next dispatch of its source alone is not sorted."""
        if len(frames) == 1:
            ((operation, _, data, source, destination, _, _, _),) = frames
            if (
                operation == _DISPATCH
                and destination == self._node_id
                and source in wire.sources
            ):
                order = self._orders.get(source)
                if order and data >> POSITION_SHIFT & POSITION_MASK == order.expected:
                    order.expected += 1
                    self._post(wire, frames)
                    return
        self._sort(wire, frames, were_doubted=were_doubted)

    def _sort(self, wire: Wire, frames: list[RawFrame], *, were_doubted: bool) -> None:
        """Take frames: the first half of the hot loop."""
        me, sources = self._node_id, wire.sources
        order: PathOrder | None = None
        latest_source = b""
        may_come = False
        passing: list[RawFrame] = []
        dispatches: list[RawFrame] = []
        controls = 0
        rest = iter(frames)
        for frame in rest:
            operation, _, data, source, destination, _, _, _ = frame
            if source != latest_source:
                latest_source = source
                order = self._orders.get(source)
                may_come = source in sources or self._may_come(wire, source)
            if not may_come and not self._is_owed(wire, frame, order):
                self._doubts.hold(wire, frame)
            elif destination != me:
                passing.append(frame)
            elif operation == _DISPATCH:
                if order and data >> POSITION_SHIFT & POSITION_MASK == order.expected:
                    order.expected += 1
                    dispatches.append(frame)
                    continue
                order = order or self._orders.setdefault(source, PathOrder())
                if order.is_next(frame):
                    dispatches.append(frame)
                    continue
                self._post(wire, dispatches)
                dispatches = []
                self._take_out_of_order(wire, order, frame)
            elif source not in sources:
                self._doubts.hold(wire, frame)  # its source says it again over its new path
            else:
                self._go_on(wire, dispatches, passing)  # before routes may change
                dispatches, passing = [], []
                work = self.take_control(wire, Frame._make(frame))
                latest_source = b""  # who may come over this link may have changed
                controls += _COSTS.get(operation, 1)
                if work is not None or controls >= CONTROLS_AT_ONCE:
                    self._leave(wire, list(rest), work, were_doubted=were_doubted)
        self._go_on(wire, dispatches, passing)

    def _leave(
        self,
        wire: Wire,
        frames: list[RawFrame],
        work: Iterator[object] | None,
        *,
        were_doubted: bool,
    ) -> None:
        """Leave frames for the next turn of their link; in front, if they came before."""
        backlog = self._backlogs.get(wire)
        if not frames and work is None:
            return
        if backlog is None:
            self._backlogs[wire] = Backlog(frames, work)
            wire.hold()
            self._runtime.call_later(0.0, self._next_turn, wire)
            return
        if work is not None:
            backlog.work = chain(backlog.work or (), work)
        parts = (frames, backlog.frames) if were_doubted else (backlog.frames, frames)
        backlog.frames = [*parts[0], *parts[1]]

    def _next_turn(self, wire: Wire) -> None:
        """Go on with what a link brought."""
        backlog = self._backlogs.pop(wire, None)
        if backlog is None:  # the link has ended
            return
        try:
            if backlog.work is not None and self._step(wire, backlog.work):
                self._leave(wire, backlog.frames, backlog.work, were_doubted=False)
            else:
                self.deliver(wire, backlog.frames)
        except BaseException as error:  # noqa: BLE001  # as in a callback of the link
            self._runtime.runner.failed(wire.release, error)
        wire.release()

    def finish(self, wire: Wire) -> None:
        """Carry out what a link brought that ends now."""
        while (backlog := self._backlogs.pop(wire, None)) is not None:
            while backlog.work is not None and self._step(wire, backlog.work):
                pass
            self.deliver(wire, backlog.frames)
            wire.release()

    def _go_on(self, wire: Wire, dispatches: list[RawFrame], passing: list[RawFrame]) -> None:
        """Hand over dispatches for this node, and pass the others on."""
        if dispatches:
            self._post(wire, dispatches)
        if passing:
            self._forwarding.forward(passing)

    def _post(  # noqa: C901  # no calls here
        self,
        wire: Wire,
        frames: list[RawFrame],
        decode: Callable[[bytes], Any] | None = None,
    ) -> None:
        """Put dispatches for this node into mailboxes: the second half of the hot loop.

        They are in the order of their sources. `decode` returns the message of the only one,
        where that was decoded before.
        """
        contexts, refuses, behind = self._contexts, self.refuses_asks, self._behind
        decode = decode or self._decode
        teller: RemoteTeller | None = None
        last: tuple[int, bytes, int] | None = None
        for frame in frames:
            _, _, data, source, _, source_actor, number, payload = frame
            try:
                if data & RESPONSE:
                    self._take_response(frame, decode)
                    continue
                if behind and (source, number) in behind:
                    behind[source, number].append((wire, frame))
                    continue
                message = decode(payload)
            except (RemoteProtocolError, MemoryError) as cause:
                self._refuse_payload(wire, frame, _unreadable(cause))
                continue
            except LargePayload:
                self._read_in_pieces(wire, frame, frames)
                return
            except RunsUserCode:
                self._decode_apart(wire, frame)
                continue
            sender: Any = teller  # many messages of one sender come in a row
            message_id = data & MESSAGE_ID_MASK
            if message_id or last != (data >> EPOCH_SHIFT, source, source_actor):
                arrivals = self._accounts.arrivals_of(source, data >> EPOCH_SHIFT & _EPOCH_BITS)
                if not message_id:
                    last = (data >> EPOCH_SHIFT, source, source_actor)
                    sender = teller = RemoteTeller(source, source_actor, arrivals)
                    if source_actor:
                        self._lifetimes.remote_ref(source, source_actor)
                elif number == CARRIED:
                    count, number = count_of(data, source_actor, number), ENTITIES
                    sender = RemoteCarrier(self._out, source, message_id, arrivals, count)
                else:
                    sender = RemoteAsker(self._out, source, source_actor, message_id, arrivals)
                    if message.__class__ is Envelope:
                        sender.deadline = message.deadline
            context = contexts.get(number)
            if context is None or (message_id and refuses and number >= FIRST_ACTOR):
                if number == CARRIED:
                    error = MalformedPayload("what carries messages has no id")
                    self._refuse_payload(wire, frame, error)
                else:
                    self._refuse(number, message, sender)
            elif data < HIGH_PRIORITY:
                context.post(message, sender)
            else:
                context.post_urgent(message, sender)

    def _read_in_pieces(self, wire: Wire, frame: RawFrame, frames: list[RawFrame]) -> None:
        """Read a large message; what its source sent behind it waits, the rest goes on."""
        source = frame[3]
        reading = self._large.read(wire, self._orders[source], frame)
        rest = list(dropwhile(lambda other: other is not frame, frames))[1:]
        self._large.wait(reading, [other for other in rest if other[3] == source])
        self._post(wire, [other for other in rest if other[3] != source])

    def _may_come(self, wire: Wire, source: bytes) -> bool:
        """Return whether frames of a node may come over a link; it remembers that they may."""
        if wire.peer in self._routes.router.carriers.get(source, ()):
            wire.sources.add(source)
            return True
        return self._routes.brings(wire.peer, source, self._runtime.now())

    def _is_owed(self, wire: Wire, frame: RawFrame, order: PathOrder | None) -> bool:
        """Return whether a dispatch may come from anywhere.

        So it is when its source has said over its path that there is such a dispatch, and
        when a neighbor gives back what was to go on that way, because it moved its path too.
        """
        if frame[0] != _DISPATCH:
            return False
        if frame[4] == self._node_id:
            return order is not None and order.is_owed(frame)
        return self._routes.brings(wire.peer, frame[4], self._runtime.now())

    def _expected_epoch(self, source: bytes) -> int | None:
        """Return the epoch of which the next dispatch of a node is expected, if it sent any."""
        order = self._orders.get(source)
        return None if order is None else order.epoch

    def forget(self, source: bytes) -> None:
        """Forget the order of a node that is out of reach for long."""
        self._apart.pop(source, None)
        self._orders.pop(source, None)

    def _take_out_of_order(self, wire: Wire, order: PathOrder, frame: RawFrame) -> None:
        """Take a dispatch that another one may have overtaken."""
        late = order.late
        released = order.take(frame, self._runtime.now())
        if order.late > late:  # tell the source where we are: it may be deceived, or we
            self._routes.undeliverable += order.late - late
            self._accounts.repeat_report(frame[3])
        self._released(wire, order, frame[3], released)

    def _released(
        self, wire: Wire, order: PathOrder, source: bytes, released: list[RawFrame]
    ) -> None:
        """Deliver what is in order again, count what was given up, and wait for the rest."""
        for epoch, count in order.given_up:
            self._accounts.arrivals_of(source, epoch).given_up += count
        order.given_up.clear()
        self._post_in_turns(wire, order, source, released)
        deadline = order.deadline
        if deadline is not None and deadline < self._armed.get(order, _NEVER):
            self._armed[order] = deadline
            self._runtime.call_at(deadline, self._order_due, wire, order, source)

    def _post_in_turns(
        self, wire: Wire, order: PathOrder, source: bytes, frames: list[RawFrame]
    ) -> None:
        """Post frames of one source, some in a turn; they wait behind a large message of it."""
        reading = self._large.of(source)
        if reading is None:
            self._post(wire, frames[:POSTED_AT_ONCE])
            frames = frames[POSTED_AT_ONCE:]
            if not frames:
                return
            reading = self._large.of(source) or self._large.postpone(wire, order, source)
        self._large.wait(reading, frames)

    def _order_due(self, wire: Wire, order: PathOrder, source: bytes) -> None:
        """Give up what has been waited for long enough."""
        now = self._runtime.now()
        if self._armed.get(order, _NEVER) <= now:
            del self._armed[order]
        epoch = order.epoch
        released = order.tick(now)
        if order.epoch != epoch or order.doubts_ends:  # an end may have been altered
            self._accounts.repeat_report(source)
        self._released(wire, order, source, released)

    def _large_read(self, reading: Reading) -> None:
        """Take a message that was read in pieces, and what waited behind it."""
        wire, frame = reading.wire, reading.frame
        if frame is None:
            pass  # its source has waited for a turn
        elif frame[2] & RESPONSE:
            try:
                self._take_response(frame, lambda _: reading.result())
            except RemoteProtocolError as error:  # an answer to no ask
                self._refuse_payload(wire, frame, error)
        elif reading.error is not None:
            self._refuse_payload(wire, frame, reading.error)
        else:
            self._post(wire, [frame], lambda _: reading.result())
        self._post_in_turns(wire, reading.order, reading.source, list(reading.waiting))

    def _take_response(self, frame: RawFrame, decode: Callable[[bytes], Any]) -> None:
        """Complete the ask that a response answers.

        Raises:
            LargePayload: it is to be read in pieces; nothing was changed.
        """
        data, source, payload = frame[2], frame[3], frame[7]
        arrivals = self._accounts.arrivals_of(source, data >> EPOCH_SHIFT & _EPOCH_BITS)
        if not data & MESSAGE_ID_MASK:
            count = count_of(data, frame[5], frame[6])
            self._take_answers(source, decode(payload), count)
            arrivals.delivered += count
            return
        arrivals.delivered += 1
        outgoing = self._out
        waiting = outgoing.pending.get(data & MESSAGE_ID_MASK)
        if waiting is None or waiting[1] != source:
            self._runtime.counters.late_answers += 1
            return
        future = waiting[0]
        try:
            value = decode(payload)
        except (RemoteProtocolError, MemoryError) as error:
            value = failure_of(_unreadable(error))
        except LargePayload:
            arrivals.delivered -= 1
            raise
        except RunsUserCode:
            self._answer_apart(source, data & MESSAGE_ID_MASK, payload)
            return
        del outgoing.pending[data & MESSAGE_ID_MASK]
        self._complete(source, future, value)

    def _complete(self, source: bytes, asker: Any, value: object) -> None:
        """Complete an ask with its answer, or let it fail with the error that is one."""
        if isinstance(value, Failure):
            self._fail(source, asker, value)
        else:
            asker.set_result(value)

    def _answer_apart(self, source: bytes, message_id: int, payload: bytes) -> None:
        """Decode an answer in a turn of its own: its class has code of a user."""
        self._apart_of(source).decode(payload, partial(self._answered, source, message_id))

    def _answered(self, source: bytes, message_id: int, read: Read) -> None:
        """Complete an ask whose answer was decoded, unless it is over."""
        waiting = self._out.pending.get(message_id)
        if waiting is None or waiting[1] != source:
            self._runtime.counters.late_answers += 1
            return
        del self._out.pending[message_id]
        self._complete(
            source, waiting[0], read.value if read.error is None else failure_of(read.error)
        )

    def _decode_apart(self, wire: Wire, frame: RawFrame) -> None:
        """Decode a message in a turn of its own: its class has code of a user.

        What its source sends to the same actor waits for it, so that the order of a pair holds;
        the actor itself handles what others send.
        """
        source, number, payload = frame[3], frame[6], frame[7]
        behind: list[tuple[Wire, RawFrame]] = []
        self._behind[source, number] = behind
        self._apart_of(source).decode(payload, partial(self._decoded, wire, frame, behind))

    def _decoded(
        self, wire: Wire, frame: RawFrame, behind: list[tuple[Wire, RawFrame]], read: Read
    ) -> None:
        """Deliver a message that was decoded, and what waited for it."""
        del self._behind[frame[3], frame[6]]
        if read.error is not None:
            self._refuse_payload(wire, frame, read.error)
        else:
            self._post(wire, [frame], lambda _: read.value)
        for later_wire, later in behind:  # one of these may have such a class again
            self._post(later_wire, [later])

    def _apart_of(self, source: bytes) -> ApartReader:
        """Return what decodes messages of a node with code of users."""
        reader = self._apart.get(source)
        if reader is None:
            reader = self._apart[source] = ApartReader(
                self._out.codec.decode_whole, self._runtime
            )
        return reader

    def _take_answers(self, source: bytes, carrier: object, count: int) -> None:
        """Complete the asks that what came together answers.

        Raises:
            MalformedPayload: it is something else, or not so many answers.
        """
        if not isinstance(carrier, CarriedAnswers):
            msg = f"an answer to no ask: a {type(carrier).__qualname__:.80}"
            raise MalformedPayload(msg)
        pending, decode, answers = self._out.pending, self._decode, carrier.each()
        if len(answers) != count:
            msg = f"{len(answers):,} answers came as {count:,}"
            raise MalformedPayload(msg)
        for message_id, payload in answers:
            waiting = pending.get(message_id)
            if waiting is None or waiting[1] != source:
                self._runtime.counters.late_answers += 1
                continue
            try:
                value = decode(payload)
            except (RemoteProtocolError, MemoryError) as error:
                value = failure_of(_unreadable(error))
            except RunsUserCode:
                self._answer_apart(source, message_id, payload)
                continue
            del pending[message_id]
            self._complete(source, waiting[0], value)

    def _fail(self, source: bytes, asker: Any, failure: Failure) -> None:
        """Let an ask fail with the error that answers it."""
        is_closing = failure.kind == NodeClosed.__name__
        if is_closing and str(failure.text).endswith(TAKES_NO_MORE):
            self._out.refusing.add(source)
        asker.set_exception(error_of(failure))

    def _refuse(self, number: int, message: Any, sender: Any) -> None:
        """Carry out a command for the node, or refuse a message that no actor here takes."""
        if number == NODE_ACTOR:
            message = message.message if message.__class__ is Envelope else message
            if isinstance(message, Failure):
                self._lifetimes.refuse_monitors(sender.node, message)
            elif isinstance(message, CancelAsk):
                self._take_cancel(message, sender.node)
            elif isinstance(message, UnverifiedFrame):
                self._take_doubtful(message)
            else:
                self._take_command(message, sender.node)
            sender.set_result(None)
            return
        if self.refuses_asks and number >= FIRST_ACTOR and isinstance(sender, RemoteAsker):
            name = self._runtime.name
            sender.set_exception(NodeClosed(f"{name} {TAKES_NO_MORE}"))
            return
        key = message.key if isinstance(message, Envelope) else None
        if key is not None and self._runtime.kept.repeats(number, key, sender):
            return  # the actor has answered before it ended
        successor = self._runtime.succession.successor(number)
        if successor is not None:
            successor.target.post(message, sender)
            return
        ref = self._runtime.ended_ref(number)
        if number == NOT_PERMITTED:
            sender.set_exception(NotPermitted(str(message)))
        else:
            sender.set_exception(ActorDown(f"there is no actor {ref}"))
        self._runtime.dead_letter(ref, message, sender)

    def _refuse_payload(self, wire: Wire, frame: RawFrame, error: RemoteProtocolError) -> None:
        """Tell the asker that its message cannot be read; garbage ends a neighbor's link."""
        data, source, source_actor = frame[2], frame[3], frame[5]
        arrivals = self._accounts.arrivals_of(source, data >> EPOCH_SHIFT & _EPOCH_BITS)
        count, number = count_of(data, source_actor, frame[6]), frame[6]
        if number == CARRIED:
            source_actor, number = 0, ENTITIES
        arrivals.dead_letters += count
        self._runtime.counters.dead_letters += count
        is_for_part = number < FIRST_ACTOR and number not in self._runtime.contexts
        self._unreadable += not is_for_part  # asks whether this node has entities, for instance
        if self._unreadable == 1 and not is_for_part:
            _log.warning("a message from node %s cannot be read: %s", source.hex(), error)
            self._runtime.call_later(1.0, self._tell_unreadable)
        message_id = data & MESSAGE_ID_MASK
        if message_id:
            self._out.respond_error(source, source_actor, message_id, error)
        if type(error) is MalformedPayload and source == wire.peer:
            wire.end(str(error))

    def _take_command(self, message: Any, node: bytes) -> None:
        """Carry out what another node asks of this node itself, as far as that makes sense."""
        is_command = isinstance(message, StopActor | LinkActors | AskCredit)
        number = message.number if is_command else None
        if type(number) is not int or number < FIRST_ACTOR:
            self._runtime.counters.unexpected += 1
        elif isinstance(message, AskCredit):
            if message.is_sound:
                self._granting.asked(node, message)
        elif isinstance(message, StopActor):
            cell = self._runtime.contexts.get(number)
            if cell is None:
                return
            if message.kill:
                cell.kill()
            else:
                cell.stop()
        elif isinstance(message.other, ActorRef):
            target = self._runtime.ref_of(self._node_id, number).target
            if message.undo:
                target.unlink(message.other)
            else:
                target.link(message.other)

    def _take_cancel(self, message: CancelAsk, node: bytes) -> None:
        """Let work stop that another node asked for, and no longer waits for."""
        if type(message.number) is int and type(message.message_id) is int:
            cell = self._runtime.contexts.get(message.number)
            if cell is not None and message.number >= FIRST_ACTOR:
                cell.give_up((node, message.message_id))

    def _take_doubtful(self, message: UnverifiedFrame) -> None:
        """Take a dispatch for here that a node on its way has doubted."""
        octets = message.frame if type(message.frame) is bytes else b""
        frames = FrameReader().feed(octets)
        if len(frames) != 1 or frames[0][0] != _DISPATCH or frames[0][4] != self._node_id:
            self._runtime.counters.unexpected += 1
        else:
            self._doubts.hold(None, frames[0])

    # --- control frames for this node ---

    def take_control(self, wire: Wire, frame: Frame) -> Iterator[object] | None:
        """Take a frame for this node that is not a dispatch; garbage ends a neighbor's link.

        Returns what is left to do, step by step.
        """
        try:
            return self._controls[frame.operation](wire, frame)
        except BaspError as error:
            self._refuse_control(wire, frame.source, error)
            return None

    def _step(self, wire: Wire, work: Iterator[object]) -> bool:
        """Do the next step of what a neighbor's frame began; returns whether it was one."""
        try:
            next(work)
        except StopIteration:
            return False
        except BaspError as error:
            self._refuse_control(wire, wire.peer or b"", error)
            return False
        return True

    def _refuse_control(self, wire: Wire, source: bytes, error: BaspError) -> None:
        """End the link of a neighbor that sends garbage."""
        _log.warning("a control frame from node %s cannot be read: %s", source.hex(), error)
        if source == wire.peer:
            wire.end(str(error))

    def _tell_unreadable(self) -> None:
        """Tell how many messages could not be read since the one that was told."""
        more, self._unreadable = self._unreadable - 1, 0
        if more:
            _log.warning("%d more messages of other nodes cannot be read", more)

    def _take_report(self, _: Wire, frame: Frame) -> None:
        """Take the report of what arrived at another node."""
        source = NodeId(frame.source)
        lines, credit = read_report(source, frame.payload)
        if credit:
            self._pacing.take_credit(source, credit)
        lost = self._paths.take_report(source, lines) if lines else 0
        if lost:
            name = self._routes.names.get(source, "")
            self._runtime.report(MessagesLost(source, name, lost))

    def _take_path_end(self, wire: Wire, frame: Frame) -> None:
        """Take note of how many dispatches an old path carried."""
        order = self._orders.setdefault(frame.source, PathOrder())
        released = order.end(frame.data, self._runtime.now())
        self._released(wire, order, frame.source, released)
        self._doubts.believe(frame.source)
        # The source moved its path; ours may be the same, but the report on it may be lost.
        self._accounts.repeat_report(frame.source)
