"""The table of a type: its members, and the owner and epoch of each slot.

It is stored in one register and changes only by compare-and-set. The epoch of a slot rises with
each owner, and the owner raises the slot's fence to this epoch. The **wished** owner of a slot
depends only on the list of members, and not on the nodes that a member can reach, so that all
members compute the same one.
"""

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from callboard.kernel.topology import NODE_ID_SIZE
from callboard.lease.errors import StateCorrupt, StateVersion
from callboard.support.dataclass import dataclass
from callboard.support.nesting import parse_json

#: Slots of a type. It must never change, as keys are stored with the fences of their slots.
SLOTS: Final = 256

#: How far the restore of a backup raises the epochs of all slots: more claims than a slot has
#: had since any backup. So the quotient of an epoch and this is the number of restores.
RESTORE_EPOCHS: Final = 2**32

#: Every epoch is smaller: databases have 63 bits for one.
_BEYOND: Final = 2**62

#: Version of the text of a table; a newer callboard may write a higher one. In format 1 each
#: slot has the name of its owner; since format 2 it has an index into a list of names.
_FORMAT: Final = 2

#: Characters of a member's address.
_ADDRESS_LIMIT: Final = 300

#: Errors of reading a text that is not a table.
_NOT_A_TABLE: Final = (
    ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError,
)  # fmt: skip

#: Weight of a member that accepts no slots and gives away its own.
DRAINING: Final = 0.0


@lru_cache(maxsize=8192)
def slot_of(key: str) -> int:
    """Return the slot of a key; it never changes."""
    return int.from_bytes(blake2b(key.encode()).digest()[:8], "big") % SLOTS


class SlotOwner(NamedTuple):
    """The owner of a slot; no writer if it has none."""

    writer: str
    epoch: int


NOBODY: Final = SlotOwner("", 0)


class SharedState(NamedTuple):
    """The state that all members of a table share."""

    #: Random, made with the state's tables; empty for a type without state.
    id: str = ""
    #: Its place, for people.
    place: str = ""
    #: The boot id of the only machine that may use it; empty if any machine may.
    boot_id: str = ""


class TableMember(NamedTuple):
    """A node that hosts the type."""

    #: The node's id in hex.
    node: str
    #: The version of the table in which it joined: evidence that an earlier life of the node
    #: has ended must not remove this one.
    joined: int = 0
    #: The term of its lease in which it joined; the membership ends with the term.
    term: int = 0
    #: Its share of the slots, relative to other members; `DRAINING` for none.
    weight: float = 1.0
    #: The version of its class.
    version: int = 1
    #: The kinds of events that it can read, with the highest version of each.
    reads: tuple[tuple[str, int], ...] = ()
    #: Its address for people, as other members may not be linked with it; empty without a port.
    address: str = ""

    def stored(self) -> Mapping[str, str | float | tuple[tuple[str, int], ...]]:
        """Return the member as it is stored.

        An empty address is left out, as in earlier releases.
        """
        fields = self._asdict()
        if not self.address:
            del fields["address"]
        return fields

    def can_read(self, written: Iterable[tuple[str, int]]) -> bool:
        """Return whether it can read events of these kinds and versions."""
        known = dict(self.reads)
        return all(known.get(kind, 0) >= version for kind, version in written)


