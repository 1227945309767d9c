"""Messages of one turn to keyed actors of a kind at one node: they go there together.

What may go with others is a message alone, or with the time that its ask has left. Whatever
else travels with a message (a trace, the chain of an ask, a key by which it may come again), a
large one, and one that another keyed actor told goes by itself, behind those before it.

A batch is three columns: for each message a head of 21 bytes, its key, and the message as the
payload that it would have alone. What it is sent as is for its users: a message with them.
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

#: Messages of a class that go alone behind a large one: such a one is serialized twice.
ALONE: Final = 16

#: The id of the ask; 1 if it was asked, and 2 more if it is urgent; the attempt; the number of
#: the actor that told it, or 0; the milliseconds that are left for it; the bytes of its key,
#: and those of the message.
CARRIED_HEAD: Final = Struct(">IBIIIHH")
_HEADS_IN: Final = CARRIED_HEAD.iter_unpack
CARRIED_ASKED: Final = 1
CARRIED_URGENT: Final = 2
#: Milliseconds that stand for no limit.
NO_DEADLINE: Final = 0xFFFF_FFFF

#: A message that is carried: the fields of its head but for the two lengths, its key, and the
#: message as the payload that it would have alone.
Carried = tuple[int, int, int, int, int, str, bytes]

_message_id: Final = itemgetter(0)
_pack: Final = CARRIED_HEAD.pack
_HEAD_SIZE: Final = CARRIED_HEAD.size


class AskBatch:
    """Gathers messages of this node for another one."""

    __slots__ = (
        "_bodies", "_encode", "_heads", "_ids", "_keys", "_large", "_make", "_outgoing",
        "_proxy", "_runner", "early_at", "node", "ref", "size",
    )  # fmt: skip

    def __init__(
        self, make: Callable[[bytes, bytes, bytes], object], node: bytes, ref: ActorRef[Any]
    ) -> None:
        """Make an empty one.

        Args:
            make: makes the message that carries the columns: heads, keys and bodies.
            node: the other node.
            ref: of the actor there that takes such messages.
        """
        self._make, self.node = make, node
        self.ref, target = ref, ref.target  # held, so that its proxy stays
        self._proxy: Any = target
        found = target.outbound if isinstance(target, Proxy) else None
        self._outgoing = found if isinstance(found, Outgoing) else None
        if self._outgoing is not None:  # looked up once, not for each ask
            self._runner, self._encode = self._outgoing.runner, self._outgoing.codec.encode
        #: How many of the next messages of a class go alone without a look at their size.
        self._large: dict[type, int] = {}
        self._ids: list[int] = []
        self._heads: list[bytes] = []
        self._keys: list[bytes] = []
        self._bodies: list[bytes] = []
        #: Of what was gathered.
        self.size = 0
        self.early_at = 0 if self._outgoing is None else self._outgoing.first_load

    # Each ask comes here, so there are few calls.
    def take(  # noqa: C901
        self, parcel: Any, told_by: ActorRef[Any] | None, asker: Any
    ) -> bool:
        """Gather a message; False if it has to go alone.

        Args:
            parcel: has the message, its key, its attempt, and whether it is urgent.
            told_by: the actor that told it; None for an ask, and where nobody is known.
            asker: takes the outcome; the parcel itself if it was asked and not told.
        """
        outgoing, message = self._outgoing, parcel.message
        if outgoing is None:
            return False
        is_open = outgoing.loads.get(self.node) is self  # as nearly always
        is_free = is_open and self._runner.holder == get_ident()
        if not is_free and not outgoing.may_carry(self._proxy, self):
            return False
        left, teller = NO_DEADLINE, 0
        if message.__class__ is Envelope:
            envelope, message = message, message.message
            if envelope.trace is not None or envelope.key is not None or envelope.chain:
                return False  # more travels with it
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
            return False  # which its sender is told where it goes alone
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
        """Return whether a message of a class goes alone, as the last one was large."""
        left = self._large.pop(kind, 0)
        if left > 1:
            self._large[kind] = left - 1
        return left > 0

    def send(self) -> None:
        """Send what was gathered, and be empty; the lock of the routes is held."""
        outgoing = self._outgoing
        assert outgoing is not None, "it gathered them"
        gathered = self._heads, self._keys, self._bodies
        ids, self._ids = self._ids, []
        self._heads, self._keys, self._bodies, self.size = [], [], [], 0
        room = outgoing.room(self.node)
        for at in range(0, len(ids), room):  # once, but for the end of an epoch
            part = slice(at, at + room)
            columns = [b"".join(column[part]) for column in gathered]
            message = self._make(*columns)
            outgoing.send_carrier(self._proxy, message, ids[part])


def _number_of(teller: ActorRef[Any]) -> int:
    """Return the number of an actor of this node; -1 for what has none, as an entity."""
    return teller.actor_id if teller.__class__ is ActorRef and teller.is_local else -1


def read_asks(heads: bytes, keys: bytes, bodies: bytes) -> list[Carried]:
    """Return the messages of a batch by its columns.

    Raises:
        MalformedPayload: the columns do not fit together, they are too large, a key is no
            text, or a message has no id.
    """
    if {type(heads), type(keys), type(bodies)} != {bytes} or len(heads) % CARRIED_HEAD.size:
        msg = "what carries messages has columns of another form"
        raise MalformedPayload(msg)
    check_carrier(len(heads) + len(keys) + len(bodies))
    found: list[Carried] = []
    at = start = 0
    # As nearly always: then a part of the text is that of the bytes.
    text = keys.decode() if keys.isascii() else None
    try:
        for ask, flags, attempt, teller, left, key_size, size in _HEADS_IN(heads):
            key_end, end = start + key_size, at + size
            key = keys[start:key_end].decode() if text is None else text[start:key_end]
            found.append((ask, flags, attempt, teller, left, key, bodies[at:end]))
            start, at = key_end, end
    except UnicodeDecodeError:
        msg = "what carries messages has a key that is no text"
        raise MalformedPayload(msg) from None
    if at != len(bodies) or start != len(keys):
        msg = f"{len(found):,} messages are carried in columns of another size"
        raise MalformedPayload(msg)
    if not all(map(_message_id, found)):  # its answer would be one to no ask
        msg = "what carries messages has one without an id"
        raise MalformedPayload(msg)
    return found
