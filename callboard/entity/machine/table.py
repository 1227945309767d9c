"""The table of a type: its members, and the owner and epoch of each of its slots.

It stands in one register and changes by compare-and-set alone. The owner of a slot is who
stands there; the epoch rises with each owner and is what fences are raised to. Whom a slot is
wished to depends on the members alone, never on what a node reaches, so that all agree.
"""

import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from callboard.kernel.topology import NODE_ID_SIZE
from callboard.lease.errors import StateCorrupt, StateVersion
from callboard.support.dataclass import dataclass
from callboard.support.nesting import parse_json

#: Slots of a type; for ever, as keys are stored with their slots' fences.
SLOTS: Final = 256

#: No epoch is so large: databases have 63 bits for one.
_BEYOND: Final = 2**62

#: Of the text of a table; a newer callboard may write a higher one. In the first one each slot
#: has the name of its owner; since then there are the names once, and their numbers.
_FORMAT: Final = 2

#: What reading something else raises.
_NOT_A_TABLE: Final = (
    ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError,
)  # fmt: skip

#: Of a member that takes no slots: it drains, and gives away those that it has.
DRAINING: Final = 0.0


@lru_cache(maxsize=8192)
def slot_of(key: str) -> int:
    """Return the slot of a key: it never changes."""
    return int.from_bytes(blake2b(key.encode()).digest()[:8], "big") % SLOTS


class SlotOwner(NamedTuple):
    """Who owns a slot; no writer where nobody does."""

    writer: str
    epoch: int


NOBODY: Final = SlotOwner("", 0)


class SharedState(NamedTuple):
    """The state that all members of a table share."""

    #: Random, made with the state's tables; empty where nothing is kept.
    id: str = ""
    #: Where it is, for people.
    place: str = ""
    #: The boot id of the machine that alone may use it; empty where any machine may.
    boot_id: str = ""


class TableMember(NamedTuple):
    """A node that hosts the type."""

    #: The node's id in hex.
    node: str
    #: The version of the table in which it became a member: evidence that an earlier life of
    #: it is gone says nothing about this one.
    joined: int = 0
    #: The term of its lease in which it became a member; when that ends, so does this.
    term: int = 0
    #: Its share of the slots, beside the weights of others; `DRAINING` for none.
    weight: float = 1.0
    #: The version of its class.
    version: int = 1
    #: The kinds of events that it reads, with the highest version of each.
    reads: tuple[tuple[str, int], ...] = ()

    def can_read(self, written: Iterable[tuple[str, int]]) -> bool:
        """Return whether it reads events of these kinds and versions."""
        known = dict(self.reads)
        return all(known.get(kind, 0) >= version for kind, version in written)


