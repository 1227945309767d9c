"""Messages of one turn to the entities of a type at one node: they go there together.

What may go with others is a message alone, or with the time that its ask has left. Whatever
else travels with a message (a trace, the chain of an ask, a key by which it may come again), a
large one, and one that another entity told goes as an `EntityMessage`, behind those before it.
"""

from threading import get_ident
from typing import Any, Final

from callboard.entity.messages import (
    CARRIED_ASKED,
    CARRIED_HEAD,
    CARRIED_URGENT,
    NO_DEADLINE,
    EntityMessages,
)
from callboard.kernel.activation import Envelope, Outgoing, Proxy
from callboard.kernel.actors import ActorRef
from callboard.kernel.codec import LocalProtocolError

#: Messages of a class that go alone behind a large one: such a one is serialized twice.
ALONE: Final = 16


_pack: Final = CARRIED_HEAD.pack
_HEAD_SIZE: Final = CARRIED_HEAD.size


class Carrying:
    """Gathers messages of this node for another one."""

    __slots__ = (
        "_bodies", "_encode", "_heads", "_ids", "_keys", "_large", "_outgoing", "_proxy",
        "_runner", "_type_name", "early_at", "node", "ref", "size",
    )  # fmt: skip

    def __init__(self, type_name: str, node: bytes, ref: ActorRef[Any]) -> None:
        """Make one; `ref` is that of the entities of the other node."""
        self._type_name, self.node = type_name, node
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
            message = EntityMessages(self._type_name, *columns)
            outgoing.send_carrier(self._proxy, message, ids[part])


def _number_of(teller: ActorRef[Any]) -> int:
    """Return the number of an actor of this node; -1 for what has none, as an entity."""
    return teller.actor_id if teller.__class__ is ActorRef and teller.is_local else -1
