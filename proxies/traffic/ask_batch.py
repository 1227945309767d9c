"""Batches of messages from one turn to keyed actors of one kind on one node.

A message can be batched if it travels with nothing but the remaining time of its ask. A message
with a trace, a chain of asks or an idempotency key is sent alone, after the batch that is open;
so is a large message, and one that another keyed actor sent.

A batch has three columns: for each message a head of 21 bytes, its key, and the payload that it
would have alone. The caller chooses the message type that carries the columns.
"""

from collections.abc import Callable
from operator import itemgetter
from struct import Struct
from threading import get_ident
from typing import Any, Final

from callboard.actors.envelope import Envelope
from callboard.actors.reference import ActorRef
from callboard.basp.errors import LocalProtocolError, MalformedPayload
from callboard.proxies.lifetime.proxy import Proxy
from callboard.proxies.messages import check_carrier
from callboard.proxies.traffic.outgoing import Outgoing

#: Messages of a class that are sent alone after a large one, because encoding a message that
#: turns out to be too large encodes it twice.
ALONE: Final = 16

#: Message id of the ask; flags (1: it is an ask, 2: it is urgent); attempt; number of the
#: sending actor, or 0; milliseconds until the deadline; bytes of the key; bytes of the message.
CARRIED_HEAD: Final = Struct(">IBIIIHH")
_HEADS_IN: Final = CARRIED_HEAD.iter_unpack
CARRIED_ASKED: Final = 1
CARRIED_URGENT: Final = 2
#: Value of the milliseconds for "no deadline".
NO_DEADLINE: Final = 0xFFFF_FFFF

#: A batched message: the fields of its head without the two lengths, its key, and its payload.
Carried = tuple[int, int, int, int, int, str, bytes]

_message_id: Final = itemgetter(0)
_pack: Final = CARRIED_HEAD.pack
_HEAD_SIZE: Final = CARRIED_HEAD.size


class AskBatch:
    """Gathers messages from this node to another one."""

    __slots__ = (
        "_bodies", "_encode", "_heads", "_ids", "_keys", "_large", "_make", "_outgoing",
        "_proxy", "_runner", "early_at", "node", "ref", "size",
    )  # fmt: skip

    def __init__(
        self, make: Callable[[bytes, bytes, bytes], object], node: bytes, ref: ActorRef[Any]
    ) -> None:
        """Create an empty batch.

        Args:
            make: makes the message that carries the columns heads, keys and bodies.
            node: the receiving node.
            ref: the actor there that accepts such batches.
        """
        self._make, self.node = make, node
        self.ref, target = ref, ref.target  # the ref is kept so that its proxy stays alive
        self._proxy: Any = target
        outbound = target.outbound if isinstance(target, Proxy) else None
        self._outgoing = outbound if isinstance(outbound, Outgoing) else None
        if self._outgoing is not None:  # looked up once instead of for each ask
            self._runner, self._encode = self._outgoing.runner, self._outgoing.codec.encode
        #: Number of next messages of a class that are sent alone without checking their size.
        self._large: dict[type, int] = {}
        self._ids: list[int] = []
        self._heads: list[bytes] = []
        self._keys: list[bytes] = []
        self._bodies: list[bytes] = []
        #: Bytes gathered.
        self.size = 0
        self.early_at = 0 if self._outgoing is None else self._outgoing.first_load

    # Every ask to an entity takes this path, so the work is inline.
    def take(  # noqa: C901
        self, parcel: Any, told_by: ActorRef[Any] | None, asker: Any
    ) -> bool:
        """Add a message to the batch; return False if it has to be sent alone.

        Args:
            parcel: has the message, its key, its attempt, and whether it is urgent.
            told_by: the sending actor; None for an ask, and for an unknown sender.
            asker: receives the outcome; it is the parcel itself if the message is an ask.
        """
        outgoing, message = self._outgoing, parcel.message
        if outgoing is None:
            return False
        is_open = outgoing.loads.get(self.node) is self  # the usual case
        is_free = is_open and self._runner.holder == get_ident()
        if not is_free and not outgoing.may_carry(self._proxy, self):
            return False
        left, teller = NO_DEADLINE, 0
        if message.__class__ is Envelope:
            envelope, message = message, message.message
            if envelope.trace is not None or envelope.key is not None or envelope.chain:
                return False  # options travel only with a single message
            if envelope.deadline is not None:
                left = max(0, round(1000 * (envelope.deadline - self._runner.now())))
                if left >= NO_DEADLINE:
                    return False
        if told_by is not None:
            teller = _number_of(told_by)
        if teller < 0 or (self._large and self._goes_alone(message.__class__)):
            return False
        try:
            body = self._encode(message)
        except LocalProtocolError:
            return False  # sending it alone reports the error to the sender
        size = len(body)
        if size > outgoing.carried_limit:
            self._large[message.__class__] = ALONE
            return False
        key = parcel.key.encode()
        flags = CARRIED_ASKED if asker is parcel else 0
        if parcel.is_urgent:
            flags |= CARRIED_URGENT
        with outgoing.lock:
            number = outgoing.open_load(self.node, self, asker)
            self._heads.append(
                _pack(number, flags, parcel.attempt, teller, left, len(key), size)
            )
            self._keys.append(key)
            self._bodies.append(body)
            self._ids.append(number)
            self.size = size = self.size + _HEAD_SIZE + len(key) + size
            if size >= self.early_at:
                outgoing.send_early(self.node, self)
        runner = self._runner
        if runner.sleeping or runner.times.stuck:
            outgoing.stay_awake()
        return True

    def _goes_alone(self, kind: type) -> bool:
        """Return whether a message of a class is sent alone because a recent one was large."""
        left = self._large.pop(kind, 0)
        if left > 1:
            self._large[kind] = left - 1
        return left > 0

    def send(self) -> None:
        """Send the gathered messages and empty the batch; the lock of the routes is held."""
        outgoing = self._outgoing
        assert outgoing is not None, "it gathered them"
        gathered = self._heads, self._keys, self._bodies
        ids, self._ids = self._ids, []
        self._heads, self._keys, self._bodies, self.size = [], [], [], 0
        room = outgoing.room(self.node)
        for start in range(0, len(ids), room):  # more than one pass only at the end of an epoch
            part = slice(start, start + room)
            columns = [b"".join(column[part]) for column in gathered]
            message = self._make(*columns)
            outgoing.send_carrier(self._proxy, message, ids[part])


def _number_of(teller: ActorRef[Any]) -> int:
    """Return the number of an actor of this node; -1 for a sender without one, as an entity."""
    return teller.actor_id if teller.__class__ is ActorRef and teller.is_local else -1


def read_asks(heads: bytes, keys: bytes, bodies: bytes) -> list[Carried]:
    """Return the messages of a batch from its columns.

    Raises:
        MalformedPayload: the columns do not match or are too large, a key is not UTF-8, or a
            message lacks an id.
    """
    if {type(heads), type(keys), type(bodies)} != {bytes} or len(heads) % CARRIED_HEAD.size:
        msg = "the columns of a batch have a wrong type or length"
        raise MalformedPayload(msg)
    check_carrier(len(heads) + len(keys) + len(bodies))
    asks: list[Carried] = []
    body_start = key_start = 0
    # The usual case: in ASCII text, characters and bytes have the same positions.
    text = keys.decode() if keys.isascii() else None
    try:
        for ask, flags, attempt, teller, left, key_size, size in _HEADS_IN(heads):
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
    if not all(map(_message_id, asks)):  # its answer would belong to no ask
        msg = "a batch has a message without an id"
        raise MalformedPayload(msg)
    return asks
