"""The table of a type: its members, and the owner and epoch of each of its slots.

It stands in one register and changes by compare-and-set alone. The owner of a slot is who
stands there; the epoch rises with each owner and is what fences are raised to. Whom a slot is
wished to depends on the members alone, never on what a node reaches, so that all agree.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

from callboard.basp.node_id import NODE_ID_SIZE
from callboard.dataclass import dataclass
from callboard.lease.errors import StateCorrupt

#: Slots of a type; for ever, as keys are stored with their slots' fences.
SLOTS: Final = 256

#: No epoch is so large: databases have 63 bits for one.
_BEYOND: Final = 2**62


def slot_of(key: str) -> int:
    """Return the slot of a key: it never changes."""
    return int.from_bytes(blake2b(key.encode()).digest()[:8], "big") % SLOTS


class SlotOwner(NamedTuple):
    """Who owns a slot; no writer where nobody does."""

    writer: str
    epoch: int


NOBODY: Final = SlotOwner("", 0)


@dataclass(frozen=True, slots=True)
class Table:
    """The members by the name of their life (writer), with their nodes, and all owners."""

    #: Of the register: a newer table has a larger one.
    version: int = 0
    #: The id of the state, which all members share.
    state: str = ""
    #: Node ids in hex, by writer.
    members: Mapping[str, str] = field(default_factory=dict)
    slots: tuple[SlotOwner, ...] = (NOBODY,) * SLOTS

    @classmethod
    def read(cls, text: str, version: int) -> "Table":
        """Return the table that a register holds.

        Raises:
            StateCorrupt: it holds something else.
        """
        if not version:
            return cls()
        try:
            found = json.loads(text)
            slots = tuple(SlotOwner(str(writer), epoch) for writer, epoch in found["slots"])
            members = {str(each): str(node) for each, node in found["members"].items()}
            is_sound = (
                len(slots) == SLOTS
                and all(type(each.epoch) is int and 0 <= each.epoch < _BEYOND for each in slots)
                and all(len(bytes.fromhex(node)) == NODE_ID_SIZE for node in members.values())
            )
            if not is_sound:
                raise ValueError(len(slots))
            return cls(version, str(found["state"]), members, slots)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            msg = f"the register holds no table of entities: {text[:100]!r} ({error!r})"
            raise StateCorrupt(msg) from None

    def text(self) -> str:
        """Return the table as JSON."""
        content = {"state": self.state, "members": dict(self.members), "slots": self.slots}
        return json.dumps(content, separators=(",", ":"))

    def owned(self, writer: str) -> dict[int, int]:
        """Return the slots of a member, with their epochs."""
        slots = enumerate(self.slots)
        return {slot: each.epoch for slot, each in slots if each.writer == writer}

    def node_of(self, slot: int) -> bytes:
        """Return the node that owns a slot; empty if none does."""
        return bytes.fromhex(self.members.get(self.slots[slot].writer, ""))

    def with_member(self, writer: str, node: str, state: str) -> "Table":
        """Return it with one more member, which takes what nobody has."""
        members = {**self.members, writer: node}
        return replace(self, members=members, state=self.state or state).filled()

    def without(self, writers: Iterable[str]) -> "Table":
        """Return it without some members; what they had goes to whom it is wished."""
        members = {each: node for each, node in self.members.items() if each not in {*writers}}
        return replace(self, members=members).filled()

    def filled(self) -> "Table":
        """Return it with an owner for each slot that no member has."""
        if not self.members:
            nobody = tuple(SlotOwner("", each.epoch) for each in self.slots)
            return replace(self, slots=nobody)
        wished = wishes(tuple(self.members))
        slots = tuple(
            each if each.writer in self.members else SlotOwner(wished[slot], each.epoch + 1)
            for slot, each in enumerate(self.slots)
        )
        return replace(self, slots=slots)

    def moved(self, slots: Iterable[int]) -> "Table":
        """Return it with slots given to whom they are wished."""
        changed, wished = list(self.slots), wishes(tuple(self.members))
        for slot in slots:
            changed[slot] = SlotOwner(wished[slot], changed[slot].epoch + 1)
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
        wished = wishes(tuple(self.members))
        return [slot for slot in self.owned(writer) if wished[slot] != writer]


@lru_cache(maxsize=64)
def wishes(members: tuple[str, ...]) -> tuple[str, ...]:
    """Return the member that each slot is wished to: rendezvous hashing."""
    return tuple(
        max(members, key=lambda writer: blake2b(f"{slot}/{writer}".encode()).digest())
        for slot in range(SLOTS)
    )
