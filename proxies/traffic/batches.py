"""Batches: the messages, or answers, that one turn sends to the same node in one frame.

A separate frame for each message costs a header, an entry in the accounts, a call of the link
and a decoding step at the receiver. Instead, the messages that one turn of the runner sends to
a node are gathered in a batch, which is sent when the turn ends, before the links write. No
timer is involved, so a single message leaves as early as it would without batching.

The order of messages is kept: before anything else is sent to the node, from any thread, the
open batch is sent. A batch that has become large is sent before the end of the turn, so that
the receiver can start early. In the accounts each message counts separately.

A batch is one frame whose message has columns: heads of fixed size, then the payloads that the
messages would have alone. A batch of asks to entities also has a column of keys, between heads
and payloads. A message may have no option except the remaining time of its ask. A message with
a trace, a chain of asks or an idempotency key is sent alone, after the open batch. The same
applies to a large message, and to a message from another entity. Nodes of earlier releases do
not understand batches, and get each message alone.

The lock of the routes guards all batches.
"""

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from struct import Struct
from threading import get_ident
from typing import Any, Final, Protocol

from callboard import locks
from callboard.actors.envelope import Envelope
from callboard.actors.reference import ActorRef
from callboard.actors.runtime import Runtime
from callboard.actors.values import Message
from callboard.basp.errors import LocalProtocolError, MalformedPayload
from callboard.basp.header import (
    CARRIED,
    HEADER,
    POSITION_MASK,
    POSITION_SHIFT,
    RESPONSE,
    Operation,
)
from callboard.basp.payload import PayloadCodec
from callboard.proxies.lifetime.proxy import Proxy
from callboard.proxies.link.stream import WAITING_LIMIT
from callboard.proxies.messages import (
    ANSWER_HEAD,
    CARRIED_LIMIT,
    CARRIER_LIMIT,
    CARRIERS,
    CarriedAnswers,
    check_columns,
)
from callboard.proxies.route_table import RouteTable
from callboard.proxies.traffic.pending_asks import PendingAsks, SentAsk
from callboard.support import reentry
from callboard.support.dataclass import dataclass

#: Bytes after which the first batch of a turn is sent; the threshold doubles with each batch.
FIRST_BATCH: Final = 1_024

#: Batching is off below this message limit, because a batch is itself a message.
SMALLEST_LIMIT: Final = 4_096

#: Messages of a class that are sent alone after a large one, because encoding a message that
#: turns out to be too large encodes it twice.
ALONE: Final = 16

#: Message id of the ask; flags (1: it is an ask, 2: it is urgent); attempt; number of the
#: sending actor, or 0; milliseconds until the deadline; bytes of the key; bytes of the message.
CARRIED_HEAD: Final = Struct(">IBIIIHH")
CARRIED_ASKED: Final = 1
CARRIED_URGENT: Final = 2
#: Value of the milliseconds for "no deadline".
NO_DEADLINE: Final = 0xFFFF_FFFF

#: In place of the number of an asking actor: its ask arrived in a batch.
IN_BATCH: Final = -1

#: A batched message: the fields of its head without the two lengths, its key, and its payload.
Carried = tuple[int, int, int, int, int, str, bytes]

_DISPATCH: Final = int(Operation.DISPATCH_MESSAGE)
_message_id: Final = itemgetter(0)
_pack: Final = CARRIED_HEAD.pack
_heads_in: Final = CARRIED_HEAD.iter_unpack
_HEAD_SIZE: Final = CARRIED_HEAD.size
_ANSWER_HEAD_SIZE: Final = ANSWER_HEAD.size


class TurnBatch:
    """Messages of one turn to one node."""

    __slots__ = ("_batches", "early_at", "items", "node", "size")

    def __init__(self, batches: "TurnBatches", node: bytes) -> None:
        """Create an empty batch for a node."""
        self._batches, self.node = batches, node
        self.items: list[Any] = []
        #: Bytes gathered, and the number of bytes at which it is sent before the turn ends.
        self.size, self.early_at = 0, batches.first_size

    def send(self) -> None:
        """Send the gathered messages, and empty the batch. The caller must hold the lock."""
        items, self.items, self.size = self.items, [], 0
        room = self._batches.room(self.node)
        # Usually one pass; more when an epoch ends, which limits the room.
        for start in range(0, len(items), room):
            self._send_part(items[start : start + room])

    def _send_part(self, items: list[Any]) -> None:
        """Send messages that fit into one frame."""
        raise NotImplementedError


