"""Frames from links: deliver, dispatch or forward the frames of one read.

Dispatches for this node are decoded and put into mailboxes; control frames go to the part that
handles them; frames for other nodes are forwarded (`callboard.proxies.traffic.forwarding`). On
the runner, with its role.
"""

import contextvars
import logging
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import field
from functools import partial
from itertools import chain, dropwhile
from typing import Any, Final, NamedTuple

from callboard.actors.envelope import Envelope
from callboard.actors.errors import ActorDown, NodeClosed
from callboard.actors.reference import ActorRef
from callboard.actors.refusal import Refusal
from callboard.actors.runner.loop import current_task_cleared
from callboard.actors.runtime import Runtime
from callboard.actors.values import Answer, Message
from callboard.basp.accounting import read_report
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
from callboard.cbor.reader import RunsUserCode
from callboard.proxies.errors import NotPermitted, UnknownMessageType
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
from callboard.proxies.traffic.remote_reply import RemoteReply
from callboard.proxies.traffic.unverified import UnverifiedFrames
from callboard.support.dataclass import dataclass
from callboard.support.text import describe

#: Messages of one source, held for an earlier one, that are posted in one turn.
POSTED_AT_ONCE: Final = 1_000

#: Control frames of one link that are handled in one turn: about a millisecond of work.
CONTROLS_AT_ONCE: Final = 64

#: Number of control frames that a slower one counts as.
_COSTS: Final = {int(Operation.ROUTING_UPDATE): 16}

#: The answer of a node that lacks a message type of the library.
_OWN_TYPE: Final = re.compile(r"message type '(callboard\.[\w.]+)' is not registered here")

_log = logging.getLogger("callboard.broker")

_DISPATCH: Final = int(Operation.DISPATCH_MESSAGE)
_EPOCH_BITS: Final = EPOCH_COUNT - 1
_NEVER: Final = float("inf")


def _unreadable(error: BaseException) -> RemoteProtocolError:
    """Return the error for a message that could not be decoded."""
    if isinstance(error, RemoteProtocolError):
        return error
    if isinstance(error, MemoryError):
        return PayloadTooHeavy("there is no memory left to read the message")
    return MalformedPayload(f"the message cannot be read: {describe(error)}")


class Read(NamedTuple):
    """The result of decoding a message: its value, or the error."""

    value: Answer
    error: RemoteProtocolError | None = None


@dataclass(slots=True, eq=False)
class ApartReader:
    """Decodes messages of one node whose classes run user code, in separate turns.

    User code may take long. If a turn blocks, the runner's role passes to another thread, as
    with a blocking handler. So slow user code delays only further messages of this kind from
    the same node.
    """

    _decode: Callable[[bytes], object]
    _runtime: Runtime
    _waiting: deque[tuple[bytes, Callable[[Read], object]]] = field(default_factory=deque)

    def decode(self, payload: bytes, take: Callable[[Read], object]) -> None:
        """Decode a payload soon; `take` is called with the message on the runner's thread."""
        self._waiting.append((payload, take))
        if len(self._waiting) == 1:
            self._runtime.schedule(self)

    def run(self) -> None:
        """Decode the oldest payload; called by the runner."""
        payload, take = self._waiting[0]
        current_task_cleared(self._runtime.runner.loop, None)
        try:
            read = Read(contextvars.Context().run(self._decode, payload))
        except BaseException as error:  # noqa: BLE001  # only this message fails
            read = Read(None, _unreadable(error))
        self._runtime.post(self._deliver_read, take, read)

    def _deliver_read(self, take: Callable[[Read], object], read: Read) -> None:
        """Deliver a decoded message, and schedule the next one.

        Must be called on the runner's thread.
        """
        self._waiting.popleft()
        if self._waiting:
            self._runtime.schedule(self)
        take(read)


@dataclass(slots=True)
class Backlog:
    """The frames of one link that are not processed yet, while which the link is not read.

    Attributes:
        frames: the frames in the order of arrival.
        work: the remaining steps of a control frame that is partly processed.
    """

    frames: list[RawFrame]
    work: Iterator[object] | None = None


