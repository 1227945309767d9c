"""Sends messages and answers to the wires of other nodes. Callable from any thread.

A message is serialized once, on the caller's thread, gets its header, and goes to the wire of
the next hop. A thread assigns the position of a message, counts it and writes it while it holds
the lock of the routes, so messages are on the wire in the order of their positions.
"""

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, Final

from callboard import locks
from callboard.actors.envelope import (
    INSTRUMENTATION,
    Envelope,
    TraceContext,
    is_traceparent,
    is_tracestate,
)
from callboard.actors.errors import CallboardError
from callboard.actors.future import Future
from callboard.actors.mailbox import SendTurn
from callboard.actors.reference import ActorRef, AnySender, Sender, current_cell
from callboard.actors.refusal import Refusal
from callboard.actors.runtime import Runtime
from callboard.actors.values import Message
from callboard.basp.errors import LocalProtocolError, RemoteProtocolError
from callboard.basp.header import (
    DIRECTORY,
    FIRST_ACTOR,
    HEADER,
    HIGH_PRIORITY,
    NODE_ACTOR,
    POSITION_MASK,
    POSITION_SHIFT,
    RESPONSE,
    Operation,
)
from callboard.basp.options import DEADLINE_MS, DispatchOptions, read_options
from callboard.basp.payload import PayloadCodec
from callboard.basp.registry import MessageRegistry
from callboard.proxies.errors import LinkFull, MessageTooLarge, NotSerializable
from callboard.proxies.lifetime.proxy import Proxy
from callboard.proxies.link.stream import WAITING_LIMIT
from callboard.proxies.messages import (
    CancelAsk,
    Describe,
    failure_of,
)
from callboard.proxies.route_table import RouteTable
from callboard.proxies.traffic.batches import TurnBatches
from callboard.proxies.traffic.pending_asks import PendingAsks
from callboard.proxies.traffic.unrouted import Unrouted
from callboard.support import reentry
from callboard.support.calls import Action
from callboard.support.dataclass import dataclass
from callboard.support.reentry import HandOver

_DISPATCH: Final = int(Operation.DISPATCH_MESSAGE)

#: Seconds to wait for the abilities of a node, and callbacks that may wait for them.
DESCRIBED_WITHIN: Final = 5.0
LEARNERS: Final = 1_000

#: Seconds between two checks of a full link for a waiting coroutine.
LINK_PAUSE: Final = 0.02

#: A year: a deadline further away is treated as none.
LONGEST_DEADLINE_MS: Final = 1000 * 3600 * 24 * 365