class AnswerBatch(TurnBatch):
    """Answers to one node, each with the id of its ask."""

    __slots__ = ()

    def _send_part(self, items: list[Any]) -> None:
        """Send some of the answers in one frame."""
        batches, node = self._batches, self.node
        wire = batches.routes.wire_to(node)
        if wire is None or len(items) == 1:
            for message_id, payload in items:
                batches.answer_alone(node, message_id, payload)
            return
        heads = b"".join([ANSWER_HEAD.pack(number, len(body)) for number, body in items])
        message = CarriedAnswers(heads, b"".join([body for _, body in items]))
        payload = batches.encode(message)
        wire.write(batches.frame_of(node, payload, len(items), RESPONSE, 0), at_once=True)


class KeyedMessage(SentAsk, Protocol):
    """A message to an entity. If the message is an ask, the object also receives the answer."""

    message: Message
    key: str
    is_urgent: bool
    #: The number of the attempt in which it is sent.
    attempt: int


class AskBatch(TurnBatch):
    """Messages from this node to keyed actors of one kind on another node."""

    __slots__ = ("_large", "_make", "_proxy", "ref")

    def __init__(
        self, make: Callable[[bytes, bytes, bytes], object], node: bytes, ref: ActorRef
    ) -> None:
        """Create an empty batch.

        Args:
            make: creates the message from the columns: heads, keys and bodies.
            node: the receiving node.
            ref: the actor there that accepts such batches.
        """
        self.ref, target = ref, ref.target  # holding the ref keeps its proxy alive
        #: The proxy of that actor; None if its messages cannot be batched.
        self._proxy: Proxy | None = None
        if isinstance(target, Proxy) and isinstance(target.outbound.batches, TurnBatches):
            self._proxy = target
            super().__init__(target.outbound.batches, node)
        self.node, self._make = node, make
        #: By class: the number of further messages that are sent alone without checking their
        #: size.
        self._large: dict[type, int] = {}

    # Every ask to an entity takes this path, so the work is inline.
    def take(  # noqa: C901
        self, parcel: KeyedMessage, told_by: ActorRef | None, asker: SentAsk
    ) -> bool:
        """Add a message to the batch; return False if it has to be sent alone.

        Args:
            parcel: the message with its key.
            told_by: the sending actor; None for an ask, and for an unknown sender.
            asker: receives the outcome; the same object as `parcel` if the message is an ask.
        """
        proxy = self._proxy
        if proxy is None:
            return False
        batches, message = self._batches, parcel.message
        runner = batches.runner
        is_open = batches.open.get(self.node) is self  # the usual case
        is_free = is_open and runner.holder == get_ident()
        if not is_free and not batches.may_gather(proxy, self):
            return False
        left, teller = NO_DEADLINE, 0
        if message.__class__ is Envelope:
            envelope, message = message, message.message
            if envelope.trace is not None or envelope.key is not None or envelope.chain:
                return False  # a batch has no room for options
            if envelope.deadline is not None:
                left = max(0, round(1000 * (envelope.deadline - runner.now())))
                if left >= NO_DEADLINE:
                    return False
        if told_by is not None:
            teller = _number_of(told_by)
        if teller < 0 or (self._large and self._goes_alone(message.__class__)):
            return False
        try:
            body = batches.encode(message)
        except LocalProtocolError:
            return False  # sent alone, which reports the error to the sender
        size = len(body)
        if size > batches.item_limit:
            self._large[message.__class__] = ALONE
            return False
        key = parcel.key.encode()
        flags = CARRIED_ASKED if asker is parcel else 0
        if parcel.is_urgent:
            flags |= CARRIED_URGENT
        with batches.lock:
            if batches.open.get(self.node) is not self:
                batches.open_batch(self.node, self)
            number = batches.asks.add(asker, self.node)
            head = _pack(number, flags, parcel.attempt, teller, left, len(key), size)
            self.items.append((number, head, key, body))
            self.size = size = self.size + _HEAD_SIZE + len(key) + size
            if size >= self.early_at:
                batches.send_early(self.node, self)
        if runner.sleeping or runner.times.stuck:
            batches.stay_awake()
        return True

    def _goes_alone(self, kind: type) -> bool:
        """Return whether a message of a class is sent alone because a recent one was large."""
        left = self._large.pop(kind, 0)
        if left > 1:
            self._large[kind] = left - 1
        return left > 0

    def _send_part(self, items: list[Any]) -> None:
        ids, *columns = zip(*items, strict=True)
        message = self._make(*[b"".join(column) for column in columns])
        assert self._proxy is not None, "without it the batch is empty"
        self._batches.send_asks(self._proxy, message, ids)