@dataclass(frozen=True, slots=True)
class Table:
    """The members by the name of their life (writer), and the owners of all slots."""

    #: A newer table has a larger one, also where a register has lost its end.
    version: int = 0
    #: The version that the register's value had, or has, with this table in it.
    at: int = 0
    state: SharedState = SharedState()
    members: Mapping[str, TableMember] = field(default_factory=dict)
    #: The kinds and highest versions of events that were written, as far as members saw.
    written: tuple[tuple[str, int], ...] = ()
    slots: tuple[SlotOwner, ...] = (NOBODY,) * SLOTS
    #: Slots that somebody has moved by hand, with the member that each is wished to since.
    pins: tuple[tuple[int, str], ...] = ()
    #: What was counted of the slots, by member: it is looked at many times a second.
    _owned: dict[str, Mapping[int, int]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _nodes: list[bytes] = field(default_factory=list, init=False, repr=False, compare=False)
    _unwished: dict[str, list[int]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __hash__(self) -> int:
        return hash((self.version, self.at, frozenset(self.members.items()), self.slots))

    @classmethod
    def read(cls, text: str, count: int = SLOTS) -> "Table":
        """Return the table of a text; one without any owner where there is no text.

        Raises:
            StateCorrupt: it is no table.
            StateVersion: a newer callboard wrote it.
        """
        if not text:
            return cls(slots=(NOBODY,) * count)
        try:
            found = parse_json(text)
            if found["format"] > _FORMAT:
                msg = (
                    f"the register has a table of format {found['format']}, and this callboard"
                    f" knows {_FORMAT}: a newer one wrote it; upgrade callboard here"
                )
                raise StateVersion(msg)
            slots = tuple(
                SlotOwner(str(writer), _number(epoch)) for writer, epoch in _slots(found)
            )
            members = {str(each): _member(about) for each, about in found["members"].items()}
            if len(slots) != count:
                raise ValueError(len(slots))
            state = SharedState(*(str(found["state"][name]) for name in SharedState._fields))
            written = _kinds(found["written"])
            version, at = _number(found["version"]), _number(found["at"])
            pins = tuple((_slot(slot, count), str(to)) for slot, to in found.get("pins", ()))
            return cls(version, at, state, members, written, slots, pins)
        except _NOT_A_TABLE as error:
            msg = f"the register holds no table of entities: {text[:100]!r} ({error!r})"
            raise StateCorrupt(msg) from None

    def text(self) -> str:
        """Return the table as JSON."""
        numbers: dict[str, int] = {}
        for each in self.slots:
            numbers.setdefault(each.writer, len(numbers))
        content = {
            "format": _FORMAT,
            "version": self.version,
            "at": self.at,
            "state": self.state._asdict(),
            "members": {each: member._asdict() for each, member in self.members.items()},
            "written": self.written,
            "owners": list(numbers),
            "slots": [(numbers[writer], epoch) for writer, epoch in self.slots],
            "pins": self.pins,
        }
        return json.dumps(content, separators=(",", ":"))

    @property
    def nodes(self) -> set[str]:
        """The nodes of the members, in hex."""
        return {member.node for member in self.members.values()}

    @property
    def joined(self) -> frozenset[tuple[str, int]]:
        """The memberships: writers, each with the version in which it became a member."""
        return frozenset((each, about.joined) for each, about in self.members.items())

    def owned(self, writer: str) -> Mapping[int, int]:
        """Return the slots of a member, with their epochs."""
        found = self._owned.get(writer)
        if found is None:
            slots = enumerate(self.slots)
            found = {slot: each.epoch for slot, each in slots if each.writer == writer}
            self._owned[writer] = found
        return found

    def node_of(self, slot: int) -> bytes:
        """Return the node that owns a slot; empty if none does."""
        if not self._nodes:
            ids = {each: bytes.fromhex(about.node) for each, about in self.members.items()}
            self._nodes.extend([ids.get(each.writer, b"") for each in self.slots])
        return self._nodes[slot]

    def with_member(self, writer: str, member: TableMember, state: SharedState) -> "Table":
        """Return it with one more member, which takes what nobody has."""
        joined = member._replace(joined=self.version + 1)
        known = self.state if self.members else state
        return replace(self, members={**self.members, writer: joined}, state=known).filled()

    def with_weight(self, writer: str, weight: float) -> "Table":
        """Return it with another weight of a member."""
        changed = self.members[writer]._replace(weight=weight)
        return replace(self, members={**self.members, writer: changed})

    def with_pins(self, pins: Mapping[int, str]) -> "Table":
        """Return it with slots wished to members; those with "" to whom they were before."""
        if not pins:
            return self
        known = {**dict(self.pins), **pins}
        kept = {slot: to for slot, to in known.items() if to in self.members}
        return replace(self, pins=tuple(sorted(kept.items())))

    def with_written(self, kinds: Iterable[tuple[str, int]]) -> "Table":
        """Return it with kinds of events that were written."""
        written = dict(self.written)
        for kind, version in kinds:
            written[kind] = max(version, written.get(kind, 0))
        return replace(self, written=tuple(sorted(written.items())))

    def without(self, writers: Collection[str]) -> "Table":
        """Return it without some members; what they had goes to whom it is wished."""
        members = {each: about for each, about in self.members.items() if each not in writers}
        pins = tuple((slot, to) for slot, to in self.pins if to in members)
        return replace(self, members=members, pins=pins).filled()

    def filled(self) -> "Table":
        """Return it with an owner for each slot that no member has."""
        wished = self.wished()
        slots = tuple(
            each if each.writer in self.members else _given(each, wished[slot])
            for slot, each in enumerate(self.slots)
        )
        return replace(self, slots=slots)

    def moved(self, slots: Iterable[int]) -> "Table":
        """Return it with slots given to whom they are wished."""
        changed, wished = list(self.slots), self.wished()
        for slot in slots:
            changed[slot] = _given(changed[slot], wished[slot])
        return replace(self, slots=tuple(changed))

    def raised(self, writer: str, epochs: Mapping[int, int]) -> "Table":
        """Return it with higher epochs of slots of a member: fences were beyond."""
        slots = tuple(
            SlotOwner(writer, epochs[slot])
            if slot in epochs and each.writer == writer and each.epoch < epochs[slot]
            else each
            for slot, each in enumerate(self.slots)
        )
        return replace(self, slots=slots)

    def unwished(self, writer: str) -> list[int]:
        """Return the slots of a member that are wished to another one."""
        found = self._unwished.get(writer)
        if found is None:
            wished = self.wished()
            found = [slot for slot in self.owned(writer) if wished[slot] not in ("", writer)]
            self._unwished[writer] = found
        return found

    def wished(self) -> tuple[str, ...]:
        """Return the member that each slot is wished to; nobody where there is no member.

        Members that drain, or cannot read what was written, are wished to have nothing as long
        as there are others.
        """
        members = self.members
        for is_fit in (self._is_fit, lambda member: member.weight > 0, lambda _: True):
            weights = tuple(
                (writer, member.weight or 1.0)
                for writer, member in sorted(members.items())
                if is_fit(member)
            )
            if weights:
                wished = wishes(weights, len(self.slots))
                return self._pinned(wished) if self.pins else wished
        return ("",) * len(self.slots)

    def _pinned(self, wished: tuple[str, ...]) -> tuple[str, ...]:
        """Return wishes with those of slots that were moved by hand."""
        changed = list(wished)
        for slot, writer in self.pins:
            if self._is_fit(self.members[writer]):
                changed[slot] = writer
        return tuple(changed)

    def _is_fit(self, member: TableMember) -> bool:
        """Return whether a member may be given slots."""
        return member.weight > 0 and member.can_read(self.written)


def _given(slot: SlotOwner, writer: str) -> SlotOwner:
    """Return a slot with another owner; its epoch rises only when somebody has it."""
    return SlotOwner(writer, slot.epoch + 1 if writer else slot.epoch)


def _slots(found: Mapping[str, Any]) -> Iterable[tuple[object, object]]:
    """Return the owner and the epoch of each slot of a table that was read."""
    if found["format"] < _FORMAT:
        return [(writer, epoch) for writer, epoch in found["slots"]]
    owners = found["owners"]
    return [(owners[_slot(number, len(owners))], epoch) for number, epoch in found["slots"]]


def _slot(found: object, count: int) -> int:
    """Return the number of a slot that was read."""
    slot = _number(found)
    if slot >= count:
        raise ValueError(slot)
    return slot


def _member(found: Mapping[str, Any]) -> TableMember:
    """Return a member that was read."""
    weight = float(found["weight"])
    if not 0 <= weight < math.inf:
        raise ValueError(weight)
    reads = _kinds(found["reads"])
    node = bytes.fromhex(found["node"])
    if len(node) != NODE_ID_SIZE:
        raise ValueError(node)
    joined, term, version = (_number(found[name]) for name in ("joined", "term", "version"))
    return TableMember(node.hex(), joined, term, weight, version, reads)


def _number(found: object) -> int:
    """Return an epoch or a version that was read."""
    if type(found) is not int or not 0 <= found < _BEYOND:
        raise ValueError(found)
    return found


def _kinds(found: Iterable[Any]) -> tuple[tuple[str, int], ...]:
    """Return kinds of events and their versions that were read."""
    return tuple((str(kind), int(version)) for kind, version in found)


@lru_cache(maxsize=64)
def wishes(weights: tuple[tuple[str, float], ...], count: int) -> tuple[str, ...]:
    """Return the member that each slot is wished to: rendezvous hashing with weights.

    A member's score of a slot is its weight over an exponentially distributed hash, so that
    each has its share, and a member that comes or goes moves only what it takes or had.
    """

    def score(slot: int, writer: str, weight: float) -> float:
        digest = blake2b(f"{slot}/{writer}".encode(), digest_size=8).digest()
        uniform = (int.from_bytes(digest, "big") + 1) / (2**64 + 1)
        return weight / -math.log(uniform)

    return tuple(
        max(weights, key=lambda each: (score(slot, *each), each[0]))[0] for slot in range(count)
    )