@dataclass(eq=False, repr=False)
class Incoming:
    """Handles all frames that arrive at a node.

    One read may return a thousand frames, and handling a control frame may take long. So a turn
    does only a limited amount of work for each link, and the rest in later turns. In this way
    no link delays the others.
    """

    _runtime: Runtime
    _routes: RouteTable
    _out: Outgoing
    _forwarding: Forwarding
    _lifetimes: Lifetimes
    _paths: Paths
    _unverified: UnverifiedFrames
    _credit_window: CreditSender
    _credit_issuer: CreditIssuer
    _orders: dict[bytes, PathOrder] = field(default_factory=dict)
    #: Orders with a timer, and when the next one is due.
    _armed: dict[PathOrder, float] = field(default_factory=dict)
    _backlogs: dict[Wire, Backlog] = field(default_factory=dict)
    #: Whether the node is about to close: asks of other nodes then fail at once.
    refuses_asks: bool = False

    def __post_init__(self) -> None:
        lifetimes, paths = self._lifetimes, self._paths
        self._node_id = self._routes.node_id
        self._accounts = self._routes.accounts
        self._unverified.deliver = partial(self.deliver, were_doubted=True)
        self._unverified.order_of = self._orders.get
        self._accounts.expected = self._expected_epoch
        self._contexts = self._runtime.contexts
        self._decode = self._out.careful.decode_message
        self._pending = self._out.asks.by_id
        self._large = LargeMessages(self._runtime, self._out.careful, self._large_read)
        self._apart: dict[bytes, ApartReader] = {}
        #: Frames that wait because an earlier message with user code is being decoded, by
        #: source and actor.
        self._deferred: dict[tuple[bytes, int], list[tuple[Wire, RawFrame]]] = {}
        #: Unreadable messages since the last log line about one.
        self._unreadable = 0
        self._controls: dict[int, Callable[[Wire, Frame], Iterator[object] | None]] = {
            Operation.ANNOUNCE_PROXY_INSTANCE: lambda _, frame: lifetimes.on_announce(frame),
            Operation.DOWN_MESSAGE: lambda _, frame: lifetimes.on_down(frame),
            Operation.RELEASE_PROXY_INSTANCE: lambda _, frame: lifetimes.on_release(frame),
            Operation.ROUTING_UPDATE: lambda _, frame: paths.handle_routes(frame),
            Operation.DELIVERY_REPORT: self._handle_report,
            Operation.PATH_END: self._handle_path_end,
        }

    def deliver(
        self, wire: Wire, frames: list[RawFrame], *, were_doubted: bool = False
    ) -> None:
        """Deliver the frames of one read, with a fast path for the usual single dispatch."""
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
        """Sort frames by kind, which is the first half of the hot loop."""
        me, sources = self._node_id, wire.sources
        order: PathOrder | None = None
        latest_source = b""
        may_arrive = False
        passing: list[RawFrame] = []
        dispatches: list[RawFrame] = []
        controls = 0
        rest = iter(frames)
        for frame in rest:
            operation, _, data, source, destination, _, _, _ = frame
            if source != latest_source:
                latest_source = source
                order = self._orders.get(source)
                may_arrive = source in sources or self._may_arrive(wire, source)
            if not may_arrive and not self._is_owed(wire, frame, order):
                self._unverified.hold(wire, frame)
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
                self._handle_out_of_order(wire, order, frame)
            elif source not in sources:
                # The source sends a control frame again on its new path.
                self._unverified.hold(wire, frame)
            else:
                # Forward them first, because the control frame may change the routes.
                self._post_and_forward(wire, dispatches, passing)
                dispatches, passing = [], []
                work = self.handle_control(wire, Frame._make(frame))
                latest_source = b""  # the links on which a source may arrive have changed
                controls += _COSTS.get(operation, 1)
                if work is not None or controls >= CONTROLS_AT_ONCE:
                    self._postpone(wire, list(rest), work, were_doubted=were_doubted)
        self._post_and_forward(wire, dispatches, passing)

    def _postpone(
        self,
        wire: Wire,
        frames: list[RawFrame],
        work: Iterator[object] | None,
        *,
        were_doubted: bool,
    ) -> None:
        """Store frames for the next turn of their link.

        Verified frames are put first, because they arrived earlier.
        """
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
        """Continue with the backlog of a link."""
        backlog = self._backlogs.pop(wire, None)
        if backlog is None:  # the link has ended
            return
        try:
            if backlog.work is not None and self._step(wire, backlog.work):
                self._postpone(wire, backlog.frames, backlog.work, were_doubted=False)
            else:
                self.deliver(wire, backlog.frames)
        except BaseException as error:  # noqa: BLE001  # as in a callback of the link
            self._runtime.runner.failed(wire.release, error)
        wire.release()

    def finish(self, wire: Wire) -> None:
        """Process the backlog of a link that ends now."""
        while (backlog := self._backlogs.pop(wire, None)) is not None:
            while backlog.work is not None and self._step(wire, backlog.work):
                pass
            self.deliver(wire, backlog.frames)
            wire.release()

    def _post_and_forward(
        self, wire: Wire, dispatches: list[RawFrame], passing: list[RawFrame]
    ) -> None:
        """Post dispatches for this node, and forward the other frames."""
        if dispatches:
            self._post(wire, dispatches)
        if passing:
            self._forwarding.forward(passing)

    def _post(  # noqa: C901  # one function, because calls are slow
        self,
        wire: Wire,
        frames: list[RawFrame],
        decode: Callable[[bytes], Any] | None = None,
    ) -> None:
        """Put dispatches for this node into mailboxes: the second half of the hot loop.

        The frames of each source are in order. If a single frame was decoded before, `decode`
        returns its message.
        """
        contexts, refuses, queues = self._contexts, self.refuses_asks, self._deferred
        decode = decode or self._decode
        teller: RemoteReply | None = None
        last: tuple[int, bytes, int] | None = None
        for frame in frames:
            _, _, data, source, _, source_actor, number, payload = frame
            try:
                if data & RESPONSE:
                    self._handle_response(frame, decode)
                    continue
                if queues and (source, number) in queues:
                    queues[source, number].append((wire, frame))
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
            sender = teller  # messages of one sender usually arrive in a row
            message_id = data & MESSAGE_ID_MASK
            if message_id or last != (data >> EPOCH_SHIFT, source, source_actor):
                arrivals = self._accounts.arrivals_of(source, data >> EPOCH_SHIFT & _EPOCH_BITS)
                if not message_id:
                    last = (data >> EPOCH_SHIFT, source, source_actor)
                    sender = RemoteReply(self._out, arrivals, source, source_actor, 0)
                    teller = sender
                    if source_actor:
                        self._lifetimes.remote_ref(source, source_actor)
                elif number == CARRIED:
                    count, number = count_of(data, source_actor, number), ENTITIES
                    sender = RemoteReply(self._out, arrivals, source, 0, message_id, count)
                else:
                    sender = RemoteReply(self._out, arrivals, source, source_actor, message_id)
                    if message.__class__ is Envelope:
                        sender.deadline = message.deadline
            context = contexts.get(number)
            if context is None or (message_id and refuses and number >= FIRST_ACTOR):
                if number == CARRIED:
                    error = MalformedPayload("a batch of messages lacks an id")
                    self._refuse_payload(wire, frame, error)
                else:
                    assert sender is not None, "the first of a row has made it"
                    self._refuse(number, message, sender)
            elif data < HIGH_PRIORITY:
                context.post(message, sender)
            else:
                context.post_urgent(message, sender)

    def _read_in_pieces(self, wire: Wire, frame: RawFrame, frames: list[RawFrame]) -> None:
        """Start decoding a large message in slices; later frames of its source wait for it."""
        source = frame[3]
        reading = self._large.read(wire, self._orders[source], frame)
        rest = list(dropwhile(lambda other: other is not frame, frames))[1:]
        self._large.wait(reading, [other for other in rest if other[3] == source])
        self._post(wire, [other for other in rest if other[3] != source])

    def _may_arrive(self, wire: Wire, source: bytes) -> bool:
        """Return whether frames of a source may arrive on a link; cache a positive result."""
        if wire.peer in self._routes.router.carriers.get(source, ()):
            wire.sources.add(source)
            return True
        return self._routes.brings(wire.peer, source, self._runtime.now())

    def _is_owed(self, wire: Wire, frame: RawFrame, order: PathOrder | None) -> bool:
        """Return whether a dispatch may arrive on any link.

        It may in two cases: the source has confirmed on its own path that the message exists;
        or this node had forwarded the message to a neighbor, whose path has changed, too, so
        that the neighbor returns it.
        """
        if frame[0] != _DISPATCH:
            return False
        if frame[4] == self._node_id:
            return order is not None and order.is_owed(frame)
        return self._routes.brings(wire.peer, frame[4], self._runtime.now())

    def _expected_epoch(self, source: bytes) -> int | None:
        """Return the epoch of the next expected dispatch of a node, None if it sent none."""
        order = self._orders.get(source)
        return None if order is None else order.epoch

    def forget(self, source: bytes) -> None:
        """Forget the order of a node that is out of reach for long."""
        self._apart.pop(source, None)
        self._orders.pop(source, None)

    def _handle_out_of_order(self, wire: Wire, order: PathOrder, frame: RawFrame) -> None:
        """Handle a dispatch that another one may have overtaken."""
        late = order.late
        released = order.take(frame, self._runtime.now())
        # Report the count of received messages again: a forged frame may have misled either
        # node.
        if order.late > late:
            self._routes.undeliverable += order.late - late
            self._accounts.repeat_report(frame[3])
        self._released(wire, order, frame[3], released)

    def _released(
        self, wire: Wire, order: PathOrder, source: bytes, released: list[RawFrame]
    ) -> None:
        """Deliver frames that are in order again, count abandoned ones, and set the timer."""
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
        """Post frames of one source in portions; they wait for a large message of it."""
        reading = self._large.of(source)
        if reading is None:
            self._post(wire, frames[:POSTED_AT_ONCE])
            frames = frames[POSTED_AT_ONCE:]
            if not frames:
                return
            reading = self._large.of(source) or self._large.postpone(wire, order, source)
        self._large.wait(reading, frames)

    def _order_due(self, wire: Wire, order: PathOrder, source: bytes) -> None:
        """Stop waiting for overdue frames of a source."""
        now = self._runtime.now()
        if self._armed.get(order, _NEVER) <= now:
            del self._armed[order]
        epoch = order.epoch
        released = order.tick(now)
        # The announced end of the epoch may have been forged.
        if order.epoch != epoch or order.doubts_ends:
            self._accounts.repeat_report(source)
        self._released(wire, order, source, released)

    def _large_read(self, reading: Reading) -> None:
        """Deliver a message that was decoded in slices, and the frames that waited for it."""
        wire, frame = reading.wire, reading.frame
        if frame is None:
            pass  # there was no large message: the frames only waited for a turn
        elif frame[2] & RESPONSE:
            try:
                self._handle_response(frame, lambda _: reading.result())
            except RemoteProtocolError as error:  # the answer does not belong to an ask
                self._refuse_payload(wire, frame, error)
        elif reading.error is not None:
            self._refuse_payload(wire, frame, reading.error)
        else:
            self._post(wire, [frame], lambda _: reading.result())
        self._post_in_turns(wire, reading.order, reading.source, list(reading.waiting))

    def _handle_response(self, frame: RawFrame, decode: Callable[[bytes], Any]) -> None:
        """Complete the ask that a response answers.

        Raises:
            LargePayload: the response has to be decoded in slices; nothing was changed.
        """
        data, source, payload = frame[2], frame[3], frame[7]
        arrivals = self._accounts.arrivals_of(source, data >> EPOCH_SHIFT & _EPOCH_BITS)
        if not data & MESSAGE_ID_MASK:
            count = count_of(data, frame[5], frame[6])
            self._handle_answers(source, decode(payload), count)
            arrivals.delivered += count
            return
        arrivals.delivered += 1
        pending = self._pending
        waiting = pending.get(data & MESSAGE_ID_MASK)
        if waiting is None or waiting[1] != source:
            self._handle_refusal(source, data & MESSAGE_ID_MASK, payload, decode)
            return
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
        del pending[data & MESSAGE_ID_MASK]
        if value.__class__ is Failure:
            waiting[0].set_exception(self._error_of(source, value))
        else:
            waiting[0].set_result(value)

    def _answer_apart(self, source: bytes, message_id: int, payload: bytes) -> None:
        """Decode an answer whose class runs user code, in a separate turn."""
        self._apart_of(source).decode(payload, partial(self._answered, source, message_id))

    def _answered(self, source: bytes, message_id: int, read: Read) -> None:
        """Complete an ask with its decoded answer, unless the ask has ended."""
        waiting = self._pending.get(message_id)
        if waiting is None or waiting[1] != source:
            self._runtime.counters.late_answers += 1
            return
        del self._pending[message_id]
        if read.error is not None:
            waiting[0].set_exception(self._error_of(source, failure_of(read.error)))
        else:
            waiting[0].set_result(read.value)

    def _decode_apart(self, wire: Wire, frame: RawFrame) -> None:
        """Decode a message whose class runs user code, in a separate turn.

        Later messages from the same node to the same actor wait for it, so that their order is
        kept. The actor continues with messages of other nodes.
        """
        source, number, payload = frame[3], frame[6], frame[7]
        waiting: list[tuple[Wire, RawFrame]] = []
        self._deferred[source, number] = waiting
        self._apart_of(source).decode(payload, partial(self._decoded, wire, frame, waiting))

    def _decoded(
        self, wire: Wire, frame: RawFrame, waiting: list[tuple[Wire, RawFrame]], read: Read
    ) -> None:
        """Deliver a decoded message, and the messages that waited for it."""
        del self._deferred[frame[3], frame[6]]
        if read.error is not None:
            self._refuse_payload(wire, frame, read.error)
        else:
            self._post(wire, [frame], lambda _: read.value)
        for later_wire, later in waiting:  # decoding one of these may run user code, too
            self._post(later_wire, [later])

    def _apart_of(self, source: bytes) -> ApartReader:
        """Return the decoder for messages from a node that run user code."""
        reader = self._apart.get(source)
        if reader is None:
            reader = self._apart[source] = ApartReader(
                self._out.codec.decode_whole, self._runtime
            )
        return reader

    def _handle_answers(self, source: bytes, carrier: object, count: int) -> None:
        """Complete the asks that a batch answers.

        Raises:
            MalformedPayload: the payload is not a batch, or has another number of answers.
        """
        if not isinstance(carrier, CarriedAnswers):
            msg = f"an answer must belong to an ask: this is a {type(carrier).__qualname__:.80}"
            raise MalformedPayload(msg)
        pending, decode, answers = self._pending, self._decode, carrier.each()
        if len(answers) != count:
            msg = f"a batch of {count:,} answers holds {len(answers):,}"
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
            if value.__class__ is Failure:
                waiting[0].set_exception(self._error_of(source, value))
            else:
                waiting[0].set_result(value)

    def _handle_refusal(
        self, source: bytes, message_id: int, payload: bytes, decode: Callable[[bytes], Any]
    ) -> None:
        """Fail the asks of a batch that the other node refuses.

        An answer that is not a refusal of a batch counts as a late answer.
        """
        ids = self._out.asks.pop_batch(message_id, source)
        if ids is None:
            self._runtime.counters.late_answers += 1
            return
        try:
            value = decode(payload)
        except (RemoteProtocolError, MemoryError) as error:
            value = failure_of(_unreadable(error))
        except (LargePayload, RunsUserCode):
            return  # not a refusal, which is small and runs no user code
        if isinstance(value, Failure):
            self._out.asks.fail_asks(ids, self._error_of(source, value))

    def _error_of(self, source: bytes, failure: Failure) -> BaseException:
        """Return the exception for an ask; record a node that refuses all further asks."""
        is_closing = failure.kind == NodeClosed.__name__
        if is_closing and str(failure.text).endswith(TAKES_NO_MORE):
            self._out.refusing.add(source)
        error = self._refusal_of(failure) or error_of(failure)
        unknown = _OWN_TYPE.match(str(error)) if isinstance(error, UnknownMessageType) else None
        if (
            unknown is not None
        ):  # the peer's text advises an import, which cannot help for our own types
            return UnknownMessageType(self._unknown_type(source, unknown[1]))
        return error

    def _refusal_of(self, failure: Failure) -> Refusal | None:
        """Return the refusal in an error; None if it has none that this node can read."""
        content = failure.refusal
        if type(content) is bytes and content:
            try:
                value = self._decode(content)
            except RunsUserCode:
                return self._refusal_with_code(content)
            except (RemoteProtocolError, MemoryError, LargePayload):
                return None
            return value if isinstance(value, Refusal) else None
        return None

    def _refusal_with_code(self, content: bytes) -> Refusal | None:
        """Decode a refusal whose class runs user code."""
        try:
            value = self._out.codec.decode_whole(content)
        except (RemoteProtocolError, MemoryError):
            return None
        return value if isinstance(value, Refusal) else None

    def _unknown_type(self, source: bytes, name: str) -> str:
        """Return the error text for a type of callboard that another node does not know."""
        node = self._routes.names.get(source) or source.hex()[:12]
        wire = self._routes.wires.get(source)
        peer = None if wire is None else wire.link.peer
        release = "another release" if peer is None else f"release {peer.release}"
        if peer is not None and peer.build:
            release += f" ({peer.build})"
        return (
            f"node {node} is of {release} and does not know {name}; upgrade that node, or use"
            " the tools of its release"
        )

    def _refuse(self, number: int, message: Message, sender: RemoteReply) -> None:
        """Execute a command for the node, or refuse a message without a target."""
        if number == NODE_ACTOR:
            message = message.message if message.__class__ is Envelope else message
            if isinstance(message, Failure):
                self._lifetimes.refuse_monitors(sender.node, message)
            elif isinstance(message, CancelAsk):
                self._handle_cancel(message, sender.node)
            elif isinstance(message, UnverifiedFrame):
                self._handle_unverified(message)
            else:
                self._handle_command(message, sender.node)
            sender.set_result(None)
            return
        if self.refuses_asks and number >= FIRST_ACTOR and sender.wants_reply:
            name = self._runtime.name
            sender.set_exception(NodeClosed(f"{name} {TAKES_NO_MORE}"))
            return
        key = message.key if isinstance(message, Envelope) else None
        if key is not None and self._runtime.kept.repeats(number, key, sender):
            return  # the actor has ended, but its answer is in the reply cache
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
        """Fail the ask of an unreadable message.

        If a neighbor itself sent malformed bytes, its link ends.
        """
        data, source, source_actor = frame[2], frame[3], frame[5]
        arrivals = self._accounts.arrivals_of(source, data >> EPOCH_SHIFT & _EPOCH_BITS)
        count, number = count_of(data, source_actor, frame[6]), frame[6]
        if number == CARRIED:
            source_actor, number = 0, ENTITIES
        arrivals.dead_letters += count
        self._runtime.counters.dead_letters += count
        is_for_part = number < FIRST_ACTOR and number not in self._runtime.contexts
        # Questions to a part that this node does not have, such as entities, are not logged.
        self._unreadable += not is_for_part
        if self._unreadable == 1 and not is_for_part:
            _log.warning("a message from node %s cannot be read: %s", source.hex(), error)
            self._runtime.call_later(1.0, self._log_unreadable)
        message_id = data & MESSAGE_ID_MASK
        if message_id:
            payload = self._out.error_payload(error)
            self._out.respond_encoded(source, source_actor, message_id, payload)
        if type(error) is MalformedPayload and source == wire.peer:
            wire.end(str(error))

    def _handle_command(self, message: Any, node: bytes) -> None:
        """Execute a command of another node to this node itself; ignore a malformed one."""
        is_command = isinstance(message, StopActor | LinkActors | AskCredit)
        number = message.number if is_command else None
        if type(number) is not int or number < FIRST_ACTOR:
            self._runtime.counters.unexpected += 1
        elif isinstance(message, AskCredit):
            if message.is_sound:
                self._credit_issuer.handle_question(node, message)
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

    def _handle_cancel(self, message: CancelAsk, node: bytes) -> None:
        """Stop the work for an ask that the asking node has cancelled."""
        if type(message.number) is int and type(message.message_id) is int:
            cell = self._runtime.contexts.get(message.number)
            if cell is not None and message.number >= FIRST_ACTOR:
                cell.give_up((node, message.message_id))

    def _handle_unverified(self, message: UnverifiedFrame) -> None:
        """Hold the copy of a dispatch for this node that an intermediate node held."""
        octets = message.frame if type(message.frame) is bytes else b""
        frames = FrameReader().feed(octets)
        if len(frames) != 1 or frames[0][0] != _DISPATCH or frames[0][4] != self._node_id:
            self._runtime.counters.unexpected += 1
        else:
            self._unverified.hold(None, frames[0])

    # --- control frames for this node ---

    def handle_control(self, wire: Wire, frame: Frame) -> Iterator[object] | None:
        """Handle a control frame for this node; a malformed one ends the neighbor's link.

        Returns an iterator over the remaining steps of the work, or None if it is finished.
        """
        try:
            return self._controls[frame.operation](wire, frame)
        except BaspError as error:
            self._refuse_control(wire, frame.source, error)
            return None

    def _step(self, wire: Wire, work: Iterator[object]) -> bool:
        """Do the next step of handling a control frame; return False if there is none left."""
        try:
            next(work)
        except StopIteration:
            return False
        except BaspError as error:
            self._refuse_control(wire, wire.peer or b"", error)
            return False
        return True

    def _refuse_control(self, wire: Wire, source: bytes, error: BaspError) -> None:
        """Log garbage, and end the link if a neighbor sent it."""
        _log.warning("a control frame from node %s cannot be read: %s", source.hex(), error)
        if source == wire.peer:
            wire.end(str(error))

    def _log_unreadable(self) -> None:
        """Log how many messages were unreadable since the last log line."""
        more, self._unreadable = self._unreadable - 1, 0
        if more:
            _log.warning("%d more messages of other nodes cannot be read", more)

    def _handle_report(self, _: Wire, frame: Frame) -> None:
        """Apply another node's report of the messages that it has received."""
        source = NodeId(frame.source)
        lines, credit = read_report(source, frame.payload)
        if credit:
            self._credit_window.apply_credit(source, credit)
        lost = self._paths.apply_report(source, lines) if lines else 0
        if lost:
            name = self._routes.names.get(source, "")
            self._runtime.report(MessagesLost(source, name, lost))

    def _handle_path_end(self, wire: Wire, frame: Frame) -> None:
        """Apply the report of another node of how many messages it sent on an old path."""
        order = self._orders.setdefault(frame.source, PathOrder())
        released = order.end(frame.data, self._runtime.now())
        self._released(wire, order, frame.source, released)
        self._unverified.believe(frame.source)
        # The path from the source has changed. Even if our path to it has not, our last report
        # may be lost.
        self._accounts.repeat_report(frame.source)