@dataclass(eq=False, repr=False)
class TurnBatches:
    """The batches of one node that are open in this turn. Callable from any thread."""

    _runtime: Runtime
    routes: RouteTable
    _codec: PayloadCodec
    #: Bytes of the largest message.
    _message_limit: int
    asks: PendingAsks
    #: Send one answer: a deferrable call without the lock, and a call with it.
    _respond: Callable[[bytes, int, int, bytes], object]
    _respond_locked: Callable[[bytes, int, int, bytes], object]

    def __post_init__(self) -> None:
        routes, limit = self.routes, self._message_limit
        self._node_id = routes.node_id
        self.lock = routes.lock
        self._is_inside = locks.owner_test(routes.lock)
        self._account, self._accounts = routes.accounts.account, routes.accounts.accounts
        self.runner = self._runtime.runner
        self.encode = self._codec.encode
        #: Open batches, by node: whatever else is sent to a node is sent after its batch.
        self.open: dict[bytes, TurnBatch] = {}
        self._answers: dict[bytes, AnswerBatch] = {}
        #: Batches that were partly sent before the end of the turn.
        self._grown: list[TurnBatch] = []
        #: Bytes of one message in a batch, and of a whole batch, that fit any limits.
        self.item_limit = min(CARRIED_LIMIT, limit // 8) if limit >= SMALLEST_LIMIT else -1
        self._batch_limit = min(CARRIER_LIMIT, limit // 4)
        self.first_size = min(FIRST_BATCH, self._batch_limit)
        self.runner.before_poll.insert(0, self.flush)  # before the links write

    # --- gathering ---

    def answer(self, node: bytes, number: int, message_id: int, payload: bytes) -> None:
        """Send an answer to the actor with a number, or to an ask that arrived in a batch.

        This method alone decides how an answer is sent. The answer to an ask that arrived in a
        batch is added to this turn's batch of answers, because the asking node understands
        batches. A large answer, an answer from another thread, and an answer to a single ask
        are sent in separate frames.
        """
        size, runner = len(payload), self.runner
        if (
            number != IN_BATCH
            or size > self.item_limit
            or not (runner.holder == get_ident() or runner.is_runner_thread())
        ):
            self._respond(node, 0 if number == IN_BATCH else number, message_id, payload)
            return
        lock = self.lock
        # Takes half the time of `with`, which matters because this runs for each answer.
        if self._is_inside() or not (lock.acquire(False) or reentry.wait(lock)):  # noqa: FBT003
            self._respond(node, 0, message_id, payload)  # which defers the answer
            return
        try:
            batch = self.open.get(node)
            if batch.__class__ is not AnswerBatch:  # an open batch of answers is the usual case
                batch = self._open_answers(node)
            batch.items.append((message_id, payload))
            batch.size = size = batch.size + size + _ANSWER_HEAD_SIZE
            if size >= batch.early_at:
                self.send_early(node, batch)
        finally:
            lock.release()
        # A copy of `stay_awake`: a call would be slower, and this runs for each answer.
        if runner.sleeping or runner.times.stuck:
            runner.post(self.flush)

    def _open_answers(self, node: bytes) -> AnswerBatch:
        """Send the open batch to a node, and open a batch of answers.

        The caller must hold the lock.
        """
        batch = self._answers.get(node)
        if batch is None:
            batch = self._answers[node] = AnswerBatch(self, node)
        self.open_batch(node, batch)
        return batch

    def may_gather(self, proxy: Proxy, batch: TurnBatch) -> bool:
        """Return whether messages to an actor may be batched.

        They are not batched if the actor's node does not support batches, if the link is full,
        if other messages wait, or on a thread outside of actors, whose messages are sent at
        once.
        """
        node = proxy.node
        if not self.runner.is_runner_thread():
            return False
        if self.open.get(node) is batch:
            return True
        wire = self.routes.wire_to(node)
        return (
            wire is not None
            and CARRIERS in self.routes.abilities.get(node, ())
            and wire.waiting <= WAITING_LIMIT
            and proxy.waiting is None
            and proxy.down is None
        )

    def open_batch(self, node: bytes, batch: TurnBatch) -> None:
        """Open a batch for a node after sending the open one; the caller must hold the lock."""
        self.send(node)
        self.open[node] = batch

    # --- sending ---

    def send(self, node: bytes) -> None:
        """Send the open batch for a node, if there is one; the caller must hold the lock."""
        batch = self.open.pop(node, None)
        if batch is not None:
            batch.send()

    def send_early(self, node: bytes, batch: TurnBatch) -> None:
        """Send a batch that has grown large, so that its node starts early.

        The caller must hold the lock.
        """
        batch.early_at = min(2 * batch.early_at, self._batch_limit)
        self._grown.append(batch)
        self.send(node)

    def flush(self) -> None:
        """Send all batches of this turn."""
        if not self.open and not self._grown:
            return
        with self.lock:
            while self.open:
                self.open.popitem()[1].send()
            for batch in self._grown:
                batch.early_at = self.first_size
            self._grown.clear()

    def stay_awake(self) -> None:
        """Ensure that the batches are sent, even if a handler has lost the runner's role.

        The thread that has the role then may be about to sleep, and a posted call wakes it.
        """
        runner = self.runner
        if runner.sleeping or runner.times.stuck:
            runner.post(self.flush)

    def room(self, node: bytes) -> int:
        """Return the number of messages that fit into one batch to a node.

        The caller must hold the lock.
        """
        account = self._accounts.get(node)
        return CARRIER_LIMIT if account is None else account.room

    def frame_of(
        self, node: bytes, payload: bytes, count: int, data: int, number: int
    ) -> bytes:
        """Count the messages of a batch, and return the frame that contains them."""
        account = self._accounts.get(node) or self._account(node)
        account.sent += count
        position = account.offset + account.sent - 1 & POSITION_MASK
        data |= position << POSITION_SHIFT
        size = len(payload)
        head = HEADER.pack(_DISPATCH, size, data, self._node_id, node, count, number)
        return head + payload

    def answer_alone(self, node: bytes, message_id: int, payload: bytes) -> None:
        """Send an answer without a batch; the caller must hold the lock."""
        self._respond_locked(node, 0, message_id, payload)

    def send_asks(self, proxy: Proxy, message: Message, ids: Sequence[int]) -> None:
        """Send a batch of asks, which must not be more than `room`. The caller holds the lock.

        If no path is left, the asks fail, and count as never sent.
        """
        node = proxy.node
        wire = self.routes.wire_to(node)
        if wire is None:
            fail = partial(self.asks.fail_asks, ids, proxy.no_path(), has_left=False)
            self._runtime.post(fail)
            return
        payload = self.encode(message)
        message_id = self.asks.add_batch(ids, node)
        wire.write(self.frame_of(node, payload, len(ids), message_id, CARRIED))


def _number_of(teller: ActorRef) -> int:
    """Return the number of an actor of this node; -1 for a sender without one, as an entity."""
    return teller.actor_id if teller.__class__ is ActorRef and teller.is_local else -1


def read_asks(heads: bytes, keys: bytes, bodies: bytes) -> list[Carried]:
    """Return the messages of a batch from its columns.

    Raises:
        MalformedPayload: the columns do not match or are too large, a key is not UTF-8, or a
            message lacks an id.
    """
    check_columns(_HEAD_SIZE, heads, keys, bodies)
    asks: list[Carried] = []
    body_start = key_start = 0
    # Usually the keys are ASCII text, in which characters and bytes have the same positions.
    text = keys.decode() if keys.isascii() else None
    try:
        for ask, flags, attempt, teller, left, key_size, size in _heads_in(heads):
            key_end, body_end = key_start + key_size, body_start + size
            key = keys[key_start:key_end].decode() if text is None else text[key_start:key_end]
            asks.append((ask, flags, attempt, teller, left, key, bodies[body_start:body_end]))
            key_start, body_start = key_end, body_end
    except UnicodeDecodeError:
        msg = "a key in a batch is not UTF-8"
        raise MalformedPayload(msg) from None
    if body_start != len(bodies) or key_start != len(keys):
        msg = f"the {len(asks):,} messages of a batch do not fill its columns"
        raise MalformedPayload(msg)
    if not all(map(_message_id, asks)):  # no ask could be found for the answer
        msg = "a batch has a message without an id"
        raise MalformedPayload(msg)
    return asks