@dataclass(eq=False, repr=False)
class Outgoing:
    """The sending side of a node."""

    _runtime: Runtime
    _routes: RouteTable
    _unrouted: Unrouted
    #: The types that may travel.
    _registry: MessageRegistry
    #: Bytes and items of the largest message.
    _payload_limit: int
    _item_limit: int

    def __post_init__(self) -> None:
        routes = self._routes
        self._node_id = routes.node_id
        self.lock = self._lock = routes.lock
        self._is_inside = locks.owner_test(routes.lock)
        self._hand_over = HandOver(routes.lock, self._runtime.post, self._runtime.counters)
        #: Sends that were deferred because the lock was held; they are carried out before
        #: others.
        self._deferred = self._hand_over.calls
        self._next_hops = routes.router.next_hops
        self._wires = routes.wires
        self._account = routes.accounts.account
        self._accounts = routes.accounts.accounts
        self.runner = self._runner = self._runtime.runner
        self.counters = self._runtime.counters
        self.codec = PayloadCodec(
            self._registry,
            ref_types=(ActorRef,),
            ref_to_pair=attrgetter("node_id", "actor_id"),
            pair_to_ref=self._runtime.ref_of,
            with_options=self._open_options,
            max_items=self._item_limit,
        )
        #: Decoder for messages that run no user code.
        self.careful = self.codec.without_user_code()
        self.checked_from = min(self._payload_limit, self._item_limit)
        self.asks = PendingAsks(self._runtime.awake_by)
        #: Registers an ask; its first argument is a future, or another object with a message
        #: id.
        self._add_ask: Callable[[Any, bytes], int] = self.asks.add
        self.batches = TurnBatches(
            self._runtime,
            routes,
            self.codec,
            self.checked_from,
            self.asks,
            self.respond_encoded,
            self._respond,
        )
        #: Batches that are open in this turn, by node; they are sent before other messages.
        self._open_batches = self.batches.open
        #: Callbacks that wait for the abilities of nodes.
        self._learning: dict[bytes, list[Callable[[], None]]] = {}
        #: Called on the runner with a node and the number of an actor that an answer refers to.
        self.on_answered: Callable[[bytes, int], object] = lambda *_: None
        #: Reachable nodes that refuse asks.
        self.refusing: set[bytes] = set()

    # One function, as each message passes here.
    def dispatch(  # noqa: C901
        self,
        proxy: Proxy,
        message: Message,
        sender: Sender | None,
        payload: bytes | None = None,
        *,
        at_once: bool = False,
        has_waited: bool = False,
        is_handed: bool = False,
    ) -> None:
        """Send a message to a proxy's actor: serialize, count, write.

        Args:
            proxy: the proxy of the actor.
            message: the message.
            sender: its sender.
            payload: the serialized message, if it is serialized already.
            at_once: write before this method returns, as is always done for asks of threads
                outside of actors.
            has_waited: the message has waited, and is sent before those that still wait.
            is_handed: a nested call deferred the message, and it is sent next.

        Raises:
            NotSerializable: the message contains something that cannot be serialized.
            MessageTooLarge: the message is larger than the receiver accepts.
            LinkFull: the next hop does not read.
        """
        if payload is None:
            payload = self.encode(message)
        node, lock, has_room = proxy.node, self._lock, has_waited
        while True:
            if is_handed and not self._is_inside():
                lock.acquire()
            elif (
                (self._deferred or is_handed or self._is_inside())
                or not (lock.acquire(False) or reentry.wait(lock))  # noqa: FBT003
            ):
                self._send_later(proxy, message, sender, payload, at_once, has_waited)
                return
            try:  # takes half the time of `with`
                hop = self._next_hops.get(node)
                if hop is None or (proxy.waiting is not None and not has_waited):
                    break
                wire = self._wires[hop]
                if has_room or wire.waiting <= WAITING_LIMIT:
                    if self._open_batches:
                        self.batches.send(node)
                    message_id = asker = 0
                    if sender is None:
                        pass
                    elif sender.expects:
                        message_id = self._add_ask(sender, node)
                        cell = current_cell.get()
                        if cell is not None and cell.runtime is self._runtime:
                            asker = cell.number
                    elif sender.runtime is self._runtime:
                        asker = sender.number
                    account = self._accounts.get(node) or self._account(node)
                    position = account.offset + account.sent & POSITION_MASK
                    account.sent += 1
                    data = position << POSITION_SHIFT | message_id
                    is_urgent = message.__class__ is Envelope and message.is_urgent
                    data |= HIGH_PRIORITY * is_urgent
                    me, size, number = self._node_id, len(payload), proxy.number
                    header = HEADER.pack(_DISPATCH, size, data, me, node, asker, number)
                    wire.write(header + payload, at_once=at_once or message_id != 0)
                    return
            finally:
                lock.release()
            wire.make_room()  # without the lock, so that other threads can use other wires
            has_room = True
        self._unrouted.wait_or_refuse(proxy, message, sender, payload)

    def _send_later(
        self,
        proxy: Proxy,
        message: Message,
        sender: Sender | None,
        payload: bytes,
        at_once: bool,  # noqa: FBT001
        has_waited: bool,  # noqa: FBT001
    ) -> None:
        """Defer a message that a nested call sends, or that follows deferred messages."""
        send = partial(
            self.dispatch,
            *(proxy, message, sender, payload),
            at_once=at_once,
            has_waited=has_waited,
            is_handed=True,
        )
        self.defer(send, proxy, message, sender)

    @property
    def is_deferring(self) -> bool:
        """Whether a message that is sent now must be deferred."""
        return bool(self._deferred) or self._is_inside()

    def defer(
        self, send: Action, proxy: Proxy, message: Message, sender: Sender | None
    ) -> None:
        """Call `send` when the routes are free, after earlier deferred sends."""
        self._hand_over.add(send, partial(self._refuse_late, proxy, message, sender))

    @staticmethod
    def _refuse_late(
        proxy: Proxy, message: Message, sender: Sender | None, error: BaseException
    ) -> None:
        """Fail a deferred ask that cannot be sent, or count a deferred message as refused."""
        # Such as SystemExit, which only the original caller may get.
        if not isinstance(error, Exception):
            error = LinkFull(str(error))
        proxy.refuse(message, sender, error)

    def carry_out(self) -> None:
        """Send the deferred messages."""
        self._hand_over.carry_out()

    def enqueue_after_pending(self, proxy: Proxy, command: object) -> bool:
        """Queue a command after the waiting messages of a proxy; False if there are none."""
        return self._unrouted.enqueue_after_pending(proxy, command)

    def offer(
        self,
        proxy: Proxy,
        message: Message,
        sender: Sender | None,
        payload: bytes,
        turn: SendTurn,
    ) -> bool:
        """Send a message; return False if the link, or the queue for a path, is full."""
        if not self.has_room(proxy, payload, turn):
            return False
        self.dispatch(proxy, message, sender, payload)
        return True

    def has_room(self, proxy: Proxy, payload: bytes, turn: SendTurn) -> bool:
        """Return whether a message can be sent to a node now; if not, register its sender."""
        with self._lock:
            hop, queue = self._next_hops.get(proxy.node), proxy.waiting
            is_full = hop is not None and self._wires[hop].waiting > WAITING_LIMIT
            if hop is None and queue is not None:
                if queue.pressure.fits(len(queue), len(payload)):
                    return True
                turn.enter(queue.pressure)
                return False
        if is_full:
            turn.pause(self._runtime, LINK_PAUSE)
        return not is_full

    def encode(self, message: Any) -> bytes:
        """Serialize a message.

        Raises:
            NotSerializable: the message contains something that cannot be serialized.
            MessageTooLarge: the message is larger than the receiver accepts.
        """
        try:
            if message.__class__ is Envelope:
                message, options = message.message, self._options_of(message)
                payload = self.codec.encode(message, options)
            else:
                payload = self.codec.encode(message)
        except LocalProtocolError as error:
            raise NotSerializable(str(error)) from None
        if len(payload) > self.checked_from:
            self.check_size(message, payload)
        return payload

    def check_size(self, message: Message, payload: bytes) -> None:
        """Raise an error for a message that is larger than its receiver accepts."""
        limit, kind = self._payload_limit, type(message).__qualname__
        if len(payload) > limit:
            msg = (
                f"a {kind} of {len(payload):,} B exceeds the limit of {limit:,} B for one "
                "message; send it in parts, or raise Limits(payload=…) on all nodes"
            )
            raise MessageTooLarge(msg)
        try:
            self.codec.check_weight(payload)
        except RemoteProtocolError as error:
            msg = f"a {kind}: {error}; send it in parts, or raise Limits(items=…) on all nodes"
            raise MessageTooLarge(msg) from None

    def _options_of(self, envelope: Envelope) -> dict[int, object]:
        """Return the options that travel with a message in an envelope."""
        left, key = None, envelope.key
        if envelope.deadline is not None:
            left = max(0, round(1000 * (envelope.deadline - self._runtime.now())))
            if envelope.trace is None and key is None and not envelope.chain:
                return {DEADLINE_MS: left}
        parent, state = envelope.trace or ("", "")
        return DispatchOptions(left, parent, state, key, chain=envelope.chain).to_map()

    def _open_options(self, message: Message, options: Mapping[int, object]) -> object:
        """Return a message in an envelope with its options; ignore an invalid trace context."""
        if len(options) == 1 and DEADLINE_MS in options:  # usually there are no other options
            left = options[DEADLINE_MS]
            if type(left) is int and 0 <= left <= LONGEST_DEADLINE_MS:
                INSTRUMENTATION.used = True
                return Envelope(message, None, self._runtime.now() + left / 1000)
        opts = read_options(options)
        left, parent, state = opts.deadline_ms, opts.trace_parent, opts.trace_state
        deadline = trace = None
        key = opts.idempotency_key if isinstance(opts.idempotency_key, bytes) else None
        if left is not None and left <= LONGEST_DEADLINE_MS:
            deadline = self._runtime.now() + left / 1000
            INSTRUMENTATION.used = True
        if is_traceparent(parent):
            trace = TraceContext(parent, state if is_tracestate(state) else "")
        if trace is None and deadline is None and key is None and not opts.chain:
            return message
        INSTRUMENTATION.used = True
        return Envelope(message, trace, deadline, key=key, chain=opts.chain)

    # --- answers ---

    def announce(self, node: bytes, ref: ActorRef) -> None:
        """Report an answer that is the ref of an actor of this node."""
        self._runtime.post(self.on_answered, node, ref.actor_id)

    def error_payload(self, error: BaseException) -> bytes:
        """Serialize the error of an ask."""
        content = b""
        if issubclass(type(error), Refusal):
            # If the refusal cannot be serialized, only its text is sent.
            with contextlib.suppress(NotSerializable, MessageTooLarge):
                content = self.encode(error)
        return self.codec.encode(failure_of(error, content))

    def respond_encoded(
        self, node: bytes, number: int, message_id: int, payload: bytes
    ) -> None:
        """Write a serialized answer, or hold it while a new path is sought."""
        # A copy of `reentry.take`: a call would be slower, and this runs for each answer.
        lock = self._lock
        if self._is_inside() or not (lock.acquire(False) or reentry.wait(lock)):  # noqa: FBT003
            again = partial(self.respond_encoded, node, number, message_id, payload)
            self._hand_over.add(again, self._lose_answer)
            return
        try:
            if self._open_batches:
                self.batches.send(node)
            self._respond(node, number, message_id, payload)
        finally:
            lock.release()

    def _lose_answer(self, _: BaseException) -> None:
        """Count a deferred answer that cannot be sent."""
        self._routes.undeliverable += 1

    def _respond(self, node: bytes, number: int, message_id: int, payload: bytes) -> None:
        """Write an answer, or hold it while its path is replaced.

        The caller must hold the lock.
        """
        hop = self._next_hops.get(node)
        wire = None if hop is None else self._wires.get(hop)
        if wire is None:
            again = partial(self.respond_encoded, node, number, message_id, payload)
            if not self._unrouted.hold(node, again):
                self._routes.undeliverable += 1
            return
        account = self._accounts.get(node) or self._account(node)
        position = account.offset + account.sent & POSITION_MASK
        account.sent += 1
        data = RESPONSE | position << POSITION_SHIFT | message_id
        head = HEADER.pack(_DISPATCH, len(payload), data, self._node_id, node, 0, number)
        wire.write(head + payload, at_once=True)

    # --- abandoned asks ---

    def can(self, node: bytes, ability: str) -> bool:
        """Return whether a node has stated an ability; if it has stated none, ask it."""
        self._when_known(node, lambda: None)
        return ability in self._routes.abilities.get(node, ())

    def _when_known(self, node: bytes, callback: Callable[[], None]) -> None:
        """Call back when the abilities of a node in reach are known."""
        learning = self._learning.get(node)
        if node in self._routes.abilities:
            callback()
        elif learning is None and node in self._next_hops:
            self._learning[node] = [callback]
            question = Describe(abilities=True)
            future = self._runtime.ref_of(node, DIRECTORY).ask(question, DESCRIBED_WITHIN)
            future.on_done(lambda answer: self._record_abilities(node, answer))
        elif learning is not None and len(learning) < LEARNERS:
            learning.append(callback)

    def _record_abilities(self, node: bytes, answer: Future) -> None:
        """Record the abilities that a node states. A node of an earlier release states none."""
        error = answer.exception()
        if error is None:
            self._routes.is_able(node, answer.result())
        for callback in self._learning.pop(node, ()):
            if error is None:
                callback()

    def give_up(self, proxy: Proxy, asker: AnySender) -> None:
        """Cancel an ask at the proxy's node, if it is in reach and the ask has been sent."""
        message_id = asker.sent_id
        if message_id and proxy.number >= FIRST_ACTOR:
            cancel = CancelAsk(proxy.number, message_id)
            self._when_known(proxy.node, lambda: self._cancel(proxy.node, cancel))

    def _cancel(self, node: bytes, cancel: CancelAsk) -> None:
        """Send a cancellation to a node that understands it and is in reach."""
        if node in self._next_hops and "cancel" in self._routes.abilities.get(node, ()):
            # A cancellation that is lost only wastes work.
            with contextlib.suppress(CallboardError):
                self._runtime.ref_of(node, NODE_ACTOR).target.post(cancel, None)

    def ensure_watched(self, proxy: Proxy) -> None:
        """Ensure that a monitor of a proxy's actor is notified of its end."""
        self._unrouted.ensure_watched(proxy)
