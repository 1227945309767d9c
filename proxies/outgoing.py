"""Out: from proxies and answers to wires. May be called from any thread.

A message is serialized once, on the caller's thread, gets its header and goes to the wire of
the next hop. Position, count and write of one dispatch happen under the broker's lock, so the
order on the wire is the order of the positions.
"""

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from actors.answers import Sender
from actors.current import current_cell
from actors.envelope import COMPANY, Envelope, TraceContext, is_traceparent, is_tracestate
from actors.future import Future
from actors.reference import ActorRef
from basp.errors import LocalProtocolError
from basp.header import (
    HEADER,
    HIGH_PRIORITY,
    MESSAGE_ID_MASK,
    POSITION_MASK,
    POSITION_SHIFT,
    RESPONSE,
    Operation,
)
from basp.options import DEADLINE_MS, DispatchOptions, read_options
from basp.payload import PayloadCodec
from basp.registry import DEFAULT_REGISTRY, MessageRegistry
from proxies.errors import MessageTooLarge, NotSerializable
from proxies.messages import failure_of
from proxies.wire import WAITING_LIMIT, Wire

if TYPE_CHECKING:
    from proxies.broker import Broker
    from proxies.proxy import Proxy

_DISPATCH: Final = int(Operation.DISPATCH_MESSAGE)

LONGEST_DEADLINE_MS: Final = 1000 * 3600 * 24 * 365
"""A year: what claims to have more time left has as much as it wants."""

HELD_LIMIT: Final = 100_000
"""Responses and messages of others that may wait for a path to one node."""