@dataclass(frozen=True, slots=True)
class Table:
    """The members by writer (the name of a node's life), and the owners of all slots."""

    #: Higher for a newer table, even after the register was restored from an older copy.
    version: int = 0
    #: The version of the register's value with this table.
    register_version: int = 0
    state: SharedState = SharedState()
    members: Mapping[str, TableMember] = field(default_factory=dict)
    #: Kinds and highest versions of written events that members have reported.
    written: tuple[tuple[str, int], ...] = ()
    slots: tuple[SlotOwner, ...] = (NOBODY,) * SLOTS
    #: Slots moved by hand, each with the member that should own it.
    pins: tuple[tuple[int, str], ...] = ()
    #: Caches of the methods below, which run many times a second.
    _owned: dict[str, Mapping[int, int]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _nodes: list[bytes] = field(default_factory=list, init=False, repr=False, compare=False)
    _unwished: dict[str, list[int]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __hash__(self) -> int:
        members = frozenset(self.members.items())
        return hash((self.version, self.register_version, members, self.slots))

    @classmethod
    def read(cls, text: str, count: int = SLOTS) -> "Table":
        """Return the table of a text; an empty text is a table without owners.

        Raises:
            StateCorrupt: the text is not a table.
            StateVersion: a newer callboard wrote it.
        """
        if not text:
            return cls(slots=(NOBODY,) * count)
        try:
            content = parse_json(text)
            if content["format"] > _FORMAT:
                msg = (
                    f"the register has a table of format {content['format']}, and this "
                    f"callboard reads formats up to {_FORMAT}; upgrade callboard here"
                )
                raise StateVersion(msg)
            slots = tuple(
                SlotOwner(str(writer), _number(epoch)) for writer, epoch in _slots(content)
            )
            members = {str(name): _member(entry) for name, entry in content["members"].items()}
            if len(slots) != count:
                raise ValueError(len(slots))
            state = SharedState(*(str(content["state"][name]) for name in SharedState._fields))
            written = _kinds(content["written"])
            version, register_version = _number(content["version"]), _number(content["at"])
            pins = tuple((_slot(slot, count), str(to)) for slot, to in content.get("pins", ()))
            return cls(version, register_version, state, members, written, slots, pins)
        except _NOT_A_TABLE as error:
            msg = f"the register does not hold a table of entities: {text[:100]!r} ({error!r})"
            raise StateCorrupt(msg) from None

    def text(self) -> str:
        """Return the table as JSON."""
        numbers: dict[str, int] = {}
        for owner in self.slots:
            numbers.setdefault(owner.writer, len(numbers))
        content = {
            "format": _FORMAT,
            "version": self.version,
            "at": self.register_version,
            "state": self.state._asdict(),
            "members": {name: member.stored() for name, member in self.members.items()},
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
        """The memberships: each writer with the version in which it joined."""
        return frozenset((writer, member.joined) for writer, member in self.members.items())

    def owned(self, writer: str) -> Mapping[int, int]:
        """Return the slots of a member, with their epochs."""
        owned = self._owned.get(writer)
        if owned is None:
            slots = enumerate(self.slots)
            owned = {slot: owner.epoch for slot, owner in slots if owner.writer == writer}
            self._owned[writer] = owned
        return owned

    def node_of(self, slot: int) -> bytes:
        """Return the node that owns a slot; empty if none does."""
        return self.owners[slot]

    @property
    def owners(self) -> Sequence[bytes]:
        """The node that owns each slot; empty if none does."""
        if not self._nodes:
            ids = {name: bytes.fromhex(member.node) for name, member in self.members.items()}
            self._nodes.extend([ids.get(owner.writer, b"") for owner in self.slots])
        return self._nodes

    def with_member(self, writer: str, member: TableMember, state: SharedState) -> "Table":
        """Return the table with another member, which takes slots without an owner."""
        joined = member._replace(joined=self.version + 1)
        known = self.state if self.members else state
        return replace(self, members={**self.members, writer: joined}, state=known).filled()

    def with_weight(self, writer: str, weight: float) -> "Table":
        """Return the table with another weight of a member."""
        changed = self.members[writer]._replace(weight=weight)
        return replace(self, members={**self.members, writer: changed})

    def with_pins(self, pins: Mapping[int, str]) -> "Table":
        """Return the table with slots assigned as a user requests; "" ends an assignment."""
        if not pins:
            return self
        known = {**dict(self.pins), **pins}
        valid = {slot: to for slot, to in known.items() if to in self.members}
        return replace(self, pins=tuple(sorted(valid.items())))

    def with_written(self, kinds: Iterable[tuple[str, int]]) -> "Table":
        """Return the table with kinds of written events."""
        written = dict(self.written)
        for kind, version in kinds:
            written[kind] = max(version, written.get(kind, 0))
        return replace(self, written=tuple(sorted(written.items())))

    def without(self, writers: Collection[str]) -> "Table":
        """Return the table without some members; their slots go to the wished owners."""
        members = {name: entry for name, entry in self.members.items() if name not in writers}
        pins = tuple((slot, to) for slot, to in self.pins if to in members)
        return replace(self, members=members, pins=pins).filled()

    def filled(self) -> "Table":
        """Return the table with the wished owner for each slot without an owner."""
        wished = self.wished()
        slots = tuple(
            owner if owner.writer in self.members else _with_owner(owner, wished[slot])
            for slot, owner in enumerate(self.slots)
        )
        return replace(self, slots=slots)

    def moved(self, slots: Iterable[int]) -> "Table":
        """Return the table with some slots given to their wished owners."""
        changed, wished = list(self.slots), self.wished()
        for slot in slots:
            changed[slot] = _with_owner(changed[slot], wished[slot])
        return replace(self, slots=tuple(changed))

    def raised(self, writer: str, epochs: Mapping[int, int]) -> "Table":
        """Return the table with higher epochs for a member's slots whose fences were higher."""
        slots = tuple(
            SlotOwner(writer, epochs[slot])
            if slot in epochs and owner.writer == writer and owner.epoch < epochs[slot]
            else owner
            for slot, owner in enumerate(self.slots)
        )
        return replace(self, slots=slots)

    def unwished(self, writer: str) -> list[int]:
        """Return the slots of a member that another member should own."""
        slots = self._unwished.get(writer)
        if slots is None:
            wished = self.wished()
            slots = [slot for slot in self.owned(writer) if wished[slot] not in ("", writer)]
            self._unwished[writer] = slots
        return slots

    def wished(self) -> tuple[str, ...]:
        """Return the member that should own each slot; empty names without members.

        Members that are draining, or that cannot read the written events, get slots only if
        there are no other members.
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
        """Replace planned owners by the writers that slots are pinned to."""
        changed = list(wished)
        for slot, writer in self.pins:
            if self._is_fit(self.members[writer]):
                changed[slot] = writer
        return tuple(changed)

    def _is_fit(self, member: TableMember) -> bool:
        """Return whether a member may get slots."""
        return member.weight > 0 and member.can_read(self.written)


def _with_owner(slot: SlotOwner, writer: str) -> SlotOwner:
    """Return a slot with another owner; the epoch rises only if there is an owner."""
    return SlotOwner(writer, slot.epoch + 1 if writer else slot.epoch)


def _slots(content: Mapping[str, Any]) -> Iterable[tuple[object, object]]:
    """Return the owner and the epoch of each slot of a stored table."""
    if content["format"] < _FORMAT:
        return [(writer, epoch) for writer, epoch in content["slots"]]
    owners = content["owners"]
    return [(owners[_slot(number, len(owners))], epoch) for number, epoch in content["slots"]]


def _slot(value: object, count: int) -> int:
    """Return a stored index below a count.

    Raises:
        ValueError: the value is not such an index.
    """
    slot = _number(value)
    if slot >= count:
        raise ValueError(slot)
    return slot


def _member(entry: Mapping[str, Any]) -> TableMember:
    """Return a stored member."""
    weight = float(entry["weight"])
    if not 0 <= weight < math.inf:
        raise ValueError(weight)
    reads = _kinds(entry["reads"])
    node = bytes.fromhex(entry["node"])
    if len(node) != NODE_ID_SIZE:
        raise ValueError(node)
    joined, term, version = (_number(entry[name]) for name in ("joined", "term", "version"))
    address = str(entry.get("address", ""))[:_ADDRESS_LIMIT]
    return TableMember(node.hex(), joined, term, weight, version, reads, address)


def _number(value: object) -> int:
    """Return a stored epoch or version."""
    if type(value) is not int or not 0 <= value < _BEYOND:
        raise ValueError(value)
    return value


def _kinds(pairs: Iterable[Any]) -> tuple[tuple[str, int], ...]:
    """Return stored kinds of events with their versions."""
    return tuple((str(kind), int(version)) for kind, version in pairs)


@lru_cache(maxsize=64)
def wishes(weights: tuple[tuple[str, float], ...], count: int) -> tuple[str, ...]:
    """Return the member that should own each slot, by rendezvous hashing with weights.

    A member's score for a slot is its weight divided by an exponentially distributed hash, and
    the highest score wins. So each member gets a share in proportion to its weight, and only
    the slots of a member that joins or leaves are moved.
    """

    def score(slot: int, writer: str, weight: float) -> float:
        digest = blake2b(f"{slot}/{writer}".encode(), digest_size=8).digest()
        uniform = (int.from_bytes(digest, "big") + 1) / (2**64 + 1)
        return weight / -math.log(uniform)

    return tuple(
        max(weights, key=lambda item: (score(slot, *item), item[0]))[0] for slot in range(count)
    )