class Outgoing:
    """What leaves a node."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._runtime = broker.runtime
        self._node_id = broker.node_id
        self._lock = broker.lock
        self._router = broker.router
        self._wires = broker.wires
        self._accounts = broker.accounts
        self._connector = broker.connector
        self._message_ids = itertools.count(1)
        self.codec: PayloadCodec
        self.use_registry(DEFAULT_REGISTRY)
        #: Asks that wait for an answer, and the node that owes it.
        self.pending: dict[int, tuple[Future[Any], bytes]] = {}
        #: How to send what waits for a path to a node that the router is active for.
        self.held: dict[bytes, list[Callable[[], None]]] = {}
        self.undeliverable = 0

    def use_registry(self, registry: MessageRegistry) -> None:
        """Let the types of a registry travel from here on."""
        self.codec = PayloadCodec(
            registry,
            ref_types=(ActorRef,),
            ref_to_pair=_pair_of,
            pair_to_ref=self._runtime.ref_to,
            with_options=self._open_options,
        )

    def dispatch(
        self,
        proxy: "Proxy",
        message: Any,
        sender: Sender | None,
        payload: bytes | None = None,
        *,
        at_once: bool = False,
    ) -> None:
        """Send a message to a proxy's actor: serialized here, counted, written.

        Args:
            proxy: of the actor.
            message: what to send.
            sender: who sends it.
            payload: the message serialized, if it waited for a dial; it goes in front of those
                that still wait.
            at_once: write it before this returns; asks of threads outside always are.

        Raises:
            NotSerializable: it holds something that cannot travel.
            MessageTooLarge: it is larger than the receiver accepts.
            LinkFull: the next hop does not read.
        """
        has_waited = payload is not None
        if payload is None:
            payload = self.encode(message)
        node, accounts = proxy.node, self._accounts.accounts
        has_room = has_waited
        while True:
            with self._lock:
                hop = self._router.next_hops.get(node)
                if hop is None or (proxy.waiting is not None and not has_waited):
                    break
                wire = self._wires[hop]
                if has_room or wire.waiting <= WAITING_LIMIT:
                    message_id = asker = 0
                    if sender is None:
                        pass
                    elif sender.expects:
                        message_id = self._expect(sender, node)
                        cell = current_cell.get()
                        if cell is not None and cell.runtime is self._runtime:
                            asker = cell.number
                    elif sender.runtime is self._runtime:
                        asker = sender.number
                    account = accounts.get(node) or self._accounts.account(node)
                    position = account.offset + account.sent & POSITION_MASK
                    account.sent += 1
                    data = position << POSITION_SHIFT | message_id
                    if message.__class__ is Envelope and message.is_urgent:
                        data |= HIGH_PRIORITY
                    header = HEADER.pack(
                        _DISPATCH,
                        len(payload),
                        data,
                        self._node_id,
                        node,
                        asker,
                        proxy.number,
                    )
                    wire.write(header + payload, at_once=at_once or message_id != 0)
                    return
            wire.make_room()  # without the lock: others have other ways
            has_room = True
        self._broker.unrouted.wait_or_refuse(proxy, message, sender, payload)

    def encode(self, message: Any) -> bytes:
        """Serialize a message.

        Raises:
            NotSerializable: it holds something that cannot travel.
            MessageTooLarge: it is larger than the receiver accepts.
        """
        try:
            if message.__class__ is Envelope:
                message, options = message.message, self._options_of(message)
                payload = self.codec.encode(message, options)
            else:
                payload = self.codec.encode(message)
        except LocalProtocolError as error:
            raise NotSerializable(str(error)) from None
        limit = self._connector.payload_limit
        if len(payload) > limit:
            msg = (
                f"a {type(message).__qualname__} of {len(payload):,} B exceeds the limit of "
                f"{limit:,} B for one message; send it in parts, or raise Limits(payload=…) on "
                "all nodes"
            )
            raise MessageTooLarge(msg)
        return payload

    def _options_of(self, envelope: Envelope) -> dict[int, object]:
        left = None
        if envelope.deadline is not None:
            left = max(0, round(1000 * (envelope.deadline - self._runtime.runner.now())))
            if envelope.trace is None:
                return {DEADLINE_MS: left}
        return DispatchOptions(left, *(envelope.trace or ())).to_map()

    def _open_options(self, message: object, options: Mapping[int, object]) -> object:
        """Make an envelope of what came with a message; a strange trace is left out."""
        if (
            len(options) == 1 and DEADLINE_MS in options
        ):  # as nearly always: nothing else to read
            left = options[DEADLINE_MS]
            if type(left) is int and 0 <= left <= LONGEST_DEADLINE_MS:
                COMPANY.used = True
                return Envelope(message, None, self._runtime.runner.now() + left / 1000)
        found = read_options(options)
        left, parent, state = found.deadline_ms, found.trace_parent, found.trace_state
        deadline = None
        if left is not None and left <= LONGEST_DEADLINE_MS:
            deadline = self._runtime.runner.now() + left / 1000
            COMPANY.used = True
        if not is_traceparent(parent):
            return message if deadline is None else Envelope(message, deadline=deadline)
        trace = TraceContext(parent, state if is_tracestate(state) else "")
        return Envelope(message, trace, deadline)

    def _expect(self, asker: Any, node: bytes) -> int:
        message_id = 0
        while not message_id or message_id in self.pending:
            message_id = next(self._message_ids) & MESSAGE_ID_MASK
        asker.message_id = message_id
        self.pending[message_id] = (asker, node)
        runner = self._runtime.runner
        if runner.sleeping and asker.deadline is not None:
            runner.awake_by(asker.deadline)
        return message_id

    # --- answers ---

    def respond(self, node: bytes, number: int, message_id: int, value: Any) -> None:
        """Answer an ask from another node; an answer that cannot travel fails it."""
        try:
            payload = self.encode(value)
        except (NotSerializable, MessageTooLarge) as error:
            payload = self.codec.encode(failure_of(error))
        self._send_response(node, number, message_id, payload)

    def respond_error(
        self, node: bytes, number: int, message_id: int, error: BaseException
    ) -> None:
        """Let an ask from another node fail."""
        self._send_response(node, number, message_id, self.codec.encode(failure_of(error)))

    def _send_response(self, node: bytes, number: int, message_id: int, payload: bytes) -> None:
        with self._lock:
            hop = self._router.next_hops.get(node)
            wire = None if hop is None else self._wires.get(hop)
            if wire is None:
                again = partial(self._send_response, node, number, message_id, payload)
                if not self.hold(node, again):
                    self.undeliverable += 1
                return
            account = self._accounts.accounts.get(node) or self._accounts.account(node)
            position = account.offset + account.sent & POSITION_MASK
            account.sent += 1
            data = RESPONSE | position << POSITION_SHIFT | message_id
            head = HEADER.pack(_DISPATCH, len(payload), data, self._node_id, node, 0, number)
            wire.write(head + payload, at_once=True)

    # --- frames ---

    def hold(self, node: bytes, send: Callable[[], None]) -> bool:
        """Keep what has no path until one is found or the node is lost; needs the lock."""
        held = self.held.setdefault(node, []) if node in self._router.active else None
        if held is None or len(held) >= HELD_LIMIT:
            return False
        held.append(send)
        return True

    def wire_to(self, node: bytes) -> Wire | None:
        """Return the wire of the next hop to a node; None without a path."""
        hop = self._router.next_hops.get(node)
        return None if hop is None else self._wires.get(hop)

    def send_to(self, node: bytes, frame: bytes) -> None:
        """Send a control frame; without a path it is dropped."""
        wire = self.wire_to(node)
        if wire is not None:
            wire.write(frame)


def _pair_of(ref: ActorRef[Any]) -> tuple[bytes, int]:
    return ref.node_id, ref.actor_id
